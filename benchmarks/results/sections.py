"""Sections of the page in their order, read from `sections.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Args:
        line: As typed; its first word is `arr-stream`, `benchmarks` for `python -m benchmarks`, or a script.
        quick: A shorter one of the same kind, for trying; the same where empty.
        label: What tells it from the section's others.
    """

    line: str
    quick: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page; `sections.toml` tells what each field is."""

    name: str
    title: str
    shows: str
    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()
    page: str = ""
    minutes: float = 1.0
    drop: tuple[str, ...] = ()


def _section(values: dict[str, Any]) -> Section:
    commands = tuple(Command(**command) for command in values["commands"])
    lists = {name: tuple(values.get(name, ())) for name in ("needs", "drop")}
    return Section(**{**values, **lists, "commands": commands})


SECTIONS = tuple(
    map(_section, tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["section"])
)
BY_NAME = {section.name: section for section in SECTIONS}
