"""Consumers of patch sets: their protocol, the outcome of a run, a background thread, and statistics."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from arr_stream.errors import ConsumerFailed
from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame

EndReason = Literal["finished", "interrupted", "damaged", "failed"]

_WAIT_SECONDS = 0.1
_STUCK_SECONDS = 5.0
"""Time on one frame, after a request to stop, after which a consumer is abandoned."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run, for consumers that record it.

    Args:
        reason: `finished`, `interrupted` (Ctrl-C), `damaged` (frames of the source are lost or unreliable) or `failed`.
        dropped: Frames that never reached the consumers.
        error: One line, None without an error.
        counters: More numbers about the run; plain JSON values.
    """

    reason: EndReason = "finished"
    dropped: int = 0
    error: str | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *, failed: bool) -> Outcome:
        """Return the default outcome of a run."""
        return cls("failed" if failed else "finished")


class Consumer(Protocol):
    """Receiver of frames and their patch sets, in order."""

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Take one frame; `patches.index == frame.index`. Change neither.

        Raises:
            OutputError: The output cannot be written.
        """
        ...

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Finish the output so that it is complete; safe to call again.

        Frames so far are kept, even if the run `failed`. An output without a frame leaves no file.
        """
        ...


class BackgroundConsumer:
    """Consumer that forwards frames to another one in a thread, so that its work does not delay the selection.

    An error of the consumer is raised at the next `consume`, or at `close`; no frame is taken after it. A consumer that
    hangs blocks the run until that is asked to stop.

    Args:
        consumer: Does the work; called by one thread at a time.
        depth: Most queued frames; each holds its texture, a few MB.
        drops_for: Name of the consumer's output, such as a file: a frame that finds the queue full is dropped, counted,
            and reported in a notice under that name. None: `consume` waits for space.

    Attributes:
        dropped: Number of dropped frames.
        stop: Set when the run is to end; a consumer that hangs is then abandoned.
    """

    def __init__(self, consumer: Consumer, depth: int = 3, *, drops_for: str | None = None) -> None:
        self.consumer = consumer
        self.dropped = 0
        self._drops_for = drops_for
        self._waiting: queue.Queue[tuple[Frame, PatchSet] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._closed = False
        self.stop: threading.Event | None = None
        self._told_seconds: float | None = None
        self._back_seconds = 0.0
        name = f"arr-stream-{type(consumer).__name__}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def notices(self) -> list[str]:
        """Notices of the consumer, if it has any, and the number of dropped frames."""
        own = list(getattr(self.consumer, "notices", ()))
        missing = f"{self._drops_for}: frames dropped because the consumer was too slow: {self.dropped}"
        return [*own, missing] if self.dropped else own

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Queue one frame, or drop it.

        Raises:
            Exception: The consumer's own error on an earlier frame.
            KeyboardInterrupt: The run was asked to stop, and the consumer hangs.
        """
        if self._closed:
            raise ValueError(f"{type(self.consumer).__name__}: closed, and given another frame")
        if self._drops_for is not None and self._waiting.full():
            self.dropped += self._error is None
        elif not self._put((frame, patches)):
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Drain the queue, end the thread and close the consumer.

        Raises:
            ConsumerFailed: The run was asked to stop, and the consumer hangs; it is abandoned.
        """
        if self._closed:
            return
        self._closed = True
        self._put(None)
        while self._thread.is_alive() and not self._stuck():
            self._thread.join(_WAIT_SECONDS)
        if self._thread.is_alive():
            raise ConsumerFailed(
                f"{type(self.consumer).__name__} took more than {_STUCK_SECONDS:g} s for a frame and was abandoned",
                remedy="its output so far is under its partial name",
            )
        self.consumer.close(failed=failed or self._error is not None, outcome=outcome)
        # A run that failed with the consumer's error has it already.
        if self._error is not None and not failed:
            raise self._error

    def _put(self, item: tuple[Frame, PatchSet] | None) -> bool:
        """Queue an item when there is space; return False if the wait is given up."""
        while self._thread.is_alive():
            try:
                self._waiting.put(item, timeout=_WAIT_SECONDS)
                return True
            except queue.Full:
                if self._stuck():
                    return False
        return True

    def _stuck(self) -> bool:
        """Return whether the consumer has been on one frame for too long since the run was asked to stop."""
        if self.stop is None or not self.stop.is_set():
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


def total_ms(latency_ms: Mapping[str, float]) -> float:
    """Return the milliseconds of one frame: its `total` if present, otherwise the sum of its stages."""
    return float(latency_ms["total"]) if "total" in latency_ms else float(sum(latency_ms.values()))


def pays_for_keyframe(patches: PatchSet, parts_before: Mapping[str, tuple[int, str]]) -> bool:
    """Return whether this frame took in parts of a keyframe, or spent most of its time waiting for them.

    They arrive frames after it was requested (`keyframes.delay`). `parts_before` are the `parts` of the frame before.
    """
    waited = patches.latency_ms.get("keyframe", 0.0) > total_ms(patches.latency_ms) / 2
    return waited or dict(patches.parts) != dict(parts_before)


class Rate:
    """Events per second over the last seconds. Call `add` from one thread, `value` from any."""

    def __init__(self, window_seconds: float = 2.0) -> None:
        self._window_seconds = window_seconds
        self._times: deque[float] = deque(maxlen=4096)

    def add(self) -> None:
        self._times.append(time.monotonic())

    @property
    def value(self) -> float:
        """Events per second; 0 after a whole window without an event."""
        now = time.monotonic()
        recent = [moment for moment in tuple(self._times) if now - moment <= self._window_seconds]
        if len(recent) < 2:
            return 0.0
        return (len(recent) - 1) / max(now - recent[0], 1e-6)


class Recent:
    """Median of the last values. Call `add` from one thread, `median` from any."""

    def __init__(self, count: int = 120) -> None:
        self._values: deque[float] = deque(maxlen=count)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def median(self) -> float | None:
        """Median of the values; None without a value."""
        values = tuple(self._values)
        return statistics.median(values) if values else None
