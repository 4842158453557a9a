"""Selection of one frame, and a model's use of it: the records that consumers get with each frame."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import cv2
import numpy as np

from arr_stream.motion.flow import Flow
from arr_stream.texture.array import Texture
from arr_stream.types import (
    CELL_PX,
    BoolArray,
    ByteArray,
    DetectedObject,
    FloatArray,
    Frame,
    Grid,
    IntArray,
    span_cells,
    tokens_of,
)


@dataclass(frozen=True, slots=True)
class Feeding:
    """Addition of one frame to a model's memory.

    Args:
        sent: Tokens given to the model: cells, a finer one as four.
        held: Tokens of chosen cells that it had already, unchanged.
        memory_tokens: Tokens of the whole memory afterwards.
        cache_bytes: Size of the key-value cache afterwards.
        vision_ms: Time of the vision tower.
        prefill_ms: Time of the language model over the added tokens.
        rebuilt: Why the memory was rebuilt: `budget` or `question` (one needed room), `cut` or `period`; None if it was
            not.
        error: One line if the model could not take the frame.
        frame_index: The newest frame that this describes; a model that works beside the stream is some frames behind.
    """

    sent: int = 0
    held: int = 0
    memory_tokens: int = 0
    cache_bytes: int = 0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    rebuilt: str | None = None
    error: str | None = None
    frame_index: int = 0

    def then(self, later: Feeding) -> Feeding:
        """Return both as one: counts and times are summed, sizes are those of the later one."""
        return Feeding(
            frame_index=later.frame_index,
            sent=self.sent + later.sent,
            held=self.held + later.held,
            memory_tokens=later.memory_tokens,
            cache_bytes=later.cache_bytes,
            vision_ms=self.vision_ms + later.vision_ms,
            prefill_ms=self.prefill_ms + later.prefill_ms,
            rebuilt=later.rebuilt or self.rebuilt,
            error=later.error or self.error,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Answer of a model about the frames that it had seen.

    Args:
        question: The question's text.
        text: The answer, complete or cut off.
        frame_index: The newest frame that the model had seen.
        pts_seconds: Presentation time of that frame.
        model: Name of the model.
        cells: `[N, 5]` float32, cells that the model attended to: rectangles in source pixels and each one's share of
            the attention in [0, 1], largest first; empty if the model reports no attention.
        cell_frames: `[N]` int32, the frame that each cell was taken from.
        visual_tokens: Tokens of cells in the model's memory.
        prompt_tokens: Tokens of the question, with its markers; for a server, of the whole prompt.
        cached_tokens: Prompt tokens that the server had in its cache, if it reports them.
        answer_tokens: Tokens of the answer.
        prefill_ms: Time to the first token.
        decode_ms: Time of all others.
        memory_tokens: Tokens of the memory at the question.
        cache_bytes: Largest size of the key-value cache while it was answered.
        fed: Addition to the memory, or its rebuilding, before the question could be asked; None for none.
        finish: `stop` (the model ended it), `length` (cut at the limit), `cancelled` or `failed`.
        error: One line where it failed.
        note: Remark about the answer, in one line; None for none.
    """

    question: str
    text: str
    frame_index: int
    pts_seconds: float
    model: str
    cells: FloatArray = field(default_factory=lambda: np.zeros((0, 5), np.float32))
    cell_frames: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    visual_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    memory_tokens: int = 0
    cache_bytes: int = 0
    fed: Feeding | None = None
    finish: Literal["stop", "length", "cancelled", "failed"] = "stop"
    error: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.cells.ndim != 2 or self.cells.shape[1] != 5 or len(self.cells) != len(self.cell_frames):
            raise ValueError(f"cells are {list(self.cells.shape)} for {len(self.cell_frames)} frames, expected [N, 5]")


def most_attended(cells: FloatArray, share: float = 0.9, most: int = 100) -> IntArray:
    """`[n]` int32, places in `cells` of the fewest that carry `share` of the attention of all, largest first.

    Args:
        cells: `[N, 5]`, rectangles and the share that each got.
        share: In [0, 1].
        most: Upper limit of n.

    Raises:
        ValueError: A rectangle or a share is not finite.
    """
    if not np.isfinite(cells).all():
        raise ValueError("a cell that an answer rested on is not finite")
    order = np.argsort(-cells[:, 4], kind="stable")
    reached = np.cumsum(cells[order, 4], dtype=np.float64)
    if not len(order) or reached[-1] <= 0:
        return np.zeros(0, np.int32)
    # Rounding must not ask for one more cell than carries the share.
    count = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-6))) + 1
    return order[: min(count, most)].astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class PatchSet:
    """The cells chosen for one frame, each with its score, level of detail and reason.

    Args:
        index: Index of the frame.
        pts_seconds: Presentation time of the frame.
        grid: The frame's cells.
        rows, columns: `[N]` int32, top-left fine cell of each chosen cell.
        level: `[N]` int32, level of detail: 0 covers one fine cell, 1 covers 2x2, 2 covers 4x4, each as one token; -1
            is one fine cell as four tokens, from the source's own pixels.
        score: `[N]` float32 in [0, 1], descending.
        scorer: `[N]` int32, index into `SCORERS`.
        query: `[N]` int32, index of the query with the highest relevance in the cell, -1 for none.
        carried: `[N]` bool, relevance came along the flow (True) or was computed on this frame (False).
        fresh: `[N]` bool, new to the model or changed since it was last sent (False: the model has it already).
        confidence: Mean confidence in the propagated channels, in [0, 1].
        keyframe: A refresh was requested on this frame.
        refresh_reason: `first`, `interval`, `confidence`, `cut`, `query`, `size` or `retry`; None between refreshes.
        keyframe_age: Frames since the newest frame whose generation is in use, without text searches between keyframes.
        keyframe_index: Index of that frame, None before the first result.
        parts: For each part of generation in use, its source frame and its backend; parts that have not arrived, or
            that failed, are absent.
        query_scores: For each query, the highest relevance of any cell on this frame.
        cells_scored: Number of cells scored one by one (the cascade skips the others).
        latency_ms: Milliseconds by stage; empty for a recorded choice.
        notices: One-line messages about this frame, such as a failed keyframe.
        texture: The 40 channels that the choice was computed from.
        flow: Backward flow to the frame before; None on the first frame and after a cut.
        relevance: `[gh, gw]`, the final score of every cell, for display.
        feeding: The frame's addition to a model's memory; None without a model, or if it did not receive the frame.
        answers: Answers that arrived on this frame.
        objects: Detected objects at their places on this frame; empty if no query asks for objects.
        region: Present box of the tracked region: left, top, right and bottom as shares of the frame; None without one,
            or while it is occluded.
        quality: Step by which quality was lowered to hold the frame rate, 0 for full quality; see
            `arr_stream.live.live_stream`.
        damaged: The decoder concealed damage in the frame, or the frame may refer to a lost or concealed one.
        frame_ref: Weak reference to the source frame, so that patch sets in a list do not keep all frames; see `frame`.
    """

    index: int
    pts_seconds: float
    grid: Grid
    rows: IntArray
    columns: IntArray
    level: IntArray
    score: FloatArray
    scorer: IntArray
    query: IntArray
    carried: BoolArray
    fresh: BoolArray
    confidence: float
    keyframe: bool
    refresh_reason: str | None
    keyframe_age: int
    keyframe_index: int | None
    query_scores: tuple[float, ...]
    cells_scored: int
    texture: Texture
    relevance: FloatArray
    flow: Flow | None = None
    parts: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    feeding: Feeding | None = None
    answers: tuple[Answer, ...] = ()
    objects: tuple[DetectedObject, ...] = ()
    region: tuple[float, float, float, float] | None = None
    quality: int = 0
    damaged: bool = False
    frame_ref: weakref.ref[Frame] | None = None

    def __post_init__(self) -> None:
        n = len(self.rows)
        for name in ("columns", "level", "score", "scorer", "query", "carried", "fresh"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {n} cells")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def frame(self) -> Frame:
        """Source frame, available until the stream moves on; keep a reference to use it later.

        Raises:
            ReferenceError: The stream has moved on and no reference to the frame was kept, or the patch set comes from
                records.
        """
        frame = self.frame_ref() if self.frame_ref is not None else None
        if frame is None:
            raise ReferenceError(
                f"frame {self.index} is no longer in memory; take patches.frame or patches.crops() inside the loop"
            )
        return frame

    def crops(self, size: int = CELL_PX) -> ByteArray:
        """Cut the chosen cells from the source frame and resize each to `size` pixels, about a fine cell's own side.

        A cell of level 1 or 2 covers 2x2 or 4x4 fine cells, so it keeps less detail, as the model sees it. One of level
        -1 (four tokens) has more detail than the default keeps; 64 shows it.

        Returns:
            `[N, size, size, 3]` uint8 RGB, in the order of `level`, `score` and `cells_xyxy`.

        Raises:
            ReferenceError: See `frame`.
        """
        rgb, crops = self.frame.rgb, np.empty((len(self), size, size, 3), np.uint8)
        for crop, (x0, y0, x1, y1) in zip(crops, np.rint(self.cells_xyxy).astype(int), strict=True):
            cell = rgb[y0:y1, x0:x1]
            shrinks = min(cell.shape[:2]) > size
            cv2.resize(cell, (size, size), dst=crop, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        return crops

    def without_texture(self) -> PatchSet:
        """Return the choice in some kilobytes, without the frame, the channels and the flow."""
        return replace(self, texture=Texture(self.grid.texture_wh, {}), flow=None, frame_ref=None)

    @property
    def tokens(self) -> int:
        """Cost of the choice in visual tokens."""
        return int(tokens_of(self.level).sum())

    @property
    def span(self) -> IntArray:
        """`[N]`, side of each chosen cell in fine cells."""
        return span_cells(self.level)

    @property
    def cells_xyxy(self) -> FloatArray:
        """`[N, 4]` rectangles in source pixels."""
        return self.grid.cells_xyxy(self.rows, self.columns, self.span)
