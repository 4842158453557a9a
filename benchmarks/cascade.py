"""Does looking at regions first lose anything, and how much does it save?

The same frames are scored twice, every place one by one and regions first, and the same number of tokens is chosen by
the same rule from either. What counts is how many places were scored and how much of the asked object the chosen ones
show. Places are cells, or halves of cells, so that a frame of 1024x1024 px also has 4096 of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.evaluation.davis import Sequence as Footage
from arr_stream.evaluation.davis import check_mask, tight_box
from arr_stream.evaluation.tables import Report, ResultTable, plain
from arr_stream.evaluation.timing import timed
from arr_stream.keyframes.base import Clusterer, KeyframeInput
from arr_stream.motion.anchor import ColourModel
from arr_stream.motion.memory import TemporalCache
from arr_stream.relevance.cell_scores import CellScores, balance_all
from arr_stream.relevance.membership import Senses, text_relevance
from arr_stream.relevance.query import TextQuery, parse_text
from arr_stream.relevance.scorers import SCORED_CHANNELS
from arr_stream.selection.allocation import allocate_tokens
from arr_stream.selection.atlas import cells_of_clusters
from arr_stream.selection.cascade import CascadeScores, regions_of_cells, score_cascaded
from arr_stream.texture.array import CELL_LEVEL, Texture
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.visual import look_at, picture_channels
from arr_stream.threads import one_blas_thread
from arr_stream.types import BoolArray, ByteArray, FloatArray, Frame, Grid
from benchmarks.scenes.shapes import make_scene

DEFAULT_WEIGHTS = ScoringSettings()
THINGS = (3, 7)
DIAMETER_SHARE = (0.05, 0.3)
"""Smallest and largest diameter of a thing, as a share of the picture's side."""


@dataclass(frozen=True, slots=True, eq=False)
class CascadeCase:
    """One picture and what is asked of it.

    Args:
        kind: Name of the set it belongs to.
        rgb: `[H, W, 3]` uint8.
        mask: `[H, W]`, the asked object; not empty.
        relevance: Given the picture at a quarter of the texture's size, `[h, w]` relevance in [0, 1].
    """

    kind: str
    rgb: ByteArray
    mask: BoolArray
    relevance: Callable[[ByteArray], FloatArray]


@dataclass(frozen=True, slots=True)
class CascadeRow:
    """One budget on one set, means over its pictures.

    Args:
        kind: The set.
        pictures: How many.
        tokens: Places chosen.
        places: Places of a picture.
        relevant: Places with any relevance worth the name.
        scored: Places and regions scored with the cascade.
        scored_most: The most on any picture.
        coverage_all: Share of the object in the chosen places when every place is scored.
        coverage_cascade: The same with the cascade.
        lost_most: The greatest loss on any picture, as a share of the object.
        score_kept: Sum of the chosen places' scores with the cascade, as a share of that without.
        all_ms, cascade_ms: Median process time of scoring.
    """

    kind: str
    pictures: int
    tokens: int
    places: int
    relevant: float
    scored: float
    scored_most: int
    coverage_all: float
    coverage_cascade: float
    lost_most: float
    score_kept: float
    all_ms: float
    cascade_ms: float

    @property
    def saving(self) -> float:
        """How many times fewer places are scored, on the worst picture."""
        return self.places / self.scored_most

    @property
    def lost(self) -> float:
        """Share of the coverage lost."""
        return 1 - self.coverage_cascade / max(self.coverage_all, 1e-9)


@dataclass(frozen=True, slots=True)
class CascadeReport(Report):
    """All rows."""

    rows: tuple[CascadeRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        rows = tuple(
            (
                *(row.kind, row.tokens, row.scored_most, f"{row.saving:.1f}x", row.coverage_all, row.coverage_cascade),
                # Never -0.0%.
                *(f"{round(row.lost, 3) + 0.0:.1%}", f"{row.all_ms:.2f}", f"{row.cascade_ms:.2f}"),
            )
            for row in self.rows
        )
        headings = ("asked by", "tokens", "scored", "fewer", "all", "cascade", "lost", "all, ms", "cascade, ms")
        return (ResultTable(f"{self.rows[0].places} places", headings, rows),) if rows else ()

    def facts(self) -> Mapping[str, Any]:
        return {"rows": [plain(row) | {"saving": row.saving, "lost": row.lost} for row in self.rows]}


def evaluate_cascade(
    cases: Iterable[CascadeCase], budgets: Sequence[int], clusterer: Clusterer, *, level: int = CELL_LEVEL
) -> CascadeReport:
    """Score every case with and without the cascade.

    Args:
        cases: Pictures and questions.
        budgets: Tokens to choose.
        clusterer: Who makes the regions.
        level: Mip level of the places: 5 for cells, 4 for half cells.
    """
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    with one_blas_thread():
        for case in cases:
            scene = _scene(case, clusterer, level)
            for tokens in budgets:
                found.setdefault((case.kind, tokens), []).append(_compare(case.mask, scene, tokens))
    return CascadeReport(tuple(_row(kind, tokens, values) for (kind, tokens), values in found.items()))


@dataclass(frozen=True, slots=True, eq=False)
class _Scene:
    """What scoring reads: places row by row."""

    hw: tuple[int, int]
    table: FloatArray
    relevance: FloatArray
    edge_distance: FloatArray
    labels: Any


def _scene(case: CascadeCase, clusterer: Clusterer, level: int) -> _Scene:
    height, width = case.mask.shape
    grid = Grid.for_size((width, height))
    frame = Frame(0, 0.0, case.rgb)
    pictures = Pictures(frame, grid)
    still = np.zeros((grid.rows * 4, grid.columns * 4), np.float32)
    wh = grid.texture_wh
    look = look_at(case.rgb, None, grid)
    texture = Texture(wh, {**picture_channels(look, case.rgb, still, wh), **TemporalCache(grid).planes})
    values = texture.mip(level, (*SCORED_CHANNELS, CHANNEL_INDEX["edge_distance"])).numpy()
    hw = values.shape[1], values.shape[2]
    relevance = cv2.resize(case.relevance(pictures.quarter), hw[::-1], interpolation=cv2.INTER_AREA)
    labels = cells_of_clusters(clusterer.cluster(KeyframeInput(frame, grid)), Grid((width, height), *hw))
    *table, edge_distance = values.reshape(len(values), -1)
    return _Scene(hw, np.stack(table, axis=1), relevance.astype(np.float32).ravel(), edge_distance, labels)


def _compare(mask: BoolArray, scene: _Scene, tokens: int) -> tuple[float, ...]:
    def whole() -> CascadeScores:
        count = len(scene.relevance)
        balance = balance_all(scene.table, scene.relevance, DEFAULT_WEIGHTS)
        scores = CellScores(
            balance.score, balance.by_scorer.argmax(axis=0), scene.relevance, np.zeros_like(scene.relevance)
        )
        return CascadeScores(scores, np.ones(count, bool), count)

    def cascade() -> CascadeScores:
        regions = regions_of_cells(scene.labels)
        return score_cascaded(
            scene.table, scene.relevance, scene.edge_distance, regions, DEFAULT_WEIGHTS, tokens=tokens
        )

    all_scores, all_ms = _timed(whole)
    some_scores, cascade_ms = _timed(cascade)
    covered, kept = [], []
    for scores in (all_scores, some_scores):
        score, eligible = scores.scores.score.reshape(scene.hw), scores.looked_at.reshape(scene.hw)
        chosen = allocate_tokens(score, eligible, tokens, 0)
        places = chosen.rows * scene.hw[1] + chosen.columns
        covered.append(covered_share(mask, scene.hw, places))
        kept.append(float(all_scores.scores.score[places].sum()))
    relevant = int((scene.relevance > max(0.02 * float(scene.relevance.max()), 1e-3)).sum())
    score_kept = kept[1] / max(kept[0], 1e-9)
    return len(scene.relevance), relevant, some_scores.count, *covered, score_kept, all_ms, cascade_ms


def covered_share(mask: BoolArray, hw: tuple[int, int], places: Any) -> float:
    """Share of a mask inside some of `hw` even places, given by flat index."""
    grid = np.zeros(hw, np.uint8)
    grid.ravel()[places] = 1
    shown = cv2.resize(grid, mask.shape[::-1], interpolation=cv2.INTER_NEAREST) > 0
    return float((mask & shown).sum() / mask.sum())


def _timed(score: Callable[[], CascadeScores]) -> tuple[CascadeScores, float]:
    spent: list[float] = []
    for _ in range(5):
        with timed(spent, clock=time.process_time):
            scores = score()
    return scores, float(np.median(spent))


def _row(kind: str, tokens: int, values: list[tuple[float, ...]]) -> CascadeRow:
    places, relevant, scored, every, some, kept, all_ms, cascade_ms = np.array(values).T
    return CascadeRow(
        kind=kind,
        pictures=len(values),
        tokens=tokens,
        places=int(places.min()),
        relevant=float(relevant.mean()),
        scored=float(scored.mean()),
        scored_most=int(scored.max()),
        coverage_all=float(every.mean()),
        coverage_cascade=float(some.mean()),
        lost_most=float((every - some).max()),
        score_kept=float(kept.mean()),
        all_ms=float(np.median(all_ms)),
        cascade_ms=float(np.median(cascade_ms)),
    )


def generated_cases(count: int, *, side_px: int, seed: int = 0) -> Iterator[CascadeCase]:
    """Square scenes of coloured things, each asked for by the colour word of one of them.

    The object is every thing of that colour. The word alone cannot tell them from a background in the same colour.
    """
    rng = np.random.default_rng(seed)
    diameter_px = (DIAMETER_SHARE[0] * side_px, DIAMETER_SHARE[1] * side_px)
    for _ in range(count):
        scene = make_scene(rng, (side_px, side_px), THINGS, diameter_px=diameter_px)
        colour = scene.things[int(rng.integers(len(scene.things)))].colour
        mask = np.logical_or.reduce([thing.mask for thing in scene.things if thing.colour == colour])
        relevance = partial(_colour_relevance, parse_text(colour))
        yield CascadeCase("generated, colour word", scene.rgb, mask, relevance)
        # Nothing is asked: what stands out must be found by its looks alone.
        anything = np.logical_or.reduce([thing.mask for thing in scene.things])
        yield CascadeCase("generated, no query", scene.rgb, anything, _nothing)


def footage_cases(sequences: Sequence[Footage], frames_each: int, *, side_px: int) -> Iterator[CascadeCase]:
    """Frames of footage, brought to a square, each asked for the object by the picture of it on the first frame.

    Raises:
        EvaluationDataError: Masks that do not fit the frames.
    """
    for footage in sequences:
        frames, masks = footage.frames(), footage.masks()
        check_mask(footage, 0, masks[0], frames[0].size_wh)
        x, y, w, h = (int(side) for side in tight_box(masks[0]))
        example = frames[0].rgb[y : y + h, x : x + w]
        for index in np.linspace(1, len(frames) - 1, frames_each).round().astype(int).tolist():
            check_mask(footage, index, masks[index], frames[index].size_wh)
            mask = cv2.resize(masks[index].view(np.uint8), (side_px, side_px), interpolation=cv2.INTER_NEAREST) > 0
            if not mask.any():
                continue
            rgb = cv2.resize(frames[index].rgb, (side_px, side_px), interpolation=cv2.INTER_LINEAR)
            yield CascadeCase("footage, example picture", rgb, mask, partial(_example_relevance, example))
            yield CascadeCase("footage, no query", rgb, mask, _nothing)


def _colour_relevance(query: TextQuery, picture: ByteArray) -> FloatArray:
    return np.asarray(text_relevance(query, Senses(picture)))


def _example_relevance(example: ByteArray, picture: ByteArray) -> FloatArray:
    return ColourModel.from_example(example, picture).posterior(picture)


def _nothing(picture: ByteArray) -> FloatArray:
    return np.zeros(picture.shape[:2], np.float32)
