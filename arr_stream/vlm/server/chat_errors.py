"""What a server's failures mean, each in one line with its remedy."""

from __future__ import annotations

import email.utils
import math
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

from arr_stream.errors import ServerFailed
from arr_stream.plain_text import plain
from arr_stream.vlm.server.endpoint import Endpoint

MOST_BYTES = 16 * 2**20
"""Longest answer in bytes, with all that the protocol puts around the text."""
_EXCERPT = 160
_TRY_AGAIN = "try again, or raise vlm.timeout_seconds or vlm.retries"
_NOT_THIS = "is it an OpenAI-compatible server, and does its address end in /v1?"


class Trouble(Exception):
    """A failure, and whether it may pass.

    Args:
        failure: For the user.
        passing: Another attempt may succeed.
        retry_after_seconds: How long the server asks to wait.
        refused: Fields of the request that the server does not take.
    """

    def __init__(
        self,
        failure: ServerFailed,
        *,
        passing: bool = False,
        retry_after_seconds: float | None = None,
        refused: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.passing = passing
        self.retry_after_seconds = retry_after_seconds
        self.refused = refused


def explained(error: Exception, endpoint: Endpoint, model: str, timeout_seconds: float) -> Trouble:
    """What an exception of the client means."""
    import httpx2
    import openai

    for cause in _chain(error):
        if isinstance(cause, Trouble):
            return cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _trouble(
                endpoint,
                f"its certificate is not trusted: {cause.verify_message}",
                "name its authority in SSL_CERT_FILE",
            )
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, endpoint, model, timeout_seconds)
    if isinstance(error, openai.APITimeoutError):
        return _trouble(endpoint, f"no sign for {timeout_seconds:g} s", _TRY_AGAIN, passing=True)
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        reason = _said(str(list(_chain(error))[-1]), endpoint) or "connection lost"
        return _trouble(
            endpoint, f"no connection: {reason}", "is the server running, and the address right?", passing=True
        )
    if isinstance(error, openai.APIError):
        body = error.body
        said = body.get("message") if isinstance(body, Mapping) else body
        said = said if isinstance(said, str) else error.message
        return _trouble(endpoint, f"the server reports: {_said(said, endpoint)}", "see the server's log")
    what = f"{type(error).__name__}: {_said(str(error), endpoint)}"
    return _trouble(endpoint, f"answers nonsense ({what})", _NOT_THIS)


def not_a_stream(endpoint: Endpoint, kind: str, body: bytes) -> Trouble:
    """The answer is a page or an object where a stream of events was asked for."""
    kind = _said(kind, endpoint) or "something without a type"
    said = _said(body[:4096].decode("utf-8", "replace"), endpoint)
    return _trouble(endpoint, f"answers {kind} instead of a stream: {said}", _NOT_THIS)


def cut_off(endpoint: Endpoint, choices: int) -> Trouble:
    """The stream ended before the answer did."""
    if choices:
        return _trouble(endpoint, "the answer was cut off", _TRY_AGAIN, passing=True)
    return _trouble(endpoint, "the answer holds no choices", _NOT_THIS)


def empty(endpoint: Endpoint, thought: bool, finish: str) -> Trouble:
    """The answer ended before it began, or was taken away."""
    if finish == "content_filter":
        return _trouble(endpoint, "its filter withheld the answer", "ask otherwise, or another server")
    if thought and finish == "length":
        return _trouble(endpoint, "the model thought until the limit and said nothing", "raise vlm.answer_tokens")
    return _trouble(endpoint, f"the answer is empty (finish reason {finish[:20]!r})", "does the model take pictures?")


def too_slow(endpoint: Endpoint, seconds: float) -> Trouble:
    """All attempts together took too long."""
    return _trouble(endpoint, f"the answer was not whole after {seconds:g} s", _TRY_AGAIN)


def too_long(endpoint: Endpoint) -> Trouble:
    """More bytes than any answer needs."""
    return _trouble(endpoint, f"sends more than {MOST_BYTES >> 20} MiB for one answer", "use another server")


def compressed(endpoint: Endpoint) -> Trouble:
    """A body that could unpack to any length."""
    return _trouble(endpoint, "answers compressed, though that was refused", "switch compression off there")


def _of_status(error: Any, endpoint: Endpoint, model: str, timeout_seconds: float) -> Trouble:
    status: int = error.status_code
    headers = error.response.headers
    said = _said(_message(error.body) or error.response.reason_phrase, endpoint)
    if 300 <= status < 400:
        target = _said(headers.get("location", "nowhere"), endpoint)
        return _trouble(endpoint, f"redirects to {target}", "give that address as vlm.endpoint if you trust it")
    if status in (401, 403):
        # What the server says is left out: it may repeat the key in part.
        had = f"refuses the key of {endpoint.key_variable}" if endpoint.key else "wants a key"
        return _trouble(endpoint, f"{had} ({status})", f"set {endpoint.key_variable}, or vlm.key_variable to another")
    if status == 404:
        remedy = f"does {endpoint.shown}/models list it, and does the address end in /v1?"
        return _trouble(endpoint, f"knows no model {model!r} (404): {said}", remedy)
    if status == 413:
        return _trouble(endpoint, f"the request is too large for it (413): {said}", "lower vlm.context_tokens")
    if status in (408, 429) or status >= 500:
        return _of_busy(status, said, _retry_after_seconds(headers), endpoint, timeout_seconds)
    remedy = "see the server's log; does the model take pictures, and so many tokens?"
    return _trouble(endpoint, f"refuses the request ({status}): {said}", remedy, refused=_refused(status, said))


def _of_busy(status: int, said: str, wait: float | None, endpoint: Endpoint, timeout_seconds: float) -> Trouble:
    what = {408: "was too slow", 429: "is busy"}.get(status, "failed")
    if wait is not None and wait > timeout_seconds:
        return _trouble(endpoint, f"{what} ({status}) and asks to wait {wait:.0f} s", "ask again then")
    return _trouble(endpoint, f"{what} ({status}): {said}", _TRY_AGAIN, passing=True, wait=wait)


def _refused(status: int, said: str) -> frozenset[str]:
    """Fields that not every server takes, as far as the server names them."""
    if status not in (400, 422):
        return frozenset()
    if "max_completion_tokens" in said:
        return frozenset({"max_tokens"})
    return frozenset({"stream_options"} if "stream_options" in said else ())


def _trouble(
    endpoint: Endpoint,
    what: str,
    remedy: str,
    *,
    passing: bool = False,
    wait: float | None = None,
    refused: frozenset[str] = frozenset(),
) -> Trouble:
    failure = ServerFailed(f"{endpoint.shown}: {what}", remedy=remedy)
    return Trouble(failure, passing=passing, retry_after_seconds=wait, refused=refused)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        yield at
        at = at.__cause__ or at.__context__


def _message(body: object) -> str:
    """The message in an error's body, which servers shape in many ways."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), str(body))
    return body if isinstance(body, str) else str(body or "")


def _said(text: str, endpoint: Endpoint) -> str:
    """What a stranger said, in one short line without secrets."""
    line = re.sub(r"\s+", " ", endpoint.scrubbed(plain(text))).strip()
    return line if len(line) <= _EXCERPT else line[:_EXCERPT] + "…"


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or a date; None where it says nothing sensible."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
