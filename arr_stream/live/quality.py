"""Adaptive quality, which holds the frame rate under load: first rarer keyframes, then flow on smaller pictures."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_SECONDS = 1.0
"""Length of the windows in which load is measured."""

_OVERLOADED = 0.92
_RELAXED = 0.6
_MOST_DROPPED = 0.08
_LOWER_AFTER_WINDOWS = 2
_RAISE_AFTER_WINDOWS = 30
"""Long, since a raise may bring the overload back."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Savings of one step: factors on the interval of keyframes, and by which pictures for optical flow are smaller."""

    interval_factor: int = 1
    flow_reduction: int = 1


STEPS = (Quality(), Quality(2), Quality(4), Quality(4, 2), Quality(4, 4))
"""Steps from full quality down; `PatchSet.quality` is an index into these."""


class Governor:
    """Controller of the quality step: two overloaded windows in a row lower quality, thirty relaxed ones raise it.

    Attributes:
        step: Index into `STEPS`.
    """

    def __init__(self) -> None:
        self.step = 0
        self._window_start: float | None = None
        self._busy_seconds = 0.0
        self._frames = self._dropped = self._overloaded = self._relaxed = 0

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
        overloaded = load > _OVERLOADED or self._dropped / (self._frames + self._dropped) > _MOST_DROPPED
        self._window_start, self._busy_seconds, self._frames, self._dropped = now_seconds, 0.0, 0, 0
        self._overloaded = self._overloaded + 1 if overloaded else 0
        self._relaxed = self._relaxed + 1 if load < _RELAXED and not overloaded else 0
        before = self.step
        if self._overloaded >= _LOWER_AFTER_WINDOWS:
            self.step = min(self.step + 1, len(STEPS) - 1)
        elif self._relaxed >= _RAISE_AFTER_WINDOWS:
            self.step = max(self.step - 1, 0)
        if self.step != before:
            self._overloaded = self._relaxed = 0
        return self.step != before
