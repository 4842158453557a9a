"""Keyframe workers in child processes, so that a live frame loop never waits for a keyframe.

Threads would share the interpreter's lock and the thread pools of OpenCV and onnxruntime with the frame loop, and
each keyframe would cause a latency spike. Each heavy part has its own process: a slow or crashed one affects no other.

For each `KeyframeRequest` the process replies with one `KeyframePart` or `KeyframeFailure` for each part as it
finishes, and then with None.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, KeyframeFailed
from arr_stream.keyframes.base import PARTS, PartName
from arr_stream.keyframes.generate import (
    KeyframeFailure,
    KeyframeGenerator,
    KeyframeRequest,
    Outcome,
    make_generator,
    make_part,
)
from arr_stream.keyframes.objects import detector_file
from arr_stream.processes import ChildProcess, Refused, Reply, ending, environment, serving_command

_START_TIMEOUT_SECONDS = 120.0
_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0
_JOIN_SECONDS = 2.0
_THREADS = 1
"""Threads of each pool in the process: OpenCV, OpenMP, onnxruntime."""
_NICE = 15
"""Niceness of the process, on systems that support it."""
_OF_MAKERS = {"keyframes", "clip", "sam", "models"}
_BUT_THE_SCHEDULE = {"keyframes": {"interval", "min_interval", "min_confidence", "text_interval", "window_share"}}

Arrive = Callable[[Outcome], None]
"""Callback that receives one outcome."""


@dataclass(frozen=True, slots=True)
class Work:
    """Configuration of a worker process.

    Args:
        factory: `module:function`; takes the settings and the parts, and returns a `KeyframeGenerator`.
    """

    factory: str
    settings: Mapping[str, Any]
    parts: tuple[PartName, ...]


class KeyframeWorker:
    """Generator in a child process, one request at a time, its parts one after the other.

    `submit` does not wait: a thread starts the process, transfers pictures and results, and replaces a process that
    crashed or timed out. The first replacement starts at the next `submit`; after repeated failures, replacements back
    off exponentially, and `submit` accepts nothing meanwhile.

    Args:
        settings: Settings for the factory.
        parts: Parts that this worker makes.
        timeout_seconds: Time after which the worker stops a generation and reports a failure.
        factory: See `Work`.
    """

    def __init__(
        self,
        settings: Settings | Mapping[str, Any],
        *,
        parts: Sequence[PartName] = PARTS,
        factory: str = f"{__name__}:standard_generator",
        timeout_seconds: float = 30.0,
    ) -> None:
        values = settings.model_dump(mode="json") if isinstance(settings, Settings) else dict(settings)
        self.parts = tuple(parts)
        self._work = Work(factory, values, self.parts)
        self._timeout_seconds = timeout_seconds
        self._inbox: queue.SimpleQueue[tuple[KeyframeRequest, Arrive] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        self._process: ChildProcess | None = None
        self._losses = 0
        self._not_before_seconds = 0.0
        self._ready = threading.Event()
        self._start_error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="keyframe-worker", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the first start; return False if it takes longer than `timeout_seconds`.

        Raises:
            ArrStreamError: The process could not start.
        """
        if not self._ready.wait(timeout_seconds):
            return False
        if self._start_error is not None:
            raise self._start_error
        return True

    def submit(self, request: KeyframeRequest, arrive: Arrive) -> tuple[PartName, ...]:
        """Request a keyframe; the caller must not modify its picture afterwards.

        Args:
            request: What to make, and of which frame.
            arrive: Called in the worker's thread with each outcome.

        Returns:
            The accepted parts: empty during another request, during backoff after repeated failures, and once closed.
        """
        parts = tuple(part for part in request.parts if part in self.parts)
        with self._lock:
            if not parts or self._closed or self._busy or time.monotonic() < self._not_before_seconds:
                return ()
            self._busy = True
        self._inbox.put((replace(request, parts=parts), arrive))
        return parts

    def close(self) -> None:
        """End the process and the thread, even during a generation; takes at most about two seconds."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
        self._inbox.put(None)
        self._thread.join(_JOIN_SECONDS)

    def _serve(self) -> None:
        """Run the thread: start the process, then serve requests until closed."""
        try:
            try:
                self._running()
            except Exception as exc:
                self._start_error = exc
                self._discard()
            finally:
                self._ready.set()
            while (asked := self._inbox.get()) is not None:
                failure = self._answer(*asked)
                with self._lock:
                    if failure is not None:
                        asked[1](failure)
                    self._busy = False
        finally:
            self._discard()

    def _answer(self, request: KeyframeRequest, arrive: Arrive) -> KeyframeFailure | None:
        """Serve a request, and pass its outcomes on; return a failure if the process ends early."""
        left = set(request.parts)

        def note(outcome: Outcome) -> None:
            left.difference_update(outcome.parts if isinstance(outcome, KeyframeFailure) else {outcome.part})
            arrive(outcome)

        try:
            process = self._running()
            with _limited(process, self._timeout_seconds, "generating"):
                process.send(request)
                while (outcome := process.receive()) is not None:
                    note(outcome)
        except Exception as exc:
            # The thread must survive every error: otherwise the provider stays busy for ever.
            self._discard()
            self._losses += 1
            if self._losses > 1:
                pause = min(_LONGEST_BACKOFF_SECONDS, _BACKOFF_SECONDS * 2.0 ** (self._losses - 2))
                self._not_before_seconds = time.monotonic() + pause
            message = str(exc) if isinstance(exc, ArrStreamError) else f"keyframe worker: {type(exc).__name__}: {exc}"
            missing = tuple(part for part in request.parts if part in left)
            return KeyframeFailure(request.frame.index, message, missing) if missing else None
        self._losses = 0
        self._start_error = None
        return None

    def _running(self) -> ChildProcess:
        """Return the process, whose models are loaded; start one if none is alive."""
        if self._process is not None and self._process.alive:
            return self._process
        self._discard()
        try:
            process = ChildProcess(serving_command(f"{__name__}:make_keyframes"), environment(_THREADS))
        except OSError as exc:
            raise KeyframeFailed(f"keyframe worker: starting: {exc}", remedy="allow more processes") from exc
        with self._lock:
            self._process = process
            if self._closed:
                process.kill()
        with _limited(process, _START_TIMEOUT_SECONDS, "starting"):
            process.send(self._work)
            reply = process.receive()
        if isinstance(reply, Refused):
            raise reply.as_error() or KeyframeFailed(f"keyframe worker: starting: {reply.error}: {reply.message}")
        return process

    def _discard(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()


class KeyframeWorkers:
    """Workers that run in parallel, as one stream's `KeyframeProvider`; each part arrives when it is ready.

    They accept nothing while they serve another stream; the pipeline retries on its next frame.

    Args:
        workers: The workers; other streams may use them too.
        on_close: Called once, when this stream needs them no more.
    """

    def __init__(self, workers: Sequence[KeyframeWorker], on_close: Callable[[], None]) -> None:
        self.workers = tuple(workers)
        self._on_close: Callable[[], None] | None = on_close
        self._arrived: deque[Outcome] = deque()

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait for each worker as `KeyframeWorker.wait_ready` does."""
        return all(worker.wait_ready(timeout_seconds) for worker in self.workers)

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        if self._on_close is None:
            return ()
        return tuple(part for worker in self.workers for part in worker.submit(request, self._arrived.append))

    def collect(self) -> list[Outcome]:
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def worker_groups(settings: Settings) -> tuple[tuple[PartName, ...], ...]:
    """Return the groups of parts that share a process: light parts share one, heavy parts have their own.

    `features` clusters the embedder's output, so the two share a process, which loads the model once.
    """
    keyframes = settings.keyframes
    heavy = keyframes.clusters == "sam" or keyframes.embeddings == "clip"
    groups: list[tuple[PartName, ...]] = [("clusters", "embedding")]
    if heavy and keyframes.clusters != "features":
        groups = [("clusters",), ("embedding",)]
    if detector_file(settings) is not None:
        groups.append(("text", "objects"))
    elif keyframes.text == "none":
        groups[-1] += ("text",)
    else:
        groups.append(("text",))
    return tuple(groups)


def maker_values(settings: Settings) -> str:
    """Return the settings that affect generation as JSON; equal for settings that can share workers."""
    return settings.model_dump_json(include=_OF_MAKERS, exclude=_BUT_THE_SCHEDULE)


def make_workers(settings: Settings) -> tuple[KeyframeWorker, ...]:
    """Start a worker for each group of parts."""
    timeout_seconds = settings.keyframes.timeout_seconds
    return tuple(
        KeyframeWorker(settings, parts=parts, timeout_seconds=timeout_seconds) for parts in worker_groups(settings)
    )


class WorkerPool:
    """Pool of keyframe workers; streams with the same models share them. Thread-safe."""

    def __init__(self, make: Callable[[Settings], Sequence[KeyframeWorker]] = make_workers) -> None:
        self._make = make
        self._workers: dict[str, Sequence[KeyframeWorker]] = {}
        self._users: Counter[str] = Counter()
        self._lock = threading.Lock()

    def lease(self, settings: Settings) -> KeyframeWorkers:
        """Return workers for these settings; they end when their last user is closed."""
        key = maker_values(settings)
        with self._lock:
            if key not in self._workers:
                self._workers[key] = self._make(settings)
            self._users[key] += 1
            return KeyframeWorkers(self._workers[key], lambda: self._release(key))

    def _release(self, key: str) -> None:
        with self._lock:
            self._users[key] -= 1
            unused = () if self._users[key] else self._workers.pop(key)
        for worker in unused:
            worker.close()


@contextmanager
def _limited(process: ChildProcess, timeout_seconds: float, doing: str) -> Iterator[None]:
    """Limit the wait for a process; kill it and raise `KeyframeFailed` on a timeout, or if it ends."""
    try:
        with process.within(timeout_seconds):
            yield
    except TimeoutError as exc:
        raise KeyframeFailed(f"keyframe worker: {doing}: {exc}") from exc
    except (EOFError, OSError) as exc:
        code = process.exit_code(_JOIN_SECONDS)
        how = "closed its pipes" if code is None else ending(code)
        why = ", as the system does when memory runs out" if code == -signal.SIGKILL else ""
        raise KeyframeFailed(f"keyframe worker: {doing}: the process {how}{why}") from exc


def standard_generator(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    """Return the generator for the fields of `Settings`.

    It replaces lazy clusters (`auto`) by `slic`, since nothing reads clusters in a worker process.
    """
    wanted = Settings.model_validate(settings)
    if wanted.keyframes.clusters == "auto":
        wanted = wanted.with_values({"keyframes.clusters": "slic"})
    return make_generator(wanted, _THREADS, parts)


def make_keyframes(work: Work) -> Callable[[KeyframeRequest, Reply], None]:
    """Load the models in the child process and return its request handler; see `arr_stream.processes`."""
    import cv2

    # Leave the cores to the frame loop.
    cv2.setNumThreads(_THREADS)
    if hasattr(os, "nice"):
        os.nice(_NICE)
    module, _, function = work.factory.partition(":")
    make = getattr(importlib.import_module(module), function)
    generator: KeyframeGenerator = make(work.settings, work.parts)

    def answer(request: KeyframeRequest, reply: Reply) -> None:
        for part, job in generator.jobs(request).items():
            reply(make_part(request.frame.index, part, job))
        reply(None)

    return answer
