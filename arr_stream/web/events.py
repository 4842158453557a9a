"""Events of the streams, over a WebSocket or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocket

from arr_stream.live.events import Event, Subscription
from arr_stream.web.problems import NoSuchThing
from arr_stream.web.serving import Bell, Serving
from arr_stream.web.sockets import ENDING, MALFORMED, NO_STREAM, Close, MalformedMessage, StayingSocket

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
    """Which events a client wants: of these `streams`, of these `kinds`, of all where there are none.

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

    @contextmanager
    def heard(self, bell: Bell) -> Iterator[Subscription]:
        """From now on; the list of streams comes first, where it is wanted."""
        with self._serving.events(Subscription(bell.ring, self._streams, self._kinds)) as subscription:
            if subscription.wants("streams", None):
                told = {"type": "streams", "streams": self._serving.streams.statuses()}
                # What happened while the list was made comes after it.
                for event in (told, *subscription.take()):
                    subscription.put(event)
            yield subscription


class EventSocket(StayingSocket):
    """One listener on a WebSocket; it has nothing to say."""

    def __init__(self, serving: Serving, websocket: WebSocket, texts: EventTexts) -> None:
        super().__init__(serving, websocket)
        self._texts = texts

    async def speak(self, bell: Bell) -> Close:
        query = self.websocket.query_params
        try:
            wanted = Wanted(self.serving, query.getlist("stream"), query.getlist("kind"))
        except NoSuchThing as exc:
            await self.complain(str(exc))
            return Close(MALFORMED if isinstance(exc, NoSuchKind) else NO_STREAM, exc.message)
        with wanted.heard(bell) as subscription:
            while not self.serving.clients.ended:
                for event in subscription.take():
                    await self.send(self._texts.text(event))
                await bell.wait()
        return Close(ENDING, "the server is ending")

    def heard(self, text: str) -> None:
        """See `StayingSocket.heard`."""
        raise MalformedMessage("nothing is expected here; commands go to /api/streams")


def event_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["events"])
    texts = EventTexts()

    @router.websocket("/api/events")
    async def events(websocket: WebSocket) -> None:
        await EventSocket(serving, websocket, texts).run()

    async def place() -> AsyncIterator[Bell]:
        with serving.clients.place() as bell:
            yield bell

    a_place = Depends(place)

    @router.get("/api/events.sse", response_class=Response)
    async def server_sent_events(stream: _Several = None, kind: _Several = None, bell: Bell = a_place) -> Response:
        """The events of `WS /api/events`, one `data:` line each."""
        wanted = Wanted(serving, stream or (), kind or ())

        async def said() -> AsyncIterator[str]:
            with wanted.heard(bell) as subscription:
                while not serving.clients.ended:
                    lines = [f"data: {texts.text(event)}\n\n" for event in subscription.take()]
                    # A comment now and then: who is gone without a word is noticed by what cannot be sent.
                    yield "".join(lines) or ": still here\n\n"
                    try:
                        async with asyncio.timeout(_HEARTBEAT_SECONDS):
                            await bell.wait()
                    except TimeoutError:
                        continue

        return StreamingResponse(said(), media_type="text/event-stream")

    return router
