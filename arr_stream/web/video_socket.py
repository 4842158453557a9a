"""Pictures of a stream over a WebSocket: the newest frame, as fast as the client shows them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocket

from arr_stream.errors import InvalidSetting
from arr_stream.live.pictures import Watching, checked_views
from arr_stream.live.runner import StreamRunner
from arr_stream.web.serving import NoSuchThing, Serving
from arr_stream.web.sockets import (
    ENDING,
    FAILED,
    MALFORMED,
    NO_STREAM,
    REMOVED,
    Close,
    MalformedMessage,
    StayingSocket,
    error_text,
)


class ClientMessage(BaseModel):
    """What a client may say, one or more at a time."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    ack: int | None = None
    views: list[str] | None = Field(None, max_length=8)
    cells: bool | None = None
    gaze: tuple[float, float] | None = None


def video_routes(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.websocket("/api/streams/{id}/video")
    async def video(websocket: WebSocket, id: str) -> None:
        try:
            runner = serving.runner(id)
        except NoSuchThing as exc:
            await websocket.accept()
            await websocket.close(NO_STREAM, exc.message[:120])
            return
        await VideoSocket(serving, websocket, runner).run(runner.id)

    return router


class VideoSocket(StayingSocket):
    """One viewer of one stream.

    Args:
        serving: What the server has.
        websocket: The client; its query names the views.
        runner: The stream.
    """

    def __init__(self, serving: Serving, websocket: WebSocket, runner: StreamRunner) -> None:
        super().__init__(serving, websocket)
        self._runner = runner
        self._watching: Watching | None = None

    async def speak(self) -> Close:
        query = self.websocket.query_params
        views, cells = query.getlist("view") or ["patches"], query.get("cells", "0") in {"1", "true"}
        try:
            watching = self.serving.observer.watch(self._runner, views, self.bell.ring, cells=cells)
        except InvalidSetting as exc:
            await self.send_text(error_text(str(exc)))
            return Close(MALFORMED, exc.message)
        self._watching = watching
        subscription = self.serving.wake_for(self.bell.ring, "streams")
        try:
            return await self._pictures(watching)
        finally:
            watching.close()
            self.serving.streams.hub.unsubscribe(subscription)

    def heard(self, text: str) -> None:
        """See `StayingSocket.heard`."""
        watching = self._watching
        try:
            message = ClientMessage.model_validate_json(text)
            if watching is None or not message.model_fields_set:
                raise MalformedMessage("a message that says nothing")
            if message.views is not None:
                watching.views = checked_views(message.views)
            if message.cells is not None:
                watching.cells = message.cells
            if message.gaze is not None:
                self._runner.look(*message.gaze)
        except ValidationError as exc:
            first = exc.errors()[0]
            place = ".".join(map(str, first["loc"]))[:60]
            raise MalformedMessage(f"{place or 'message'}: {first['msg'].lower()}") from exc
        except InvalidSetting as exc:
            raise MalformedMessage(str(exc)) from exc
        if message.ack is not None and not watching.acknowledge(message.ack):
            raise MalformedMessage(f"ack {message.ack}: no such message is under way")

    async def _pictures(self, watching: Watching) -> Close:
        while True:
            if self.serving.clients.ended:
                return Close(ENDING, "the server is ending")
            if not self.serving.has(self._runner):
                return Close(REMOVED, "the stream was removed")
            if watching.error is not None:
                await self.send_text(error_text(watching.error))
                return Close(FAILED, "the view cannot be drawn")
            message = watching.take()
            if message is None:
                await self.bell.wait()
                continue
            await self.send_bytes(message)
            self.serving.observer.picture_sent(self._runner)
