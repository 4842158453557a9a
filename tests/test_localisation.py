"""The figures of localisation, on scenes where the right answer is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from arr_stream.keyframes.base import KeyframeInput
from arr_stream.threads import one_torch_thread
from arr_stream.types import Embedding, Grid
from benchmarks.__main__ import app
from benchmarks.localisation import (
    auc,
    cell_features,
    evaluate_localisation,
    held_out_scenes,
    mask_shares,
    score_scene,
)
from benchmarks.scenes.shapes import COLOURS, SHAPES, Scene
from tests.clip_models import save_model

PHRASES = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
FLOATS = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=20)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, and on a busy machine much slower."""
    with one_torch_thread():
        yield


class Knowing:
    """Knows every scene's masks: a place's vector is the sum of the phrases and shapes that are there."""

    space = "known"
    context_length = 8
    name = "clip known"

    def __init__(self, scenes: list[Scene], *, colours_only: bool = False) -> None:
        self._scenes, self._colours_only = scenes, colours_only

    def token_count(self, text: str) -> int:
        return len(text.split()) + 2

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        rows = np.zeros((len(texts), 1 + len(COLOURS) + len(SHAPES)), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.split():
                row[self._place(word)] = 1.0
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    def embed(self, picture: KeyframeInput) -> Embedding:
        scene = self._scenes[picture.frame.index]
        height, width = scene.rgb.shape[:2]
        values = np.zeros((1 + len(COLOURS) + len(SHAPES), height // 16, width // 16), np.float32)
        values[0] = 0.1  # the background
        for thing in scene.things:
            share = mask_shares(thing.mask, Grid((width, height), height // 16, width // 16))
            values[self._place(thing.colour)] += share
            if not self._colours_only:
                values[self._place(thing.shape)] += share
        return Embedding(values / np.linalg.norm(values, axis=0), self.space, joint=True)

    @staticmethod
    def _place(word: str) -> int:
        return 1 + [*COLOURS, *SHAPES].index(word)


@given(FLOATS, FLOATS)
def test_auc_counts_pairs(positives: list[float], negatives: list[float]) -> None:
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    assert auc(np.array(positives, np.float32), np.array(negatives, np.float32)) == pytest.approx(np.mean(pairs))


def test_auc_of_nothing_is_not_a_number() -> None:
    assert math.isnan(auc(np.zeros(0, np.float32), np.zeros(3, np.float32)))
    assert math.isnan(auc(np.zeros(3, np.float32), np.zeros(0, np.float32)))


def test_shares_of_a_mask_add_up() -> None:
    mask = np.zeros((64, 96), bool)
    mask[10:40, 20:70] = True
    shares = mask_shares(mask, Grid((96, 64), 2, 3))
    assert shares.shape == (2, 3)
    assert shares.sum() * 32 * 32 == pytest.approx(mask.sum(), rel=1e-5)
    assert shares[0, 1] == pytest.approx(22 / 32)


def test_cell_features_average_what_is_finer_and_interpolate_what_is_coarser() -> None:
    grid = Grid((128, 64), 2, 4)
    values = np.random.default_rng(0).normal(size=(5, 4, 8)).astype(np.float32)
    cells = cell_features(values, grid)
    mean = values[:, :2, :2].mean(axis=(1, 2))
    np.testing.assert_allclose(cells[:, 0, 0], mean / np.linalg.norm(mean), rtol=1e-5)
    coarse = cell_features(values[:, :1, :2], grid)
    assert coarse.shape == (5, 2, 4)
    np.testing.assert_allclose(np.linalg.norm(coarse, axis=0), 1.0, atol=1e-5)


def test_held_out_scenes_are_the_same_every_time_and_differ_by_seed() -> None:
    first, again, other = held_out_scenes(2), held_out_scenes(2), held_out_scenes(2, seed=1)
    np.testing.assert_array_equal(first[1].rgb, again[1].rgb)
    assert not np.array_equal(first[0].rgb, other[0].rgb)
    assert not np.array_equal(first[0].rgb, first[1].rgb)


def test_one_who_knows_everything_scores_nearly_everything() -> None:
    scenes = held_out_scenes(12)
    knowing = Knowing(scenes)
    report = evaluate_localisation(scenes, [knowing], knowing)
    for row in report.rows:
        assert row.auc_all > 0.98 and row.auc_things > 0.95 and row.coverage_share > 0.9, row
    assert report.rows[0].queries >= report.rows[1].queries >= len(scenes)


def test_one_who_knows_only_colours_fails_at_shapes() -> None:
    scenes = held_out_scenes(12)
    row = evaluate_localisation(scenes, [Knowing(scenes, colours_only=True)], Knowing(scenes)).rows[1]
    assert row.kind == "shape" and row.auc_things == pytest.approx(0.5, abs=0.02)


def test_every_thing_is_asked_for_once_by_each_kind_of_query() -> None:
    scene = held_out_scenes(1)[0]
    grid = Grid.for_size((448, 256))
    features = np.random.default_rng(0).normal(size=(1 + len(COLOURS) + len(SHAPES), 8, 14)).astype(np.float32)
    scores = score_scene(scene, grid, features, Knowing([scene]))
    asked = {(score.kind, score.text) for score in scores}
    assert len(asked) == len(scores)
    assert {text for kind, text in asked if kind == "shape"} == {thing.shape for thing in scene.things}
    assert {text for kind, text in asked if kind == "colour and shape"} == {
        f"{thing.colour} {thing.shape}" for thing in scene.things
    }
    assert all(score.coverage <= score.oracle_coverage + 1e-6 for score in scores)


def test_an_embedder_of_another_space_is_refused() -> None:
    scenes = held_out_scenes(1)
    other = Knowing(scenes)
    other.space = "other"
    with pytest.raises(ValueError, match="'known', texts are in 'other'"):
        evaluate_localisation(scenes, [Knowing(scenes)], other)


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "vit16", "vit16")
    call = ["localisation", "--model", str(folder), "--scenes", "1"]
    table = CliRunner().invoke(app, call)
    assert table.exit_code == 0 and "vit16" in table.output
    printed = CliRunner().invoke(app, [*call, "--json"])
    assert printed.exit_code == 0 and '"auc_things"' in printed.output
