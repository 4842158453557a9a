"""Clients that stay connected: how many there may be, how they are woken from other threads, and how all are ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from arr_stream.errors import ArrStreamError

MOST_CLIENTS = 64
MOST_OF_A_STREAM = 40


class TooManyClients(ArrStreamError):
    """No place for another one."""


class Bell:
    """Wakes a coroutine of the running event loop from any thread; rung often, it wakes once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._pending = False

    def ring(self) -> None:
        """Never waits, and does nothing once the loop has ended."""
        if self._pending:
            return
        self._pending = True
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            # The loop is closed: whoever waited is gone.
            return

    async def wait(self) -> None:
        """Until it is rung. What is looked at afterwards is at least as new as the ring."""
        await self._rung.wait()
        self._rung.clear()
        self._pending = False


class Clients:
    """Everybody who stays connected; used from the event loop alone.

    Attributes:
        ended: The server is ending; clients leave when woken.
    """

    def __init__(self, most: int = MOST_CLIENTS, most_of_a_stream: int = MOST_OF_A_STREAM) -> None:
        self.ended = False
        self._most = most
        self._most_of_a_stream = most_of_a_stream
        self._bells: set[Bell] = set()
        self._watching: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._bells)

    @contextmanager
    def place(self, bell: Bell, stream: str | None = None) -> Iterator[None]:
        """A place for one client, of those who watch a stream where one is named.

        Raises:
            TooManyClients: There is none left, or the server is ending.
        """
        if self.ended or len(self) >= self._most:
            raise TooManyClients(f"{len(self)} clients are connected", remedy=f"{self._most} is the limit")
        if stream is not None and self._watching[stream] >= self._most_of_a_stream:
            raise TooManyClients(
                f"{self._watching[stream]} clients watch this stream", remedy=f"{self._most_of_a_stream} is the limit"
            )
        self._bells.add(bell)
        if stream is not None:
            self._watching[stream] += 1
        try:
            yield
        finally:
            self._bells.discard(bell)
            if stream is not None:
                self._watching[stream] -= 1
                if not self._watching[stream]:
                    del self._watching[stream]

    def end(self) -> None:
        """Let everybody leave."""
        self.ended = True
        for bell in self._bells:
            bell.ring()
