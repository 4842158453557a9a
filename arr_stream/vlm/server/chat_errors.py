"""Server failures as errors of one line, each with its remedy."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from arr_stream.errors import ServerFailed
from arr_stream.plain_text import plain
from arr_stream.vlm.server.endpoint import Endpoint

TRY_AGAIN = "try again, or raise vlm.timeout_seconds"
_NOT_THIS = "is it an OpenAI-compatible server, and does its address end in /v1?"
_EXCERPT = 160


def failed(endpoint: Endpoint, what: str, remedy: str) -> ServerFailed:
    """Return the error for a request to this server."""
    return ServerFailed(f"{endpoint.shown}: {what}", remedy=remedy)


def explained(error: Exception, endpoint: Endpoint, model: str, timeout_seconds: float) -> ServerFailed:
    """Translate an exception of the client."""
    import httpx2
    import openai

    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, ServerFailed):
            return cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            what = f"its certificate is not trusted: {cause.verify_message}"
            return failed(endpoint, what, "name its authority in SSL_CERT_FILE")
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, endpoint, model)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return failed(endpoint, f"no sign for {timeout_seconds:g} s", TRY_AGAIN)
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        reason = _excerpt(str(causes[-1]), endpoint) or "connection lost"
        return failed(endpoint, f"no connection: {reason}", "is the server running, and the address right?")
    if isinstance(error, openai.APIError):
        said = _excerpt(_message(error.body) or error.message, endpoint)
        return failed(endpoint, f"the server reports: {said}", "see the server's log")
    what = f"{type(error).__name__}: {_excerpt(str(error), endpoint)}"
    return failed(endpoint, f"sent an invalid answer ({what})", _NOT_THIS)


def refused_fields(error: Exception) -> frozenset[str]:
    """Return the optional request fields that the server names in its refusal."""
    if getattr(error, "status_code", None) not in (400, 422):
        return frozenset()
    said = _message(getattr(error, "body", None))
    if "max_completion_tokens" in said:
        return frozenset({"max_tokens"})
    return frozenset({"stream_options"} if "stream_options" in said else ())


def not_a_stream(endpoint: Endpoint, kind: str, body: bytes) -> ServerFailed:
    """Return the error for a response that is a page or an object instead of an event stream."""
    kind = _excerpt(kind, endpoint) or "something without a type"
    said = _excerpt(body[:4096].decode("utf-8", "replace"), endpoint)
    return failed(endpoint, f"answers {kind} instead of a stream: {said}", _NOT_THIS)


def cut_off(endpoint: Endpoint, choices: int) -> ServerFailed:
    """Return the error for a stream that ended before the answer did."""
    if choices:
        return failed(endpoint, "the answer was cut off", TRY_AGAIN)
    return failed(endpoint, "the answer holds no choices", _NOT_THIS)


def empty(endpoint: Endpoint, thought: bool, finish: str) -> ServerFailed:
    """Return the error for an answer that is empty or withheld."""
    if finish == "content_filter":
        return failed(endpoint, "its filter withheld the answer", "ask otherwise, or another server")
    if thought and finish == "length":
        return failed(endpoint, "the model thought until the limit and said nothing", "raise vlm.answer_tokens")
    return failed(endpoint, f"the answer is empty (finish reason {finish[:20]!r})", "does the model take pictures?")


def _of_status(error: Any, endpoint: Endpoint, model: str) -> ServerFailed:
    status: int = error.status_code
    headers: Mapping[str, str] = error.response.headers
    said = _excerpt(_message(error.body) or error.response.reason_phrase, endpoint)
    if 300 <= status < 400:
        what = f"redirects to {_excerpt(headers.get('location', 'nowhere'), endpoint)}"
        remedy = "give that address as vlm.endpoint if you trust it"
    elif status in (401, 403):
        # Leave out the server's text: it may repeat part of the key.
        what = f"{f'refuses the key of {endpoint.key_variable}' if endpoint.key else 'wants a key'} ({status})"
        remedy = f"set {endpoint.key_variable}, or vlm.key_variable to another"
    elif status == 404:
        what = f"knows no model {model!r} (404): {said}"
        remedy = f"does {endpoint.shown}/models list it, and does the address end in /v1?"
    elif status == 413:
        what, remedy = f"the request is too large for it (413): {said}", "lower vlm.context_tokens"
    elif status in (408, 429) or status >= 500:
        problem = {408: "was too slow", 429: "is busy"}.get(status, "failed")
        wait = _excerpt(headers.get("retry-after", ""), endpoint)
        asks = f", and asks to wait {f'{wait} s' if wait.isdigit() else f'until {wait}'}" if wait else ""
        what = f"{problem} ({status}): {said}{asks}"
        remedy = TRY_AGAIN
    else:
        what = f"refuses the request ({status}): {said}"
        remedy = "see the server's log; does the model take pictures, and so many tokens?"
    return failed(endpoint, what, remedy)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        yield at
        at = at.__cause__ or at.__context__


def _message(body: object) -> str:
    """Return the message in an error's body, which servers shape in many ways."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), str(body))
    return body if isinstance(body, str) else str(body or "")


def _excerpt(text: str, endpoint: Endpoint) -> str:
    """Return untrusted text as one short line without secrets."""
    line = re.sub(r"\s+", " ", endpoint.scrubbed(plain(text))).strip()
    return line if len(line) <= _EXCERPT else line[:_EXCERPT] + "…"
