"""What is kept of a section: one JSON file, from which alone the page is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One command and what it printed.

    Args:
        label: What tells it from the section's other commands; empty where there is one.
        command: As it can be typed, with DATA for the folder of footage.
        seconds: How long it took.
        load: Load average (one minute) when it began.
        result: The JSON that it printed.
    """

    label: str
    command: str
    seconds: float
    load: float
    result: Any


@dataclass(frozen=True, slots=True)
class Record:
    """A section as it was measured, or why it was not.

    Args:
        section: Its name.
        measured: Local date and time.
        commit: Of the project, with `+` where files of the product differed from it.
        code: Digest of the product's own files.
        machine: What it was measured on.
        quick: With the short commands, whose figures are for trying.
        runs: The commands, all of which succeeded; none where `missing` says why.
        missing: Why there are no figures; empty where there are.
        pictures: Names of the pictures that the commands drew.
    """

    section: str
    measured: str
    commit: str
    code: str
    machine: Mapping[str, str]
    quick: bool
    runs: tuple[Run, ...] = ()
    missing: str = ""
    pictures: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    def save(self, folder: Path) -> None:
        """Write `SECTION.json`; a file that is there stays whole until the new one is."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{self.section}.json.part"
        unfinished.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(folder / f"{self.section}.json")


class DamagedRecord(ValueError):
    """A kept file that is not what `Record.save` writes."""


def load_records(folder: Path) -> dict[str, Record]:
    """All that is kept, by section.

    Raises:
        DamagedRecord: A file that is no record; the message names it.
    """
    return {record.section: record for record in map(_load, sorted(folder.glob("*.json")))}


def _load(path: Path) -> Record:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(Run(**run) for run in values.pop("runs"))
        return Record(**values | {"runs": runs, "pictures": tuple(values["pictures"])})
    except (KeyError, TypeError, ValueError) as exc:
        raise DamagedRecord(f"{path}: not a record of scripts/results: {exc!r}; delete it and measure again") from exc
