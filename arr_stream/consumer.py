"""What consumers of patch sets have in common: their shape, how a run ends for them, a thread of their own, figures."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from arr_stream.errors import ConsumerFailed
from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame

EndReason = Literal["finished", "interrupted", "damaged", "failed"]

UNREAD_SECONDS = 2.0
"""A run that was told to end waits no longer for somebody who takes nothing."""

_WAIT_SECONDS = 0.1
_STUCK_SECONDS = 5.0
"""A consumer that is so long about one frame, when the run was told to end, is given up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, for consumers that write it down.

    Args:
        reason: `finished`, `interrupted` (Ctrl-C), `damaged` (frames of the source are lost or unreliable) or `failed`.
        dropped: Frames that were never shown to the consumers.
        error: One line, where there was an error.
        counters: More numbers about the run; plain JSON values.
    """

    reason: EndReason = "finished"
    dropped: int = 0
    error: str | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *, failed: bool) -> Outcome:
        """What is known when nobody says more."""
        return cls("failed" if failed else "finished")


class Consumer(Protocol):
    """Anything that frames and their patch sets are handed to, in order."""

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Take one frame; `patches.index == frame.index`. Neither is changed.

        Raises:
            OutputError: The output cannot be written.
        """
        ...

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Finish the output so that it is whole; harmless when called again.

        What was taken so far is kept, whether or not the run `failed`. An output that never got a frame leaves no file.
        """
        ...


@runtime_checkable
class Waits(Protocol):
    """A consumer that may have to wait for somebody else, such as the reader of a pipe.

    Attributes:
        stop: Set when the run is to end; waiting is given up then. `consume` raises `KeyboardInterrupt` in that case.
    """

    stop: threading.Event | None


class BackgroundConsumer:
    """Hands frames to a consumer in a thread of its own, so that its work does not hold up the choice of cells.

    An error of the consumer is raised at the next `consume`, or at `close`; nothing is taken after it. A consumer that
    hangs holds the run up for as long as it does, until the run is told to end.

    Args:
        consumer: Does the work; is only ever called by one thread at a time.
        depth: Frames that may wait; each holds its texture, a few MB.
        drops_for: What the consumer makes, such as a file's name: a frame that finds no room is left out, counted, and
            told of in a notice about it. None: `consume` waits for room.

    Attributes:
        dropped: Frames that were left out.
    """

    def __init__(self, consumer: Consumer, depth: int = 3, *, drops_for: str | None = None) -> None:
        self.consumer = consumer
        self.dropped = 0
        self._drops_for = drops_for
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
        """The consumer's own notices, if it has any, and how much is missing."""
        own = list(getattr(self.consumer, "notices", ()))
        missing = f"{self._drops_for}: frames missing for want of time: {self.dropped}"
        return [*own, missing] if self.dropped else own

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
        """Queue one frame, or leave it out.

        Raises:
            Whatever the consumer raised on an earlier frame.
            KeyboardInterrupt: The run was told to end, and the consumer hangs.
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


def total_ms(latency_ms: Mapping[str, float]) -> float:
    """Milliseconds of one frame: its `total` where the clock's owner gave one, otherwise the sum of its stages."""
    return float(latency_ms["total"]) if "total" in latency_ms else float(sum(latency_ms.values()))


def pays_for_keyframe(patches: PatchSet, parts_before: Mapping[str, tuple[int, str]]) -> bool:
    """Return whether this frame took in parts of a keyframe, or spent most of its time waiting for them.

    They arrive frames after it was requested (`keyframes.delay`). `parts_before` are the `parts` of the frame before.
    """
    waited = patches.latency_ms.get("keyframe", 0.0) > total_ms(patches.latency_ms) / 2
    return waited or dict(patches.parts) != dict(parts_before)


class Rate:
    """Events a second over the last seconds. `add` from one thread, `value` from any."""

    def __init__(self, window_seconds: float = 2.0) -> None:
        self._window_seconds = window_seconds
        self._times: deque[float] = deque(maxlen=4096)

    def add(self) -> None:
        self._times.append(time.monotonic())

    @property
    def value(self) -> float:
        """0 once nothing has come for a whole window."""
        now = time.monotonic()
        recent = [moment for moment in tuple(self._times) if now - moment <= self._window_seconds]
        if len(recent) < 2:
            return 0.0
        return (len(recent) - 1) / max(now - recent[0], 1e-6)


class Recent:
    """The median of the last values. `add` from one thread, `median` from any."""

    def __init__(self, count: int = 120) -> None:
        self._values: deque[float] = deque(maxlen=count)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def median(self) -> float | None:
        """None without a value."""
        values = tuple(self._values)
        return statistics.median(values) if values else None
