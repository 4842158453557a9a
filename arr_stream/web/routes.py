"""HTTP routes: streams, their queries, questions to the model, stored records, facts about the server, and the page.

Every list and text of a request has a maximum length, and unknown keys are refused.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Literal
from unicodedata import category

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

import arr_stream
from arr_stream.budget import budget_tokens
from arr_stream.config import public_settings
from arr_stream.draw.views import VIEWS
from arr_stream.errors import InvalidSetting, QueryUnreadable
from arr_stream.live.publishing import MOST_RECORDS
from arr_stream.live.runner import StreamRunner
from arr_stream.records.schema import Header
from arr_stream.relevance.query import ExampleQuery, load_example
from arr_stream.sources.live import list_cameras
from arr_stream.texture.layout import CHANNELS
from arr_stream.web.access import Refused
from arr_stream.web.serving import Serving
from arr_stream.web.settings import checked_changes, describe

Status = dict[str, Any]

_STATIC = Path(__file__).parent / "static"
_CHANNELS = [
    {
        "index": channel.index,
        "name": channel.name,
        "description": channel.meaning,
        "low": channel.low,
        "high": channel.high,
    }
    for channel in CHANNELS
]

_MOST_EXAMPLE_PIXELS = 25_000_000
_PICTURE = {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}

_UNSEEN = {"Cc", "Zl", "Zp"}
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional control characters, which change the order of displayed text, in terminals and logs too."""


def _printable(text: str) -> str:
    if any(category(letter) in _UNSEEN or letter in _TURNING for letter in text):
        raise ValueError("control characters are not allowed")
    return text


Line = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(_printable)]
Name = Annotated[Line, Field(min_length=1, max_length=80, description="name of the stream")]
Text = Annotated[Line, Field(min_length=1, max_length=500)]
Texts = Annotated[list[Text], Field(max_length=16, description="text queries")]
Preset = Annotated[Line, Field(min_length=1, max_length=80, description="name of a preset")]
Value = bool | int | float | Annotated[Line, Field(max_length=80)]
Changes = Annotated[
    dict[Annotated[str, Field(max_length=80)], Value],
    Field(max_length=64, description="settings by dotted key, such as `selection.budget`"),
]


class Body(BaseModel):
    """Base of request bodies: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class NewStream(Body):
    """A stream to add."""

    source: Annotated[Line, Field(min_length=1, max_length=2000, description="one that the command line allows")]
    name: Name | None = None
    query: Texts = []
    preset: Preset | None = None
    settings: Changes = {}


class StreamChange(Body):
    """Changes to a stream; omitted fields stay."""

    paused: bool | None = None
    name: Name | None = None
    preset: Preset | None = Field(None, description="null for the defaults; settings go on top")
    settings: Changes = {}


class Region(Body):
    """A box in pixels of the upright frame."""

    xywh: tuple[float, float, float, float]


class NewQuery(Body):
    """Query that replaces the present one; without `region`, the region stays."""

    texts: Texts
    region: Region | None = None


class NewRules(Body):
    """Alert rules that replace the present ones."""

    rules: Annotated[list[Text], Field(max_length=16, description="such as `relevance > 0.6 for 2s`")]


class NewQuestion(Body):
    """A question to the model."""

    question: Annotated[str, StringConstraints(strip_whitespace=True), Field(min_length=1, max_length=2000)]
    when: Literal["now", "every", "change"] = "now"
    every_seconds: Annotated[float, Field(gt=0, le=86_400)] = 5.0


def stream_routes(serving: Serving) -> APIRouter:
    """Add the routes; endpoints that wait for other threads are plain functions, which run outside the event loop."""
    router = APIRouter(tags=["streams"])

    @router.get("/api/streams")
    def list_streams() -> list[Status]:
        """Return all streams, in the order in which they were added."""
        return serving.streams.statuses()

    @router.post("/api/streams", status_code=201)
    def add_stream(new: NewStream) -> Status:
        """Add a stream; its source is opened in the background."""
        source = serving.allowed.resolve(new.source)
        changes = checked_changes(new.settings)
        return serving.streams.add(source, name=new.name, query=new.query, preset=new.preset, settings=changes).status()

    @router.get("/api/streams/{id}")
    def get_stream(id: str) -> Status:
        """Return the status of a stream."""
        return serving.runner(id).status()

    @router.delete("/api/streams/{id}", status_code=204)
    def remove_stream(id: str) -> Response:
        """End a stream and forget it."""
        serving.runner(id)
        serving.streams.remove(id)
        return Response(status_code=204)

    @router.patch("/api/streams/{id}")
    def change_stream(id: str, change: StreamChange) -> Status:
        """Pause, resume or rename a stream, or change its preset or settings; an error cancels all changes."""
        runner, streams = serving.runner(id), serving.streams
        changes = checked_changes(change.settings)
        if "preset" in change.model_fields_set:
            base = streams.preset(change.preset) if change.preset is not None else streams.settings
            runner.configure(changes, base=base, preset=change.preset)
        elif changes:
            runner.configure(changes)
        if change.name is not None:
            runner.rename(change.name)
        if change.paused is not None:
            runner.paused = change.paused
        return runner.status()

    @router.post("/api/streams/{id}/retry")
    def retry(id: str) -> Status:
        """Reopen a source that has failed or ended."""
        runner = serving.runner(id)
        runner.retry()
        return runner.status()

    @router.put("/api/streams/{id}/query")
    def look_for(id: str, new: NewQuery) -> Status:
        """Set the query from the next frame on; an example picture is kept."""
        runner = serving.runner(id)
        told = new.region.xywh if new.region is not None else None
        region = told if "region" in new.model_fields_set else runner.region_xywh
        runner.ask_for(new.texts, region_xywh=region, example=runner.example)
        return runner.status()

    @router.put("/api/streams/{id}/example", openapi_extra={"requestBody": _PICTURE})
    async def look_for_example(id: str, request: Request) -> Status:
        """Search for the content of a picture, too. The body is the picture, at most 10 MB."""
        runner = serving.runner(id)
        picture = await request.body()
        return await run_in_threadpool(lambda: _exemplified(runner, _read_example(picture)))

    @router.delete("/api/streams/{id}/example")
    def forget_example(id: str) -> Status:
        """Remove the query by example."""
        return _exemplified(serving.runner(id), None)

    @router.put("/api/streams/{id}/rules")
    def watch_for(id: str, new: NewRules) -> Status:
        """Set the alert rules from the next frame on."""
        runner = serving.runner(id)
        runner.watch_for(new.rules)
        return runner.status()

    return router


def question_routes(serving: Serving) -> APIRouter:
    router = APIRouter(prefix="/api/streams/{id}", tags=["questions and records"])

    @router.post("/questions", status_code=202)
    def ask(id: str, new: NewQuestion) -> dict[str, Any]:
        """Ask the model: at once, at an interval, or on scene changes. Answers arrive as events."""
        runner = serving.runner(id)
        if serving.streams.parts.make_session is None:
            raise Refused(409, "there is no model to ask", remedy="start the server with --model or --endpoint")
        if not runner.status()["frames"]:
            raise Refused(409, f"{runner.name} has no picture yet", remedy="ask when it shows one")
        runner.question(new.question, new.when, new.every_seconds)
        return runner.status()

    @router.delete("/questions", status_code=204)
    def ask_no_more(id: str) -> Response:
        """Stop repeating a question (`every` or `change`)."""
        serving.runner(id).ask_no_more()
        return Response(status_code=204)

    @router.get("/answers")
    def answers(id: str) -> list[dict[str, Any]]:
        """Return the stored answers, oldest first."""
        return list(serving.runner(id).publisher.answers)

    @router.get("/records")
    def records(id: str, last: int = Query(MOST_RECORDS, ge=1, le=MOST_RECORDS)) -> Response:
        """Return the last frames as JSON lines with a header."""
        runner = serving.runner(id)
        header = _header(runner).model_dump(mode="json")
        lines = map(_line, itertools.chain([header], runner.publisher.records(last)))
        disposition = f'attachment; filename="records-{runner.id}.jsonl"'
        return StreamingResponse(lines, media_type="application/x-ndjson", headers={"content-disposition": disposition})

    return router


def info_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/healthz")
    def health() -> JSONResponse:
        """Report whether all streams' threads run; needs no token."""
        runners = serving.streams.runners
        well = all(runner.alive for runner in runners)
        told = {
            "status": "ok" if well else "degraded",
            "version": arr_stream.__version__,
            "streams": len(runners),
            "live": sum(runner.live for runner in runners),
            "uptime_seconds": round(time.monotonic() - serving.started_seconds, 1),
        }
        return JSONResponse(told, 200 if well else 503)

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Return all metrics, for Prometheus."""
        text, content_type = serving.streams.metrics(len(serving.clients))
        return Response(text, media_type=content_type)

    @router.get("/api/info")
    def info() -> dict[str, Any]:
        """Return this server's version, limits and permissions."""
        allowed = serving.allowed
        return {
            "version": arr_stream.__version__,
            "views": list(VIEWS),
            "channels": _CHANNELS,
            "presets": [{"name": name, "description": text} for name, text in serving.presets.items()],
            "sources": {
                "cameras": allowed.cameras,
                "named": allowed.public_names,
                "patterns": list(allowed.patterns),
                "folders": bool(allowed.folders),
            },
            "model": serving.model,
            "settings": describe(serving.streams.settings),
            "max_streams": serving.streams.most_streams,
        }

    @router.get("/api/cameras")
    def cameras() -> list[dict[str, str]]:
        """List the cameras of the server."""
        if not serving.allowed.cameras:
            raise Refused(403, "the server's cameras are not allowed", remedy="start it with --allow cameras")
        return [{"source": camera.source, "name": camera.name} for camera in list_cameras()]

    return router


def page_routes(app: FastAPI) -> None:
    """Add the routes of the pages that a user opens."""

    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(_STATIC / "index.html", media_type="text/html")

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> FileResponse:
        return FileResponse(_STATIC / "icon.svg", media_type="image/svg+xml")

    app.mount("/static", StaticFiles(directory=_STATIC, follow_symlink=False), name="static")


def _exemplified(runner: StreamRunner, example: ExampleQuery | None) -> Status:
    """Replace the query by example; other queries are kept."""
    runner.ask_for(runner.texts, region_xywh=runner.region_xywh, example=example)
    return runner.status()


def _read_example(picture: bytes) -> ExampleQuery:
    if not picture:
        raise InvalidSetting("the body is empty", remedy="send the bytes of a picture")
    with tempfile.TemporaryDirectory(prefix="arr-stream-") as folder:
        path = Path(folder) / "picture"
        path.write_bytes(picture)
        try:
            return load_example(path, max_pixels=_MOST_EXAMPLE_PIXELS)
        except QueryUnreadable as exc:
            raise QueryUnreadable(exc.message.replace(f"{folder}/", ""), remedy=exc.remedy) from exc


def _header(runner: StreamRunner) -> Header:
    grid = runner.publisher.grid
    if grid is None:
        raise Refused(503, f"{runner.name} has no frame yet", remedy="try again in a moment")
    status, settings = runner.status(), runner.settings
    return Header.for_grid(
        grid,
        source=status["source"],
        query=status["query"] or None,
        budget_tokens=budget_tokens(settings.selection.budget, grid.cells),
        config=public_settings(settings),
    )


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
