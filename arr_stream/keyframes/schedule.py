"""When a refresh is due, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arr_stream.config import KeyframeSettings

RefreshReason = Literal["first", "size", "cut", "query", "retry", "interval", "confidence"]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """What the schedule looks at.

    Args:
        have_keyframe: A result is in use.
        pending: A request is under way.
        age_frames: Frames since the last request.
        confidence: Mean trust in what is carried, [0, 1].
        size_changed, cut, query_changed, failed: What happened on this frame, or since the last request.
    """

    have_keyframe: bool
    pending: bool
    age_frames: int
    confidence: float
    size_changed: bool = False
    cut: bool = False
    query_changed: bool = False
    failed: bool = False


def refresh_reason(state: ScheduleState, settings: KeyframeSettings, interval_factor: int = 1) -> RefreshReason | None:
    """The most pressing reason for a refresh on this frame, or None.

    `interval_factor` makes the refreshes that nothing but time asks for so many times rarer. A failed generation is
    tried again when the next keyframe is due, not at once: what broke on one frame mostly breaks on the next. Low
    confidence waits for `min_interval` frames, so that fast motion does not turn every frame into a keyframe.
    """
    if state.size_changed:
        return "size"
    if state.cut:
        return "cut"
    if state.pending:
        return None
    if state.query_changed:
        return "query"
    if not state.have_keyframe and not state.failed:
        return "first"
    if state.age_frames >= settings.interval * interval_factor:
        return "retry" if state.failed else "interval"
    if state.confidence < settings.min_confidence and state.age_frames >= settings.min_interval and not state.failed:
        return "confidence"
    return None
