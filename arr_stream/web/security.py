"""What every request passes first: host, origin, token and size of the body; and what every answer bears."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arr_stream.web.access import Access
from arr_stream.web.token_page import TOKEN_PAGE, TOKEN_PAGE_POLICY

LARGEST_BODY_BYTES = 1_000_000
LARGEST_EXAMPLE_BYTES = 10_000_000
BODY_SECONDS = 30.0
"""A body has to be there by then."""
SEND_SECONDS = 10.0
"""A client that takes no more for so long is dropped."""
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
_SAFE = frozenset({"GET", "HEAD"})
_FOREIGN = frozenset({"cross-site", "same-site"})
"""What browsers say of requests that pages of other origins make."""
_OPEN_TO_ALL = "/healthz"


class ClientTooSlow(Exception):
    """The client has taken nothing for too long, and its connection was cut."""


class Security:
    """Middleware, the outermost.

    Args:
        app: What is guarded.
        access: The rules of entry.
        on_error: Called with an error that nobody expected; the client is told nothing of it.
    """

    def __init__(self, app: ASGIApp, access: Access, on_error: Callable[[Exception], None]) -> None:
        self._app = app
        self._access = access
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await exchange.answer(*refusal)
            elif self._brings_token(scope):
                await self._take_token(scope, exchange)
            elif not self._knows_token(scope):
                await _ask_token(scope, exchange)
            elif not await exchange.refuse_large():
                await exchange.run(self._app)
        except ClientTooSlow:
            pass
        except Exception as exc:
            self._on_error(exc)
            if not exchange.started:
                await exchange.answer(500, "the server has failed at this; its terminal says more")

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, origin = _header(scope, b"host"), _header(scope, b"origin")
        if not _once(scope, b"host") or not self._access.allows_host(host):
            await send({"type": "websocket.close", "code": WRONG_ORIGIN})
            return
        code = None
        if origin and not self._access.allows_origin(origin, host, _scheme(scope)):
            code, reason = WRONG_ORIGIN, "this page may not call this server"
        elif not self._knows_token(scope):
            code, reason = WRONG_TOKEN, "no token, or a wrong one"
        if code is not None:
            # A browser tells a page the code only of a socket that was open.
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return
        try:
            await self._app(scope, receive, send)
        except ClientTooSlow:
            pass
        except Exception as exc:
            if type(exc).__name__ != "ClientDisconnected":
                self._on_error(exc)
                cut(scope)

    def _refusal(self, scope: Scope) -> tuple[int, str, str | None] | None:
        """Status, message and remedy for a request that is not even asked for its token."""
        host = _header(scope, b"host")
        if not _once(scope, b"host") or not self._access.allows_host(host):
            return 403, f"this server is not called {host[:100]!r}", "start it with --allow-host NAME"
        origin, site = _header(scope, b"origin"), _header(scope, b"sec-fetch-site")
        if scope["method"] not in _SAFE:
            said = origin or any(key == b"origin" for key, _ in scope["headers"])
            if site in _FOREIGN or (said and not self._access.allows_origin(origin, host, _scheme(scope))):
                return 403, "pages of other origins may not change anything here", None
        elif site in _FOREIGN and _header(scope, b"sec-fetch-mode") != "navigate":
            return 403, "pages of other origins may not read anything here", None
        return None

    def _brings_token(self, scope: Scope) -> bool:
        is_page = scope["path"] == "/" and scope["method"] == "GET"
        return self._access.token is not None and is_page and b"token=" in scope["query_string"]

    async def _take_token(self, scope: Scope, exchange: _Exchange) -> None:
        """Keep a token from the address in a cookie, and clear the address of it."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not self._access.knows_token(given):
            await _ask_token(scope, exchange)
            return
        secure = "; Secure" if scope["scheme"] == "https" else ""
        cookie = f"{self._access.cookie_name}={self._access.cookie_value}; HttpOnly; SameSite=Strict; Path=/{secure}"
        await exchange.send_whole(303, b"", [(b"location", b"/"), (b"set-cookie", cookie.encode())])

    def _knows_token(self, scope: Scope) -> bool:
        if self._access.token is None or scope["path"] == _OPEN_TO_ALL:
            return True
        kind, _, bearer = _header(scope, b"authorization").partition(" ")
        if kind.lower() == "bearer":
            return self._access.knows_token(bearer.strip())
        return any(self._access.knows_cookie(value) for value in _cookies(scope, self._access.cookie_name))


class _Exchange:
    """One request and its answer, within limits of size and time.

    Attributes:
        started: The answer has begun.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = LARGEST_EXAMPLE_BYTES if scope["path"].endswith("/example") else LARGEST_BODY_BYTES
        self._taken_bytes = 0
        self._whole = False
        self._due = time.monotonic() + BODY_SECONDS
        self._fault: tuple[int, str, str | None] | None = None

    async def refuse_large(self) -> bool:
        """Refuse a body that says itself that it is too large."""
        length = _header(self._scope, b"content-length")
        if not length.isdecimal() or int(length[:20]) <= self._limit:
            return False
        await self.answer(*self._too_large())
        return True

    async def run(self, app: ASGIApp) -> None:
        """Let the app answer; an answer that it found to a body that was cut off is replaced by the reason."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            if self._fault is None:
                raise
        if self._fault is not None and not self.started:
            fault, self._fault = self._fault, None
            await self.answer(*fault)

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._due - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            self._fault = 408, f"the body was not there within {BODY_SECONDS:g} s", None
            raise
        if message["type"] == "http.request":
            self._taken_bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._taken_bytes > self._limit:
                self._fault = self._too_large()
                raise ValueError(self._fault[1])
        return message

    async def send(self, message: Message) -> None:
        if self._fault is not None and not self.started:
            return
        if message["type"] == "http.response.start":
            self.started = True
            message = {**message, "headers": list(_completed(message.get("headers", ()), self._scope["path"]))}
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except TimeoutError as exc:
            cut(self._scope)
            raise ClientTooSlow from exc

    async def answer(self, status: int, error: str, remedy: str | None = None) -> None:
        """An error, and the end of the connection: what more of the body comes is not read."""
        body = json.dumps({"error": error, "remedy": remedy}).encode()
        await self.send_whole(status, body, [(b"content-type", b"application/json"), (b"connection", b"close")])

    async def send_whole(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self.send({"type": "http.response.body", "body": body})

    def _too_large(self) -> tuple[int, str, str | None]:
        return 413, f"the body has more than {self._limit} bytes", "send less"


def cut(scope: Scope) -> None:
    """End the connection at once: a plain close waits until all is sent, which a client that takes nothing prevents."""
    transport = scope.get("state", {}).get(TRANSPORT)
    if transport is not None:
        transport.abort()


async def _ask_token(scope: Scope, exchange: _Exchange) -> None:
    if scope["path"] == "/" and scope["method"] == "GET":
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        headers.append((b"content-security-policy", TOKEN_PAGE_POLICY.encode()))
        await exchange.send_whole(401, TOKEN_PAGE, headers)
        return
    remedy = "send `Authorization: Bearer TOKEN`, or open /?token=TOKEN in the browser"
    await exchange.answer(401, "no token, or a wrong one", remedy)


def _completed(headers: Iterable[tuple[bytes, bytes]], path: str) -> Iterable[tuple[bytes, bytes]]:
    """The headers of an answer with those that every answer bears."""
    own = list(headers)
    named = {name.lower() for name, _ in own}
    yield from own
    for name, value in _HEADERS.items():
        if name.encode() not in named:
            yield name.encode(), value.encode()
    if b"cache-control" not in named:
        yield b"cache-control", b"no-cache" if path == "/" or path.startswith("/static/") else b"no-store"


def _header(scope: Scope, name: bytes) -> str:
    """The first header of that name, empty without one."""
    return next((bytes(value).decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _cookies(scope: Scope, name: str) -> list[str]:
    """The values of a cookie, whatever stands beside it.

    Every server on a host gets the cookies of all, and `http.cookies` gives up at the first that is no pair of tokens.
    """
    said = ";".join(bytes(value).decode("latin-1") for key, value in scope["headers"] if key == b"cookie")
    pairs = (pair.partition("=") for pair in said.split(";"))
    return [value.strip() for key, _, value in pairs if key.strip() == name]


def _once(scope: Scope, name: bytes) -> bool:
    return [key for key, _ in scope["headers"]].count(name) == 1


def _scheme(scope: Scope) -> str:
    return "https" if scope["scheme"] in {"https", "wss"} else "http"
