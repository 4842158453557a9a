"""Connections as uvicorn has them, with what it leaves out: a way to cut one, and an end to waiting for a request."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from arr_stream.web.security import TRANSPORT

REQUEST_SECONDS = 15.0
"""A connection on which no whole request has come for so long is cut, also where single bytes keep coming."""

MOST_OPEN = 320
"""Beyond these, a connection is cut before it has said anything: each takes a file descriptor, and those that the
cameras need must not run out. More than uvicorn answers at a time, so that it can say that it is busy."""

SEND_BUFFER_BYTES = 262_144
"""Left to itself, the system takes megabytes for a client that reads nothing, which are seconds of pictures."""

MOST_UNREAD_BYTES = 8_000_000
"""Pongs wait in memory where a client sends pings and reads nothing; pictures and events are never so many."""


class Connection(H11Protocol):
    """HTTP, and the beginning of a WebSocket, which takes over the state of its connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_OPEN:
            transport.abort()
            return
        self.app_state: dict[str, Any] = {**self.app_state, TRANSPORT: transport}
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._look, self.cycle)

    def _look(self, last: object) -> None:
        """Cut the connection if it still waits, after the `last` request, for the next one."""
        if self.cycle is last and self.transport.get_protocol() is self:
            self.transport.abort()


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket that does not answer pings for ever into a client that takes nothing."""

    def handle_ping(self) -> None:
        """See `WebSocketsSansIOProtocol`."""
        if self.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self.transport.abort()
            return
        super().handle_ping()
