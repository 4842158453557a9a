"""Pixel operations by OpenCV; `arr_stream.gpu` registers the same for tensors on a device.

Pictures are `[h, w, 3]` uint8 here and `[3, h, w]` float32 of whole numbers in [0, 255] on a device; all other
arguments are planes, `[h, w]` or `[C, h, w]`, float32 unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import cv2
import numpy as np

from arr_stream.texture.arrays import Array, as_float, channels_first, channels_last

_NEIGHBOURS = np.ones((3, 3), np.uint8)


@singledispatch
def reduced(picture: Array, size_wh: tuple[int, int]) -> Array:
    """Resize a picture: halve it exactly if it shrinks by much, then average or interpolate."""
    height, width = picture.shape[:2]
    if (width, height) == size_wh:
        return picture
    across, down = width / size_wh[0], height / size_wh[1]
    if halves_first((width, height), size_wh):
        return reduced(reduced(picture, (width // 2, height // 2)), size_wh)
    # The area average costs ten times a linear resize unless both factors are exactly 2; below about 2.2 linear
    # sampling reads nearly every pixel anyway.
    whole = across == down == 2.0
    method = cv2.INTER_AREA if whole or max(across, down) > 2.2 else cv2.INTER_LINEAR
    return np.ascontiguousarray(cv2.resize(picture, size_wh, interpolation=method))


def halves_first(size_wh: tuple[int, int], wanted_wh: tuple[int, int]) -> bool:
    """Return whether a picture of even size shrinks so much that halving it first is cheaper than averaging."""
    factors = [side / wanted for side, wanted in zip(size_wh, wanted_wh, strict=True)]
    return min(factors) > 2.0 and max(factors) > 2.2 and not any(side % 2 for side in size_wh)


@singledispatch
def lightness(picture: Array) -> Array:
    """Return `[h, w]` (BT.601 luma) of a picture, in its units."""
    return cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)


@singledispatch
def picture_planes(picture: Array) -> Array:
    """Return a view `[3, h, w]` of a picture `[h, w, 3]` (or of planes) of uint8."""
    return channels_first(picture)


@singledispatch
def picture_hw(picture: Array) -> tuple[int, int]:
    """Return rows and columns of a picture."""
    return picture.shape[0], picture.shape[1]


@singledispatch
def packed_colours(picture: Array, green_bits: int) -> Array:
    """Return `[h, w]` whole numbers: 5 bits of red, 5 or 6 of green and 5 of blue."""
    if green_bits == 6:
        packed = cv2.cvtColor(np.ascontiguousarray(picture), cv2.COLOR_RGB2BGR565).view(np.uint16)
        return packed.reshape(picture.shape[:2])
    red, green, blue = cv2.split(np.right_shift(picture, 3))
    packed = red.astype(np.uint16)
    for channel in (green, blue):
        packed = (packed << 5) | channel
    return packed.reshape(picture.shape[:2])


@singledispatch
def colour_shares(picture: Array) -> Array:
    """Return `[512]`: share of the picture in each of 8x8x8 colours."""
    histogram = cv2.calcHist([picture], [0, 1, 2], None, [8, 8, 8], [0, 256, 0, 256, 0, 256])
    return (histogram.ravel() / picture.shape[0] / picture.shape[1]).astype(np.float32)


@singledispatch
def resized(planes: Array, hw: tuple[int, int]) -> Array:
    """Resize planes to `(h, w)` by linear interpolation between pixel centres, borders continued."""
    if planes.shape[-2:] == hw:
        return planes
    made = cv2.resize(channels_last(planes), hw[::-1], interpolation=cv2.INTER_LINEAR)
    return channels_first(made.reshape(*hw, *planes.shape[:-2]))


@singledispatch
def averaged(planes: Array, hw: tuple[int, int]) -> Array:
    """Average planes down to `(h, w)`, in the planes' type (a picture's channels stay last)."""
    return cv2.resize(planes, hw[::-1], interpolation=cv2.INTER_AREA).reshape(*hw, *planes.shape[2:])


@singledispatch
def remap(planes: Array, map_px: Array, *, nearest: bool = False) -> Array:
    """Sample planes at `[h, w, 2]` positions `(x, y)`, with the border continued.

    Exact to rounding with 1, 3 or 4 channels, to 1/32 px with others.

    Args:
        planes: Of any type that OpenCV moves; anything but float32 needs `nearest`.
        map_px: Position that each place is sampled from.
        nearest: Take the nearest sample instead of the linear blend of four.
    """
    held = channels_last(planes.view(np.uint8) if planes.dtype == np.bool_ else planes)
    method = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    moved = np.asarray(cv2.remap(held, map_px, None, method, borderMode=cv2.BORDER_REPLICATE))
    return channels_first(moved.reshape(*map_px.shape[:2], *planes.shape[:-2]).view(planes.dtype))


@singledispatch
def blotted(planes: Array, kept: Array, value: float | Array) -> Array:
    """Replace planes by a value, or by a plane `[h, w]`, where `kept` `[h, w]` is False; in place on the host."""
    if not kept.all():
        channels_last(planes)[~kept] = value[~kept] if isinstance(value, np.ndarray) else value
    return planes


@singledispatch
def inside(map_px: Array) -> Array:
    """Return `[h, w]` bool: a position is inside the picture, up to the outer edges of its border pixels."""
    height, width = map_px.shape[:2]
    return cv2.inRange(map_px, (-0.5, -0.5, 0.0, 0.0), (width - 0.5, height - 0.5, 0.0, 0.0)) != 0


@singledispatch
def mean_of(plane: Array) -> Array:
    """Return the mean of a plane: a number, or a tensor without axes."""
    return cv2.mean(plane)[0]


@singledispatch
def middle_of(values: Array) -> Array:
    """Return the upper median along the first axis, `[n, ...]` to `[...]`."""
    middle = len(values) // 2
    return np.partition(values, middle, axis=0)[middle]


@singledispatch
def affine(places: Array, slopes: Array, base: Array) -> Array:
    """Return `places @ slopes + base`, `[h, w, n]`, of places `[h, w, 2]`, slopes `[2, n]` and a base `[n]`."""
    # Takes a tenth of NumPy's time for products this narrow.
    return cv2.transform(places, np.column_stack([slopes.T, base]))


@singledispatch
def solved(matrix: Array, right: Array) -> Array:
    """Solve symmetric, positive definite equations `[n, n]` for several right sides `[n, m]`; return `[n, m]`."""
    # Takes a tenth of NumPy's time for a few equations.
    return cv2.solve(matrix, right, flags=cv2.DECOMP_CHOLESKY)[1]


@singledispatch
def box_means(*planes: Array, side_px: int) -> Sequence[Array]:
    """Return planes `[h, w]` of means over a square window around each place, the picture mirrored at its border."""
    return [cv2.blur(plane, (side_px, side_px)).reshape(plane.shape) for plane in planes]


@singledispatch
def widened(plane: Array) -> Array:
    """Return `[h, w]`: the maximum of each place and its eight neighbours."""
    return cv2.dilate(plane, _NEIGHBOURS).reshape(plane.shape)


@singledispatch
def local_contrast(grey: Array, side_px: int) -> Array:
    """Return `[h, w]`: range of lightness among neighbours, averaged over a window."""
    contrast = cv2.morphologyEx(grey, cv2.MORPH_GRADIENT, _NEIGHBOURS, borderType=cv2.BORDER_REPLICATE)
    around = cv2.boxFilter(contrast, cv2.CV_32F, (side_px, side_px), borderType=cv2.BORDER_REPLICATE)
    return around.reshape(grey.shape)


@singledispatch
def gaussian(plane: Array, side_px: int, sigma: float, *, mirrored: bool) -> Array:
    """Blur `[h, w]`, mirrored at its border or surrounded by zeros; a sigma of 0 follows from the kernel's side."""
    border = cv2.BORDER_DEFAULT if mirrored else cv2.BORDER_CONSTANT
    return cv2.GaussianBlur(plane, (side_px, side_px), sigma, borderType=border).reshape(plane.shape)


@singledispatch
def exponential(plane: Array) -> Array:
    """Return e to the power of each value, `[h, w]`."""
    return cv2.exp(plane).reshape(plane.shape)


@singledispatch
def line_sums(plane: Array) -> tuple[Array, Array]:
    """Return the sums `[w]` of columns and `[h]` of rows."""
    return cv2.reduce(plane, 0, cv2.REDUCE_SUM).ravel(), cv2.reduce(plane, 1, cv2.REDUCE_SUM).ravel()


@singledispatch
def cell_colours(picture: Array, hw: tuple[int, int]) -> Array:
    """Return `[cells, 3]` mean colours of a picture's cells, whole numbers in [0, 255]."""
    return averaged(picture, hw).astype(np.float32).reshape(-1, 3)


@singledispatch
def cell_bytes(plane: Array, hw: tuple[int, int]) -> Array:
    """Return `[gh, gw]` means over the cells of a plane, in whole 255ths."""
    return averaged(plane, hw)


@singledispatch
def cell_difference(first: Array, second: Array) -> Array:
    """Return `[gh, gw]` mean difference, in whole grey levels, of two lightness pictures at an eighth of the size."""
    hw = first.shape[0] // 4, first.shape[1] // 4
    return averaged(cv2.absdiff(first, second), hw).astype(np.float32)


def guided(mask: Array, picture: Array, side_px: int, least: float) -> Array:
    """Align a soft mask's border to the colour edges of a picture, by the fast guided filter of He and Sun (2015).

    In every window the mask is fitted as a linear function of colour, by least squares at half size; each place
    gets the mean over all windows around it.

    Args:
        mask: `[h, w]` in [0, 1].
        picture: `[h, w, 3]` uint8; on a device `[3, h, w]`, whole numbers in [0, 255].
        side_px: Side of a window at half size, odd.
        least: Variance, in grey levels squared, from which a change of colour counts as a border.

    Returns:
        `[h, w]` in [0, 1].
    """
    hw = mask.shape[0], mask.shape[1]
    half_hw = max(1, hw[0] // 2), max(1, hw[1] // 2)
    red, green, blue = (as_float(plane) for plane in picture_planes(averaged(picture, half_hw)))
    small = averaged(mask, half_hw)
    seconds = red * red, red * green, red * blue, green * green, green * blue, blue * blue
    together = red * small, green * small, blue * small
    means = box_means(red, green, blue, small, *seconds, *together, side_px=side_px)
    r, g, b, m, rr, rg, rb, gg, gb, bb, rm, gm, bm = means
    x, y, z = rm - r * m, gm - g * m, bm - b * m
    rr, gg, bb = rr - r * r + least, gg - g * g + least, bb - b * b + least
    rg, rb, gb = rg - r * g, rb - r * b, gb - g * b
    # Symmetric 3 by 3 equations for every window, by the adjugate.
    xx, xy, xz = gg * bb - gb * gb, gb * rb - rg * bb, rg * gb - gg * rb
    yy, yz, zz = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
    scale = 1 / (rr * xx + rg * xy + rb * xz)
    of_red = (xx * x + xy * y + xz * z) * scale
    of_green = (xy * x + yy * y + yz * z) * scale
    of_blue = (xz * x + yz * y + zz * z) * scale
    offset = m - of_red * r - of_green * g - of_blue * b
    fits = box_means(of_red, of_green, of_blue, offset, side_px=side_px)
    *slopes, offset = (resized(fit, hw) for fit in fits)
    for slope, plane in zip(slopes, picture_planes(picture), strict=True):
        offset += slope * plane
    return offset.clip(0, 1)
