"""Figure: the cells of moving things, found by remembering motion and sharing it among cells of similar appearance.

Optical flow shows motion only at the outline and the textured parts of a thing, and only on frames on which it moves.
Two steps extend that, cell by cell, to the whole thing:

- *memory*: motion is averaged over some frames, carried along the flow, so that a thing that stops for a moment still
  counts as moving;
- *likeness*: ridge regression from a cell's appearance and position (colour, detail, position, through fixed random
  features after Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", 2007) to its motion, over the
  frames so far with fading weight. Cells that look like moving cells get a share of their motion; cells that look like
  their still surroundings lose theirs. Learning the appearance of moving things online, without supervision, is an idea
  of Papazoglou and Ferrari, "Fast Object Segmentation in Unconstrained Video" (2013).

Nothing is learned beforehand, and a scene in which nothing moves has no figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from arr_stream.motion.flow import Flow, carry
from arr_stream.texture.arrays import Array, as_float, constant, namespace, zeros
from arr_stream.texture.pixels import averaged, cell_bytes, cell_colours, solved
from arr_stream.types import FloatArray

CUES = 6
"""Red, green, blue, detail, row and column."""

FEATURES = 32
MOTION_MEMORY = 0.6
"""Share of the remembered motion that is kept from one frame to the next."""
LIKENESS_MEMORY = 0.95
"""Share of the regression's evidence that is kept from one frame to the next."""
RIDGE = 1e-2
"""Relative to the mean square of a feature."""

_BIAS_REACH = 2.0
LOOK_SCALE = 3.0
_PLACE_SCALE = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """State of the figure between two frames.

    Args:
        motion: `[H/8, W/8]` in [0, 1], motion averaged over the frames so far.
        gram: `[F, F]` and
        moment: `[F]`, the regression's evidence.
    """

    motion: Array
    gram: Array
    moment: Array

    @classmethod
    def nothing(cls, beside: Array, hw: tuple[int, int]) -> Figure:
        """Return an empty state, on the device of `beside`, for a first frame or after a cut; `hw` is an eighth of the
        texture's size."""
        size = FEATURES + 1
        return cls(zeros(beside, hw), zeros(beside, (size, size)), zeros(beside, (size,)))


def see_figure(figure: Figure, eighth: Array, detail: Array, motion: Array, flow: Flow | None) -> tuple[Figure, Array]:
    """Update the figure by a frame.

    Args:
        figure: The state before this frame.
        eighth: The picture at an eighth of the texture's size.
        detail: `[H/4, W/4]` its high-pass channel, in 255ths.
        motion: `[H/8, W/8]` in [0, 1], the motion channel.
        flow: To the frame before; None on the first frame and after a cut, which give nothing to learn from.

    Returns:
        The new state, and `[gh, gw]` in [0, 1]: confidence that each cell belongs to a moving object.
    """
    hw = motion.shape[0] // 4, motion.shape[1] // 4
    if flow is None:
        return figure, zeros(motion, hw)
    kept = carry(figure.motion, flow, outside=0.0)
    kept = kept + (1 - MOTION_MEMORY) * (motion - kept)
    moves, moved = averaged(motion, hw), averaged(kept, hw)
    seen = features(cues(eighth, detail, hw))
    gram, moment, alike = learn(figure.gram, figure.moment, seen, moves.reshape(-1))
    return Figure(kept, gram, moment), (moved + alike.clip(0, 1).reshape(hw)) / 2


def cues(eighth: Array, detail: Array, hw: tuple[int, int]) -> Array:
    """`[cells, CUES]` float32, each of the order of 1: means over cells, in whole 255ths."""
    xp = namespace(detail)
    look = cell_colours(eighth, hw) * (1 / 255)
    fine = as_float(cell_bytes(detail, hw)).reshape(-1, 1) * (1 / 255)
    place = constant(detail, places_of, hw)
    return xp.concatenate([(look - 0.5) * LOOK_SCALE, (fine - 0.1) * LOOK_SCALE, place], axis=1)


def features(cue: Array) -> Array:
    """`[cells, FEATURES + 1]` of `[cells, CUES]`: bounded random mixtures, and a constant."""
    mixture, bias = (constant(cue, _mixtures, part) for part in (0, 1))
    # The last column mixes nothing and is biased to 1.
    return (cue @ mixture + bias).clip(-1, 1)


def learn(gram: Array, moment: Array, seen: Array, moves: Array) -> tuple[Array, Array, Array]:
    """Update the ridge regression, with fading memory, by one frame.

    Args:
        gram: `[F, F]`, evidence so far.
        moment: `[F]`, the same.
        seen: `[cells, F]`.
        moves: `[cells]`.

    Returns:
        Both with this frame added, and `[cells]`, the motion predicted from each cell's appearance.
    """
    gram = LIKENESS_MEMORY * gram + seen.T @ seen
    moment = LIKENESS_MEMORY * moment + seen.T @ moves
    system = gram + constant(gram, np.identity, len(gram), np.float32) * (RIDGE * gram.diagonal().mean())
    return gram, moment, (seen @ solved(system, moment[:, None]))[:, 0]


@lru_cache(maxsize=8)
def places_of(hw: tuple[int, int]) -> FloatArray:
    """`[cells, 2]` row and column, each over [-1, 1]."""
    y, x = ((np.arange(side, dtype=np.float32) + 0.5) / side - 0.5 for side in hw)
    places: FloatArray = np.stack(np.broadcast_arrays(y[:, None], x[None]), axis=2).reshape(-1, 2)
    places = (places * _PLACE_SCALE).astype(np.float32)
    places.flags.writeable = False
    return places


@lru_cache(maxsize=4)
def _mixtures(part: int) -> FloatArray:
    """`[CUES, FEATURES + 1]` (part 0) and `[FEATURES + 1]`; the same in every process."""
    rng = np.random.default_rng(0)
    mixture = rng.normal(size=(CUES, FEATURES)).astype(np.float32)
    bias = rng.uniform(-_BIAS_REACH, _BIAS_REACH, FEATURES).astype(np.float32)
    return np.pad(bias, (0, 1), constant_values=1) if part else np.pad(mixture, ((0, 0), (0, 1)))
