"""Carrying and composing: properties that hold for any plane and any flow."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from arr_stream.motion.carry import carried_points, carry, compose
from arr_stream.motion.dis import DisFlow
from arr_stream.motion.flow import Flow, FlowInput, base_grid, checked_flow
from arr_stream.types import FloatArray, Frame

rasters = st.tuples(st.integers(1, 24), st.integers(1, 24))
seeds = st.integers(0, 2**32 - 1)
shifts = st.tuples(st.floats(-6, 6, width=32), st.floats(-6, 6, width=32))


def moved(hw: tuple[int, int], shift_xy: tuple[float, float]) -> Flow:
    """The same offset everywhere, trusted where it comes from within."""
    offset = np.tile(np.float32(shift_xy), (*hw, 1))
    source = base_grid(hw) + offset
    limits = np.float32([hw[1] - 0.5, hw[0] - 0.5])
    within = ((source >= -0.5) & (source <= limits)).all(axis=2)
    return Flow(offset, within.astype(np.float32), np.zeros(hw, np.float32))


def random_flow(hw: tuple[int, int], seed: int) -> Flow:
    random = np.random.default_rng(seed)
    offset = random.normal(0, 4, (*hw, 2)).astype(np.float32)
    confidence, residual = random.random((2, *hw), dtype=np.float32)
    return Flow(offset, confidence, residual)


@given(rasters, st.sampled_from([0, 1, 2, 3, 4, 5, 16]), seeds)
@settings(max_examples=40, deadline=None)
def test_identity_is_exact(hw: tuple[int, int], channels: int, seed: int) -> None:
    plane = np.random.default_rng(seed).normal(size=(channels, *hw) if channels else hw).astype(np.float32)
    for nearest in (False, True):
        for outside in (None, 0.0):
            carried = carry(plane, Flow.still(hw), nearest=nearest, outside=outside)
            assert carried.dtype == plane.dtype
            np.testing.assert_array_equal(carried, plane)


@given(rasters, seeds, st.sampled_from([np.int32, np.uint8, np.int16, np.uint16, np.int8, np.bool_]))
@settings(max_examples=40, deadline=None)
def test_nearest_invents_no_ids(hw: tuple[int, int], seed: int, kind: type[np.generic]) -> None:
    ids = np.random.default_rng(seed).choice([0, 1, 7, 42, 101], size=hw).astype(kind)
    carried = carry(ids, random_flow(hw, seed), nearest=True)
    assert carried.dtype == ids.dtype and carried.shape == ids.shape
    assert set(np.unique(carried)) <= set(np.unique(ids))


@given(rasters, rasters, st.sampled_from([0, 2, 4, 16]), seeds)
@settings(max_examples=40, deadline=None)
def test_linear_stays_in_range(hw: tuple[int, int], flow_hw: tuple[int, int], channels: int, seed: int) -> None:
    plane = np.random.default_rng(seed).uniform(-1, 1, (channels, *hw) if channels else hw).astype(np.float32)
    carried = carry(plane, random_flow(flow_hw, seed))
    assert carried.shape == plane.shape
    assert carried.min() >= plane.min() - 1e-5 and carried.max() <= plane.max() + 1e-5


@given(hnp.arrays(np.int32, (9, 13), elements=st.integers(0, 2**30)), st.integers(-4, 4), st.integers(-4, 4))
@settings(max_examples=40, deadline=None)
def test_whole_pixels_are_moved_exactly(ids: np.ndarray, dx: int, dy: int) -> None:
    flow = moved(ids.shape, (dx, dy))
    carried = carry(ids, flow, nearest=True, outside=-1)
    rows, columns = np.mgrid[: ids.shape[0], : ids.shape[1]]
    y, x = rows + dy, columns + dx
    within = (y >= 0) & (y < ids.shape[0]) & (x >= 0) & (x < ids.shape[1])
    expected = np.where(within, ids[y.clip(0, ids.shape[0] - 1), x.clip(0, ids.shape[1] - 1)], -1)
    np.testing.assert_array_equal(carried, expected)


def test_a_flow_serves_planes_of_any_size() -> None:
    ramp = np.linspace(0, 1, 64, dtype=np.float32)[None, :].repeat(32, axis=0)
    # One pixel of 16 is four of 64.
    carried = carry(ramp, moved((8, 16), (1.0, 0.0)))
    np.testing.assert_allclose(carried[:, :-5], ramp[:, 4:-1], atol=1e-5)


def test_the_border_goes_on_unless_a_value_is_given() -> None:
    plane = np.full((4, 6), 0.75, np.float32)
    flow = moved((4, 6), (3.0, 0.0))
    np.testing.assert_array_equal(carry(plane, flow), plane)
    left_out = carry(plane, flow, outside=0.0)
    assert (left_out[:, :3] == 0.75).all() and (left_out[:, 3:] == 0.0).all()


def test_trembling_flow_does_not_eat_the_border() -> None:
    """A third of a pixel to and fro, thirty times: the outermost pixels stay."""
    plane = np.ones((5, 5), np.float32)
    for turn in range(30):
        plane = carry(plane, moved((5, 5), (0.3 * (-1) ** turn, 0.0)), outside=0.0)
    np.testing.assert_array_equal(plane, np.ones((5, 5), np.float32))


@pytest.mark.parametrize(
    ("plane", "message"),
    [
        (np.zeros((4, 4), np.int32), "nearest=True"),
        (np.zeros((4, 4), np.bool_), "nearest=True"),
        (np.zeros((4, 4), np.float64), "float32"),
        (np.zeros((4, 4), np.int64), "float32"),
        (np.zeros((0, 4), np.float32), "not empty"),
        (np.zeros((1, 4, 4, 1), np.float32), r"\[h, w\]"),
    ],
)
def test_planes_that_cannot_be_carried_are_refused(plane: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        carry(plane, Flow.still((4, 4)))


@given(rasters, seeds)
@settings(max_examples=40, deadline=None)
def test_composing_with_the_identity_changes_nothing(hw: tuple[int, int], seed: int) -> None:
    flow = random_flow(hw, seed)
    source = base_grid(hw) + flow.offset_px
    limits = np.float32([hw[1] - 0.5, hw[0] - 0.5])
    within = ((source >= -0.5) & (source <= limits)).all(axis=2)
    for composed in (compose(Flow.still(hw), flow), compose(flow, Flow.still(hw))):
        np.testing.assert_array_equal(composed.offset_px, flow.offset_px)
        np.testing.assert_allclose(composed.confidence, flow.confidence * within, atol=1e-6)


@given(rasters, shifts, shifts)
@settings(max_examples=60, deadline=None)
def test_translations_add_up(hw: tuple[int, int], first: tuple[float, float], second: tuple[float, float]) -> None:
    composed = compose(moved(hw, first), moved(hw, second))
    total = np.float32(first) + np.float32(second)
    np.testing.assert_allclose(composed.offset_px, np.tile(total, (*hw, 1)), atol=1e-5)
    source = base_grid(hw) + composed.offset_px
    outside = ((source < -0.51) | (source > np.float32([hw[1] - 0.49, hw[0] - 0.49]))).any(axis=2)
    assert (composed.confidence[outside] == 0).all()


def test_a_path_that_left_the_frame_and_came_back_is_not_trusted() -> None:
    composed = compose(moved((6, 8), (-4.0, 0.0)), moved((6, 8), (4.0, 0.0)))
    assert (composed.offset_px == 0).all()
    assert (composed.confidence[:, 4:] == 0).all() and (composed.confidence[:, :4] == 1).all()


def test_confidence_is_multiplied_along_the_path() -> None:
    hw = (4, 6)
    trust = np.tile(np.linspace(0.5, 1.0, 6, dtype=np.float32), (4, 1))
    older = Flow(np.zeros((*hw, 2), np.float32), trust, np.ones(hw, np.float32))
    newer = moved(hw, (1.0, 0.0))
    composed = compose(older, newer)
    np.testing.assert_allclose(composed.confidence[:, :5], trust[:, 1:], atol=1e-6)
    np.testing.assert_array_equal(composed.residual, newer.residual)


def test_flows_of_two_rasters_compose_on_the_newer() -> None:
    composed = compose(moved((4, 8), (0.5, 0.0)), moved((8, 16), (1.0, 0.0)))
    assert composed.hw == (8, 16)
    np.testing.assert_allclose(composed.offset_px[..., 0], 2.0, atol=1e-5)


@given(rasters, rasters, shifts)
@settings(max_examples=40, deadline=None)
def test_resizing_scales_offsets(hw: tuple[int, int], to: tuple[int, int], shift: tuple[float, float]) -> None:
    resized = moved(hw, shift).resized(to)
    assert resized.hw == to
    expected = np.float32([shift[0] * to[1] / hw[1], shift[1] * to[0] / hw[0]])
    np.testing.assert_allclose(resized.offset_px, np.tile(expected, (*to, 1)), rtol=1e-4, atol=1e-4)


def test_flow_checks_itself() -> None:
    offset, plane = np.zeros((3, 4, 2), np.float32), np.ones((3, 4), np.float32)
    Flow(offset, plane, plane)
    bad: list[tuple[object, ...]] = [
        (offset[..., :1], plane, plane),
        (offset.astype(np.float64), plane, plane),
        (offset, plane[:2], plane),
        (offset, plane * 1.5, plane),
        (offset, plane, plane * np.nan),
        (offset * np.nan, plane, plane),
        (offset + np.inf, plane, plane),
    ]
    for arguments in bad:
        with pytest.raises(ValueError):
            Flow(*arguments)  # type: ignore[arg-type]


def test_check_tells_a_true_flow_from_a_wrong_one() -> None:
    random = np.random.default_rng(0)
    picture = cv2.GaussianBlur(random.integers(0, 256, (40, 60), dtype=np.uint8), (0, 0), 2)
    picture = cv2.normalize(picture, None, 0, 255, cv2.NORM_MINMAX)
    present = np.roll(picture, 3, axis=1)
    true = checked_flow(picture, present, moved((40, 60), (-3.0, 0.0)).offset_px).confidence
    wrong = checked_flow(picture, present, moved((40, 60), (3.0, 0.0)).offset_px)
    assert true[:, 5:].min() == 1.0 and (true[:, :2] == 0).all()
    assert wrong.confidence[:, 5:-5].mean() < 0.4 and wrong.residual[:, 5:-5].mean() > 0.6


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "first", "second", "truth", "most_px"),
    [
        ("rubberwhale", "rubberwhale1.png", "rubberwhale2.png", "flow_gt.flo", 0.3),
        ("chairs0", "0img0.ppm", "0img1.ppm", "0flow.flo", 2.0),
    ],
)
def test_endpoint_error_on_known_pairs(name: str, first: str, second: str, truth: str, most_px: float) -> None:
    root = os.environ.get("ARR_STREAM_DATA")
    if not root:
        pytest.skip("ARR_STREAM_DATA names no folder")
    folder = Path(root) / "flow" / name
    frame = Frame(0, 0.0, np.zeros((1, 1, 3), np.uint8))
    one, two = (FlowInput(cv2.imread(str(folder / part), cv2.IMREAD_GRAYSCALE), frame) for part in (first, second))
    # Their truth points from the first picture to the second: backward flow with the first as the present.
    flow = DisFlow("medium", raster_divisor=1).estimate(two, one)
    error_px = np.linalg.norm(flow.offset_px - read_flo(folder / truth), axis=2)
    assert np.nanmean(error_px) < most_px
    wrong = error_px > 3
    assert flow.confidence[wrong].mean() < flow.confidence[~wrong].mean()


def read_flo(path: Path) -> FloatArray:
    """Middlebury's format; unknown places are NaN."""
    content = path.read_bytes()
    magic, width, height = struct.unpack("<fii", content[:12])
    assert magic == 202021.25
    flow = np.frombuffer(content, np.float32, offset=12).reshape(height, width, 2).copy()
    flow[np.abs(flow) > 1e6] = np.nan
    return flow


@given(rasters, st.tuples(st.floats(-3, 3), st.floats(-3, 3)), st.floats(0.95, 1.05))
def test_points_go_where_the_picture_went(hw: tuple[int, int], shift: tuple[float, float], growth: float) -> None:
    """A zoom with a shift, under which every point has one place."""
    then = np.random.default_rng(0).random((20, 2), np.float32)
    now_px = base_grid(hw)
    flow = Flow(
        ((now_px - shift) / growth - now_px).astype(np.float32), np.ones(hw, np.float32), np.zeros(hw, np.float32)
    )
    now, trust = carried_points(then, flow)
    expected_px = (then * hw[::-1] - 0.5) * growth + shift
    # Beyond the raster the flow goes on as at its rim.
    within = ((expected_px >= 0) & (expected_px <= np.array(hw[::-1]) - 1)).all(1)
    assert now[within] * hw[::-1] - 0.5 == pytest.approx(expected_px[within], abs=0.05)
    assert (trust[within] == 1).all()


def test_points_that_nothing_comes_from_are_not_trusted() -> None:
    hw = (8, 16)
    folded = np.zeros((*hw, 2), np.float32)
    # Columns 4 to 7 of the earlier frame are hidden now: what is there comes from columns 8 to 11.
    folded[:, 4:8, 0] = 4
    flow = Flow(folded, np.ones(hw, np.float32), np.zeros(hw, np.float32))
    _, trust = carried_points(np.float32([[5.5 / 16, 0.5], [1.5 / 16, 0.5], [13.5 / 16, 0.5]]), flow)
    assert trust.tolist() == [0, 1, 1]
