"""`/api/streams`: adding, changing and removing streams, and what they are asked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from arr_stream.errors import ExampleUnreadable, InvalidSetting
from arr_stream.live.runner import StreamRunner
from arr_stream.relevance.query import ExampleQuery, load_example
from arr_stream.web.bodies import Looks, NewQuery, NewStream, StreamChange
from arr_stream.web.editable_settings import checked_changes
from arr_stream.web.serving import NotNow, Serving

_MOST_EXAMPLE_PIXELS = 25_000_000
_EXAMPLE_NAME = "picture"
_PICTURE = {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}

Status = dict[str, Any]


def stream_routes(serving: Serving) -> APIRouter:
    """Endpoints that wait for other threads are plain functions, so that they run beside the event loop."""
    router = APIRouter(prefix="/api/streams", tags=["streams"])

    @router.get("")
    def list_streams() -> list[Status]:
        """All streams, in the order in which they were added."""
        return serving.streams.statuses()

    @router.post("", status_code=201)
    def add_stream(new: NewStream) -> Status:
        """Add a stream; its source is opened in the background."""
        source = serving.allowed.resolve(new.source)
        check_room(serving)
        changes = checked_changes(new.settings, running=False)
        return serving.streams.add(source, name=new.name, query=new.query, preset=new.preset, settings=changes).status()

    @router.get("/{id}")
    def get_stream(id: str) -> Status:
        """How a stream is doing."""
        return serving.runner(id).status()

    @router.delete("/{id}", status_code=204)
    def remove_stream(id: str) -> Response:
        """End a stream and forget it."""
        serving.runner(id)
        serving.streams.remove(id)
        return Response(status_code=204)

    @router.patch("/{id}")
    def change_stream(id: str, change: StreamChange) -> Status:
        """Pause or go on, rename, take a preset or other settings; at once. Of two errors, neither changes anything."""
        runner = serving.runner(id)
        _configure(serving, runner, change)
        if change.name is not None:
            runner.rename(change.name)
        if change.paused is not None:
            runner.paused = change.paused
        return runner.status()

    @router.post("/{id}/retry")
    def retry(id: str) -> Status:
        """Open the source again now, where it has failed or ended."""
        runner = serving.runner(id)
        runner.retry()
        return runner.status()

    @router.put("/{id}/query")
    def look_for(id: str, new: NewQuery) -> Status:
        """What to look for from the next frame on; an example picture stays."""
        runner = serving.runner(id)
        region = new.region.xywh if new.region is not None else None
        if "region" not in new.model_fields_set:
            region = runner.region_xywh
        runner.ask_for(new.texts, region_xywh=region, example=runner.example)
        return runner.status()

    @router.put("/{id}/example", openapi_extra={"requestBody": _PICTURE})
    async def look_for_example(id: str, request: Request) -> Status:
        """Look for what is like a picture, too. The body is the picture, at most 10 MB."""
        runner = serving.runner(id)
        picture = await request.body()
        return await run_in_threadpool(lambda: _exemplified(runner, _read_example(picture)))

    @router.delete("/{id}/example")
    def forget_example(id: str) -> Status:
        """Look for the example no more."""
        return _exemplified(serving.runner(id), None)

    @router.post("/{id}/gaze", status_code=204)
    def look_at(id: str, looks: Looks) -> Response:
        """Tell where someone looks."""
        runner = serving.runner(id)
        for x, y in looks.points:
            runner.look(x, y)
        return Response(status_code=204)

    return router


def check_room(serving: Serving) -> None:
    """Raises:
    NotNow: There are as many streams as there may be.
    """
    count, most = len(serving.streams.runners), serving.streams.most_streams
    if count >= most:
        raise NotNow(f"{count} streams run already", remedy=f"remove one; {most} is the limit")


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
