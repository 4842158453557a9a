"""Packing of chosen cells into whole pictures, for servers that take nothing else.

A frame is sent as an *overview*, the whole frame at low resolution, and *crops*: a few rectangles of whole cells at the
texture's resolution. A caption gives the place of each crop in words.

Crops are found greedily. Of all rectangles of whole cells that the remaining budget pays for, the packer takes the one
with the most score per token, sets the value of its cells to zero, and repeats (the greedy algorithm for budgeted
maximum coverage, Khuller, Moss and Naor 1999). Each rectangle carries a fixed charge for its caption, so that regions
stay in one piece.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import NothingChosen
from arr_stream.patch_set import PatchSet
from arr_stream.types import CELL_PX, BoolArray, ByteArray, Grid

DoubleArray = npt.NDArray[np.float64]
CellBox = tuple[int, int, int, int]
"""Columns and rows `x0, y0, x1, y1` of the grid; the end is exclusive."""

MINIMUM_PIXELS = 65536
"""Pixels that Qwen3-VL's image processor scales smaller pictures up to, so that none costs under 64 tokens."""
_OVERVIEW_SHARE = 0.25
"""Share of the budget for the overview, at least the cost of the smallest picture; it also gets the budget that the
crops leave over.
"""
_WORDS_TOKENS = 32
"""Approximate cost of a crop beyond its picture: its markers and its caption."""
_MOST_CROPS = 8
_UNCHOSEN_VALUE = 1e-3
"""Value of a cell that was not chosen: crops that can grow at no cost do."""
_JPEG_QUALITY = 95


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One picture for a server: pixels `[h, w, 3]` in multiples of 32, cells, cost in visual tokens, and caption."""

    rgb: ByteArray
    cells: CellBox
    tokens: int
    caption: str


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One frame as pictures: the overview, then the crops, the best first.

    `cells_shown` `[N]` marks the chosen cells inside a crop, or as fine in the overview as their level of detail.
    """

    pictures: tuple[Picture, ...]
    cells_shown: BoolArray


def pack(rgb: ByteArray, patches: PatchSet) -> Packed:
    """Return the pictures that show the chosen cells of a frame `[H, W, 3]` best within the cost of the cells.

    At least the cost of the smallest overview and crop is spent. If the whole frame at the texture's resolution fits,
    it is the only picture.

    Raises:
        NothingChosen: No cell was chosen.
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
    sizes = _overview_sizes(grid)
    budget = max(patches.tokens, 2 * picture_tokens(*sizes[0]))
    crops: list[CellBox] = []
    if picture_tokens(grid.rows, grid.columns) > budget:
        crops = _crops(patches, budget - picture_tokens(*_largest(sizes, int(budget * _OVERVIEW_SHARE))))
    rows, columns = _largest(sizes, budget - sum(map(_crop_tokens, crops)))
    return Packed(_pictures(rgb, grid, (rows, columns), crops), _shown(patches, crops, rows / grid.rows))


@functools.lru_cache(maxsize=1 << 15)
def picture_tokens(rows: int, columns: int) -> int:
    """Return the visual tokens of a picture of 32-pixel `rows` and `columns`, scaled by Qwen's image processor."""
    area_px = rows * columns * CELL_PX**2
    if area_px >= MINIMUM_PIXELS:
        return rows * columns
    scale = math.sqrt(MINIMUM_PIXELS / area_px)
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


def _overview_sizes(grid: Grid) -> list[tuple[int, int]]:
    """Return rows and columns of pictures of the frame's shape that the server would not scale up, smallest first."""
    shapes = [(rows, math.ceil(rows * grid.columns / grid.rows)) for rows in range(1, grid.rows + 1)]
    return [(h, w) for h, w in shapes if h * w * CELL_PX**2 >= MINIMUM_PIXELS] or [shapes[-1]]


def _largest(sizes: list[tuple[int, int]], tokens: int) -> tuple[int, int]:
    """Return the largest picture of at most so many tokens, or the smallest one."""
    return next((size for size in reversed(sizes) if picture_tokens(*size) <= tokens), sizes[0])


def _crop_tokens(box: CellBox) -> int:
    x0, y0, x1, y1 = box
    return picture_tokens(y1 - y0, x1 - x0)


def _crops(patches: PatchSet, budget: int) -> list[CellBox]:
    """Return rectangles of whole cells, the best first, that cost at most `budget` tokens."""
    values = np.full((patches.grid.rows, patches.grid.columns), _UNCHOSEN_VALUE)
    fine = patches.level <= 0
    values[patches.rows[fine], patches.columns[fine]] = np.maximum(patches.score[fine], _UNCHOSEN_VALUE)
    crops: list[CellBox] = []
    while len(crops) < _MOST_CROPS and (box := _best_box(values, budget)) is not None:
        crops.append(box)
        budget -= _crop_tokens(box)
        x0, y0, x1, y1 = box
        values[y0:y1, x0:x1] = 0.0
    return crops


def _best_box(values: DoubleArray, budget: int) -> CellBox | None:
    """Return the rectangle of the most value per token within `budget`; None if none is worth it."""
    rows, columns = values.shape
    sums = np.zeros((rows + 1, columns + 1))
    sums[1:, 1:] = values.cumsum(axis=0).cumsum(axis=1)
    # No rectangle of n cells is worth more than the n best cells, so most shapes need no search.
    at_most = np.concatenate([[0.0], np.sort(values, axis=None)[::-1].cumsum()])
    best: CellBox | None = None
    # A crop is worth its tokens only if it shows a chosen cell.
    most = _UNCHOSEN_VALUE
    for h in range(1, rows + 1):
        for w in range(1, columns + 1):
            tokens = picture_tokens(h, w)
            if tokens > budget or at_most[h * w] <= most * (tokens + _WORDS_TOKENS):
                continue
            worth = sums[h:, w:] - sums[:-h, w:] - sums[h:, :-w] + sums[:-h, :-w]
            y, x = divmod(int(worth.argmax()), worth.shape[1])
            density = float(worth[y, x]) / (tokens + _WORDS_TOKENS)
            if density > most:
                most, best = density, (x, y, x + w, y + h)
    return best


def _pictures(rgb: ByteArray, grid: Grid, overview: tuple[int, int], crops: list[CellBox]) -> tuple[Picture, ...]:
    rows, columns = overview
    caption = "The whole frame:" if rows == grid.rows else "The whole frame, scaled down:"
    small = _scaled(rgb, (columns * CELL_PX, rows * CELL_PX))
    pictures = [Picture(small, (0, 0, grid.columns, grid.rows), picture_tokens(rows, columns), caption)]
    texture = _scaled(rgb, grid.texture_wh)
    for number, box in enumerate(crops, start=1):
        x0, y0, x1, y1 = (edge * CELL_PX for edge in box)
        caption = f"Crop {number} of this frame, in full detail, {place(box, grid)}:"
        pictures.append(Picture(np.ascontiguousarray(texture[y0:y1, x0:x1]), box, _crop_tokens(box), caption))
    return tuple(pictures)


def _scaled(rgb: ByteArray, size_wh: tuple[int, int]) -> ByteArray:
    if (rgb.shape[1], rgb.shape[0]) == size_wh:
        return np.ascontiguousarray(rgb)
    smaller = size_wh[0] <= rgb.shape[1] and size_wh[1] <= rgb.shape[0]
    scaled = cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)
    return np.asarray(scaled, dtype=np.uint8)


def _shown(patches: PatchSet, crops: list[CellBox], scale: float) -> BoolArray:
    """Return `[N]` bool: the cell is inside a crop, or the overview is as fine as its level of detail."""
    shown: BoolArray = scale * patches.span >= 1.0
    x1 = np.minimum(patches.columns + patches.span, patches.grid.columns)
    y1 = np.minimum(patches.rows + patches.span, patches.grid.rows)
    for left, top, right, bottom in crops:
        shown |= (patches.columns >= left) & (patches.rows >= top) & (x1 <= right) & (y1 <= bottom)
    return shown
