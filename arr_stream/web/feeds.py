"""Pictures of a stream, the newest one or a WebSocket at the client's pace, and events over a WebSocket."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket

from arr_stream.draw.views import check_view
from arr_stream.errors import InvalidSetting
from arr_stream.live.publishing import Shown, Subscription, checked_views, message
from arr_stream.live.runner import StreamRunner
from arr_stream.web.access import Refused
from arr_stream.web.serving import Serving, WakeUp
from arr_stream.web.sockets import (
    ENDING,
    FAILED,
    MALFORMED,
    NO_STREAM,
    REMOVED,
    Close,
    MalformedMessage,
    StayingSocket,
    first_fault,
)

MOST_UNSHOWN = 2
"""Most messages in flight to a client that has not yet acknowledged them."""

_View = Query("patches", max_length=80, description="a view, or `channel:NAME`")

_KINDS = ("streams", "state", "frame", "summary", "asking", "text", "answer", "alert", "notice")


class ClientMessage(BaseModel):
    """Message of the socket's client, with one or more requests."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    ack: int | None = None
    views: list[str] | None = Field(None, max_length=8)
    cells: bool | None = None
    gaze: tuple[float, float] | None = None


class VideoSocket(StayingSocket):
    """Socket of one viewer of one stream, which sends the newest frame; the query of its address names the views."""

    def __init__(self, serving: Serving, websocket: WebSocket, runner: StreamRunner) -> None:
        super().__init__(serving, websocket)
        self._runner = runner
        self._wake_up: WakeUp | None = None
        self._views: Sequence[str] = ()
        self._cells = False
        self._last: Shown | None = None
        self._sequence = 0
        self._under_way: dict[int, float] = {}

    async def speak(self, wake_up: WakeUp) -> Close:
        query = self.websocket.query_params
        self._wake_up = wake_up
        self._cells = query.get("cells", "0") in {"1", "true"}
        try:
            self._views = checked_views(query.getlist("view") or ["patches"])
        except InvalidSetting as exc:
            await self.complain(str(exc))
            return Close(MALFORMED, exc.message)
        with self._runner.publisher.watched(wake_up.ring), self.serving.removals(wake_up):
            return await self._send_pictures(wake_up)

    def on_message(self, message: str | bytes) -> None:
        try:
            asked = ClientMessage.model_validate_json(message)
            if self._wake_up is None or not asked.model_fields_set:
                raise MalformedMessage("a message that says nothing")
            if asked.views is not None or asked.cells is not None:
                # A stalled stream shows its last frame again.
                self._last = None
                self._views = self._views if asked.views is None else checked_views(asked.views)
                self._cells = self._cells if asked.cells is None else asked.cells
            if asked.gaze is not None:
                self._runner.set_gaze(*asked.gaze)
        except ValidationError as exc:
            raise MalformedMessage(first_fault(exc)) from exc
        except InvalidSetting as exc:
            raise MalformedMessage(str(exc)) from exc
        if asked.ack is not None:
            self._acknowledge(asked.ack)
        self._wake_up.ring()

    def _acknowledge(self, sequence: int) -> None:
        """Note that the client has shown this message and all before."""
        if sequence not in self._under_way:
            raise MalformedMessage(f"ack {sequence}: no such message is under way")
        self._runner.publisher.age(time.monotonic() - self._under_way[sequence])
        self._under_way = {number: taken for number, taken in self._under_way.items() if number > sequence}

    async def _send_pictures(self, wake_up: WakeUp) -> Close:
        while True:
            if self.serving.clients.ended:
                return Close(ENDING, "the server is ending")
            if not self.serving.has(self._runner):
                return Close(REMOVED, "the stream was removed")
            shown = self._runner.publisher.shown
            if shown is None or shown is self._last or len(self._under_way) >= MOST_UNSHOWN:
                await wake_up.wait()
                continue
            # Set this first, so that a request during drawing is served next.
            self._last = shown
            self._sequence += 1
            try:
                async with self.serving.drawing:
                    drawn = await run_in_threadpool(message, shown, self._views, self._sequence, self._cells)
            except Exception as exc:
                # A view that cannot be drawn must not affect the others.
                await self.complain(f"{', '.join(self._views)}: {type(exc).__name__}: {exc}")
                return Close(FAILED, "the view cannot be drawn")
            self._under_way[self._sequence] = shown.captured_seconds
            await self.send(drawn)


class EventSocket(StayingSocket):
    """Listener on a WebSocket; its address names the streams and kinds of events to send, none for all."""

    async def speak(self, wake_up: WakeUp) -> Close:
        query = self.websocket.query_params
        kinds = frozenset(query.getlist("kind"))
        for kind in kinds.difference(_KINDS):
            message = f"there are no events of kind {kind[:40]!r}"
            await self.complain(f"{message}; choose of {', '.join(_KINDS)}")
            return Close(MALFORMED, message)
        try:
            streams = {self.serving.runner(id).id for id in query.getlist("stream")}
        except Refused as exc:
            await self.complain(str(exc))
            return Close(NO_STREAM, exc.message)
        with self.serving.events(Subscription(wake_up.ring, streams or None, kinds or None)) as subscription:
            if subscription.wants("streams", None):
                listed = {"type": "streams", "streams": self.serving.streams.statuses()}
                # The list comes first; events from while it was made come after it.
                for event in (listed, *subscription.drain()):
                    subscription.put(event)
            while not self.serving.clients.ended:
                for event in subscription.drain():
                    await self.send(json.dumps(event, ensure_ascii=False))
                await wake_up.wait()
        return Close(ENDING, "the server is ending")

    def on_message(self, message: str | bytes) -> None:
        raise MalformedMessage("nothing is expected here; commands go to /api/streams")


def feed_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["pictures and events"])

    @router.websocket("/api/streams/{id}/video")
    async def video(websocket: WebSocket, id: str) -> None:
        try:
            runner = serving.runner(id)
        except Refused as exc:
            await websocket.accept()
            await Close(NO_STREAM, exc.message).send(websocket)
            return
        await VideoSocket(serving, websocket, runner).run()

    @router.get("/api/streams/{id}/snapshot.jpg", response_class=Response)
    async def snapshot(id: str, view: str = _View) -> Response:
        """Return the newest picture."""
        runner = serving.runner(id)
        check_view(view)
        shown = runner.publisher.shown
        if shown is None:
            raise Refused(503, f"{runner.name} has no picture yet", remedy="try again in a moment")
        async with serving.drawing:
            jpeg = await run_in_threadpool(shown.jpeg, view)
        return Response(jpeg, media_type="image/jpeg")

    @router.websocket("/api/events")
    async def events(websocket: WebSocket) -> None:
        await EventSocket(serving, websocket).run()

    return router
