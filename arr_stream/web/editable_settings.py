"""Settings that may be changed through the interface, and what is known of each, for forms.

Whatever names files, models, addresses or limits of memory is not among them: those are the command line's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting

RUNNING = (
    "selection.budget",
    "selection.strategy",
    "selection.cascade",
    "selection.hybrid_grid_share",
    "selection.levels",
    "selection.context_share",
    "selection.novelty",
    "keyframes.interval",
    "keyframes.min_interval",
    "keyframes.min_confidence",
    "keyframes.cut_threshold",
    "keyframes.clusters",
    "keyframes.cluster_count",
    "keyframes.embeddings",
    "keyframes.text",
    "motion.preset",
    "relevance.trust",
    "relevance.language",
    "live.adapt",
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


def describe(settings: Settings) -> dict[str, dict[str, Any]]:
    """Of each setting in `RUNNING`: default, description, kind, and its choices or limits; plain JSON values.

    Args:
        settings: What streams without a preset start from.
    """
    described = {}
    for key in RUNNING:
        section, _, name = key.partition(".")
        values = getattr(settings, section)
        field = type(values).model_fields[name]
        described[key] = {"default": getattr(values, name), "description": field.description or "", **_kind(field)}
    return described


def checked_changes(values: Mapping[str, Any], *, running: bool) -> dict[str, Any]:
    """The changes, if all are of settings that may be changed.

    Raises:
        InvalidSetting: One may not, or not while the stream runs.
    """
    known = RUNNING if running else STARTING
    for key in values:
        if key not in known:
            when = "while a stream runs" if running and key in STARTING else "through the server"
            raise InvalidSetting(f"{key[:80]!r} cannot be changed {when}", remedy="`arr-stream serve --set` sets it")
    return dict(values)


def _kind(field: FieldInfo) -> dict[str, Any]:
    if get_origin(field.annotation) is Literal:
        return {"kind": "choice", "choices": list(get_args(field.annotation))}
    kinds: dict[Any, str] = {bool: "switch", int: "whole", float: "number"}
    described: dict[str, Any] = {"kind": kinds.get(field.annotation, "text")}
    for limit in field.metadata:
        if isinstance(limit, Ge | Gt):
            described["low"] = limit.ge if isinstance(limit, Ge) else limit.gt
        elif isinstance(limit, Le | Lt):
            described["high"] = limit.le if isinstance(limit, Le) else limit.lt
    return described
