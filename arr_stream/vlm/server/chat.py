"""A model's server that speaks the OpenAI protocol: its address and secrets, and requests through openai's client.

The server is not trusted. Its answer is limited in characters, bytes and time, and stripped of control characters.
Redirects are not followed. Error texts of the server are shortened, and the key is masked in them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import os
import queue
import re
import ssl
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from arr_stream.errors import BackendUnavailable, InvalidSetting, ServerFailed
from arr_stream.extras import remedy_for
from arr_stream.patch_set import Answer
from arr_stream.plain_text import AnswerText, one_line, plain, redact_url
from arr_stream.vlm import OnText, Stop

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")
Message = dict[str, Any]
Finish = Literal["stop", "length", "cancelled", "failed"]

RETRIES = 2
"""Further attempts if the server cannot be reached, is busy or has an internal error. openai's client makes them; it
waits as long as the server asks for, or twice as long each time.
"""
MOST_BYTES = 16 * 2**20
"""Longest answer in bytes, protocol overhead included."""
_POLL_SECONDS = 0.05
"""Interval at which the caller checks for cancellation."""
_PAUSE_SECONDS = 16.0
"""Time that a question gets for each wait between two attempts, in addition to the timeouts of the attempts."""
_METRICS_SECONDS = 2.0
_COUNTS_SECONDS = 2.0
_TRY_AGAIN = "try again, or raise vlm.timeout_seconds"
_NOT_THIS = "is it an OpenAI-compatible server, and does its address end in /v1?"
_EXCERPT = 160


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address without its secrets; the secrets are separate fields that no representation shows.

    Args:
        url: http or https, without user and password.
        shown: The URL for display: secret parameters are masked.
        headers: Credentials besides the key, such as a password in the address.
        loopback: The server is on this machine.
    """

    url: str
    shown: str
    key_variable: str
    loopback: bool
    key: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, address: str, key_variable: str) -> Endpoint:
        """Check an address and read the key from the environment.

        Raises:
            InvalidSetting: Not an http or https address, or a key that no header can hold.
        """
        shown = re.sub(r"^[^/]*@", "***@", one_line(address))
        try:
            parts = urllib.parse.urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise _not_an_address(shown, str(exc)) from None
        if parts.scheme not in ("http", "https") or not host:
            raise _not_an_address(shown, "not an http or https address")
        if any(character.isspace() or not character.isprintable() for character in address):
            raise _not_an_address(shown, "it holds spaces or control characters")
        bare = f"[{host}]" if ":" in host else host
        place = bare if port is None else f"{bare}:{port}"
        url = urllib.parse.urlunsplit((parts.scheme, place, parts.path.rstrip("/"), parts.query, ""))
        key = _key(key_variable)
        headers, secrets = _basic(parts.username, parts.password)
        values = [value for _, value in urllib.parse.parse_qsl(parts.query)] if "***" in shown else []
        return cls(
            url,
            redact_url(url),
            key_variable,
            _is_loopback(host),
            key,
            headers,
            tuple(secret for secret in (key, *secrets, *values) if len(secret) > 3),
        )

    def failed(self, what: str, remedy: str) -> ServerFailed:
        """Return the error for a request to this server."""
        return ServerFailed(f"{self.shown}: {what}", remedy=remedy)

    def scrubbed(self, text: str) -> str:
        """Return a text with the secrets masked."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return redact_url(text)


@dataclass(slots=True)
class _Progress:
    """Progress of an answer; written by the connection's thread. The server counts the tokens, 0 where it does not."""

    asked: Answer
    emit: Callable[[str], None]
    most_characters: int
    began: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0
    characters: int = 0
    finish: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    cleaner: AnswerText = field(default_factory=AnswerText)

    @property
    def is_whole(self) -> bool:
        return self.finish is not None and self.characters > 0

    def add_chunk(self, chunk: Any) -> None:
        """Add one chunk of the stream; unknown shapes are ignored."""
        usage = getattr(chunk, "usage", None)
        self.prompt_tokens = _count(getattr(usage, "prompt_tokens", None), self.prompt_tokens)
        self.answer_tokens = _count(getattr(usage, "completion_tokens", None), self.answer_tokens)
        details = getattr(usage, "prompt_tokens_details", None)
        self.cached_tokens = _count(getattr(details, "cached_tokens", None), self.cached_tokens)
        choices = getattr(chunk, "choices", None)
        if not isinstance(choices, list) or not choices:
            return
        content = getattr(getattr(choices[0], "delta", None), "content", None)
        if isinstance(content, str) and content:
            self.last = time.perf_counter()
            self.first = self.first or self.last
            self.add(self.cleaner.feed(content))
        finish = getattr(choices[0], "finish_reason", None)
        if isinstance(finish, str):
            self.finish = finish

    def add(self, text: str) -> None:
        text = text[: self.most_characters - self.characters]
        self.characters += len(text)
        if text:
            self.emit(text)

    def answer(self, text: str, finish: Finish, error: str | None = None) -> Answer:
        """Return the answer; its prefill runs from sending to the first piece, earlier attempts included."""
        first = self.last if self.first is None else self.first
        return replace(
            self.asked,
            text=text,
            finish=finish,
            error=error,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            answer_tokens=self.answer_tokens,
            prefill_ms=0.0 if self.first is None else (first - self.began) * 1e3,
            decode_ms=(self.last - first) * 1e3,
        )


class ChatServer:
    """Client of a server's chat completions; several threads may ask at once.

    Args:
        timeout_seconds: Longest wait for a connection and for each further chunk. A question takes at most this long
            for each attempt and 16 s for each wait between them, all together.

    Raises:
        BackendUnavailable: `openai` is not installed.
    """

    def __init__(self, endpoint: Endpoint, model: str, *, timeout_seconds: float) -> None:
        self.endpoint = endpoint
        self.model = model
        self._timeout_seconds = timeout_seconds
        self._most_seconds = timeout_seconds * (1 + RETRIES) + _PAUSE_SECONDS * RETRIES
        self._under_way: set[Future[Any]] = set()
        self._metrics_text = ""
        try:
            from anyio.from_thread import start_blocking_portal

            self._client = _client(endpoint, timeout_seconds)
        except ImportError as exc:
            raise BackendUnavailable(
                "a server is asked by way of openai, which is not installed or too old", remedy=remedy_for("vlm")
            ) from exc
        self._thread = contextlib.ExitStack()
        # The thread is a daemon, so that an unclosed connection does not keep the process alive.
        self._portal = self._thread.enter_context(start_blocking_portal())

    def ask(
        self,
        messages: Sequence[Message],
        *,
        asked: Answer,
        answer_tokens: int,
        on_text: OnText | None = None,
        stop: Stop | None = None,
    ) -> Answer:
        """Send messages and wait for an answer of at most `answer_tokens`; return it with the other fields of `asked`.

        Pass each piece to `on_text` in the calling thread; close the connection when `stop` is set.

        Raises:
            ServerFailed: No usable answer came. An answer that broke off after some text is returned as `failed`.
        """
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # A server that keeps to the limit never sends this much; the client cuts others off.
        progress = _Progress(asked, pieces.put, most_characters=32 * answer_tokens + 1024)
        request = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": answer_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        future = self._start(self._exchange, request, progress)
        self._under_way.add(future)
        future.add_done_callback(lambda _: pieces.put(None))
        text: list[str] = []
        try:
            while stop is None or not stop.is_set():
                with contextlib.suppress(queue.Empty):
                    piece = pieces.get(timeout=_POLL_SECONDS)
                    if piece is None:
                        return self._answer("".join(text), progress, future)
                    text.append(piece)
                    if on_text is not None:
                        on_text(piece)
        finally:
            future.cancel()
            self._under_way.discard(future)
        return progress.answer("".join(text), "cancelled")

    @property
    def keeps_states(self) -> bool:
        """True for vLLM with a model whose recurrent states are cached at the end of a request, by its metrics."""
        if not self._metrics_text:
            future = self._start(self._metrics)
            done, _ = wait([future], 2 * _METRICS_SECONDS)
            self._metrics_text = future.result() if done and not future.cancelled() else ""
            future.cancel()
        return 'mamba_cache_mode="align"' in self._metrics_text

    def prefill(
        self, messages: Sequence[Message], *, stop: Stop | None = None, timeout_seconds: float | None = None
    ) -> int:
        """Let the server compute messages without an answer, so that a later question finds them in its cache.

        Args:
            timeout_seconds: Longest wait, in one attempt; None for those of `ask`.

        Returns:
            The server's token count; 0 if it does not report one, refuses the messages, or `stop` was set.

        Raises:
            ServerFailed: It cannot be reached or fails.
        """
        future = self._start(self._prefill, list(messages), timeout_seconds)
        self._under_way.add(future)
        try:
            while not wait([future], _POLL_SECONDS).done:
                if stop is not None and stop.is_set():
                    return 0
            return future.result()
        except CancelledError:
            raise self.endpoint.failed("closed while it was asked", "ask before closing") from None
        finally:
            future.cancel()
            self._under_way.discard(future)

    def close(self) -> None:
        """Cancel pending questions and close all connections; safe to call again."""
        for future in tuple(self._under_way):
            future.cancel()
        with contextlib.suppress(RuntimeError):  # already closed
            self._portal.call(self._client.close)
            self._portal.call(self._portal.stop, True)
        self._thread.close()

    def _start(self, work: Callable[..., Awaitable[T]], *arguments: object) -> Future[T]:
        try:
            return self._portal.start_task_soon(work, *arguments)
        except RuntimeError:
            raise self.endpoint.failed("the connection was closed", "make a new one") from None

    async def _metrics(self) -> str:
        """Return the server's metrics, empty if it shows none."""
        import openai

        parts = urllib.parse.urlsplit(self.endpoint.url)
        address = parts._replace(path=f"{parts.path.removesuffix('/v1')}/metrics", query="").geturl()
        with contextlib.suppress(openai.OpenAIError, ServerFailed):
            client = self._client.with_options(max_retries=0, timeout=_METRICS_SECONDS)
            return await client.get(address, cast_to=str)
        return ""

    async def _prefill(self, messages: list[Message], timeout_seconds: float | None) -> int:
        client = self._client
        if timeout_seconds is not None:
            client = client.with_options(max_retries=0, timeout=timeout_seconds)
        options: Any = {"max_tokens": 1, "extra_body": {"add_generation_prompt": False}}
        try:
            # httpx limits each wait alone, not a response that trickles.
            async with asyncio.timeout(timeout_seconds or self._most_seconds):
                whole: Any = await client.chat.completions.create(model=self.model, messages=messages, **options)  # type: ignore[arg-type]
        except TimeoutError:
            raise self.endpoint.failed("its response does not end", _TRY_AGAIN) from None
        except Exception as exc:
            if getattr(exc, "status_code", None) in (400, 415, 422):
                return 0
            raise _explained(exc, self.endpoint, self.model, timeout_seconds or self._timeout_seconds) from None
        return _count(getattr(getattr(whole, "usage", None), "prompt_tokens", None), 0)

    def _answer(self, text: str, progress: _Progress, future: Future[None]) -> Answer:
        if future.cancelled():
            raise self.endpoint.failed("closed while it was asked", "ask before closing")
        error = future.exception()
        if error is None:
            return progress.answer(text, "length" if progress.finish == "length" else "stop")
        if not isinstance(error, ServerFailed) or not text:
            raise error
        return progress.answer(text, "failed", str(error))

    async def _exchange(self, request: Message, progress: _Progress) -> None:
        try:
            async with asyncio.timeout(self._most_seconds):
                return await self._stream(request, progress)
        except TimeoutError:
            what = f"the answer was not whole after {self._most_seconds:g} s"
            failure = self.endpoint.failed(what, _TRY_AGAIN)
        except Exception as exc:
            failure = _explained(exc, self.endpoint, self.model, self._timeout_seconds)
        if not progress.is_whole:
            # Drop the cause: the server's text may hold the key, and tracebacks show it.
            raise failure

    async def _stream(self, request: Message, progress: _Progress) -> None:
        created: Any = await self._client.chat.completions.create(**request)
        async with created as stream:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    async for chunk in stream:
                        progress.add_chunk(chunk)
                        if progress.characters >= progress.most_characters:
                            progress.finish = "length"
                            return
                        if progress.finish is not None and progress.answer_tokens:
                            break
                        if progress.finish is not None:
                            # The answer is whole; some servers send no counts.
                            limit.reschedule(asyncio.get_running_loop().time() + _COUNTS_SECONDS)
        progress.add(progress.cleaner.finish())
        if progress.finish is None:
            what = "the answer was cut off" if progress.characters else "it sent no answer"
            raise self.endpoint.failed(what, f"{_TRY_AGAIN}; {_NOT_THIS}")
        if progress.finish == "content_filter" or not progress.characters:
            finish, progress.finish = progress.finish[:20], None
            raise self.endpoint.failed(
                f"the answer is empty or withheld (finish reason {finish!r})",
                "does the model take pictures? raise vlm.answer_tokens if it thinks before it answers",
            )


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else otherwise


def _client(endpoint: Endpoint, timeout_seconds: float) -> AsyncOpenAI:
    import httpx2
    import openai

    class Bounded(httpx2.AsyncByteStream):
        """Response body that fails when it exceeds `MOST_BYTES`."""

        def __init__(self, body: Any) -> None:
            self._body = body

        async def __aiter__(self) -> Any:
            total = 0
            async for block in self._body:
                total += len(block)
                if total > MOST_BYTES:
                    what = f"sends more than {MOST_BYTES >> 20} MiB for one answer"
                    raise endpoint.failed(what, "use another server")
                yield block

        async def aclose(self) -> None:
            await self._body.aclose()

    async def bound(response: httpx2.Response) -> None:
        # A compressed body could unpack to any length.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise endpoint.failed(
                "sends a compressed answer against the request", "switch compression off on the server"
            )
        response.stream = Bounded(response.stream)

    http_client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeout_seconds),
        follow_redirects=False,
        event_hooks={"response": [bound]},
        # An own transport ignores the environment's proxy, which cannot reach this machine's servers.
        transport=httpx2.AsyncHTTPTransport() if endpoint.loopback else None,
    )
    return openai.AsyncOpenAI(
        api_key=endpoint.key or "none",
        base_url=endpoint.url,
        max_retries=RETRIES,
        http_client=http_client,
        default_headers={"Accept-Encoding": "identity", **endpoint.headers},
    )


def _explained(error: Exception, endpoint: Endpoint, model: str, timeout_seconds: float) -> ServerFailed:
    """Translate an exception of the client."""
    import httpx2
    import openai

    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, ServerFailed):
            return cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            what = f"its certificate is not trusted: {cause.verify_message}"
            return endpoint.failed(what, "name its authority in SSL_CERT_FILE")
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, endpoint, model)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return endpoint.failed(f"no response for {timeout_seconds:g} s", _TRY_AGAIN)
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        reason = _excerpt(str(causes[-1]), endpoint) or "connection lost"
        return endpoint.failed(f"no connection: {reason}", "is the server running, and the address right?")
    if isinstance(error, openai.APIError):
        said = _excerpt(_message(error.body) or error.message, endpoint)
        return endpoint.failed(f"the server reports: {said}", "see the server's log")
    what = f"{type(error).__name__}: {_excerpt(str(error), endpoint)}"
    return endpoint.failed(f"sent an invalid answer ({what})", _NOT_THIS)


def _of_status(error: Any, endpoint: Endpoint, model: str) -> ServerFailed:
    status: int = error.status_code
    said = _excerpt(_message(error.body) or error.response.reason_phrase, endpoint)
    if 300 <= status < 400:
        what = f"redirects to {_excerpt(error.response.headers.get('location', 'nowhere'), endpoint)}"
        remedy = "give that address as vlm.endpoint if you trust it"
    elif status in (401, 403):
        # Leave out the server's text: it may repeat part of the key.
        what = f"{f'refuses the key of {endpoint.key_variable}' if endpoint.key else 'wants a key'} ({status})"
        remedy = f"set {endpoint.key_variable}, or vlm.key_variable to another"
    elif status == 404:
        what = f"knows no model {model!r} (404): {said}"
        remedy = f"does {endpoint.shown}/models list it, and does the address end in /v1?"
    elif status in (408, 429) or status >= 500:
        what, remedy = f"failed or is busy ({status}): {said}", _TRY_AGAIN
    else:
        what = f"refuses the request ({status}): {said}"
        remedy = "see the server's log; does the model take pictures, and so many tokens (vlm.context_tokens)?"
    return endpoint.failed(what, remedy)


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


def _not_an_address(shown: str, why: str) -> InvalidSetting:
    return InvalidSetting(f"vlm.endpoint={shown!r}: {why}", remedy="write it like http://127.0.0.1:8000/v1")


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidSetting(
            f"the key in {variable} holds spaces, control or other characters that no key has",
            remedy=f"set {variable} again, or name another variable with vlm.key_variable",
        )
    return key


def _basic(user: str | None, password: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the header for a user and password in the address; outside the URL, libraries do not log them."""
    if user is None and password is None:
        return {}, ()
    plain = f"{urllib.parse.unquote(user or '')}:{urllib.parse.unquote(password or '')}"
    coded = base64.b64encode(plain.encode()).decode()
    return {"Authorization": f"Basic {coded}"}, (password or "", urllib.parse.unquote(password or ""), coded)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
