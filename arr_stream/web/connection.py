"""Connections as uvicorn has them, with what it leaves out: a way to cut one, and an end to waiting for a request."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from arr_stream.web.security import TRANSPORT

REQUEST_SECONDS = 15.0
"""A connection on which no whole request has come for so long is cut, also where single bytes keep coming."""


SEND_BUFFER_BYTES = 262_144
"""Left to itself, the system takes megabytes for a client that reads nothing, which are seconds of pictures."""


class Connection(H11Protocol):
    """HTTP, and the beginning of a WebSocket, which takes over the state of its connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
