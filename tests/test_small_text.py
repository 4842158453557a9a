"""What the measurement of small text is made of: the clip, the canvas of given pixels, and how words are counted."""

from __future__ import annotations

import numpy as np

from arr_stream.selection.allocation import Allocation
from arr_stream.texture.pictures import finer_pictures
from arr_stream.types import FINER, Grid, TextRegion
from benchmarks.scenes.small_print import PAN_PX, SIZE_WH, small_print
from benchmarks.small_text import canvas, words_read
from tests.tiny_qwen import picture


def test_the_clip_is_the_same_again_and_its_words_are_where_it_says() -> None:
    first, second = small_print(2)
    assert np.array_equal(next(small_print(1)).frame.rgb, first.frame.rgb)
    heights = []
    for word in first.small:
        corners = np.array(word.polygon_xy) * SIZE_WH
        (x0, y0), (x1, y1) = corners.min(0).round().astype(int), corners.max(0).round().astype(int)
        letters = first.frame.rgb[y0:y1, x0:x1].astype(int).sum(axis=2)
        ground = int(first.frame.rgb[y0 - 2, x0 - 2].astype(int).sum())
        assert np.abs(letters - ground).max() > 300, word.text
        heights.append((y1 - y0) * Grid.for_size(SIZE_WH, max_pixels=1 << 20).texture_wh[1] / SIZE_WH[1])
    assert len(first.small) > 30 and 3 <= min(heights) <= max(heights) <= 6
    moved = {word.text: word.polygon_xy[0][0] for word in second.small}
    steps = [(word.polygon_xy[0][0] - moved[word.text]) * SIZE_WH[0] for word in first.small if word.text in moved]
    np.testing.assert_allclose(steps, PAN_PX, atol=1e-6)


def test_the_canvas_holds_what_was_given_at_its_resolution_and_nothing_else() -> None:
    rgb, grid = picture(400, 320), Grid((400, 320), 4, 5)
    rows, columns, level = np.array([[0, 0, FINER], [0, 1, 0], [2, 2, 1]], np.int32).T
    shown = canvas(rgb, grid, Allocation(rows, columns, level, np.ones(3, np.float32)))
    assert shown.shape == (256, 320, 3)
    np.testing.assert_array_equal(shown[:64, :64], finer_pictures(rgb, grid, rows[:1], columns[:1])[0])
    grey = (shown == 128).all(axis=2)
    assert grey[64:128].all() and grey[128:, :128].all() and not grey[128:, 128:256].all()
    # One token for a cell has half the detail each way, of a coarse one a quarter.
    sharpness = [
        np.abs(np.diff(shown[y : y + 64, x : x + 64].astype(int), axis=1)).mean() for y, x in ((0, 0), (0, 64))
    ]
    assert sharpness[0] > 1.5 * sharpness[1]


def test_a_word_counts_once_where_it_is_read_without_error_at_its_place() -> None:
    words = next(small_print(1)).small[:3]
    here = [TextRegion(word.polygon_xy, 1.0, word.text) for word in words]
    assert words_read(words, here * 2) == 3
    elsewhere = tuple((x, y - 0.5 if y > 0.5 else y + 0.5) for x, y in words[0].polygon_xy)
    wrong = [TextRegion(elsewhere, 1.0, words[0].text), TextRegion(words[1].polygon_xy, 1.0, "Nothing"), here[2]]
    assert words_read(words, wrong) == 1
