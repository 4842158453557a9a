"""Generated scenes: what is said of them is true of their pixels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scenes.shapes import (
    COLOURS,
    LARGE_ABOVE_PX,
    SHAPES,
    SMALL_BELOW_PX,
    TEXTURES,
    Scene,
    caption,
    entering_scene,
    make_scene,
    moving_scene,
)


def scene_of(seed: int, size_wh: tuple[int, int] = (448, 256), **options: bool) -> Scene:
    return make_scene(np.random.default_rng(seed), size_wh, (2, 6), **options)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(448, 256), (160, 160), (96, 200), (33, 47)]))
def test_scenes_hold_what_they_promise(seed: int, size_wh: tuple[int, int]) -> None:
    scene = scene_of(seed, size_wh)
    width, height = size_wh
    assert scene.rgb.shape == (height, width, 3) and scene.rgb.dtype == np.uint8
    assert 1 <= len(scene.things) <= 6
    total = np.zeros((height, width), int)
    for thing in scene.things:
        assert thing.colour in COLOURS and thing.shape in SHAPES and thing.texture in TEXTURES
        x0, y0, x1, y1 = thing.box_xyxy
        assert thing.mask.shape == (height, width) and thing.mask.any()
        assert thing.mask.sum() == thing.mask[y0:y1, x0:x1].sum()
        assert thing.mask[y0].any() and thing.mask[y1 - 1].any()
        assert thing.mask[:, x0].any() and thing.mask[:, x1 - 1].any()
        total += thing.mask
    assert total.max() <= 1, "a pixel belongs to one thing at most"


def test_the_same_seed_gives_the_same_scene() -> None:
    first, again, other = scene_of(5), scene_of(5), scene_of(6)
    assert np.array_equal(first.rgb, again.rgb)
    assert [t.phrase() for t in first.things] == [t.phrase() for t in again.things]
    assert not np.array_equal(first.rgb, other.rgb)


def test_things_have_the_colour_they_are_said_to_have() -> None:
    """On plain scenes, whose things have no second colour, the nearest colour word is right nearly always."""
    names, values = list(COLOURS), np.array(list(COLOURS.values()), float)
    hits = [
        names[int(np.argmin(np.abs(values - np.median(scene.rgb[thing.mask], axis=0)).sum(axis=1)))] == thing.colour
        for seed in range(40)
        for scene in [scene_of(seed, plain=True)]
        for thing in scene.things
    ]
    assert np.mean(hits) > 0.97


def test_outlines_are_of_the_shape_they_are_said_to_have() -> None:
    """A circle fills most of the circle around it, a triangle or a star less than half; a ring has an empty middle."""
    filled: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    middle: dict[str, list[bool]] = {shape: [] for shape in SHAPES}
    for seed in range(80):
        scene = scene_of(seed)
        for thing in scene.things:
            x0, y0, x1, y1 = thing.box_xyxy
            if min(x0, y0) <= 0 or x1 >= 448 or y1 >= 256:
                continue
            rows, columns = np.nonzero(thing.mask)
            y, x = rows.mean(), columns.mean()
            radius = np.hypot(rows - y, columns - x).max()
            filled[thing.shape].append(thing.mask.sum() / (np.pi * radius**2))
            middle[thing.shape].append(bool(thing.mask[round(y), round(x)]))
    fill = {shape: float(np.median(values)) for shape, values in filled.items()}
    assert fill["circle"] > 0.85 > fill["square"] > 0.55
    assert min(fill["square"], fill["cross"]) > 0.5 > max(fill["triangle"], fill["star"])
    assert not any(middle["ring"]) and all(middle["circle"]) and all(middle["cross"])


def test_words_for_size_and_place_follow_the_mask() -> None:
    for seed in range(30):
        scene = scene_of(seed)
        for thing in scene.things:
            x0, y0, x1, y1 = thing.box_xyxy
            if thing.shape == "circle" and x0 > 0 and x1 < 448 and y0 > 0 and y1 < 256:
                across = max(x1 - x0, y1 - y0) / 0.92
                if thing.size_word == "small":
                    assert across < SMALL_BELOW_PX + 4
                if thing.size_word == "large":
                    assert across > LARGE_ABOVE_PX - 4
            middle = (x0 + x1) / 2 / 448
            if thing.place_word in ("left", "right"):
                assert (middle < 0.5) == (thing.place_word == "left")


def test_phrases_say_what_was_asked_for() -> None:
    thing = scene_of(1).things[0]
    assert thing.phrase() == f"{thing.colour} {thing.shape}"
    assert thing.phrase(colour=False) == thing.shape
    assert thing.phrase(shape=False) == f"{thing.colour} thing"
    full = thing.phrase(size=True, texture=True, place=True)
    assert full.startswith(f"{thing.size_word} {thing.texture} {thing.colour} {thing.shape} ")


def test_captions_name_only_what_is_there() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        scene = scene_of(seed)
        text = caption(scene, rng)
        there = {t.phrase() for t in scene.things}
        named = [f"{c} {s}" for c in COLOURS for s in SHAPES if f"{c} {s}" in text]
        assert named and set(named) <= there


def test_a_clip_moves_smoothly_and_its_masks_with_it() -> None:
    scenes = list(moving_scene(np.random.default_rng(3), (224, 128), 12))
    assert len({tuple(t.phrase() for t in scene.things) for scene in scenes}) == 1
    for before, after in pairwise(scenes):
        for a, b in zip(before.things, after.things, strict=True):
            if a.mask.sum() < 200:
                continue
            shared = (a.mask & b.mask).sum() / (a.mask | b.mask).sum()
            assert shared > 0.6
    moved = [
        np.hypot(*(np.argwhere(last.mask).mean(axis=0) - np.argwhere(first.mask).mean(axis=0)))
        for first, last in zip(scenes[0].things, scenes[-1].things, strict=True)
        if first.mask.any() and last.mask.any()
    ]
    assert max(moved) > 1.0


@pytest.mark.parametrize("frames", [0, 1])
def test_a_clip_has_as_many_frames_as_asked_for(frames: int) -> None:
    assert len(list(moving_scene(np.random.default_rng(0), (96, 64), frames))) == frames


@pytest.mark.parametrize("seed", range(4))
def test_what_enters_is_out_of_sight_at_first_and_whole_on_its_frame(seed: int) -> None:
    still = list(entering_scene(np.random.default_rng(seed), np.zeros((30, 2)), 22))
    come = [scene.things[-1] for scene in still]
    assert not come[0].mask.any()
    width = come[22].mask.shape[1]
    left, _, right, _ = come[22].box_xyxy
    assert left > 0 and right < width
    assert come[21].box_xyxy[0] <= 5 or come[21].box_xyxy[2] >= width - 5
    assert [thing.phrase() for thing in still[0].things].count(come[0].phrase()) == 1
    panned = list(entering_scene(np.random.default_rng(seed), np.outer(np.arange(30), [1.0, 0.3]), 22))
    assert [thing.phrase() for thing in panned[0].things] == [thing.phrase() for thing in still[0].things]
    assert panned[22].things[-1].box_xyxy == come[22].box_xyxy
