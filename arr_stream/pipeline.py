"""One frame through the steps: synchronous, deterministic, without threads.

    frame -> visual channels -> flow -> carry -> schedule and keyframe -> queries -> texture -> choice -> memory

Whatever owns threads, clocks and files is around this module, never in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.config import Settings
from arr_stream.keyframes.base import PARTS, PartName, TextEncoder
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.keyframes.generate import KeyframeFailure, KeyframeProvider, KeyframeRequest
from arr_stream.keyframes.schedule import (
    RefreshReason,
    ScheduleState,
    colour_histogram,
    histogram_change,
    refresh_reason,
)
from arr_stream.motion import make_flow
from arr_stream.motion.assembly import assemble
from arr_stream.motion.camera import camera_of, independent_motion, visible_structure
from arr_stream.motion.flow import Flow, FlowInput
from arr_stream.motion.memory import TemporalCache
from arr_stream.patch_set import PatchSet
from arr_stream.relevance.figure import FigureMemory
from arr_stream.relevance.gaze import GazeSource, splat
from arr_stream.relevance.query import Query, TextQuery
from arr_stream.relevance.query_scorers import Asked, Asking, Scene
from arr_stream.relevance.realization import Realized, realize_relevance
from arr_stream.relevance.semantic import SemanticSpace
from arr_stream.selection.budget import budget_tokens, fitted_tokens
from arr_stream.selection.novelty import SeenCells
from arr_stream.texture.array import Texture
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.visual import VisualChannels, visual_channels
from arr_stream.threads import one_torch_thread
from arr_stream.types import FloatArray, Frame, Grid

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


@dataclass(frozen=True, slots=True)
class _Meanings:
    """How well the places of one embedding fit the phrases that are asked, each `[h, w]` in [0, 1].

    Args:
        version: Of the semantic space that they were scored in.
        maps: By phrase.
    """

    version: int
    maps: Mapping[str, FloatArray]


@dataclass(slots=True)
class _State:
    """What is remembered of a stream while its frames keep one size."""

    grid: Grid
    tokens: int
    cache: TemporalCache
    seen: SeenCells
    figure: FigureMemory
    asking: Asking
    previous: FlowInput | None = None
    histogram: FloatArray | None = None
    requested_index: int | None = None
    owed: RefreshReason | None = None
    owed_parts: tuple[PartName, ...] = ()
    failed: bool = False
    meanings: _Meanings | None = None
    last_pts_seconds: float = -math.inf
    last_index: int | None = None


class Pipeline:
    """The state of one stream.

    Args:
        settings: Everything that can be set.
        keyframes: Who runs full generation: at once (`InStepKeyframes`) or beside the frames (`KeyframeWorker`).
        queries: What is asked; may be replaced at any time with `ask`.
        gaze: Where someone looked, by time.
        encoder: Encodes texts into the space of the keyframes' embeddings; without one the lexicon answers alone.
        pca: Principal directions of that space; None to learn them from the stream's first keyframes.
        clock: For `PatchSet.latency_ms`; without one it stays empty.
    """

    def __init__(
        self,
        settings: Settings,
        keyframes: KeyframeProvider,
        queries: Sequence[Query] = (),
        *,
        gaze: GazeSource | None = None,
        encoder: TextEncoder | None = None,
        pca: Pca | None = None,
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
        self._interval_factor = 1
        self._space = SemanticSpace(encoder, pca) if encoder is not None else None
        self._notices = self._ask_model()

    def configure(self, settings: Settings) -> None:
        """Take other settings from the next frame on.

        What makes keyframes stays as it is: `keyframes.clusters`, `embeddings` and `text`, `clip`, `sam` and `models`
        belong to the provider and the encoder that the pipeline was made with.

        Raises:
            BudgetError: The budget does not fit the present frame's grid.
        """
        if settings.grid != self._settings.grid:
            self._state = None
        if self._state is not None:
            self._state.tokens = budget_tokens(settings.selection.budget, self._state.grid.cells)
        if settings.motion != self._settings.motion:
            self._estimator = make_flow(settings.motion.flow, settings.motion.preset)
        language_changed = settings.relevance.language != self._settings.relevance.language
        self._settings = settings
        if language_changed:
            self.ask(self._queries)

    def adapt(self, *, interval_factor: int, flow_reduction: int) -> None:
        """Spend less on each frame: keyframes so many times rarer, flow searched on pictures so many times smaller."""
        self._interval_factor = interval_factor
        if hasattr(self._estimator, "reduction"):
            self._estimator.reduction = flow_reduction

    def ask(self, queries: Sequence[Query]) -> None:
        """Replace the queries from the next frame on.

        Texts that go to a model are encoded here; what the last keyframe knows is then scored anew, without another
        look at its picture.
        """
        self._queries = tuple(queries)
        self._query_changed = True
        self._notices = self._ask_model()
        if self._state is not None:
            self._state.asking = self._asking(self._state.grid, self._state.asking)
            # Where a model looked for one thing says little about another.
            self._state.cache.forget_attention()

    @property
    def phrases(self) -> tuple[str, ...]:
        """What a model is asked about, each once: the texts that the lexicon does not understand in full."""
        language = self._settings.relevance.language
        if self._space is None or language == "lexicon":
            return ()
        texts = [query for query in self._queries if isinstance(query, TextQuery) and query.phrase]
        return tuple(dict.fromkeys(query.phrase for query in texts if language == "clip" or query.unknown_words))

    def _ask_model(self) -> tuple[str, ...]:
        """Encode what is asked of the model; notices about it."""
        return () if self._space is None else self._space.ask(self.phrases)

    def _asking(self, grid: Grid, before: Asking | None = None) -> Asking:
        anchored = self._settings.relevance.anchoring
        return Asking(self._queries, (grid.rows, grid.columns), self.phrases, before, anchored=anchored)

    def follow(self) -> None:
        """Remember the last frame, for attention to it that `attend` is given some frames later."""
        if self._state is not None and self._state.last_index is not None:
            self._state.cache.follow(self._state.last_index)

    def attend(self, attention: FloatArray, index: int | None = None) -> bool:
        """Take a consumer model's attention over the cells of a frame, `[gh, gw]` in [0, 1].

        It becomes channel 37, adds to channel 38, and raises the relevance of those cells from the next frame on.

        Args:
            attention: One value a cell.
            index: The frame that it belongs to, None for the last one. An earlier one must be the last that was
                followed; its attention is carried to the present along the flow.

        Returns:
            False when the frame was not followed, or its scene or size is gone; nothing is changed then.

        Raises:
            ValueError: No frame yet, not one value a cell, or outside [0, 1].
        """
        state = self._state
        if state is None:
            raise ValueError("attention belongs to a frame, and there has been none")
        expected = (state.grid.rows, state.grid.columns)
        late = index is not None and index != state.last_index
        if attention.shape != expected:
            if late:
                return False
            raise ValueError(f"attention is {list(attention.shape)}, expected one value a cell, {list(expected)}")
        if not (np.isfinite(attention).all() and attention.min() >= 0 and attention.max() <= 1):
            raise ValueError("attention must lie in [0, 1]")
        eighth = _to_eighth(attention.astype(np.float32))
        if late and index is not None:
            return state.cache.attend_late(eighth, index)
        state.cache.attend(eighth)
        return True

    def step(self, frame: Frame) -> PatchSet:
        """Take the next frame and choose its cells.

        Raises:
            KeyframeFailed: Generation raised, and it runs in step.
            BudgetError: The budget does not fit the first frame's grid.
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
        motion = self._carry(state, flow, pictures, cut=cut)
        watch.lap("carry")
        reason, notices = self._refresh(state, frame, size_changed=size_changed, cut=cut)
        self._understand(state)
        watch.lap("keyframe")
        asked = state.asking.ask(self._scene(state, pictures, flow, motion))
        watch.lap("relevance")
        texture = assemble(pictures, visual, motion, state.cache)
        watch.lap("texture")
        figure = state.figure.see(pictures.eighth, visual.fine[2], motion, flow)
        watch.lap("figure")
        realized, fresh = self._select(state, texture, asked, pictures, figure)
        self._remember(state, frame, realized, asked, visual)
        watch.lap("selection")
        chosen, in_use = realized.chosen, state.cache.keyframe_index
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
            keyframe_age=frame.index - in_use if in_use is not None else 0,
            keyframe_index=in_use,
            parts=state.cache.origins,
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
        # A stream whose pictures become too small for the budget goes on with whole frames.
        tokens = (budget_tokens if state is None else fitted_tokens)(self._settings.selection.budget, grid.cells)
        self._state = self._new_state(grid, tokens)
        return self._state, state is not None

    def _new_state(self, grid: Grid, tokens: int) -> _State:
        return _State(
            grid=grid,
            tokens=tokens,
            cache=TemporalCache(grid),
            seen=SeenCells(grid),
            figure=FigureMemory(grid),
            asking=self._asking(grid),
        )

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

    def _carry(self, state: _State, flow: Flow | None, pictures: Pictures, *, cut: bool) -> FloatArray:
        """Bring the memory to this frame; gives the motion channel, `[H/8, W/8]`."""
        if cut:
            state.cache.forget()
            state.seen.forget()
            state.figure.forget()
        now_seconds = pictures.frame.pts_seconds
        motion = np.zeros(state.cache.reduced_hw(8), np.float32)
        if flow is not None:
            state.cache.advance(flow)
            structure = visible_structure(pictures.eighth_grey)
            independent = independent_motion(flow.offset_px, camera_of(flow), structure)
            motion = cv2.max(independent, flow.residual)
        if self._gaze is not None:
            points = self._gaze.between(state.last_pts_seconds, now_seconds)
            bump = splat(points, state.cache.reduced_hw(8)) if len(points) else None
            state.cache.look(bump, now_seconds - state.last_pts_seconds)
        return motion

    def _refresh(
        self, state: _State, frame: Frame, *, size_changed: bool, cut: bool
    ) -> tuple[RefreshReason | None, tuple[str, ...]]:
        """Ask for generation when it is due, and take in what has arrived; reason and notices."""
        cache = state.cache
        since = state.requested_index
        due = refresh_reason(
            ScheduleState(
                have_keyframe=cache.keyframe_index is not None,
                pending=all(cache.pending(part) for part in PARTS),
                age_frames=frame.index - since if since is not None else 0,
                confidence=float(cache.confidence.mean()),
                size_changed=size_changed,
                cut=cut,
                query_changed=self._query_changed,
                failed=state.failed,
            ),
            self._settings.keyframes,
            self._interval_factor,
        )
        notices, self._notices = self._notices, ()
        reason = due or state.owed
        accepted = self._submit(state, frame, PARTS if reason is not None else state.owed_parts)
        if reason is not None and accepted:
            state.seen.forget()
            state.requested_index, state.owed = frame.index, None
            self._query_changed = False
        elif reason is not None:
            # Everything is still busy with a scene that is gone; the refresh stays due.
            reason, state.owed = None, reason
        return reason, (*notices, *self._collect(state))

    def _submit(self, state: _State, frame: Frame, wanted: tuple[PartName, ...]) -> tuple[PartName, ...]:
        """Ask for parts; those that are busy are asked for again on the next frames. Gives those that are made now."""
        if not wanted:
            return ()
        read_text = any(query.needs_words for query in self._queries)
        accepted = self._provider.submit(KeyframeRequest(frame, state.grid, read_text, wanted))
        if accepted:
            state.cache.requested(frame.index, accepted)
        state.owed_parts = tuple(part for part in wanted if part not in accepted)
        return accepted

    def _collect(self, state: _State) -> tuple[str, ...]:
        notices = []
        for outcome in self._provider.collect():
            if isinstance(outcome, KeyframeFailure):
                state.cache.dropped(outcome.index, outcome.parts)
                state.failed = len(outcome.parts) == len(PARTS) or state.cache.keyframe_index is None
                notices.append(f"keyframe {outcome.index} failed: {outcome.message}; next try at the next keyframe")
            elif state.cache.adopt(outcome):
                state.failed = False
        return tuple(notices)

    def _understand(self, state: _State) -> None:
        """Bring a new embedding, or an old one under new queries, to channels 18 to 33 and to meanings."""
        cache, space = state.cache, self._space
        embedding = cache.embedding
        if embedding is None:
            state.meanings = None
            return
        made = embedding.value
        if not made.joint:
            if cache.embedding_channels is None:
                cache.embedding_channels = _to_half_cells(made.values, state.grid)
            return
        if space is None:
            raise ValueError(f"embeddings of {made.space!r} are in a joint space: give the pipeline its text encoder")
        if cache.embedding_channels is None:
            space.learn(made)
        known = state.meanings
        if cache.embedding_channels is None or known is None or known.version != space.version:
            cache.embedding_channels = _to_half_cells(space.project(made), state.grid)
            scores = space.relevance(cache.embedding_channels)
            state.meanings = _Meanings(space.version, dict(zip(self.phrases, scores, strict=True)))

    def _scene(self, state: _State, pictures: Pictures, flow: Flow | None, motion: FloatArray) -> Scene:
        return Scene(
            pictures=pictures,
            pts_seconds=pictures.frame.pts_seconds,
            flow=flow,
            eighth_motion=motion,
            cache=state.cache,
            trust=self._settings.relevance.trust,
            meanings=state.meanings.maps if state.meanings is not None else {},
        )

    def _select(
        self, state: _State, texture: Texture, asked: Asked, pictures: Pictures, figure: FloatArray
    ) -> tuple[Realized, npt.NDArray[np.bool_]]:
        """The cells of this frame, and which of them are new to the model."""
        settings = self._settings.selection
        skip = state.seen.known(pictures.eighth_grey) if settings.novelty == "skip" else None
        weights = self._settings.scoring
        realized = realize_relevance(texture, state.grid, asked, settings, weights, state.tokens, skip, figure)
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
        state.last_pts_seconds, state.last_index = frame.pts_seconds, frame.index


def _to_eighth(cells: FloatArray) -> FloatArray:
    """One value a cell as a map at an eighth of the texture's size."""
    eighth: FloatArray = cells.repeat(4, axis=0).repeat(4, axis=1)
    return eighth


def _to_half_cells(channels: FloatArray, grid: Grid) -> FloatArray:
    """`[16, 2*gh, 2*gw]`: two samples a cell and side, whatever the embedder gave."""
    size_wh = (2 * grid.columns, 2 * grid.rows)
    if channels.shape[1:] == size_wh[::-1]:
        return channels
    return np.stack([cv2.resize(plane, size_wh, interpolation=cv2.INTER_LINEAR) for plane in channels])
