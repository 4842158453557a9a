"""Views: a picture of the frame's size for everything that can be looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.draw import typeface
from arr_stream.draw.views import VIEWS, id_colours, render
from arr_stream.motion.flow import Flow
from arr_stream.texture.layout import CHANNELS
from arr_stream.types import Frame
from tests.choices import choose
from tests.media import moving_frames

FRAME = Frame(0, 0.0, moving_frames(1, (128, 96))[0])
PATCHES = choose(FRAME)


def test_every_view_and_channel_has_the_frames_shape() -> None:
    before = FRAME.rgb.copy()
    for view in (*VIEWS, *(f"channel:{channel.name}" for channel in CHANNELS)):
        picture = render(view, FRAME, PATCHES)
        assert (picture.shape, picture.dtype) == (FRAME.rgb.shape, np.uint8), view
        assert picture.flags.c_contiguous, view
    np.testing.assert_array_equal(FRAME.rgb, before)


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 400), height=st.integers(1, 300), view=st.sampled_from([*VIEWS, "channel:x"]))
def test_every_size(width: int, height: int, view: str) -> None:
    frame = Frame(0, 0.0, np.full((height, width, 3), 99, np.uint8))
    assert render(view, frame, choose(frame)).shape == (height, width, 3)


def test_relevance_is_brightest_where_it_is_highest() -> None:
    grid = PATCHES.grid
    relevance = np.zeros((grid.rows, grid.columns), np.float32)
    relevance[2, 3] = 1.0
    picture = render("relevance", FRAME, choose(FRAME, relevance=relevance)).astype(int).sum(axis=2)
    y, x = np.unravel_index(picture.argmax(), picture.shape)
    assert (y // 32, x // 32) == (2, 3)


@pytest.mark.parametrize(("dx", "dy", "strongest"), [(1.0, 0.0, 0), (-0.5, -0.866, 2), (-0.5, 0.866, 1)])
def test_flow_shows_where_things_go(dx: float, dy: float, strongest: int) -> None:
    """Red goes right; a flow's offset says where things came from."""
    offset = np.tile(np.array([-dx * 4, -dy * 4], np.float32), (24, 32, 1))
    ones = np.ones((24, 32), np.float32)
    picture = render("flow", FRAME, choose(FRAME, flow=Flow(offset, ones, ones * 0)))
    assert picture[40:, 40:].reshape(-1, 3).mean(axis=0).argmax() == strongest


@given(st.lists(st.integers(0, 60_000), min_size=2, max_size=40, unique=True))
def test_colours_of_ids_are_stable_and_distinct(ids: list[int]) -> None:
    alone = [id_colours(np.array([[one]], np.int32))[0, 0] for one in ids]
    together = id_colours(np.array([ids], np.int32))[0]
    np.testing.assert_array_equal(alone, together)
    first = id_colours(np.arange(50, dtype=np.int32)[None])[0].astype(int)
    assert len({tuple(colour) for colour in first}) == 50


@given(
    limit=st.integers(1, 300), text=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=60)
)
def test_text_is_cut_to_fit(limit: int, text: str) -> None:
    shown = typeface.fitted(text, 14, limit)
    assert shown == "" or typeface.width_px(shown, 14) <= limit
