"""One frame through the steps: synchronous, deterministic, without threads.

    frame -> visual channels -> flow -> carry -> schedule and keyframe -> queries -> texture -> choice -> memory

Whatever owns threads, clocks and files is around this module, never in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.config import Settings
from arr_stream.keyframes.generate import KeyframeFailure, KeyframeProvider, KeyframeRequest
from arr_stream.keyframes.schedule import (
    RefreshReason,
    ScheduleState,
    colour_histogram,
    histogram_change,
    refresh_reason,
)
from arr_stream.motion import make_flow
from arr_stream.motion.camera import camera_flow, independent_motion
from arr_stream.motion.flow import Flow, FlowInput
from arr_stream.relevance.asking import Asked, Asking, Scene
from arr_stream.relevance.gaze import GazeTrack, splat
from arr_stream.relevance.query import Query
from arr_stream.relevance.realizing import Realized, realize_relevance
from arr_stream.selection.budget import budget_tokens
from arr_stream.selection.novelty import SeenCells
from arr_stream.temporal.cache import TemporalCache
from arr_stream.texture.array import Texture
from arr_stream.texture.assemble import assemble
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.visual import VisualChannels, visual_channels
from arr_stream.threads import one_torch_thread
from arr_stream.types import FloatArray, Frame, Grid, PatchSet

Clock = Callable[[], float]


class Stopwatch:
    """Time by stage, read from a clock that the caller owns; without one it does nothing.

    Args:
        clock: Seconds, increasing, such as `time.perf_counter`.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._last = clock() if clock is not None else 0.0
        self.milliseconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Book the time since the last lap to a stage."""
        if self._clock is None:
            return
        now = self._clock()
        self.milliseconds[stage] = self.milliseconds.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now


@dataclass(slots=True)
class _State:
    """What is remembered of a stream while its frames keep one size."""

    grid: Grid
    tokens: int
    cache: TemporalCache
    seen: SeenCells
    asking: Asking
    previous: FlowInput | None = None
    histogram: FloatArray | None = None
    requested_index: int | None = None
    owed: RefreshReason | None = None
    failed: bool = False
    last_pts_seconds: float = -math.inf


class Pipeline:
    """The state of one stream.

    Args:
        settings: Everything that can be set.
        keyframes: Who runs full generation: at once (`InStepKeyframes`) or beside the frames (`KeyframeWorker`).
        queries: What is asked; may be replaced at any time with `ask`.
        gaze: Where someone looked, by time.
        clock: For `PatchSet.latency_ms`; without one it stays empty.
    """

    def __init__(
        self,
        settings: Settings,
        keyframes: KeyframeProvider,
        queries: Sequence[Query] = (),
        *,
        gaze: GazeTrack | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._provider = keyframes
        self._queries = tuple(queries)
        self._gaze = gaze
        self._clock = clock
        self._estimator = make_flow(settings.motion.flow, settings.motion.preset)
        self._state: _State | None = None
        self._query_changed = False

    def ask(self, queries: Sequence[Query]) -> None:
        """Replace the queries from the next frame on."""
        self._queries = tuple(queries)
        self._query_changed = True
        if self._state is not None:
            grid = self._state.grid
            self._state.asking = Asking(self._queries, (grid.rows, grid.columns))

    def attend(self, attention: FloatArray) -> None:
        """Take a consumer model's attention over the cells of the last frame, `[gh, gw]` in [0, 1].

        Raises:
            ValueError: No frame yet, not one value a cell, or outside [0, 1].
        """
        if self._state is None:
            raise ValueError("attention belongs to a frame, and there has been none")
        expected = (self._state.grid.rows, self._state.grid.columns)
        if attention.shape != expected:
            raise ValueError(f"attention is {list(attention.shape)}, expected one value a cell, {list(expected)}")
        if not (np.isfinite(attention).all() and attention.min() >= 0 and attention.max() <= 1):
            raise ValueError("attention must lie in [0, 1]")
        self._state.cache.attend(_to_eighth(attention.astype(np.float32)))

    def step(self, frame: Frame) -> PatchSet:
        """Take the next frame and choose its cells.

        Raises:
            KeyframeFailed: Generation raised, and it runs in step.
            BudgetError: The budget does not fit this frame's grid.
            RegionOutsideFrame: A region query does not fit this frame.
        """
        with one_torch_thread():
            return self._step(frame)

    def _step(self, frame: Frame) -> PatchSet:
        watch = Stopwatch(self._clock)
        state, size_changed = self._fit(frame)
        pictures = Pictures(frame, state.grid)
        visual = visual_channels(pictures)
        watch.lap("visual")
        flow, cut = self._follow(state, pictures)
        watch.lap("flow")
        motion = self._carry(state, flow, frame, cut=cut)
        watch.lap("carry")
        reason, notices = self._refresh(state, frame, size_changed=size_changed, cut=cut)
        watch.lap("keyframe")
        asked = state.asking.ask(self._scene(state, pictures, flow, motion))
        watch.lap("relevance")
        texture = assemble(pictures, visual, motion, state.cache)
        watch.lap("texture")
        realized, fresh = self._select(state, texture, asked, pictures)
        self._remember(state, frame, realized, asked, visual)
        watch.lap("selection")
        chosen, in_use = realized.chosen, state.cache.keyframe
        return PatchSet(
            index=frame.index,
            pts_seconds=frame.pts_seconds,
            grid=state.grid,
            rows=chosen.rows,
            columns=chosen.columns,
            level=chosen.level,
            score=chosen.score,
            scorer=realized.scorer,
            query=np.where(chosen.level == 0, asked.query[chosen.rows, chosen.columns], -1).astype(np.int32),
            carried=asked.carried[chosen.rows, chosen.columns],
            fresh=fresh,
            confidence=float(state.cache.confidence.mean()),
            keyframe=reason is not None,
            refresh_reason=reason,
            keyframe_age=frame.index - in_use.result.index if in_use is not None else 0,
            keyframe_index=in_use.result.index if in_use is not None else None,
            query_scores=tuple(float(scores.max()) for scores in asked.relevance),
            cells_scored=realized.cells_scored,
            texture=texture,
            relevance=realized.score,
            flow=flow,
            latency_ms=watch.milliseconds,
            notices=notices,
        )

    def _fit(self, frame: Frame) -> tuple[_State, bool]:
        """The state for this frame's size: a new one on the first frame and when the size changes (then True)."""
        state = self._state
        if state is not None and frame.size_wh == state.grid.size_wh:
            return state, False
        grid = Grid.for_size(frame.size_wh, max_pixels=self._settings.grid.max_pixels)
        self._state = _State(
            grid=grid,
            tokens=budget_tokens(self._settings.selection.budget, grid.cells),
            cache=TemporalCache(grid),
            seen=SeenCells(grid),
            asking=Asking(self._queries, (grid.rows, grid.columns)),
        )
        return self._state, state is not None

    def _follow(self, state: _State, pictures: Pictures) -> tuple[Flow | None, bool]:
        """Flow to the frame before, and whether the scene was cut between the two (then there is no flow)."""
        histogram = colour_histogram(pictures.eighth)
        before, state.histogram = state.histogram, histogram
        previous, state.previous = state.previous, FlowInput(pictures.grey, pictures.frame)
        if previous is None or before is None:
            return None, False
        if histogram_change(before, histogram) > self._settings.keyframes.cut_threshold:
            return None, True
        return self._estimator.estimate(previous, state.previous), False

    def _carry(self, state: _State, flow: Flow | None, frame: Frame, *, cut: bool) -> FloatArray:
        """Bring the memory to this frame; gives the motion channel, `[H/8, W/8]`."""
        if cut:
            state.cache.forget()
            state.seen.forget()
        motion = np.zeros(state.cache.reduced_hw(8), np.float32)
        if flow is not None:
            state.cache.advance(flow)
            camera_px = camera_flow(flow.offset_px, flow.confidence)
            motion = cv2.max(independent_motion(flow.offset_px, camera_px), flow.residual)
        if self._gaze is not None:
            points = self._gaze.between(state.last_pts_seconds, frame.pts_seconds)
            bump = splat(points, state.cache.reduced_hw(8)) if len(points) else None
            state.cache.look(bump, frame.pts_seconds - state.last_pts_seconds)
        return motion

    def _refresh(
        self, state: _State, frame: Frame, *, size_changed: bool, cut: bool
    ) -> tuple[RefreshReason | None, tuple[str, ...]]:
        """Ask for generation when it is due, and take in what has arrived; reason and notices."""
        cache = state.cache
        since = state.requested_index
        due = refresh_reason(
            ScheduleState(
                have_keyframe=cache.keyframe is not None,
                pending=cache.pending,
                age_frames=frame.index - since if since is not None else 0,
                confidence=float(cache.confidence.mean()),
                size_changed=size_changed,
                cut=cut,
                query_changed=self._query_changed,
                failed=state.failed,
            ),
            self._settings.keyframes,
        )
        reason = due or state.owed
        if reason is not None:
            read_text = any(query.needs_words for query in self._queries)
            if self._provider.submit(KeyframeRequest(frame, state.grid, read_text)):
                cache.requested(frame.index)
                state.seen.forget()
                state.requested_index, state.owed = frame.index, None
                self._query_changed = False
            else:
                # The worker is still busy with a scene that is gone; the refresh stays due.
                reason, state.owed = None, reason
        return reason, self._collect(state)

    def _collect(self, state: _State) -> tuple[str, ...]:
        notices = []
        for outcome in self._provider.collect():
            if isinstance(outcome, KeyframeFailure):
                state.cache.dropped(outcome.index)
                state.failed = True
                notices.append(f"keyframe {outcome.index} failed: {outcome.message}; next try at the next keyframe")
            elif state.cache.adopt(outcome):
                state.failed = False
        return tuple(notices)

    def _scene(self, state: _State, pictures: Pictures, flow: Flow | None, motion: FloatArray) -> Scene:
        return Scene(
            pictures=pictures,
            pts_seconds=pictures.frame.pts_seconds,
            flow=flow,
            eighth_motion=motion,
            keyframe=state.cache.keyframe,
            trust=self._settings.relevance.trust,
            anchors=state.cache.anchors,
        )

    def _select(
        self, state: _State, texture: Texture, asked: Asked, pictures: Pictures
    ) -> tuple[Realized, npt.NDArray[np.bool_]]:
        """The cells of this frame, and which of them are new to the model."""
        settings = self._settings.selection
        skip = state.seen.known(pictures.eighth_grey) if settings.novelty == "skip" else None
        realized = realize_relevance(texture, state.grid, asked, settings, state.tokens, skip)
        if settings.novelty == "off":
            return realized, np.ones(len(realized.chosen), bool)
        return realized, state.seen.send(realized.chosen, pictures.eighth_grey)

    def _remember(self, state: _State, frame: Frame, realized: Realized, asked: Asked, visual: VisualChannels) -> None:
        """What the next frame will know of this one."""
        state.cache.remember("previous_relevance", _to_eighth(asked.combined))
        state.cache.remember("previous_saliency", visual.saliency)
        selected = np.zeros((state.grid.rows, state.grid.columns), np.float32)
        fine = realized.chosen.level == 0
        selected[realized.chosen.rows[fine], realized.chosen.columns[fine]] = 1
        state.cache.fixate(_to_eighth(selected))
        state.last_pts_seconds = frame.pts_seconds


def _to_eighth(cells: FloatArray) -> FloatArray:
    """One value a cell as a map at an eighth of the texture's size."""
    eighth: FloatArray = cells.repeat(4, axis=0).repeat(4, axis=1)
    return eighth
