"""Packing of chosen cells into whole pictures, for servers that take nothing else.

A frame is sent as an *overview*, the whole frame at low resolution, and *crops*: a few rectangles of whole cells at the
texture's resolution, or at twice that if cells were chosen finer. A caption gives the place of each crop in words.

Crops are found greedily. Of all rectangles of whole cells that the remaining budget pays for, the packer takes the one
with the most relevance per token, sets the relevance of its cells to zero, and repeats (the greedy algorithm for
budgeted maximum coverage, Khuller, Moss and Naor 1999). Each rectangle carries a fixed charge for its caption, so that
regions stay in one piece. Two crops are joined if the joint one costs no more tokens.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import BudgetError, NothingChosen
from arr_stream.patch_set import PatchSet
from arr_stream.types import CELL_PX, FINER, FINER_TOKENS, BoolArray, ByteArray, Grid

DoubleArray = npt.NDArray[np.float64]
CellBox = tuple[int, int, int, int]
"""Columns and rows `x0, y0, x1, y1` of the grid; the end is exclusive."""

MINIMUM_PIXELS = 65536
"""Pixels that Qwen3-VL's image processor scales smaller pictures up to, so that none costs under 64 tokens."""
_OVERVIEW_SHARE = 0.25
"""Share of the budget for the overview, at least the cost of the smallest picture; it also gets the budget that the
crops leave over.
"""
WORDS_TOKENS = 32
"""Approximate cost of a crop beyond its picture: its markers and its caption."""
_MOST_CROPS = 8
_UNCHOSEN_WEIGHT = 1e-3
_JPEG_QUALITY = 95


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One picture for a server: pixels `[h, w, 3]` in multiples of 32, cells, cost in visual tokens, and caption."""

    rgb: ByteArray
    cells: CellBox
    tokens: int
    caption: str
    overview: bool


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One frame as pictures: the overview, then the crops, the most relevant first.

    `cells_shown` `[N]` marks the chosen cells that are visible at their own level of detail or finer.
    """

    pictures: tuple[Picture, ...]
    cells_shown: BoolArray


@dataclass(frozen=True, slots=True)
class _Crop:
    """Rectangle of whole cells at `detail` times 32 pixels a cell each way: 1, or 2 for finer cells."""

    box: CellBox
    detail: int

    def tokens(self, minimum_pixels: int) -> int:
        x0, y0, x1, y1 = self.box
        return picture_tokens((y1 - y0) * self.detail, (x1 - x0) * self.detail, minimum_pixels)


def pack(
    rgb: ByteArray, patches: PatchSet, *, budget_tokens: int | None = None, minimum_pixels: int = MINIMUM_PIXELS
) -> Packed:
    """Return the pictures that show the chosen cells of a frame `[H, W, 3]` best within a budget.

    If the whole frame at the texture's resolution fits, it is the only picture, apart from crops of finer cells.

    Args:
        rgb, patches: The frame in source pixels and its chosen cells.
        budget_tokens: Most visual tokens; by default the cost of the cells, and at least that of the smallest overview
            and crop.
        minimum_pixels: The server scales smaller pictures up to this number of pixels.

    Raises:
        NothingChosen: No cell was chosen.
        BudgetError: The budget is less than the cheapest picture.
        ValueError: The picture has another size than the patch set's grid.
    """
    grid = patches.grid
    if (rgb.shape[1], rgb.shape[0]) != grid.size_wh:
        raise ValueError(f"the picture is {rgb.shape[1]}x{rgb.shape[0]}, the grid is for {grid.size_wh}")
    if len(patches) == 0:
        raise NothingChosen(
            f"frame {patches.index}: no cell was chosen, and a model needs one at least",
            remedy="raise selection.budget, or set selection.novelty=mark",
        )
    cheapest = min(cost for _, _, cost in _overview_sizes(grid, minimum_pixels))
    budget = budget_tokens if budget_tokens is not None else max(patches.tokens, 2 * cheapest)
    if budget < cheapest:
        raise BudgetError(
            f"budget of {budget} tokens; the smallest picture costs a server {cheapest}", remedy="raise the budget"
        )
    values, whole = _values(patches), picture_tokens(grid.rows, grid.columns, minimum_pixels)
    if whole <= budget:
        # The overview shows the whole texture; the remaining budget goes to cells finer than that.
        values, left = {detail: each - values[1] for detail, each in values.items()}, budget - whole
    else:
        left = budget - _overview_size(grid, max(cheapest, int(budget * _OVERVIEW_SHARE)), minimum_pixels)[2]
    crops = _crops(values, left, minimum_pixels)
    spent = sum(crop.tokens(minimum_pixels) for crop in crops)
    rows, columns, cost = _overview_size(grid, budget - spent, minimum_pixels)
    pictures = _pictures(rgb, grid, (rows, columns, cost), crops, minimum_pixels)
    return Packed(pictures, _shown(patches, crops, min(rows / grid.rows, columns / grid.columns)))


@functools.lru_cache(maxsize=1 << 15)
def picture_tokens(rows: int, columns: int, minimum_pixels: int = MINIMUM_PIXELS) -> int:
    """Return the visual tokens of a picture of 32-pixel `rows` and `columns`, scaled by Qwen's image processor."""
    area_px = rows * columns * CELL_PX**2
    if area_px >= minimum_pixels:
        return rows * columns
    scale = math.sqrt(minimum_pixels / area_px)
    return math.ceil(rows * scale) * math.ceil(columns * scale)


def place(cells: CellBox, grid: Grid) -> str:
    """Return the place of a part of the grid in words, such as `from 40% to 60% across, 10% to 35% down`."""
    x0, y0, x1, y1 = cells
    across, down = grid.columns / 100, grid.rows / 100
    return f"from {x0 / across:.0f}% to {x1 / across:.0f}% across, {y0 / down:.0f}% to {y1 / down:.0f}% down"


def encode(rgb: ByteArray) -> tuple[str, bytes]:
    """Encode a picture as PNG, or as JPEG where that is smaller; return its media type and the file."""
    bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    sampling = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY, *sampling])[1].tobytes()
    png = cv2.imencode(".png", bgr)[1].tobytes()
    return ("image/png", png) if len(png) <= len(jpeg) else ("image/jpeg", jpeg)


def _overview_sizes(grid: Grid, minimum_pixels: int) -> list[tuple[int, int, int]]:
    """Return rows, columns and tokens of pictures of about the frame's shape that the server would not scale up."""
    shapes = {(grid.rows, grid.columns)}
    for rows in range(1, grid.rows + 1):
        columns = rows * grid.columns / grid.rows
        shapes |= {(rows, max(1, math.floor(columns))), (rows, math.ceil(columns))}
    return [
        (rows, columns, picture_tokens(rows, columns, minimum_pixels))
        for rows, columns in shapes
        if rows * columns * CELL_PX**2 >= minimum_pixels or (rows, columns) == (grid.rows, grid.columns)
    ]


def _overview_size(grid: Grid, tokens: int, minimum_pixels: int) -> tuple[int, int, int]:
    fitting = [size for size in _overview_sizes(grid, minimum_pixels) if size[2] <= tokens]
    return max(fitting, key=lambda size: (size[2], -abs(size[0] * grid.columns - size[1] * grid.rows)))


def _values(patches: PatchSet) -> dict[int, DoubleArray]:
    """Return by detail the value `[gh, gw]` of showing each cell: its score if chosen fine, else next to nothing.

    At detail 2, the value of finer cells is multiplied by their cost in tokens. Cells that were not chosen break ties:
    crops that can grow at no cost grow towards relevance.
    """
    relevance = np.nan_to_num(patches.relevance.astype(np.float64))
    values = np.clip(relevance, 0.0, 1.0) * _UNCHOSEN_WEIGHT
    fine, finer = patches.level <= 0, patches.level == FINER
    values[patches.rows[fine], patches.columns[fine]] = np.maximum(patches.score[fine], _UNCHOSEN_WEIGHT)
    if not finer.any():
        return {1: values}
    close = values.copy()
    close[patches.rows[finer], patches.columns[finer]] *= FINER_TOKENS
    return {1: values, 2: close}


def _crops(values: dict[int, DoubleArray], budget: int, minimum_pixels: int) -> list[_Crop]:
    """Return rectangles of whole cells, the best first, that cost at most `budget` tokens."""
    left_to_show = {detail: each.copy() for detail, each in values.items()}
    crops: list[_Crop] = []
    for _ in range(_MOST_CROPS):
        left = budget - sum(crop.tokens(minimum_pixels) for crop in crops)
        best = [_best_box(each, left, minimum_pixels, detail) for detail, each in left_to_show.items()]
        found = max((each for each in best if each is not None), key=lambda each: each[0], default=None)
        if found is None:
            break
        crops = _merged([*crops, found[1]], minimum_pixels)
        for crop in crops:
            x0, y0, x1, y1 = crop.box
            for detail, each in left_to_show.items():
                # A crop shows the whole texture; only finer cells gain from twice its detail.
                shown = 0.0 if detail <= crop.detail else values[detail] - values[1]
                each[y0:y1, x0:x1] = np.minimum(each, shown)[y0:y1, x0:x1]
    return crops


def _best_box(values: DoubleArray, budget: int, minimum_pixels: int, detail: int = 1) -> tuple[float, _Crop] | None:
    """Return the most value per token of rectangles within `budget`, and the rectangle; None if none is worth it."""
    rows, columns = values.shape
    sums = np.zeros((rows + 1, columns + 1))
    sums[1:, 1:] = values.cumsum(axis=0).cumsum(axis=1)
    # No rectangle of n cells is worth more than the n best cells, so most shapes need no search.
    at_most = np.concatenate([[0.0], np.sort(values, axis=None)[::-1].cumsum()])
    best: _Crop | None = None
    # A crop is worth its tokens only if it shows a chosen cell.
    most = _UNCHOSEN_WEIGHT
    for h in range(1, rows + 1):
        for w in range(1, columns + 1):
            tokens = picture_tokens(h * detail, w * detail, minimum_pixels)
            if tokens > budget or at_most[h * w] <= most * (tokens + WORDS_TOKENS):
                continue
            worth = sums[h:, w:] - sums[:-h, w:] - sums[h:, :-w] + sums[:-h, :-w]
            index = int(worth.argmax())
            y, x = divmod(index, worth.shape[1])
            density = float(worth[y, x]) / (tokens + WORDS_TOKENS)
            if density > most:
                most, best = density, _Crop((x, y, x + w, y + h), detail)
    return None if best is None else (most, best)


def _merged(crops: list[_Crop], minimum_pixels: int) -> list[_Crop]:
    """Return the crops, with those of the same detail joined if the joint one costs no more than the two."""
    for i, one in enumerate(crops):
        for other in crops[i + 1 :]:
            if one.detail != other.detail:
                continue
            a, b = one.box, other.box
            joint = _Crop((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])), one.detail)
            if joint.tokens(minimum_pixels) <= one.tokens(minimum_pixels) + other.tokens(minimum_pixels):
                rest = [crop for crop in crops if crop not in (one, other)]
                return _merged([*rest[:i], joint, *rest[i:]], minimum_pixels)
    return crops


def _pictures(
    rgb: ByteArray, grid: Grid, overview: tuple[int, int, int], crops: list[_Crop], minimum_pixels: int
) -> tuple[Picture, ...]:
    rows, columns, tokens = overview
    whole = (0, 0, grid.columns, grid.rows)
    caption = "The whole frame:" if (rows, columns) == (grid.rows, grid.columns) else "The whole frame, scaled down:"
    pictures = [Picture(_scaled(rgb, (columns * CELL_PX, rows * CELL_PX)), whole, tokens, caption, overview=True)]
    if not crops:
        return tuple(pictures)
    texture = _scaled(rgb, grid.texture_wh)
    for number, crop in enumerate(crops, start=1):
        x0, y0, x1, y1 = (edge * CELL_PX for edge in crop.box)
        shown = np.ascontiguousarray(texture[y0:y1, x0:x1]) if crop.detail == 1 else _close_cut(rgb, grid, crop)
        caption = f"Crop {number} of this frame, in full detail, {place(crop.box, grid)}:"
        pictures.append(Picture(shown, crop.box, crop.tokens(minimum_pixels), caption, overview=False))
    return tuple(pictures)


def _close_cut(rgb: ByteArray, grid: Grid, crop: _Crop) -> ByteArray:
    """Cut from the frame itself, which has more pixels a cell than the texture."""
    x0, y0, x1, y1 = crop.box
    cell_w, cell_h = grid.cell_px
    part = rgb[round(y0 * cell_h) : round(y1 * cell_h), round(x0 * cell_w) : round(x1 * cell_w)]
    return _scaled(part, ((x1 - x0) * CELL_PX * crop.detail, (y1 - y0) * CELL_PX * crop.detail))


def _scaled(rgb: ByteArray, size_wh: tuple[int, int]) -> ByteArray:
    if (rgb.shape[1], rgb.shape[0]) == size_wh:
        return np.ascontiguousarray(rgb)
    smaller = size_wh[0] <= rgb.shape[1] and size_wh[1] <= rgb.shape[0]
    scaled = cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)
    return np.asarray(scaled, dtype=np.uint8)


def _shown(patches: PatchSet, crops: list[_Crop], scale: float) -> BoolArray:
    """Return `[N]` bool: the cell is inside a crop, or the overview is as fine as its level of detail."""
    finer = patches.level == FINER
    shown: BoolArray = (scale * patches.span >= 1.0) & ~finer
    x1 = np.minimum(patches.columns + patches.span, patches.grid.columns)
    y1 = np.minimum(patches.rows + patches.span, patches.grid.rows)
    for crop in crops:
        left, top, right, bottom = crop.box
        inside = (patches.columns >= left) & (patches.rows >= top) & (x1 <= right) & (y1 <= bottom)
        shown |= inside & (~finer | (crop.detail > 1))
    return shown
