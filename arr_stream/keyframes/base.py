"""What full generation looks at, and what its three parts are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from arr_stream.types import ByteArray, Clusters, FloatArray, Frame, Grid, TextRegion


@dataclass(frozen=True, eq=False)
class KeyframeInput:
    """One frame as the parts of generation see it; reduced pictures are made once, when first needed.

    Args:
        frame: The frame.
        grid: Its grid; `grid.texture_wh` fixes the sizes of the reduced pictures.
    """

    frame: Frame
    grid: Grid

    @property
    def quarter_hw(self) -> tuple[int, int]:
        """Height and width of the texture, divided by 4."""
        width, height = self.grid.texture_wh
        return height // 4, width // 4

    @cached_property
    def half_rgb(self) -> ByteArray:
        """`[H/2, W/2, 3]` uint8, where `W, H` is the texture's size."""
        width, height = self.grid.texture_wh
        return resized(self.frame.rgb, (width // 2, height // 2))

    @cached_property
    def quarter_rgb(self) -> ByteArray:
        """`[H/4, W/4, 3]` uint8."""
        width, height = self.grid.texture_wh
        return resized(self.half_rgb, (width // 4, height // 4))


@dataclass(frozen=True, slots=True, eq=False)
class TextFinding:
    """Where something is written.

    Args:
        mask: `[H/4, W/4]` float32 in [0, 1]: how surely there is text, at a quarter of the texture's size.
        regions: The regions behind the mask.
    """

    mask: FloatArray
    regions: tuple[TextRegion, ...] = ()


class Clusterer(Protocol):
    """Divides a frame into regions."""

    def cluster(self, picture: KeyframeInput) -> Clusters:
        """Regions with contiguous ids, the largest first, at any resolution."""
        ...


class Embedder(Protocol):
    """Describes every place of a frame by 16 numbers."""

    @property
    def name(self) -> str:
        """As it stands in the records."""
        ...

    def embed(self, picture: KeyframeInput) -> FloatArray:
        """`[16, h, w]` float32 in [-1, 1], about two samples a cell; places that look alike have a high cosine."""
        ...


class TextFinder(Protocol):
    """Finds what is written in a frame."""

    @property
    def name(self) -> str:
        """As it stands in the records."""
        ...

    def find(self, picture: KeyframeInput, *, read: bool) -> TextFinding:
        """Places of text; their words only where `read` is true, since reading costs more than finding."""
        ...


def resized(picture: ByteArray, size_wh: tuple[int, int]) -> ByteArray:
    """`[h, w, 3]` uint8, C-contiguous: area average where the picture shrinks, linear where it grows."""
    import cv2

    height, width = picture.shape[:2]
    if (width, height) == size_wh:
        return picture
    shrinks = size_wh[0] < width or size_wh[1] < height
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.ascontiguousarray(cv2.resize(picture, size_wh, interpolation=method), dtype=np.uint8)
