"""Deterministic keyframes on a background thread: each arrives after a fixed number of frames."""

from __future__ import annotations

import atexit
import ctypes
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from arr_stream.config import KeyframeSettings
from arr_stream.keyframes.base import PartName
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    Job,
    KeyframeGenerator,
    KeyframeProvider,
    KeyframeRequest,
    Outcome,
    make_part,
    require_one,
)
from arr_stream.threads import one_blas_thread

SCENE_DELAY = 2
"""Largest delay, in frames, of a new scene's keyframe while there is no query."""
LOOK_DELAYS: Mapping[PartName, int] = {"embedding": 2, "text": 5, "objects": 5}
"""Largest delay, in frames, of a request between keyframes; the pipeline waits for slower ones."""

_JOIN_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Keyframe:
    """One pending request.

    Args:
        index: Index of its frame.
        delay: Frames after which it arrives.
        window: See `KeyframeRequest`.
        waiting: Parts that are not started.
        begun: Futures of the started parts.
        told: Outcomes that have arrived.
        age: Frames since the request.
    """

    index: int
    delay: int
    window: bool
    waiting: dict[PartName, Job]
    begun: dict[PartName, Future[Outcome]] = field(default_factory=dict)
    told: list[Outcome] = field(default_factory=list)
    age: int = 0


class KeyframesBeside:
    """A `KeyframeProvider` that generates on a thread; a keyframe's parts arrive a fixed number of frames later.

    The pipeline then waits for unfinished parts, so results do not depend on speed. Parts that a query needs
    (`KeyframeRequest.awaited`) arrive at once. The others start on the next frame: no frame reads them earlier, and
    none reads them after the last frame or a scene change.

    Args:
        generator: Makes the parts; used on one thread at a time.
        delay: Delay in frames, at least 1; capped by `SCENE_DELAY` and `LOOK_DELAYS`.
    """

    def __init__(self, generator: KeyframeGenerator, delay: int) -> None:
        self._generator = generator
        self._delay = delay
        self._under_way: list[_Keyframe] = []
        self._arrived: list[Outcome] = []
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        """Accept every part; wait for the awaited ones."""
        if request.new_scene:
            for older in self._under_way:
                older.waiting.clear()
        jobs = self._generator.jobs(request)
        keyframe = _Keyframe(request.frame.index, self._delay_of(request), request.window, dict(jobs))
        self._begin(keyframe, [part for part in jobs if part in request.awaited])
        self._arrived += self._finish(keyframe)
        self._under_way.append(keyframe)
        return tuple(jobs)

    def collect(self) -> list[Outcome]:
        """Return the outcomes due on this frame; call it once a frame.

        Raises:
            KeyframeFailed: Every part of a keyframe failed.
        """
        arrived, self._arrived = self._arrived, []
        for keyframe in self._under_way:
            if keyframe.age == 1:
                self._begin(keyframe, list(keyframe.waiting))
        for keyframe in [each for each in self._under_way if each.age == each.delay]:
            self._under_way.remove(keyframe)
            arrived += self._finish(keyframe)
            if not keyframe.window:
                require_one(keyframe.told)
        for keyframe in self._under_way:
            keyframe.age += 1
        return arrived

    def close(self) -> None:
        """Cancel pending work and end the thread; a library's call in progress can delay this by seconds."""
        atexit.unregister(self.close)
        begun = [outcome for keyframe in self._under_way for outcome in keyframe.begun.values()]
        at_work = [outcome for outcome in begun if not outcome.cancel() and not outcome.done()]
        self._under_way.clear()
        thread, self._thread = self._thread, None
        if thread is not None:
            # Interrupt first: a thread past its work would raise where nothing handles it.
            if at_work and thread.ident is not None:
                _interrupt(thread.ident)
            self._tasks.put(None)
            thread.join(_JOIN_SECONDS)

    def _delay_of(self, request: KeyframeRequest) -> int:
        if request.window:
            return min(self._delay, *(LOOK_DELAYS[part] for part in request.parts))
        return min(self._delay, SCENE_DELAY) if request.new_scene and not request.asked else self._delay

    def _begin(self, keyframe: _Keyframe, parts: list[PartName]) -> None:
        for part in parts:
            outcome = keyframe.begun[part] = Future()
            self._tasks.put(_task(keyframe.index, part, keyframe.waiting.pop(part), outcome))
        if parts and self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._tasks,), name="keyframes", daemon=True)
            self._thread.start()
            # A library that returns to a finalized interpreter aborts the process.
            atexit.register(self.close)

    def _finish(self, keyframe: _Keyframe) -> list[Outcome]:
        """Wait for the started parts and return their outcomes."""
        outcomes = [outcome.result() for outcome in keyframe.begun.values()]
        keyframe.begun.clear()
        keyframe.told += outcomes
        return outcomes


def make_provider(generator: KeyframeGenerator, settings: KeyframeSettings, *, follow: bool = True) -> KeyframeProvider:
    """Return the keyframe provider of a video file, according to `keyframes.delay`.

    Args:
        generator: Makes the parts.
        settings: The delay and the interval, which limits the delay.
        follow: Pictures are consecutive frames; False disables the delay, since unrelated pictures share nothing.
    """
    delay = settings.frames_beside if follow else 0
    return KeyframesBeside(generator, delay) if delay else InStepKeyframes(generator)


def _task(index: int, part: PartName, job: Job, outcome: Future[Outcome]) -> Callable[[], None]:
    def task() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                with one_blas_thread():
                    outcome.set_result(make_part(index, part, job))
            except BaseException as exc:
                # A frame may wait for this future, so it must receive every exception.
                outcome.set_exception(exc)
                if isinstance(exc, _GivenUp):
                    raise

    return task


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    with suppress(_GivenUp):
        while (task := tasks.get()) is not None:
            task()


class _GivenUp(BaseException):
    """Cancellation of the thread's work."""


def _interrupt(thread: int) -> None:
    """Raise `_GivenUp` in the Python code of another thread, as Ctrl-C raises in the main thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_GivenUp))
