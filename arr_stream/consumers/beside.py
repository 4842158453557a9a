"""A consumer in a thread of its own, so that encoding a frame does not wait for choosing the next one's cells."""

from __future__ import annotations

import queue
import threading

from arr_stream.consumers.base import Consumer, Outcome
from arr_stream.types import Frame, PatchSet

_WAIT_SECONDS = 0.1


class Beside:
    """Hands frames to a consumer through a bounded queue.

    An error of the consumer is raised at the next `consume`, or at `close`; nothing is taken after it.

    Args:
        consumer: Does the work; is only ever called by one thread at a time.
        depth: Frames that may wait; when there are as many, `consume` waits.
    """

    def __init__(self, consumer: Consumer, depth: int = 3) -> None:
        self.consumer = consumer
        self._waiting: queue.Queue[tuple[Frame, PatchSet] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._closed = False
        name = f"arr-stream-{type(consumer).__name__}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def notices(self) -> list[str]:
        """The consumer's own notices, if it has any."""
        return list(getattr(self.consumer, "notices", ()))

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Queue one frame.

        Raises:
            Whatever the consumer raised on an earlier frame.
        """
        self._put((frame, patches))
        if self._error is not None:
            raise self._error

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Let the queue run empty, end the thread and close the consumer."""
        if self._closed:
            return
        self._closed = True
        self._put(None)
        self._thread.join()
        self.consumer.close(failed=failed or self._error is not None, outcome=outcome)
        # A run that failed for the consumer's error knows it already.
        if self._error is not None and not failed:
            raise self._error

    def _put(self, item: tuple[Frame, PatchSet] | None) -> None:
        while self._thread.is_alive():
            try:
                self._waiting.put(item, timeout=_WAIT_SECONDS)
                return
            except queue.Full:
                continue

    def _work(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                self.consumer.consume(*item)
        except BaseException as exc:
            self._error = exc
