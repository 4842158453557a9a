"""The three steps of a frame on a device, as pure functions that never wait for it.

    glance  frame -> reduced pictures, visual channels, change of colours
    follow  two frames -> flow -> what is remembered, moved to the present, what moves, and the figure of it
    choose  all of it and the queries -> cells, history, and a report for the host

Between them the host decides what only it can know: whether the scene was cut, and whether a keyframe is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.gpu.asking import DeviceAsked, DeviceScene, Task, ask_all
from arr_stream.gpu.camera import camera_flow, independent_motion, visible_structure
from arr_stream.gpu.figure import cues, see
from arr_stream.gpu.flow import DeviceFlow, estimate, to_raster
from arr_stream.gpu.memory import Moving, advanced, fixated, remembered
from arr_stream.gpu.pictures import DevicePictures
from arr_stream.gpu.scoring import Evidence, cell_table, reasons, score_cells
from arr_stream.gpu.selection import Choice, Seen, allocate, enlarged
from arr_stream.gpu.visual import DeviceVisual, visual_channels
from arr_stream.selection.allocation import COARSE_LEVEL
from arr_stream.types import FloatArray, Grid, IntArray

_COLOURS = 512
_EIGHTH_PER_CELL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Glance:
    """A frame by itself.

    Args:
        full: `[3, H, W]` uint8 at the texture's size; None where the frame itself serves.
        grey: `[H/2, W/2]` lightness; float32 in [0, 255], like the next two.
        quarter: `[3, H/4, W/4]`.
        eighth_grey: `[H/8, W/8]`.
        visual: Channels 6 to 12.
        structure: `[H/8, W/8]` in [0, 1], how far motion can be seen.
        cues: `[cells, CUES]` what every cell looks like and where it is.
        histogram: `[512]` share of the picture in each of 8x8x8 colours.
        change: `[]` share of the picture that the frame before does not account for; 1 for a first frame.
    """

    full: Tensor | None
    grey: Tensor
    quarter: Tensor
    eighth_grey: Tensor
    visual: DeviceVisual
    structure: Tensor
    cues: Tensor
    histogram: Tensor
    change: Tensor

    def pictures(self, rgb: Tensor, grid: Grid) -> DevicePictures:
        """The frame's pictures, for the texture, without making the full one again."""
        pictures = DevicePictures(rgb, grid)
        if self.full is not None:
            pictures.__dict__["full"] = self.full
        return pictures


def glance(rgb: Tensor, before: Tensor | None, grid: Grid) -> Glance:
    """Look at a frame.

    Args:
        rgb: `[H, W, 3]` uint8.
        before: Histogram of the frame before.
        grid: The frame's cells.
    """
    pictures = DevicePictures(rgb, grid)
    visual = visual_channels(pictures)
    histogram = colour_histogram(pictures.eighth)
    change = (before - histogram).abs().sum() / 2 if before is not None else histogram.sum()
    resized = pictures.full.shape[1:] != rgb.shape[:2]
    return Glance(
        full=pictures.full if resized else None,
        grey=pictures.grey,
        quarter=pictures.quarter,
        eighth_grey=pictures.eighth_grey,
        visual=visual,
        structure=visible_structure(pictures.eighth_grey),
        cues=cues(pictures.eighth, visual.fine[2]),
        histogram=histogram,
        change=change,
    )


def colour_histogram(rgb: Tensor) -> Tensor:
    """`[512]`: share of the picture `[3, h, w]` in [0, 255] in each of 8x8x8 colours."""
    red, green, blue = (rgb / 32).floor().clamp(0, 7).long()
    places = ((red << 6) + (green << 3) + blue).flatten()
    share = torch.full(places.shape, 1 / places.shape[0], device=rgb.device)
    return torch.zeros(_COLOURS, device=rgb.device).scatter_add_(0, places, share)


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """What a flow brings.

    Args:
        flow: To the frame before.
        moving: What is remembered, moved to the present.
        motion: `[H/8, W/8]` in [0, 1], channel 10.
        figure: `[gh, gw]` in [0, 1], how surely each cell belongs to what moves.
    """

    flow: DeviceFlow
    moving: Moving
    motion: Tensor
    figure: Tensor


def follow(
    previous_grey: Tensor,
    grey: Tensor,
    structure: Tensor,
    cue: Tensor,
    moving: Moving,
    preset: str,
    reduction: int,
) -> Followed:
    """Find the flow between two frames and move what is remembered along it.

    Args:
        previous_grey, grey: `[H/2, W/2]` in [0, 255].
        structure: `[H/8, W/8]` in [0, 1], how far motion can be seen on the present frame.
        cue: `[cells, CUES]` of the present frame.
        moving: As it was on the frame before.
        preset: A key of `motion.torch_flow.PRESETS`.
        reduction: The search runs on pictures so many times smaller.
    """
    hw = (moving.history.shape[1], moving.history.shape[2])
    if reduction > 1:
        smaller = (max(1, grey.shape[0] // reduction), max(1, grey.shape[1] // reduction))
        previous_grey, grey = to_raster(previous_grey, smaller), to_raster(grey, smaller)
    return move(estimate(previous_grey, grey, hw, preset), structure, cue, moving)


def move(flow: DeviceFlow, structure: Tensor, cue: Tensor, moving: Moving) -> Followed:
    """Move what is remembered along a flow, and learn what moves."""
    camera_px = camera_flow(flow.offset_px, flow.confidence)
    motion = torch.maximum(independent_motion(flow.offset_px, camera_px, structure), flow.residual)
    moved = advanced(moving, flow)
    known, figure = see(moved.figure, cue, motion)
    return Followed(flow, replace(moved, figure=known), motion, figure)


@dataclass(frozen=True, slots=True)
class Plan:
    """How cells are chosen.

    Args:
        grid: The cells.
        tokens: Cells to choose.
        coarse_most: Most coarse cells.
        novelty: `mark`, `skip` or `off`.
        weights: Of the scorers.
    """

    grid: Grid
    tokens: int
    coarse_most: int
    novelty: str
    weights: ScoringSettings


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The end of a frame.

    Args:
        report: All that the host is told, see `Report`.
        history: `[6, H/8, W/8]` as the next frame finds it.
        seen: What the model has by now.
        keep: What each query's scorer wants back.
    """

    report: Tensor
    history: Tensor
    seen: Seen
    keep: tuple[Any, ...]


def choose(
    scene: DeviceScene,
    evidence: Evidence,
    eighth_grey: Tensor,
    tasks: tuple[Task, ...],
    seen: Seen,
    plan: Plan,
) -> Chosen:
    """Answer the queries, score every cell, and choose."""
    grid = plan.grid
    asked = ask_all(tasks, scene)
    table = cell_table(evidence, grid.texture_wh)
    scored = score_cells(table, asked.combined.flatten(), evidence.figure.flatten(), plan.weights)
    score = scored.score.view(grid.rows, grid.columns)
    allowed = ~seen.known(eighth_grey) if plan.novelty == "skip" else torch.ones_like(score, dtype=torch.bool)
    choice = allocate(score, allowed, plan.tokens, plan.coarse_most)
    ending = remember(choice, asked, eighth_grey, evidence, seen, plan)
    report = written(choice, ending.fresh, reasons(scored, choice.cell, choice.coarse), score, asked, scene)
    return Chosen(report, ending.history, ending.seen, asked.keep)


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """What the next frame will know.

    Args:
        history: `[6, H/8, W/8]`.
        seen: What the model has by now.
        fresh: `[T]` bool: which of the chosen cells are new to it.
    """

    history: Tensor
    seen: Seen
    fresh: Tensor


def remember(
    choice: Choice,
    asked: DeviceAsked,
    eighth_grey: Tensor,
    evidence: Evidence,
    seen: Seen,
    plan: Plan,
) -> Ending:
    """What the next frame will know of this one."""
    fresh = torch.ones_like(choice.coarse)
    if plan.novelty != "off":
        seen, fresh = seen.send(choice, eighth_grey)
    selected = enlarged(choice.fine_map((plan.grid.rows, plan.grid.columns)), _EIGHTH_PER_CELL)
    changes = {
        "previous_relevance": enlarged(asked.combined, _EIGHTH_PER_CELL),
        "previous_saliency": evidence.visual.saliency,
        "fixation": fixated(evidence.history, selected),
    }
    return Ending(remembered(evidence.history, changes), seen, fresh)


_COLUMNS = 7
"""Numbers about each chosen cell in a report."""


def written(
    choice: Choice, fresh: Tensor, scorer: Tensor, score: Tensor, asked: DeviceAsked, scene: DeviceScene
) -> Tensor:
    """The report as one row of float32: whole numbers up to 2**24 are exact in it."""
    cells = torch.stack(
        [
            choice.cell.float(),
            choice.coarse.float(),
            choice.score,
            scorer.float(),
            asked.query.flatten()[choice.cell].float(),
            asked.carried.flatten()[choice.cell].float(),
            fresh.float(),
        ]
    )
    trail = scene.keyframe_trail
    confidence = trail.confidence.mean() if trail is not None else score.new_zeros(())
    head = torch.stack([choice.count.float(), confidence])
    return torch.cat([head, asked.relevance.flatten(1).amax(1), score.flatten(), cells.flatten()])


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What the host is told of a frame, read from one row of numbers.

    Args:
        confidence: Mean trust in what was carried.
        query_scores: Highest relevance of any cell to each query.
        relevance: `[gh, gw]` scores of all cells.
        cell: `[N]` int32, top-left fine cell of each chosen one, row by row; the others as in `PatchSet`.
    """

    confidence: float
    query_scores: tuple[float, ...]
    relevance: FloatArray
    cell: IntArray
    level: IntArray
    score: FloatArray
    scorer: IntArray
    query: IntArray
    carried: npt.NDArray[np.bool_]
    fresh: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, row: FloatArray, queries: int, grid: Grid) -> Report:
        count, first = int(row[0]), 2 + queries
        relevance = row[first : first + grid.cells].reshape(grid.rows, grid.columns).copy()
        cell, coarse, score, scorer, query, carried, fresh = row[first + grid.cells :].reshape(_COLUMNS, -1)[:, :count]
        return cls(
            confidence=float(row[1]),
            query_scores=tuple(row[2:first].tolist()),
            relevance=relevance,
            cell=cell.astype(np.int32),
            level=(coarse * COARSE_LEVEL).astype(np.int32),
            score=score.copy(),
            scorer=scorer.astype(np.int32),
            query=np.where(coarse > 0, -1, query).astype(np.int32),
            carried=carried > 0,
            fresh=fresh > 0,
        )
