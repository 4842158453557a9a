"""Settings of the server: presets by name, and what may be changed through the interface, described for forms.

Whatever names files, models, addresses or limits of memory may not: that is the command line's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_stream.config import PRESETS, Settings
from arr_stream.errors import InvalidSetting, PresetNotFound

COMMON = (
    "selection.budget",
    "selection.per_second",
    "keyframes.text",
    "keyframes.interval",
    "live.adapt",
)
"""Those of `RUNNING` that users change first."""

RUNNING = (
    *COMMON,
    "selection.novelty",
    "selection.strategy",
    "selection.context_share",
    "selection.cascade",
    "selection.hybrid_grid_share",
    "keyframes.min_interval",
    "keyframes.min_confidence",
    "keyframes.cut_threshold",
    "keyframes.clusters",
    "keyframes.cluster_count",
    "keyframes.embeddings",
    "motion.preset",
    "relevance.trust",
    "relevance.language",
)
"""Take effect while a stream runs."""

STARTING = (
    *RUNNING,
    "live.policy",
    "live.size",
    "live.fps",
    "live.rtsp_transport",
    "live.connect_seconds",
    "live.stall_seconds",
    "live.give_up_seconds",
)
"""May be given when a stream is added."""


@dataclass(frozen=True, slots=True)
class Presets:
    """Settings `by_name`, and what streams without a preset start from; `first` is the first that was asked for."""

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

    def load(path: Path | None) -> Settings:
        settings = Settings.load(path, overrides).with_values(values).for_live()
        return settings.for_memory() if settings.vlm.model or settings.vlm.endpoint else settings

    by_name = {name: load(path) for name, path in paths.items()}
    descriptions = {name: _description(path) for name, path in paths.items()}
    return Presets(load(None), by_name, descriptions, next(iter(given), None))


def describe(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return each setting of `RUNNING`: its default, what streams start with (`settings`), description, whether it is
    for experts, kind, and choices or limits; plain JSON values."""
    described = {}
    for key in RUNNING:
        section, _, name = key.partition(".")
        values = getattr(settings, section)
        schema = type(values).model_json_schema()["properties"][name]
        described[key] = {
            "default": schema["default"],
            "start": getattr(values, name),
            "description": schema["description"],
            "advanced": key not in COMMON,
            **_kind(schema),
        }
    return described


def checked_changes(values: Mapping[str, Any], *, running: bool) -> dict[str, Any]:
    """The changes; `InvalidSetting` where one may not be made, or not while the stream runs."""
    known = RUNNING if running else STARTING
    for key in values:
        if key not in known:
            when = "while a stream runs" if running and key in STARTING else "through the server"
            raise InvalidSetting(f"{key[:80]!r} cannot be changed {when}", remedy="`arr-stream serve --set` sets it")
    return dict(values)


def _description(path: Path) -> str:
    """The comment that a file begins with, up to its first full stop."""
    said = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        said.append(line.lstrip("# ").strip())
    return " ".join(said).partition(". ")[0].rstrip(".")[:160]


def _kind(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return {"kind": "choice", "choices": schema["enum"]}
    kinds = {"boolean": "switch", "integer": "whole", "number": "number"}
    described: dict[str, Any] = {"kind": kinds.get(schema.get("type", ""), "text")}
    limits = {"minimum": "low", "exclusiveMinimum": "low", "maximum": "high", "exclusiveMaximum": "high"}
    return described | {limits[name]: value for name, value in schema.items() if name in limits}
