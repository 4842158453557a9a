"""A consumer beside a live stream: it takes what it has time for, and the stream never waits for it."""

from __future__ import annotations

import threading
from collections import deque

from arr_stream.consumer import Consumer, Outcome
from arr_stream.errors import ConsumerFailed
from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame

_WAITING_FRAMES = 8
"""Each holds its texture, a few MB."""
_CLOSE_SECONDS = 10.0


class LiveBeside:
    """Hands frames to a consumer in a thread of its own; frames that find no room are left out and counted.

    An error of the consumer is raised at the next `consume`, or at `close`; nothing is taken after it.

    Args:
        consumer: Does the work; is only ever called by one thread at a time.
        what: What it makes, for the notice about frames that are missing in it.
        room: Frames that may wait.

    Attributes:
        dropped: Frames that were left out.
    """

    def __init__(self, consumer: Consumer, what: str, *, room: int = _WAITING_FRAMES) -> None:
        self.consumer = consumer
        self.dropped = 0
        self._what = what
        self._room = room
        self._waiting: deque[tuple[Frame, PatchSet]] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._closed = False
        self._error: BaseException | None = None
        name = f"arr-stream-{type(consumer).__name__}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def notices(self) -> list[str]:
        """The consumer's own notices, and how much is missing."""
        own = list(getattr(self.consumer, "notices", ()))
        return [*own, f"{self._what}: frames missing for want of time: {self.dropped}"] if self.dropped else own

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Take one frame if there is room; never waits.

        Raises:
            Whatever the consumer raised on an earlier frame.
        """
        if self._error is not None:
            raise self._error
        with self._changed:
            if len(self._waiting) < self._room:
                self._waiting.append((frame, patches))
                self._changed.notify()
            else:
                self.dropped += 1

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Deal with the frames that wait, end the thread and close the consumer.

        Raises:
            Whatever the consumer raised on an earlier frame.
            ConsumerFailed: The consumer hangs; it is left to itself.
        """
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            raise ConsumerFailed(
                f"{self._what}: {type(self.consumer).__name__} hangs and was given up",
                remedy="what it has written so far is under its partial name",
            )
        self.consumer.close(failed=failed or self._error is not None, outcome=outcome)
        # A run that failed for the consumer's error knows it already.
        if self._error is not None and not failed:
            raise self._error

    def _work(self) -> None:
        try:
            while (taken := self._taken()) is not None:
                self.consumer.consume(*taken)
        except BaseException as exc:
            self._error = exc

    def _taken(self) -> tuple[Frame, PatchSet] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            return self._waiting.popleft() if self._waiting else None
