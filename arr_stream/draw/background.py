"""A consumer in a thread of its own, so that encoding a frame does not wait for choosing the next one's cells."""

from __future__ import annotations

import queue
import threading
import time

from arr_stream.consumer import Consumer, Outcome, Waits
from arr_stream.errors import ConsumerFailed
from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame

_WAIT_SECONDS = 0.1
_STUCK_SECONDS = 5.0
"""A consumer that is so long about one frame, when the run was told to end, is given up."""


class Beside:
    """Hands frames to a consumer through a bounded queue.

    An error of the consumer is raised at the next `consume`, or at `close`; nothing is taken after it. A consumer that
    hangs holds the run up for as long as it does, until the run is told to end.

    Args:
        consumer: Does the work; is only ever called by one thread at a time.
        depth: Frames that may wait; when there are as many, `consume` waits.
    """

    def __init__(self, consumer: Consumer, depth: int = 3) -> None:
        self.consumer = consumer
        self._waiting: queue.Queue[tuple[Frame, PatchSet] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._closed = False
        self._stop: threading.Event | None = None
        self._told_seconds: float | None = None
        self._back_seconds = 0.0
        name = f"arr-stream-{type(consumer).__name__}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def notices(self) -> list[str]:
        """The consumer's own notices, if it has any."""
        return list(getattr(self.consumer, "notices", ()))

    @property
    def stop(self) -> threading.Event | None:
        """Set when the run is to end."""
        return self._stop

    @stop.setter
    def stop(self, stop: threading.Event | None) -> None:
        self._stop = stop
        if isinstance(self.consumer, Waits):
            self.consumer.stop = stop

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Queue one frame.

        Raises:
            Whatever the consumer raised on an earlier frame.
            KeyboardInterrupt: The run was told to end, and the consumer hangs.
        """
        if not self._put((frame, patches)):
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Let the queue run empty, end the thread and close the consumer.

        Raises:
            ConsumerFailed: The run was told to end, and the consumer hangs; it is left to itself.
        """
        if self._closed:
            return
        self._closed = True
        self._put(None)
        while self._thread.is_alive() and not self._stuck():
            self._thread.join(_WAIT_SECONDS)
        if self._thread.is_alive():
            raise ConsumerFailed(
                f"{type(self.consumer).__name__} took more than {_STUCK_SECONDS:g} s for a frame and was given up",
                remedy="what it has written so far is under its partial name",
            )
        self.consumer.close(failed=failed or self._error is not None, outcome=outcome)
        # A run that failed for the consumer's error knows it already.
        if self._error is not None and not failed:
            raise self._error

    def _put(self, item: tuple[Frame, PatchSet] | None) -> bool:
        """Queue something when there is room; False when waiting for that is given up."""
        while self._thread.is_alive():
            try:
                self._waiting.put(item, timeout=_WAIT_SECONDS)
                return True
            except queue.Full:
                if self._stuck():
                    return False
        return True

    def _stuck(self) -> bool:
        """The run was told to end some seconds ago, and the consumer has not come back from a frame since."""
        if self._stop is None or not self._stop.is_set():
            return False
        now = time.monotonic()
        self._told_seconds = self._told_seconds or now
        return now - max(self._told_seconds, self._back_seconds) > _STUCK_SECONDS

    def _work(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                self.consumer.consume(*item)
                self._back_seconds = time.monotonic()
        except BaseException as exc:
            self._error = exc
