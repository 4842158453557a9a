"""`python -m benchmarks batch`: the same files by each engine in turns, as a user starts them, told apart by phase."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np

from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.tables import Report, ResultTable, Value
from benchmarks.machine import machine
from benchmarks.scenes.shapes import moving_scene

MOST_RATIO = 1.3
"""What Ray on one machine may cost, as a ratio of total times."""

_FPS = 30

Phase = Literal["startup", "steady", "closing", "total"]

_PHASES: tuple[Phase, ...] = ("startup", "steady", "closing", "total")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What is measured.

    Args:
        sources: Files to do; none for generated ones.
        files: How many to generate.
        frames: Of each generated one.
        size_wh: Of their frames.
        jobs: Files at once.
        engines: Which, the first being what the others are compared with.
        rounds: How often each.
        overrides: `key=value` settings.
        limit_seconds: Longest time of one batch.
        progress: Told what is being measured.
    """

    sources: tuple[str, ...] = ()
    files: int = 20
    frames: int = 150
    size_wh: tuple[int, int] = (640, 352)
    jobs: int = 2
    engines: tuple[str, ...] = ("local", "ray")
    rounds: int = 3
    overrides: tuple[str, ...] = ()
    limit_seconds: float = 3600.0
    progress: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """One batch, in seconds.

    Args:
        startup: From the start of the command until a worker begins with the first file.
        steady: From then until the last file is done.
        closing: From then until the command has ended.
        frames: That were processed.
        digests: Of the records, by name.
    """

    startup: float
    steady: float
    closing: float
    frames: int
    digests: dict[str, str]

    @property
    def total(self) -> float:
        return self.startup + self.steady + self.closing

    def seconds(self, phase: Phase) -> float:
        """Of a phase by its name."""
        return float(getattr(self, phase))


@dataclass(frozen=True, slots=True)
class BatchReport(Report):
    """All rounds.

    Args:
        plan: What was measured.
        files: How many files there were.
        runs: By engine, a round each.
    """

    plan: BatchPlan
    files: int
    runs: dict[str, tuple[BatchTimes, ...]]

    def median(self, engine: str, phase: Phase) -> float:
        """Seconds, over all rounds."""
        return statistics.median(run.seconds(phase) for run in self.runs[engine])

    def ratio(self, engine: str, phase: Phase) -> float:
        """Against the first engine: the median over rounds of the ratio within a round."""
        first = self.runs[self.plan.engines[0]]
        pairs = zip(self.runs[engine], first, strict=True)
        return statistics.median(run.seconds(phase) / max(1e-9, base.seconds(phase)) for run, base in pairs)

    @property
    def same_results(self) -> bool:
        """Every round of every engine gave the same records."""
        digests = [run.digests for runs in self.runs.values() for run in runs]
        return all(each == digests[0] for each in digests)

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        base = self.plan.engines[0]
        rows: list[tuple[Value, ...]] = [
            (
                engine,
                *(self.median(engine, phase) for phase in _PHASES),
                self.runs[engine][0].frames / self.median(engine, "steady"),
                self.ratio(engine, "steady"),
                self.ratio(engine, "total"),
            )
            for engine in self.plan.engines
        ]
        same = "every round gave the same records" if self.same_results else "THE RECORDS DIFFER BETWEEN ROUNDS"
        return (
            ResultTable(
                f"A batch of {self.files} files by {self.plan.jobs} workers; median seconds of {self.plan.rounds} "
                "rounds",
                ("engine", *_PHASES, "frames a second", f"steady / {base}", f"total / {base}"),
                tuple(rows),
                f"{machine()}. Engines in turns, each a process of its own as from the command line; startup ends when "
                f"a worker begins with the first file. {same}.",
                digits=2,
            ),
        )

    def facts(self) -> Mapping[str, Any]:
        others = self.plan.engines[1:]
        return {
            "files": self.files,
            "jobs": self.plan.jobs,
            "rounds": self.plan.rounds,
            "same_results": self.same_results,
            "total_ratio": {engine: self.ratio(engine, "total") for engine in others},
            "steady_ratio": {engine: self.ratio(engine, "steady") for engine in others},
            "most_ratio": MOST_RATIO,
            "runs": {
                engine: [{phase: run.seconds(phase) for phase in _PHASES} for run in runs]
                for engine, runs in self.runs.items()
            },
        }


def bench_batch(plan: BatchPlan) -> BatchReport:
    """Measure the plan.

    Raises:
        MeasurementFailed: A batch did not do all of its files.
    """
    runs: dict[str, list[BatchTimes]] = {engine: [] for engine in plan.engines}
    with tempfile.TemporaryDirectory(prefix="arr-bench-") as name:
        folder = Path(name)
        sources = plan.sources or (str(_clips(folder / "clips", plan)),)
        for number in range(plan.rounds):
            # Whoever comes first in a round comes last in the next.
            for engine in plan.engines if number % 2 == 0 else plan.engines[::-1]:
                plan.progress(f"round {number + 1} of {plan.rounds}: {engine}")
                runs[engine].append(_timed(engine, sources, folder / f"{engine}-{number}", plan))
    files = len(runs[plan.engines[0]][0].digests)
    return BatchReport(plan, files, {engine: tuple(times) for engine, times in runs.items()})


def _timed(engine: str, sources: Sequence[str], output: Path, plan: BatchPlan) -> BatchTimes:
    """One batch from the command line, timed by what it says while it runs."""
    command = [sys.executable, "-m", "arr_stream", "batch", *sources, "-o", str(output), "--log-json"]
    command += ["--engine", engine, "--jobs", str(plan.jobs)]
    command += [part for override in plan.overrides for part in ("--set", override)]
    began = time.monotonic()
    first = last = None
    frames = 0
    with _started(command) as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line.strip())
            event = _event(line)
            if event.get("event") == "started" and first is None:
                first = time.monotonic()
            elif event.get("event") == "finished":
                last = time.monotonic()
                frames += event["frames"]
            if time.monotonic() - began > plan.limit_seconds:
                raise MeasurementFailed(f"a batch by {engine} took longer than {plan.limit_seconds:g} s")
        code = process.wait()
    ended = time.monotonic()
    if code != 0 or first is None or last is None:
        raise MeasurementFailed(f"a batch by {engine} ended with exit code {code}: {said[-1] if said else ''}")
    return BatchTimes(first - began, last - first, ended - last, frames, _digests(output))


@contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is over when the context is."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # Asked first, so that it ends its workers.
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _event(line: str) -> dict[str, Any]:
    """What a line tells; nothing for one that is no JSON object."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _digests(output: Path) -> dict[str, str]:
    done = {path.parent.name: json.loads(path.read_bytes()) for path in output.glob("videos/*/done.json")}
    return {name: str(values["digest"]) for name, values in sorted(done.items())}


def _clips(folder: Path, plan: BatchPlan) -> Path:
    """Clips of things that drift over a panning background, each another."""
    folder.mkdir()
    for number in range(plan.files):
        plan.progress(f"making clip {number + 1} of {plan.files}")
        _write(folder / f"clip{number}.mp4", plan, np.random.default_rng(number))
    return folder


def _write(path: Path, plan: BatchPlan, rng: np.random.Generator) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=_FPS, options={"preset": "veryfast", "crf": "20"})
        stream.width, stream.height = plan.size_wh
        stream.pix_fmt = "yuv420p"
        for scene in moving_scene(rng, plan.size_wh, plan.frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene.rgb, format="rgb24")))
        container.mux(stream.encode(None))
