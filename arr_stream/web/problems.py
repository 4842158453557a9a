"""Errors as responses: `{"error": "one line", "remedy": "..." | null}` with a matching status."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.plain_text import one_line
from arr_stream.web.access import SourceNotAllowed


class NoSuchThing(ArrStreamError):
    """Error for a resource that does not exist."""


class NotNow(ArrStreamError):
    """Error for a valid request that the present state does not allow."""


class NotYet(NotNow):
    """Error for a stream without a picture so far."""


class Forbidden(ArrStreamError):
    """Error for a request that the command line does not allow."""


class TooManyClients(ArrStreamError):
    """Error for a client beyond the limit."""


_STATUS: tuple[tuple[type[ArrStreamError], int], ...] = (
    (NoSuchThing, 404),
    (NotYet, 503),
    (TooManyClients, 503),
    (NotNow, 409),
    (Forbidden, 403),
    (SourceNotAllowed, 403),
    (BackendUnavailable, 503),
    (ArrStreamError, 400),
)


def problem(status: int, error: str, remedy: str | None = None) -> JSONResponse:
    """Return an error response, without the secrets of addresses in it."""
    told = {"error": one_line(error), "remedy": one_line(remedy)}
    return JSONResponse(told, status)


def add_handlers(app: FastAPI) -> None:
    """Add these handlers to an app."""

    @app.exception_handler(ArrStreamError)
    async def ours(_request: Request, error: ArrStreamError) -> JSONResponse:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        return problem(status, error.message, error.remedy)

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
