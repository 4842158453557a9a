"""Measurements of `arr-stream bench FILE`: the time of each stage, and of the same frames without arr-stream.

Everything is measured in one run on the same decoded frames, and compared things take turns, since machines are noisy:
ratios are reliable where times are not. As in `process`, OpenCV works on one thread.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.consumer import BackgroundConsumer, pays_for_keyframe, total_ms
from arr_stream.draw.mp4 import Mp4Writer
from arr_stream.errors import MeasurementFailed, NothingInRange
from arr_stream.evaluation.tables import Report, ResultTable, Timing, plain, short
from arr_stream.keyframes.beside import make_provider
from arr_stream.keyframes.generate import InStepKeyframes, KeyframeProvider
from arr_stream.outputs import annotated_video
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.processes import module_command, module_path
from arr_stream.relevance.query import Query, TextQuery
from arr_stream.run import run
from arr_stream.sources import Source, open_source
from arr_stream.stream import Models, Stream
from arr_stream.threads import one_opencv_thread
from arr_stream.types import ByteArray

_LOOK_SECONDS = 0.005
FULL_GENERATION_FRAMES = 12
"""Frames for full generation, which is by far the most expensive measurement here."""
_FLOW_ALONE = "flow alone (DIS ultrafast, half size)"
_FULL = "full generation on every frame"


def half_grey(rgb: ByteArray) -> ByteArray:
    """Return a picture in grey at half size, as DIS at half size needs it."""
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Start:
    """Start of the program, from the command line to the first annotated frame on disk, in a separate process.

    Args:
        seconds: Median of the runs, the interpreter's own start included.
        memory_mb: Peak resident memory of that process, without the decoding process; None if the system does not
            report it.
    """

    seconds: float
    memory_mb: float | None


@dataclass(frozen=True, slots=True)
class BenchReport(Report):
    """Results of `bench`; all times in milliseconds a frame.

    Args:
        source: Name of the input.
        size_wh: Frame size.
        frames: Frames measured.
        interval: Keyframe interval.
        stages: Timing by stage, of frames between keyframes and of keyframes.
        between, keyframes: Timing of whole frames between keyframes, and of keyframes.
        baselines: Timing of the same frames without arr-stream.
        amortised_ms: Mean of all frames, including keyframes and frames that wait for one.
        start: Time to the first frame.
    """

    source: str
    size_wh: tuple[int, int]
    frames: int
    interval: int
    stages: dict[str, dict[str, Timing]]
    between: Timing
    keyframes: Timing
    baselines: dict[str, Timing]
    amortised_ms: float
    start: Start

    @property
    def ratios(self) -> dict[str, float]:
        medians = {name: timing.median for name, timing in self.baselines.items()}
        return {
            "frame between keyframes / flow alone": self.between.median / medians[_FLOW_ALONE],
            "full generation / amortised": medians[_FULL] / self.amortised_ms,
            "process / decode and encode": medians["process"] / medians["decode and encode"],
        }

    def facts(self) -> Mapping[str, Any]:
        return {**plain(self), "ratios": self.ratios}

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        """Stages, the same frames without arr-stream, and the ratios."""
        width, height = self.size_wh
        kinds = [(name, kinds["between"], kinds["keyframe"]) for name, kinds in self.stages.items()]
        rows = [
            (name, t.median, t.p95, t.p99, k.median if k.count else None)
            for name, t, k in (*kinds, ("all of perception", self.between, self.keyframes))
        ]
        memory = "" if self.start.memory_mb is None else f", {self.start.memory_mb:.0f} MB"
        others = [(name, short(t.median), short(t.p95), short(t.p99)) for name, t in self.baselines.items()]
        ratios = tuple((name, short(value)) for name, value in self.ratios.items())
        return (
            ResultTable(
                f"{self.source}, {width}x{height}, {self.frames} frames: ms a frame",
                ("stage", "median", "p95", "p99", "with keyframe, median"),
                tuple(rows),
                f"Amortised: {self.amortised_ms:.2f} ms = total of all frames / frames, with a keyframe every "
                f"{self.interval} frames or sooner. With keyframe: frames that take in its parts or wait for them; the "
                "other columns are without these. OpenCV works on one thread, as in `process`. "
                f"From the command to the first frame done: {self.start.seconds:.2f} s{memory}.",
                digits=2,
            ),
            ResultTable(
                "The same frames without arr-stream", ("what", "median", "p95", "p99"), tuple(others), digits=2
            ),
            ResultTable("Ratios", ("what", "times"), ratios, digits=2),
        )


def bench_file(
    path: str | Path,
    settings: Settings,
    queries: list[Query],
    *,
    max_frames: int = 150,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Measure one file.

    Args:
        path: A video.
        settings: As for `process`.
        queries: As for `process`.
        max_frames: Frames to hold in memory and measure on.
        repeats: Rounds; medians are over all rounds.
        progress: Called with the next measurement.

    Raises:
        NothingInRange: Fewer than two frames.
        MeasurementFailed: The command fails.
    """
    bench = _Bench(path, settings, queries, max_frames)
    for number in range(repeats):
        progress(f"round {number + 1} of {repeats}: the start")
        bench.start()
        progress(f"round {number + 1} of {repeats}: pipeline and flow, in turns")
        bench.step_in_turns()
        progress(f"round {number + 1} of {repeats}: decoding and encoding, with us and without")
        bench.end_to_end()
    progress("full generation on every frame")
    bench.full_generation()
    return bench.report()


class _Bench:
    """Measurements of one file, collected over rounds."""

    def __init__(self, path: str | Path, settings: Settings, queries: list[Query], max_frames: int) -> None:
        self._path = path
        self._settings = settings
        self._queries = queries
        self._max_frames = max_frames
        with self._open() as source:
            self._frames = list(source.frames())
        if len(self._frames) < 2:
            raise NothingInRange(f"{path}: {len(self._frames)} frame", remedy="bench needs a video of at least two")
        self._models = Models.load(settings)
        self._starts: list[Start] = []
        self._patches: list[PatchSet] = []
        self._milliseconds: dict[str, list[float]] = {
            name: [] for name in ("decode and encode", "process", _FLOW_ALONE, _FULL)
        }

    def _open(self) -> Source:
        return open_source(
            self._path,
            max_frames=self._max_frames,
            max_pixels=self._settings.source.max_pixels,
            untagged_matrix=self._settings.source.untagged_matrix,
        )

    def _pipeline(self, settings: Settings, provider: KeyframeProvider) -> Pipeline:
        return Pipeline(settings, provider, self._queries, encoder=self._models.encoder, pca=self._models.pca)

    def start(self) -> None:
        """Time one run of the command, to its first frame."""
        asked = [word for query in self._queries if isinstance(query, TextQuery) for word in ("--query", query.text)]
        with tempfile.TemporaryDirectory(prefix="arr-stream-bench-") as folder:
            out = Path(folder) / "first.mp4"
            command = module_command("arr_stream", "process", self._path, "--max-frames", 1, "-o", out, *asked)
            command += [word for change in _changes(self._settings) for word in ("--set", change)]
            began = time.perf_counter()
            memory_mb, quiet = None, subprocess.DEVNULL
            with subprocess.Popen(command, env=os.environ | module_path(), stdout=quiet, stderr=quiet) as process:
                # Sample while it runs: the statistics of an ended process include the memory of its parent.
                while process.poll() is None:
                    memory_mb = _peak_memory_mb(process.pid) or memory_mb
                    time.sleep(_LOOK_SECONDS)
            seconds = time.perf_counter() - began
        if process.returncode:
            raise MeasurementFailed(
                f"{self._path}: process ended with exit code {process.returncode}",
                remedy="run `arr-stream process` on it",
            )
        self._starts.append(Start(seconds, memory_mb))

    @one_opencv_thread()
    def step_in_turns(self) -> None:
        """Run the pipeline on every frame, each followed by bare DIS on the same pair; the first frame warms up."""
        search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        with closing(make_provider(self._models.generator, self._settings.keyframes)) as provider:
            pipeline = self._pipeline(self._settings, provider)
            for before, frame in zip([self._frames[0], *self._frames], self._frames, strict=False):
                patches = pipeline.step(frame)
                # Free the channels, which would otherwise accumulate.
                patches.texture.planes.clear()
                earlier = half_grey(before.rgb)
                start = time.perf_counter()
                search.calc(half_grey(frame.rgb), earlier, None)
                if frame is not before:
                    self._milliseconds[_FLOW_ALONE].append((time.perf_counter() - start) * 1e3)
                    self._patches.append(patches)

    @one_opencv_thread()
    def full_generation(self) -> None:
        """Time full generation on every frame, the alternative to propagation."""
        every = self._settings.with_values({"keyframes.interval": 1, "keyframes.text_interval": 1})
        pipeline = self._pipeline(every, InStepKeyframes(self._models.generator))
        apart = max(1, len(self._frames) // FULL_GENERATION_FRAMES)
        chosen = self._frames[::apart][: FULL_GENERATION_FRAMES + 1]
        self._milliseconds[_FULL] = [total_ms(pipeline.step(frame).latency_ms) for frame in chosen][1:]

    def end_to_end(self) -> None:
        """Time whole passes over the file: decoding, decoding and encoding, and `process` as users run it."""
        with tempfile.TemporaryDirectory(prefix="arr-stream-bench-") as folder:
            self._timed("decode and encode", lambda: self._encode(Path(folder) / "plain.mp4"))
            stream = Stream(self._open(), self._settings, self._queries)
            self._timed("process", lambda: self._process(stream, Path(folder) / "annotated.mp4"))

    def _timed(self, name: str, work: Callable[[], int]) -> None:
        start = time.perf_counter()
        count = work()
        self._milliseconds[name].append((time.perf_counter() - start) * 1e3 / count)

    def _encode(self, out: Path) -> int:
        """Decode to RGB and encode at the same quality, without drawing, on the encoder's default number of threads."""
        with self._open() as source:
            writer = Mp4Writer(
                out,
                size_wh=source.info.size_wh,
                settings=self._settings.video,
                frame_seconds=1 / (source.info.average_fps or 25),
                pixel_aspect=source.info.pixel_aspect,
            )
            for frame in source.frames():
                writer.write(frame.rgb, frame.pts_seconds)
            writer.finish()
            return writer.frames

    def _process(self, stream: Stream, out: Path) -> int:
        """Process the file like the command line; models load before the clock starts, since they load once a run."""
        result = run(stream, [BackgroundConsumer(annotated_video(stream, out))])
        if result.error is not None:
            raise result.error
        return result.frames

    def report(self) -> BenchReport:
        patches = self._patches
        kinds: dict[str, list[PatchSet]] = {"between": [], "keyframe": []}
        for before, after in zip([patches[0], *patches], patches, strict=False):
            # Where a new round begins, the frame before is not that of the stream.
            parts_before = before.parts if before.index < after.index else after.parts
            kinds["keyframe" if pays_for_keyframe(after, parts_before) else "between"].append(after)
        totals = {kind: [total_ms(p.latency_ms) for p in found] for kind, found in kinds.items()}
        baselines = {name: Timing.of(values) for name, values in self._milliseconds.items()}
        memory = [start.memory_mb for start in self._starts if start.memory_mb is not None]
        return BenchReport(
            source=str(self._path),
            size_wh=self._frames[0].size_wh,
            frames=len(self._frames),
            interval=self._settings.keyframes.interval,
            stages={
                stage: {kind: Timing.of([p.latency_ms[stage] for p in found]) for kind, found in kinds.items()}
                for stage in patches[0].latency_ms
            },
            between=Timing.of(totals["between"]),
            keyframes=Timing.of(totals["keyframe"] or [baselines[_FULL].median]),
            baselines=baselines,
            amortised_ms=Timing.of([*totals["between"], *totals["keyframe"]]).mean,
            start=Start(median(start.seconds for start in self._starts), median(memory) if memory else None),
        )


def _peak_memory_mb(process_id: int) -> float | None:
    """Return a process's peak memory so far; None if the system does not report it, or the process has ended."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
    return None if peak is None else float(peak.split()[1]) / 1e3


def _changes(settings: Settings) -> list[str]:
    """Return the settings that differ from the defaults, as `--set` takes them."""
    usual, here = Settings().model_dump(mode="json"), settings.model_dump(mode="json")
    return [
        f"{section}.{name}={value}"
        for section, values in here.items()
        for name, value in values.items()
        if value != usual[section][name]
    ]
