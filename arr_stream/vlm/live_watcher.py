"""A watcher on a thread of its own, for streams that do not wait: no frame is ever late for a model's sake."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.viewer import Stop
from arr_stream.vlm.watcher import Ending, PassedOver, Plan, Watcher

_END_SECONDS = 10.0
"""Longest wait for the thread at the end: one pass of the model, since answers are cut short."""


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """What came of a frame that was handed over."""

    index: int
    feeding: Feeding | None
    answers: tuple[Answer, ...]
    notices: tuple[str, ...]
    attention: FloatArray | None
    error: BaseException | None = None


class _AnyStop:
    """Set when any of several is."""

    def __init__(self, *stops: Stop | None) -> None:
        self._stops = [stop for stop in stops if stop is not None]

    def is_set(self) -> bool:
        return any(stop.is_set() for stop in self._stops)


class LiveWatcher:
    """Hands the newest frame to a watcher whenever it is free, and what comes of it to a later frame.

    An answer to a changing scene is cancelled when the scene is cut, so that the new one does not wait for it.

    Args:
        watcher: Shows frames and asks; made with `attend=None`, since its answers come late.
        follow: Called when the last frame is handed over, so that attention to it can be carried.
        attend: Takes attention and the index of the frame that it belongs to; None to leave it.

    Attributes:
        busy: A frame is under way; what comes of it is told with a later one.
    """

    def __init__(
        self,
        watcher: Watcher,
        *,
        follow: Callable[[], None],
        attend: Callable[[FloatArray, int], object] | None,
    ) -> None:
        self.busy = False
        self._watcher = watcher
        self._closing = threading.Event()
        self._superseded = threading.Event()
        watcher.stop = _AnyStop(watcher.stop, self._closing, self._superseded)
        watcher.on_begin = self._superseded.clear
        self._follow = follow
        self._attend = attend
        self._passed = PassedOver()
        self._handed: queue.Queue[tuple[Frame, PatchSet] | None] = queue.Queue(1)
        self._results: queue.Queue[_Result] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="arr-stream-watcher", daemon=True)
        self._thread.start()

    def watch(self, frame: Frame, patches: PatchSet, ending: Ending | None = None) -> PatchSet:
        """The frame's patch set with what has come of an earlier frame; at an ending that is waited for."""
        if self.busy and (ending is not None or not self._results.empty()):
            patches = self._taken(patches, self._results.get())
        if ending is not None:
            return _merged(patches, self._result(frame, self._passed.onto(patches), ending))
        if self.busy:
            self._passed.add(patches)
            if self._watcher.supersedes(patches):
                self._superseded.set()
            return patches
        if self._attend is not None:
            self._follow()
        self.busy = True
        self._superseded.clear()
        self._handed.put((frame, self._passed.onto(patches)))
        return patches

    @property
    def plan(self) -> Plan:
        """What to ask, and when; a new one ends an answer that is under way."""
        return self._watcher.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        # In this order: the other way round, what was just begun could be taken for what it replaces.
        self._superseded.set()
        self._watcher.plan = plan

    def request(self, question: str) -> None:
        """Ask this at once; an answer that is under way is cut short. From any thread."""
        self._superseded.set()
        self._watcher.request(question)

    def close(self) -> None:
        """End the thread, then let go of the viewer; safe to call again.

        A model that does not end in time keeps the thread, which ends with the process.
        """
        if self._thread.is_alive():
            self._closing.set()
            self._handed.put(None)
            self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            self._watcher.close()

    def _work(self) -> None:
        while (handed := self._handed.get()) is not None:
            self._results.put(self._result(*handed))

    def _result(self, frame: Frame, patches: PatchSet, ending: Ending | None = None) -> _Result:
        try:
            shown = self._watcher.watch(frame, replace(patches, answers=(), notices=(), feeding=None), ending)
        except BaseException as exc:
            return _Result(frame.index, None, (), (), None, exc)
        attention = self._watcher.viewer.attention if any(answer.error is None for answer in shown.answers) else None
        return _Result(frame.index, shown.feeding, shown.answers, shown.notices, attention)

    def _taken(self, patches: PatchSet, result: _Result) -> PatchSet:
        self.busy = False
        if self._attend is not None and result.attention is not None:
            self._attend(result.attention, result.index)
        return _merged(patches, result)


def _merged(patches: PatchSet, result: _Result) -> PatchSet:
    if result.error is not None:
        raise result.error
    earlier, later = patches.feeding, result.feeding
    return replace(
        patches,
        feeding=earlier.then(later) if earlier is not None and later is not None else later or earlier,
        answers=(*patches.answers, *result.answers),
        notices=(*patches.notices, *result.notices),
    )
