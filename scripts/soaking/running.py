"""One soak from beginning to end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from soaking.faults import FAULTS, NotSurvived, WallClock, survive
from soaking.feed import NAME
from soaking.sampling import Held, Sampler
from soaking.stage import Stage, staged
from soaking.verdicts import Outcome, Survived

_REHEARSED = ("streams", "clients", "models", "keyframe-kill", "break", "query")
_POLL_SECONDS = 0.05
_TELL_SECONDS = 30.0
_SETTLE_SECONDS = 20.0
_SAMPLE_SECONDS = 1.0
_REST_SECONDS = 2 * _SAMPLE_SECONDS
"""Least time of the run between two faults, however fast the stream goes: steady samples are taken there."""


def plan_faults(
    kinds: Sequence[str], *, stream_seconds: float, first_seconds: float, gap_seconds: float, seed: int
) -> list[tuple[float, str]]:
    """Faults in an order drawn by the seed, and when each comes: every kind comes once before any comes again.

    Args:
        kinds: Which there are.
        stream_seconds: The end of the stream; no fault comes within one gap of it.
        first_seconds: When the first comes.
        gap_seconds: Mean time between two; each is drawn from half of it to one and a half.
        seed: The same plan for the same seed.
    """
    draw = random.Random(seed)
    planned: list[tuple[float, str]] = []
    waiting: list[str] = []
    at_seconds = first_seconds
    while kinds and at_seconds <= stream_seconds - gap_seconds:
        if not waiting:
            waiting = draw.sample(sorted(kinds), len(kinds))
        planned.append((at_seconds, waiting.pop()))
        at_seconds += gap_seconds * draw.uniform(0.5, 1.5)
    return planned


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What is to be done.

    Args:
        stream_seconds: Length of the main stream.
        paced: At its own speed, not at the pipeline's.
        faults: With faults.
        seed: Decides their order.
        gap_seconds: Mean time between two, in seconds of the stream.
    """

    stream_seconds: float
    paced: bool = False
    faults: bool = True
    seed: int = 1
    gap_seconds: float = 30.0


class Soak:
    """Faults as they come.

    Attributes:
        fault: The one that is going on.
        survived: Those that have been.
    """

    def __init__(self, plan: SoakPlan, stage: Stage, clock: WallClock, say: Callable[[str], None]) -> None:
        self.fault: str | None = None
        self.survived: list[Survived] = []
        self._plan, self._stage, self._clock, self._say = plan, stage, clock, say
        self._told_seconds = self._rested_seconds = time.monotonic()

    def run(self, sampler: Sampler) -> None:
        """Until the stream has been as long as it should."""
        plan = self._plan
        planned = plan_faults(
            list(FAULTS) if plan.faults else [],
            stream_seconds=plan.stream_seconds,
            first_seconds=min(plan.gap_seconds, plan.stream_seconds / 4),
            gap_seconds=plan.gap_seconds,
            seed=plan.seed,
        )
        for at_seconds, kind in planned:
            self._wait(at_seconds, sampler)
            self._let(kind, sampler)
        self._wait(plan.stream_seconds, sampler)

    def look(self) -> tuple[float, str | None, int, int]:
        """For the sampler."""
        runners = self._stage.streams.runners
        dropped = sum(runner.status()["dropped"] for runner in (self._stage.main, self._stage.other))
        return self._stage.stream_seconds, self.fault, sum(runner.waiting for runner in runners), dropped

    def _wait(self, stream_seconds: float, sampler: Sampler) -> None:
        frames, moved = -1, time.monotonic()
        while self._stage.stream_seconds < stream_seconds or time.monotonic() < self._rested_seconds:
            now = time.monotonic()
            if self._stage.progress[NAME].frames != frames:
                frames, moved = self._stage.progress[NAME].frames, now
            elif now - moved > 60:
                raise RuntimeError(f"no frame for a minute: {self._stage.main.status()}")
            if now - self._told_seconds > _TELL_SECONDS:
                self._tell(sampler)
            time.sleep(_POLL_SECONDS)

    def _let(self, kind: str, sampler: Sampler) -> None:
        began = self._stage.stream_seconds, round(sampler.run_seconds, 2)
        self.fault = kind
        seconds, problem = None, None
        try:
            seconds = round(survive(kind, self._stage, self._clock), 3)
        except NotSurvived as exc:
            problem = str(exc)
        self.fault = None
        self._rested_seconds = time.monotonic() + _REST_SECONDS
        self.survived.append(Survived(kind, round(began[0], 2), began[1], seconds, problem))
        told = f"recovered after {seconds:.2f} s" if seconds is not None else f"NOT SURVIVED: {problem}"
        self._say(f"{began[0]:7.0f} s of stream: {kind}: {told}")

    def _tell(self, sampler: Sampler) -> None:
        self._told_seconds = time.monotonic()
        if sampler.samples:
            last = sampler.samples[-1]
            self._say(
                f"{last.stream_seconds:7.0f} s of stream: {last.own_mb:.0f} MB, {last.all_mb:.0f} with workers, "
                f"{last.handles} handles, {last.threads} threads, {self._stage.alerts} alerts, "
                f"{self._stage.posts} posts"
            )


def soak(plan: SoakPlan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """A rehearsal, so that what libraries keep for good is there, and then the soak.

    Args:
        plan: What is to be done.
        folder: For files that nobody needs afterwards; it is there.
        say: Told how it goes.
    """
    clock = WallClock()
    with clock.installed():
        _rehearse(folder / "rehearsal", clock, say)
        before = _settled(None)
        place = folder / "soak"
        place.mkdir()
        with staged(place, paced=plan.paced) as stage:
            run = Soak(plan, stage, clock, say)
            sampler = Sampler(_SAMPLE_SECONDS, run.look)
            try:
                run.run(sampler)
            finally:
                sampler.close()
            stream_seconds, run_seconds = stage.stream_seconds, sampler.run_seconds
        after = _settled(before)
    return Outcome(
        seed=plan.seed,
        stream_seconds=stream_seconds,
        run_seconds=run_seconds,
        frames=stage.progress[NAME].frames,
        records=_count_records(place, stage.main.id),
        faults=tuple(run.survived),
        samples=tuple(sampler.samples),
        before=before,
        after=after,
        failures=tuple(stage.failures),
    )


def _rehearse(folder: Path, clock: WallClock, say: Callable[[str], None]) -> None:
    folder.mkdir()
    with staged(folder) as stage:
        for kind in _REHEARSED:
            survive(kind, stage, clock)
    say("rehearsal over")


def _settled(before: Held | None) -> Held:
    """What is held once threads that are ending have ended."""
    held, deadline = Held.now(), time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        if before is not None and held == before:
            break
        time.sleep(0.5)
        again = Held.now()
        if before is None and again == held:
            break
        held = again
    return held


def _count_records(folder: Path, stream: str) -> int:
    """Lines of frames in the records of a stream."""
    count = 0
    for path in folder.glob(f"records-{stream}-*.jsonl"):
        with path.open() as lines:
            count += sum('"type":"frame"' in line[:40].replace(" ", "") for line in lines)
    return count
