"""Scores of all cells of a frame on a device.

Every cell is scored: on a device the cascade, which scores regions first, would cost more than it saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.gpu.memory import Trail
from arr_stream.gpu.visual import DeviceVisual
from arr_stream.gpu.warp import warp
from arr_stream.motion.memory import HISTORY_CHANNELS
from arr_stream.relevance.balance import balance_tensions
from arr_stream.relevance.scorers import CHANNEL_NAMES, Sample
from arr_stream.texture.array import CELL_LEVEL, Plane
from arr_stream.texture.visual import eccentricity
from arr_stream.types import SCORERS


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What cells are scored by, beside queries.

    Args:
        visual: This frame's own channels.
        motion: `[H/8, W/8]` in [0, 1], channel 10.
        history: `[6, H/8, W/8]`, channels 34 to 39.
        figure: `[gh, gw]` in [0, 1], how surely each cell belongs to what moves.
        text: `[h, w]` how surely something is written, on the frame that was read; None before any was.
        text_trail: The way back to that frame.
    """

    visual: DeviceVisual
    motion: Tensor
    history: Tensor
    figure: Tensor
    text: Tensor | None = None
    text_trail: Trail | None = None


def cell_table(evidence: Evidence, texture_wh: tuple[int, int]) -> Tensor:
    """`[cells, len(CHANNEL_NAMES)]`: the channels that scorers read, each the mean over its cell.

    Args:
        evidence: What there is to read.
        texture_wh: Size in texture pixels.
    """
    visual, motion = evidence.visual, evidence.motion
    eighth = torch.stack([visual.saliency, motion, visual.edge_distance, _eccentricity(texture_wh, motion.device)])
    by_name = dict(zip(("edge_rising", "edge_falling", "high_pass"), _means(visual.fine, texture_wh), strict=True))
    coarse = _means(torch.cat([eighth, evidence.history]), texture_wh)
    by_name.update(zip(("saliency", "motion", "edge_distance", "eccentricity", *HISTORY_CHANNELS), coarse, strict=True))
    by_name["text"] = _text(evidence, texture_wh)
    return torch.stack([by_name[name].flatten() for name in CHANNEL_NAMES], dim=1)


def _text(evidence: Evidence, texture_wh: tuple[int, int]) -> Tensor:
    """`[gh, gw]`: what was read on an earlier frame, carried to this one."""
    if evidence.text is None or evidence.text_trail is None:
        return torch.zeros_like(evidence.figure)
    return _means(warp(evidence.text, evidence.text_trail.flow(), outside=0.0)[None], texture_wh)[0]


def _means(planes: Tensor, texture_wh: tuple[int, int]) -> Tensor:
    # The texture's own operator; first=0 stands for any channels that are not ids.
    return Plane(0, planes).mip(texture_wh, CELL_LEVEL)


@lru_cache(maxsize=8)
def _eccentricity(texture_wh: tuple[int, int], device: torch.device) -> Tensor:
    """At an eighth; the texture holds it at a quarter, where it is made once a size, with equal means over cells."""
    width, height = texture_wh
    quarter = torch.from_numpy(eccentricity((width // 4, height // 4))).to(device)
    return torch.nn.functional.avg_pool2d(quarter[None], 2)[0]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Scores of all cells.

    Args:
        score: `[cells]` in [0, 1].
        scorer: `[cells]` int64, index into `SCORERS`: which way of knowing spoke loudest.
    """

    score: Tensor
    scorer: Tensor


def score_cells(table: Tensor, relevance: Tensor, figure: Tensor, weights: ScoringSettings) -> Scored:
    """Scores of cells.

    Args:
        table: `[cells, len(CHANNEL_NAMES)]` as `cell_table` gives it.
        relevance: `[cells]` in [0, 1].
        figure: `[cells]` in [0, 1].
        weights: Of the scorers.
    """
    sample = Sample(table, relevance, figure, figure.max())
    answered = relevance.max().clamp(0, 1)
    # The balance is linear in its commitment, and commitment is a value on the device, which the balance, asking for a
    # number, would wait for: so both ends are made and mixed here.
    idle, led = (balance_tensions(sample, end, weights).by_scorer for end in (0.0, 1.0))
    by_scorer = idle + answered**weights.commitment_power * (led - idle)
    return Scored(by_scorer.sum(dim=0).clamp(0, 1), by_scorer.argmax(dim=0))


def reasons(scored: Scored, cell: Tensor, coarse: Tensor) -> Tensor:
    """`[T]` int64: why each chosen cell was chosen, index into `SCORERS`."""
    return torch.where(coarse, SCORERS.index("context"), scored.scorer[cell])
