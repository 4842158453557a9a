"""Questions to the model, and what is kept of a stream to take away: its answers and the records of its frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field, StringConstraints

from arr_stream.config import public_settings
from arr_stream.live.publishing import MOST_RECORDS
from arr_stream.live.runner import StreamRunner
from arr_stream.records.schema import Header
from arr_stream.selection.budget import fitted_tokens
from arr_stream.web.problems import NotNow, NotYet
from arr_stream.web.serving import Serving
from arr_stream.web.streams import Body

_MEDIA = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "markdown": "text/markdown; charset=utf-8",
}
_ENDINGS = {"jsonl": "jsonl", "markdown": "md"}


class NewQuestion(Body):
    """A question to the model."""

    question: Annotated[str, StringConstraints(strip_whitespace=True), Field(min_length=1, max_length=2000)]
    when: Literal["now", "every", "change"] = "now"
    every_seconds: Annotated[float, Field(gt=0, le=86_400)] = 5.0


def question_routes(serving: Serving) -> APIRouter:
    router = APIRouter(prefix="/api/streams/{id}", tags=["questions and records"])

    @router.post("/questions", status_code=202)
    def ask(id: str, new: NewQuestion) -> dict[str, Any]:
        """Ask the model: at once, every so often, or when the scene changes. Answers come as events."""
        runner = serving.runner(id)
        if serving.streams.parts.make_viewer is None:
            raise NotNow("there is no model to ask", remedy="start the server with --model or --endpoint")
        if not runner.status()["frames"]:
            raise NotNow(f"{runner.name} has shown nothing yet", remedy="ask when there is a picture")
        runner.question(new.question, new.when, new.every_seconds)
        return runner.status()

    @router.delete("/questions", status_code=204)
    def ask_no_more(id: str) -> Response:
        """End what `every` or `change` began."""
        serving.runner(id).ask_no_more()
        return Response(status_code=204)

    @router.get("/answers")
    def answers(
        id: str,
        search: str = Query("", max_length=500, description="words that the question or the answer holds"),
        format: Literal["json", "jsonl", "markdown"] = "json",
    ) -> Response:
        """The answers that are kept, oldest first."""
        runner = serving.runner(id)
        found = [answer for answer in tuple(runner.publisher.answers) if _holds(answer, search)]
        headers = {}
        if format in _ENDINGS:
            headers["content-disposition"] = f'attachment; filename="answers-{runner.id}.{_ENDINGS[format]}"'
        return Response(_written(runner, found, format), media_type=_MEDIA[format], headers=headers)

    @router.get("/records")
    def records(id: str, last: int = Query(MOST_RECORDS, ge=1, le=MOST_RECORDS)) -> Response:
        """The last frames as JSON lines, with a header, and the answers that came on them."""
        runner = serving.runner(id)
        header = _header(runner)
        kept = list(runner.publisher.records)[-last:]
        lines = _lines(header, kept, list(runner.publisher.answers))
        disposition = f'attachment; filename="records-{runner.id}.jsonl"'
        return StreamingResponse(lines, media_type="application/x-ndjson", headers={"content-disposition": disposition})

    return router


def _holds(answer: dict[str, Any], search: str) -> bool:
    text = f"{answer['question']}\n{answer['text']}".casefold()
    return all(word in text for word in search.casefold().split())


def _written(runner: StreamRunner, answers: list[dict[str, Any]], format: str) -> str:
    if format == "json":
        return json.dumps(answers, ensure_ascii=False)
    if format == "jsonl":
        return "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    said = [f"# {runner.name}\n"]
    for answer in answers:
        text = answer["text"].strip() or f"({answer['error'] or answer['finish']})"
        said.append(f"## {answer['pts_seconds']:.1f} s: {answer['question']}\n\n{text}\n")
    return "\n".join(said)


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
