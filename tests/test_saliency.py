"""What stands out of a frame by itself."""

from __future__ import annotations

import numpy as np
import pytest

from arr_stream.texture.visual import frame_features
from arr_stream.types import ByteArray, FloatArray, Grid

SIZE_WH = 448, 256


def salient(rgb: ByteArray) -> FloatArray:
    made: FloatArray = frame_features(rgb, None, Grid.for_size((rgb.shape[1], rgb.shape[0]))).saliency
    assert made.shape == (rgb.shape[0] // 8, rgb.shape[1] // 8) and made.dtype == np.float32
    assert made.min() >= 0 and made.max() < 1
    return made


@pytest.mark.parametrize("value", [0, 127, 255])
def test_a_frame_of_one_colour_has_nothing_that_stands_out(value: int) -> None:
    assert salient(np.full((SIZE_WH[1], SIZE_WH[0], 3), value, np.uint8)).max() == pytest.approx(0)


def _grass(seed: int = 0) -> ByteArray:
    noise = np.random.default_rng(seed).integers(-40, 40, (SIZE_WH[1], SIZE_WH[0], 1))
    return np.clip(np.array([70, 120, 60]) + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("where", [(0, 0), (96, 200), (192, 384)])
def test_what_differs_in_colour_stands_out_wherever_it_is(where: tuple[int, int]) -> None:
    picture, (y, x) = _grass(), where
    picture[y : y + 64, x : x + 64] = _grass(1)[:64, :64, ::-1] // 2 + (100, 0, 0)
    found = salient(picture)
    inside = np.zeros(found.shape, bool)
    inside[y // 8 : y // 8 + 8, x // 8 : x // 8 + 8] = True
    assert np.median(found[inside]) > 0.6 > 0.4 > np.median(found[~inside])
