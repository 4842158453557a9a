"""Inputs, parts and results of full generation on a keyframe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from arr_stream.errors import ArrStreamError, KeyframeFailed
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
"""Parts of full generation, each made independently: a slow or failed part delays no other."""

EMBEDDING_CHANNELS = 16
"""Channels of the texture for an embedding; one in a joint space is projected to them."""


TEXT_READ = 0.35
"""A keyframe's mask is above this where text was read, and up to it where a place looks like text."""


@dataclass(frozen=True, slots=True, eq=False)
class TextBefore:
    """Prediction of the text on a frame, from an earlier frame.

    Args:
        known: Regions of an earlier frame, moved to their places on this one, that look the same.
        doubtful: The others.
        new: `[h, w]` bool, on any raster: places that cannot be predicted from the earlier frame.
        likely: `[H/4, W/4]` in [0, 1]: how text-like places looked on the earlier frame, moved likewise.
    """

    known: tuple[TextRegion, ...]
    doubtful: tuple[TextRegion, ...]
    new: BoolArray
    likely: FloatArray


@dataclass(frozen=True, eq=False)
class KeyframeInput:
    """One frame as the parts of generation see it; reduced pictures, of `W, H = grid.texture_wh`, are made once.

    Args:
        text_before: Text needs to be looked for only where the picture is new; None: everywhere.
    """

    frame: Frame
    grid: Grid
    text_before: TextBefore | None = None

    @property
    def quarter_hw(self) -> tuple[int, int]:
        """`(H/4, W/4)`."""
        width, height = self.grid.texture_wh
        return height // 4, width // 4

    @cached_property
    def quarter_rgb(self) -> ByteArray:
        """`[H/4, W/4, 3]` uint8."""
        width, height = self.grid.texture_wh
        half = resized(self.frame.rgb, (width // 2, height // 2))
        return resized(half, (width // 4, height // 4))


@dataclass(frozen=True, slots=True, eq=False)
class TextFinding:
    """Text found on a frame.

    Args:
        mask: `[H/4, W/4]` float32 in [0, 1]: how surely there is text, at a quarter of the texture's size; above
            `TEXT_READ` for text that was read, up to it for places that only look like text.
        regions: Regions with text that was read.
    """

    mask: FloatArray
    regions: tuple[TextRegion, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ObjectFinding:
    """The objects in a frame, highest score first."""

    objects: tuple[DetectedObject, ...]


class LazyClusters:
    """Regions that are made once, when they are first read, in the reader's thread.

    It answers to the names of `Clusters`, and a pickle holds what was made.

    Raises:
        KeyframeFailed: On reading: they could not be made; likewise at the next reading.
    """

    def __init__(self, make: Callable[[], Clusters], method: str) -> None:
        self._make: Callable[[], Clusters] | None = make
        self._made: Clusters | None = None
        self._lock = threading.Lock()
        self.method = method

    @property
    def labels(self) -> IntArray:
        return self.made().labels

    @property
    def areas(self) -> FloatArray:
        return self.made().areas

    @property
    def centroids_xy(self) -> FloatArray:
        return self.made().centroids_xy

    @property
    def count(self) -> int:
        return self.made().count

    def made(self) -> Clusters:
        """The regions themselves."""
        with self._lock:
            if self._made is None:
                assert self._make is not None
                try:
                    made = self._make()
                except ArrStreamError:
                    raise
                except Exception as exc:
                    raise KeyframeFailed(f"clusters: {type(exc).__name__}: {' '.join(str(exc).split())}") from exc
                # Release the inputs, such as a picture.
                self._made, self._make = made, None
            return self._made

    def __reduce__(self) -> tuple[Any, ...]:
        made = self.made()
        return Clusters, (made.labels, made.areas, made.centroids_xy, made.method)


PartValue = Clusters | LazyClusters | Embedding | TextFinding | ObjectFinding


@dataclass(frozen=True, slots=True, eq=False)
class KeyframePart:
    """One part of full generation on one frame; it may reach the pipeline frames later, and without the others.

    Args:
        index: Index of the frame that it was made from.
        backend: Name of its maker, as in the records.
        seconds: Duration of generation.
    """

    index: int
    part: PartName
    value: PartValue
    backend: str
    seconds: float = 0.0


class Clusterer(Protocol):
    """Divides a frame into regions."""

    def cluster(self, picture: KeyframeInput) -> Clusters | LazyClusters:
        """Regions with contiguous ids, the largest first, at any resolution."""
        ...


class Embedder(Protocol):
    """Describes every place of a frame by a vector."""

    @property
    def name(self) -> str:
        """Name in the records."""
        ...

    def embed(self, picture: KeyframeInput) -> Embedding:
        """Vectors of all places, about two samples a cell; places that are alike have a high cosine."""
        ...


class TextEncoder(Protocol):
    """The other half of an embedder whose space is joint: texts as vectors."""

    @property
    def space(self) -> str:
        """Equal to `Embedding.space` of what its texts can be compared with."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens of a text, start and end included; the encoder ignores the rest."""
        ...

    def token_count(self, text: str) -> int:
        """Tokens of the whole text, start and end included."""
        ...

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """`[N, D]` float32 of unit length."""
        ...


class TextFinder(Protocol):
    """Finder of text in a frame."""

    @property
    def name(self) -> str:
        """Name in the records."""
        ...

    def find(self, picture: KeyframeInput) -> TextFinding:
        """Places of text with their words."""
        ...


class ObjectFinder(Protocol):
    """Finds objects in a frame."""

    @property
    def name(self) -> str:
        """Name in the records."""
        ...

    def find(self, picture: KeyframeInput) -> ObjectFinding:
        """Return the objects with their classes."""
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
