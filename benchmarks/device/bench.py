"""The frame loop on a device, beside what the device's memory allows at best: `python -m benchmarks device`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import BackendUnavailable, InvalidSetting, MeasurementFailed
from arr_stream.evaluation.tables import Report, ResultTable, Timing, Value
from arr_stream.gpu.device import TorchDevice
from arr_stream.keyframes.clusters import make_clusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator, make_generator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.types import Frame, Grid
from benchmarks.device.kernels import copy_bytes_per_ms, kernel_table, synchronize, time_kernels, upload_bytes_per_ms
from benchmarks.device.mips import dense_into
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
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)), queries)
    measured: list[PatchSet] = []
    for frame in pictures:
        patches = pipeline.step(frame)
        patches.texture.planes.clear()
        measured.append(patches)
    # Leave out keyframes, and the first frames, which warm up libraries.
    between = [patches for patches in measured[2:] if not patches.keyframe]
    if not between:
        raise MeasurementFailed(
            "every frame was a keyframe", remedy="set keyframes.interval above 1, and keyframes.min_confidence lower"
        )
    stages = {stage: Timing.of([p.latency_ms[stage] for p in between]) for stage in between[0].latency_ms}
    whole = Timing.of([total_ms(p.latency_ms) for p in between])
    return HostRun(between[0].grid, len(queries), stages, whole)


def host_table(run: HostRun) -> ResultTable:
    """Each stage with its share of the frame."""
    timings = {**run.stages, "whole frame": run.whole}
    width, height = run.grid.size_wh
    return ResultTable(
        f"Stages of a frame between keyframes on the CPU, {width}x{height}, {run.queries} queries",
        ("stage", "ms", "p99 ms", "% of the frame"),
        tuple((name, each.median, each.p99, 100 * each.median / run.whole.median) for name, each in timings.items()),
    )


_WARM_UP_FRAMES = 6
"""Frames on which steps are captured, in every form that comes later."""


@dataclass(frozen=True, slots=True)
class DeviceReport(Report):
    """Results of `python -m benchmarks device`.

    Args:
        device: In words.
        found: The figures.
        unmeasured: Parts that were not measured, with the reason.
    """

    device: str
    found: tuple[ResultTable, ...]
    unmeasured: tuple[str, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        return self.found

    def facts(self) -> Mapping[str, Any]:
        return {"device": self.device, "unmeasured": self.unmeasured}


def bench_device(
    settings: Settings,
    device: torch.device,
    *,
    size_wh: tuple[int, int] = (1024, 1024),
    frames: int = 60,
    repeats: int = 20,
    progress: Callable[[str], None] = lambda _: None,
) -> DeviceReport:
    """Measure a device: frames between keyframes, all channels dense, and every part beside its limit.

    Args:
        settings: Budget, presets and the like.
        device: A GPU, or the CPU, whose ordinary stages are measured instead.
        size_wh: Size of the generated frames.
        frames: Frames in each run.
        repeats: Runs of each part in a round; medians are over rounds.
        progress: Told what is measured next.

    Raises:
        MeasurementFailed: Every frame is a keyframe.
    """
    if device.type == "cpu":
        return _on_host(settings, size_wh, frames, progress)
    name = torch.cuda.get_device_name(device)
    progress("the memory's speed")
    bytes_per_ms = copy_bytes_per_ms(device)
    torch.cuda.reset_peak_memory_stats(device)
    tables = (
        frame_table(settings, device, size_wh, frames, progress=progress),
        dense_table(settings, device, size_wh, progress=progress),
        kernel_table(time_kernels(size_wh, device, settings, repeats, progress), bytes_per_ms, name),
        _machine_table(name, device, bytes_per_ms),
    )
    return DeviceReport(name, tables, ())


def named_device(name: str) -> torch.device:
    """The device that is to be measured; `auto` takes a GPU where torch can use one.

    Raises:
        BackendUnavailable: CUDA was asked for and there is none.
        InvalidSetting: Neither `auto`, `cpu` nor `cuda`.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise InvalidSetting(f"--device {name!r} is no device", remedy="allowed are auto, cpu and cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            "--device cuda, but torch finds no NVIDIA GPU that it can use",
            remedy="use --device cpu, or install a build of torch with CUDA",
        )
    return torch.device("cpu" if name == "cpu" or not torch.cuda.is_available() else "cuda")


def _on_host(
    settings: Settings, size_wh: tuple[int, int], frames: int, progress: Callable[[str], None]
) -> DeviceReport:
    # Text recognition is optional, and no part of a frame between keyframes.
    plain = settings.with_values({"keyframes.text": "none"})
    run = time_host(size_wh, plain, frames, progress)
    found = "torch finds one: measure it with --device cuda" if torch.cuda.is_available() else "torch finds none"
    return DeviceReport("CPU", (host_table(run),), (f"a GPU was not measured: {found}",))


def _generator(settings: Settings) -> StandardGenerator:
    """The settings' own regions and embedding; no text, which has a time of its own."""
    embedder = make_embedder(settings)
    return StandardGenerator(make_clusterer(settings, embedder), embedder, None)


def _pipeline(settings: Settings, device: TorchDevice, queries: Any) -> Pipeline:
    provider = InStepKeyframes(_generator(settings))
    return Pipeline(settings, provider, queries, device=device)


def frame_table(
    settings: Settings,
    device: torch.device,
    size_wh: tuple[int, int],
    frames: int,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> ResultTable:
    """Time a frame between keyframes from the call to the patch set, for each query."""
    pictures = panning_frames(size_wh, frames + _WARM_UP_FRAMES)
    rarely = settings.with_values({"keyframes.interval": 1_000_000, "keyframes.min_confidence": 0.0})
    rows: list[tuple[Value, ...]] = []
    for kind, queries in usual_queries(pictures[0]).items():
        progress(f"frames asked for {kind}")
        there = TorchDevice(str(device))
        pipeline = _pipeline(rarely, there, queries)
        times = [_timed(pipeline, frame, device) for frame in pictures][_WARM_UP_FRAMES:]
        timing = Timing.of(times)
        rows.append((kind, timing.median, timing.p95, timing.p99, there.captures, there.fetched_bytes))
    width, height = size_wh
    return ResultTable(
        f"A frame between keyframes, {width}x{height}",
        ("asked for", "ms", "p95 ms", "p99 ms", "graphs", "bytes back"),
        tuple(rows),
        note=(
            "By the host's clock, from the call with a frame in the host's memory to the chosen cells there: the way "
            "up and back included. Steps are captured as CUDA graphs."
        ),
    )


def _timed(pipeline: Pipeline, frame: Frame, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    patches = pipeline.step(frame)
    elapsed = (time.perf_counter() - start) * 1e3
    patches.texture.planes.clear()
    return elapsed


def dense_table(
    settings: Settings,
    device: torch.device,
    size_wh: tuple[int, int],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> ResultTable:
    """All 40 channels at full size on every frame, keyframes and choice included, over whole cycles."""
    progress("all channels, dense, over whole cycles")
    interval = settings.keyframes.interval
    steady = settings.with_values({"keyframes.min_confidence": 0.0})
    pictures = panning_frames(size_wh, 4 * interval)
    pipeline = _pipeline(steady, TorchDevice(str(device)), ())
    out: torch.Tensor | None = None
    between: list[float] = []
    keyframes: list[float] = []
    for frame in pictures:
        synchronize(device)
        start = time.perf_counter()
        patches = pipeline.step(frame)
        if out is None:
            width, height = patches.texture.texture_wh
            out = torch.empty((40, height, width), device=device)
        dense_into(patches.texture, out)
        synchronize(device)
        elapsed = (time.perf_counter() - start) * 1e3
        # Two whole cycles, after earlier cycles have captured every variant of a step.
        if frame.index >= 2 * interval:
            (keyframes if patches.keyframe else between).append(elapsed)
    keyframe, frame_ms = Timing.of(keyframes), Timing.of(between)
    amortised = (keyframe.median + (interval - 1) * frame_ms.median) / interval
    width, height = size_wh
    return ResultTable(
        f"All 40 channels, dense, {width}x{height}",
        ("", "ms", "p99 ms"),
        (
            ("frame between keyframes", frame_ms.median, frame_ms.p99),
            ("keyframe", keyframe.median, keyframe.p99),
            (f"amortised over {interval} frames", amortised, None),
        ),
        note=(
            "The whole loop, the choice of cells included, and then every channel written at full size. Keyframes make "
            "the settings' regions, which nothing reads before the channels are written, and the embedding "
            f"{settings.keyframes.embeddings!r}; they find no text."
        ),
    )


def _machine_table(name: str, device: torch.device, bytes_per_ms: float) -> ResultTable:
    return ResultTable(
        f"What {name} gives",
        ("", "value"),
        (
            ("memory, copy of 512 MB, GB/s read and written", bytes_per_ms / 1e6),
            ("way up from pinned memory, GB/s", upload_bytes_per_ms(device) / 1e6),
            ("peak memory of all that was measured here, MB", torch.cuda.max_memory_allocated(device) / 1e6),
        ),
        digits=1,
    )
