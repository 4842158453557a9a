"""The server: all routes behind the security checks, connection limits, and a shutdown within seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

import arr_stream
from arr_stream.errors import ListenFailed
from arr_stream.threads import prepare_for_live
from arr_stream.web.browser import browser_routes
from arr_stream.web.feeds import feed_routes
from arr_stream.web.routes import info_routes, page_routes, question_routes, stream_routes
from arr_stream.web.security import TRANSPORT, Security, add_handlers
from arr_stream.web.serving import Serving

REQUEST_SECONDS = 15.0
"""Time limit for a whole request; a connection is cut after it, even if single bytes keep coming."""

MOST_OPEN = 320
"""Most open connections; further ones are cut at once, since each takes a file descriptor that cameras may need.

The limit is above uvicorn's, so that uvicorn can respond that it is busy.
"""

SEND_BUFFER_BYTES = 262_144
"""Send buffer; by default the system buffers megabytes for a stalled client, which are seconds of pictures."""

_BACKLOG = 128
_MOST_CONNECTIONS = 256
_LARGEST_MESSAGE_BYTES = 16_384
_MOST_UNREAD_BYTES = 8 << 20
_GRACE_SECONDS = 1


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, which reserves the port; 0 takes any free one.

    Raises:
        ListenFailed: The port is in use or may not be used, or the address is not of this machine.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` is often two addresses; browsers try both.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, UnicodeError) as exc:
        # Python adds the address, which the message names already.
        reason = (getattr(exc, "strerror", None) or str(exc)).partition(" (while")[0]
        raise ListenFailed(
            f"{host}, port {port}: {reason.lower()}", remedy="choose another --port, or --host 127.0.0.1 or 0.0.0.0"
        ) from exc


class Connection(H11Protocol):
    """HTTP connection, and the start of a WebSocket, which takes over its state."""

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
        """Start the time limit for the next request; see `H11Protocol`."""
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._look, self.cycle)

    def _look(self, last: object) -> None:
        """Cut the connection if it still waits for a request after the `last` one."""
        if self.cycle is last and self.transport.get_protocol() is self:
            self.transport.abort()


class Socket(WebSocketsSansIOProtocol):
    """WebSocket that is cut if its client sends pings and reads nothing, since pongs have no flow control."""

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()


class Server(uvicorn.Server):
    """Server that ends when `stop` is set, not by its own signals.

    `on_end` is called at the start of the shutdown, and must not wait.
    """

    def __init__(
        self, config: uvicorn.Config, stop: threading.Event, on_ready: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._stop, self._on_ready, self._on_end = stop, on_ready, on_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        return self._stop.is_set() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def create_app(serving: Serving, on_error: Callable[[Exception], None]) -> Security:
    """Return the server as an ASGI application; see `run_server`. It does not close the streams."""
    app = FastAPI(
        title="arr-stream",
        version=arr_stream.__version__,
        description="Live streams, their queries, and the chosen cells.",
        docs_url=None,
        redoc_url=None,
    )
    add_handlers(app)
    for routes in (info_routes, stream_routes, question_routes, feed_routes, browser_routes):
        app.include_router(routes(serving))
    page_routes(app)
    return Security(app, serving.access, on_error)


def run_server(
    serving: Serving,
    listener: socket.socket,
    *,
    stop: threading.Event,
    on_ready: Callable[[], None],
    on_error: Callable[[Exception], None],
) -> None:
    """Serve until `stop` is set, then close the listener and the streams; `on_error` gets unexpected errors."""
    # `on_error` reports errors; uvicorn's own log would hold addresses with tokens.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
    prepare_for_live()
    try:
        config = uvicorn.Config(
            create_app(serving, on_error),
            http=Connection,
            ws=Socket,
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws_max_size=_LARGEST_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        Server(config, stop, on_ready, serving.clients.end).run(sockets=[listener])
    finally:
        listener.close()
        serving.streams.close()
