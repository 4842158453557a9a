"""What has to be in the published files, and what must not be."""

from __future__ import annotations

import email.message
import email.parser
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

LARGEST_BYTES = 12_000_000
"""Of one file in either."""

_PACKAGE = "arr_stream"
_SDIST_FILES = (
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
)
_SDIST_FOLDERS = ("arr_stream", "benchmarks", "docs", "pipelines", "sample_videos", "scripts", "tests")
_RUBBISH = ("__pycache__", ".pyc", ".egg-link", ".DS_Store", ".orig", ".rej", "~")


def wheel_faults(wheel: Path, root: Path) -> list[str]:
    """What is wrong with a wheel built from the tree at `root`, a line each; empty where nothing is."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        information = next(name for name in sizes if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesParser().parsebytes(archive.read(information))
    inside = PurePosixPath(information).parent
    wanted = {f"{_PACKAGE}/{name}" for name in tree_files(root / _PACKAGE)}
    wanted |= {f"{_PACKAGE}/presets/{name}" for name in tree_files(root / "pipelines")}
    wanted |= {str(inside / "licenses" / "LICENSE"), str(inside / "entry_points.txt")}
    faults = [f"{name} is missing" for name in sorted(wanted - sizes.keys())]
    faults += [f"{name} is not in the tree" for name in sorted(_code(sizes) - wanted)]
    strangers = {PurePosixPath(name).parts[0] for name in sizes} - {_PACKAGE, inside.name}
    faults += [f"{name} would be installed beside the package" for name in sorted(strangers)]
    return faults + _common_faults(sizes) + metadata_faults(metadata, root)


def sdist_faults(sdist: Path, root: Path) -> list[str]:
    """The same for a source distribution: it must hold what building, testing and reading take."""
    with tarfile.open(sdist) as archive:
        entries = archive.getmembers()
    sizes = {_below_top(entry.name): entry.size for entry in entries if entry.isfile()}
    faults = [f"{entry.name} is a link" for entry in entries if entry.issym() or entry.islnk()]
    wanted = set(_SDIST_FILES)
    for folder in _SDIST_FOLDERS:
        wanted |= {f"{folder}/{name}" for name in tree_files(root / folder)}
    faults += [f"{name} is missing" for name in sorted(wanted - sizes.keys())]
    return faults + _common_faults(sizes)


def metadata_faults(metadata: email.message.Message, root: Path) -> list[str]:
    """What the wheel says of itself, against pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = {
        "Name": project["name"],
        "License-Expression": project["license"],
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    faults = [
        f"metadata: {key} is {metadata[key]!r}, not {value!r}" for key, value in said.items() if metadata[key] != value
    ]
    if "Typing :: Typed" not in metadata.get_all("Classifier", []):
        faults.append("metadata: not marked as typed")
    missing = set(project["optional-dependencies"]) - set(metadata.get_all("Provides-Extra", []))
    return faults + [f"metadata: the extra {extra} is missing" for extra in sorted(missing)]


def tree_files(folder: Path) -> set[str]:
    """Every file below a folder that belongs to it, by its path from there; caches do not."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        path.as_posix() for path in found if not any(_is_rubbish(part) or part.startswith(".") for part in path.parts)
    }


def _common_faults(sizes: dict[str, int]) -> list[str]:
    large = [f"{name} has {size} bytes" for name, size in sizes.items() if size > LARGEST_BYTES]
    return large + [f"{name} does not belong there" for name in sizes if _is_rubbish(name)]


def _is_rubbish(name: str) -> bool:
    return any(word in name if word.startswith("__") else name.endswith(word) for word in _RUBBISH)


def _code(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(f"{_PACKAGE}/")}


def _below_top(name: str) -> str:
    return PurePosixPath(*PurePosixPath(name).parts[1:]).as_posix()
