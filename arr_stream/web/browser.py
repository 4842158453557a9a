"""`WS /api/browser`: a browser sends pictures of its camera or screen, as a stream that lasts as long as the socket."""

from __future__ import annotations

import asyncio
import json
import math
import struct
import time

from fastapi import APIRouter
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, InvalidSetting
from arr_stream.live.runner import StreamRunner
from arr_stream.sources.base import Source
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.sources.live.connection import Interrupt, OnState
from arr_stream.web.routes import Body, Name, Preset, Texts
from arr_stream.web.security import TRANSPORT
from arr_stream.web.serving import Serving, WakeUp
from arr_stream.web.sockets import (
    ENDING,
    FAILED,
    MALFORMED,
    REMOVED,
    SILENT,
    Close,
    MalformedMessage,
    StayingSocket,
    first_fault,
)

LARGEST_PICTURE_BYTES = 4_000_000

_TIME = struct.Struct("<d")
"""Header of each message: the capture time, in seconds on the sender's clock; the JPEG follows."""


class NewBrowser(Body):
    """Query of the socket's address."""

    name: Name = "browser camera"
    query: Texts = Field([])
    preset: Preset | None = None


class BrowserSocket(StayingSocket):
    """Socket of one browser that sends pictures.

    Every picture is acknowledged on arrival. The browser sends the next one only then, so that none waits in a network
    queue.
    """

    def __init__(self, serving: Serving, websocket: WebSocket) -> None:
        super().__init__(serving, websocket)
        self._source: BrowserSource | None = None
        self._bell: WakeUp | None = None
        self._received = 0

    async def run(self) -> None:
        # Only for this socket, and only once the request has passed the security checks.
        transport = self.websocket.scope["state"][TRANSPORT]
        transport.get_protocol().conn.max_message_size = _TIME.size + LARGEST_PICTURE_BYTES
        await super().run()

    async def speak(self, wake_up: WakeUp) -> Close:
        try:
            wanted = self._wanted()
            streams = self.serving.streams
            settings = streams.settings if wanted.preset is None else streams.preset(wanted.preset)
            self._source = source = BrowserSource(wanted.name, settings)
            self._bell, source.on_close = wake_up, wake_up.ring
            with self.serving.removals(wake_up):
                runner = await run_in_threadpool(self._add, source, wanted)
                await self.send(json.dumps({"stream": runner.status()}))
                close = await self._acknowledge(runner, source, settings, wake_up)
        except ArrStreamError as exc:
            await self.complain(str(exc))
            return Close(MALFORMED, exc.message)
        finally:
            if self._source is not None:
                self._source.finish()
        return close

    def on_message(self, message: str | bytes) -> None:
        if self._source is None or self._bell is None or isinstance(message, str) or len(message) <= _TIME.size:
            raise MalformedMessage("no picture: 8 bytes of capture time, then a JPEG, are expected")
        (sent_seconds,) = _TIME.unpack_from(message)
        # Beyond this, a double cannot resolve milliseconds.
        if not math.isfinite(sent_seconds) or abs(sent_seconds) > 1e12:
            raise MalformedMessage(f"a capture time of {sent_seconds:g} s")
        self._received += 1
        self._source.push(message[_TIME.size :], time.monotonic(), sent_seconds)
        self._bell.ring()

    def _wanted(self) -> NewBrowser:
        query = self.websocket.query_params
        values = {key: query.getlist(key) if key == "query" else query[key] for key in query}
        try:
            return NewBrowser.model_validate(values)
        except ValidationError as exc:
            raise InvalidSetting(first_fault(exc)) from exc

    def _add(self, source: BrowserSource, wanted: NewBrowser) -> StreamRunner:
        def open_it(_settings: Settings, _on_state: OnState, _interrupt: Interrupt) -> Source:
            try:
                source.wait_first()
            except BaseException:
                source.close()
                raise
            # Its `info` is set by now, and never changes.
            return source

        streams, preset = self.serving.streams, wanted.preset
        return streams.add("browser", opener=open_it, name=wanted.name, query=wanted.query, preset=preset, once=True)

    async def _acknowledge(
        self, runner: StreamRunner, source: BrowserSource, settings: Settings, wake_up: WakeUp
    ) -> Close:
        """Acknowledge pictures until either side ends the stream, or the browser falls silent."""
        clock, stall_seconds = asyncio.get_running_loop().time, settings.live.stall_seconds
        acknowledged, due = 0, None
        asked_again = False
        while not self.serving.clients.ended:
            # A source that has ended removes its stream, after `failure` is set.
            is_removed = not self.serving.has(runner)
            if source.error is not None:
                raise source.error
            if is_removed and runner.failure is not None:
                await self.complain(runner.failure)
                return Close(FAILED, "the stream has failed")
            if is_removed:
                return Close(REMOVED, "the stream was removed")
            if self._received > acknowledged:
                acknowledged, asked_again, due = self._received, False, clock() + stall_seconds / 2
                await self.send(json.dumps({"received": acknowledged}))
            try:
                async with asyncio.timeout_at(due):
                    await wake_up.wait()
            except TimeoutError:
                if asked_again:
                    return Close(SILENT, f"no picture came for {stall_seconds:g} s")
                # A static screen gives the browser no new picture to send.
                asked_again, due = True, clock() + stall_seconds / 2
                await self.send(json.dumps({"again": True}))
        return Close(ENDING, "the server is ending")


def browser_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["streams"])

    @router.websocket("/api/browser")
    async def browser(websocket: WebSocket) -> None:
        await BrowserSocket(serving, websocket).run()

    return router
