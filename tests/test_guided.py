"""The guided filter: a soft border goes to where colours change, on the host as on tensors."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

import arr_stream.gpu.pixels  # noqa: F401  tensors need what it registers
from arr_stream.texture.pixels import guided

SIDE_PX, LEAST = 5, 6.5


@pytest.mark.parametrize("right", [(230, 230, 230), (25, 150, 25), (75, 25, 25)])
def test_a_border_that_lies_beside_a_change_of_colour_is_brought_to_it(right: tuple[int, int, int]) -> None:
    picture = np.full((40, 60, 3), 25, np.uint8)
    picture[:, 30:] = right
    beside = np.zeros((40, 60), np.float32)
    beside[:, 32:] = 1
    beside = cv2.GaussianBlur(beside, (5, 5), 0)
    found = guided(beside, picture, SIDE_PX, LEAST)
    assert (beside[:, 30:32] < 0.5).all()
    # The columns between the two borders belong to the right half by their colour.
    assert (found[:, 30:32] > 0.5).all() and (found[:, :28] < 0.5).all()


def test_tensors_give_the_same() -> None:
    rng = np.random.default_rng(0)
    picture, mask = rng.integers(0, 256, (32, 48, 3), np.uint8), rng.random((32, 48), np.float32)
    expected = guided(mask, picture, SIDE_PX, LEAST)
    found = guided(torch.from_numpy(mask), torch.from_numpy(picture).permute(2, 0, 1).float(), SIDE_PX, LEAST)
    # Half-size pictures are rounded on the host.
    assert found.numpy() == pytest.approx(expected, abs=0.02)
    assert expected.min() >= 0 and expected.max() <= 1
