"""Build the source distribution and the wheel, and check their files and metadata."""

from __future__ import annotations

import email.message
import email.parser
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
LARGEST_BYTES = 12_000_000
"""Largest size of a file in either distribution."""

_IGNORED = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.egg-info", "build", "dist", "demo_output")
_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
_PACKAGE = "arr_stream"
_SDIST_FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "constraints.txt")
_SDIST_FILES += ("pyproject.toml", "setup.py")
_SDIST_FOLDERS = ("arr_stream", "benchmarks", "docs", "pipelines", "sample_videos", "scripts", "tests")
_UNWANTED = ("__pycache__", ".pyc", ".egg-link", ".DS_Store", ".orig", ".rej", "~")


class BuildFailed(Exception):
    """A build ended with an error; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Built:
    """Both distributions, and the copy of the tree that they were built from."""

    sdist: Path
    wheel: Path
    tree: Path


def build(root: Path, out: Path, work: Path) -> Built:
    """Build the source distribution from a copy of the tree, and the wheel from the source distribution.

    Args:
        root: The tree; nothing is written to it.
        out: Folder for both.
        work: Empty folder for copies.

    Raises:
        BuildFailed: One of them could not be built.
    """
    out.mkdir(parents=True, exist_ok=True)
    tree = copy_tree(root, work / "tree")
    sdist = out / _built("build_sdist", tree, out)
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    return Built(sdist, out / _built("build_wheel", unpacked, out), tree)


def copy_tree(root: Path, to: Path) -> Path:
    """Copy the files that a checkout has, without caches and outputs."""
    return Path(shutil.copytree(root, to, ignore=_IGNORED))


def _built(hook: str, tree: Path, out: Path) -> str:
    """Return the name of the file that a hook of setuptools builds."""
    command = [sys.executable, "-c", _BUILD, hook, str(out)]
    ended = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BuildFailed(" | ".join((ended.stderr or ended.stdout).strip().splitlines()[-5:]))
    return ended.stdout.splitlines()[-1]


def wheel_faults(wheel: Path, root: Path) -> list[str]:
    """Return the faults of a wheel built from the tree at `root`, one line each."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        information = next(name for name in sizes if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesParser().parsebytes(archive.read(information))
    inside = PurePosixPath(information).parent
    wanted = {f"{_PACKAGE}/{name}" for name in tree_files(root / _PACKAGE)}
    wanted |= {f"{_PACKAGE}/presets/{name}" for name in tree_files(root / "pipelines")}
    wanted |= {str(inside / "licenses" / "LICENSE"), str(inside / "entry_points.txt")}
    code = {name for name in sizes if name.startswith(f"{_PACKAGE}/")}
    others = {PurePosixPath(name).parts[0] for name in sizes} - {_PACKAGE, inside.name}
    faults = [f"{name} is missing" for name in sorted(wanted - sizes.keys())]
    faults += [f"{name} is not in the tree" for name in sorted(code - wanted)]
    faults += [f"{name} would be installed beside the package" for name in sorted(others)]
    return faults + _common_faults(sizes) + _metadata_faults(metadata, root)


def sdist_faults(sdist: Path, root: Path) -> list[str]:
    """Return the faults of a source distribution, one line each."""
    with tarfile.open(sdist) as archive:
        entries = archive.getmembers()
    sizes = {PurePosixPath(*PurePosixPath(e.name).parts[1:]).as_posix(): e.size for e in entries if e.isfile()}
    wanted = set(_SDIST_FILES)
    for folder in _SDIST_FOLDERS:
        wanted |= {f"{folder}/{name}" for name in tree_files(root / folder)}
    faults = [f"{entry.name} is a link" for entry in entries if entry.issym() or entry.islnk()]
    return faults + [f"{name} is missing" for name in sorted(wanted - sizes.keys())] + _common_faults(sizes)


def tree_files(folder: Path) -> set[str]:
    """Return the relative paths of all files below a folder, without caches and hidden files."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        path.as_posix() for path in paths if not any(_is_unwanted(part) or part.startswith(".") for part in path.parts)
    }


def _metadata_faults(metadata: email.message.Message, root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expected = {
        "Name": project["name"],
        "License-Expression": project["license"],
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    different = [(key, value) for key, value in expected.items() if metadata[key] != value]
    faults = [f"metadata: {key} is {metadata[key]!r}, not {value!r}" for key, value in different]
    if "Typing :: Typed" not in metadata.get_all("Classifier", []):
        faults.append("metadata: not marked as typed")
    missing = set(project["optional-dependencies"]) - set(metadata.get_all("Provides-Extra", []))
    return faults + [f"metadata: the extra {extra} is missing" for extra in sorted(missing)]


def _common_faults(sizes: dict[str, int]) -> list[str]:
    large = [f"{name} has {size} bytes" for name, size in sizes.items() if size > LARGEST_BYTES]
    return large + [f"{name} does not belong there" for name in sizes if _is_unwanted(name)]


def _is_unwanted(name: str) -> bool:
    return any(word in name if word.startswith("__") else name.endswith(word) for word in _UNWANTED)


def main() -> int:
    """Build into `dist/`; return 1 if a file or the metadata is wrong."""
    with tempfile.TemporaryDirectory(prefix="arr-stream-package-") as work:
        built = build(ROOT, ROOT / "dist", Path(work))
        faults = [*wheel_faults(built.wheel, built.tree), *sdist_faults(built.sdist, built.tree)]
    for line in faults or [str(built.wheel), str(built.sdist)]:
        print(line)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
