"""Types that the parts exchange: small frozen records that check themselves when they are created.

There are three frames of reference, and names state the one that is meant:

- *source pixels*: the upright frame as decoded, `size_wh = (W, H)`; everything a user sees is in these.
- *texture pixels*: the frame brought to a whole number of cells, `gw * 32` by `gh * 32`.
- *cells*: rows and columns of the grid; one cell is 32x32 texture pixels and one visual token of Qwen3-VL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

CELL_PX = 32
"""Side of a cell in texture pixels: one 2x2 merge block of Qwen3-VL's 16-px patches."""
EIGHTH_PER_CELL = CELL_PX // 8
"""Samples a cell and side of a raster at an eighth of the texture's size."""

COARSEST = 2
"""Highest level of detail: 4x4 fine cells."""
FINER = -1
"""Level of detail of a cell sent as 2x2 tokens, at the source's resolution."""
FINER_TOKENS = 4

_FINER_FROM = 1.4
"""Least ratio of source to texture pixels, each way, for cells at a finer level of detail; 1920x1080 has 1.41."""


def span_cells(level: IntArray) -> IntArray:
    """Return the side of each level of detail in fine cells; a finer one covers its cell."""
    return np.left_shift(1, np.maximum(level, 0)).astype(np.int32)


def tokens_of(level: IntArray) -> IntArray:
    """Return the cost of each chosen cell in tokens, by its level of detail."""
    return np.where(level == FINER, FINER_TOKENS, 1).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Frame:
    """One upright picture with its place in time.

    Args:
        index: 0-based count of delivered frames.
        pts_seconds: Presentation time; never decreases from one frame of a source to the next.
        rgb: `[H, W, 3]`, uint8, C-contiguous.
        captured_seconds: Arrival time at a live source, on the clock of `time.monotonic`; None for recorded frames.
        damaged: The decoder concealed damage in it, or it may refer to a lost or concealed picture.
    """

    index: int
    pts_seconds: float
    rgb: ByteArray
    captured_seconds: float | None = None
    damaged: bool = False

    def __post_init__(self) -> None:
        if self.rgb.ndim != 3 or self.rgb.shape[2] != 3 or self.rgb.dtype != np.uint8:
            raise ValueError(f"rgb must be uint8 [H, W, 3], got {self.rgb.dtype} {list(self.rgb.shape)}")
        if not math.isfinite(self.pts_seconds):
            raise ValueError(f"pts_seconds must be finite, got {self.pts_seconds}")

    @property
    def size_wh(self) -> tuple[int, int]:
        return self.rgb.shape[1], self.rgb.shape[0]


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a frame.

    Args:
        size_wh: Size of the source frame in pixels.
        rows: Number of cell rows, `gh`.
        columns: Number of cell columns, `gw`.
    """

    size_wh: tuple[int, int]
    rows: int
    columns: int

    @classmethod
    def for_size(cls, size_wh: tuple[int, int], *, max_pixels: int = 1 << 62) -> Grid:
        """Return the grid of a frame: each side rounded to the nearest multiple of 32, at least one cell.

        Frames of more than `max_pixels` after rounding are scaled down, and rounded down, to fit, as in Qwen's own
        image processor. The minimum is one cell, even above the limit.
        """
        width, height = size_wh
        if width < 1 or height < 1:
            raise ValueError(f"a frame has at least 1x1 pixels, got {width}x{height}")
        rows, columns = max(1, round(height / CELL_PX)), max(1, round(width / CELL_PX))
        most = max(1, max_pixels // CELL_PX**2)
        if rows * columns > most:
            scale = math.sqrt(max_pixels / (width * height)) / CELL_PX
            rows, columns = max(1, int(height * scale)), max(1, int(width * scale))
            # A frame less than a cell high is still one cell high.
            rows, columns = min(rows, most // columns or 1), min(columns, most // rows or 1)
        return cls(size_wh, rows, columns)

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def texture_wh(self) -> tuple[int, int]:
        return self.columns * CELL_PX, self.rows * CELL_PX

    @property
    def cell_px(self) -> tuple[float, float]:
        """Width and height of a fine cell in source pixels."""
        return self.size_wh[0] / self.columns, self.size_wh[1] / self.rows

    @property
    def has_finer(self) -> bool:
        """The source's resolution is enough above the texture's for cells at a finer level of detail."""
        return min(self.cell_px) >= _FINER_FROM * CELL_PX

    def cells_xyxy(self, rows: IntArray, columns: IntArray, span: IntArray) -> FloatArray:
        """Rectangles `[N, 4]` in source pixels of cells that cover `span x span` fine ones, cut at the grid's edge."""
        cell_w, cell_h = self.cell_px
        x1 = np.minimum(columns + span, self.columns) * cell_w
        y1 = np.minimum(rows + span, self.rows) * cell_h
        return np.stack([columns * cell_w, rows * cell_h, x1, y1], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """One label for every place of the frame.

    Args:
        labels: `[h, w]`, int32, contiguous ids from 0, the largest region first.
        areas: `[n]`, share of the frame that each region covers, descending, sums to 1.
        centroids_xy: `[n, 2]`, normalised to [0, 1]; always a place inside its region.
        method: Name of the clusterer, as in the records, such as `slic-fast` or `grid`.
    """

    labels: IntArray
    areas: FloatArray
    centroids_xy: FloatArray
    method: str

    @property
    def count(self) -> int:
        return len(self.areas)


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """Vectors that describe every place of the frame.

    Args:
        values: `[D, h, w]` float32, at most about two samples a cell. In a joint space the vectors have unit length and
            any D; otherwise D is 16 and values lie in [-1, 1].
        space: Name of the embedding space; vectors, texts and projections of one space can be compared.
        joint: Texts can be encoded into the same space.
    """

    values: FloatArray
    space: str
    joint: bool = False


@dataclass(frozen=True, slots=True)
class TextRegion:
    """A place where something is written.

    Args:
        polygon_xy: Four or more corners, normalised to [0, 1].
        confidence: In [0, 1]: that of the detector and, once the text is read, of the reader.
        text: The words read; None while the region is only detected.
        look: `[h, w]` grey, upright: appearance of the place when it was read; None if it is not needed.
    """

    polygon_xy: tuple[tuple[float, float], ...]
    confidence: float
    text: str | None = None
    look: ByteArray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class DetectedObject:
    """An object that a detector found.

    Args:
        label: Its class, by COCO's name where COCO has it.
        score: The detector's confidence, in [0, 1]; lower after each detection that missed the object.
        box_xyxy: Left, top, right and bottom, normalised to [0, 1].
        track: Its number, from 1, constant while it is tracked; 0 before it has one.
        trust: Confidence in its propagated place, in [0, 1].
        sure: True once its score was high enough to report it by name.
        look: `[h, w, 3]` uint8, the picture in the box, small; None if no query needs its colour.
    """

    label: str
    score: float
    box_xyxy: tuple[float, float, float, float]
    track: int = 0
    trust: float = 1.0
    sure: bool = False
    look: ByteArray | None = field(default=None, repr=False)

    def samples(self, hw: tuple[int, int]) -> tuple[slice, slice]:
        """Return the rows and columns of a raster that the box touches."""
        x0, y0, x1, y1 = self.box_xyxy
        rows = slice(math.floor(y0 * hw[0]), math.ceil(y1 * hw[0]))
        return rows, slice(math.floor(x0 * hw[1]), math.ceil(x1 * hw[1]))


SCORERS = ("information", "perspective", "participation", "context", "coverage")
"""Reasons for choosing a cell: the scorer with the largest contribution; `context` for coarse background cells, and
`coverage` for cells that a strategy must fill (every region gets its share)."""
