"""The chosen cells on the picture: bright if chosen, dim elsewhere, with a fine outline coloured by score."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np

from arr_stream.draw import typeface
from arr_stream.draw.typeface import WHITE, Colour
from arr_stream.patch_set import Answer, PatchSet, most_attended
from arr_stream.types import FINER, BoolArray, ByteArray, DetectedObject, FloatArray, Grid, IntArray

SCORE_COLOURS: tuple[Colour, ...] = (
    (58, 124, 204),
    (46, 172, 196),
    (98, 201, 142),
    (214, 206, 76),
    (255, 186, 59),
    (255, 122, 64),
)
"""Outline of fine cells by score, lowest to highest."""

ANSWERED: Colour = (226, 112, 255)
"""Colour of the cells that an answer used; scores and maps do not use it."""

_COARSE: Colour = (150, 160, 176)
_DIM = 0.35
"""Brightness of cells that were not chosen."""
_FAINTEST = 0.1
"""Smallest share, relative to the largest, that is marked."""
_STRENGTHS: tuple[Colour, ...] = tuple((level, level, level) for level in (100, 150, 200, 255))
"""Opacity of the outlines by share, of 255."""
_TINT = 72
"""Opacity of the tint for the largest share, of 255."""


def draw_patches(rgb: ByteArray, patches: PatchSet) -> ByteArray:
    """Return a copy of a picture `[H, W, 3]` of the frame, of any size, with the chosen cells drawn.

    Fine cells keep their brightness and share one outline a region, coloured by score; cells at level -1 are quartered
    by a cross; coarse cells are half-way bright, with marked corners; the rest is dimmed.
    """
    height, width = rgb.shape[:2]
    xs, ys = _edges(patches.grid.columns, width), _edges(patches.grid.rows, height)
    stroke = stroke_px(height)
    picture = lit(rgb, patches, corners=max(1, stroke // 2))
    chosen = score_steps(patches)
    _outline(picture, chosen, xs, ys, stroke)
    _crosses(picture, patches, chosen, xs, ys, max(1, stroke // 2))
    return picture


def lit(rgb: ByteArray, patches: PatchSet, *, corners: int = 0) -> ByteArray:
    """Return the picture of `draw_patches` without the outlines; `corners` is the stroke of coarse corners."""
    height, width = rgb.shape[:2]
    xs, ys = _edges(patches.grid.columns, width), _edges(patches.grid.rows, height)
    picture = np.asarray(cv2.convertScaleAbs(rgb, alpha=_DIM), dtype=np.uint8)
    coarse = _boxes(patches, patches.level > 0, xs, ys)
    for x0, y0, x1, y1 in coarse.tolist():
        cv2.convertScaleAbs(rgb[y0:y1, x0:x1], picture[y0:y1, x0:x1], (1.0 + 2 * _DIM) / 3)
    if corners:
        _corners(picture, coarse, corners)
    for row, column, end, _ in _runs(np.minimum(score_steps(patches), 0)):
        region = slice(ys[row], ys[row + 1]), slice(xs[column], xs[end])
        picture[region] = rgb[region]
    return picture


def _crosses(
    picture: ByteArray, patches: PatchSet, chosen: IntArray, xs: Sequence[int], ys: Sequence[int], stroke: int
) -> None:
    """Quarter the cells at level -1, in the colour of their score."""
    finer = patches.level == FINER
    if not finer.any():
        return
    steps = chosen[patches.rows[finer], patches.columns[finer]].tolist()
    for (x0, y0, x1, y1), step in zip(_boxes(patches, finer, xs, ys).tolist(), steps, strict=True):
        x, y = (x0 + x1 - stroke) // 2, (y0 + y1 - stroke) // 2
        picture[y0:y1, x : x + stroke] = SCORE_COLOURS[step]
        picture[y : y + stroke, x0:x1] = SCORE_COLOURS[step]


def stroke_px(height: int) -> int:
    """Return the width of an outline on a picture of this height."""
    return max(1, round(height / 400))


def draw_box(picture: ByteArray, xyxy: tuple[float, float, float, float], colour: Colour) -> None:
    """Draw a query's region, in place: a white frame with a dark edge, readable on any ground."""
    stroke = stroke_px(picture.shape[0])
    x0, y0, x1, y1 = (round(side) for side in xyxy)
    cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), (20, 20, 20), stroke + 2)
    cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), colour, stroke)


def draw_objects(picture: ByteArray, objects: Sequence[DetectedObject]) -> None:
    """Mark detected objects, in place: a fine frame with the class and the number."""
    height, width = picture.shape[:2]
    size = max(11, round(height * 0.0245))
    for each in objects:
        x0, y0, x1, y1 = (round(side * scale) for side, scale in zip(each.box_xyxy, (width, height) * 2, strict=True))
        cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), WHITE, stroke_px(height))
        text = f"{each.label} {each.track}"
        line_height, line_width, _ = typeface.mask(text, size, True).shape
        # Above the box if there is room, else inside.
        left = max(0, min(x0, width - line_width))
        top = y0 - line_height if y0 >= line_height else max(0, y0)
        typeface.shade(picture[top : top + line_height, left : left + line_width])
        typeface.draw(picture, text, (left, top), size, WHITE, bold=True)


class Layer:
    """Drawing made once, in `colours` and with an `opacity` of 255 `[h, w, 3]` uint8, blended into many pictures."""

    def __init__(self, xy: tuple[int, int], colours: ByteArray, opacity: ByteArray) -> None:
        self._xy = xy
        self._kept = cv2.bitwise_not(opacity)
        self._ink = cv2.multiply(colours, opacity, scale=1 / 255)

    def draw(self, picture: ByteArray, strength: float = 1.0) -> None:
        """Blend the layer into `picture` `[H, W, 3]` in place; `strength` in [0, 1] lets it fade."""
        x, y = self._xy
        target = picture[y : y + self._ink.shape[0], x : x + self._ink.shape[1]]
        laid = cv2.add(cv2.multiply(target, self._kept, scale=1 / 255), self._ink)
        target[...] = laid if strength >= 1 else cv2.addWeighted(target, 1 - strength, laid, strength, 0.0)


def answer_marks(answer: Answer, grid: Grid, size_wh: tuple[int, int]) -> Layer | None:
    """Return outlines around the cells that an answer used, stronger for larger shares, which add up over frames.

    Cells of the newest frame that the model had seen are tinted as well; those of earlier frames, which may have moved
    since, are not. Return None if the model reports no cells.

    Args:
        answer: Its cells are in source pixels.
        grid: The fine cells of the frames that it is drawn on.
        size_wh: Size of the pictures.
    """
    width, height = size_wh
    cells = answer.cells[kept := most_attended(answer.cells)]
    shares = _share_of_places(cells, grid)
    largest = float(shares.max(initial=0.0))
    if largest <= 0:
        return None
    xs, ys = _edges(grid.columns, width), _edges(grid.rows, height)
    # By the root of the share, so that small shares are visible too.
    marked = shares >= _FAINTEST * largest
    steps = np.ceil(np.sqrt(shares / largest) * len(_STRENGTHS)).astype(np.int32) - 1
    newest = _share_of_places(cells[answer.cell_frames[kept] == answer.frame_index], grid)
    tint = np.where(marked, _TINT * np.sqrt(newest / largest), 0).astype(np.uint8)
    opacity = np.repeat(np.repeat(np.repeat(tint, np.diff(ys), 0), np.diff(xs), 1)[..., None], 3, axis=2)
    _outline(opacity, np.where(marked, steps, -1).astype(np.int32), xs, ys, stroke_px(height) + 1, _STRENGTHS)
    rows, columns = np.flatnonzero(marked.any(1)), np.flatnonzero(marked.any(0))
    x, y = xs[columns[0]], ys[rows[0]]
    opacity = opacity[y : ys[rows[-1] + 1], x : xs[columns[-1] + 1]].copy()
    return Layer((x, y), np.full_like(opacity, ANSWERED), opacity)


def _share_of_places(cells: FloatArray, grid: Grid) -> FloatArray:
    """Return the attention of each fine cell, `[gh, gw]`; a larger rectangle spreads its share evenly."""
    shares = np.zeros((grid.rows, grid.columns), np.float32)
    cell_w, cell_h = grid.cell_px
    for x0, y0, x1, y1, share in cells.tolist():
        # A hundredth of a cell is rounding, not a part of the next one.
        place = (
            slice(max(0, int(y0 / cell_h + 0.01)), min(grid.rows, -int(-(y1 / cell_h - 0.01) // 1))),
            slice(max(0, int(x0 / cell_w + 0.01)), min(grid.columns, -int(-(x1 / cell_w - 0.01) // 1))),
        )
        if shares[place].size:
            shares[place] += share / shares[place].size
    return shares


@lru_cache(maxsize=16)
def _edges(cells: int, size_px: int) -> tuple[int, ...]:
    return tuple(int(edge) for edge in np.linspace(0, size_px, cells + 1).round())


def _boxes(patches: PatchSet, which: BoolArray, xs: Sequence[int], ys: Sequence[int]) -> IntArray:
    """Return boxes `[N, 4]`: `x0, y0, x1, y1` in pixels."""
    rows, columns, span = patches.rows[which], patches.columns[which], patches.span[which]
    right, below = np.minimum(columns + span, len(xs) - 1), np.minimum(rows + span, len(ys) - 1)
    x, y = np.array(xs, np.int32), np.array(ys, np.int32)
    return np.stack([x[columns], y[rows], x[right], y[below]], axis=1)


def score_steps(patches: PatchSet) -> IntArray:
    """Return `[gh, gw]`: index into `SCORE_COLOURS` for a chosen fine cell, -1 elsewhere."""
    fine = patches.level <= 0
    steps = np.full((patches.grid.rows, patches.grid.columns), -1, dtype=np.int32)
    step = np.clip(patches.score[fine] * len(SCORE_COLOURS), 0, len(SCORE_COLOURS) - 1)
    steps[patches.rows[fine], patches.columns[fine]] = step.astype(np.int32)
    return steps


def _runs(values: IntArray) -> list[tuple[int, int, int, int]]:
    """Return `(row, first column, column after the last, value)` of every run of one value >= 0 in a row."""
    padded = np.full((values.shape[0], values.shape[1] + 2), -1, np.int32)
    padded[:, 1:-1] = values
    rows, first = np.nonzero(padded[:, 1:] != padded[:, :-1])
    value = padded[rows, first + 1]
    # Each row ends outside of any run, so that the next change is the run's end.
    found = np.flatnonzero(value >= 0)
    stretches = np.stack([rows[found], first[found], first[found + 1], value[found]], axis=1)
    return list(map(tuple, stretches.tolist()))


def _outline(
    picture: ByteArray,
    chosen: IntArray,
    xs: Sequence[int],
    ys: Sequence[int],
    stroke: int,
    colours: tuple[Colour, ...] = SCORE_COLOURS,
) -> None:
    """Draw the inside of every border between chosen and other cells, a run of one colour at a time."""
    paints = [np.array(colour, np.uint8) for colour in colours]
    for across, cells, x, y in ((picture, chosen, xs, ys), (picture.transpose(1, 0, 2), chosen.T, ys, xs)):
        count = len(cells)
        outside = np.ones((count + 2, cells.shape[1]), bool)
        outside[1:-1] = cells < 0
        borders = np.where(np.concatenate([outside[:-2], outside[2:]]), np.concatenate([cells, cells]), -1)
        for row, column, end, step in _runs(borders):
            if row < count:
                start, stop = y[row], min(y[row] + stroke, y[row + 1])
            else:
                start, stop = max(y[row - count + 1] - stroke, y[row - count]), y[row - count + 1]
            across[start:stop, x[column] : x[end]] = paints[step]


def _corners(picture: ByteArray, boxes: IntArray, stroke: int) -> None:
    """Mark the corners of `boxes` `[N, 4]` on the inside."""
    if not len(boxes):
        return
    inset = stroke // 2
    x0, y0, x1, y1 = boxes.T + np.array([[inset], [inset], [inset - stroke], [inset - stroke]], np.int32)
    arm = np.maximum(2, np.minimum(x1 - x0, y1 - y0) // 6)
    bends = [
        np.stack([x + sign_x * arm, y, x, y, x, y + sign_y * arm], axis=1)
        for x, sign_x in ((x0, 1), (x1, -1))
        for y, sign_y in ((y0, 1), (y1, -1))
    ]
    cv2.polylines(picture, list(np.concatenate(bends).reshape(-1, 3, 2)), False, _COARSE, stroke)


def centred(rgb: ByteArray, size_wh: tuple[int, int]) -> ByteArray:
    """Return a picture scaled whole into another size, with black bars if the shapes differ."""
    width, height = size_wh
    scale = min(width / rgb.shape[1], height / rgb.shape[0])
    inner = max(1, min(width, round(rgb.shape[1] * scale))), max(1, min(height, round(rgb.shape[0] * scale)))
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    x, y = (width - inner[0]) // 2, (height - inner[1]) // 2
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    canvas[y : y + inner[1], x : x + inner[0]] = cv2.resize(rgb, inner, interpolation=method)
    return canvas
