"""Does a query that a model answered on a keyframe still find its thing on the frames after it?

Generated clips with moving things and a panning camera, one keyframe, then frames that nobody looks at again. The
cells chosen for "red circle" at a tenth of the grid are scored by how much of the red circle they show, as a share of
what the best choice would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluate.localisation import HELD_OUT_SEED, mask_shares
from arr_stream.evaluate.toy_scenes import Scene, moving_scene
from arr_stream.keyframes.base import Embedder, TextEncoder
from arr_stream.keyframes.clusters.grid import GridClusterer
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.keyframes.generate import InStepKeyframes, OncePerPicture, StandardGenerator
from arr_stream.keyframes.text.none import NoText
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.types import FloatArray, Frame, PatchSet

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

    def as_json(self) -> dict[str, Any]:
        return {
            "clips": self.clips,
            "queries": self.queries,
            "on_keyframes": round(self.on_keyframes, 4),
            "between": round(self.between, 4),
            "kept": round(self.kept, 4),
            "by_age": [round(value, 4) for value in self.coverage_share],
        }


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
            "selection.levels": False,
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
        shares.append(_coverage_share(patches, mask_shares(scene.things[number].mask, patches.grid)))
    return shares


def _coverage_share(patches: PatchSet, wanted: FloatArray) -> float:
    chosen = wanted[patches.rows, patches.columns].sum()
    best = np.sort(wanted, axis=None)[-len(patches) :].sum()
    return float(chosen / best)
