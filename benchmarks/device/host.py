"""The stages of a frame on the CPU beside what the machine's memory allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.statistics import Timing
from arr_stream.evaluation.tables import ResultTable
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.figure import FEATURES
from arr_stream.types import Grid
from benchmarks.scenes.clips import panning_frames, usual_queries


@dataclass(frozen=True, slots=True)
class HostRun:
    """Frames between keyframes on the CPU.

    Args:
        grid: Cells of the frames.
        queries: Queries asked.
        stages: Timing by stage.
        whole: Timing of all stages together.
    """

    grid: Grid
    queries: int
    stages: dict[str, Timing]
    whole: Timing


def time_host(
    size_wh: tuple[int, int], settings: Settings, frames: int, progress: Callable[[str], None] = lambda _: None
) -> HostRun:
    """The ordinary pipeline over generated frames, asked for one thing of each kind.

    Raises:
        MeasurementFailed: Every frame is a keyframe.
    """
    progress("the stages on the CPU")
    pictures = panning_frames(size_wh, frames)
    queries = usual_queries(pictures[0])["all three"]
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)), queries, clock=time.perf_counter)
    measured: list[PatchSet] = []
    for frame in pictures:
        patches = pipeline.step(frame)
        patches.texture.planes.clear()
        measured.append(patches)
    # The first frames warm libraries up; keyframes are another matter.
    between = [patches for patches in measured[2:] if not patches.keyframe]
    if not between:
        raise MeasurementFailed(
            "every frame was a keyframe", remedy="set keyframes.interval above 1, and keyframes.min_confidence lower"
        )
    stages = {stage: Timing.of([p.latency_ms[stage] for p in between]) for stage in between[0].latency_ms}
    whole = Timing.of([total_ms(p.latency_ms) for p in between])
    return HostRun(between[0].grid, len(queries), stages, whole)


def host_table(run: HostRun, bytes_per_ms: float) -> ResultTable:
    """Each stage with its share of the frame and of the memory's limit."""
    touched = touched_bytes(run.grid, run.queries)
    rows: list[tuple[str | float | None, ...]] = []
    for stage, timing in run.stages.items():
        moved = touched.get(stage)
        limit_ms = moved / bytes_per_ms if moved else None
        share = 100 * limit_ms / timing.median if limit_ms is not None else None
        part = 100 * timing.median / run.whole.median
        rows.append((stage, timing.median, timing.p99, part, moved / 1e6 if moved else None, limit_ms, share))
    rows.append(("whole frame", run.whole.median, run.whole.p99, 100.0, None, None, None))
    width, height = run.grid.size_wh
    return ResultTable(
        f"Stages of a frame between keyframes on the CPU, {width}x{height}, {run.queries} queries",
        ("stage", "ms", "p99 ms", "% of the frame", "MB moved at least", "ms at the memory's speed", "% of the limit"),
        tuple(rows),
        note=(
            "Moved at least: what a stage reads and what it leaves behind, each once, as counted from the sizes of its "
            f"planes. The memory's speed is that of a large copy in the same run: {bytes_per_ms / 1e6:.1f} GB/s, read "
            "and written. Planes that stay in the cache can be faster than that."
        ),
    )


def touched_bytes(grid: Grid, queries: int) -> dict[str, float]:
    """What each stage reads and leaves behind at least, in bytes; `keyframe` waits for nothing and moves nothing.

    Pixels are counted at the texture's size: a quarter has a sixteenth of them.
    """
    width, height = grid.texture_wh
    full = width * height
    half, quarter, eighth = full / 4, full / 16, full / 64
    pictures = 3 * half + half + 3 * quarter + quarter + 3 * eighth + eighth
    visual = 3 * quarter + 3 * 4 * eighth
    flow = (2 + 1 + 1) * 4 * eighth
    history = 6 * 4 * eighth
    return {
        "visual": 3 * full + pictures + visual,
        "flow": 2 * half + flow,
        # The history and one way back are read and written; the motion channel is written.
        "carry": flow + 2 * history + 2 * 3 * 4 * eighth + 4 * eighth,
        # Each query reads the quarter picture and gives a map of float32.
        "relevance": queries * (3 * quarter + 4 * quarter),
        # The motion channel and what is remembered of it, the picture and its detail; a row of features a cell.
        "figure": 3 * 4 * eighth + 3 * eighth + quarter + 4 * (FEATURES + 2) * grid.cells,
        # The history is copied, three planes are put together.
        "texture": 2 * history + 2 * 3 * 4 * eighth,
        # Scored channels are read once: three of bytes at a quarter, six of float32 at an eighth, eccentricity, text.
        "selection": 3 * quarter + 6 * 4 * eighth + 2 * 4 * quarter + 2 * eighth + 44 * grid.cells,
    }
