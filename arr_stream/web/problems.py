"""Errors as answers: `{"error": "one line", "remedy": "..." | null}` and a status that fits."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.plain_text import redact_url
from arr_stream.web.clients import TooManyClients
from arr_stream.web.serving import Forbidden, NoSuchThing, NotNow, NotYet
from arr_stream.web.source_policy import SourceNotAllowed

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
    """An error as an answer, without the secrets that addresses in it may hold."""
    told = {"error": redact_url(" ".join(error.split())), "remedy": None if remedy is None else redact_url(remedy)}
    return JSONResponse(told, status)


def of_error(error: ArrStreamError) -> JSONResponse:
    """An error of our own as an answer."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return problem(status, error.message, error.remedy)


def add_handlers(app: FastAPI) -> None:
    """Let an app answer errors like this."""
    app.add_exception_handler(ArrStreamError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _other)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ArrStreamError)
    return of_error(error)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part)[:40] for part in first["loc"] if part != "body") or "the body"
    return problem(422, f"{place}: {str(first['msg'])[:300].lower()}", "GET /docs says what is expected")


async def _other(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    answer = problem(error.status_code, str(error.detail).lower())
    answer.headers.update(error.headers or {})
    return answer


async def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    return problem(500, "the server has failed at this; its terminal says more")
