"""Marks on the picture: chosen cells bright, the rest dim, boxes, objects, and the cells that an answer used."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from arr_stream.draw import typeface
from arr_stream.draw.typeface import WHITE, Colour
from arr_stream.patch_set import Answer, PatchSet, most_attended
from arr_stream.types import ByteArray, DetectedObject, Grid

SCORE_COLOURS = np.array(
    [(58, 124, 204), (46, 172, 196), (98, 201, 142), (214, 206, 76), (255, 186, 59), (255, 122, 64)], np.uint8
)
"""Outline of fine cells by score, lowest to highest."""

ANSWERED: Colour = (226, 112, 255)
"""Colour of the cells that an answer used; scores and maps do not use it."""

_DIM = 0.35
"""Brightness of cells that were not chosen."""
_COARSE = (1.0 + 2 * _DIM) / 3


def draw_patches(rgb: ByteArray, patches: PatchSet) -> ByteArray:
    """Return a copy of a picture `[H, W, 3]` of the frame, of any size, with the chosen cells drawn.

    Fine cells keep their brightness and share one outline a region, coloured by score; coarse cells are half-way
    bright; the rest is dimmed.
    """
    shape = patches.grid.rows, patches.grid.columns
    fine, coarse, colours = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), np.zeros((*shape, 3), np.uint8)
    is_coarse = patches.level > 0
    for row, column, span in np.stack([patches.rows, patches.columns, patches.span], axis=1)[is_coarse].tolist():
        coarse[row : row + span, column : column + span] = 1
    places = patches.rows[~is_coarse], patches.columns[~is_coarse]
    fine[places] = 1
    steps = np.clip(patches.score[~is_coarse] * len(SCORE_COLOURS), 0, len(SCORE_COLOURS) - 1)
    colours[places] = SCORE_COLOURS[steps.astype(np.int32)]

    size_wh = rgb.shape[1], rgb.shape[0]
    bright, half = (cv2.resize(mask, size_wh, interpolation=cv2.INTER_NEAREST) for mask in (fine, coarse))
    picture = cv2.convertScaleAbs(rgb, alpha=_DIM)
    cv2.copyTo(cv2.convertScaleAbs(rgb, alpha=_COARSE), half, picture)
    cv2.copyTo(rgb, bright, picture)
    kernel = np.ones((2 * stroke_px(size_wh[1]) + 1,) * 2, np.uint8)
    inside = cv2.erode(bright, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    cv2.copyTo(cv2.resize(colours, size_wh, interpolation=cv2.INTER_NEAREST), bright - inside, picture)
    return np.asarray(picture, dtype=np.uint8)


def stroke_px(height: int) -> int:
    """Return the width of an outline on a picture of this height."""
    return max(1, round(height / 400))


def draw_box(picture: ByteArray, xyxy: tuple[float, float, float, float], colour: Colour) -> None:
    """Draw a query's region, in place: a frame with a dark edge, readable on any ground."""
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


def draw_answered(picture: ByteArray, answer: Answer, grid: Grid) -> None:
    """Outline the cells that an answer used, in place.

    Args:
        picture: The frame `[H, W, 3]`, of any size.
        answer: Its cells are in source pixels.
        grid: The fine cells of the frame.
    """
    scale = np.divide(picture.shape[1::-1], grid.size_wh)
    boxes = answer.cells[most_attended(answer.cells), :4] * [*scale, *scale]
    for x0, y0, x1, y1 in boxes.round().astype(int).tolist():
        cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), ANSWERED, stroke_px(picture.shape[0]))
