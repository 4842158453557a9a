"""Record of a section in one JSON file, the page's only source: figures, and the machine and code behind them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arr_stream.errors import EvaluationDataError
from arr_stream.processes import usable_cores
from benchmarks.machine import processor_name

PACKAGES = (
    *("torch", "numpy", "opencv-python-headless", "av", "scikit-image", "onnxruntime", "rapidocr", "kornia"),
    *(
        "open_clip_torch",
        "transformers",
        "fastapi",
        "uvicorn",
    ),
)

PRODUCT = ("arr_stream", "pipelines", "sample_videos")
"""Folders whose files can change a figure."""


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
        runs: The commands that succeeded.
        missing: Why figures are missing; empty if all commands succeeded.
    """

    section: str
    measured: str
    commit: str
    code: str
    machine: Mapping[str, str]
    quick: bool
    runs: tuple[Run, ...] = ()
    missing: str = ""

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    def save(self, folder: Path) -> None:
        """Write `SECTION.json`; a file that is there stays whole until the new one is."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{self.section}.json.part"
        unfinished.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        unfinished.replace(folder / f"{self.section}.json")


def load_records(folder: Path) -> dict[str, Record]:
    """All that is kept, by section.

    Raises:
        EvaluationDataError: A file that is no record.
    """
    return {record.section: record for record in map(_load, sorted(folder.glob("*.json")))}


def _load(path: Path) -> Record:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(Run(**run) for run in values.pop("runs"))
        return Record(**values | {"runs": runs})
    except (KeyError, TypeError, ValueError) as exc:
        raise EvaluationDataError(
            f"{path}: not a record of measured figures: {exc!r}", remedy="delete it and measure again"
        ) from exc


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, GPU, system, Python and the packages that figures depend on."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "processor": processor_name(),
        "cores": str(usable_cores()),
        "memory": _memory(),
        "GPU": gpu,
        "system": platform.system() + " " + platform.release().partition("-")[0],
        "Python": platform.python_version(),
        **_versions(),
    }


def _memory() -> str:
    """Return the machine's memory; `unknown` where the system does not report it."""
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, OSError, ValueError):
        return "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def load_average() -> float:
    """Return the load average of the last minute; 0 on systems without one."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def code_digest(root: Path) -> str:
    """Changes with any file of the product, and with nothing else."""
    digest = hashlib.sha256()
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit(root: Path) -> str:
    """Short name of the commit, with `+` where files of the product differ from it; `unknown` outside a repository."""
    try:
        name = _git(root, "rev-parse", "--short=8", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *PRODUCT)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
