"""Queries and places in a joint space: exactness, calibration, what a change of query costs, and bad input.

The space is made up, of the size that real models have: a few hundred concepts, places that show one each under noise,
texts that name one each, and a gap between the two kinds. Of a place only the part that its concept has in common with
the text can be found.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from arr_stream.keyframes.embeddings.pca import MAX_QUERY_ROWS, product
from arr_stream.relevance.semantic import KEYFRAMES_TO_LEARN, SemanticSpace
from arr_stream.types import Embedding, FloatArray
from tests.test_projection import pca_of, unit

SPACE = "made-up"
DIMENSIONS = 768
CONCEPTS = 300
CHOSEN = 273


class World:
    """Concepts, pictures of them, and texts about them; encodes texts such as "concept 17"."""

    space = SPACE

    def __init__(self, seed: int = 0, dimensions: int = DIMENSIONS) -> None:
        self.rng = np.random.default_rng(seed)
        spread = np.arange(1, dimensions + 1) ** -0.25
        self.concepts = unit(self.rng.standard_normal((CONCEPTS, dimensions)) * spread)
        self.picture_mean, self.text_mean = unit(self.rng.standard_normal((2, dimensions)))
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> FloatArray:
        self.encoded += texts
        features = [self.text_mean + 0.8 * self._meaning(text) for text in texts]
        return unit(np.array(features).reshape(len(texts), -1))

    def _meaning(self, text: str) -> FloatArray:
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        own = unit(rng.standard_normal(self.concepts.shape[1]))
        name, _, number = text.partition(" ")
        concept = self.concepts[int(number.split()[0]) if name == "concept" else rng.integers(CONCEPTS)]
        return 0.8 * concept + 0.2 * own

    def picture(self, shown: Sequence[int], side: int = 32) -> tuple[Embedding, FloatArray]:
        """An embedding, and `[len(shown), side, side]`: how much each place shows of each concept."""
        centres = self.rng.random((len(shown), 2)) * side
        rows, columns = np.mgrid[:side, :side]
        away = np.square(rows - centres[:, 0, None, None]) + np.square(columns - centres[:, 1, None, None])
        shares = np.exp((away.min(axis=0) - away) / (2 * (side / 16) ** 2))
        shares /= shares.sum(axis=0)
        content = np.tensordot(self.concepts[list(shown)], shares, (0, 0))
        noise = unit(self.rng.standard_normal(content.shape), axis=0)
        values = unit(self.picture_mean[:, None, None] + 0.7 * content + 0.35 * noise, axis=0)
        return Embedding(values, SPACE, joint=True), shares.astype(np.float32)


class MeasuredSpace(SemanticSpace):
    """Semantic space with the reference that projected relevance is compared with."""

    def relevance_full(self, embedding: Embedding) -> FloatArray:
        """Score the queries, `[Q, h, w]` float32 in [0, 1], from all D numbers of a feature.

        Raises:
            ValueError: Features of another space than the texts, or no keyframe yet.
        """
        self._check(embedding)
        self._rows()
        return self._null.relevance(product(self._queries, self._centred(embedding)))


SHOWN = tuple(range(12))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def space(world: World) -> MeasuredSpace:
    """Has learned on as many pictures of the same twelve concepts as it takes."""
    made = MeasuredSpace(world)
    for _ in range(KEYFRAMES_TO_LEARN):
        made.learn(world.picture(SHOWN)[0])
    return made


def overlap(one: FloatArray, other: FloatArray) -> float:
    """Share of the best 273 places that two maps have in common."""
    best = [set(np.argsort(-scores.ravel(), kind="stable")[:CHOSEN]) for scores in (one, other)]
    return len(best[0] & best[1]) / CHOSEN


@pytest.mark.parametrize("asked", [1, 8, 12])
def test_active_queries_choose_the_same_cells_in_16_channels(world: World, space: MeasuredSpace, asked: int) -> None:
    embedding, _ = world.picture(SHOWN)
    space.ask([f"concept {number}" for number in SHOWN[:asked]])
    compressed, full = space.relevance(space.project(embedding)), space.relevance_full(embedding)
    assert compressed.shape == full.shape == (asked, 32, 32)
    overlaps = [overlap(*pair) for pair in zip(compressed, full, strict=True)]
    if asked <= MAX_QUERY_ROWS:
        np.testing.assert_allclose(compressed, full, atol=1e-4)
        assert min(overlaps) >= 0.99
    assert np.mean(overlaps) >= 0.90


def test_what_is_there_is_found_and_what_is_not_stays_low(world: World, space: MeasuredSpace) -> None:
    """Nothing is stretched to the frame."""
    embedding, shares = world.picture(SHOWN)
    space.ask(["concept 3", "concept 200"])
    there, not_there = space.relevance(space.project(embedding))
    assert np.median(there[shares[3] > 0.8]) > 0.9
    assert np.quantile(there[shares[3] < 0.1], 0.95) < 0.1
    assert np.quantile(not_there, 0.99) < 0.3


def test_a_pca_that_is_given_gives_the_mean() -> None:
    world = World(dimensions=192)
    pictures = [world.picture(SHOWN)[0].values.reshape(192, -1).T for _ in range(2)]
    pca = pca_of(np.concatenate(pictures), 64)
    space = MeasuredSpace(world, pca)
    space.ask(["concept 5"])
    embedding, shares = world.picture(SHOWN)
    before = space.project(embedding)
    space.learn(embedding)
    assert space.projection is not None and space.projection.mean is pca.mean
    channels = space.project(embedding)
    assert np.corrcoef(before.ravel(), channels.ravel())[0, 1] > 0.9, "channels keep their meaning"
    assert np.median(space.relevance(channels)[0][shares[5] > 0.8]) > 0.9


@pytest.mark.parametrize("side", [1, 2])
def test_a_grid_of_one_or_few_places(side: int) -> None:
    world = World(dimensions=64)
    space = MeasuredSpace(world)
    space.ask(["concept 1"])
    for _ in range(4):
        embedding, _ = world.picture(SHOWN, side=side)
        space.learn(embedding)
        relevance = space.relevance(space.project(embedding))
        assert np.isfinite(relevance).all()
        np.testing.assert_allclose(relevance, space.relevance_full(embedding), atol=1e-4)
