"""The parts of a frame on a device, one by one: what each takes, beside what its memory traffic alone would take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable
from arr_stream.gpu.device import TorchDevice
from arr_stream.gpu.flow import estimate
from arr_stream.gpu.graphs import flatten
from arr_stream.motion.camera import motion_between, motion_since, visible_structure
from arr_stream.motion.flow import Flow
from arr_stream.motion.memory import FIXATION, Carried, TemporalCache, carried, with_selection
from arr_stream.motion.planes import HISTORY, TEXT, CarriedPlane, region_planes
from arr_stream.relevance.figure import Figure, see_figure
from arr_stream.relevance.kinds.base import QueryContext, QueryInput
from arr_stream.relevance.query_scorers import QueryScorers, answer_queries
from arr_stream.relevance.scorers import score_cells
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.layout import EMBEDDING
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.pixels import cell_difference, colour_shares
from arr_stream.texture.visual import FrameFeatures, frame_features, high_pass, picture_channels, saliency
from arr_stream.types import Frame, Grid
from benchmarks.device.mips import dense_into, pyramid
from benchmarks.scenes.clips import panning_frames, usual_queries

_ROUNDS = 5
_GPU_COPY_BYTES = 1 << 29
_CPU_COPY_BYTES = 1 << 26


def _motion_against_camera(flow: Flow, eighth_grey: Tensor) -> Tensor:
    structure = visible_structure(eighth_grey)
    return torch.maximum(motion_between(flow, structure), motion_since(flow, structure))


def synchronize(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def replayed(step: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A step without what its launches cost the host: on a GPU it is captured and replayed.

    Raises:
        RuntimeError: It cannot be captured.
    """
    if device.type != "cuda":
        return step
    beside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()

    def replay() -> Any:
        graph.replay()
        return held

    return replay


def step_ms(step: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median milliseconds of a step over rounds of `repeats` runs, by the device's own clock where it has one."""
    step()
    synchronize(device)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(repeats):
                step()
            end.record()
            end.synchronize()
            rounds.append(start.elapsed_time(end) / repeats)
        else:
            began = time.perf_counter()
            for _ in range(repeats):
                step()
            rounds.append((time.perf_counter() - began) * 1e3 / repeats)
    return statistics.median(rounds)


def copy_bytes_per_ms(device: torch.device) -> float:
    """Measure the bytes that a large copy within the device's memory reads and writes in a millisecond."""
    size = _GPU_COPY_BYTES if device.type == "cuda" else _CPU_COPY_BYTES
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    return float(2 * size / step_ms(lambda: target.copy_(source), device, 4))


def upload_bytes_per_ms(device: torch.device) -> float:
    """Measure the bytes that a copy from pinned memory brings to a GPU in a millisecond."""
    source = torch.zeros(_CPU_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(_CPU_COPY_BYTES, dtype=torch.uint8, device=device)
    return _CPU_COPY_BYTES / step_ms(lambda: target.copy_(source, non_blocking=True), device, 4)


def bytes_of(*values: Any) -> int:
    """Bytes of all tensors in some values, each place in memory once: the least that has to be read or written."""
    tensors: list[torch.Tensor] = []
    for value in values:
        flatten(value, tensors)
    places = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors if tensor.numel()}
    return sum(places.values())


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A part of a frame.

    Args:
        name: What it does.
        run: Does it; gives the result.
        reads: What it reads, in any nesting.
        writes: What it writes where that is not the result.
        when: How often it runs.
    """

    name: str
    run: Callable[[], Any]
    reads: Any
    writes: Any = None
    when: str = "every frame"


@dataclass(frozen=True, slots=True, eq=False)
class KernelTiming:
    """Time and memory traffic of a part.

    Args:
        name, when: As in `Kernel`.
        milliseconds: Of one run.
        moved_bytes: Least traffic: inputs and results, each once.
    """

    name: str
    when: str
    milliseconds: float
    moved_bytes: int


def time_kernels(
    size_wh: tuple[int, int],
    device: torch.device,
    settings: Settings,
    repeats: int,
    progress: Callable[[str], None] = lambda _: None,
) -> list[KernelTiming]:
    """Every part, each by itself on two neighbouring frames."""
    timings = []
    with torch.no_grad():
        for kernel in _kernels(panning_frames(size_wh, 2), device, settings):
            progress(f"{kernel.name} alone")
            moved = bytes_of(kernel.reads, kernel.writes, kernel.run() if kernel.writes is None else None)
            run, name = kernel.run, kernel.name
            try:
                run = replayed(kernel.run, device)
            except RuntimeError:
                name = f"{name} (not captured)"
            timings.append(KernelTiming(name, kernel.when, step_ms(run, device, repeats), moved))
    return timings


def kernel_table(timings: list[KernelTiming], bytes_per_ms: float, device: str) -> ResultTable:
    """The roofline: time, least memory traffic, and the time that this traffic takes at the speed of a large copy."""
    rows = []
    for timing in timings:
        limit_ms = timing.moved_bytes / bytes_per_ms
        share = 100 * limit_ms / timing.milliseconds
        rows.append((timing.name, timing.when, timing.milliseconds, timing.moved_bytes / 1e6, limit_ms, share))
    return ResultTable(
        f"Parts of a frame on {device}, each by itself",
        ("part", "when", "ms", "MB moved at least", "ms at the memory's speed", "% of the limit"),
        tuple(rows),
        note=(
            "Moved at least: what a part reads and its results, each once. The memory's speed is that of a large copy "
            f"in the same run: {bytes_per_ms / 1e6:.0f} GB/s, read and written. Between the parts of a captured frame "
            "much stays in the cache, so their sum is more than the frame. On a GPU each is a captured graph, "
            "replayed; what could not be captured is launched operation by operation and says so."
        ),
    )


def _kernels(frames: list[Frame], device: torch.device, settings: Settings) -> Iterator[Kernel]:
    before, now = (torch.from_numpy(frame.rgb).to(device) for frame in frames)
    grid = Grid.for_size(frames[0].size_wh, max_pixels=settings.grid.max_pixels)
    earlier = frame_features(before, None, grid)
    look = frame_features(now, earlier.colours, grid)
    yield from _seeing(now, look, grid)
    hw = (grid.rows * 4, grid.columns * 4)
    flow = estimate(earlier.grey, look.grey, hw)
    yield Kernel("flow", lambda: estimate(earlier.grey, look.grey, hw), (earlier.grey, look.grey))
    motion = motion_between(flow, visible_structure(look.eighth_grey))
    yield Kernel("motion against the camera", lambda: _motion_against_camera(_fresh(flow), look.eighth_grey), flow)
    moving = Carried(torch.rand((1, *hw), device=device), (flow,))
    yield Kernel("carrying memory", lambda: carried(moving, _fresh(flow)), (moving, flow))
    figure, detail = Figure.nothing(motion, hw), look.high_pass
    seen = (look.eighth, detail, motion)
    yield Kernel("figure of what moves", lambda: see_figure(figure, *seen, _fresh(flow)), (figure, seen))
    yield from _choosing(frames, look, flow, now, moving.history, grid, settings)
    yield from _whole(now, look, flow, motion, moving.history, grid, settings)


def _fresh(flow: Flow) -> Flow:
    """The same without what was found of it before."""
    return Flow(flow.offset_px, flow.confidence, flow.residual)


def _seeing(rgb: Tensor, look: FrameFeatures, grid: Grid) -> Iterator[Kernel]:
    def reduced() -> tuple[Tensor, ...]:
        made = Pictures(rgb, grid)
        return made.half, made.grey, made.quarter, made.quarter_grey, made.eighth, made.eighth_grey

    made = Pictures(rgb, grid)
    detail = high_pass(made.grey)
    yield Kernel("reduced pictures", reduced, rgb)
    yield Kernel("fine detail", lambda: high_pass(made.grey), made.grey)
    yield Kernel("saliency", lambda: saliency(made.eighth, detail), (made.eighth, detail))
    yield Kernel("change of colours", lambda: colour_shares(made.eighth), (made.eighth, look.colours))


def _choosing(
    frames: list[Frame],
    look: FrameFeatures,
    flow: Flow,
    rgb: Tensor,
    history: Tensor,
    grid: Grid,
    settings: Settings,
) -> Iterator[Kernel]:
    cells_hw, there = (grid.rows, grid.columns), TorchDevice(str(history.device), graphs=False)
    motion = motion_between(flow, visible_structure(look.eighth_grey))
    figure = torch.rand(cells_hw, device=history.device)
    context = QueryContext(look.quarter, motion, flow, flow, flow, flow, settings.relevance.trust, figure)
    keyframes = TemporalCache(grid, there.put).keyframes
    first, second = (QueryInput(frame, grid, keyframes, {}, there.put) for frame in frames)
    for kind, queries in usual_queries(frames[0]).items():
        if len(queries) != 1:
            continue
        scorers = QueryScorers(queries)
        relevance, keep = answer_queries(scorers.tasks(first), context, cells_hw)
        scorers.finish(keep, [None], first)
        tasks = scorers.tasks(second)
        answered = partial(answer_queries, tasks, context, cells_hw)
        yield Kernel(f"relevance to {kind}", answered, (tasks, look.quarter))
    text = torch.zeros((1, grid.rows * 4, grid.columns * 4), device=history.device)
    planes: dict[int, Plane | LazyPlane] = {
        **picture_channels(look, rgb, motion, grid.texture_wh),
        TEXT: CarriedPlane(TEXT, text, flow, outside=0.0),
        FIXATION: Plane(FIXATION, history),
        FIXATION + 1: Plane(FIXATION + 1, torch.zeros((3, 1, 1), device=history.device)),
    }

    def scored() -> Any:
        # Planes cache their small levels: use fresh planes in each run.
        read = {first: _unread(plane) for first, plane in planes.items()}
        return score_cells(read, grid.texture_wh, relevance, figure, None, settings.scoring)

    yield Kernel("scores of all cells", scored, (planes[6], planes[9], text, history, relevance.combined))
    grey = look.eighth_grey
    yield Kernel("change since sent", lambda: cell_difference(grey, grey), (grey, grey))
    kept = (history, figure)
    yield Kernel("selection history", lambda: with_selection(*kept), kept)


def _unread(plane: Plane | LazyPlane) -> Plane | LazyPlane:
    return Plane(plane.first, plane.data, plane.scale) if isinstance(plane, Plane) else plane


def _whole(
    rgb: Tensor, look: FrameFeatures, flow: Flow, motion: Tensor, history: Tensor, grid: Grid, settings: Settings
) -> Iterator[Kernel]:
    device, wh = rgb.device, grid.texture_wh
    count = settings.keyframes.cluster_count
    labels = torch.randint(count, (grid.rows * 8, grid.columns * 8), dtype=torch.int32, device=device)
    embedding = torch.rand((16, 2 * grid.rows, 2 * grid.columns), device=device)
    text = torch.zeros((1, grid.rows * 8, grid.columns * 8), device=device)
    out = torch.zeros((40, wh[1], wh[0]), device=device)

    def dense() -> None:
        carrying: dict[int, Plane | LazyPlane] = {
            **region_planes(lambda: labels, flow),
            TEXT: CarriedPlane(TEXT, text, flow, outside=0.0),
            EMBEDDING.start: CarriedPlane(EMBEDDING.start, embedding, flow),
            HISTORY: Plane(HISTORY, torch.zeros((2, 1, 1), device=device)),
            FIXATION: Plane(FIXATION, history),
            FIXATION + 1: Plane(FIXATION + 1, torch.zeros((3, 1, 1), device=device)),
        }
        dense_into(Texture(wh, {**picture_channels(look, rgb, motion, wh), **carrying}), out)

    read = (rgb, look, motion, history, labels, embedding, text)
    yield Kernel("all 40 channels, dense", dense, read, out, when="when asked")
    levels = pyramid(out)
    yield Kernel("mip levels of all", lambda: pyramid(out), levels[0], tuple(levels[1:]), when="when asked")
