"""Carrying and composing: properties that hold for any plane and any flow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from arr_stream.motion.flow import Flow, base_grid, carried_points, carry, compose

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


def test_trembling_flow_does_not_eat_the_border() -> None:
    """A third of a pixel to and fro, thirty times: the outermost pixels stay."""
    plane = np.ones((5, 5), np.float32)
    for turn in range(30):
        plane = carry(plane, moved((5, 5), (0.3 * (-1) ** turn, 0.0)), outside=0.0)
    np.testing.assert_array_equal(plane, np.ones((5, 5), np.float32))


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


@given(rasters, rasters, shifts)
@settings(max_examples=40, deadline=None)
def test_resizing_scales_offsets(hw: tuple[int, int], to: tuple[int, int], shift: tuple[float, float]) -> None:
    resized = moved(hw, shift).resized(to)
    assert resized.hw == to
    expected = np.float32([shift[0] * to[1] / hw[1], shift[1] * to[0] / hw[0]])
    np.testing.assert_allclose(resized.offset_px, np.tile(expected, (*to, 1)), rtol=1e-4, atol=1e-4)


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
