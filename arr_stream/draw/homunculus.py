"""The frame as the tokens see it: what many cells were chosen from grows, the rest shrinks.

So is the body drawn on the cortex (Penfield and Boldrey, 1937), each part as large as what is spent on it. Density is
evened out by turns along rows and along columns, each by its own cumulative sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.draw.overlay import SCORE_COLOURS, lit, score_steps, stroke_px
from arr_stream.draw.typeface import Colour
from arr_stream.motion.memory import FIXATION_DECAY
from arr_stream.patch_set import PatchSet
from arr_stream.types import ByteArray, FloatArray, Frame, IntArray

_PER_CELL = 4
"""Nodes of the lattice to a cell and side."""
_GAIN = 6.0
"""Density where most was chosen, over that where nothing ever was, less 1."""
_LEAST_OFTEN = 1e-3
"""Where less was chosen everywhere than this, nothing grows."""
_BLUR_CELLS = 1.0
_ACROSS = 1 / 12
"""Blur of what is evened out along a line across lines, over its length: neighbours that went apart would fold."""
_TURNS = ((1, 0.5), (0, 1.0), (1, 1.0))
"""Axis, and the power of the density that is evened out along it: the first goes half-way, so that both grow alike."""
_DIM = 0.55
_LINE: Colour = (210, 215, 225)
_LINE_OPACITY = 0.22
_SUBPIXEL_BITS = 4

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Warp:
    """A lattice over the frame, corners included, brought to another shape; its outer edges stay.

    Args:
        to_xy: `[h, w, 2]` in [0, 1], where each node of the frame comes to lie.
        from_xy: `[h, w, 2]` in [0, 1], what lies at each node of the warped picture: the inverse.
    """

    to_xy: FloatArray
    from_xy: FloatArray


def token_density(patches: PatchSet) -> FloatArray:
    """`[4 * gh + 1, 4 * gw + 1]` in [1, 7]: how often cells around each node were chosen lately, this frame included.

    Fixation history goes with the picture and fades by time, so that the warp of a video changes gently.
    """
    hw = patches.grid.rows, patches.grid.columns
    chosen = (score_steps(patches) >= 0).astype(np.float32)
    before = cv2.resize(patches.texture.plane("fixation"), hw[::-1], interpolation=cv2.INTER_AREA)
    often = FIXATION_DECAY * before.reshape(hw) + (1 - FIXATION_DECAY) * chosen
    fine = cv2.resize(often, (_PER_CELL * hw[1] + 1, _PER_CELL * hw[0] + 1), interpolation=cv2.INTER_LINEAR)
    sigma = _BLUR_CELLS * _PER_CELL
    smooth = np.asarray(cv2.GaussianBlur(fine, (0, 0), sigma, borderType=cv2.BORDER_REFLECT), np.float32)
    return 1 + _GAIN * smooth / max(float(smooth.max()), _LEAST_OFTEN)


def equalised(density: FloatArray) -> Warp:
    """The warp after which area is in proportion to density, nearly.

    Args:
        density: `[h, w]` above 0, at the nodes; at least 2 of them a side.
    """
    height, width = density.shape
    rows, columns = np.linspace(0, 1, height), np.linspace(0, 1, width)
    there = np.stack(np.meshgrid(columns, rows), axis=2)
    back = there.copy()
    for axis, power in _TURNS:
        weight = (_at(density, back) * _stretch(back)) ** power
        if axis:
            there, back = _evened(weight, there, back)
        else:
            turned = _evened(np.ascontiguousarray(weight.T), _turned(there), _turned(back))
            there, back = (_turned(each) for each in turned)
    return Warp(there.astype(np.float32), back.astype(np.float32))


def homunculus_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """The frame warped so that area follows tokens, with the grid of its cells and outlines around the chosen ones."""
    warp = equalised(token_density(patches))
    map_x, map_y = (_spread(warp.from_xy[..., axis], frame.size_wh) * frame.size_wh[axis] - 0.5 for axis in (0, 1))
    source = lit(frame.rgb, patches, _DIM)
    picture = np.asarray(cv2.remap(source, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), np.uint8)
    nodes = (warp.to_xy * frame.size_wh - 0.5) * (1 << _SUBPIXEL_BITS)
    points = nodes.round().astype(np.int32)
    stroke = stroke_px(frame.size_wh[1])
    lines = [*points[::_PER_CELL], *points[:, ::_PER_CELL].transpose(1, 0, 2)]
    drawn = _drawn(picture.copy(), lines, _LINE, stroke)
    picture = np.asarray(cv2.addWeighted(picture, 1 - _LINE_OPACITY, drawn, _LINE_OPACITY, 0.0), np.uint8)
    for step, edges in _outlines(score_steps(patches), points).items():
        _drawn(picture, edges, SCORE_COLOURS[step], stroke)
    return picture


def _drawn(picture: ByteArray, lines: list[IntArray], colour: Colour, stroke: int) -> ByteArray:
    cv2.polylines(picture, [*map(np.ascontiguousarray, lines)], False, colour, stroke, cv2.LINE_AA, _SUBPIXEL_BITS)
    return picture


def _outlines(steps: IntArray, points: IntArray) -> dict[int, list[IntArray]]:
    """Sides between a chosen cell and one that is not, by the step of the chosen one's score."""
    sides: dict[int, list[IntArray]] = {}
    for cells, nodes in ((steps, points), (steps.T, points.transpose(1, 0, 2))):
        padded = np.pad(cells, ((1, 1), (0, 0)), constant_values=-1)
        above, below = padded[:-1], padded[1:]
        for row, column in np.argwhere((above < 0) != (below < 0)).tolist():
            side = nodes[row * _PER_CELL, column * _PER_CELL : (column + 1) * _PER_CELL + 1]
            sides.setdefault(int(max(above[row, column], below[row, column])), []).append(side)
    return sides


def _evened(weight: Numbers, there: Numbers, back: Numbers) -> tuple[Numbers, Numbers]:
    """Both directions of a warp after one turn along the rows by weights `[h, w]` on its picture."""
    sigma = weight.shape[1] * _ACROSS
    weight = np.asarray(cv2.GaussianBlur(weight, (1, 0), sigma, sigmaY=sigma, borderType=cv2.BORDER_REFLECT))
    steps = (weight[:, 1:] + weight[:, :-1]) / 2
    share = np.concatenate([np.zeros((len(weight), 1)), steps.cumsum(1)], axis=1)
    share /= share[:, -1:]
    even = np.linspace(0, 1, weight.shape[1])
    back = np.stack(
        [
            [np.interp(np.interp(even, line, even), even, of[:, axis]) for axis in (0, 1)]
            for line, of in zip(share, back, strict=True)
        ]
    ).transpose(0, 2, 1)
    return np.stack([_at(share, there), there[..., 1]], axis=2), back


def _at(values: npt.NDArray[np.floating], places: Numbers) -> Numbers:
    """Values `[h, w]` of the lattice at places, linearly between nodes."""
    height, width = values.shape
    x, y = places[..., 0].clip(0, 1) * (width - 1), places[..., 1].clip(0, 1) * (height - 1)
    column, row = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    right, down = x - column, y - row
    upper = values[row, column] * (1 - right) + values[row, column + 1] * right
    lower = values[row + 1, column] * (1 - right) + values[row + 1, column + 1] * right
    return np.asarray(upper * (1 - down) + lower * down)


def _stretch(back: Numbers) -> Numbers:
    """`[h, w]`: area of the frame that lies at each node of the picture, over the mean."""
    (x_down, x_right), (y_down, y_right) = (np.gradient(back[..., axis]) for axis in (0, 1))
    area = x_right * y_down - x_down * y_right
    return np.asarray(np.maximum(area / area.mean(), 1e-3))


def _turned(places: Numbers) -> Numbers:
    """Rows as columns, x as y."""
    return places.transpose(1, 0, 2)[..., ::-1]


def _spread(values: FloatArray, size_wh: tuple[int, int]) -> FloatArray:
    """`[H, W]` at the middles of pixels of `[h, w]` at nodes, whose outer ones lie on the picture's edges."""
    for size in size_wh:
        at = (np.arange(size, dtype=np.float32) + 0.5) / size * (values.shape[1] - 1)
        node = np.minimum(at.astype(int), values.shape[1] - 2)
        left, right = values[:, node], values[:, node + 1]
        # Turned, so that the second pass takes the other axis and turns it back.
        values = (left + (right - left) * (at - node).astype(np.float32)).T
    return np.ascontiguousarray(values)
