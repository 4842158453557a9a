"""The newest frame of a stream, from the thread that processes it to the one that shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from arr_stream.consumer import Outcome
from arr_stream.live.pictures import Shown
from arr_stream.live.rates import Rate
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.types import Frame

_MOST_ANSWERS = 8


class Feed:
    """A consumer that keeps the newest frame for a window, and the answers of those that were never shown.

    Args:
        dropped: Tells how many frames were passed over so far.

    Attributes:
        fps: Frames a second that are processed.
    """

    def __init__(self, dropped: Callable[[], int]) -> None:
        self.fps = Rate()
        self._dropped = dropped
        self._newest: tuple[Frame, PatchSet] | None = None
        self._answers: tuple[Answer, ...] = ()
        self._changed = threading.Condition()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Take a frame in the place of the one before; never waits."""
        self.fps.add()
        with self._changed:
            self._newest = frame, patches
            self._answers = (*self._answers, *patches.answers)[-_MOST_ANSWERS:]
            self._changed.notify()

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...

    def take(self, longest_seconds: float) -> Shown | None:
        """The newest frame if it was not taken yet, as soon as there is one; None where none comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None, longest_seconds)
            if self._newest is None:
                return None
            frame, patches = self._newest
            self._newest, answers, self._answers = None, self._answers, ()
        return Shown(frame, replace(patches, answers=answers), self._dropped(), self.fps.value)
