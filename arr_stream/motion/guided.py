"""Guided filter that aligns a soft mask's border to colour edges of the picture."""

from __future__ import annotations

from arr_stream.texture.arrays import Array, as_float
from arr_stream.texture.pixels import averaged, box_means, picture_planes, resized


def guided(mask: Array, picture: Array, side_px: int, least: float) -> Array:
    """Apply the fast guided filter of He and Sun (2015), guided by a colour picture.

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
