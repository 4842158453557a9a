"""Measurements of `arr-stream bench FILE`: the time of each stage, and of the same frames without arr-stream.

Everything is measured in one run on the same decoded frames, and compared things take turns, since machines are noisy:
ratios are reliable where times are not. As in `process`, OpenCV works on one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.consumer import BackgroundConsumer, pays_for_keyframe, total_ms
from arr_stream.draw.mp4 import Mp4Writer
from arr_stream.errors import NothingInRange
from arr_stream.evaluation.tables import Report, ResultTable, Timing, plain, short, timed
from arr_stream.keyframes.beside import make_provider
from arr_stream.keyframes.generate import InStepKeyframes, KeyframeProvider
from arr_stream.outputs import annotated_video
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query
from arr_stream.run import run
from arr_stream.sources import Source, open_source
from arr_stream.stream import Models, Stream
from arr_stream.threads import one_opencv_thread
from arr_stream.types import ByteArray, Frame

FULL_GENERATION_FRAMES = 12
"""Frames for full generation, which is by far the most expensive measurement here."""
_FLOW_ALONE = "flow alone (DIS ultrafast, half size)"
_FULL = "full generation on every frame"


def half_grey(rgb: ByteArray) -> ByteArray:
    """Return a picture in grey at half size, as DIS at half size needs it."""
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), dtype=np.uint8)


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
        others = [(name, short(t.median), short(t.p95), short(t.p99)) for name, t in self.baselines.items()]
        ratios = [(name, short(value)) for name, value in self.ratios.items()]
        return (
            ResultTable(
                f"{self.source}, {width}x{height}, {self.frames} frames: ms a frame",
                ("stage", "median", "p95", "p99", "with keyframe, median"),
                rows,
                f"Amortised: {self.amortised_ms:.2f} ms = total of all frames / frames, with a keyframe every "
                f"{self.interval} frames or sooner. With keyframe: frames that take in its parts or wait for them; the "
                "other columns are without these. OpenCV works on one thread, as in `process`.",
                digits=2,
            ),
            ResultTable("The same frames without arr-stream", ("what", "median", "p95", "p99"), others, digits=2),
            ResultTable("Ratios", ("what", "times"), ratios, digits=2),
        )


def bench_file(
    path: str | Path,
    settings: Settings,
    queries: Sequence[Query],
    *,
    max_frames: int = 150,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Measure one file as `process` treats it; its first `max_frames` frames are held in memory.

    Args:
        path: A video.
        settings, queries: As for `process`.
        max_frames: Frames to measure on.
        repeats: Rounds; medians are over all rounds.
        progress: Called with the next measurement.

    Raises:
        NothingInRange: Fewer than two frames.
    """

    def opened() -> Source:
        matrix, max_pixels = settings.source.untagged_matrix, settings.source.max_pixels
        return open_source(path, max_frames=max_frames, max_pixels=max_pixels, untagged_matrix=matrix)

    def stepper(provider: KeyframeProvider, settings: Settings = settings) -> Pipeline:
        return Pipeline(settings, provider, queries, encoder=models.encoder, pca=models.pca)

    with opened() as source:
        frames = list(source.frames())
    if len(frames) < 2:
        raise NothingInRange(f"{path}: {len(frames)} frame", remedy="bench needs a video of at least two")
    models = Models.load(settings)
    found: list[PatchSet] = []
    spent: dict[str, list[float]] = {name: [] for name in ("decode and encode", "process", _FLOW_ALONE)}
    for number in range(repeats):
        progress(f"round {number + 1} of {repeats}")
        with closing(make_provider(models.generator, settings.keyframes)) as provider:
            patches, flow_ms = _step_in_turns(stepper(provider), frames)
        found += patches
        spent[_FLOW_ALONE] += flow_ms
        with tempfile.TemporaryDirectory(prefix="arr-stream-bench-") as folder:
            with timed(spent["decode and encode"], 1 / len(frames)):
                _encode(opened(), settings, Path(folder) / "plain.mp4")
            # Models load before the clock starts, since they load once a run.
            stream = Stream(opened(), settings, queries)
            with timed(spent["process"], 1 / len(frames)):
                result = run(stream, [BackgroundConsumer(annotated_video(stream, Path(folder) / "annotated.mp4"))])
            if result.error is not None:
                raise result.error
    progress(_FULL)
    every = settings.with_values({"keyframes.interval": 1, "keyframes.text_interval": 1})
    chosen = frames[:: max(1, len(frames) // FULL_GENERATION_FRAMES)][: FULL_GENERATION_FRAMES + 1]
    with one_opencv_thread():
        pipeline = stepper(InStepKeyframes(models.generator), every)
        spent[_FULL] = [total_ms(pipeline.step(frame).latency_ms) for frame in chosen][1:]
    return _report(str(path), frames[0].size_wh, len(frames), settings.keyframes.interval, found, spent)


@one_opencv_thread()
def _step_in_turns(pipeline: Pipeline, frames: Sequence[Frame]) -> tuple[list[PatchSet], list[float]]:
    """Return results of the pipeline on every frame but the first, and milliseconds of bare DIS on the same pairs."""
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    found: list[PatchSet] = []
    flow_ms: list[float] = []
    for before, frame in zip([frames[0], *frames], frames, strict=False):
        patches = pipeline.step(frame)
        # Free the channels, which would otherwise accumulate.
        patches.texture.planes.clear()
        earlier = half_grey(before.rgb)
        with timed(flow_ms):
            search.calc(half_grey(frame.rgb), earlier, None)
        found.append(patches)
    return found[1:], flow_ms[1:]


def _encode(source: Source, settings: Settings, out: Path) -> None:
    """Decode to RGB and encode at the same quality, without drawing, on the encoder's default number of threads."""
    with source:
        info = source.info
        seconds = 1 / (info.average_fps or 25)
        writer = Mp4Writer(
            out, size_wh=info.size_wh, settings=settings.video, frame_seconds=seconds, pixel_aspect=info.pixel_aspect
        )
        for frame in source.frames():
            writer.write(frame.rgb, frame.pts_seconds)
        writer.finish()


def _report(
    source: str,
    size_wh: tuple[int, int],
    frames: int,
    interval: int,
    found: Sequence[PatchSet],
    spent: Mapping[str, Sequence[float]],
) -> BenchReport:
    kinds: dict[str, list[PatchSet]] = {"between": [], "keyframe": []}
    for before, after in zip([found[0], *found], found, strict=False):
        # Where a new round begins, the frame before is not that of the stream.
        parts_before = before.parts if before.index < after.index else after.parts
        kinds["keyframe" if pays_for_keyframe(after, parts_before) else "between"].append(after)
    totals = {kind: [total_ms(patches.latency_ms) for patches in each] for kind, each in kinds.items()}
    baselines = {name: Timing.of(values) for name, values in spent.items()}
    return BenchReport(
        source=source,
        size_wh=size_wh,
        frames=frames,
        interval=interval,
        stages={
            stage: {kind: Timing.of([p.latency_ms[stage] for p in each]) for kind, each in kinds.items()}
            for stage in found[0].latency_ms
        },
        between=Timing.of(totals["between"]),
        keyframes=Timing.of(totals["keyframe"] or [baselines[_FULL].median]),
        baselines=baselines,
        amortised_ms=Timing.of([*totals["between"], *totals["keyframe"]]).mean,
    )
