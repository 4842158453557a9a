"""Target of fuzzing: a function of bytes, its seeds, and its allowed outcomes."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

from fuzzing.structure import Mutation

CORPUS = Path(__file__).parent / "corpus"
LONGEST_ERROR = 500
"""Characters of an error's line."""

Run = Callable[[bytes], object]
"""Function that tries one input; it raises what the product raises, and `AssertionError` for a wrong value."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of untrusted input.

    Args:
        name: As `--target` takes it.
        about: What is read, in a few words.
        seeds: Makes valid inputs and near misses, always the same.
        open: Called once in the process that tries inputs, with a folder for files; returns what tries one.
        tokens: Names in `corpus/tokens.json` of the tokens that libFuzzer inserts.
        structure: Mutation of the format, for half of the inputs; libFuzzer's own for the others.
        share: Inputs of a run that fall to it, relative to those of others.
        refusals: Names of exceptions beside `ArrStreamError` that are an answer too.
        memory_mb: More than this beyond what the seeds need is a finding.
        forbidden: Audit events that must not happen, beside those that never may.
    """

    name: str
    about: str
    seeds: Callable[[], list[bytes]]
    open: Callable[[Path], Run]
    tokens: str = "odd"
    structure: Mutation | None = None
    share: float = 1.0
    refusals: tuple[str, ...] = ()
    memory_mb: int = 256
    forbidden: tuple[str, ...] = ()


def texts(name: str) -> Any:
    """Return seeds that are short texts, kept in `corpus/texts.json`."""
    return json.loads((CORPUS / "texts.json").read_text(encoding="utf-8"))[name]


def check_error(error: Exception) -> None:
    """Check that an error's text suits a terminal and a log.

    Raises:
        AssertionError: It is too long, or holds control characters.
    """
    text = str(error)
    odd = sorted({f"U+{ord(letter):04X}" for letter in text if category(letter) in ("Cc", "Cs", "Zl", "Zp")})
    if odd or len(text) > LONGEST_ERROR:
        raise AssertionError(f"message of {len(text)} characters, with {odd[:5]}: {text[:700]!a}") from error


def all_targets() -> dict[str, Target]:
    """Return every target by name."""
    from fuzzing import media_targets, text_targets, web_targets, weight_targets

    modules = (media_targets, text_targets, web_targets, weight_targets)
    return {target.name: target for module in modules for target in module.TARGETS}


def find_target(spec: str) -> Target:
    """Return a target by its name, or by `FILE.py:NAME`."""
    file, colon, name = spec.rpartition(":")
    if not colon:
        return all_targets()[spec]
    module_spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    found: Target = getattr(module, name)
    return found
