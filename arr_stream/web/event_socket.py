"""Events of the streams, over a WebSocket or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.types import Send
from starlette.websockets import WebSocket

from arr_stream.live.events import Event, Subscription
from arr_stream.web.clients import Bell
from arr_stream.web.serving import NoSuchThing, Serving
from arr_stream.web.sockets import (
    ENDING,
    MALFORMED,
    NO_STREAM,
    Close,
    EndlessResponse,
    MalformedMessage,
    StayingSocket,
    error_text,
)

KINDS = ("streams", "state", "frame", "summary", "asking", "text", "answer", "alert", "notice")

_Several = Annotated[list[str] | None, Query(max_length=64)]

_KEPT_TEXTS = 64
_HEARTBEAT_SECONDS = 15.0


class NoSuchKind(NoSuchThing):
    """There are no such events."""


class EventTexts:
    """Events as JSON; what several clients are sent at about the same time is written once."""

    def __init__(self) -> None:
        self._texts: OrderedDict[int, tuple[Event, str]] = OrderedDict()

    def text(self, event: Event) -> str:
        known = self._texts.get(id(event))
        # The event is kept with its text, so that its number cannot be another's meanwhile.
        if known is not None and known[0] is event:
            return known[1]
        text = json.dumps(event, ensure_ascii=False)
        self._texts[id(event)] = event, text
        if len(self._texts) > _KEPT_TEXTS:
            self._texts.popitem(last=False)
        return text


class Wanted:
    """Which events a client wants.

    Args:
        serving: What the server has.
        streams, kinds: As asked for; empty for all.

    Raises:
        NoSuchThing: There is no such stream, or no such kind.
    """

    def __init__(self, serving: Serving, streams: Sequence[str], kinds: Sequence[str]) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise NoSuchKind(f"there are no events of kind {kind[:40]!r}", remedy=f"choose of {', '.join(KINDS)}")
        self._serving = serving
        self._streams = {serving.runner(id).id for id in streams} or None
        self._kinds = frozenset(kinds) or None

    def subscribe(self, bell: Bell) -> Subscription:
        """From now on; the list of streams comes first, where it is wanted."""
        subscription = self._serving.listen(bell.ring, streams=self._streams, kinds=self._kinds)
        if subscription.wants("streams", None):
            subscription.put({"type": "streams", "streams": self._serving.streams.statuses()})
        return subscription


def event_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["events"])
    texts = EventTexts()

    @router.websocket("/api/events")
    async def events(websocket: WebSocket) -> None:
        query = websocket.query_params
        try:
            wanted = Wanted(serving, query.getlist("stream"), query.getlist("kind"))
        except NoSuchThing as exc:
            await websocket.accept()
            await websocket.send_text(error_text(str(exc)))
            await websocket.close(MALFORMED if isinstance(exc, NoSuchKind) else NO_STREAM, exc.message[:120])
            return
        await EventSocket(serving, websocket, wanted, texts).run()

    @router.get("/api/events.sse", response_class=Response)
    async def server_sent_events(stream: _Several = None, kind: _Several = None) -> Response:
        """The events of `WS /api/events`, one `data:` line each."""
        return ServerSentEvents(serving, Wanted(serving, stream or (), kind or ()), texts)

    return router


class EventSocket(StayingSocket):
    """One listener on a WebSocket; it has nothing to say."""

    def __init__(self, serving: Serving, websocket: WebSocket, wanted: Wanted, texts: EventTexts) -> None:
        super().__init__(serving, websocket)
        self._wanted = wanted
        self._texts = texts

    async def speak(self) -> Close:
        subscription = self._wanted.subscribe(self.bell)
        try:
            while not self.serving.clients.ended:
                for event in subscription.take():
                    await self.send_text(self._texts.text(event))
                await self.bell.wait()
            return Close(ENDING, "the server is ending")
        finally:
            self.serving.streams.hub.unsubscribe(subscription)

    def heard(self, text: str) -> None:
        """See `StayingSocket.heard`."""
        raise MalformedMessage("nothing is expected here; commands go to /api/streams")


class ServerSentEvents(EndlessResponse):
    """One listener over plain HTTP."""

    def __init__(self, serving: Serving, wanted: Wanted, texts: EventTexts) -> None:
        super().__init__(serving, None, "text/event-stream")
        self._wanted = wanted
        self._texts = texts

    async def speak(self, send: Send, bell: Bell) -> None:
        subscription = self._wanted.subscribe(bell)
        try:
            while not self.serving.clients.ended:
                lines = [f"data: {self._texts.text(event)}\n\n" for event in subscription.take()]
                # A comment now and then: who is gone without a word is noticed by what cannot be sent.
                body = "".join(lines) or ": still here\n\n"
                await send({"type": "http.response.body", "body": body.encode(), "more_body": True})
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        await bell.wait()
                except TimeoutError:
                    continue
        finally:
            self.serving.streams.hub.unsubscribe(subscription)
