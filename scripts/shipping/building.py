"""Building the source distribution and the wheel, without leaving anything in the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

KEPT_OUT = ("__pycache__", "*.pyc", "*.egg-info", "build", "dist", "demo_output")
"""What lies in a tree that was worked in; names that begin with a dot are left out too."""

_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


class BuildFailed(Exception):
    """A build ended with an error; what the builder said last is in the message."""


@dataclass(frozen=True, slots=True)
class Built:
    """What is published, and the copy of the tree that it was built from."""

    sdist: Path
    wheel: Path
    tree: Path


def copy_tree(root: Path, to: Path) -> Path:
    """A copy of the tree as a checkout has it: building leaves folders of its own behind."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        hidden = {name for name in names if name.startswith(".")}
        return hidden | shutil.ignore_patterns(*KEPT_OUT)(folder, names)

    return Path(shutil.copytree(root, to, ignore=left_out))


def build(root: Path, out: Path, work: Path, *, isolated: bool = True) -> Built:
    """Build the source distribution from a copy of the tree, and the wheel from that, as its users do.

    Args:
        root: The tree.
        out: Folder for both; made if need be.
        work: An empty folder for copies.
        isolated: pip fetches what the build needs and builds the wheel apart; otherwise this interpreter's setuptools
            builds, which needs no network.

    Raises:
        BuildFailed: Of either.
    """
    out.mkdir(parents=True, exist_ok=True)
    tree = copy_tree(root, work / "tree")
    sdist = out / _backend("build_sdist", tree, out)
    if isolated:
        made = work / "wheel"
        _told([sys.executable, "-m", "pip", "wheel", "--log=quiet", "--no-deps", "-w", str(made), str(sdist)], work)
        (wheel,) = made.glob("*.whl")
        return Built(sdist, Path(shutil.copy(wheel, out)), tree)
    return Built(sdist, out / _backend("build_wheel", unpack(sdist, work / "unpacked"), out), tree)


def unpack(sdist: Path, to: Path) -> Path:
    """The one folder in a source distribution."""
    with tarfile.open(sdist) as archive:
        # Python 3.11 has filters from 3.11.4 on; the archive is our own.
        archive.extractall(to, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (folder,) = to.iterdir()
    return folder


def _backend(hook: str, tree: Path, out: Path) -> str:
    return _told([sys.executable, "-c", _BUILD, hook, str(out)], tree).splitlines()[-1]


def _told(command: list[str], folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BuildFailed(" | ".join((ended.stderr or ended.stdout).strip().splitlines()[-5:]))
    return ended.stdout
