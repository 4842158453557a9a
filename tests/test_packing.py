"""Chosen cells as whole pictures: within the budget, in the right places, and few of them wasted."""

from __future__ import annotations

import math
import re

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(16, 900), st.integers(16, 700)),
    seed=st.integers(0, 1000),
    blobs=st.integers(0, 5),
    cells=st.integers(1, 700),
)
def test_is_within_the_budget_and_the_frame(size: tuple[int, int], seed: int, blobs: int, cells: int) -> None:
    frame, patches = scene(size, cells, blobs=blobs, seed=seed)
    grid = patches.grid
    packed = pack(frame.rgb, patches)
    overview, *crops = packed.pictures
    least = picture_tokens(overview.rgb.shape[0] // CELL_PX, overview.rgb.shape[1] // CELL_PX)
    assert cost(packed) <= max(patches.tokens, 64 + least, 2 * least)
    assert overview.cells == (0, 0, grid.columns, grid.rows)
    texture = frame.rgb if grid.texture_wh == frame.size_wh else None
    for picture in packed.pictures:
        height, width = picture.rgb.shape[:2]
        assert height % CELL_PX == 0 and width % CELL_PX == 0
        assert picture.tokens == picture_tokens(height // CELL_PX, width // CELL_PX)
    for crop in crops:
        x0, y0, x1, y1 = crop.cells
        assert 0 <= x0 < x1 <= grid.columns and 0 <= y0 < y1 <= grid.rows
        assert crop.rgb.shape[1::-1] == ((x1 - x0) * CELL_PX, (y1 - y0) * CELL_PX)
        if texture is not None:
            assert np.array_equal(crop.rgb, texture[y0 * 32 : y1 * 32, x0 * 32 : x1 * 32])
    full = overview.rgb.shape[1::-1] == grid.texture_wh
    assert np.array_equal(packed.cells_shown, in_crops(patches, packed) | full)
    if len(patches) == grid.cells:
        assert full and not crops


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
    places, score, relevance = region((4, 10), (4, 12), 1.0)
    packed = pack(frame.rgb, chosen(frame, places, np.where(places % 32 < 8, score, 0.8), relevance))
    assert len(packed.pictures[1:]) == 1 and packed.cells_shown.all()
    four = [4 * 32 + 4, 4 * 32 + 10, 10 * 32 + 4, 10 * 32 + 10]
    packed = pack(frame.rgb, chosen(frame, four, np.ones(4), relevance))
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
