"""Errors as responses: `{"error": "one line", "remedy": "..." | null}` with a matching status."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.live.registry import TooManyStreams
from arr_stream.plain_text import one_line


class Refused(ArrStreamError):
    """Request that is refused with an HTTP status: 403 not allowed, 404 unknown, 409 not now, 503 not yet or busy."""

    def __init__(self, status: int, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


def problem(status: int, error: str, remedy: str | None = None) -> JSONResponse:
    """Return an error response, without the secrets of addresses in it."""
    told = {"error": one_line(error), "remedy": one_line(remedy)}
    return JSONResponse(told, status)


def add_handlers(app: FastAPI) -> None:
    """Add these handlers to an app."""

    @app.exception_handler(ArrStreamError)
    async def ours(_request: Request, error: ArrStreamError) -> JSONResponse:
        status = 503 if isinstance(error, BackendUnavailable) else 409 if isinstance(error, TooManyStreams) else 400
        return problem(error.status if isinstance(error, Refused) else status, error.message, error.remedy)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part)[:40] for part in first["loc"] if part != "body") or "the body"
        return problem(422, f"{place}: {str(first['msg'])[:300].lower()}", "GET /openapi.json has the schemas")

    @app.exception_handler(HTTPException)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        answer = problem(error.status_code, str(error.detail).lower())
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> JSONResponse:
        # Without details for the client.
        return problem(500, "the server has failed at this; its terminal says more")
