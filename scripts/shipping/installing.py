"""An environment of its own for what was built, and questions of versions that take no installing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from shipping.commands import Outcome, tried


def installed(wheel: Path, folder: Path, extras: Sequence[str], wanted: Sequence[str]) -> Iterator[Outcome]:
    """Install a wheel into a new environment and try it there.

    Args:
        wheel: The wheel.
        folder: Empty; gets the environment, several GB.
        extras: To install with it.
        wanted: Further requirements for pip, such as another build of torch.
    """
    place = folder / "environment"
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    yield _ended("pip install", [str(python), "-m", "pip", "install", "--log=quiet", named, *wanted])
    yield _ended("pip check", [str(python), "-m", "pip", "check"])
    here = folder / "elsewhere"
    here.mkdir()
    yield from tried(python, here, extras)
    yield typed(python)


def typed(python: Path) -> Outcome:
    """Whether mypy, of this interpreter, accepts a program against the package that another one has installed."""
    program = Path(__file__).with_name("consumer.py")
    # Without a cache and a configuration: the tree's own must not help.
    alone = ["--strict", "--config-file=", "--cache-dir=/dev/null", "--python-executable", str(python)]
    return _ended("types", [sys.executable, "-m", "mypy", *alone, str(program)], program.parent.parent)


def resolved(root: Path, versions: Sequence[str]) -> Iterator[Outcome]:
    """Whether every extra, alone and with all others, has versions that fit, as wheels, for each Python; uses uv."""
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    # fast-slic has no wheels at all; the README tells how to build it.
    names = sorted(set(extras) - {"slic"})
    for version in versions:
        for chosen in ([], *([name] for name in names), names):
            asked = [argument for name in chosen for argument in ("--extra", name)]
            what = f"Python {version}, {', '.join(chosen) or 'no extra'}"
            command = ["uv", "pip", "compile", "--log=quiet", "--only-binary", ":all:", "--python-version", version]
            yield _ended(what, [*command, *asked, str(root / "pyproject.toml"), "-o", "/dev/null"])


def _ended(what: str, command: Sequence[str], folder: Path | None = None) -> Outcome:
    ended = subprocess.run(list(command), cwd=folder, capture_output=True, text=True, check=False)
    lines = (ended.stdout.strip() or ended.stderr.strip()).splitlines()
    return Outcome(what, ended.returncode == 0, " | ".join(lines[-3:]) if ended.returncode else "".join(lines[-1:]))
