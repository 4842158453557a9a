"""Watchers: they show a stream to a model and ask at the end, at an interval, or when the scene changes.

Of a live stream, the model works on a thread of its own and never delays a frame.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from arr_stream.errors import ArrStreamError, InvalidSetting, OutputError
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.selection.novelty import CHANGE_THRESHOLD
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.pixels import cell_difference
from arr_stream.types import ByteArray, Frame, Grid
from arr_stream.vlm import ModelSession, OnText, Stop

if TYPE_CHECKING:
    from arr_stream.stream import Stream

CHANGED_SHARE = 0.3
"""Share of the most cells of any frame so far that must look different before the scene counts as changed."""

Ending = Literal["last", "stopped"]
"""End of the stream at this frame: `last` of a complete run, or `stopped`, after which the watcher asks no more."""

LEAST_PAUSE_SECONDS = 1.0
"""Minimum time between two answers to a changing scene."""

_ROUNDED_SECONDS = 5e-4
"""Tolerance for rounded timestamps in files: a frame that is early by less counts as on time."""

_END_SECONDS = 10.0
"""Longest wait for the thread at shutdown: one pass of the model, since answers are cancelled."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Question and its schedule: after the last frame, at an interval, when the scene changes, or only on request."""

    question: str
    when: Literal["end", "every", "change", "never"] = "end"
    every_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.every_seconds > 0:
            raise InvalidSetting(f"--every {self.every_seconds:g}", remedy="give seconds above 0")


class SkippedFrames:
    """Refresh reason of frames that the model did not get, kept for the next frame, so that no cut is missed."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def add(self, patches: PatchSet) -> None:
        if patches.refresh_reason is not None and self._reason != "cut":
            self._reason = patches.refresh_reason

    def onto(self, patches: PatchSet) -> PatchSet:
        """Return the shown frame's patch set with the refresh reason of the frames before it."""
        reason, self._reason = self._reason, None
        if reason is None or patches.refresh_reason == "cut":
            return patches
        return replace(patches, keyframe=True, refresh_reason=reason)


class Watcher:
    """Driver of a session: it shows the frames of a stream and adds the results, errors included, to their patch sets.

    Args:
        stream: Its pipeline learns what the model attends to (with `vlm.feedback`), did not get, and has lost.
        fps: Frames shown per second of stream time.
        on_ask: Called with the stream time, in seconds, of each question.
        on_text, on_answer: Called with each piece of an answer, and with each whole one, failed ones included.
        stop: Ends an answer early when set.

    Attributes:
        busy: A result is pending for a later frame's patch set; always False here.
        answered: Number of answers.
        question, failure: The last question, and the last error.
        on_begin: Called before each question.

    Raises:
        InvalidSetting: The plan asks more often than frames are shown.
    """

    busy = False

    def __init__(
        self,
        session: ModelSession,
        plan: Plan,
        *,
        stream: Stream | None = None,
        fps: float = 2.0,
        on_ask: Callable[[float], None] | None = None,
        on_text: OnText | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.session = session
        self.stream = stream
        self.stop = stop
        self.answered = 0
        self.question = ""
        self.failure: ArrStreamError | None = None
        self._plan = plan
        self._fps = fps
        self._on_ask = on_ask
        self._on_text = on_text
        self._on_answer = on_answer
        self._started_seconds: float | None = None
        self._show_from_seconds = 0.0
        self._ask_from_seconds: float | None = None
        self._asked_seconds: float | None = None
        self._answered_grey: ByteArray | None = None
        self._most_cells = 0
        self._skipped = SkippedFrames()
        self._requested: str | None = None
        self.on_begin: Callable[[], None] | None = None
        self._check(plan)

    @property
    def plan(self) -> Plan:
        """Question and schedule; may be replaced at any time, from any thread."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._check(plan)
        self._plan = plan
        self._asked_seconds = self._answered_grey = self._ask_from_seconds = None

    def request(self, question: str) -> None:
        """Ask this with the next frame, in place of a pending request; callable from any thread."""
        self._requested = question

    def _check(self, plan: Plan) -> None:
        if plan.when == "every" and plan.every_seconds < 1 / self._fps - 1e-3:
            raise InvalidSetting(
                f"--every {plan.every_seconds:g} with vlm.fps={self._fps:g}: "
                f"a frame is shown every {1 / self._fps:g} s",
                remedy="raise vlm.fps, or ask less often",
            )

    def watch(self, frame: Frame, patches: PatchSet, ending: Ending | None = None) -> PatchSet:
        """Take the next frame and return its patch set with the results; `ending` is set if no frame follows."""
        if ending == "stopped":
            return patches
        if not self.wants(frame.pts_seconds) and ending is None:
            self._skipped.add(patches)
            self.undo_selection()
            return patches
        shown = self.show(frame, patches, last=ending == "last")
        if shown.feeding is not None and shown.feeding.error is not None:
            self.undo_selection()
        self.report(shown)
        return shown

    def wants(self, pts_seconds: float) -> bool:
        """Return whether the frame at this time is to be shown; call it once a frame, in order."""
        if self._started_seconds is None:
            self._started_seconds = self._show_from_seconds = pts_seconds
        if self._ask_from_seconds is None:
            self._ask_from_seconds = self._after(pts_seconds, self._plan.every_seconds)
        if pts_seconds < self._show_from_seconds - _ROUNDED_SECONDS:
            return self._requested is not None
        self._show_from_seconds = self._after(pts_seconds, 1 / self._fps)
        return True

    def show(self, frame: Frame, patches: PatchSet, *, last: bool = False) -> PatchSet:
        """Show the next frame, ask the question that is due, and return the patch set with the model's results."""
        feeding, notices = self._show(frame, patches)
        answers: tuple[Answer, ...] = ()
        question, self._requested = self._requested, None
        if question is None and self._should_ask(frame, patches, last):
            question = self._plan.question
        if question is not None:
            answer = self._ask(question, frame, patches.grid, feeding)
            if answer.fed is not None:
                feeding = answer.fed if feeding is None else feeding.then(answer.fed)
            answers = (answer,)
        return replace(patches, feeding=feeding, answers=answers, notices=(*patches.notices, *notices))

    def undo_selection(self) -> None:
        """Let the pipeline choose the last frame's cells again, since the model did not get them."""
        if self.stream is not None:
            self.stream.pipeline.undo_last_selection()

    def report(self, shown: PatchSet) -> None:
        """Report a shown frame's result to the pipeline, before the next frame's step."""
        if self.stream is None:
            return
        attention = self.session.attention
        answered = any(answer.error is None for answer in shown.answers)
        if self.stream.settings.vlm.feedback and answered and attention is not None:
            self.stream.attend(attention, shown.index)
        if shown.feeding is not None and shown.feeding.rebuilt is not None:
            self.stream.pipeline.forget_sent()

    def close(self) -> None:
        self.session.close()

    def _after(self, seconds: float, step_seconds: float) -> float:
        """Return the next whole number of steps since the start, so that a late frame does not delay the rest."""
        assert self._started_seconds is not None
        steps = math.floor((seconds - self._started_seconds + _ROUNDED_SECONDS) / step_seconds) + 1
        return self._started_seconds + steps * step_seconds

    def _show(self, frame: Frame, patches: PatchSet) -> tuple[Feeding | None, tuple[str, ...]]:
        if not len(patches):
            # The model has all of this frame already; its refresh reason goes with the next one.
            self._skipped.add(patches)
            return None, ()
        shown = self._skipped.onto(patches)
        try:
            feeding = self.session.see(frame, shown)
        except ArrStreamError as exc:
            self.failure = exc
            self._skipped.add(shown)
            feeding = Feeding(frame_index=frame.index, error=str(exc))
        if feeding.error is None:
            return feeding, ()
        return feeding, (f"frame {frame.index} was not shown to the model: {feeding.error}",)

    def _should_ask(self, frame: Frame, patches: PatchSet, last: bool) -> bool:
        if self._plan.when == "never":
            return False
        if self._plan.when == "end":
            return last
        if last and not self.answered:
            return True
        if self._plan.when == "every":
            due_seconds = self._ask_from_seconds
            if due_seconds is None or frame.pts_seconds < due_seconds - _ROUNDED_SECONDS:
                return False
            self._ask_from_seconds = self._after(frame.pts_seconds, self._plan.every_seconds)
            return True
        return self._has_changed(frame, patches)

    def _has_changed(self, frame: Frame, patches: PatchSet) -> bool:
        """Return whether the scene has changed since the last answer; True before the first."""
        if self._asked_seconds is not None and frame.pts_seconds - self._asked_seconds < LEAST_PAUSE_SECONDS:
            return False
        grey = Pictures(frame, patches.grid).eighth_grey
        if self._answered_grey is None or grey.shape != self._answered_grey.shape:
            self._most_cells = len(patches)
            return True
        if not len(patches):
            return False
        changed = cell_difference(grey, self._answered_grey) >= CHANGE_THRESHOLD
        # With a budget over time, the selector may choose only a few changed cells.
        self._most_cells = max(self._most_cells, len(patches))
        return bool(changed[patches.rows, patches.columns].sum() >= CHANGED_SHARE * self._most_cells)

    def _ask(self, question: str, frame: Frame, grid: Grid, feeding: Feeding | None) -> Answer:
        self._asked_seconds = frame.pts_seconds
        self.question = question
        if self.on_begin is not None:
            self.on_begin()
        if self._on_ask is not None:
            self._on_ask(frame.pts_seconds)
        said: list[str] = []

        def on_text(piece: str) -> None:
            said.append(piece)
            if self._on_text is not None:
                self._on_text(piece)

        try:
            answer = self.session.ask(question, on_text=on_text, stop=self.stop)
        except OutputError:
            raise  # not of the model: `on_text` could not write
        except ArrStreamError as exc:
            # A model without frames cannot answer; the error that kept it from seeing is the cause.
            shown = feeding is None or feeding.error is None
            self.failure = exc if shown or self.failure is None else self.failure
            text, error = "".join(said), str(self.failure)
            answer = Answer(
                question, text, frame.index, frame.pts_seconds, self.session.name, finish="failed", error=error
            )
        if answer.error is None:
            self.answered += 1
            self._answered_grey = Pictures(frame, grid).eighth_grey
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer


class _AnyStop:
    """Stop flag that is set when any of several is."""

    def __init__(self, *stops: Stop | None) -> None:
        self._stops = [stop for stop in stops if stop is not None]

    def is_set(self) -> bool:
        return any(stop.is_set() for stop in self._stops)


class LiveWatcher:
    """Watcher on a worker thread: it takes the newest frame whenever it is free; a later one carries the result."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._closing = threading.Event()
        self._superseded = threading.Event()
        watcher.stop = _AnyStop(watcher.stop, self._closing, self._superseded)
        watcher.on_begin = self._superseded.clear
        self._skipped = SkippedFrames()
        self._queue: queue.SimpleQueue[tuple[Frame, PatchSet, Future[PatchSet]] | None] = queue.SimpleQueue()
        self._pending: Future[PatchSet] | None = None
        self._thread = threading.Thread(target=self._work, name="arr-stream-watcher", daemon=True)
        self._thread.start()

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
        if self._pending is not None or not self._watcher.wants(frame.pts_seconds):
            self._skipped.add(patches)
            self._watcher.undo_selection()
            return patches
        stream = self._watcher.stream
        if stream is not None and stream.settings.vlm.feedback:
            stream.pipeline.follow()
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
        """Add the result of the frame that was under way to a newer frame, and report it to the pipeline."""
        self._pending = None
        shown = pending.result()
        stream = self._watcher.stream
        if stream is not None and shown.feeding is not None and shown.feeding.error is not None:
            stream.pipeline.forget_sent()
        self._watcher.report(shown)
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
