"""Long-lived WebSockets: messages in both directions until either side ends, with a close code."""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.websockets import WebSocket

from arr_stream.web.access import Refused
from arr_stream.web.serving import Serving, WakeUp

ENDING, MALFORMED, FAILED, CROWDED = 1001, 1008, 1011, 1013
NO_STREAM, SILENT, REMOVED = 4404, 4408, 4410


@dataclass(frozen=True, slots=True)
class Close:
    """Close code and reason of a socket; `code` is None if the client closed it."""

    code: int | None
    reason: str = ""

    async def send(self, websocket: WebSocket) -> None:
        """Close a socket; the protocol allows 123 bytes for the reason."""
        await websocket.close(self.code or 1000, self.reason.encode()[:120].decode(errors="ignore"))


class MalformedMessage(ValueError):
    """Error for a client's invalid message."""


class _ClosedElsewhere(Exception):
    """Raised by a send after the socket was closed."""


class StayingSocket(ABC):
    """One client on a WebSocket, which `run` accepts."""

    def __init__(self, serving: Serving, websocket: WebSocket) -> None:
        self.serving = serving
        self.websocket = websocket

    @abstractmethod
    async def speak(self, wake_up: WakeUp) -> Close:
        """Send all pending messages each time the bell rings."""

    @abstractmethod
    def on_message(self, message: str | bytes) -> None:
        """Take a message.

        Raises:
            MalformedMessage: It is not valid, which ends the connection.
        """

    async def run(self) -> None:
        """Serve the client until either side ends, in a reserved place."""
        await self.websocket.accept()
        try:
            with self.serving.clients.place() as wake_up:
                close = await _first_of(self.speak(wake_up), self._listen())
        except Refused as exc:
            close = Close(CROWDED, str(exc))
        except _ClosedElsewhere:
            return
        if close.code is not None:
            with contextlib.suppress(RuntimeError):  # Either side has closed it meanwhile.
                await close.send(self.websocket)

    async def send(self, message: str | bytes) -> None:
        try:
            if isinstance(message, str):
                await self.websocket.send_text(message)
            else:
                await self.websocket.send_bytes(message)
        except RuntimeError as exc:  # The server, which ends, or the client has closed it meanwhile.
            raise _ClosedElsewhere from exc

    async def complain(self, error: str) -> None:
        """Send an error as a message."""
        await self.send(json.dumps({"error": " ".join(error.split())[:300]}))

    async def _listen(self) -> Close:
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return Close(None)
            text = message.get("text")
            try:
                self.on_message(message["bytes"] if text is None else text)
            except MalformedMessage as exc:
                await self.complain(str(exc))
                return Close(MALFORMED, str(exc))


def first_fault(error: ValidationError) -> str:
    """Return the first error and its location in one line."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))[:60]
    return f"{place or 'message'}: {first['msg'].lower()}"


async def _first_of(*coroutines: Coroutine[Any, Any, Close]) -> Close:
    """Return the result of the first to end; cancel the others and wait for them."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
