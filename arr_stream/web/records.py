"""What is kept of a stream's frames: records, the newest picture, and a stream of pictures for plain clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from arr_stream.config import public_settings
from arr_stream.live.publishing import MOST_RECORDS
from arr_stream.live.runner import StreamRunner
from arr_stream.records.schema import Header
from arr_stream.selection.budget import fitted_tokens
from arr_stream.web.mjpeg import Mjpeg
from arr_stream.web.serving import NotYet, Serving

_View = Query("patches", max_length=80, description="a view, or `channel:NAME`")


def record_routes(serving: Serving) -> APIRouter:
    router = APIRouter(prefix="/api/streams/{id}", tags=["records and pictures"])

    @router.get("/records")
    def records(id: str, last: int = Query(MOST_RECORDS, ge=1, le=MOST_RECORDS)) -> Response:
        """The last frames as JSON lines, with a header, and the answers that came on them."""
        runner = serving.runner(id)
        header = _header(runner)
        kept = list(runner.publisher.records)[-last:]
        lines = _lines(header, kept, list(runner.publisher.answers))
        disposition = f'attachment; filename="records-{runner.id}.jsonl"'
        return StreamingResponse(lines, media_type="application/x-ndjson", headers={"content-disposition": disposition})

    @router.get("/snapshot.jpg", response_class=Response)
    async def snapshot(id: str, view: str = _View) -> Response:
        """The newest picture."""
        runner = serving.runner(id)
        # So many at a time: whoever asks for more must not take the processor from the streams.
        async with serving.drawing:
            jpeg = await run_in_threadpool(runner.room.snapshot, view)
        if jpeg is None:
            raise NotYet(f"{runner.name} has no picture yet", remedy="try again in a moment")
        return Response(jpeg, media_type="image/jpeg")

    @router.get("/video.mjpeg", response_class=Response)
    async def mjpeg(id: str, view: str = _View) -> Response:
        """Pictures one after the other, the newest each time (`multipart/x-mixed-replace`)."""
        return Mjpeg(serving, serving.runner(id), view)

    return router


def _header(runner: StreamRunner) -> Header:
    grid = runner.publisher.grid
    if grid is None:
        raise NotYet(f"{runner.name} has no frame yet", remedy="try again in a moment")
    status, settings = runner.status(), runner.settings
    return Header.for_grid(
        grid,
        source=status["source"],
        query=status["query"] or None,
        budget_tokens=fitted_tokens(settings.selection.budget, grid.cells),
        config=public_settings(settings),
    )


def _lines(header: Header, frames: list[dict[str, Any]], answers: list[dict[str, Any]]) -> Iterator[str]:
    """Each answer after the newest frame that the model had seen."""
    yield _line(header.model_dump(mode="json"))
    first = frames[0]["index"] if frames else 0
    waiting = [answer for answer in answers if answer["frame_index"] >= first]
    for frame in frames:
        yield _line(frame)
        while waiting and waiting[0]["frame_index"] <= frame["index"]:
            yield _line(waiting.pop(0))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
