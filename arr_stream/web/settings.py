"""Settings of the server: presets by name, and settings that clients may change, described for forms.

Clients may not change settings that name files, models, addresses or memory limits: the command line sets those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_stream.config import PRESETS, Settings
from arr_stream.errors import InvalidSetting

COMMON = (
    "selection.budget",
    "selection.per_second",
    "keyframes.text",
    "keyframes.interval",
    "live.adapt",
)
"""Those of `CHANGEABLE` that users change first."""

CHANGEABLE = (
    *COMMON,
    "selection.novelty",
    "selection.strategy",
    "selection.context_share",
    "selection.cascade",
    "keyframes.min_interval",
    "keyframes.min_confidence",
    "keyframes.clusters",
    "keyframes.cluster_count",
    "keyframes.embeddings",
    "relevance.trust",
    "relevance.language",
)
"""Settings that clients may change: they take effect while a stream runs."""


@dataclass(frozen=True, slots=True)
class Presets:
    """Settings `by_name`, and those of streams without a preset; `first` is the first preset of the command line."""

    settings: Settings
    by_name: Mapping[str, Settings]
    descriptions: Mapping[str, str]
    first: str | None = None


def load_presets(asked: Sequence[str], overrides: Sequence[str], values: Mapping[str, Any]) -> Presets:
    """Read the presets that come with the project and those `asked` for, names or files, which their stems name.

    `overrides` (`key=value`) override each preset, and `values`, by dotted key, override those.

    Raises:
        PresetNotFound, UnknownSetting, InvalidSetting: See `Settings.load`.
    """
    paths = {path.stem: path for path in sorted(PRESETS.glob("*.toml"))}
    given = {Path(text).stem: paths.get(text, Path(text)) for text in asked}
    paths |= given

    def load(path: Path | None) -> Settings:
        settings = Settings.load(path, overrides).with_values(values).for_live()
        return settings.for_memory() if settings.vlm.model or settings.vlm.endpoint else settings

    by_name = {name: load(path) for name, path in paths.items()}
    descriptions = {name: _description(path) for name, path in paths.items()}
    return Presets(load(None), by_name, descriptions, next(iter(given), None))


def describe(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return for each setting in `CHANGEABLE` its default, start value, description, kind, and choices or limits."""
    described = {}
    for key in CHANGEABLE:
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


def checked_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes; raise `InvalidSetting` for one that clients may not make."""
    for key in values:
        if key not in CHANGEABLE:
            raise InvalidSetting(f"{key[:80]!r} cannot be changed here", remedy="`arr-stream serve --set` sets it")
    return dict(values)


def _description(path: Path) -> str:
    """Return the comment at the beginning of a file, up to its first full stop."""
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
