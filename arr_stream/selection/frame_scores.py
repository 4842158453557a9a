"""Scores of a frame's cells: one step on the frame's device, from its pictures, motion and queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from arr_stream.config import ScoringSettings
from arr_stream.motion.flow import Flow
from arr_stream.motion.keyframe_results import carried_to_cells
from arr_stream.relevance.figure import Figure, see_figure
from arr_stream.relevance.kinds.base import QueryContext, QueryTask
from arr_stream.relevance.query_scorers import answer_queries
from arr_stream.relevance.scorers import Change, score_cells
from arr_stream.selection.selector import CellValues
from arr_stream.texture.array import LazyPlane, Plane
from arr_stream.texture.arrays import Array
from arr_stream.texture.pixels import cell_difference
from arr_stream.types import Grid


@dataclass(frozen=True, slots=True, eq=False)
class ScoringInputs:
    """Inputs of the scores of a frame's cells; see also `see_figure`.

    Args:
        context: Inputs of the queries' tasks, without the figure.
        planes: Inputs of the scores; None if regions are scored first.
        weights: Of the scorers.
        known, change: See `Background` and `motion_evidence`; `change` is `[H/8, W/8]`.
        sent: `[H/8, W/8]` lightness of the cells as sent to the model; None if no setting compares it.
        small_text: Text too small for the texture on an earlier frame, and the flow back to that frame.
    """

    figure: Figure
    context: QueryContext
    eighth: Array
    eighth_grey: Array
    detail: Array
    tasks: tuple[QueryTask, ...]
    planes: Mapping[int, Plane | LazyPlane] | None
    weights: ScoringSettings
    known: Array
    change: Array
    sent: Array | None
    small_text: tuple[Array, Flow] | None
    grid: Grid


@dataclass(frozen=True, slots=True, eq=False)
class ScoredFrame:
    """Inputs of the selection, and the state that the figure and the scorers keep."""

    figure: Figure
    states: tuple[Any, ...]
    values: CellValues


def change_of_cells(change: Array, known: Array, grid: Grid) -> Change:
    """Return the evidence of change for each cell; for the arguments see `motion_evidence`."""
    return Change.of(change, (grid.rows, grid.columns), known[0, 0])


def score_frame(inputs: ScoringInputs) -> ScoredFrame:
    """Compute motion, the answers to the queries and the scores of each cell."""
    context = inputs.context
    figure, moving = see_figure(inputs.figure, inputs.eighth, inputs.detail, context.eighth_motion, context.flow)
    context = replace(context, figure=moving)
    relevance, states = answer_queries(inputs.tasks, context, (inputs.grid.rows, inputs.grid.columns))
    change = change_of_cells(inputs.change, inputs.known, inputs.grid)
    scores = difference = small_text = None
    if inputs.planes is not None:
        scores = score_cells(inputs.planes, inputs.grid.texture_wh, relevance, moving, change, inputs.weights)
    if inputs.sent is not None:
        difference = cell_difference(inputs.eighth_grey, inputs.sent)
    if inputs.small_text is not None:
        small_text = carried_to_cells(*inputs.small_text)
    # The host needs the change only if it scores cells itself.
    left = change if inputs.planes is None else None
    return ScoredFrame(figure, states, CellValues(relevance, moving, difference, scores, small_text, left))
