"""Adaptive quality, which holds the frame rate under load: first rarer keyframes, then flow on smaller pictures."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_SECONDS = 1.0
"""Length of the windows in which load is measured."""

_OVERLOADED = 0.92
_RELAXED = 0.6
_MOST_DROPPED = 0.08
_LOWER_AFTER_WINDOWS = 2
_RAISE_AFTER_WINDOWS = 5
_LONGEST_PATIENCE_WINDOWS = 60


@dataclass(frozen=True, slots=True)
class Quality:
    """Savings of one step.

    Args:
        interval_factor: Factor on the interval of periodic keyframes.
        flow_reduction: Factor by which the pictures for optical flow are smaller.
    """

    interval_factor: int = 1
    flow_reduction: int = 1


STEPS = (Quality(), Quality(2), Quality(4), Quality(4, 2), Quality(4, 4))
"""Steps from full quality down; `PatchSet.quality` is an index into these."""


class Governor:
    """Controller of the quality step, driven by the load of the frame loop.

    Two overloaded windows lower quality by a step, five relaxed ones raise it. After a raise that has to be undone, the
    next one waits twice as long, so that quality does not oscillate.

    Attributes:
        step: Index into `STEPS`.
    """

    def __init__(self) -> None:
        self.step = 0
        self._window_start: float | None = None
        self._busy_seconds = 0.0
        self._frames = 0
        self._dropped = 0
        self._overloaded = 0
        self._relaxed = 0
        self._patience = _RAISE_AFTER_WINDOWS
        self._windows_since_raise: int | None = None

    @property
    def quality(self) -> Quality:
        return STEPS[self.step]

    def note(self, now_seconds: float, busy_seconds: float, dropped: int = 0) -> bool:
        """Record one frame; return True if the quality has changed.

        Args:
            now_seconds: Time at which the frame was done; any monotonic clock.
            busy_seconds: Work on it, without the wait for the frame.
            dropped: Frames dropped just before it.
        """
        if self._window_start is None:
            self._window_start = now_seconds - busy_seconds
        self._busy_seconds += busy_seconds
        self._frames += 1
        self._dropped += dropped
        elapsed = now_seconds - self._window_start
        if elapsed < WINDOW_SECONDS:
            return False
        load = self._busy_seconds / elapsed
        missed = self._dropped / (self._frames + self._dropped)
        self._window_start, self._busy_seconds, self._frames, self._dropped = now_seconds, 0.0, 0, 0
        return self._judge(overloaded=load > _OVERLOADED or missed > _MOST_DROPPED, relaxed=load < _RELAXED)

    def _judge(self, *, overloaded: bool, relaxed: bool) -> bool:
        self._overloaded = self._overloaded + 1 if overloaded else 0
        self._relaxed = self._relaxed + 1 if relaxed and not overloaded else 0
        if self._windows_since_raise is not None:
            self._windows_since_raise += 1
        if self._overloaded >= _LOWER_AFTER_WINDOWS and self.step < len(STEPS) - 1:
            self._lower()
            return True
        if self._relaxed >= self._patience and self.step > 0:
            self.step -= 1
            self._relaxed = self._windows_since_raise = 0
            return True
        return False

    def _lower(self) -> None:
        too_early = self._windows_since_raise is not None and self._windows_since_raise < 2 * self._patience
        self._patience = min(2 * self._patience, _LONGEST_PATIENCE_WINDOWS) if too_early else _RAISE_AFTER_WINDOWS
        self._windows_since_raise = None
        self._overloaded = 0
        self.step += 1
