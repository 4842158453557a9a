"""Objects that leave, are covered and come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import cv2
import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.beside import make_provider
from arr_stream.keyframes.generate import make_generator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query, RegionQuery
from arr_stream.types import ByteArray, Frame
from tests.scenes import background

HEIGHT, WIDTH, SIDE = 288, 512, 72
SETTINGS = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "10%"})
Place = tuple[int, int] | None
"""Left and top of the thing; None where it is gone."""


def thing(seed: int = 1) -> ByteArray:
    """A disc in four colours on nothing, `[SIDE, SIDE, 4]`."""
    colours = np.random.default_rng(seed).integers(30, 256, (2, 2, 3), np.uint8)
    rgb = cv2.resize(colours, (SIDE, SIDE), interpolation=cv2.INTER_NEAREST)
    disc = cv2.circle(np.zeros((SIDE, SIDE), np.uint8), (SIDE // 2, SIDE // 2), SIDE // 2 - 2, 255, -1)
    return np.dstack([rgb, disc])


def frames(places: Sequence[Place], ground: ByteArray | None = None, seed: int = 1) -> Iterator[Frame]:
    shown = thing(seed)
    for index, place in enumerate(places):
        rgb = (background((HEIGHT, WIDTH)) if ground is None else ground).copy()
        if place is not None:
            x, y = place
            x0, x1 = max(x, 0), min(x + SIDE, WIDTH)
            if x0 < x1:
                part = shown[:, x0 - x : x1 - x]
                rgb[y : y + SIDE, x0:x1][part[..., 3] > 0] = part[..., :3][part[..., 3] > 0]
        rgb = np.clip(rgb + np.random.default_rng(index).normal(0, 2, rgb.shape), 0, 255).astype(np.uint8)
        yield Frame(index, index / 30, rgb)


def run(shown: Iterator[Frame], *queries: Query) -> list[PatchSet]:
    with closing(make_provider(make_generator(SETTINGS), SETTINGS.keyframes)) as provider:
        pipeline = Pipeline(SETTINGS, provider, queries)
        return [pipeline.step(frame) for frame in shown]


def cells(patches: PatchSet) -> set[tuple[int, int]]:
    return set(zip(patches.rows.tolist(), patches.columns.tolist(), strict=True))


def on_thing(patches: PatchSet, place: tuple[int, int]) -> float:
    """Share of the chosen cells' area over the thing, of the thing's box."""
    x, y = place
    xyxy = patches.cells_xyxy
    wide = np.clip(np.minimum(xyxy[:, 2], x + SIDE) - np.maximum(xyxy[:, 0], x), 0, None)
    high = np.clip(np.minimum(xyxy[:, 3], y + SIDE) - np.maximum(xyxy[:, 1], y), 0, None)
    return float((wide * high).sum()) / SIDE**2


def box_query() -> RegionQuery:
    return RegionQuery((40, 100, SIDE, SIDE))


IN: list[Place] = [(40 + 2 * step, 100) for step in range(20)]
OUT: list[Place] = [(80 - 16 * step, 100) for step in range(1, 10)]
GONE: list[Place] = [None] * 30
BACK: list[Place] = [(WIDTH - 16 * step, 180) for step in range(1, 10)] + [(WIDTH - 150, 180)] * 15


def test_a_thing_that_left_is_given_up_and_found_where_it_comes_back() -> None:
    query = box_query()
    places = IN + OUT + GONE + BACK
    patches = run(frames(places), query)
    left, back = len(IN) + len(OUT) + 10, len(places) - 5
    assert on_thing(patches[len(IN) - 1], IN[-1]) > 0.8
    assert all(each.query_scores[0] < 0.5 for each in patches[left : len(IN) + len(OUT) + len(GONE)])
    assert patches[back].query_scores[0] > 0.5
    assert on_thing(patches[back], BACK[-1]) > 0.8
    news = [(index, notice) for index, each in enumerate(patches) for notice in each.notices]
    assert [notice.split(" at ")[0] for _, notice in news] == [f"{query.label}: lost", f"{query.label}: found again"]
    assert len(IN) < news[0][0] <= left and left < news[1][0] <= back


def test_while_it_is_lost_the_choice_is_what_it_is_without_a_question() -> None:
    asked, unasked = run(frames(IN + OUT + 2 * GONE), box_query()), run(frames(IN + OUT + 2 * GONE))
    assert (asked[len(IN) - 1].query == 0).any()
    assert (asked[-1].query == -1).all()
    assert cells(asked[-1]) == cells(unasked[-1])


def test_after_a_cutaway_it_is_found_where_it_has_gone_meanwhile() -> None:
    elsewhere = np.ascontiguousarray(255 - background((HEIGHT, WIDTH), seed=5)[:, ::-1])
    there: list[Place] = [(330, 40)] * 20
    shown = [*frames(IN), *frames(GONE, elsewhere), *frames(there)]
    patches = run((Frame(at, at / 30, frame.rgb) for at, frame in enumerate(shown)), box_query())
    assert on_thing(patches[-1], (330, 40)) > 0.8


def test_another_thing_is_not_taken_for_it() -> None:
    shown = [*frames(IN + OUT + GONE), *frames(BACK, seed=9)]
    patches = run((Frame(at, at / 30, frame.rgb) for at, frame in enumerate(shown)), box_query())
    assert all(each.query_scores[0] < 0.5 for each in patches[-20:])


@pytest.mark.slow
def test_what_stays_in_sight_is_believed_in_full() -> None:
    shuttle: list[Place] = [(40 + abs(at % 240 - 120) * 2, 100) for at in range(120, 420)]
    patches = run(frames(shuttle), box_query())
    assert min(each.query_scores[0] for each in patches) > 0.8
    assert not any(each.notices for each in patches)
    assert on_thing(patches[-1], (40 + abs(419 % 240 - 120) * 2, 100)) > 0.8
