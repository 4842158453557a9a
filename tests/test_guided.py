"""The guided filter: a soft border goes to where colours change, on the host as on tensors."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

import arr_stream.gpu.pixels  # noqa: F401  tensors need what it registers
from arr_stream.motion.guided import guided

LEAST = 1e-4


def _halves(left: tuple[float, float, float], right: tuple[float, float, float]) -> np.ndarray:
    """`[3, 40, 60]`: two even halves."""
    colours = np.empty((3, 40, 60), np.float32)
    colours[:, :, :30], colours[:, :, 30:] = np.reshape(left, (3, 1, 1)), np.reshape(right, (3, 1, 1))
    return colours


@pytest.mark.parametrize("right", [(0.9, 0.9, 0.9), (0.1, 0.6, 0.1), (0.3, 0.1, 0.1)])
def test_a_border_that_lies_beside_a_change_of_colour_is_brought_to_it(right: tuple[float, float, float]) -> None:
    colours = _halves((0.1, 0.1, 0.1), right)
    beside = np.zeros((40, 60), np.float32)
    beside[:, 31:] = 1
    beside = cv2.GaussianBlur(beside, (5, 5), 0)
    found = guided(beside, colours, 7, LEAST)
    assert ((beside > 0.5)[:, 30:31]).sum() == 0
    # The column between the two borders belongs to the right half by their colour.
    assert (found[:, 30:31] > 0.5).all() and (found[:, :30] < 0.5).all()


def test_without_a_change_of_colour_the_mask_is_smoothed_alone() -> None:
    mask = np.zeros((40, 60), np.float32)
    mask[10:30, 20:40] = 1
    even = np.full((3, 40, 60), 0.5, np.float32)
    assert guided(mask, even, 7, LEAST) == pytest.approx(cv2.blur(cv2.blur(mask, (7, 7)), (7, 7)), abs=1e-3)


def test_tensors_give_the_same() -> None:
    rng = np.random.default_rng(0)
    colours, mask = rng.random((3, 33, 47), np.float32), rng.random((33, 47), np.float32)
    expected = guided(mask, colours, 7, LEAST)
    found = guided(torch.from_numpy(mask), torch.from_numpy(colours), 7, LEAST)
    assert found.numpy() == pytest.approx(expected, abs=1e-4)
    assert expected.min() >= 0 and expected.max() <= 1
