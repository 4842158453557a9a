"""Questions to the model, and its answers."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import APIRouter, Query, Response

from arr_stream.live.runner import StreamRunner
from arr_stream.web.bodies import NewQuestion
from arr_stream.web.serving import NotNow, Serving

_MEDIA = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "markdown": "text/markdown; charset=utf-8",
}
_ENDINGS = {"jsonl": "jsonl", "markdown": "md"}


def question_routes(serving: Serving) -> APIRouter:
    router = APIRouter(prefix="/api/streams/{id}", tags=["questions"])

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
