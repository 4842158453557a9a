"""Pictures of a stream: the newest one, an endless response of them, or a WebSocket at the client's pace."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import closing

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket

from arr_stream.draw.views import check_view
from arr_stream.errors import InvalidSetting
from arr_stream.live.pictures import Watching
from arr_stream.live.runner import StreamRunner
from arr_stream.web.problems import NoSuchThing, NotYet
from arr_stream.web.security import TRANSPORT
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

_View = Query("patches", max_length=80, description="a view, or `channel:NAME`")
_BOUNDARY = "arr-stream-picture"
_HEAD = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\n\r\n".encode()


class ClientMessage(BaseModel):
    """Message of the socket's client, with one or more requests."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    ack: int | None = None
    views: list[str] | None = Field(None, max_length=8)
    cells: bool | None = None
    gaze: tuple[float, float] | None = None


class VideoSocket(StayingSocket):
    """Socket of one viewer of one stream; the query of its address names the views."""

    def __init__(self, serving: Serving, websocket: WebSocket, runner: StreamRunner) -> None:
        super().__init__(serving, websocket)
        self._runner = runner
        self._watching: Watching | None = None

    async def speak(self, wake_up: WakeUp) -> Close:
        query = self.websocket.query_params
        views, cells = query.getlist("view") or ["patches"], query.get("cells", "0") in {"1", "true"}
        try:
            self._watching = self.serving.observer.watch(self._runner, views, wake_up.ring, cells=cells)
        except InvalidSetting as exc:
            await self.complain(str(exc))
            return Close(MALFORMED, exc.message)
        with closing(self._watching) as watching, self.serving.removals(wake_up):
            return await self._pictures(watching, wake_up)

    def on_message(self, text: str) -> None:
        """Handle a text message; see `StayingSocket.on_message`."""
        watching = self._watching
        try:
            message = ClientMessage.model_validate_json(text)
            if watching is None or not message.model_fields_set:
                raise MalformedMessage("a message that says nothing")
            if message.views is not None or message.cells is not None:
                watching.show(message.views, message.cells)
            if message.gaze is not None:
                self._runner.set_gaze(*message.gaze)
        except ValidationError as exc:
            raise MalformedMessage(first_fault(exc)) from exc
        except InvalidSetting as exc:
            raise MalformedMessage(str(exc)) from exc
        if message.ack is not None and not watching.acknowledge(message.ack):
            raise MalformedMessage(f"ack {message.ack}: no such message is under way")

    async def _pictures(self, watching: Watching, wake_up: WakeUp) -> Close:
        while True:
            if self.serving.clients.ended:
                return Close(ENDING, "the server is ending")
            if not self.serving.has(self._runner):
                return Close(REMOVED, "the stream was removed")
            if watching.error is not None:
                await self.complain(watching.error)
                return Close(FAILED, "the view cannot be drawn")
            message = watching.next_message()
            if message is None:
                await wake_up.wait()
                continue
            await self.send(message)
            self.serving.observer.picture_sent(self._runner)


def picture_routes(serving: Serving) -> APIRouter:
    router = APIRouter(prefix="/api/streams/{id}", tags=["pictures"])

    @router.websocket("/video")
    async def video(websocket: WebSocket, id: str) -> None:
        try:
            runner = serving.runner(id)
        except NoSuchThing as exc:
            await websocket.accept()
            await websocket.close(NO_STREAM, exc.message[:120])
            return
        await VideoSocket(serving, websocket, runner).run(runner.id)

    @router.get("/snapshot.jpg", response_class=Response)
    async def snapshot(id: str, view: str = _View) -> Response:
        """Return the newest picture."""
        runner = serving.runner(id)
        # A limited number at a time: snapshots must not take the processor from the streams.
        async with serving.drawing:
            jpeg = await run_in_threadpool(runner.room.snapshot, view)
        if jpeg is None:
            raise NotYet(f"{runner.name} has no picture yet", remedy="try again in a moment")
        return Response(jpeg, media_type="image/jpeg")

    async def place(id: str) -> AsyncIterator[WakeUp]:
        with serving.clients.place(serving.runner(id).id) as wake_up:
            yield wake_up

    a_place = Depends(place)

    @router.get("/video.mjpeg", response_class=Response)
    async def mjpeg(request: Request, id: str, view: str = _View, wake_up: WakeUp = a_place) -> Response:
        """Send pictures one after the other, the newest each time (`multipart/x-mixed-replace`)."""
        # Buffered pictures are old by the time they arrive: do not buffer here.
        if (transport := request.scope.get("state", {}).get(TRANSPORT)) is not None:
            transport.set_write_buffer_limits(high=0)
        parts = _parts(serving, serving.runner(id), check_view(view), wake_up)
        return StreamingResponse(parts, media_type=f"multipart/x-mixed-replace; boundary={_BOUNDARY}")

    return router


async def _parts(serving: Serving, runner: StreamRunner, view: str, wake_up: WakeUp) -> AsyncIterator[bytes]:
    """Yield the newest picture each time that the client has taken the last one.

    A part ends at the next one's header, and browsers show it only then: so that header is sent with it, before the
    next
    picture exists. A part can therefore not state its length.
    """
    with closing(runner.room.watch([view], wake_up.ring)) as watching, serving.removals(wake_up):
        yield _HEAD
        while not serving.clients.ended and serving.has(runner) and watching.error is None:
            message = watching.next_message()
            if message is None:
                await wake_up.wait()
                continue
            # See `arr_stream.live.pictures.message`.
            (length,) = struct.unpack_from("<I", message)
            yield message[4 + length :] + b"\r\n" + _HEAD
            yield b""  # resumes when all data before it have gone to the system
            serving.observer.picture_sent(runner)
            watching.acknowledge(json.loads(message[4 : 4 + length])["seq"])
