"""Brings a soft mask's border to where the picture's colours change."""

from __future__ import annotations

from arr_stream.texture.arrays import Array
from arr_stream.texture.pixels import box_means


def guided(mask: Array, colours: Array, side_px: int, least: float) -> Array:
    """The guided filter of He, Sun and Tang (PAMI 2013), a colour picture the guide.

    In every window the mask is taken for a linear function of colour, fitted by least squares; a place gets the mean of
    what all windows around it say.

    Args:
        mask: `[h, w]` in [0, 1].
        colours: `[3, h, w]` in [0, 1].
        side_px: Of a window, odd.
        least: Variance of colour from which a change of it counts as a border.

    Returns:
        `[h, w]` in [0, 1].
    """
    red, green, blue = colours
    seconds = red * red, red * green, red * blue, green * green, green * blue, blue * blue
    together = red * mask, green * mask, blue * mask
    means = box_means(red, green, blue, mask, *seconds, *together, side_px=side_px)
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
    of_red, of_green, of_blue, offset = box_means(of_red, of_green, of_blue, offset, side_px=side_px)
    return (of_red * red + of_green * green + of_blue * blue + offset).clip(0, 1)
