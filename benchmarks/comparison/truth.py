"""Truths by cell, and the score of a choice of cells against them.

A mask is only needed as the number of its pixels in each cell, so that whole clips fit in little memory and every rule
is scored on exactly the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.coverage import best_share, pixels_by_cell
from arr_stream.evaluation.davis import tight_box
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SeenCells
from arr_stream.types import ByteArray, FloatArray, Grid, IntArray
from benchmarks.cell_choices import shown_detail
from benchmarks.scenes.camera import Camera, camera_kind
from benchmarks.scenes.footage import Footage, moved_truths


@dataclass(frozen=True, slots=True, eq=False)
class KnownClip:
    """What is known of a clip of `T` frames, by cell.

    Args:
        grid: Its cells.
        camera: What its camera does, as given or as measured.
        region_xywh: Tight box of the object on the first frame, in pixels; None where there is no object.
        counts: For each truth (`object`, `moving`, `text`) that the clip has: `[T, gh, gw]` int32, pixels of it in each
            cell; zeros where a frame has none of it.
        cell_pixels: `[gh, gw]` int32, all pixels of each cell.
        eighth_grey: `[T, gh * 4, gw * 4]` uint8, lightness at an eighth of the texture's size.
    """

    grid: Grid
    camera: Camera
    region_xywh: tuple[float, float, float, float] | None
    counts: dict[str, IntArray]
    cell_pixels: IntArray
    eighth_grey: ByteArray

    @property
    def frames(self) -> int:
        return len(self.eighth_grey)


TRUTHS = ("object", "moving", "text")


def known_clip(footage: Footage, max_pixels: int) -> KnownClip:
    """Look through a clip once.

    Args:
        footage: The clip.
        max_pixels: As `grid.max_pixels`.

    Raises:
        EvaluationDataError: Masks that do not fit the frames, fewer than two frames, or an object that is not on the
            first frame and a later one.
    """
    counts: dict[str, list[IntArray | None]] = {name: [] for name in TRUTHS}
    homographies, eighths = [], []
    grid: Grid | None = None
    region = None
    for moved in moved_truths(footage):
        if grid is None:
            grid = Grid.for_size(moved.grey.shape[::-1], max_pixels=max_pixels)
            object_mask = moved.truth.object
            region = tight_box(object_mask) if object_mask is not None and object_mask.any() else None
        for name, mask in zip(TRUTHS, (moved.truth.object, moved.moving, moved.truth.text), strict=True):
            counts[name].append(None if mask is None else pixels_by_cell(mask, (grid.rows, grid.columns)))
        eighths.append(cv2.resize(moved.grey, (grid.columns * 4, grid.rows * 4), interpolation=cv2.INTER_AREA))
        if moved.homography is not None:
            homographies.append(moved.homography)
    if grid is None or len(eighths) < 2:
        raise EvaluationDataError(f"{footage.name}: {len(eighths)} frames", remedy="a comparison needs two or more")
    whole = np.ones(grid.size_wh[::-1], bool)
    known = KnownClip(
        grid=grid,
        camera=footage.camera or camera_kind(homographies, grid.size_wh),
        region_xywh=region,
        counts={name: _stack(each, grid) for name, each in counts.items() if any(one is not None for one in each)},
        cell_pixels=pixels_by_cell(whole, (grid.rows, grid.columns)),
        eighth_grey=np.stack(eighths),
    )
    if "object" in known.counts and (region is None or not known.counts["object"][1:].any()):
        raise EvaluationDataError(
            f"{footage.name}: the object is not on the first frame and a later one",
            remedy="start where it is visible, or give more frames",
        )
    return known


def _stack(each: Sequence[IntArray | None], grid: Grid) -> IntArray:
    absent = np.zeros((grid.rows, grid.columns), np.int32)
    return np.stack([absent if one is None else one for one in each])


@dataclass(frozen=True, slots=True)
class Score:
    """What some choices of cells show, means over the frames after the first on which there is any of it.

    Args:
        object, moving, text: Share of the pixels in fine cells; None where the clip does not tell.
        detail: Share of the pixels of the object (else of the text) that are left when coarse cells count by their
            resolution: a quarter at level 1, a sixteenth at level 2.
        current: Share of the object (else of the text) in cells that are shown fine now, or were shown fine earlier
            and have not changed since, by the same measure as `selection.novelty`.
        context: Share of the frame in cells of any level; None, as `detail` and `current`, for the best score, which is
            of no one choice.
        tokens: Tokens a frame, the first included.
        later_tokens: Tokens a frame after the first, which are the frames that are scored.
    """

    object: float | None
    moving: float | None
    text: float | None
    detail: float | None
    current: float | None
    context: float | None
    tokens: float
    later_tokens: float


def score_choices(known: KnownClip, choices: Sequence[Allocation]) -> Score:
    """Score one choice of cells for each frame.

    Raises:
        ValueError: Not one choice a frame.
    """
    if len(choices) != known.frames:
        raise ValueError(f"{len(choices)} choices for {known.frames} frames")
    shape = known.grid.rows, known.grid.columns
    detail = np.stack([shown_detail(cells, shape) for cells in choices])
    fine = detail == 1
    context = (detail > 0) * known.cell_pixels
    asked = known.counts.get("object", known.counts.get("text"))
    counts = [cells.tokens for cells in choices]
    return Score(
        object=_share(known.counts.get("object"), fine),
        moving=_share(known.counts.get("moving"), fine),
        text=_share(known.counts.get("text"), fine),
        detail=_share(asked, detail),
        current=_share(asked, _current(known, choices)) if asked is not None else None,
        context=float(np.mean(context[1:].sum(axis=(1, 2)) / known.cell_pixels.sum())),
        tokens=float(np.mean(counts)),
        later_tokens=float(np.mean(counts[1:])),
    )


def best_score(known: KnownClip, tokens: int) -> Score:
    """The most that so many fine cells on each frame can show of each truth, which need not be the same cells."""
    best = {
        name: float(np.mean([best_share(pixels, tokens) for pixels in counts[1:] if pixels.any()]))
        for name, counts in known.counts.items()
        if counts[1:].any()
    }
    return Score(
        object=best.get("object"),
        moving=best.get("moving"),
        text=best.get("text"),
        detail=None,
        current=None,
        context=None,
        tokens=tokens,
        later_tokens=tokens,
    )


def _current(known: KnownClip, choices: Sequence[Allocation]) -> FloatArray:
    """`[T, gh, gw]`, 1 where a cell as it is now has been shown fine."""
    seen, current = SeenCells(known.grid), []
    for cells, eighth in zip(choices, known.eighth_grey, strict=True):
        seen.send(cells, eighth)
        current.append(seen.known(eighth).astype(np.float32))
    return np.stack(current)


def _share(counts: IntArray | None, shown: FloatArray) -> float | None:
    """Mean over the frames after the first of the share of the counted pixels that is shown."""
    if counts is None:
        return None
    totals = counts[1:].sum(axis=(1, 2))
    there = totals > 0
    if not there.any():
        return None
    hit = (counts[1:] * shown[1:]).sum(axis=(1, 2))
    return float(np.mean(hit[there] / totals[there]))
