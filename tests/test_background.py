"""The background model: what it finds, what it forgives, and how soon it recovers."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.evaluation.coverage import object_shares
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.motion.background import ABSORB_SECONDS, Background, motion_evidence
from arr_stream.motion.flow import DisFlow, FlowInput
from arr_stream.pipeline import Pipeline
from arr_stream.texture.pictures import Pictures
from arr_stream.types import ByteArray, FloatArray, Frame, Grid

WIDTH, HEIGHT, FPS = 320, 192, 10
SIZE = 28
"""Side in pixels of the thing that moves: less than a cell."""
RNG = np.random.default_rng(0)


def _ground(seed: int = 1) -> ByteArray:
    rng = np.random.default_rng(seed)
    noise = rng.integers(60, 190, (HEIGHT // 4, WIDTH // 4, 3), np.uint8)
    return np.asarray(cv2.resize(noise, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC))


def _frame(ground: ByteArray, at: tuple[int, int] | None = None, noise: float = 2.0) -> ByteArray:
    picture = ground.astype(np.float32) + RNG.normal(0, noise, ground.shape)
    if at is not None:
        x, y = at
        picture[y : y + SIZE, x : x + SIZE] = (230, 40, 30)
    return picture.clip(0, 255).astype(np.uint8)


def _changes(frames: Sequence[ByteArray], fps: float = FPS) -> list[FloatArray]:
    """`[gh, gw]` evidence of change of every frame but the first."""
    grid = Grid.for_size((WIDTH, HEIGHT))
    search = DisFlow()
    background, found = None, []
    before: tuple[FlowInput, Pictures] | None = None
    for index, rgb in enumerate(frames):
        pictures = Pictures(rgb, grid)
        given = FlowInput(pictures.grey, Frame(index, index / fps, rgb))
        if background is None or before is None:
            background = Background.of(pictures.quarter_grey, pictures.eighth_grey)
        else:
            flow = search.estimate(before[0], given)
            greys = pictures.quarter_grey, pictures.eighth_grey
            elapsed = np.full((1, 1), 1 / fps, np.float32)
            background, change, _ = motion_evidence(background, greys, flow, None, elapsed)
            found.append(cv2.resize(change, (grid.columns, grid.rows), interpolation=cv2.INTER_AREA))
        before = given, pictures
    return found


def _walk(count: int, start: int = 20) -> list[tuple[int, int]]:
    return [(start + 5 * index, 80) for index in range(count)]


def _share_on(change: FloatArray, at: tuple[int, int]) -> float:
    """The share of a frame's evidence that lies in the cells of the thing and those beside it."""
    x, y = at
    columns = slice(max(0, x // 32 - 1), (x + SIZE) // 32 + 2)
    rows = slice(max(0, y // 32 - 1), (y + SIZE) // 32 + 2)
    return float(change[rows, columns].sum() / change.sum())


def test_small_thing_before_a_still_background_stands_out_alone() -> None:
    ground, path = _ground(), _walk(40)
    changes = _changes([_frame(ground, at) for at in path])
    for change, at in list(zip(changes, path[1:], strict=True))[10:]:
        assert _share_on(change, at) > 0.85
        assert change.max() > 0.15


def test_sensor_noise_alone_is_no_change() -> None:
    ground = _ground()
    for change in _changes([_frame(ground, noise=4.0) for _ in range(30)])[5:]:
        assert change.max() < 0.1


@pytest.mark.slow
def test_what_stops_stays_foreground_for_the_stated_time_and_no_longer() -> None:
    ground, path = _ground(), _walk(20)
    seconds = int(ABSORB_SECONDS)
    known = [_frame(ground) for _ in range(2 * FPS * seconds)]
    stopped = [_frame(ground, path[-1]) for _ in range(FPS * (seconds + 3))]
    changes = _changes([*known, *(_frame(ground, at) for at in path), *stopped])
    from_stop = changes[len(known) + len(path) - 1 :]
    assert from_stop[FPS * (seconds - 2)].max() > 0.2
    assert from_stop[-1].max() < 0.1


@pytest.mark.parametrize("offset", [(6, 4), (-9, 2)])
def test_knocked_camera_recovers_within_a_second(offset: tuple[int, int]) -> None:
    large = np.asarray(cv2.resize(_ground(), (WIDTH + 40, HEIGHT + 40), interpolation=cv2.INTER_CUBIC))
    x, y = offset
    before, after = large[20 : 20 + HEIGHT, 20 : 20 + WIDTH], large[20 + y : 20 + y + HEIGHT, 20 + x : 20 + x + WIDTH]
    changes = _changes([_frame(before) for _ in range(20)] + [_frame(after) for _ in range(20)])
    assert changes[19 + FPS].mean() < 0.1
    assert changes[19 + FPS].max() < 0.5


def test_lights_switched_on_recover_within_a_second() -> None:
    ground = _ground()
    lit = (ground.astype(np.float32) * 0.5 + 110).clip(0, 255).astype(np.uint8)
    changes = _changes([_frame(ground) for _ in range(20)] + [_frame(lit) for _ in range(20)])
    assert changes[19 + FPS].max() < 0.1


def test_cut_starts_anew_without_lighting_the_frame() -> None:
    settings = Settings().with_values({"selection.budget": "10%", "keyframes.text": "none"})
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)))
    dark, bright = _ground() // 3, 255 - _ground(2) // 3
    for index in range(40):
        ground = dark if index < 20 else bright
        patches = pipeline.step(Frame(index, index / FPS, _frame(ground)))
        motion = patches.texture.plane("motion")
        if index == 20:
            assert patches.refresh_reason == "cut"
        if index in (0, 20):
            assert not motion.any(), "nothing is known on a first frame"
        elif index in (21, 25, 39):
            assert motion.mean() < 0.1


@pytest.mark.parametrize("query", ["", "moving"])
def test_things_far_from_the_centre_are_chosen_wherever_they_move(query: str) -> None:
    from arr_stream.relevance.query import parse_text

    settings = Settings().with_values({"selection.budget": "10%", "keyframes.text": "none"})
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)), [parse_text(query)] if query else [])
    ground = _ground()
    # Something still and loud in the middle draws the eye as long as nothing moves.
    ground[72:120, 136:184] = (250, 240, 20)
    shown = []
    for index in range(40):
        at = (4, 8 + 3 * index)
        patches = pipeline.step(Frame(index, index / FPS, _frame(ground, at)))
        mask = np.zeros((HEIGHT, WIDTH), bool)
        mask[at[1] : at[1] + SIZE, at[0] : at[0] + SIZE] = True
        share = object_shares(mask, patches.grid)
        shown.append(float(share[patches.rows, patches.columns].sum()))
    assert np.mean(shown[10:]) > 0.95
