"""Smooth shapes with shading: drawn four times too large, then averaged down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Floats = npt.NDArray[np.float32]
Points = Sequence[tuple[float, float]]
Colour = str | tuple[str, str]
"""`#rrggbb`, or two of them for a gradient from the shape's top to its bottom."""

OVERSAMPLING = 4


def rgb(colour: str) -> Floats:
    return np.asarray(np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.float32) / 255, np.float32)


def path(text: str) -> list[tuple[float, float]]:
    """Points written as in SVG: `6,58 8,44`."""
    pairs = (pair.partition(",") for pair in text.split())
    return [(float(x), float(y)) for x, _, y in pairs]


def spline(points: Points, *, closed: bool = True, steps: int = 12) -> list[tuple[float, float]]:
    """A Catmull-Rom curve through the points."""
    p = np.asarray(points, np.float64)
    ring = np.concatenate([p[-1:], p, p[:2]]) if closed else np.concatenate([p[:1], p, p[-1:]])
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    curve = []
    for a, b, c, d in zip(ring, ring[1:], ring[2:], ring[3:], strict=False):
        curve.append(0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3))
    return [(float(x), float(y)) for x, y in np.concatenate(curve)]


class Canvas:
    """A transparent picture of `width x height` pixels to draw on, from back to front."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._size = (width * OVERSAMPLING, height * OVERSAMPLING)
        self._image = np.zeros((self._size[1], self._size[0], 4), np.float32)

    def polygon(self, points: Points, fill: Colour, *, opacity: float = 1.0, inside: Points | None = None) -> None:
        """`inside` cuts the shape at another's outline, for reflections and stripes."""
        mask = self._polygon_mask(points)
        if inside is not None:
            mask = mask * self._polygon_mask(inside)
        self._composite(mask * opacity, fill)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Colour, *, opacity: float = 1.0) -> None:
        angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
        self.polygon(list(zip(x + rx * np.cos(angle), y + ry * np.sin(angle), strict=True)), fill, opacity=opacity)

    def box(
        self, x0: float, y0: float, x1: float, y1: float, fill: Colour, *, radius: float = 0, opacity: float = 1.0
    ) -> None:
        mask, draw = self._blank()
        k = OVERSAMPLING
        draw.rounded_rectangle((x0 * k, y0 * k, x1 * k - 1, y1 * k - 1), radius * k, fill=255)
        self._composite(_as_mask(mask) * opacity, fill)

    def line(self, points: Points, width: float, colour: str, *, opacity: float = 1.0) -> None:
        mask, draw = self._blank()
        k = OVERSAMPLING
        draw.line([(x * k, y * k) for x, y in points], fill=255, width=round(width * k), joint="curve")
        self._composite(_as_mask(mask) * opacity, colour)

    def text(
        self, x: float, y: float, words: str, size: float, colour: Colour, *, glow: str | None = None
    ) -> npt.NDArray[np.float64]:
        """Bold letters centred on a point; gives the corners `[4, 2]` of their tight box."""
        mask, draw = self._blank()
        k = OVERSAMPLING
        draw.text((x * k, y * k), words, fill=255, font=_font(round(size * k)), anchor="mm")
        letters = _as_mask(mask)
        if glow is not None:
            halo = cv2.GaussianBlur(letters, (0, 0), size * k * 0.16)
            self._composite(np.minimum(np.asarray(halo, np.float32) * 1.1, 1), glow)
        self._composite(letters, colour)
        ys, xs = np.nonzero(letters)
        x0, y0, x1, y1 = (v / k - 0.5 for v in (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1))
        return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float64)

    def blurred(self, sigma: float) -> Floats:
        """The finished picture, softened (shadows, glows)."""
        return np.asarray(cv2.GaussianBlur(self.finished(), (0, 0), sigma), np.float32)

    def finished(self) -> Floats:
        """`[height, width, 4]` in [0, 1], colour multiplied by alpha."""
        small = cv2.resize(self._image, (self.width, self.height), interpolation=cv2.INTER_AREA)
        return np.asarray(small, np.float32)

    def _blank(self) -> tuple[Image.Image, ImageDraw.ImageDraw]:
        mask = Image.new("L", self._size, 0)
        return mask, ImageDraw.Draw(mask)

    def _polygon_mask(self, points: Points) -> Floats:
        mask, draw = self._blank()
        draw.polygon([(float(x) * OVERSAMPLING, float(y) * OVERSAMPLING) for x, y in points], fill=255)
        return _as_mask(mask)

    def _composite(self, mask: Floats, fill: Colour) -> None:
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if len(rows) == 0:
            return
        touched = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        top, bottom = (fill, fill) if isinstance(fill, str) else fill
        share = np.linspace(0, 1, rows[-1] + 1 - rows[0], dtype=np.float32)[:, None, None]
        alpha, below = mask[touched][..., None], self._image[touched]
        below *= 1 - alpha
        below[..., :3] += (rgb(top) * (1 - share) + rgb(bottom) * share) * alpha
        below[..., 3:] += alpha


def opaque(picture: npt.NDArray[np.uint8] | Floats) -> Floats:
    """`[H, W, 3]`, uint8 or [0, 1], as a layer without holes."""
    colour = picture.astype(np.float32) / 255 if picture.dtype == np.uint8 else picture.astype(np.float32)
    return np.dstack([colour, np.ones(colour.shape[:2], np.float32)])


def photograph(name: str) -> npt.NDArray[np.uint8]:
    """One of those of `skimage.data`."""
    from skimage import data

    return np.asarray(getattr(data, name)(), np.uint8)


def unit(picture: npt.NDArray[np.uint8]) -> Floats:
    """Bytes as shares in [0, 1]."""
    return np.asarray(picture.astype(np.float32) / 255, np.float32)


def enlarged(picture: npt.NDArray[np.uint8] | Floats, width: int) -> Floats:
    """A photograph brought to a width, in [0, 1]."""
    colour = picture.astype(np.float32) / 255 if picture.dtype == np.uint8 else picture
    height = round(picture.shape[0] * width / picture.shape[1])
    method = cv2.INTER_AREA if width < picture.shape[1] else cv2.INTER_CUBIC
    return np.clip(np.asarray(cv2.resize(colour, (width, height), interpolation=method), np.float32), 0, 1)


def tinted(grey: npt.NDArray[np.uint8] | Floats, dark: str, light: str) -> Floats:
    """A grey photograph `[H, W]` between two colours."""
    value = grey.astype(np.float32) / 255 if grey.dtype == np.uint8 else grey
    return np.asarray(rgb(dark) * (1 - value[..., None]) + rgb(light) * value[..., None], np.float32)


def tiled(picture: Floats, width: int, height: int) -> Floats:
    """A texture repeated, every second time mirrored so that no seam shows."""
    both = np.concatenate([picture, picture[:, ::-1]], axis=1)
    four = np.concatenate([both, both[::-1]], axis=0)
    repeats = (-(-height // four.shape[0]), -(-width // four.shape[1]), 1)
    return np.tile(four, repeats)[:height, :width]


def _as_mask(image: Image.Image) -> Floats:
    return np.asarray(np.asarray(image, np.float32) / 255, np.float32)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"), size)
