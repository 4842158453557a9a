"""Views: a picture of the frame's size for everything that can be looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.draw import typeface
from arr_stream.draw.views import VIEWS, coloured, id_colours, render
from arr_stream.errors import InvalidSetting
from arr_stream.motion.flow import Flow
from arr_stream.texture.array import Plane, Texture
from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS
from arr_stream.types import FloatArray, Frame
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


@pytest.mark.parametrize(
    ("view", "near"),
    [("relevanse", "relevance"), ("channel:salency", "channel:saliency"), ("saliency", "channel:saliency")],
)
def test_unknown_views_name_the_nearest(view: str, near: str) -> None:
    with pytest.raises(InvalidSetting, match=f"did you mean {near}"):
        render(view, FRAME, PATCHES)


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


def test_a_frame_without_flow_stands_still() -> None:
    picture = render("flow", FRAME, choose(FRAME, flow=None)).astype(int)
    assert np.ptp(picture[40:, 40:], axis=2).max() == 0, "no colour"


def _with_history(**channels: FloatArray) -> Texture:
    """Channels 36 to 39 of a frame of 128x96, those not named 0."""
    data = np.zeros((4, 12, 16), np.float32)
    for name, values in channels.items():
        data[CHANNEL_INDEX[name] - CHANNEL_INDEX["fixation"]] = values
    return Texture((128, 96), {CHANNEL_INDEX["fixation"]: Plane(CHANNEL_INDEX["fixation"], data)})


def test_history_glows_over_the_darkened_frame() -> None:
    values = np.zeros((12, 16), np.float32)
    values[8:10, 4:6] = 1.0
    picture = render("history", FRAME, choose(FRAME, texture=_with_history(attention_history=values))).astype(int)
    y, x = np.unravel_index(picture.sum(axis=2).argmax(), picture.shape[:2])
    assert (y // 32, x // 32) == (2, 1)
    assert picture[:, 96:].mean() < 0.5 * FRAME.rgb[:, 96:].mean()


@given(st.lists(st.integers(0, 60_000), min_size=2, max_size=40, unique=True))
def test_colours_of_ids_are_stable_and_distinct(ids: list[int]) -> None:
    alone = [id_colours(np.array([[one]], np.int32))[0, 0] for one in ids]
    together = id_colours(np.array([ids], np.int32))[0]
    small = [index for index, one in enumerate(ids) if one < 256]
    for index in small:
        np.testing.assert_array_equal(alone[index], together[index])
    first = id_colours(np.arange(50, dtype=np.int32)[None])[0].astype(int)
    assert len({tuple(colour) for colour in first}) == 50


def test_colour_tables_cover_the_range_and_forgive_gaps() -> None:
    values = np.array([[-1.0, 0.0, 1.0, 9.0, np.nan]], np.float32)
    picture = coloured(values, -1.0, 1.0, "signed")
    assert picture[0, 0, 2] > picture[0, 0, 0], "blue below zero"
    assert picture[0, 1].min() > 230, "white at zero"
    assert picture[0, 2, 0] > picture[0, 2, 2], "red above"
    np.testing.assert_array_equal(picture[0, 3], picture[0, 2])
    np.testing.assert_array_equal(picture[0, 4], picture[0, 0])


@given(
    limit=st.integers(1, 300), text=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=60)
)
def test_text_is_cut_to_fit(limit: int, text: str) -> None:
    shown = typeface.fitted(text, 14, limit)
    assert shown == "" or typeface.width_px(shown, 14) <= limit


@pytest.mark.parametrize("xy", [(-30, -5), (80, 45), (500, 500), (0, -200)])
def test_text_is_cut_at_the_edges(xy: tuple[int, int]) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    typeface.draw(picture, "edge", xy, 20, typeface.WHITE)
    assert picture.any() == (xy in {(-30, -5), (80, 45)})
