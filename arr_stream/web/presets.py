"""Presets by name: those that come with the project, where they lie beside the package, and those that are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_stream.config import PRESETS, Settings
from arr_stream.errors import InvalidSetting, PresetNotFound


@dataclass(frozen=True, slots=True)
class Presets:
    """Settings by name.

    Args:
        settings: What streams without a preset start from.
        by_name: Each preset's.
        descriptions: What each is for, in one line.
        first: Name of the first that was asked for; None without any.
    """

    settings: Settings
    by_name: Mapping[str, Settings]
    descriptions: Mapping[str, str]
    first: str | None = None


def load_presets(asked: Sequence[str], overrides: Sequence[str], values: Mapping[str, Any]) -> Presets:
    """Read every preset.

    Args:
        asked: Files, known by their stems, or names of presets that come with the project.
        overrides: `key=value`, over each.
        values: By dotted key, over those.

    Raises:
        PresetNotFound, UnknownSetting, InvalidSetting: See `Settings.load`; two files with the same stem.
    """
    paths = {path.stem: path for path in sorted(PRESETS.glob("*.toml"))}
    given: dict[str, Path] = {}
    for text in asked:
        path = Path(text)
        if not path.exists() and text in paths:
            path = paths[text]
        elif not path.suffix and not path.exists():
            raise PresetNotFound(f"preset {text!r}: no such file or name", remedy=f"known are {', '.join(paths)}")
        if given.setdefault(path.stem, path) != path:
            raise InvalidSetting(f"two presets are called {path.stem!r}", remedy="rename a file")
    paths |= given
    return Presets(
        Settings.load(None, overrides).with_values(values).for_live(),
        {name: Settings.load(path, overrides).with_values(values).for_live() for name, path in paths.items()},
        {name: _description(path) for name, path in paths.items()},
        next(iter(given), None),
    )


def _description(path: Path) -> str:
    """The comment that a file begins with, up to its first full stop."""
    said = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        said.append(line.lstrip("# ").strip())
    return " ".join(said).partition(". ")[0].rstrip(".")[:160]
