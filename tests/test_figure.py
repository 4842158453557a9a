"""The figure: what moves is found as a whole thing and stays known for a while."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

import arr_stream.gpu.pixels  # noqa: F401 - what is done to pixels, on tensors
from arr_stream.motion.flow import Flow
from arr_stream.relevance.figure import CUES, FEATURES, Figure, features, learn, see_figure
from arr_stream.texture.arrays import Array, to_numpy
from arr_stream.types import FloatArray, Grid

GRID = Grid.for_size((384, 256))
HW = GRID.rows, GRID.columns
THING = np.s_[2:6, 4:8]


def _scene(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A bright blue thing of 4x4 cells before noisy grey: picture and detail."""
    rng = np.random.default_rng(seed)
    rgb = rng.integers(90, 130, (GRID.rows * 4, GRID.columns * 4, 3), np.uint8)
    rgb[8:24, 16:32] = (40, 60, 200)
    return rgb, np.full((GRID.rows * 8, GRID.columns * 8), 20, np.uint8)


def _rim_moves() -> np.ndarray:
    """Motion at the left and right border of the thing only, as flow finds it on a plain surface."""
    motion = np.zeros((GRID.rows * 4, GRID.columns * 4), np.float32)
    motion[8:24, 16:20] = motion[8:24, 28:32] = 0.8
    return motion


def _still() -> Flow:
    return Flow.still((GRID.rows * 4, GRID.columns * 4))


class FigureMemory:
    """A stream's figure."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.figure = Figure.nothing(np.zeros(0), (GRID.rows * 4, GRID.columns * 4))

    def see(self, rgb: np.ndarray, detail: np.ndarray, motion: np.ndarray, flow: Flow | None) -> np.ndarray:
        self.figure, cells = see_figure(self.figure, rgb, detail, motion, flow)
        return cells


def test_a_scene_without_motion_has_no_figure() -> None:
    memory, (rgb, detail) = FigureMemory(), _scene()
    assert not memory.see(rgb, detail, _rim_moves(), None).any(), "the first frame has nothing to compare with"
    for _ in range(5):
        assert memory.see(rgb, detail, np.zeros_like(_rim_moves()), _still()).max() < 1e-6


def test_motion_at_the_rim_spreads_to_the_thing_and_not_beyond() -> None:
    memory, (rgb, detail) = FigureMemory(), _scene()
    for _ in range(5):
        figure = memory.see(rgb, detail, _rim_moves(), _still())
    inside = figure[2:6, 5:7]
    outside = figure.copy()
    outside[THING] = 0
    assert figure.dtype == np.float32 and figure.shape == HW and figure.min() >= 0 and figure.max() <= 1
    assert inside.min() > 3 * outside.max()


def test_a_thing_that_stops_fades_and_does_not_vanish() -> None:
    memory, (rgb, detail) = FigureMemory(), _scene()
    for _ in range(5):
        moving = memory.see(rgb, detail, _rim_moves(), _still())[THING].mean()
    stopped = [memory.see(rgb, detail, np.zeros_like(_rim_moves()), _still())[THING].mean() for _ in range(30)]
    assert 0.5 * moving < stopped[0] < moving
    assert all(later < earlier for earlier, later in itertools.pairwise(stopped))
    assert stopped[-1] < 0.3 * moving


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy])
def test_the_regression_is_the_closed_form(array: Callable[[FloatArray], Array]) -> None:
    rng = np.random.default_rng(1)
    seen = features(array(rng.normal(size=(50, CUES)).astype(np.float32)))
    moves = array(rng.random(50, np.float32))
    nothing = Figure.nothing(moves, HW)
    gram, moment, alike = learn(nothing.gram, nothing.moment, seen, moves)
    design = to_numpy(seen).astype(np.float64)
    ridge = 1e-2 * np.diag(design.T @ design).mean() * np.eye(FEATURES + 1)
    expected = design @ np.linalg.solve(design.T @ design + ridge, design.T @ to_numpy(moves))
    assert to_numpy(alike) == pytest.approx(expected, abs=1e-3)
    again, _, _ = learn(gram, moment, seen, moves)
    assert to_numpy(again) == pytest.approx(to_numpy(1.95 * gram), rel=1e-6)
