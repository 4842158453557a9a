"""State that the parts of the server share: the streams, the rules, and the connected clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from arr_stream.live.publishing import Subscription
from arr_stream.live.registry import LiveStreams
from arr_stream.live.runner import StreamRunner
from arr_stream.processes import usable_cores
from arr_stream.web.access import Access, AllowedSources, Refused

MOST_CLIENTS = 64


class WakeUp:
    """Signal from any thread that wakes a coroutine of the running event loop; repeated rings wake it once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._pending = False

    def ring(self) -> None:
        """Ring without waiting; does nothing after the loop has ended."""
        if self._pending:
            return
        self._pending = True
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            # The loop is closed: no coroutine waits any more.
            return

    async def wait(self) -> None:
        """Wait until it is rung. Data read afterwards are at least as new as the ring."""
        await self._rung.wait()
        self._rung.clear()
        self._pending = False


class Clients:
    """Connected clients, which leave when woken after the server has `ended`; for the event loop only."""

    def __init__(self, most: int = MOST_CLIENTS) -> None:
        self.ended = False
        self._most = most
        self._bells: set[WakeUp] = set()

    def __len__(self) -> int:
        return len(self._bells)

    @contextmanager
    def place(self) -> Iterator[WakeUp]:
        """Reserve a place for a client, and yield the event that wakes it.

        Raises:
            Refused: No place is left, or the server is ending.
        """
        if self.ended or len(self) >= self._most:
            raise Refused(503, f"{len(self)} clients are connected", remedy=f"{self._most} is the limit")
        wake_up = WakeUp()
        self._bells.add(wake_up)
        try:
            yield wake_up
        finally:
            self._bells.discard(wake_up)

    def end(self) -> None:
        """Wake all clients to leave."""
        self.ended = True
        for wake_up in self._bells:
            wake_up.ring()


@dataclass(slots=True, eq=False)
class Serving:
    """State of the server for all request handlers.

    Args:
        presets: Names and descriptions of the presets.
        model: Name of the model that answers questions; None without one.
    """

    streams: LiveStreams
    access: Access
    allowed: AllowedSources
    presets: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    clients: Clients = field(default_factory=Clients)
    # Drawing must not take the processor from the streams.
    drawing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(max(2, usable_cores() // 2)))
    started_seconds: float = field(default_factory=time.monotonic)

    def runner(self, id: str) -> StreamRunner:
        """Return the stream of that id; raises `Refused` for an unknown id."""
        runner = self.streams.get(id)
        if runner is None:
            raise Refused(404, f"there is no stream {id[:40]!r}", remedy="GET /api/streams lists them")
        return runner

    def has(self, runner: StreamRunner) -> bool:
        """Return True if the stream has not been removed."""
        return self.streams.get(runner.id) is runner

    def removals(self, wake_up: WakeUp) -> AbstractContextManager[object]:
        """Ring `wake_up` when streams are added or removed, until the end of the block."""
        return self.events(Subscription(wake_up.ring, kinds={"streams"}, most_waiting=1))

    @contextmanager
    def events(self, subscription: Subscription) -> Iterator[Subscription]:
        """Receive events until the end of the block."""
        self.streams.hub.subscribe(subscription)
        try:
            yield subscription
        finally:
            self.streams.hub.unsubscribe(subscription)
