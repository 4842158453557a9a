"""One question to a server that speaks the OpenAI protocol: sent, waited for, tried again, called off.

The server is not trusted. Its answer is bounded in characters, bytes and time and freed of control characters;
redirects are not followed, so that neither the key nor the pictures go where nobody sent them; what it says in errors
is shortened, and the key is cut out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from arr_stream.errors import BackendUnavailable, ServerFailed
from arr_stream.plain_text import PlainText
from arr_stream.vlm.server import chat_errors
from arr_stream.vlm.server.chat_errors import Trouble
from arr_stream.vlm.server.endpoint import Endpoint

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Message = dict[str, Any]
Finish = Literal["stop", "length", "cancelled", "failed"]

_POLL_SECONDS = 0.05
"""How soon it is noticed that a question was called off."""
_USAGE_SECONDS = 2.0
"""How long the count of tokens is waited for once the answer is whole."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 16.0
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Args:
        text: The answer as far as it came.
        finish: `stop`, `length`, `cancelled`, or `failed` when it broke off.
        error: One line where it broke off.
        prompt_tokens, answer_tokens: As the server counts them; 0 where it does not say.
        first_ms: From sending to the first piece, with the attempts before.
        rest_ms: From the first piece to the end.
    """

    text: str
    finish: Finish
    error: str | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0
    first_ms: float = 0.0
    rest_ms: float = 0.0


@dataclass(slots=True)
class _Progress:
    """How far an answer is; written by the connection's thread."""

    emit: Callable[[str], None]
    most_characters: int
    began: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float = 0.0
    characters: int = 0
    choices: int = 0
    thought: bool = False
    finish: str | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cleaner: PlainText = field(default_factory=PlainText)

    def begin(self) -> None:
        """Forget an attempt that brought no text."""
        self.first, self.choices, self.thought, self.finish, self.cleaner = None, 0, False, None, PlainText()

    def add(self, text: str) -> None:
        text = text[: self.most_characters - self.characters]
        self.characters += len(text)
        if text:
            self.emit(text)


class ChatServer:
    """A server's chat completions, asked one question at a time or several at once, from any thread.

    Args:
        endpoint: Where it is.
        model: Name of the model there.
        timeout_seconds: Longest wait for a connection and for each further sign of life. A question takes at most
            this long for each attempt that `retries` allows and 16 s for each wait between them, all together.
        retries: Further attempts when the server cannot be reached, is busy or fails by its own fault.

    Raises:
        BackendUnavailable: `openai` is not installed.
    """

    def __init__(self, endpoint: Endpoint, model: str, *, timeout_seconds: float, retries: int) -> None:
        self.endpoint = endpoint
        self.model = model
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._refused: set[str] = set()
        self._thread = _LoopThread()
        try:
            self._client = _client(endpoint, timeout_seconds)
        except ImportError as exc:
            raise BackendUnavailable(
                "a server is asked by way of openai, which is not installed or too old",
                remedy="pip install 'arr-stream[vlm]'",
            ) from exc

    def ask(
        self,
        messages: Sequence[Message],
        *,
        answer_tokens: int,
        temperature: float,
        on_text: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Reply:
        """Send messages and wait for the answer.

        Args:
            messages: As the protocol has them.
            answer_tokens: Most tokens of the answer.
            temperature: 0 takes the likeliest token.
            on_text: Called with each piece, in the calling thread.
            cancelled: Asked about twenty times a second; when it says yes the connection is closed.

        Raises:
            ServerFailed: Nothing usable came of it. What broke off after a part of the text is a `Reply` that says so.
        """
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # A server that keeps to the limit never sends so much; one that does not is cut off.
        progress = _Progress(pieces.put, most_characters=32 * answer_tokens + 1024)
        request = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": answer_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        future = self._thread.submit(self._exchange(request, progress), self.endpoint.shown)
        future.add_done_callback(lambda _: pieces.put(None))
        text: list[str] = []
        try:
            while not cancelled():
                with contextlib.suppress(queue.Empty):
                    piece = pieces.get(timeout=_POLL_SECONDS)
                    if piece is None:
                        return self._reply("".join(text), progress, future)
                    text.append(piece)
                    if on_text is not None:
                        on_text(piece)
        finally:
            future.cancel()
        return _counted(Reply("".join(text), "cancelled"), progress)

    def close(self) -> None:
        """Call off what is under way and close all connections; safe to call again."""
        self._thread.close(self._client.close)

    def _reply(self, text: str, progress: _Progress, future: Future[None]) -> Reply:
        if future.cancelled():
            raise ServerFailed(f"{self.endpoint.shown}: closed while it was asked", remedy="ask before closing")
        error = future.exception()
        if error is None:
            return _counted(Reply(text, "length" if progress.finish == "length" else "stop"), progress)
        if not isinstance(error, Trouble):
            raise error
        failure = error.failure
        if not text:
            raise failure
        return _counted(Reply(text, "failed", str(failure)), progress)

    async def _exchange(self, request: Message, progress: _Progress) -> None:
        seconds = self._timeout_seconds * (1 + self._retries) + _LONGEST_WAIT_SECONDS * self._retries
        try:
            async with asyncio.timeout(seconds):
                await self._try(request, progress)
        except TimeoutError:
            if progress.finish is None or not progress.characters:
                raise chat_errors.too_slow(self.endpoint, seconds) from None

    async def _try(self, request: Message, progress: _Progress) -> None:
        attempt = 0
        while True:
            progress.begin()
            try:
                return await self._once(self._accepted(request), progress)
            except Exception as exc:
                trouble = chat_errors.explained(exc, self.endpoint, self.model, self._timeout_seconds)
            if progress.finish is not None and progress.characters:
                return None  # The answer was whole already.
            refused = trouble.refused - self._refused
            if refused:
                self._refused |= refused
                continue
            if not trouble.passing or progress.characters or attempt == self._retries:
                # Without the cause: what a server says may hold the key, and tracebacks show it.
                raise trouble from None
            await asyncio.sleep(self._wait_seconds(attempt, trouble.retry_after_seconds))
            attempt += 1

    def _accepted(self, request: Message) -> Message:
        """The request without what this server refused before."""
        accepted = {name: value for name, value in request.items() if name not in self._refused}
        if "max_tokens" in self._refused:
            accepted["max_completion_tokens"] = request["max_tokens"]
        return accepted

    @staticmethod
    def _wait_seconds(attempt: int, retry_after_seconds: float | None) -> float:
        if retry_after_seconds is not None:
            return retry_after_seconds
        return min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0**attempt) * random.uniform(0.5, 1.0)

    async def _once(self, request: Message, progress: _Progress) -> None:
        raw: Any = await self._client.chat.completions.with_raw_response.create(**request)
        kind = raw.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            body = await raw.http_response.aread()
            raise chat_errors.not_a_stream(self.endpoint, kind, body)
        stream = raw.parse()
        try:
            await self._read(aiter(stream), progress)
        finally:
            await stream.close()
        progress.add(progress.cleaner.finish())
        self._check_whole(progress)

    async def _read(self, chunks: Any, progress: _Progress) -> None:
        while progress.characters < progress.most_characters:
            try:
                async with asyncio.timeout(None if progress.finish is None else _USAGE_SECONDS):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                return
            if chunk is None:
                return
            _take(chunk, progress)
            if progress.finish is not None and progress.answer_tokens:
                return
        progress.finish = "length"

    def _check_whole(self, progress: _Progress) -> None:
        """An answer has text, and an end that the server tells."""
        finish = progress.finish
        if finish is None:
            raise chat_errors.cut_off(self.endpoint, progress.choices)
        if finish == "content_filter" or not progress.characters:
            progress.finish = None
            raise chat_errors.empty(self.endpoint, progress.thought, finish)


def _take(chunk: Any, progress: _Progress) -> None:
    """Add one piece of the stream, whatever it may be."""
    usage = getattr(chunk, "usage", None)
    progress.prompt_tokens = _count(getattr(usage, "prompt_tokens", None), progress.prompt_tokens)
    progress.answer_tokens = _count(getattr(usage, "completion_tokens", None), progress.answer_tokens)
    choices = getattr(chunk, "choices", None)
    if not isinstance(choices, list) or not choices:
        return
    progress.choices += 1
    delta = getattr(choices[0], "delta", None)
    content = getattr(delta, "content", None)
    thought = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    progress.thought = progress.thought or bool(thought)
    if content or thought:
        progress.last = time.perf_counter()
        progress.first = progress.first or progress.last
    if isinstance(content, str):
        progress.add(progress.cleaner.feed(content))
    finish = getattr(choices[0], "finish_reason", None)
    if isinstance(finish, str):
        progress.finish = finish


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else otherwise


def _counted(reply: Reply, progress: _Progress) -> Reply:
    first = progress.first
    return Reply(
        reply.text,
        reply.finish,
        reply.error,
        progress.prompt_tokens,
        progress.answer_tokens,
        (first - progress.began) * 1e3 if first is not None else 0.0,
        (progress.last - first) * 1e3 if first is not None else 0.0,
    )


def _client(endpoint: Endpoint, timeout_seconds: float) -> AsyncOpenAI:
    import httpx2
    import openai

    class Bounded(httpx2.AsyncByteStream):
        """A body that ends in an error where it grows too long."""

        def __init__(self, body: Any) -> None:
            self._body = body

        async def __aiter__(self) -> Any:
            total = 0
            async for block in self._body:
                total += len(block)
                if total > chat_errors.MOST_BYTES:
                    raise chat_errors.too_long(endpoint)
                yield block

        async def aclose(self) -> None:
            await self._body.aclose()

    async def bound(response: httpx2.Response) -> None:
        # A compressed body could unpack to any length.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise chat_errors.compressed(endpoint)
        response.stream = Bounded(response.stream)

    http_client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeout_seconds),
        follow_redirects=False,
        event_hooks={"response": [bound]},
        # With a transport of its own it asks no proxy of the environment, which cannot reach this machine's servers.
        transport=httpx2.AsyncHTTPTransport() if endpoint.loopback else None,
    )
    return openai.AsyncOpenAI(
        api_key=endpoint.key or "none",
        base_url=endpoint.url,
        max_retries=0,
        http_client=http_client,
        default_headers={"Accept-Encoding": "identity", **endpoint.headers},
    )


class _LoopThread:
    """A thread that runs coroutines, started when the first comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, None], where: str) -> Future[None]:
        with self._lock:
            if self._closed:
                work.close()
                raise ServerFailed(f"{where}: the connection was closed", remedy="make a new one")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon, so that a connection that nobody closed does not keep the process alive.
                self._thread = threading.Thread(target=self._loop.run_forever, name="arr-stream-server", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._lock:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(last), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_SECONDS)
        if not thread.is_alive():
            loop.close()

    @staticmethod
    async def _end(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await last()
        await asyncio.get_running_loop().shutdown_asyncgens()
