"""What moves is a thing; `relevance/figure.py` on tensors.

Random features and regression are the same functions. The solver, `torch.linalg.cholesky_ex`, tells of its success in a
tensor instead of making the host wait for it; its ridge keeps the matrix positive definite.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.relevance.figure import FEATURES, LOOK_SCALE, MOTION_MEMORY, features, learn, places_of

_EIGHTH_PER_CELL = 4
_QUARTER_PER_CELL = 8


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """What is known of the figure, between two frames.

    Args:
        motion: `[H/8, W/8]` in [0, 1], motion averaged over the frames so far.
        gram: `[F, F]` and
        moment: `[F]`, the regression's evidence.
    """

    motion: Tensor
    gram: Tensor
    moment: Tensor

    @classmethod
    def nothing(cls, hw: tuple[int, int], device: torch.device) -> Figure:
        """On a first frame and after a cut; `hw` is an eighth of the texture's size."""
        size = FEATURES + 1
        zeros = (torch.zeros(shape, device=device) for shape in (hw, (size, size), (size,)))
        return cls(*zeros)


def cues(eighth: Tensor, detail: Tensor) -> Tensor:
    """What every cell looks like and where it is.

    Args:
        eighth: `[3, H/8, W/8]` the picture, whole numbers in [0, 255].
        detail: `[H/4, W/4]` in [0, 1], its high-pass channel.

    Returns:
        `[cells, CUES]`, as `relevance.figure.cues` gives it, which keeps means in whole 255ths.
    """
    look = F.avg_pool2d(eighth, _EIGHTH_PER_CELL).round_()
    fine = F.avg_pool2d(detail[None] * 255, _QUARTER_PER_CELL).round_()
    hw = (look.shape[1], look.shape[2])
    usual, places = _constants(hw, eighth.device)
    seen = (torch.cat([look, fine]).flatten(1).T * (1 / 255) - usual) * LOOK_SCALE
    return torch.cat([seen, places], dim=1)


def see(figure: Figure, cue: Tensor, motion: Tensor) -> tuple[Figure, Tensor]:
    """Take a frame that has a flow to the one before.

    Args:
        figure: With its motion carried to this frame.
        cue: `[cells, CUES]`.
        motion: `[H/8, W/8]` in [0, 1], the motion channel.

    Returns:
        What is known from now on, and `[gh, gw]` in [0, 1]: how surely each cell belongs to what moves.
    """
    remembered = figure.motion.lerp(motion, 1 - MOTION_MEMORY)
    moves, moved = F.avg_pool2d(torch.stack([motion, remembered]), _EIGHTH_PER_CELL)
    gram, moment, alike = learn(figure.gram, figure.moment, features(cue), moves.flatten())
    return Figure(remembered, gram, moment), (moved + alike.clamp(0, 1).view(moved.shape)) / 2


@lru_cache(maxsize=8)
def _constants(hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """`[4]` the usual look, and `[cells, 2]` rows and columns."""
    return torch.tensor([0.5, 0.5, 0.5, 0.1], device=device), torch.from_numpy(places_of(hw).copy()).to(device)
