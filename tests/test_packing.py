"""Chosen cells as whole pictures: within the budget, in the right places, and few of them wasted."""

from __future__ import annotations

import dataclasses
import math
import re

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.errors import BudgetError
from arr_stream.patch_set import PatchSet
from arr_stream.types import CELL_PX, BoolArray, Frame, Grid
from arr_stream.vlm.server.packing import MINIMUM_PIXELS, Packed, encode, pack, picture_tokens, place
from tests.choices import choose


def scene(size_wh: tuple[int, int], cells: int, *, blobs: int, seed: int = 0) -> tuple[Frame, PatchSet]:
    """A noisy frame, and the best cells of a relevance of some blobs."""
    grid, draw = Grid.for_size(size_wh), np.random.default_rng(seed)
    ys, xs = np.mgrid[: grid.rows, : grid.columns]
    relevance = draw.uniform(0, 0.1, ys.shape)
    for _ in range(blobs):
        y, x, width = draw.uniform(0, grid.rows), draw.uniform(0, grid.columns), draw.uniform(1.2, 4)
        blob = draw.uniform(0.5, 1) * np.exp(-((ys - y) ** 2 + (xs - x) ** 2) / (2 * width**2))
        relevance = np.maximum(relevance, blob)
    best = np.argsort(-relevance, axis=None, kind="stable")[: min(cells, grid.cells)]
    frame = Frame(3, 0.1, draw.integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8))
    return frame, chosen(frame, best, relevance.ravel()[best], relevance)


def chosen(frame: Frame, places: npt.ArrayLike, score: npt.ArrayLike, relevance: npt.ArrayLike) -> PatchSet:
    grid = Grid.for_size(frame.size_wh)
    rows, columns = np.divmod(np.asarray(places, np.int32), grid.columns)
    none = np.zeros(len(rows), np.int32)
    return choose(
        frame, grid=grid, rows=rows, columns=columns, level=none, score=np.asarray(score, np.float32), scorer=none,
        query=none, carried=none > 0, fresh=none == 0, relevance=np.asarray(relevance, np.float32),
    )  # fmt: skip


def region(
    rows: tuple[int, int], columns: tuple[int, int], score: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Places, scores and relevance of a rectangle on a grid of 32x32 cells."""
    places = (np.arange(*rows)[:, None] * 32 + np.arange(*columns)).reshape(-1).astype(np.int32)
    return places, np.full(len(places), score), np.zeros((32, 32))


def cost(packed: Packed) -> int:
    return sum(picture.tokens for picture in packed.pictures)


def score_shown(patches: PatchSet, packed: Packed) -> float:
    return float(patches.score[packed.cells_shown].sum())


def in_crops(patches: PatchSet, packed: Packed) -> BoolArray:
    shown = np.zeros(len(patches), np.bool_)
    for crop in packed.pictures[1:]:
        x0, y0, x1, y1 = crop.cells
        ends = np.minimum(patches.columns + patches.span, patches.grid.columns)
        below = np.minimum(patches.rows + patches.span, patches.grid.rows)
        shown |= (patches.columns >= x0) & (patches.rows >= y0) & (ends <= x1) & (below <= y1)
    return shown


def cheapest_overview(grid: Grid, minimum_pixels: int) -> int:
    """Fewest tokens of a picture of the frame's shape, rounded either way, that the server does not scale up."""
    costs = [picture_tokens(grid.rows, grid.columns, minimum_pixels)]
    for rows in range(1, grid.rows + 1):
        exact = rows * grid.columns / grid.rows
        costs += [rows * c for c in {math.floor(exact), math.ceil(exact)} if c and rows * c * 1024 >= minimum_pixels]
    return min(costs)


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(16, 900), st.integers(16, 700)),
    budget=st.none() | st.integers(1, 700),
    seed=st.integers(0, 1000),
    blobs=st.integers(0, 5),
    cells=st.integers(1, 300),
    minimum_pixels=st.sampled_from([1024, 4096, MINIMUM_PIXELS]),
)
def test_is_within_the_budget_and_the_frame(
    size: tuple[int, int], budget: int | None, seed: int, blobs: int, cells: int, minimum_pixels: int
) -> None:
    frame, patches = scene(size, cells, blobs=blobs, seed=seed)
    grid = patches.grid
    cheapest = cheapest_overview(grid, minimum_pixels)
    if budget is not None and budget < cheapest:
        with pytest.raises(BudgetError, match=f"budget of {budget} tokens"):
            pack(frame.rgb, patches, budget_tokens=budget, minimum_pixels=minimum_pixels)
        return
    packed = pack(frame.rgb, patches, budget_tokens=budget, minimum_pixels=minimum_pixels)
    assert cost(packed) <= (budget if budget is not None else max(patches.tokens, 2 * cheapest))
    texture_wh = grid.texture_wh
    texture = frame.rgb if texture_wh == frame.size_wh else None
    for picture in packed.pictures:
        x0, y0, x1, y1 = picture.cells
        height, width = picture.rgb.shape[:2]
        assert 0 <= x0 < x1 <= grid.columns and 0 <= y0 < y1 <= grid.rows
        assert height % CELL_PX == 0 and width % CELL_PX == 0
        assert picture.tokens == picture_tokens(height // CELL_PX, width // CELL_PX, minimum_pixels)
        if not picture.overview:
            assert (width, height) == ((x1 - x0) * CELL_PX, (y1 - y0) * CELL_PX)
            if texture is not None:
                assert np.array_equal(picture.rgb, texture[y0 * 32 : y1 * 32, x0 * 32 : x1 * 32])
    assert packed.pictures[0].cells == (0, 0, grid.columns, grid.rows)
    if not packed.pictures[1:] and (
        budget is None or budget >= picture_tokens(grid.rows, grid.columns, minimum_pixels)
    ):
        assert packed.pictures[0].rgb.shape[0] * packed.pictures[0].rgb.shape[1] >= min(
            minimum_pixels, grid.cells * 1024
        )
    full = packed.pictures[0].rgb.shape[:2] == (texture_wh[1], texture_wh[0])
    assert np.array_equal(packed.cells_shown, in_crops(patches, packed) | full)


@given(size=st.tuples(st.integers(32, 4000), st.integers(32, 3000)), corner=st.randoms(use_true_random=False))
def test_places_in_words_lie_where_the_crop_lies(size: tuple[int, int], corner: object) -> None:
    grid = Grid.for_size(size)
    draw = np.random.default_rng(abs(hash(size)))
    x0, x1 = sorted(draw.choice(grid.columns + 1, 2, replace=False).tolist())
    y0, y1 = sorted(draw.choice(grid.rows + 1, 2, replace=False).tolist())
    found = re.fullmatch(r"from (\d+)% to (\d+)% across, (\d+)% to (\d+)% down", place((x0, y0, x1, y1), grid))
    assert found is not None
    said = np.array([int(number) / 100 for number in found.groups()])
    true = np.array([x0 / grid.columns, x1 / grid.columns, y0 / grid.rows, y1 / grid.rows])
    assert np.abs(said - true).max() <= 0.005 + 1e-9


def test_costs_what_the_image_processor_makes_of_it() -> None:
    smart_resize = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl").smart_resize
    for rows in range(1, 14):
        for columns in range(1, 30):
            height, width = smart_resize(
                rows * 32, columns * 32, factor=32, min_pixels=MINIMUM_PIXELS, max_pixels=16777216
            )
            assert picture_tokens(rows, columns) == height * width // 1024


def test_whole_regions_stay_in_one_piece_and_small_ones_near_each_other_share_a_crop() -> None:
    """The charge for words keeps the greedy choice from cutting the brightest part out of a region."""
    frame = Frame(0, 0.0, np.zeros((1024, 1024, 3), np.uint8))
    places, score, relevance = region((4, 14), (4, 16), 1.0)
    packed = pack(
        frame.rgb, chosen(frame, places, np.where(places % 32 < 12, score, 0.8), relevance), budget_tokens=300
    )
    assert [crop.cells for crop in packed.pictures[1:]] == [(4, 4, 16, 14)]
    four = [4 * 32 + 4, 4 * 32 + 10, 10 * 32 + 4, 10 * 32 + 10]
    packed = pack(frame.rgb, chosen(frame, four, np.ones(4), relevance), budget_tokens=300)
    assert len(packed.pictures[1:]) == 1 and packed.cells_shown.all()


@pytest.mark.parametrize("cells", [273, 512])
def test_shows_more_relevance_per_token_than_the_bounding_box(cells: int) -> None:
    """Overview and all counted in, against one crop that holds every chosen cell."""
    gains, wasted = [], []
    for seed in range(4):
        frame, patches = scene((1920, 1080), cells, blobs=3, seed=seed)
        packed = pack(frame.rgb, patches)
        across = patches.columns.max() + 1 - patches.columns.min()
        down = patches.rows.max() + 1 - patches.rows.min()
        box = float(patches.score.sum()) / (across * down)
        gains.append(score_shown(patches, packed) / cost(packed) / box)
        crops = sum(crop.tokens for crop in packed.pictures[1:])
        wasted.append(1 - in_crops(patches, packed).sum() / crops)
    assert np.median(gains) > 1.5 and min(gains) > 1.0
    assert np.median(wasted) < 0.35


def test_photographs_become_jpeg_and_drawings_png() -> None:
    ys, xs = np.mgrid[:256, :320]
    draw = np.random.default_rng(0)
    photo = np.stack([128 + 80 * np.sin(xs / 31 + k) * np.cos(ys / 17) for k in range(3)], axis=2)
    photo = np.clip(photo + draw.normal(0, 4, photo.shape), 0, 255).astype(np.uint8)
    drawing = np.full((256, 320, 3), 255, np.uint8)
    cv2.putText(drawing, "flat", (20, 120), cv2.FONT_HERSHEY_SIMPLEX, 2, (200, 30, 30), 3)
    kind, data = encode(photo)
    back = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    error = math.sqrt(np.mean((back.astype(float) - photo) ** 2))
    assert kind == "image/jpeg" and error < 4 and len(data) < photo.nbytes / 3
    kind, data = encode(drawing)
    back = cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    assert kind == "image/png" and np.array_equal(back, drawing)


def with_finer(size_wh: tuple[int, int]) -> tuple[Frame, PatchSet]:
    """A noisy frame of twice the texture's size each way, some of its cells chosen, the best of them finer."""
    patches = scene(size_wh, 60, blobs=2)[1]
    draw = np.random.default_rng(7)
    large = Frame(3, 0.1, draw.integers(0, 256, (2 * size_wh[1], 2 * size_wh[0], 3), np.uint8))
    grid = Grid(large.size_wh, patches.grid.rows, patches.grid.columns)
    level = patches.level.copy()
    level[:16] = -1
    return large, dataclasses.replace(patches, grid=grid, level=level)


def test_finer_cells_are_cut_from_the_frame_at_twice_the_resolution() -> None:
    frame, patches = with_finer((640, 480))
    packed = pack(frame.rgb, patches, budget_tokens=240)
    finer = patches.level == -1
    assert packed.cells_shown[finer].any() and cost(packed) <= 240
    for crop in packed.pictures[1:]:
        x0, y0, x1, y1 = crop.cells
        detail = crop.rgb.shape[0] // (32 * (y1 - y0))
        assert crop.rgb.shape == (32 * detail * (y1 - y0), 32 * detail * (x1 - x0), 3)
        assert crop.tokens == picture_tokens(detail * (y1 - y0), detail * (x1 - x0))
        if detail == 2:
            # The frame has exactly so many pixels.
            np.testing.assert_array_equal(crop.rgb, frame.rgb[64 * y0 : 64 * y1, 64 * x0 : 64 * x1])
    assert any(crop.rgb.shape[0] == 64 * (crop.cells[3] - crop.cells[1]) for crop in packed.pictures[1:])


@given(st.integers(0, 50), st.integers(70, 500))
@settings(deadline=None, max_examples=15)
def test_crops_of_any_detail_stay_within_the_budget(seed: int, budget: int) -> None:
    frame, patches = scene((640, 480), 80, blobs=3, seed=seed)
    level = np.where(np.random.default_rng(seed).random(len(patches)) < 0.2, -1, 0).astype(np.int32)
    packed = pack(frame.rgb, dataclasses.replace(patches, level=level), budget_tokens=budget)
    assert cost(packed) <= budget
