"""`/api/streams` and `/api/browser`: adding, changing and removing streams, and what is looked for in them.

What requests may say is bounded in every list and text, and unknown keys are refused.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from unicodedata import category

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from starlette.concurrency import run_in_threadpool

from arr_stream.config import Settings
from arr_stream.errors import ExampleUnreadable, InvalidSetting
from arr_stream.live.runner import StreamRunner
from arr_stream.relevance.query import ExampleQuery, load_example
from arr_stream.sources.base import Source
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.sources.live.connection import OnState
from arr_stream.web.problems import Forbidden
from arr_stream.web.serving import Serving
from arr_stream.web.settings import checked_changes

_MOST_EXAMPLE_PIXELS = 25_000_000
_EXAMPLE_NAME = "picture"
_PICTURE = {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
_BROWSER = "browser"

Status = dict[str, Any]

_UNSEEN = {"Cc", "Zl", "Zp"}
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which what follows is shown, in terminals and logs too."""


def _printable(text: str) -> str:
    if any(category(letter) in _UNSEEN or letter in _TURNING for letter in text):
        raise ValueError("control characters are not allowed")
    return text


Line = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(_printable)]
Name = Annotated[Line, Field(min_length=1, max_length=80, description="what people call the stream")]
Text = Annotated[Line, Field(min_length=1, max_length=500)]
Texts = Annotated[list[Text], Field(max_length=16, description="what to look for")]
Preset = Annotated[Line, Field(min_length=1, max_length=80, description="name of a preset")]
Value = bool | int | float | Annotated[Line, Field(max_length=80)]
Changes = Annotated[
    dict[Annotated[str, Field(max_length=80)], Value],
    Field(max_length=64, description="settings by dotted key, such as `selection.budget`"),
]
Share = Annotated[float, Field(ge=0, le=1)]


class Body(BaseModel):
    """The shape that all have in common."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class NewStream(Body):
    """A stream to add."""

    source: Annotated[Line, Field(min_length=1, max_length=2000, description="one that the command line allows")]
    name: Name | None = None
    query: Texts = []
    preset: Preset | None = None
    settings: Changes = {}


class StreamChange(Body):
    """What to change; what is left out stays."""

    paused: bool | None = None
    name: Name | None = None
    preset: Preset | None = Field(None, description="null for the defaults; settings go on top")
    settings: Changes = {}


class Region(Body):
    """A box in pixels of the upright frame."""

    xywh: tuple[float, float, float, float]


class NewQuery(Body):
    """What to look for in place of what is looked for now; without `region`, the region stays."""

    texts: Texts
    region: Region | None = None


class Looks(Body):
    """Where someone looks, normalised to [0, 1]."""

    points: Annotated[list[tuple[Share, Share]], Field(max_length=256)]


class Offer(Body):
    """A browser's camera or screen, as WebRTC describes it."""

    sdp: Annotated[str, Field(min_length=1, max_length=200_000)]
    type: Literal["offer"]
    name: Name | None = None
    query: Texts = []
    preset: Preset | None = None


def stream_routes(serving: Serving) -> APIRouter:
    """Endpoints that wait for other threads are plain functions, so that they run beside the event loop."""
    router = APIRouter(tags=["streams"])

    @router.get("/api/streams")
    def list_streams() -> list[Status]:
        """All streams, in the order in which they were added."""
        return serving.streams.statuses()

    @router.post("/api/streams", status_code=201)
    def add_stream(new: NewStream) -> Status:
        """Add a stream; its source is opened in the background."""
        source = serving.allowed.resolve(new.source)
        serving.check_room()
        changes = checked_changes(new.settings, running=False)
        return serving.streams.add(source, name=new.name, query=new.query, preset=new.preset, settings=changes).status()

    @router.get("/api/streams/{id}")
    def get_stream(id: str) -> Status:
        """How a stream is doing."""
        return serving.runner(id).status()

    @router.delete("/api/streams/{id}", status_code=204)
    def remove_stream(id: str) -> Response:
        """End a stream and forget it."""
        serving.runner(id)
        serving.streams.remove(id)
        return Response(status_code=204)

    @router.patch("/api/streams/{id}")
    def change_stream(id: str, change: StreamChange) -> Status:
        """Pause or go on, rename, take a preset or other settings; at once. Of two errors, neither changes anything."""
        runner = serving.runner(id)
        _configure(serving, runner, change)
        if change.name is not None:
            runner.rename(change.name)
        if change.paused is not None:
            runner.paused = change.paused
        return runner.status()

    @router.post("/api/streams/{id}/retry")
    def retry(id: str) -> Status:
        """Open the source again now, where it has failed or ended."""
        runner = serving.runner(id)
        runner.retry()
        return runner.status()

    @router.put("/api/streams/{id}/query")
    def look_for(id: str, new: NewQuery) -> Status:
        """What to look for from the next frame on; an example picture stays."""
        runner = serving.runner(id)
        region = new.region.xywh if new.region is not None else None
        if "region" not in new.model_fields_set:
            region = runner.region_xywh
        runner.ask_for(new.texts, region_xywh=region, example=runner.example)
        return runner.status()

    @router.put("/api/streams/{id}/example", openapi_extra={"requestBody": _PICTURE})
    async def look_for_example(id: str, request: Request) -> Status:
        """Look for what is like a picture, too. The body is the picture, at most 10 MB."""
        runner = serving.runner(id)
        picture = await request.body()
        return await run_in_threadpool(lambda: _exemplified(runner, _read_example(picture)))

    @router.delete("/api/streams/{id}/example")
    def forget_example(id: str) -> Status:
        """Look for the example no more."""
        return _exemplified(serving.runner(id), None)

    @router.post("/api/streams/{id}/gaze", status_code=204)
    def look_at(id: str, looks: Looks) -> Response:
        """Tell where someone looks."""
        runner = serving.runner(id)
        for x, y in looks.points:
            runner.look(x, y)
        return Response(status_code=204)

    @router.post("/api/browser", status_code=201)
    async def offer(offer: Offer) -> dict[str, Any]:
        """Answer a browser that offers its camera or screen; the stream is gone when the connection ends."""
        if serving.cameras is None:
            raise Forbidden("cameras of browsers are not taken", remedy="start the server without --no-browser")
        serving.check_room()
        streams = serving.streams
        settings = streams.preset(offer.preset) if offer.preset is not None else streams.settings
        made: list[StreamRunner] = []

        async def take(source: BrowserSource) -> None:
            made.append(await run_in_threadpool(_added, serving, source, offer))

        name = offer.name or "browser camera"
        sdp = await serving.cameras.answer(offer.sdp, offer.type, take, settings=settings, name=name)
        return {"sdp": sdp, "type": "answer", "stream": made[0].status()}

    return router


def _added(serving: Serving, source: BrowserSource, offer: Offer) -> StreamRunner:
    def open_it(_settings: Settings, _on_state: OnState) -> Source:
        source.wait_first()
        # Its `info` is known by now, and never set again.
        return cast(Source, source)

    return serving.streams.add(
        _BROWSER, opener=open_it, name=source.name, query=offer.query, preset=offer.preset, once=True
    )


def _configure(serving: Serving, runner: StreamRunner, change: StreamChange) -> None:
    changes = checked_changes(change.settings, running=True)
    if "preset" in change.model_fields_set:
        streams = serving.streams
        base = streams.preset(change.preset) if change.preset is not None else streams.settings
        runner.configure(changes, base=base, preset=change.preset)
    elif changes:
        runner.configure(changes)


def _exemplified(runner: StreamRunner, example: ExampleQuery | None) -> Status:
    """Everything else that is looked for stays."""
    runner.ask_for(runner.texts, region_xywh=runner.region_xywh, example=example)
    return runner.status()


def _read_example(picture: bytes) -> ExampleQuery:
    if not picture:
        raise InvalidSetting("the body is empty", remedy="send the bytes of a picture")
    with tempfile.TemporaryDirectory(prefix="arr-stream-") as folder:
        path = Path(folder) / _EXAMPLE_NAME
        path.write_bytes(picture)
        try:
            return load_example(path, max_pixels=_MOST_EXAMPLE_PIXELS)
        except ExampleUnreadable as exc:
            raise ExampleUnreadable(exc.message.replace(f"{folder}/", ""), remedy=exc.remedy) from exc
