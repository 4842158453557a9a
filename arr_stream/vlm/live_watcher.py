"""A watcher on its own thread, for live streams: the model never delays a frame."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from arr_stream.patch_set import PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.viewer import Stop
from arr_stream.vlm.watcher import Ending, Plan, SkippedFrames, Watcher

if TYPE_CHECKING:
    from arr_stream.stream import Stream

_END_SECONDS = 10.0
"""Longest wait for the thread at shutdown: one pass of the model, since answers are cancelled."""


class _AnyStop:
    """Stop flag that is set when any of several is."""

    def __init__(self, *stops: Stop | None) -> None:
        self._stops = [stop for stop in stops if stop is not None]

    def is_set(self) -> bool:
        return any(stop.is_set() for stop in self._stops)


class LiveWatcher:
    """Watcher that runs on a worker thread: it takes the newest frame whenever it is free.

    A later frame's patch set carries the result. A scene cut cancels an answer about a changing scene, so that the new
    scene does not wait for it.

    Args:
        watcher: Shows frames and asks; made with `attend=None`, since its answers come late.
        follow: Called when the newest frame is handed over, so that attention to it can be carried.
        attend: Takes attention and the index of its frame; None to ignore attention.
        pass_over: Called for each frame that is not shown to the model, before the next frame's step.
        forget_sent: Called when the model has lost some of its frames, before the next frame's step.
    """

    def __init__(
        self,
        watcher: Watcher,
        *,
        follow: Callable[[], None],
        attend: Callable[[FloatArray, int], object] | None,
        pass_over: Callable[[], object] | None = None,
        forget_sent: Callable[[], object] | None = None,
    ) -> None:
        self._watcher = watcher
        self._closing = threading.Event()
        self._superseded = threading.Event()
        watcher.stop = _AnyStop(watcher.stop, self._closing, self._superseded)
        watcher.on_begin = self._superseded.clear
        self._follow = follow
        self._attend = attend
        self._pass_over = pass_over
        self._forget_sent = forget_sent
        self._skipped = SkippedFrames()
        self._queue: queue.SimpleQueue[tuple[Frame, PatchSet, Future[PatchSet]] | None] = queue.SimpleQueue()
        self._pending: Future[PatchSet] | None = None
        self._thread = threading.Thread(target=self._work, name="arr-stream-watcher", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, watcher: Watcher, stream: Stream) -> LiveWatcher:
        """Return a watcher of a stream, whose pipeline hears what the model attends to, misses and forgets."""
        # Each call looks the pipeline up: a change of settings may replace it.
        return cls(
            watcher,
            follow=lambda: stream.pipeline.follow(),  # noqa: PLW0108
            attend=stream.attend if stream.settings.vlm.feedback else None,
            pass_over=lambda: stream.pipeline.take_back(),  # noqa: PLW0108
            forget_sent=lambda: stream.pipeline.forget_sent(),  # noqa: PLW0108
        )

    @property
    def busy(self) -> bool:
        """True while the worker handles a frame; a later frame carries the result."""
        return self._pending is not None

    def watch(self, frame: Frame, patches: PatchSet, ending: Ending | None = None) -> PatchSet:
        """Return the frame's patch set with the result of an earlier frame; at an ending, wait for it."""
        if self._pending is not None and (ending is not None or self._pending.done()):
            patches = self._with_pending(patches, self._pending)
        if ending is not None:
            shown = self._watcher.watch(frame, _bare(self._skipped.onto(patches)), ending)
            return _merged(patches, shown)
        busy = self._pending is not None
        if busy or not self._watcher.wants(frame.pts_seconds):
            self._skipped.add(patches)
            if busy and self._watcher.supersedes(patches):
                self._superseded.set()
            if self._pass_over is not None:
                self._pass_over()
            return patches
        if self._attend is not None:
            self._follow()
        self._superseded.clear()
        self._pending = Future()
        self._queue.put((frame, self._skipped.onto(patches), self._pending))
        return patches

    @property
    def plan(self) -> Plan:
        """The question and its schedule; a new plan ends a running answer."""
        return self._watcher.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        # The order matters: otherwise `_superseded` could cancel the answer that the new plan just began.
        self._superseded.set()
        self._watcher.plan = plan

    def request(self, question: str) -> None:
        """Ask this question at once and cancel a running answer; callable from any thread."""
        self._superseded.set()
        self._watcher.request(question)

    def close(self) -> None:
        """End the thread, then close the watcher; safe to call again.

        If the model does not stop in time, the thread stays alive and ends with the process.
        """
        if self._thread.is_alive():
            self._closing.set()
            self._queue.put(None)
            self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            self._watcher.close()

    def _work(self) -> None:
        while (handed := self._queue.get()) is not None:
            frame, patches, shown = handed
            try:
                shown.set_result(self._watcher.show(frame, _bare(patches)))
            except BaseException as exc:
                shown.set_exception(exc)

    def _with_pending(self, patches: PatchSet, pending: Future[PatchSet]) -> PatchSet:
        """Add the result of the frame that was under way to a newer frame, and pass its attention on."""
        self._pending = None
        shown = pending.result()
        attention = self._watcher.viewer.attention
        if self._attend is not None and attention is not None and any(answer.error is None for answer in shown.answers):
            self._attend(attention, shown.index)
        if self._forget_sent is not None and shown.feeding is not None and shown.feeding.rebuilt is not None:
            self._forget_sent()
        return _merged(patches, shown)


def _bare(patches: PatchSet) -> PatchSet:
    """Return the patch set without the results of earlier frames."""
    return replace(patches, answers=(), notices=(), feeding=None)


def _merged(patches: PatchSet, shown: PatchSet) -> PatchSet:
    """Return the frame's patch set with the model's results for an earlier frame or for this one."""
    earlier, later = patches.feeding, shown.feeding
    return replace(
        patches,
        feeding=earlier.then(later) if earlier is not None and later is not None else later or earlier,
        answers=(*patches.answers, *shown.answers),
        notices=(*patches.notices, *shown.notices),
    )
