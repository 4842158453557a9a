"""EVS and VidCom2 against the same formulas written out cell by cell, without a line in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arr_stream.selection.allocation import Allocation
from arr_stream.types import Grid
from benchmarks.rivals import RULES, Clip
from benchmarks.rivals.base import PIXELS_A_CELL

Vector = Sequence[float]
Frames = list[list[Vector]]
Kept = set[tuple[int, int]]


def drawn(seed: int, frames: int, rows: int, columns: int, channels: int) -> tuple[Clip, Frames]:
    """Features that hold still in part, drift in part, and jump once; as a clip, and as lists of cells."""
    draw = np.random.default_rng(seed)
    features = np.repeat(draw.normal(size=(1, rows, columns, channels)), frames, axis=0)
    features += np.cumsum(draw.normal(size=features.shape) * draw.choice([0.02, 0.3], (1, rows, columns, 1)), axis=0)
    features[draw.integers(frames) :] += draw.normal(size=channels)
    features = features.astype(np.float32)
    rgb = np.zeros((frames, rows * PIXELS_A_CELL, columns * PIXELS_A_CELL, 3), np.uint8)
    made = Clip(Grid((columns * 32, rows * 32), rows, columns), rgb, features)
    return made, features.reshape(frames, rows * columns, channels).astype(float).tolist()


def kept(chosen: list[Allocation], columns: int) -> Kept:
    """Frame and flat index of every chosen cell."""
    return {
        (index, int(row) * columns + int(column))
        for index, cells in enumerate(chosen)
        for row, column in zip(cells.rows, cells.columns, strict=True)
    }


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def length(a: Vector) -> float:
    return math.sqrt(dot(a, a))


def mean(vectors: Sequence[Vector]) -> Vector:
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


# ---- EVS


def plain_evs(frames: Frames, share: float) -> Kept:
    cells = len(frames[0])
    scored = [(255.0, 0, cell) for cell in range(cells)]
    for index in range(1, len(frames)):
        for cell in range(cells):
            before, now = frames[index - 1][cell], frames[index][cell]
            scored.append((1 - dot(before, now) / (length(before) * length(now)), index, cell))
    scored.sort(key=lambda entry: -entry[0])
    count = max(cells, int(len(scored) * (1 - (1 - share))))
    return {(index, cell) for _, index, cell in scored[:count]}


@given(
    seed=st.integers(0, 999),
    frames=st.integers(1, 6),
    rows=st.integers(1, 4),
    columns=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_evs_is_its_formula(seed: int, frames: int, rows: int, columns: int, data: st.DataObject) -> None:
    clip, plain = drawn(seed, frames, rows, columns, 6)
    tokens = data.draw(st.integers(1, rows * columns))
    chosen = RULES["evs"].choose(clip, tokens)
    assert kept(chosen, columns) == plain_evs(plain, tokens / (rows * columns))


# ---- VidCom2


def kernel_sum(a: Vector, b: Vector) -> float:
    squared = math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return math.fsum(math.exp(-squared / (2 * width)) for width in (1 / 8, 1 / 4, 1 / 2, 1, 2))


def plain_likeness(frames: Frames) -> tuple[list[Vector], list[Vector]]:
    flat = [vector for frame in frames for vector in frame]
    middle = mean(flat)
    variances = [math.fsum((v[c] - middle[c]) ** 2 for v in flat) for c in range(len(middle))]
    quiet = sorted(range(len(middle)), key=lambda c: variances[c])[: max(1, len(middle) // 2)]
    units = []
    for frame in frames:
        cut = [[vector[c] for c in quiet] for vector in frame]
        units.append([[x / max(length(vector), 1e-12) for x in vector] for vector in cut])
    video = mean([vector for frame in units for vector in frame])
    to_video = [[kernel_sum(vector, video) for vector in frame] for frame in units]
    centres = [mean(frame) for frame in units]
    pairs = zip(units, centres, strict=True)
    return to_video, [[kernel_sum(vector, centre) for vector in frame] for frame, centre in pairs]


def plain_vidcom2(frames: Frames, tokens: int) -> Kept:
    cells, number = len(frames[0]), len(frames)
    to_video, to_frame = plain_likeness(frames)
    both = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(to_video, to_frame, strict=True)]
    uniqueness = [-math.fsum(scores) / cells for scores in to_video]
    raised = [math.exp((value - max(uniqueness)) / 0.01) for value in uniqueness]
    chosen: Kept = set()
    for index in range(number):
        ratio = min(1.0, tokens / cells * (1 + raised[index] / math.fsum(raised) - 1 / number))
        count = min(cells, max(1, round(ratio * cells)))
        order = sorted(range(cells), key=lambda cell: both[index][cell])
        chosen |= {(index, cell) for cell in order[:count]}
    everything = [(index, cell) for index in range(number) for cell in range(cells)]
    while len(chosen) > tokens * number:
        chosen.remove(max(chosen, key=lambda at: both[at[0]][at[1]]))
    while len(chosen) < tokens * number:
        chosen.add(min((at for at in everything if at not in chosen), key=lambda at: both[at[0]][at[1]]))
    return chosen


@given(
    seed=st.integers(0, 999),
    frames=st.integers(1, 6),
    rows=st.integers(1, 4),
    columns=st.integers(1, 5),
    channels=st.integers(2, 9),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_vidcom2_is_its_formula(
    seed: int, frames: int, rows: int, columns: int, channels: int, data: st.DataObject
) -> None:
    # Two cells alone lie equally far from their mean: which is kept is a matter of rounding.
    assume((frames, rows * columns) != (1, 2))
    clip, plain = drawn(seed, frames, rows, columns, 2 * channels)
    tokens = data.draw(st.integers(1, rows * columns))
    chosen = RULES["vidcom2"].choose(clip, tokens)
    assert kept(chosen, columns) == plain_vidcom2(plain, tokens)
