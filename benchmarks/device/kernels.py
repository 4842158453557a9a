"""The parts of a frame on a device, one by one: what each takes, beside what its memory traffic alone would take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable
from arr_stream.gpu.asking import DeviceAsking, DeviceScene, Now, ask_all
from arr_stream.gpu.camera import camera_flow, independent_motion, visible_structure
from arr_stream.gpu.distance import edge_distance
from arr_stream.gpu.figure import Figure, cues, see
from arr_stream.gpu.flow import DeviceFlow, estimate
from arr_stream.gpu.memory import DeviceMemory, Moving, OnDevice, Trail, advanced
from arr_stream.gpu.pictures import DevicePictures
from arr_stream.gpu.scoring import Evidence, cell_table, score_cells
from arr_stream.gpu.selection import Seen, allocate
from arr_stream.gpu.steps import Glance, colour_histogram, glance
from arr_stream.gpu.texture import assemble, dense_into, pyramid
from arr_stream.gpu.visual import polar_edges, visual_channels
from arr_stream.motion import usual_preset
from arr_stream.selection.budget import budget_tokens
from arr_stream.types import Frame, Grid
from benchmarks.device.scene import panning_frames, usual_queries
from benchmarks.device.timing import bytes_of, replayed, step_ms


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
    """What a part takes.

    Args:
        name, when: As in `Kernel`.
        milliseconds: Of one run.
        moved_bytes: What it has to read and write at least: inputs and results, each once.
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
    earlier = glance(before, None, grid)
    seen = glance(now, earlier.histogram, grid)
    yield from _seeing(now, seen, grid)
    hw = (grid.rows * 4, grid.columns * 4)
    preset = usual_preset("torch", settings.motion.preset)
    flow = estimate(earlier.grey, seen.grey, hw, preset)
    yield Kernel("flow", lambda: estimate(earlier.grey, seen.grey, hw, preset), (earlier.grey, seen.grey))
    yield Kernel("motion against the camera", lambda: _motion(flow, seen.structure), flow)
    trail = Trail(flow.offset_px, flow.confidence)
    moving = Moving(torch.rand((6, *hw), device=device), Figure.nothing(hw, device), (trail,))
    yield Kernel("carrying memory", lambda: advanced(moving, flow), (moving, flow))
    motion = _motion(flow, seen.structure)
    known, _ = see(moving.figure, earlier.cues, motion)
    yield Kernel("figure of what moves", lambda: see(known, seen.cues, motion), (known, seen.cues, motion))
    yield from _choosing(frames, seen, flow, moving.history, grid, settings)
    yield from _whole(now, seen, flow, moving.history, grid, settings)


def _seeing(rgb: Tensor, seen: Glance, grid: Grid) -> Iterator[Kernel]:
    def reduced() -> tuple[Tensor, ...]:
        pictures = DevicePictures(rgb, grid)
        return (
            pictures.half,
            pictures.grey,
            pictures.quarter,
            pictures.quarter_grey,
            pictures.eighth,
            pictures.eighth_grey,
        )

    made = DevicePictures(rgb, grid)
    read = made.grey, made.quarter_grey, made.eighth, made.eighth_grey
    strength = polar_edges(made.quarter_grey).amax(dim=0)
    yield Kernel("reduced pictures", reduced, rgb)
    yield Kernel("visual channels", lambda: visual_channels(made), read)
    yield Kernel("  of it: distance to edges", lambda: edge_distance(strength), strength)
    detail = seen.visual.fine[2]
    yield Kernel("looks of cells", lambda: cues(made.eighth, detail), (made.eighth, detail))
    yield Kernel("visible structure", lambda: visible_structure(made.eighth_grey), (made.eighth_grey, seen.structure))
    yield Kernel("change of colours", lambda: colour_histogram(made.eighth), (made.eighth, seen.histogram))


def _motion(flow: DeviceFlow, structure: Tensor) -> Tensor:
    camera_px = camera_flow(flow.offset_px, flow.confidence)
    return torch.maximum(independent_motion(flow.offset_px, camera_px, structure), flow.residual)


def _choosing(
    frames: list[Frame], seen: Glance, flow: DeviceFlow, history: Tensor, grid: Grid, settings: Settings
) -> Iterator[Kernel]:
    device, cells_hw = history.device, (grid.rows, grid.columns)
    trail = Trail(flow.offset_px, flow.confidence)
    motion = _motion(flow, seen.structure)
    scene = DeviceScene(seen.quarter, motion, flow, trail, trail, trail, settings.relevance.trust)
    memory = DeviceMemory(grid, device)
    first, second = (Now(frame, grid, memory, {}) for frame in frames)
    for kind, queries in usual_queries(frames[0]).items():
        if len(queries) != 1:
            continue
        asking = DeviceAsking(queries)
        asking.take(ask_all(asking.tasks(first), scene).keep, first)
        tasks = asking.tasks(second)
        yield Kernel(f"relevance to {kind}", partial(ask_all, tasks, scene), (tasks, seen.quarter))
    relevance, figure = torch.rand(2, grid.cells, device=device)
    text = torch.zeros((grid.rows * 8, grid.columns * 8), device=device)
    evidence = Evidence(seen.visual, motion, history, figure.view(cells_hw), text, trail)

    def scored() -> Any:
        return score_cells(cell_table(evidence, grid.texture_wh), relevance, figure, settings.scoring)

    yield Kernel("scores of all cells", scored, (evidence, relevance))
    score = scored().score.view(cells_hw)
    tokens = budget_tokens(settings.selection.budget, grid.cells)
    coarse_most = int(settings.selection.context_share * tokens)
    fresh, everywhere = Seen.nothing(cells_hw, device), torch.ones_like(score, dtype=torch.bool)

    def chosen() -> Any:
        choice = allocate(score, everywhere, tokens, coarse_most)
        return choice, fresh.send(choice, seen.eighth_grey)

    yield Kernel("choice and novelty", chosen, (score, fresh, seen.eighth_grey))


@dataclass(frozen=True, slots=True, eq=False)
class _Remembered:
    history: Tensor
    on_device: OnDevice


def _whole(
    rgb: Tensor, seen: Glance, flow: DeviceFlow, history: Tensor, grid: Grid, settings: Settings
) -> Iterator[Kernel]:
    device = rgb.device
    trail = Trail(flow.offset_px, flow.confidence)
    count = settings.keyframes.cluster_count
    labels = torch.randint(count, (grid.rows * 8, grid.columns * 8), dtype=torch.int32, device=device)
    embedding = torch.rand((16, 2 * grid.rows, 2 * grid.columns), device=device)
    text = torch.zeros((grid.rows * 8, grid.columns * 8), device=device)
    parts = _Remembered(history, OnDevice(labels, trail, embedding, trail, text, trail))
    motion = _motion(flow, seen.structure)
    width, height = grid.texture_wh
    out = torch.zeros((40, height, width), device=device)

    def dense() -> None:
        dense_into(assemble(seen.pictures(rgb, grid), seen.visual, motion, parts), out)

    read = (rgb, seen.visual, motion, parts.history, parts.on_device)
    yield Kernel("all 40 channels, dense", dense, read, out, when="when asked")
    levels = pyramid(out)
    yield Kernel("mip levels of all", lambda: pyramid(out), levels[0], tuple(levels[1:]), when="when asked")
