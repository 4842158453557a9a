"""One frame through the steps: synchronous, deterministic, without threads.

    frame -> visual channels -> flow -> carry -> schedule and keyframe -> queries -> texture -> choice -> memory

Threads and files belong to the callers of this module; no choice depends on a clock.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from arr_stream.budget import budget_tokens
from arr_stream.config import Settings
from arr_stream.keyframes.base import PartName, TextEncoder
from arr_stream.keyframes.generate import CountedKeyframes, KeyframeProvider
from arr_stream.keyframes.objects import detected_labels
from arr_stream.motion.background import UPDATE_SECONDS, Background, motion_evidence
from arr_stream.motion.device import Device
from arr_stream.motion.flow import Flow, FlowInput
from arr_stream.motion.memory import Carried, TemporalCache, carried, with_selection
from arr_stream.motion.objects import DOUBTFUL, LEAST_TRUST
from arr_stream.motion.planes import HISTORY, TEXT
from arr_stream.motion.refresh import Occasion, Refresher, RefreshReason
from arr_stream.patch_set import PatchSet
from arr_stream.relevance.figure import Figure
from arr_stream.relevance.gaze import GazeSource, splat
from arr_stream.relevance.kinds.base import QueryContext, QueryInput
from arr_stream.relevance.meaning import Meanings, renew_meanings, with_semantic_saliency
from arr_stream.relevance.query import Query, TextQuery, resized_queries
from arr_stream.relevance.query_scorers import QueryRelevance, QueryScorers
from arr_stream.selection.novelty import SeenCells
from arr_stream.selection.selector import CellValues, Choice, ScoredFrame, ScoringInputs, score_frame, select_cells
from arr_stream.selection.spending import Spending
from arr_stream.texture.array import Texture
from arr_stream.texture.arrays import Array, enlarged, zeros
from arr_stream.texture.layout import CHANNELS
from arr_stream.texture.visual import FrameFeatures, frame_features, picture_channels
from arr_stream.types import EIGHTH_PER_CELL, BoolArray, DetectedObject, FloatArray, Frame, Grid

if TYPE_CHECKING:
    from arr_stream.keyframes.embeddings.pca import Pca
    from arr_stream.relevance.semantic import SemanticSpace

LEADING = 0.5
"""Peak relevance above which the query dominates, and unrelated text in the scene is mostly ignored."""
_CUT_SHARE = 0.45
"""Share of the colour histogram that must change for a cut."""
_SCORED_PLANES = frozenset((5, 8, 10, TEXT, *range(HISTORY + 1, len(CHANNELS))))
"""First channels of the planes that the scores are computed from."""

_DAMAGED_TRUST = 0.9
"""Factor of the confidence of a flow from or to a damaged frame; a keyframe's trust halves within seven."""


class Stopwatch:
    """Time by stage, in milliseconds."""

    def __init__(self) -> None:
        self._last_seconds = time.perf_counter()
        self.milliseconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Book the time since the last lap to a stage."""
        now_seconds = time.perf_counter()
        self.milliseconds[stage] = (now_seconds - self._last_seconds) * 1e3
        self._last_seconds = now_seconds


def _carry_and_compare(
    before: Carried,
    flow: Flow,
    keyframe: int | None,
    background: Background,
    greys: tuple[Array, Array],
    elapsed_seconds: Array | None,
) -> tuple[Carried, Background, Array, Array]:
    """Carry the state to the current frame, and compute its motion; for the arguments see `motion_evidence`.

    `keyframe` is the index, among the carried flows, of the one to the keyframe in use; None before the first.
    """
    now = carried(before, flow)
    flow_back = None if keyframe is None else now.flows[keyframe]
    return now, *motion_evidence(background, greys, flow, flow_back, elapsed_seconds)


@dataclass(frozen=True, slots=True, eq=False)
class _LastQueries:
    """Queries of the last frame, and the relevance of its places to them."""

    queries: tuple[Query, ...]
    relevance: QueryRelevance

    def relevance_to_ended(self, queries: Sequence[Query]) -> FloatArray:
        """`[gh, gw]` in [0, 1]: the relevance of cells whose query is not among these."""
        gone = [index for index, query in enumerate(self.queries) if query not in queries]
        return np.where(np.isin(self.relevance.query, gone), self.relevance.combined, 0).astype(np.float32)

    def query_dominates(self, queries: Sequence[Query]) -> bool:
        """Return whether these queries were active, and answered so well that the selection followed them."""
        return queries == self.queries and bool(self.relevance.best.max(initial=0.0) >= LEADING)


@dataclass(slots=True)
class _State:
    """State of a stream while its frames keep one size."""

    grid: Grid
    tokens: int
    cache: TemporalCache
    refresher: Refresher
    sent_cells: SeenCells
    figure: Figure
    scorers: QueryScorers
    background: Background | None = None
    background_pts_seconds: float = -math.inf
    change: Array | None = None
    asked: _LastQueries | None = None
    previous: FlowInput | None = None
    colours: Array | None = None
    meanings: Meanings = field(default_factory=Meanings)
    confidence: float = 0.0
    objects_doubtful: bool = False
    last_pts_seconds: float = -math.inf
    last_index: int | None = None


class Pipeline:
    """The state of one stream.

    Args:
        settings: Everything that can be set.
        keyframes: Provider of full generation: in step (`InStepKeyframes`), with a delay of a fixed number of frames
            (`KeyframesBeside`), or in worker processes without a fixed delay (`KeyframeWorkers`).
        queries: Queries of the stream; `ask` replaces them at any time.
        gaze: Source of gaze points.
        encoder: Encodes texts into the space of the keyframes' embeddings; without one, the lexicon scores every text.
        pca: Principal directions of that space; None to learn them from the stream's first keyframes.
        device: Device that processes frames; the CPU by default.

    Attributes:
        keyframes: The provider, which counts failures.
        labels: Classes of the detector in use.
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
        device: Device | None = None,
    ) -> None:
        self._settings = settings
        self._device = device or Device()
        self.keyframes = CountedKeyframes(keyframes)
        self.labels = frozenset(detected_labels(settings))
        self._set_queries(queries)
        self._gaze = gaze
        self._estimator = self._device.make_flow()
        self._state: _State | None = None
        self._query_changed = False
        self._interval_factor = 1
        self._spending = Spending()
        self._space: SemanticSpace | None = None
        if encoder is not None:
            from arr_stream.relevance.semantic import SemanticSpace

            self._space = SemanticSpace(encoder, pca)
            self._space.ask(self.phrases)

    def configure(self, settings: Settings) -> None:
        """Use other settings from the next frame on.

        Settings of the keyframes' models have no effect here: `keyframes.clusters`, `embeddings`, `text` and `objects`,
        `clip`, `sam` and `models` belong to the provider and the encoder that the pipeline was made with.
        """
        if settings.grid != self._settings.grid:
            self._state = None
        if self._state is not None:
            self._state.tokens = budget_tokens(settings.selection.budget, self._state.grid.cells)
        if not settings.selection.per_second:
            self._spending = Spending()
        language_changed = settings.relevance.language != self._settings.relevance.language
        self._settings = settings
        if language_changed:
            self.ask(self._queries)

    def adapt(self, *, interval_factor: int, flow_reduction: int) -> None:
        """Reduce the cost of a frame: make keyframes rarer and search flow on smaller pictures, each by a factor."""
        self._interval_factor = interval_factor
        self._estimator.reduction = flow_reduction

    def ask(self, queries: Sequence[Query]) -> None:
        """Replace the queries from the next frame on.

        Texts for a model are encoded here and scored against the last keyframe's embedding, without another forward
        pass of its picture. The last relevance to a removed query is added to channel 38.
        """
        self._set_queries(queries)
        self._query_changed = True
        self._spending.ask()
        if self._space is not None:
            self._space.ask(self.phrases)
        if self._state is not None:
            self._state.scorers = self._make_scorers(self._state.scorers)
            # A model's attention for one question says little about another.
            self._state.cache.history.forget_attention()

    @property
    def phrases(self) -> tuple[str, ...]:
        """Texts for the model, each once: all that the lexicon and the detector understand only in part."""
        language = self._settings.relevance.language
        if self._space is None or language == "lexicon":
            return ()
        texts = [query for query in self._texts if query.phrase]
        return tuple(dict.fromkeys(query.phrase for query in texts if language == "clip" or query.unknown_words))

    def _set_queries(self, queries: Sequence[Query]) -> None:
        """Set the queries, and the texts among them as they are understood with the detector in use."""
        self._queries = tuple(queries)
        self._texts = tuple(query.detected(self.labels) for query in queries if isinstance(query, TextQuery))

    def _needed_parts(self) -> frozenset[PartName]:
        phrases = self.phrases
        parts: dict[PartName, bool] = {
            "text": any(query.words for query in self._texts),
            "embedding": bool(phrases),
            "objects": any(query.objects and query.phrase not in phrases for query in self._texts),
        }
        return frozenset(part for part, needed in parts.items() if needed)

    def _make_scorers(self, before: QueryScorers | None = None) -> QueryScorers:
        return QueryScorers(self._queries, self.phrases, self.labels, before)

    def follow(self) -> None:
        """Keep the last frame's state, so that `attend` can take attention to it some frames later."""
        if self._state is not None and self._state.last_index is not None:
            self._state.cache.history.await_attention(self._state.last_index)

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
        eighth = self._device.put(enlarged(attention.astype(np.float32), EIGHTH_PER_CELL))
        if late and index is not None:
            return state.cache.history.add_late_attention(eighth, index)
        state.cache.history.add_attention(eighth)
        return True

    def undo_last_selection(self) -> None:
        """Undo the last frame's spending, since the model did not receive it; a budget over time keeps its tokens."""
        if self._settings.selection.per_second and self._state is not None:
            self._state.sent_cells.undo_last_selection()
            self._spending.undo_last_selection()

    def forget_sent(self) -> None:
        """Forget the sent cells, since the model's memory lost some of them; a budget over time may resend these."""
        if self._settings.selection.per_second and self._state is not None:
            self._state.sent_cells.forget()
            self._spending.forget()

    def step(self, frame: Frame) -> PatchSet:
        """Process the next frame and choose its cells.

        Raises:
            KeyframeFailed: Generation raised, and it runs in step.
            RegionOutsideFrame: A region query does not fit this frame.
        """
        with self._device.working():
            return self._step(frame)

    def _step(self, frame: Frame) -> PatchSet:
        watch = Stopwatch()
        state, size_changed = self._state_for(frame)
        rgb = self._device.upload(frame.rgb)
        features = self._device.run(frame_features, rgb, state.colours, state.grid)
        watch.lap("visual")
        flow, cut = self._estimate_flow(state, features, frame)
        watch.lap("flow")
        motion = self._carry(state, flow, features, frame, cut=cut)
        watch.lap("carry")
        reason, notices = self._refresh(state, frame, size_changed=size_changed, cut=cut)
        state.meanings = renew_meanings(state.cache.keyframes, self._space, self.phrases, state.meanings)
        features = self._with_semantic_saliency(features, state)
        watch.lap("keyframe")
        wh = state.grid.texture_wh
        texture = Texture(wh, {**picture_channels(features, rgb, motion, wh), **state.cache.planes})
        watch.lap("texture")
        query_inputs, evidence = self._scoring_inputs(state, texture, features, motion, flow, frame)
        scored = self._device.run(score_frame, evidence)
        values, host_views = self._fetch_values(state, scored)
        region_notices = state.scorers.finish(scored.states, host_views, query_inputs)
        watch.lap("relevance")
        choice, fresh = self._choose(state, texture, values, features.eighth_grey, frame)
        self._remember(state, frame, features, scored.values.relevance.combined, choice)
        watch.lap("selection")
        chosen, asked, in_use = choice.chosen, values.relevance, state.cache.keyframes.newest_index
        return PatchSet(
            index=frame.index,
            pts_seconds=frame.pts_seconds,
            grid=state.grid,
            rows=chosen.rows,
            columns=chosen.columns,
            level=chosen.level,
            score=chosen.score,
            scorer=choice.scorer,
            query=np.where(chosen.level <= 0, asked.query[chosen.rows, chosen.columns], -1).astype(np.int32),
            carried=asked.carried[chosen.rows, chosen.columns],
            fresh=fresh,
            confidence=state.confidence,
            keyframe=reason is not None,
            refresh_reason=reason,
            keyframe_age=frame.index - in_use if in_use is not None else 0,
            keyframe_index=in_use,
            parts=state.cache.keyframes.origins,
            query_scores=tuple(asked.best.tolist()),
            cells_scored=choice.cells_scored,
            texture=texture,
            relevance=choice.score,
            flow=flow,
            latency_ms=watch.milliseconds,
            objects=self._named_objects(state),
            damaged=frame.damaged,
            region=state.scorers.region,
            notices=(*notices, *region_notices),
            frame_ref=weakref.ref(frame),
        )

    def _named_objects(self, state: _State) -> tuple[DetectedObject, ...]:
        """Return the objects on this frame that a query names and whose score was once high; relevance takes all."""
        found = state.cache.keyframes.objects
        if found is None:
            return ()
        labels = {label for query in self._texts for term in query.objects for label in term.classes}
        asked = [each for each in found.objects if each.label in labels]
        named = state.cache.keyframes.present_objects(asked)
        trusts = [each.trust for each in named]
        state.objects_doubtful = bool(trusts) and sum(trusts) / len(trusts) < DOUBTFUL
        return tuple(each for each in named if each.sure and each.trust >= LEAST_TRUST)

    def _state_for(self, frame: Frame) -> tuple[_State, bool]:
        """Return the state for this frame's size, a new one on the first frame and for a new size (then with True)."""
        state = self._state
        if state is not None and frame.size_wh == state.grid.size_wh:
            return state, False
        if state is not None:
            self._queries = resized_queries(self._queries, state.grid.size_wh, frame.size_wh)
        grid = Grid.for_size(frame.size_wh, max_pixels=self._settings.grid.max_pixels)
        self._spending.restart()
        cache = TemporalCache(grid, self._device.put)
        self._state = _State(
            grid=grid,
            tokens=budget_tokens(self._settings.selection.budget, grid.cells),
            cache=cache,
            refresher=Refresher(self.keyframes, cache.keyframes),
            sent_cells=SeenCells(grid, self._device.put),
            figure=Figure.nothing(cache.history.values, cache.keyframes.reduced_hw(8)),
            scorers=self._make_scorers(),
            last_pts_seconds=-math.inf if state is None else state.last_pts_seconds,
        )
        return self._state, state is not None

    def _estimate_flow(self, state: _State, features: FrameFeatures, frame: Frame) -> tuple[Flow | None, bool]:
        """Return the flow to the previous frame, and whether a cut lies between the two (there is no flow then)."""
        # A device transfers the number while it already searches the flow.
        change = self._device.fetch(features.change)
        previous, state.previous = state.previous, FlowInput(features.grey, frame, (features.eighth_grey,))
        state.colours = features.colours
        if previous is None:
            return None, False
        if self._device.on_host and float(change()) > _CUT_SHARE:
            return None, True
        flow = self._estimator.estimate(previous, state.previous)
        if frame.damaged or previous.frame.damaged:
            flow = replace(flow, confidence=flow.confidence * _DAMAGED_TRUST)
        return (None, True) if float(change()) > _CUT_SHARE else (flow, False)

    def _carry(self, state: _State, flow: Flow | None, features: FrameFeatures, frame: Frame, *, cut: bool) -> Array:
        """Propagate the memory to this frame; return the motion channel, `[H/8, W/8]`."""
        cache = state.cache
        self._retire_queries(state)
        if cut:
            cache.forget()
            state.sent_cells.forget()
            self._spending.restart()
            state.figure = Figure.nothing(cache.history.values, cache.keyframes.reduced_hw(8))
        motion = zeros(features.grey, cache.keyframes.reduced_hw(8))
        greys = features.quarter_grey, features.eighth_grey
        if flow is None or state.background is None:
            state.background, state.background_pts_seconds = Background.of(*greys), frame.pts_seconds
            state.change = motion
        else:
            elapsed = frame.pts_seconds - state.background_pts_seconds
            due = elapsed >= UPDATE_SECONDS
            if due:
                state.background_pts_seconds = frame.pts_seconds
            now, state.background, state.change, motion = self._device.run(
                _carry_and_compare,
                cache.moving,
                flow,
                cache.keyframes.newest_position,
                state.background,
                greys,
                self._device.put(np.full((1, 1), elapsed, np.float32)) if due else None,
            )
            cache.move(now, flow)
        cache.history.fade(frame.pts_seconds - state.last_pts_seconds)
        if self._gaze is not None:
            points = self._gaze.between(state.last_pts_seconds, frame.pts_seconds)
            if state.last_pts_seconds == -math.inf:
                # Of gaze before the first frame, only the present point matters.
                points = points[-1:]
            if len(points):
                cache.history.add_gaze(splat(points, cache.keyframes.reduced_hw(8)))
        return motion

    def _retire_queries(self, state: _State) -> None:
        """Add the relevance to queries of the last frame that are no longer active to the history."""
        if state.asked is not None and state.asked.queries != self._queries:
            about = state.asked.relevance_to_ended(self._queries)
            if about.any():
                state.cache.history.add_relevance(enlarged(about, EIGHTH_PER_CELL))

    def _refresh(
        self, state: _State, frame: Frame, *, size_changed: bool, cut: bool
    ) -> tuple[RefreshReason | None, tuple[str, ...]]:
        """Request generation when it is due, and store arrived results; return reason and notices."""
        # A device reports its confidence at the end of a frame; reading it now would stall.
        trust = float(state.cache.keyframes.trust) if self._device.on_host else state.confidence
        needed = self._needed_parts()
        occasion = Occasion(
            confidence=trust,
            size_changed=size_changed,
            cut=cut,
            query_changed=self._query_changed,
            needed=needed,
            window_share=self._settings.keyframes.window_share if "embedding" in needed else 0.0,
            asked=bool(self._queries),
            query_dominates="text" not in needed
            and state.asked is not None
            and state.asked.query_dominates(self._queries),
            objects_doubtful=state.objects_doubtful,
        )
        reason, notices = state.refresher.step(frame, occasion, self._settings.keyframes, self._interval_factor)
        if reason is not None:
            # With a budget over time, a refresh alone resends nothing: the model keeps its cells.
            if not self._settings.selection.per_second:
                state.sent_cells.forget()
            self._query_changed = False
        return reason, notices

    def _with_semantic_saliency(self, features: FrameFeatures, state: _State) -> FrameFeatures:
        """Return the features with saliency raised where the embedding differs from the rest of the frame."""
        unlike, flow_back = state.meanings.unlike, state.cache.keyframes.flow_to("embedding")
        if unlike is None or flow_back is None:
            return features
        saliency = self._device.run(with_semantic_saliency, features.saliency, unlike, flow_back)
        return replace(features, saliency=saliency)

    def _scoring_inputs(
        self, state: _State, texture: Texture, features: FrameFeatures, motion: Array, flow: Flow | None, frame: Frame
    ) -> tuple[QueryInput, ScoringInputs]:
        """Return the scorers' input on the host, and the inputs of the cells' scores."""
        cache, device, settings = state.cache, self._device, self._settings
        assert state.background is not None
        selection = settings.selection
        query_inputs = QueryInput(frame, state.grid, cache.keyframes, state.meanings.maps, device.put, features.quarter)
        scored = {first: plane for first, plane in texture.planes.items() if first in _SCORED_PLANES}
        compared = selection.novelty != "off" or bool(selection.per_second)
        return query_inputs, ScoringInputs(
            figure=state.figure,
            context=QueryContext(
                quarter=features.quarter,
                eighth_motion=motion,
                flow=flow,
                text_flow=cache.keyframes.flow_to("text"),
                embedding_flow=cache.keyframes.flow_to("embedding"),
                object_flow=cache.keyframes.flow_to("objects"),
                trust=settings.relevance.trust,
            ),
            eighth=features.eighth,
            eighth_grey=features.eighth_grey,
            detail=features.high_pass,
            tasks=state.scorers.tasks(query_inputs),
            planes=scored if selection.cascade == "off" else None,
            weights=settings.scoring,
            known=state.background.known,
            change=state.change,
            sent=state.sent_cells.sent if compared else None,
            small_text=cache.keyframes.small_text if selection.fine_share else None,
            grid=state.grid,
        )

    def _fetch_values(self, state: _State, scored: ScoredFrame) -> tuple[CellValues, tuple[Array | None, ...]]:
        """Return the inputs of the selection and the scorers' views of their state, on the host."""
        state.figure = scored.figure
        views = state.scorers.host_views(scored.states)
        values, trust, views = self._device.fetch((scored.values, state.cache.keyframes.trust, views))()
        state.confidence, state.asked = float(trust), _LastQueries(self._queries, values.relevance)
        return values, views

    def _choose(
        self, state: _State, texture: Texture, values: CellValues, eighth_grey: Array, frame: Frame
    ) -> tuple[Choice, BoolArray]:
        """Return the cells chosen on this frame, and which of them are new to the model."""
        settings, sent_cells, offer = self._settings.selection, state.sent_cells, None
        if settings.per_second:
            offer = self._spending.offer(frame.pts_seconds, settings.per_second, state.tokens, values.difference)
        skips = settings.novelty == "skip" and offer is None
        choice = select_cells(
            texture,
            state.grid,
            values,
            settings,
            self._settings.scoring,
            state.tokens,
            skip=sent_cells.known(eighth_grey, values.difference) if skips else None,
            offer=offer,
        )
        if offer is not None:
            self._spending.spend(offer, state.tokens, choice.score, choice.chosen)
        elif settings.novelty == "off":
            return choice, np.ones(len(choice.chosen), bool)
        new_scene = offer is not None and offer.settled is None
        return choice, sent_cells.send(choice.chosen, eighth_grey, values.difference, whole=new_scene)

    def _remember(self, state: _State, frame: Frame, features: FrameFeatures, relevance: Array, choice: Choice) -> None:
        selected = np.zeros((state.grid.rows, state.grid.columns), np.float32)
        fine = choice.chosen.level <= 0
        selected[choice.chosen.rows[fine], choice.chosen.columns[fine]] = 1
        history = self._device.run(with_selection, state.cache.history.values, self._device.put(selected))
        state.cache.history.end_frame(history, relevance, features.saliency)
        state.last_pts_seconds, state.last_index = frame.pts_seconds, frame.index
