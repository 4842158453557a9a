"""What becomes of a model's answer on its way through the texture.

*Carried*: does a query that was answered on a keyframe still find its thing on the frames after it? Generated clips
with moving things and a panning camera, one keyframe, then frames that nobody looks at again. The cells chosen for "red
circle" at a tenth of the grid are scored by how much of the red circle they show, as a share of what the best choice
would.

*Projected*: do 16 channels choose the cells that all dimensions would? Large generated scenes, the cells chosen for a
query from its 16 channels against those chosen from the whole features: for queries that are asked, and for texts that
are not, of things in the scene and of things that are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.keyframes.base import Embedder, KeyframeInput, TextEncoder
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.keyframes.embeddings.projection import product
from arr_stream.keyframes.generate import InStepKeyframes, OncePerPicture, StandardGenerator
from arr_stream.keyframes.text import NoText
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.relevance.semantic import SemanticSpace
from arr_stream.types import BoolArray, Embedding, FloatArray, Frame, Grid
from benchmarks.localisation import HELD_OUT_SEED, mask_shares
from benchmarks.scenes.shapes import COLOURS, SHAPES, Scene, make_scene, moving_scene

BUDGET = "10%"
QUERIES_A_CLIP = 2
_LEAST_CELLS = 2.0
"""A thing must fill as many cells on every frame to be asked for: of one that hides or leaves nothing can be shown."""


@dataclass(frozen=True, slots=True)
class CarriedReport:
    """Coverage by age of the keyframe.

    Args:
        clips, queries: What was asked of how many.
        coverage_share: `[interval]` mean share of the best choice's coverage, by frames since the keyframe.
    """

    clips: int
    queries: int
    coverage_share: tuple[float, ...]

    @property
    def on_keyframes(self) -> float:
        return self.coverage_share[0]

    @property
    def between(self) -> float:
        """Mean over the frames between keyframes."""
        return float(np.mean(self.coverage_share[1:]))

    @property
    def kept(self) -> float:
        """What the frames between keep of the keyframe's coverage."""
        return self.between / self.on_keyframes if self.on_keyframes else 0.0

    def facts(self) -> Mapping[str, Any]:
        means = {name: getattr(self, name) for name in ("clips", "queries", "on_keyframes", "between", "kept")}
        return {**means, "by_age": self.coverage_share}


def held_out_clips(count: int, interval: int, size_wh: tuple[int, int] = (448, 256)) -> Iterator[list[Scene]]:
    """Clips of one keyframe and the frames up to the next."""
    for index in range(count):
        yield list(moving_scene(np.random.default_rng([HELD_OUT_SEED, 1, index]), size_wh, interval))


def evaluate_carried(
    clips: Iterator[list[Scene]],
    embedder: Embedder,
    encoder: TextEncoder,
    pca: Pca | None,
    *,
    interval: int = 30,
    progress: Callable[[int], None] = lambda _: None,
) -> CarriedReport:
    """Ask every clip for some of its things, by colour and shape, with one keyframe at its start.

    Args:
        clips: Frames of each; as many as `interval`.
        embedder, encoder, pca: The model.
        interval: Frames from keyframe to keyframe.
        progress: Told how many clips are done.

    Raises:
        ValueError: No clip has a thing that stays in sight.
    """
    scores: list[list[float]] = []
    count = 0
    for count, clip in enumerate(clips, start=1):
        shared = OncePerPicture(embedder)
        for text in _in_sight(clip)[:QUERIES_A_CLIP]:
            scores.append(_follow(clip, text, shared, encoder, pca, interval))
        progress(count)
    if not scores:
        raise ValueError("no thing stays in sight in any clip")
    return CarriedReport(count, len(scores), tuple(np.mean(scores, axis=0).tolist()))


def _in_sight(clip: Sequence[Scene]) -> list[str]:
    """Things that alone are called what they are called, and are seen on every frame."""
    texts = [thing.phrase() for thing in clip[0].things]
    cell_px = 32 * 32
    return [
        text
        for number, text in enumerate(texts)
        if texts.count(text) == 1 and all(scene.things[number].mask.sum() >= _LEAST_CELLS * cell_px for scene in clip)
    ]


def _follow(
    clip: Sequence[Scene],
    text: str,
    embedder: Embedder,
    encoder: TextEncoder,
    pca: Pca | None,
    interval: int,
) -> list[float]:
    """Coverage as a share of the best, frame by frame."""
    settings = Settings().with_values(
        {
            "selection.budget": BUDGET,
            "selection.novelty": "off",
            "keyframes.interval": interval,
            "keyframes.min_confidence": 0.0,
            "keyframes.cut_threshold": 1.0,
            "relevance.language": "clip",
        }
    )
    keyframes = InStepKeyframes(StandardGenerator(GridClusterer(50), embedder, NoText()))
    pipeline = Pipeline(settings, keyframes, [parse_text(text)], encoder=encoder, pca=pca)
    number = [thing.phrase() for thing in clip[0].things].index(text)
    shares = []
    for index, scene in enumerate(clip):
        patches = pipeline.step(Frame(index, index / 30, scene.rgb))
        shares.append(coverage_share(patches, scene.things[number].mask))
    return shares


def coverage_share(patches: PatchSet, mask: BoolArray) -> float:
    """How much of a mask `[H, W]`, which is not empty, the chosen cells cover, as a share of the best choice's."""
    wanted = mask_shares(mask, patches.grid)
    chosen = wanted[patches.rows, patches.columns].sum()
    best = np.sort(wanted, axis=None)[-len(patches) :].sum()
    return float(chosen / best)


class MeasuredSpace(SemanticSpace):
    """Semantic space with the two references that projected relevance is compared with."""

    def guessed(self, texts: Sequence[str], channels: FloatArray) -> FloatArray:
        """Score texts that are not queries, `[N, ...]` float32 in [0, 1], from the 16 channels alone."""
        coordinates = self._rows().coordinates(self._directions(self._encoded(texts)))
        return self._calibrated(np.einsum("qc,c...->q...", coordinates, channels))

    def relevance_full(self, embedding: Embedding) -> FloatArray:
        """Score the queries, `[Q, h, w]` float32 in [0, 1], from all D numbers of a feature.

        Raises:
            ValueError: Features of another space than the texts, or no keyframe yet.
        """
        self._check(embedding)
        self._rows()
        return self._calibrated(product(self._queries, self._centred(embedding)))


@dataclass(frozen=True, slots=True)
class ProjectedReport:
    """Mean overlap of the cells chosen from 16 channels with those chosen from all dimensions.

    Args:
        scenes, chosen, cells: How many scenes, and how many cells were chosen of how many.
        active: For queries that are asked, one at a time and eight at a time.
        unasked: For texts that are not asked, of things in the scene.
        absent: Of things that are not in it, where the order of cells is mostly chance.
    """

    scenes: int
    chosen: int
    cells: int
    active: float
    unasked: float
    absent: float


@dataclass(frozen=True, slots=True)
class MeaningReport(Report):
    """Both."""

    carried: CarriedReport
    projected: ProjectedReport

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        carried, projected = self.carried, self.projected
        return (
            ResultTable(
                f"The best {projected.chosen} of {projected.cells} cells, by 16 channels and by all numbers",
                ("queries", "in common"),
                (
                    ("queries that are asked", projected.active),
                    ("others, in the scene", projected.unasked),
                    ("others, not in the scene", projected.absent),
                ),
            ),
            ResultTable(
                f"Coverage as a share of the best, {carried.queries} queries",
                ("", "share"),
                (
                    ("on keyframes", carried.on_keyframes),
                    ("on frames between", carried.between),
                    ("kept between", carried.kept),
                ),
            ),
        )

    def facts(self) -> Mapping[str, Any]:
        return {"carried": self.carried.facts(), "projected": self.projected}


def evaluate_projected(
    embedder: Embedder,
    encoder: TextEncoder,
    pca: Pca | None,
    *,
    scenes: int = 10,
    size_wh: tuple[int, int] = (1024, 1024),
    chosen: int = 273,
    progress: Callable[[int], None] = lambda _: None,
) -> ProjectedReport:
    """Choose cells twice on each scene, for every thing in it and for as many that are not.

    Args:
        embedder, encoder, pca: The model.
        scenes, size_wh: How many, of which size.
        chosen: Cells to choose.
        progress: Told how many scenes are done.
    """
    overlaps: dict[str, list[float]] = {"active": [], "unasked": [], "absent": []}
    grid = Grid.for_size(size_wh)
    every = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    for index in range(scenes):
        scene = make_scene(np.random.default_rng([HELD_OUT_SEED, 2, index]), size_wh, (8, 12))
        features = embedder.embed(KeyframeInput(Frame(0, 0.0, scene.rgb), grid))
        present = list(dict.fromkeys(thing.phrase() for thing in scene.things))
        absent = [text for text in every if text not in present][:: max(1, len(every) // len(present))]
        # All dimensions tell the same of any text, so this space is asked for everything at once.
        texts = [*present, *absent]
        whole = MeasuredSpace(encoder, pca)
        whole.ask(texts)
        whole.learn(features)
        truth = dict(zip(texts, whole.relevance_full(features), strict=True))
        space = MeasuredSpace(encoder, pca)
        space.ask(present[:1])
        space.learn(features)
        for asked in [[text] for text in present] + [present[:8]]:
            space.ask(asked)
            channels = space.project(features)
            for text, found in zip(asked, space.relevance(channels), strict=True):
                overlaps["active"].append(_overlap(found, truth[text], grid, chosen))
        space.ask(present[:1])
        channels = space.project(features)
        for kind, others in (("unasked", present[1:]), ("absent", absent)):
            for text, found in zip(others, space.guessed(others, channels), strict=True):
                overlaps[kind].append(_overlap(found, truth[text], grid, chosen))
        progress(index + 1)
    means = {kind: float(np.mean(values)) for kind, values in overlaps.items()}
    return ProjectedReport(scenes, chosen, grid.cells, means["active"], means["unasked"], means["absent"])


def _overlap(found: FloatArray, truth: FloatArray, grid: Grid, chosen: int) -> float:
    best = [_best_cells(relevance, grid, chosen) for relevance in (found, truth)]
    return len(best[0] & best[1]) / chosen


def _best_cells(relevance: FloatArray, grid: Grid, chosen: int) -> set[int]:
    cells = cv2.resize(relevance, (grid.columns, grid.rows), interpolation=cv2.INTER_AREA)
    return set(np.argsort(-cells, axis=None, kind="stable")[:chosen].tolist())
