"""Regions on moving objects: found after they moved, given up when they leave, not lost to look-alikes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.motion import make_flow
from arr_stream.motion.anchor import ColourModel, RegionTracker, figure_in_region, motion_evidence
from arr_stream.motion.flow import Flow, FlowInput
from arr_stream.types import ByteArray, FloatArray, Frame

HEIGHT, WIDTH = 120, 216
RED, DARK_RED = (200, 40, 40), (150, 30, 30)


def ground(seed: int = 0) -> ByteArray:
    """A mottled grey-green ground, half size."""
    noise = np.random.default_rng(seed).normal(size=(HEIGHT // 4, WIDTH // 4, 3)).astype(np.float32)
    rough = cv2.resize(noise, (WIDTH * 2, HEIGHT * 2), interpolation=cv2.INTER_CUBIC)
    return np.clip(np.array([90, 120, 90]) + 25 * rough, 0, 255).astype(np.uint8)


def disc(picture: ByteArray, centre: tuple[float, float], radius: int, colour: tuple[int, int, int]) -> FloatArray:
    """Paint a two-coloured disc on a half-size picture; its mask at a quarter."""
    x, y = round(centre[0] * 2), round(centre[1] * 2)
    mask = np.zeros(picture.shape[:2], np.uint8)
    cv2.circle(mask, (x, y), radius * 2, 255, -1)
    stripes = (np.arange(picture.shape[1]) // 6 % 2)[None, :, None].astype(np.float32)
    stripes = np.roll(stripes, x, axis=1)
    painted = np.array(colour) * (0.8 + 0.4 * stripes) + np.zeros((*mask.shape, 3))
    picture[mask > 0] = np.clip(painted, 0, 255).astype(np.uint8)[mask > 0]
    return cv2.resize(mask, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


class Scene:
    """Half-size pictures with their true masks, and what the pipeline makes of them."""

    def __init__(self) -> None:
        self.halves: list[ByteArray] = []
        self.masks: list[FloatArray] = []

    def add(self, half: ByteArray, mask: FloatArray) -> None:
        self.halves.append(half)
        self.masks.append(mask)

    def quarter(self, index: int) -> ByteArray:
        return np.ascontiguousarray(cv2.resize(self.halves[index], (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA))

    def flow(self, index: int) -> Flow:
        previous, present = (
            FlowInput(cv2.cvtColor(half, cv2.COLOR_RGB2GRAY), Frame(0, 0.0, half))
            for half in self.halves[index - 1 : index + 1]
        )
        return make_flow("dis", "ultrafast").estimate(previous, present)

    def follow(self, mask: FloatArray, *, exact: bool) -> tuple[list[FloatArray], list[float]]:
        tracker = RegionTracker()
        found, trust = [tracker.start(self.quarter(0), mask, exact=exact)], [tracker.confidence]
        for index in range(1, len(self.halves)):
            found.append(tracker.step(self.quarter(index), self.flow(index)))
            trust.append(tracker.confidence)
        return found, trust


def walk(frames: int, start: tuple[float, float], step: tuple[float, float], *, radius: int = 16) -> Scene:
    scene = Scene()
    for index in range(frames):
        half = ground()
        mask = disc(half, (start[0] + step[0] * index, start[1] + step[1] * index), radius, RED)
        scene.add(half, mask)
    return scene


def box_around(mask: FloatArray) -> FloatArray:
    rows, columns = np.flatnonzero(mask.max(axis=1) > 0.5), np.flatnonzero(mask.max(axis=0) > 0.5)
    box = np.zeros_like(mask)
    box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = 1
    return box


def iou(found: FloatArray, mask: FloatArray) -> float:
    a, b = found > 0.5, mask > 0.5
    return float((a & b).sum() / max((a | b).sum(), 1))


def test_a_mask_stays_on_its_object() -> None:
    scene = walk(20, (30, 40), (4.0, 1.5))
    found, trust = scene.follow(scene.masks[0], exact=True)
    assert iou(scene.masks[0], scene.masks[-1]) == 0
    assert min(iou(f, m) for f, m in zip(found, scene.masks, strict=True)) > 0.85
    assert min(trust) > 0.8


def test_a_box_is_narrowed_to_its_object_and_follows_it() -> None:
    scene = walk(20, (30, 40), (4.0, 1.5))
    box = box_around(scene.masks[0])
    found, _ = scene.follow(box, exact=False)
    assert iou(found[0], scene.masks[0]) > iou(box, scene.masks[0]) + 0.1
    # Flow is smeared around a fast object, so a loose region is generous at its border, but it misses nothing.
    assert iou(found[-1], scene.masks[-1]) > 0.5
    assert found[-1][scene.masks[-1] > 0.9].min() > 0.5


def test_a_region_that_leaves_the_frame_is_given_up() -> None:
    scene = walk(16, (185, 60), (5.0, 0.0))
    found, trust = scene.follow(scene.masks[0], exact=True)
    assert scene.masks[-1].sum() == 0
    assert trust[0] == 1.0
    assert trust[-1] == 0.0
    assert (found[-1] > 0.5).sum() == 0


def test_a_look_alike_that_comes_near_does_not_take_the_region() -> None:
    scene = Scene()
    for index in range(15):
        half = ground()
        disc(half, (190 - 5 * index, 60), 14, DARK_RED)
        scene.add(half, disc(half, (60, 60), 16, RED))
    found, _ = scene.follow(scene.masks[0], exact=True)
    assert min(iou(f, m) for f, m in zip(found, scene.masks, strict=True)) > 0.8


def test_an_object_that_stands_still_is_not_lost_to_one_that_moves() -> None:
    scene = Scene()
    for index in range(15):
        half = ground()
        disc(half, (200 - 6 * index, 25), 10, (40, 40, 200))
        scene.add(half, disc(half, (60, 80), 16, RED))
    found, _ = scene.follow(box_around(scene.masks[0]), exact=False)
    assert iou(found[-1], scene.masks[-1]) > 0.8


def test_the_same_input_gives_the_same_output() -> None:
    scene = walk(5, (60, 60), (3.0, 0.0))
    once, _ = scene.follow(box_around(scene.masks[0]), exact=False)
    again, _ = scene.follow(box_around(scene.masks[0]), exact=False)
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_comes_nearer_is_still_followed_to_its_border() -> None:
    scene = Scene()
    for index in range(24):
        half = ground()
        scene.add(half, disc(half, (108, 60), 10 + index * 2, RED))
    found, _ = scene.follow(scene.masks[0], exact=True)
    assert scene.masks[-1].sum() > 25 * scene.masks[0].sum()
    assert min(iou(f, m) for f, m in zip(found, scene.masks, strict=True)) > 0.8


def test_after_a_flash_the_region_is_still_there_and_after_a_cut_it_is_not() -> None:
    scene = walk(2, (60, 60), (0.0, 0.0))
    tracker = RegionTracker()
    tracker.start(scene.quarter(0), scene.masks[0], exact=True)
    assert iou(tracker.step(scene.quarter(1), None), scene.masks[1]) > 0.8
    elsewhere = cv2.resize(ground(7), (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    assert (tracker.step(elsewhere, None) > 0.5).sum() == 0
    assert tracker.confidence == 0.0
    # Carried on through the other scene there is nothing to carry; back from the cutaway the region is found again.
    assert (tracker.step(elsewhere, Flow.still((HEIGHT // 2, WIDTH // 2))) > 0.5).sum() == 0
    assert iou(tracker.step(scene.quarter(0), None), scene.masks[0]) > 0.8
    assert tracker.confidence > 0.8


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.3])
def test_empty_and_full_masks_stay_finite(exact: bool, value: float) -> None:
    rgb = np.ascontiguousarray(ground()[:HEIGHT, :WIDTH])
    tracker = RegionTracker()
    tracker.start(rgb, np.full((HEIGHT, WIDTH), value, np.float32), exact=exact)
    found = tracker.step(rgb, Flow.still((HEIGHT // 2, WIDTH // 2)))
    assert np.isfinite(found).all()
    assert found.min() >= 0
    assert found.max() <= 1
    if value == 0.0:
        assert found.max() == 0
        assert tracker.confidence == 0
    if value == 1.0:
        assert found.min() > 0.5


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    exact=st.booleans(),
    seed=st.integers(0, 1000),
    shift=st.floats(-50, 50),
)
def test_any_size_and_any_motion_give_numbers_in_range(
    height: int, width: int, exact: bool, seed: int, shift: float
) -> None:
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    mask = (random.random((height, width)) > 0.5).astype(np.float32)
    flow_hw = (max(1, height // 2), max(1, width // 2))
    zeros = np.zeros(flow_hw, np.float32)
    flow = Flow(np.full((*flow_hw, 2), shift, np.float32), zeros, random.random(flow_hw).astype(np.float32))
    tracker = RegionTracker()
    found = [tracker.start(pictures[0], mask, exact=exact)]
    found += [tracker.step(pictures[1], flow), tracker.step(pictures[2], None)]
    for each in found:
        assert each.shape == (height, width)
        assert each.dtype == np.float32
        assert np.isfinite(each).all()
        assert each.min() >= 0
        assert each.max() <= 1
    assert 0 <= tracker.confidence <= 1


def test_sizes_that_differ_are_refused() -> None:
    rgb = np.zeros((8, 10, 3), np.uint8)
    tracker = RegionTracker()
    with pytest.raises(ValueError, match="must agree"):
        tracker.start(rgb, np.zeros((8, 9), np.float32), exact=True)
    tracker.start(rgb, np.zeros((8, 10), np.float32), exact=True)
    with pytest.raises(ValueError, match="start again"):
        tracker.step(np.zeros((4, 5, 3), np.uint8), None)


def test_figure_lies_within_its_region() -> None:
    half = ground()
    mask = disc(half, (100, 60), 20, RED)
    rgb = cv2.resize(half, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    box = box_around(mask)
    figure = figure_in_region(rgb, box)
    assert figure[box == 0].max() == 0
    assert figure[mask > 0.9].mean() > figure[(mask < 0.1) & (box > 0)].mean() + 0.5


def test_motion_speaks_for_what_moves_and_is_silent_for_what_stands() -> None:
    offset = np.zeros((60, 108, 2), np.float32)
    offset[..., 0] = 2.0  # the camera
    offset[20:40, 30:50, 0] = -3.0
    confidence, residual = np.ones((60, 108), np.float32), np.zeros((60, 108), np.float32)
    flow = Flow(offset, confidence, residual)
    moving, standing = (np.zeros((HEIGHT, WIDTH), np.float32) for _ in range(2))
    moving[40:80, 60:100] = 1
    standing[40:80, 140:180] = 1
    evidence = motion_evidence(flow, moving)
    assert evidence[45:75, 65:95].min() > 0.5
    assert evidence[:, 140:].max() < 0
    assert np.abs(motion_evidence(flow, standing)).max() == 0


def test_colours_of_an_example_are_found() -> None:
    half = ground()
    mask = disc(half, (100, 60), 20, RED)
    rgb = cv2.resize(half, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    example = np.ascontiguousarray(rgb[50:70, 90:110])
    posterior = ColourModel.from_example(example, rgb).posterior(rgb)
    assert posterior[mask > 0.95].mean() > 0.5
    assert posterior[mask < 0.05].mean() < 0.05
    elsewhere = np.ascontiguousarray(255 - rgb)
    again = ColourModel.from_example(example, rgb).against(elsewhere).table
    assert np.array_equal(again, ColourModel.from_example(example, elsewhere).table)


def test_a_colour_model_learns_gradually() -> None:
    red, blue = (np.full((4, 4, 3), colour, np.uint8) for colour in ((200, 0, 0), (0, 0, 200)))
    ones, none = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    model = ColourModel(prior=0.5)
    assert (model.posterior(red) == 0.5).all()
    model.learn(red, ones, none)
    model.learn(blue, none, ones)
    assert model.posterior(red).min() > 0.95
    assert model.posterior(blue).max() < 0.05
    model.learn(blue, ones, none, rate=0.5)
    assert 0.25 < float(model.posterior(blue).mean()) < 0.75
    with pytest.raises(ValueError, match="prior"):
        ColourModel(prior=1.0)
