"""Target of fuzzing: a function of bytes, its seeds, and its allowed outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

from fuzzing.mutate import CORPUS, PLAIN, Mutation

LONGEST_ERROR = 500
"""Characters of an error's line."""

Run = Callable[[bytes], str]
"""Function that tries one input and describes the outcome in a few words; it raises what the product raises."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign input.

    Args:
        name: As `--target` takes it.
        about: What is read, in a few words.
        seeds: Makes valid inputs and near misses, always the same.
        open: Called once in the process that tries inputs, with a folder for files; gives what tries one.
        mutations: How inputs are changed.
        share: Inputs of a campaign that fall to it, relative to those of others.
        traced: Packages whose lines count as coverage.
        refusals: Names of exceptions beside `ArrStreamError` that are an answer too.
        memory_mb: More than this at once, for one input, is a finding.
        forbidden: Audit events that must not happen, beside those that never may.
        hang_seconds: An input that takes longer is a finding.
    """

    name: str
    about: str
    seeds: Callable[[], list[bytes]]
    open: Callable[[Path], Run]
    mutations: Sequence[Mutation] = PLAIN
    share: float = 1.0
    traced: tuple[str, ...] = ("arr_stream",)
    refusals: tuple[str, ...] = ()
    memory_mb: int = 256
    forbidden: tuple[str, ...] = ()
    hang_seconds: float = 10.0


def texts(name: str) -> Any:
    """Seeds that are short texts, kept in `corpus/texts.json`."""
    return json.loads((CORPUS / "texts.json").read_text(encoding="utf-8"))[name]


class UnfitError(AssertionError):
    """Error line that is unsafe for a terminal or a log."""


def checked_error(error: Exception) -> None:
    """Raises:
    UnfitError: The text is no line, too long, or holds control characters.
    """
    text = str(error)
    if len(text) > LONGEST_ERROR:
        raise UnfitError(f"{len(text)} characters: {text[:700]!a}") from error
    odd = sorted({f"U+{ord(letter):04X}" for letter in text if category(letter) in ("Cc", "Cs", "Zl", "Zp")})
    if odd:
        raise UnfitError(f"holds {', '.join(odd[:5])}: {text[:700]!a}") from error
