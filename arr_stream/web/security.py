"""Checks of every request: host, origin, token and size of the body; headers of every response; errors as responses.

An error is `{"error": "one line", "remedy": "..." | null}` with a matching status.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.live.registry import TooManyStreams
from arr_stream.plain_text import one_line
from arr_stream.web.access import Access, Refused

LARGEST_BODY_BYTES = 1_000_000
LARGEST_EXAMPLE_BYTES = 10_000_000
BODY_SECONDS = 30.0
"""Time limit for a request's body."""
SEND_SECONDS = 10.0
"""Time limit for sending to a client that takes no data."""
TRANSPORT = "arr_stream_transport"
"""Key of the connection's transport in a scope's `state`."""

WRONG_TOKEN, WRONG_ORIGIN = 4401, 4403

_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; script-src 'self'; "
    "style-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), display-capture=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_LAST = {"connection": "close"}
_SAFE = {"GET", "HEAD"}
_FOREIGN = {"cross-site", "same-site"}
"""Values of browsers for requests by pages of other origins."""
_OPEN_TO_ALL = "/healthz"

# A browser without the token gets one self-contained page, since it may load nothing else.
_TOKEN_PAGE = (Path(__file__).parent / "static" / "token.html").read_text(encoding="utf-8")
_TOKEN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


class ClientTooSlow(Exception):
    """Error for a client that took no data for too long, so that its connection was cut."""


class Security:
    """Outermost middleware; `on_error` gets unexpected errors, whose details clients do not see."""

    def __init__(self, app: ASGIApp, access: Access, on_error: Callable[[Exception], None]) -> None:
        self._app = app
        self._access = access
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = {"http": self._http, "websocket": self._socket}.get(scope["type"], self._app)
        await guarded(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            app = self._refusal(HTTPConnection(scope)) or self._app
            await app(scope, exchange.receive, exchange.send)
        except ClientTooSlow:
            pass
        except Exception as exc:
            self._on_error(exc)
            if not exchange.started:
                _cut(scope)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = WebSocket(scope, receive, send)
        if not self._knows_host(request):
            await request.close(WRONG_ORIGIN)
            return
        own, known = self._is_own_page(request), self._knows_token(request)
        if not (own and known):
            # A browser passes the close code to a page only if the socket was open.
            await request.accept()
            if own:
                await request.close(WRONG_TOKEN, "no token, or a wrong one")
            else:
                await request.close(WRONG_ORIGIN, "this page may not call this server")
            return
        try:
            await self._app(scope, receive, partial(_send_in_time, scope, send))
        except (ClientTooSlow, ClientDisconnected, WebSocketDisconnect):
            pass
        except Exception as exc:
            self._on_error(exc)
            _cut(scope)

    def _refusal(self, request: HTTPConnection) -> Response | None:
        """Return the response to a request that is refused; None if it may pass."""
        headers, method, site = request.headers, request.scope["method"], request.headers.get("sec-fetch-site")
        if not self._knows_host(request):
            remedy = "start it with --allow-host NAME"
            return _refused(403, f"this server is not called {headers.get('host', '')[:100]!r}", remedy)
        if method not in _SAFE:
            if site in _FOREIGN or not self._is_own_page(request):
                return _refused(403, "pages of other origins may not change anything here")
        elif site in _FOREIGN and headers.get("sec-fetch-mode") != "navigate":
            return _refused(403, "pages of other origins may not read anything here")
        is_page = request.scope["path"] == "/" and method == "GET"
        if self._access.token is not None and is_page and "token" in request.query_params:
            return self._taken_token(request)
        return None if self._knows_token(request) else _asking_for_token(is_page)

    def _taken_token(self, request: HTTPConnection) -> Response:
        """Keep a token from the address in a cookie, and redirect to the address without it."""
        if not self._access.knows_token(request.query_params["token"]):
            return _asking_for_token(is_page=True)
        answer = RedirectResponse("/", 303)
        secure = request.scope["scheme"] == "https"
        cookie = self._access.cookie_name, self._access.cookie_value
        answer.set_cookie(*cookie, httponly=True, samesite="strict", secure=secure)
        return answer

    def _knows_host(self, request: HTTPConnection) -> bool:
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and self._access.allows_host(hosts[0])

    def _is_own_page(self, request: HTTPConnection) -> bool:
        """Return True for requests of the server's own pages and of programs, which name no origin."""
        origin = request.headers.get("origin")
        return origin is None or self._access.allows_origin(origin, request.headers["host"])

    def _knows_token(self, request: HTTPConnection) -> bool:
        if self._access.token is None or request.scope["path"] == _OPEN_TO_ALL:
            return True
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._access.knows_token(bearer.strip())
        return self._access.knows_cookie(request.cookies.get(self._access.cookie_name))


class _Exchange:
    """One request and its response, within limits of size and time; `started` is True once the response has begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = False
        self._scope, self._receive, self._send = scope, receive, send
        self._limit = LARGEST_EXAMPLE_BYTES if scope["path"].endswith("/example") else LARGEST_BODY_BYTES
        self._taken_bytes = 0
        self._whole = False
        self._due = time.monotonic() + BODY_SECONDS
        length = HTTPConnection(scope).headers.get("content-length", "")
        self._declared_bytes = int(length[:20]) if length.isdecimal() else 0

    async def receive(self) -> Message:
        """Receive the next part of the body.

        Raises:
            HTTPException: The body is too large or too slow; the app's handlers make it the response.
        """
        if self._whole:
            return await self._receive()
        if self._declared_bytes > self._limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(max(0.0, self._due - time.monotonic())):
                message = await self._receive()
        except TimeoutError as exc:
            raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s", _LAST) from exc
        if message["type"] == "http.request":
            self._taken_bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._taken_bytes > self._limit:
                raise self._too_large()
        return message

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body has more than {self._limit} bytes", _LAST)

    async def send(self, message: Message) -> None:
        """Send a part of the response, whose headers get those that every response has."""
        if message["type"] == "http.response.start":
            self.started = True
            headers, path = MutableHeaders(raw=list(message.get("headers", ()))), self._scope["path"]
            kept = "no-cache" if path == "/" or path.startswith("/static/") else "no-store"
            for name, value in {**_HEADERS, "cache-control": kept}.items():
                headers.setdefault(name, value)
            message = {**message, "headers": headers.raw}
        await _send_in_time(self._scope, self._send, message)


async def _send_in_time(scope: Scope, send: Send, message: Message) -> None:
    """Send, or cut the connection of a client that takes no data."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send(message)
    except TimeoutError as exc:
        _cut(scope)
        raise ClientTooSlow from exc


def _cut(scope: Scope) -> None:
    """Cut the connection at once: a normal close waits until all data are sent, which a stalled client prevents."""
    transport = scope.get("state", {}).get(TRANSPORT)
    if transport is not None:
        transport.abort()


def _refused(status: int, error: str, remedy: str | None = None) -> Response:
    """Return a response that ends the connection, so that the rest of the body is not read."""
    answer = problem(status, error, remedy)
    answer.headers.update(_LAST)
    return answer


def _asking_for_token(is_page: bool) -> Response:
    if is_page:
        return HTMLResponse(_TOKEN_PAGE, 401, {"content-security-policy": _TOKEN_POLICY})
    remedy = "send `Authorization: Bearer TOKEN`, or open /?token=TOKEN in the browser"
    return _refused(401, "no token, or a wrong one", remedy)


def problem(status: int, error: str, remedy: str | None = None) -> JSONResponse:
    """Return an error response, without the secrets of addresses in it."""
    told = {"error": one_line(error), "remedy": one_line(remedy)}
    return JSONResponse(told, status)


def add_handlers(app: FastAPI) -> None:
    """Add these handlers to an app."""

    @app.exception_handler(ArrStreamError)
    async def ours(_request: Request, error: ArrStreamError) -> JSONResponse:
        status = 503 if isinstance(error, BackendUnavailable) else 409 if isinstance(error, TooManyStreams) else 400
        return problem(error.status if isinstance(error, Refused) else status, error.message, error.remedy)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part)[:40] for part in first["loc"] if part != "body") or "the body"
        return problem(422, f"{place}: {str(first['msg'])[:300].lower()}", "GET /openapi.json has the schemas")

    @app.exception_handler(HTTPException)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        answer = problem(error.status_code, str(error.detail).lower())
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> JSONResponse:
        # Without details for the client.
        return problem(500, "the server has failed at this; its terminal says more")
