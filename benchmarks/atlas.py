"""What a number of tokens can still say about a frame when each is the mean of some cells.

Tokens of an even grid, and of atlases over several divisions into regions, are compared by two shares in [0, 1]:

- *detail kept*: how much of the variance of the cells' looks (mean and spread of Lab colour) the tokens' means keep;
- *object told apart*: intersection over union of the object with the tokens that mostly lie on it, both counted in
  cells. More than that no choice of whole tokens can say about the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import cv2
import numpy as np

from arr_stream.evaluation.davis import Sequence as Footage
from arr_stream.evaluation.davis import check_mask
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.keyframes.base import Clusterer, KeyframeInput
from arr_stream.selection.atlas import (
    AtlasTokens,
    SemanticAtlas,
    build_atlas,
    canonical,
    hybrid,
    lay_out,
    proportional,
    tiers,
)
from arr_stream.selection.quotas import fixed_quota, share_out
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.visual import high_pass
from arr_stream.texture.visual import saliency as salient
from arr_stream.types import BoolArray, FloatArray, Frame, Grid, IntArray

LayOut = Callable[[SemanticAtlas, int], IntArray]
"""Gives `[gh, gw]` the token of every cell, -1 for none."""


def even_grid(atlas: SemanticAtlas, tokens: int) -> IntArray:
    """The frame as one region: places that know nothing of what they show."""
    whole = atlas.divided(np.zeros(atlas.hw, np.int32))
    return lay_out(whole, np.array([tokens], np.int32)).token_of_cell


def by_size(atlas: SemanticAtlas, tokens: int) -> IntArray:
    """A token a region while they last, the largest first, the others by size: what is gained by not mixing alone."""
    sizes = atlas.regions.sizes
    one = fixed_quota(sizes, sizes.astype(np.float32), tokens, each=1)
    quota = one + share_out(sizes, sizes - one, tokens - int(one.sum()))
    return lay_out(atlas, quota).token_of_cell


def _of(make: Callable[[SemanticAtlas, int], AtlasTokens]) -> LayOut:
    return lambda atlas, tokens: make(atlas, tokens).token_of_cell


LAYOUTS: dict[str, LayOut] = {
    "even grid": even_grid,
    "by size": by_size,
    "proportional": _of(proportional),
    "tiers": _of(tiers),
    "hybrid": _of(hybrid),
    "canonical": lambda atlas, tokens: canonical(atlas, regions=max(1, tokens // 3)).token_of_cell,
}


@dataclass(frozen=True, slots=True)
class AtlasRow:
    """One way to lay tokens out over one division, means over frames.

    Args:
        clusters: Who divided the frame.
        layout: A key of `LAYOUTS`.
        tokens: Budget.
        detail: Share of the variance of the cells' looks kept.
        object_iou: The object told apart.
    """

    clusters: str
    layout: str
    tokens: int
    detail: float
    object_iou: float


@dataclass(frozen=True, slots=True)
class AtlasReport(Report):
    """All rows."""

    rows: tuple[AtlasRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        """A line for each way to lay tokens out, the budgets beside each other."""
        budgets = list(dict.fromkeys(row.tokens for row in self.rows))
        found = {(row.clusters, row.layout, row.tokens): (row.detail, row.object_iou) for row in self.rows}
        rows = [
            (*ways, *chain(*(found.get((*ways, tokens), (None, None)) for tokens in budgets)))
            for ways in dict.fromkeys((row.clusters, row.layout) for row in self.rows)
        ]
        headings = chain(*((f"{tokens} tokens: detail", "IoU") for tokens in budgets))
        return (ResultTable("Tokens as means over cells", ("regions", "tokens laid out", *headings), tuple(rows)),)


def evaluate_atlas(
    sequences: Sequence[Footage],
    clusterers: Mapping[str, Clusterer],
    budgets: Sequence[int],
    frames_each: int,
    layouts: Mapping[str, LayOut] = LAYOUTS,
) -> AtlasReport:
    """Every layout over every division, on some frames of each sequence; importance is saliency alone.

    Raises:
        EvaluationDataError: Masks that do not fit the frames.
    """
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for footage in sequences:
        frames, masks = footage.frames(), footage.masks()
        for index in np.linspace(0, len(frames) - 1, frames_each).round().astype(int).tolist():
            frame, mask = frames[index], masks[index]
            check_mask(footage, index, mask, frame.size_wh)
            if not mask.any():
                continue
            grid = Grid.for_size(frame.size_wh)
            looks, saliency, covered = _cells(frame, grid, mask)
            for name, clusterer in clusterers.items():
                atlas = build_atlas(clusterer.cluster(KeyframeInput(frame, grid)), grid, saliency=saliency)
                for layout, make in layouts.items():
                    for tokens in budgets:
                        token_of_cell = make(atlas, min(tokens, grid.cells))
                        scores = detail_kept(looks, token_of_cell), object_iou(covered, token_of_cell)
                        found.setdefault((name, layout, tokens), []).append(scores)
    return AtlasReport(tuple(AtlasRow(*key, *np.mean(values, axis=0).tolist()) for key, values in found.items()))


def _cells(frame: Frame, grid: Grid, mask: BoolArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Looks `[6, gh, gw]`, saliency `[gh, gw]` and the share of each cell that the object covers."""
    pictures = Pictures(frame, grid)
    size = (grid.columns, grid.rows)
    lab = cv2.cvtColor(pictures.quarter, cv2.COLOR_RGB2LAB).astype(np.float32)
    mean = cv2.resize(lab, size, interpolation=cv2.INTER_AREA)
    square = cv2.resize(lab**2, size, interpolation=cv2.INTER_AREA)
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    saliency = cv2.resize(salient(pictures.eighth, high_pass(pictures.grey)), size, interpolation=cv2.INTER_AREA)
    covered = cv2.resize(mask.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    shape = (grid.rows, grid.columns)
    looks = np.concatenate([mean, spread], axis=-1).reshape(*shape, 6).transpose(2, 0, 1)
    return looks.astype(np.float32), saliency.reshape(shape), covered.reshape(shape)


def detail_kept(looks: FloatArray, token_of_cell: IntArray) -> float:
    """Share of the variance of `[D, gh, gw]` that is left when each cell has its token's mean, in [0, 1].

    Cells without a token have the mean of the frame.
    """
    values = looks.reshape(len(looks), -1).astype(np.float64)
    values = values - values.mean(axis=1, keepdims=True)
    token = token_of_cell.ravel()
    shown = token >= 0
    counts = np.maximum(np.bincount(token[shown]), 1)
    told = np.zeros_like(values)
    for channel, of_cell in zip(values, told, strict=True):
        of_cell[shown] = (np.bincount(token[shown], channel[shown]) / counts)[token[shown]]
    return 1 - float(((values - told) ** 2).sum() / max((values**2).sum(), 1e-9))


def object_iou(covered: FloatArray, token_of_cell: IntArray) -> float:
    """IoU of the object and the tokens of which at least half lies on it, in cells; `covered` is `[gh, gw]`."""
    token = token_of_cell.ravel()
    shown = token >= 0
    share = np.bincount(token[shown], covered.ravel()[shown]) / np.maximum(np.bincount(token[shown]), 1)
    inside = np.zeros(token.size, bool)
    inside[shown] = share[token[shown]] >= 0.5
    common = float(covered.ravel()[inside].sum())
    return common / (float(inside.sum()) + float(covered.sum()) - common)
