"""Inputs, parts and results of full generation on a keyframe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, Protocol, TypeVar

import numpy as np

from arr_stream.types import (
    BoolArray,
    ByteArray,
    Clusters,
    DetectedObject,
    Embedding,
    FloatArray,
    Frame,
    Grid,
    IntArray,
    TextRegion,
)

PartName = Literal["clusters", "embedding", "text", "objects"]
PARTS: tuple[PartName, ...] = ("clusters", "embedding", "text", "objects")
"""Parts of full generation. Each is independent: a slow or failed part delays no other."""

EMBEDDING_CHANNELS = 16
"""Texture channels of an embedding; an embedding in a joint space is projected to them."""


TEXT_READ = 0.35
"""Threshold of a text mask: larger values mark text that was read, smaller ones text-like places."""


@dataclass(frozen=True, slots=True, eq=False)
class TextBefore:
    """Prior knowledge of a frame's text, carried from an earlier frame.

    Args:
        known: Regions of the earlier frame, warped to this one, whose appearance is unchanged.
        doubtful: The other regions.
        new: `[h, w]` bool, at any resolution: places that the earlier frame cannot explain.
        likely: `[H/4, W/4]` in [0, 1]: text-likeness on the earlier frame, warped to this one.
    """

    known: tuple[TextRegion, ...]
    doubtful: tuple[TextRegion, ...]
    new: BoolArray
    likely: FloatArray


@dataclass(frozen=True, eq=False)
class KeyframeInput:
    """Input of the parts of generation; pictures reduced from `W, H = grid.texture_wh` are made once.

    Args:
        text_before: Limits the text search to new places; None searches everywhere.
    """

    frame: Frame
    grid: Grid
    text_before: TextBefore | None = None

    @property
    def quarter_hw(self) -> tuple[int, int]:
        """Quarter size `(H/4, W/4)`."""
        width, height = self.grid.texture_wh
        return height // 4, width // 4

    @cached_property
    def quarter_rgb(self) -> ByteArray:
        """Picture at quarter size: `[H/4, W/4, 3]` uint8."""
        width, height = self.grid.texture_wh
        half = resized(self.frame.rgb, (width // 2, height // 2))
        return resized(half, (width // 4, height // 4))


@dataclass(frozen=True, slots=True, eq=False)
class TextFinding:
    """Text in a frame.

    Args:
        mask: `[H/4, W/4]` float32 in [0, 1]: confidence of text, at a quarter of the texture's size; above
            `TEXT_READ` for text that was read, up to it for text-like places.
        regions: Text that was read.
    """

    mask: FloatArray
    regions: tuple[TextRegion, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ObjectFinding:
    """Objects in a frame, highest score first."""

    objects: tuple[DetectedObject, ...]


class LazyClusters:
    """Regions that are made on first access, in the accessing thread, with the attributes of `Clusters`.

    Args:
        make: Makes them; called again if it raised.
        method: See `Clusters`.
    """

    def __init__(self, make: Callable[[], Clusters], method: str) -> None:
        self._made = cache(make)
        self.method = method

    @property
    def labels(self) -> IntArray:
        return self._made().labels

    @property
    def areas(self) -> FloatArray:
        return self._made().areas

    @property
    def centroids_xy(self) -> FloatArray:
        return self._made().centroids_xy

    @property
    def count(self) -> int:
        return self._made().count


FindingT = TypeVar("FindingT", covariant=True)

PartValue = Clusters | LazyClusters | Embedding | TextFinding | ObjectFinding


@dataclass(frozen=True, slots=True, eq=False)
class KeyframePart:
    """One part of full generation on one frame; it may arrive some frames later, and without the others.

    Args:
        index: Index of the source frame.
        backend: Name of the backend, as in the records.
        seconds: Time that generation took.
    """

    index: int
    part: PartName
    value: PartValue
    backend: str
    seconds: float = 0.0


class Clusterer(Protocol):
    """Protocol of a method that segments a frame into regions."""

    def cluster(self, picture: KeyframeInput) -> Clusters | LazyClusters:
        """Return regions with contiguous ids, the largest first, at any resolution."""
        ...


class Embedder(Protocol):
    """Protocol of a dense image encoder."""

    @property
    def name(self) -> str:
        """Name in the records."""
        ...

    def embed(self, picture: KeyframeInput) -> Embedding:
        """Return dense vectors, about two samples a cell; similar places have a high cosine similarity."""
        ...


class TextEncoder(Protocol):
    """Protocol of the text encoder that belongs to an embedder with a joint space."""

    @property
    def space(self) -> str:
        """Name of the joint space, equal to `Embedding.space` of comparable embeddings."""
        ...

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Return `[N, D]` float32 of unit length; what exceeds the model's context is ignored."""
        ...


class Finder(Protocol[FindingT]):
    """Protocol of a detector."""

    @property
    def name(self) -> str:
        """Name in the records."""
        ...

    def find(self, picture: KeyframeInput) -> FindingT:
        """Return all that is found in the picture."""
        ...


TextFinder = Finder[TextFinding]
ObjectFinder = Finder[ObjectFinding]


def resized(picture: ByteArray, size_wh: tuple[int, int]) -> ByteArray:
    """Return `[h, w, 3]` uint8, C-contiguous; uses area averaging to shrink and linear interpolation to enlarge."""
    import cv2

    height, width = picture.shape[:2]
    if (width, height) == size_wh:
        return picture
    shrinks = size_wh[0] < width or size_wh[1] < height
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.ascontiguousarray(cv2.resize(picture, size_wh, interpolation=method), dtype=np.uint8)
