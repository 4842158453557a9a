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
from arr_stream.evaluation.footage import tight_box
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SeenCells
from arr_stream.types import BoolArray, ByteArray, FloatArray, Grid, IntArray
from benchmarks.cell_choices import shown_detail
from benchmarks.scenes.camera import Camera, camera_kind
from benchmarks.scenes.footage import Footage, moved_truths


@dataclass(frozen=True, slots=True, eq=False)
class KnownClip:
    """Ground truth of a clip of `T` frames, by cell.

    Args:
        grid: Its cells.
        camera: Kind of camera motion, as given or as measured.
        region_xywh: Tight box of the object on the first frame, in pixels; None where none is there, or several are.
        learning_frames: First frames that are not counted.
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
    learning_frames: int = 1

    @property
    def frames(self) -> int:
        return len(self.eighth_grey)

    def counted(self, name: str) -> IntArray:
        """`[T, gh, gw]`, the pixels of a truth on the frames that count."""
        return self.counts[name][self.learning_frames :]


TRUTHS = ("object", "moving", "text")


def known_clip(footage: Footage, max_pixels: int) -> KnownClip:
    """Look through a clip once.

    Args:
        footage: The clip.
        max_pixels: As `grid.max_pixels`.

    Raises:
        EvaluationDataError: Masks that do not fit the frames, fewer than two frames, an object that is on none of the
            frames that count, or a single one that is not on the first frame.
    """
    counts: dict[str, list[IntArray | None]] = {name: [] for name in TRUTHS}
    homographies, eighths = [], []
    grid: Grid | None = None
    region = None
    for moved in moved_truths(footage):
        if grid is None:
            grid = Grid.for_size(moved.grey.shape[::-1], max_pixels=max_pixels)
            object_mask = moved.truth.object
            if object_mask is not None and object_mask.any() and footage.objects != "several":
                region = tight_box(object_mask)
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
        learning_frames=footage.learning_frames,
    )
    unknown = region is None and footage.objects == "one"
    if "object" in known.counts and (unknown or not known.counted("object").any()):
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
    """Coverage of one series of choices: means over the counted frames that have any of the truth.

    Args:
        object, moving, text: Share of the pixels in fine cells; None where the clip does not tell.
        detail: Share of the pixels of the object (else of the text) that are left when coarse cells count by their
            resolution: a quarter at level 1, a sixteenth at level 2.
        current: Share of the object (else of the text) in cells that are shown fine now, or were shown fine earlier
            and have not changed since, by the same measure as `selection.novelty`.
        cells_on_object: Share of the fine cells that hold any of the object.
        context: Share of the frame in cells of any level. The best score, which is of no one choice, has None here and
            for `detail`, `current` and `cells_on_object`.
        tokens: Tokens a frame, the first included.
        later_tokens: Tokens a frame on the frames that count.
    """

    object: float | None
    moving: float | None
    text: float | None
    detail: float | None
    current: float | None
    cells_on_object: float | None
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
    asked = "object" if "object" in known.counts else "text"
    counts = [cells.tokens for cells in choices]
    return Score(
        object=_share(known, "object", fine),
        moving=_share(known, "moving", fine),
        text=_share(known, "text", fine),
        detail=_share(known, asked, detail),
        current=_share(known, asked, _current(known, choices)) if asked in known.counts else None,
        cells_on_object=_cells_on_object(known, fine),
        context=float(np.mean(context[known.learning_frames :].sum(axis=(1, 2)) / known.cell_pixels.sum())),
        tokens=float(np.mean(counts)),
        later_tokens=float(np.mean(counts[known.learning_frames :])),
    )


def best_score(known: KnownClip, tokens: int) -> Score:
    """The most that so many fine cells on each frame can show of each truth, which need not be the same cells."""
    best = {
        name: float(np.mean([best_share(pixels, tokens) for pixels in counted if pixels.any()]))
        for name in known.counts
        if (counted := known.counted(name)).any()
    }
    return Score(
        object=best.get("object"),
        moving=best.get("moving"),
        text=best.get("text"),
        detail=None,
        current=None,
        cells_on_object=None,
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


def _share(known: KnownClip, name: str, shown: FloatArray) -> float | None:
    """Return the share of a truth's pixels that is shown, as a mean over the frames that count and have any of it."""
    if name not in known.counts:
        return None
    counts = known.counted(name)
    return _mean_share((counts * shown[known.learning_frames :]).sum(axis=(1, 2)), counts.sum(axis=(1, 2)))


def _cells_on_object(known: KnownClip, fine: BoolArray) -> float | None:
    """Return the share of the fine cells that hold any of the object, over the frames that count and have any of it."""
    if "object" not in known.counts:
        return None
    holds, fine = known.counted("object") > 0, fine[known.learning_frames :]
    return _mean_share((holds & fine).sum(axis=(1, 2)), fine.sum(axis=(1, 2)) * holds.any(axis=(1, 2)))


def _mean_share(parts: IntArray, wholes: IntArray) -> float | None:
    there = wholes > 0
    return float(np.mean(parts[there] / wholes[there])) if there.any() else None
