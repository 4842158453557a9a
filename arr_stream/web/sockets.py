"""Connections that stay: sockets with close codes, and answers over HTTP that do not end."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from arr_stream.web.clients import Bell, TooManyClients
from arr_stream.web.problems import of_error
from arr_stream.web.security import SEND_SECONDS, ClientTooSlow, cut
from arr_stream.web.serving import Serving

MOST_MALFORMED = 10
_MOST_MESSAGES_A_SECOND = 200

ENDING, MALFORMED, FAILED, CROWDED = 1001, 1008, 1011, 1013
NO_STREAM, REMOVED = 4404, 4410

Ended = TypeVar("Ended")


@dataclass(frozen=True, slots=True)
class Close:
    """How a socket is closed; `code` None where the client has done so itself."""

    code: int | None
    reason: str = ""


class MalformedMessage(ValueError):
    """A client's message makes no sense."""


class StayingSocket(ABC):
    """One client on a WebSocket: what it says and what it is sent, until either ends.

    Args:
        serving: What the server has.
        websocket: Accepted by `run`.
    """

    def __init__(self, serving: Serving, websocket: WebSocket) -> None:
        self.serving = serving
        self.websocket = websocket
        self.bell = Bell()

    @abstractmethod
    async def speak(self) -> Close:
        """Send what there is to send each time that the bell rings."""

    @abstractmethod
    def heard(self, text: str) -> None:
        """Take a message.

        Raises:
            MalformedMessage: It makes no sense.
        """

    async def run(self, stream: str | None = None) -> None:
        """Serve the client, in a place of its own, to the end."""
        await self.websocket.accept()
        try:
            with self.serving.clients.place(self.bell, stream):
                close = await first_of(self.speak(), self._listen())
        except TooManyClients as exc:
            close = Close(CROWDED, str(exc))
        if close.code is not None:
            await self._within(self.websocket.close(close.code, close.reason[:120]))

    async def send_text(self, text: str) -> None:
        await self._within(self.websocket.send_text(text))

    async def send_bytes(self, message: bytes) -> None:
        await self._within(self.websocket.send_bytes(message))

    async def _listen(self) -> Close:
        malformed = messages = 0
        second = asyncio.get_running_loop().time()
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return Close(None)
            messages += 1
            if messages >= _MOST_MESSAGES_A_SECOND:
                await asyncio.sleep(second + 1 - asyncio.get_running_loop().time())
                messages, second = 0, asyncio.get_running_loop().time()
            try:
                text = message.get("text")
                if text is None:
                    raise MalformedMessage("a binary message, where JSON text is expected")
                self.heard(text)
            except MalformedMessage as exc:
                malformed += 1
                await self.send_text(error_text(str(exc)))
                if malformed >= MOST_MALFORMED:
                    return Close(MALFORMED, f"{malformed} malformed messages")

    async def _within(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send, or cut the connection of a client that takes nothing."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await sending
        except TimeoutError as exc:
            cut(self.websocket.scope)
            raise ClientTooSlow from exc
        except (WebSocketDisconnect, RuntimeError) as exc:
            # Gone in the meantime, or closed by the other half of this conversation.
            raise ClientTooSlow from exc


class EndlessResponse(Response, ABC):
    """An answer that goes on until the client leaves or the server ends.

    Args:
        serving: What the server has.
        stream: Whose pictures these are; None for events.
    """

    def __init__(self, serving: Serving, stream: str | None, media_type: str) -> None:
        super().__init__(media_type=media_type)
        self.serving = serving
        self.stream = stream
        del self.headers["content-length"]

    @abstractmethod
    async def speak(self, send: Send, bell: Bell) -> None:
        """Send what there is to send each time that the bell rings."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bell = Bell()
        try:
            with self.serving.clients.place(bell, self.stream):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await first_of(self.speak(send, bell), _gone(receive))
                await send({"type": "http.response.body", "body": b""})
        except TooManyClients as exc:
            await of_error(exc)(scope, receive, send)


def error_text(error: str) -> str:
    """An error as a message."""
    return json.dumps({"error": " ".join(error.split())[:300]})


async def first_of(*coroutines: Coroutine[Any, Any, Ended]) -> Ended:
    """What the first to end has come to; the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
