"""Running a section's commands and keeping what they print."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.results.records import Record, Run, code_digest, commit, describe_machine, load_average
from benchmarks.results.sections import Command, Section

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "arr-stream": (sys.executable, "-m", "arr_stream"),
    "benchmarks": (sys.executable, "-m", "benchmarks"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Paths that measuring and the page use.

    Args:
        root: Of the project.
        out: Folder of the page; `results/` in it takes the records, `images/results/` the pictures.
        data: Folder of footage, None where there is none.
        programs: Programs by the first word of a command; other words name scripts of the project.
    """

    root: Path
    out: Path
    data: Path | None = None
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PROGRAMS)

    @property
    def page(self) -> Path:
        return self.out / "results.md"

    @property
    def records(self) -> Path:
        return self.out / "results"

    @property
    def pictures(self) -> Path:
        return self.out / "images" / "results"


def lacking(needs: tuple[str, ...], data: Path | None) -> str:
    """Why a section with such needs cannot be measured here; empty where it can."""
    for need in needs:
        if need == "cuda":
            if not _has_gpu():
                return "this machine has no NVIDIA GPU"
        elif need == "chromium":
            if not _has_browser():
                return "this machine has no Chromium (ARR_STREAM_CHROMIUM names one)"
        elif need == "vllm":
            if not os.environ.get("ARR_STREAM_VLLM"):
                return "no vLLM was named (ARR_STREAM_VLLM; scripts/test --vllm makes one)"
        elif data is None:
            return "no footage was given (--data FOLDER or ARR_STREAM_DATA)"
        elif not (data / need).is_dir():
            return f"the footage has no folder {need}/"
    return ""


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_browser() -> bool:
    from arr_stream.errors import BackendUnavailable
    from benchmarks.live.browser import find_chromium

    try:
        find_chromium()
    except BackendUnavailable:
        return False
    return True


def measure(section: Section, place: Place, *, quick: bool, say: Callable[[str], None]) -> Record:
    """Run the commands of a section, unless something that it needs is lacking.

    A command that fails ends the section: the record says why, and keeps the figures of the commands before.
    """
    record = Record(
        section.name,
        time.strftime("%Y-%m-%d %H:%M"),
        commit(place.root),
        code_digest(place.root),
        describe_machine(),
        quick,
        missing=lacking(section.needs, place.data),
    )
    if record.missing:
        say(f"  not measured: {record.missing}")
        return record
    runs: list[Run] = []
    for command in section.commands:
        line = command.quick if quick and command.quick else command.line
        say(f"  {line}")
        try:
            runs.append(_run(command, line, place, section.drop))
        except CommandFailed as exc:
            say(f"  {exc}")
            return replace(record, runs=tuple(runs), missing=str(exc))
    return replace(record, runs=tuple(runs))


class CommandFailed(Exception):
    """A command ended with an error, or printed no JSON."""


def _run(command: Command, line: str, place: Place, drop: tuple[str, ...]) -> Run:
    load, start = load_average(), time.monotonic()
    name, _, rest = line.partition(" ")
    program = place.programs.get(name, (str(place.root / name),))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        arguments = _arguments(rest, place, file)
        done = subprocess.run([*program, *arguments], cwd=place.root, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        printed = file.read_text() if file.exists() else done.stdout
    if done.returncode != 0:
        # A message may be long or a traceback; its last line says what happened.
        words = done.stderr.strip().splitlines() or ["no message"]
        raise CommandFailed(_without_paths(f"the command ended with code {done.returncode}: {words[-1]}", place))
    try:
        result = json.loads(_without_paths(printed, place))
    except ValueError as exc:
        raise CommandFailed("the command printed no JSON") from exc
    if isinstance(result, dict):
        result = {name: value for name, value in result.items() if name not in drop}
    return Run(command.label, typed(line), round(seconds, 1), round(load, 2), result)


def typed(line: str) -> str:
    """A command as the page shows it."""
    shown = f"python -m {line}" if line.startswith("benchmarks ") else line
    return shown.replace("FILE", "FILE.json")


def _arguments(line: str, place: Place, file: Path) -> list[str]:
    values = {"DATA": str(place.data), "FILE": str(file)}
    words = []
    for word in shlex.split(line):
        folder, slash, rest = word.partition("/")
        words.append(values.get(folder, folder) + slash + rest)
    return words


def _without_paths(text: str, place: Place) -> str:
    """Replace this machine's folders, so that no record names them."""
    for path, name in ((place.data, "DATA"), (place.root, ".")):
        if path is not None:
            text = text.replace(str(path), name)
    return text


def keeps(record: Record | None, *, quick: bool) -> bool:
    """Return whether the existing figures, even of older code, stay when this machine cannot measure.

    Figures of short runs do not stay in a full run.
    """
    return record is not None and not record.missing and (quick or not record.quick)


def is_current(record: Record | None, place: Place, *, quick: bool) -> bool:
    """Return whether there are figures of the current code."""
    return (
        record is not None and not record.missing and record.quick == quick and record.code == code_digest(place.root)
    )
