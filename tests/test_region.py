"""Regions on moving objects: found after they moved, given up when they leave, not lost to look-alikes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.motion.flow import DisFlow, Flow, FlowInput
from arr_stream.motion.region import Region
from arr_stream.texture.pixels import guided
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
        return DisFlow().estimate(previous, present)

    def follow(self, mask: FloatArray, *, exact: bool) -> list[FloatArray]:
        region = Region.learned(self.quarter(0), mask, exact=exact)
        found = [region.relevance()]
        for index in range(1, len(self.halves)):
            region = region.follow(self.quarter(index), self.flow(index))
            found.append(region.relevance())
        return found


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
    found = scene.follow(scene.masks[0], exact=True)
    assert iou(scene.masks[0], scene.masks[-1]) == 0
    assert min(iou(f, m) for f, m in zip(found, scene.masks, strict=True)) > 0.85


def test_a_box_is_narrowed_to_its_object_and_follows_it() -> None:
    scene = walk(20, (30, 40), (4.0, 1.5))
    box = box_around(scene.masks[0])
    found = scene.follow(box, exact=False)
    assert iou(found[0], scene.masks[0]) > iou(box, scene.masks[0]) + 0.1
    # Flow is smeared around a fast object, so a loose region is generous at its border, but it misses nothing.
    assert iou(found[-1], scene.masks[-1]) > 0.5
    assert found[-1][scene.masks[-1] > 0.9].min() > 0.5


def test_a_region_that_leaves_the_frame_is_given_up() -> None:
    scene = walk(16, (185, 60), (5.0, 0.0))
    found = scene.follow(scene.masks[0], exact=True)
    assert scene.masks[-1].sum() == 0
    assert found[-1].max() == 0


def test_a_look_alike_that_comes_near_does_not_take_the_region() -> None:
    scene = Scene()
    for index in range(15):
        half = ground()
        disc(half, (190 - 5 * index, 60), 14, DARK_RED)
        scene.add(half, disc(half, (60, 60), 16, RED))
    found = scene.follow(scene.masks[0], exact=True)
    assert min(iou(f, m) for f, m in zip(found, scene.masks, strict=True)) > 0.8


def test_an_object_that_stands_still_is_not_lost_to_one_that_moves() -> None:
    scene = Scene()
    for index in range(15):
        half = ground()
        disc(half, (200 - 6 * index, 25), 10, (40, 40, 200))
        scene.add(half, disc(half, (60, 80), 16, RED))
    found = scene.follow(box_around(scene.masks[0]), exact=False)
    assert iou(found[-1], scene.masks[-1]) > 0.8


def test_what_comes_nearer_is_still_followed_to_its_border() -> None:
    scene = Scene()
    for index in range(24):
        half = ground()
        scene.add(half, disc(half, (108, 60), 10 + index * 2, RED))
    found = scene.follow(scene.masks[0], exact=True)
    assert scene.masks[-1].sum() > 25 * scene.masks[0].sum()
    assert min(iou(f, m) for f, m in zip(found, scene.masks, strict=True)) > 0.8


def test_after_a_flash_the_region_is_still_there_and_after_a_cut_it_is_not() -> None:
    scene = walk(2, (60, 60), (0.0, 0.0))
    region = Region.learned(scene.quarter(0), scene.masks[0], exact=True).follow(scene.quarter(1), None)
    assert iou(region.posterior, scene.masks[1]) > 0.8
    elsewhere = cv2.resize(ground(7), (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    region = region.follow(elsewhere, None)
    assert region.posterior.max() == 0
    # Carried on through the other scene there is nothing to carry; back from the cutaway the region is found again.
    region = region.follow(elsewhere, Flow.still((HEIGHT // 2, WIDTH // 2)))
    assert region.posterior.max() == 0
    assert iou(region.follow(scene.quarter(0), None).posterior, scene.masks[0]) > 0.8


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
    first = Region.learned(pictures[0], mask, exact=exact)
    second = first.follow(pictures[1], flow)
    for each in (first, second, second.follow(pictures[2], None)):
        relevance = each.relevance()
        assert relevance.shape == (height, width) and relevance.dtype == np.float32
        assert np.isfinite(relevance).all() and relevance.min() >= 0 and relevance.max() <= 1


@pytest.mark.parametrize("right", [(230, 230, 230), (25, 150, 25), (75, 25, 25)])
def test_a_border_that_lies_beside_a_change_of_colour_is_brought_to_it(right: tuple[int, int, int]) -> None:
    picture = np.full((40, 60, 3), 25, np.uint8)
    picture[:, 30:] = right
    beside = np.zeros((40, 60), np.float32)
    beside[:, 32:] = 1
    beside = cv2.GaussianBlur(beside, (5, 5), 0)
    found = guided(beside, picture, side_px=5, least=6.5)
    assert (beside[:, 30:32] < 0.5).all()
    # The columns between the two borders belong to the right half by their colour.
    assert (found[:, 30:32] > 0.5).all() and (found[:, :28] < 0.5).all()
