"""Does a text find its object? Cells scored by a dual encoder on generated scenes where every pixel is known.

Each scene is asked for every colour and shape that is in it ("red circle") and for every shape alone ("circle").
A cell belongs to the asked things where their masks cover at least 0.3 of it, and to other things likewise. A cell's
feature is the mean of the dense features over it, its score the cosine with the text. Three figures, each a mean over
queries:

- *AUC against all other cells*, and *against other things' cells*: how likely a cell of the asked things scores above
  another one; 0.5 is chance. Background alone is easy, so the second is what tells whether words are understood.
- *coverage at a tenth*: the asked things' pixels inside the best tenth of the cells, as a share of what the best choice
  of as many cells would cover.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np

from arr_stream.evaluation.tables import Report, ResultTable, Value, plain
from arr_stream.keyframes.base import Embedder, KeyframeInput, TextEncoder
from arr_stream.types import BoolArray, FloatArray, Frame, Grid
from benchmarks.scenes.shapes import Scene, Thing, make_scene

Kind = Literal["colour and shape", "shape"]
KINDS: tuple[Kind, ...] = ("colour and shape", "shape")

COVERED_SHARE = 0.3
"""Share of a cell that a mask must cover for the cell to belong to it."""

CHOSEN_SHARE = 0.1
HELD_OUT_SEED = 1_000_003
"""Where the seeds of evaluation scenes begin, far from those of training."""


@dataclass(frozen=True, slots=True)
class QueryScore:
    """One query on one scene; NaN where there is nothing to compare with.

    Args:
        kind: What was asked for.
        text: The query.
        auc_all: Against all other cells.
        auc_things: Against cells of other things.
        coverage: Share of the asked pixels in the chosen tenth.
        oracle_coverage: The most that could be covered.
    """

    kind: Kind
    text: str
    auc_all: float
    auc_things: float
    coverage: float
    oracle_coverage: float


@dataclass(frozen=True, slots=True)
class LocalisationRow:
    """One way of embedding on all scenes, for one kind of query.

    Args:
        embedder: Its name.
        kind: What was asked for.
        queries: How many.
        auc_all, auc_things, coverage_share: See the module.
        milliseconds: Processor time of embedding a scene, mean.
    """

    embedder: str
    kind: Kind
    queries: int
    auc_all: float
    auc_things: float
    coverage_share: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class LocalisationReport(Report):
    """All rows of an evaluation, two for each way of embedding: by colour and shape, and by shape alone."""

    rows: tuple[LocalisationRow, ...]
    scenes: int
    size_wh: tuple[int, int] = (0, 0)

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        rows: list[tuple[Value, ...]] = []
        for both, alone in zip(self.rows[::2], self.rows[1::2], strict=True):
            figures = [(row.auc_all, row.auc_things, row.coverage_share) for row in (both, alone)]
            rows.append((both.embedder, *figures[0], *figures[1], round(both.milliseconds)))
        columns = (f"{kind}: {what}" for kind in ("red circle", "circle") for what in ("cells", "things", "share"))
        title = f"{self.scenes} scenes of {self.size_wh[0]}x{self.size_wh[1]} px"
        return (ResultTable(title, ("embedder", *columns, "ms"), tuple(rows)),)

    def facts(self) -> Mapping[str, Any]:
        rows = [plain(row) for row in self.rows]
        return {"scenes": self.scenes, "rows": [row | {"query": row.pop("kind")} for row in rows]}


def held_out_scenes(count: int, seed: int = 0, size_wh: tuple[int, int] = (448, 256)) -> list[Scene]:
    """Scenes with two to six things, none of which a training run has seen."""
    return [make_scene(np.random.default_rng([HELD_OUT_SEED, seed, index]), size_wh) for index in range(count)]


def evaluate_localisation(
    scenes: Sequence[Scene],
    embedders: Iterable[Embedder],
    encoder: TextEncoder,
    progress: Callable[[str], None] = lambda _: None,
) -> LocalisationReport:
    """Score every embedder on every scene.

    Args:
        scenes: What is looked at.
        embedders: Ways to embed, all into the encoder's space; each is made only when its turn comes.
        encoder: Encodes the queries.
        progress: Told which embedder comes next.

    Raises:
        ValueError: An embedder of another space.
    """
    rows: list[LocalisationRow] = []
    for embedder in embedders:
        progress(embedder.name)
        scores: list[QueryScore] = []
        seconds = 0.0
        for index, scene in enumerate(scenes):
            frame = Frame(index, 0.0, scene.rgb)
            picture = KeyframeInput(frame, Grid.for_size(frame.size_wh))
            started = time.process_time()
            embedding = embedder.embed(picture)
            seconds += time.process_time() - started
            if embedding.space != encoder.space:
                raise ValueError(f"{embedder.name} embeds into {embedding.space!r}, texts are in {encoder.space!r}")
            scores += score_scene(scene, picture.grid, cell_features(embedding.values, picture.grid), encoder)
        rows += [_row(embedder.name, kind, scores, 1000.0 * seconds / max(1, len(scenes))) for kind in KINDS]
    size_wh = (scenes[0].rgb.shape[1], scenes[0].rgb.shape[0]) if scenes else (0, 0)
    return LocalisationReport(tuple(rows), len(scenes), size_wh)


def _row(name: str, kind: Kind, scores: Sequence[QueryScore], milliseconds: float) -> LocalisationRow:
    of_kind = [score for score in scores if score.kind == kind]
    covered = _mean([score.coverage for score in of_kind])
    return LocalisationRow(
        embedder=name,
        kind=kind,
        queries=len(of_kind),
        auc_all=_mean([score.auc_all for score in of_kind]),
        auc_things=_mean([score.auc_things for score in of_kind]),
        coverage_share=covered / _mean([score.oracle_coverage for score in of_kind]),
        milliseconds=milliseconds,
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def score_scene(scene: Scene, grid: Grid, features: FloatArray, encoder: TextEncoder) -> list[QueryScore]:
    """Every query of a scene.

    Args:
        scene: The scene.
        grid: Its grid.
        features: `[D, gh, gw]` of its cells.
        encoder: Encodes the queries.
    """
    shares = np.stack([mask_shares(thing.mask, grid) for thing in scene.things])
    scores: list[QueryScore] = []
    for kind in KINDS:
        texts = [_text(thing, kind) for thing in scene.things]
        for text in dict.fromkeys(texts):
            asked = np.array([other == text for other in texts])
            cosines = np.tensordot(encoder.encode([text])[0], features, axes=1)
            scores.append(_score(kind, text, cosines, shares, asked))
    return scores


def _text(thing: Thing, kind: Kind) -> str:
    return thing.phrase(colour=kind == "colour and shape")


def _score(kind: Kind, text: str, cosines: FloatArray, shares: FloatArray, asked: BoolArray) -> QueryScore:
    ours = shares[asked].sum(axis=0)
    theirs = shares[~asked].sum(axis=0) if (~asked).any() else np.zeros_like(ours)
    own_cells = ours >= COVERED_SHARE
    # A cell where two things meet counts for the queried one.
    their_cells = (theirs >= COVERED_SHARE) & ~own_cells
    count = max(1, round(CHOSEN_SHARE * cosines.size))
    chosen = np.argsort(-cosines, axis=None, kind="stable")[:count]
    total = float(ours.sum())
    return QueryScore(
        kind=kind,
        text=text,
        auc_all=auc(cosines[own_cells], cosines[~own_cells]),
        auc_things=auc(cosines[own_cells], cosines[their_cells]),
        coverage=float(ours.ravel()[chosen].sum()) / total if total else math.nan,
        oracle_coverage=float(np.sort(ours, axis=None)[-count:].sum()) / total if total else math.nan,
    )


def auc(positives: FloatArray, negatives: FloatArray) -> float:
    """Chance that a positive is above a negative, ties counting half; NaN where there are none of either.

    The Mann-Whitney statistic by ranks, divided by the number of pairs.
    """
    if not positives.size or not negatives.size:
        return math.nan
    ordered = np.sort(negatives, axis=None)
    below = np.searchsorted(ordered, positives, side="left")
    not_above = np.searchsorted(ordered, positives, side="right")
    return float((below + not_above).mean() / (2 * negatives.size))


def mask_shares(mask: BoolArray, grid: Grid) -> FloatArray:
    """`[gh, gw]` in [0, 1]: share of each cell that a mask covers."""
    size_wh = (grid.columns, grid.rows)
    return np.asarray(cv2.resize(mask.astype(np.float32), size_wh, interpolation=cv2.INTER_AREA), np.float32)


def cell_features(values: FloatArray, grid: Grid) -> FloatArray:
    """`[D, gh, gw]` of unit length: dense features averaged over each cell, or interpolated where they are coarser."""
    size_wh = (grid.columns, grid.rows)
    finer = values.shape[1] >= grid.rows and values.shape[2] >= grid.columns
    method = cv2.INTER_AREA if finer else cv2.INTER_LINEAR
    planes = [cv2.resize(np.ascontiguousarray(plane), size_wh, interpolation=method) for plane in values]
    cells = np.stack(planes).astype(np.float32)
    unit: FloatArray = cells / np.maximum(np.linalg.norm(cells, axis=0), np.float32(1e-12))
    return unit
