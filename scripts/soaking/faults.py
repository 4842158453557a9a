"""What each fault does, and how it is known that it was survived."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from arr_stream.keyframes.base import PARTS
from arr_stream.types import Grid
from benchmarks.live.process import children, start_sender
from soaking.clients import come_and_vanish
from soaking.feed import NAME, SIZES_WH
from soaking.footage import FPS
from soaking.stage import OTHER, SENDER_SIZE_WH, Stage

PATIENCE_SECONDS = 90.0
_POLL_SECONDS = 0.02
_BLOCK_SECONDS = 3.0
_HOUR, _DAY = 3600.0, 86_400.0
_WORKER = b"arr_stream.keyframes.worker"
_WORDS = (("red",), ("green", "blue"), ("circle", "red", "left"))


class NotSurvived(Exception):
    """What should have come about did not."""


class WallClock:
    """`time.time` as if somebody set the clock."""

    def __init__(self) -> None:
        self._real = time.time
        self._offset_seconds = 0.0

    def leap(self, seconds: float) -> None:
        """Set it forward or back."""
        self._offset_seconds += seconds

    @contextmanager
    def installed(self) -> Iterator[WallClock]:
        """For the whole process, until the end of the block."""
        real = self._real
        time.time = lambda: real() + self._offset_seconds
        try:
            yield self
        finally:
            time.time = real


class Trial:
    """One fault while it lasts.

    Attributes:
        over_seconds: When the fault itself was over, on the clock of `time.monotonic`.
    """

    def __init__(self, stage: Stage, clock: WallClock) -> None:
        self.stage, self.clock = stage, clock
        self.over_seconds = time.monotonic()

    def over(self) -> None:
        """From now on all is as usual again, and recovery is timed."""
        self.over_seconds = time.monotonic()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait.

        Raises:
            NotSurvived: It did not come about.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise NotSurvived(f"waited {PATIENCE_SECONDS:g} s in vain for {what}")
            time.sleep(_POLL_SECONDS)

    def frames(self, count: int = FPS) -> None:
        """Wait for so many more frames of the main stream."""
        progress = self.stage.progress[NAME]
        wanted = progress.frames + count
        self.until(lambda: progress.frames >= wanted, f"{count} frames")

    def counted(self, name: str) -> int:
        """A counter of the main source."""
        return self.stage.main.stats.get(name, 0)

    def more(self, name: str) -> Callable[[], bool]:
        """Whether that counter has grown since now."""
        before = self.counted(name)
        return lambda: self.counted(name) > before

    def keyframes(self) -> None:
        """Wait until every part of a keyframe that is younger than now has arrived."""
        progress = self.stage.progress[NAME]
        now = progress.newest.index if progress.newest is not None else 0

        def arrived() -> bool:
            newest = progress.newest
            # No query of the soak asks for objects.
            parts = [part for part in PARTS if part != "objects"]
            return newest is not None and all(newest.parts.get(part, (-1, ""))[0] > now for part in parts)

        self.until(arrived, "a whole keyframe")


def survive(kind: str, stage: Stage, clock: WallClock) -> float:
    """Let a fault happen, and wait until all goes on as before; the seconds from the end of the fault to then.

    Raises:
        NotSurvived: It does not.
    """
    trial = Trial(stage, clock)
    FAULTS[kind](trial)
    return time.monotonic() - trial.over_seconds


def _stall(trial: Trial) -> None:
    noticed = trial.more("stalls")
    trial.stage.feed.stalled = True
    try:
        trial.until(noticed, "the stall to be noticed")
    finally:
        trial.stage.feed.stalled = False
    trial.over()
    trial.frames()


def _break(trial: Trial) -> None:
    opened = trial.more("reconnects")
    trial.stage.feed.cut(errno.ECONNRESET)
    trial.over()
    trial.until(opened, "the source to be opened anew")
    trial.frames()


def _vanish(trial: Trial) -> None:
    feed = trial.stage.feed
    opened = trial.more("reconnects")
    feed.away = True
    try:
        feed.cut(errno.ENODEV)
        trial.until(lambda: trial.stage.main.status()["state"] == "reconnecting", "attempts to open it")
        time.sleep(1.0)
    finally:
        feed.away = False
    trial.over()
    trial.until(opened, "the camera to be opened anew")
    trial.frames()


def _corrupt(trial: Trial) -> None:
    concealed = trial.more("concealed_frames")
    trial.stage.feed.corrupt = 0.1
    try:
        trial.until(concealed, "damage to be noticed")
        trial.frames()
    finally:
        trial.stage.feed.corrupt = 0.0
    trial.over()
    trial.frames(2 * FPS)


def _resize(trial: Trial) -> None:
    progress, feed = trial.stage.progress[NAME], trial.stage.feed
    size_wh = SIZES_WH[feed.resize()]
    grid = Grid.for_size(size_wh, max_pixels=trial.stage.main.settings.grid.max_pixels)
    trial.until(lambda: progress.newest is not None and progress.newest.grid == grid, f"frames of {size_wh}")
    trial.keyframes()


def _leap(seconds: float) -> Callable[[Trial], None]:
    def leap(trial: Trial) -> None:
        progress = trial.stage.progress[NAME]
        before = progress.newest.pts_seconds if progress.newest is not None else 0.0
        trial.stage.feed.leap(seconds)
        trial.frames(2 * FPS)
        assert progress.newest is not None
        step = progress.newest.pts_seconds - before
        if not 0 <= step < 60:
            raise NotSurvived(f"the stream's time went on by {step:g} s")

    return leap


def _clock(seconds: float) -> Callable[[Trial], None]:
    def set_clock(trial: Trial) -> None:
        stage = trial.stage
        alerts = stage.alerts
        trial.clock.leap(seconds)
        trial.frames()
        # A new rule fires at once, where an old one would wait until it was false.
        stage.main.rules[:] = ["relevance < 0.99" if stage.main.rules[0] == "relevance < 1" else "relevance < 1"]
        trial.until(lambda: stage.alerts > alerts, "an alert")

    return set_clock


def _ordered(order: str) -> Callable[[Trial], None]:
    def disturb(trial: Trial) -> None:
        stage = trial.stage
        told = stage.notice_count
        path = stage.orders / order
        path.touch()
        trial.until(lambda: not path.exists(), "a keyframe to take the order")
        trial.over()
        trial.until(lambda: stage.notice_count > told, "a notice")
        trial.keyframes()

    return disturb


def _kill_worker(trial: Trial) -> None:
    killed = worker_pids()
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    trial.over()
    trial.until(lambda: set(worker_pids()) - set(killed), "another worker")
    trial.keyframes()


def _block(trial: Trial) -> None:
    stage = trial.stage
    dropped = stage.main.status()["dropped"]
    stage.feed.hurrying = True
    try:
        stage.progress[NAME].block_seconds = _BLOCK_SECONDS
        trial.until(lambda: stage.main.status()["dropped"] > dropped, "frames to be dropped")
        trial.until(lambda: not stage.progress[NAME].blocked, "the consumer")
    finally:
        stage.feed.hurrying = False
    trial.over()
    trial.frames(2 * FPS)


def _ask(trial: Trial) -> None:
    stage = trial.stage
    words = next(each for each in _WORDS if each != stage.main.texts)
    stage.main.ask_for(words)
    progress = stage.progress[NAME]
    trial.until(lambda: progress.newest is not None and len(progress.newest.query_scores) == len(words), "its scores")
    trial.keyframes()


def _choose_models(trial: Trial) -> None:
    stage = trial.stage
    wanted = "slic" if stage.main.settings.keyframes.clusters == "grid" else "grid"
    stage.main.configure({"keyframes.clusters": wanted})
    progress = stage.progress[NAME]

    def made() -> bool:
        return progress.newest is not None and wanted in progress.newest.parts.get("clusters", (0, ""))[1]

    trial.until(made, f"clusters by {wanted}")


def _pass_by(trial: Trial) -> None:
    runner = trial.stage.streams.add("lavfi:testsrc2=size=160x96:rate=15", name="passing", query=["blue"])
    try:
        trial.until(lambda: runner.publisher.newest is not None and runner.publisher.newest.index > 20, "its frames")
    finally:
        trial.stage.streams.remove(runner.id)
    trial.over()
    trial.until(lambda: not runner.alive, "its end")
    trial.frames()


def _come_and_go(trial: Trial) -> None:
    clients = trial.stage.serving.clients
    come_and_vanish(trial.stage.port, trial.stage.main.id)
    trial.over()
    trial.until(lambda: len(clients) <= 1, "the server to notice that they are gone")
    trial.frames()


def _kill_server(trial: Trial) -> None:
    stage = trial.stage
    port = stage.sender.port
    stage.sender.kill()
    try:
        trial.until(lambda: stage.other.status()["state"] == "reconnecting", "attempts to open it")
        time.sleep(1.0)
    finally:
        stage.sender = start_sender(port, size_wh=SENDER_SIZE_WH)
    trial.over()
    progress = stage.progress[OTHER]
    wanted = progress.frames + FPS
    trial.until(lambda: progress.frames >= wanted, "frames of the other stream")


FAULTS: dict[str, Callable[[Trial], None]] = {
    "stall": _stall,  # the source sends nothing until it is opened anew
    "break": _break,  # the connection is reset
    "vanish": _vanish,  # the camera is gone (ENODEV), and cannot be opened for a while
    "corrupt": _corrupt,  # packets with flipped bits
    "resize": _resize,  # the pictures change their size
    "pts-back": _leap(-_HOUR),  # the source's clock goes back an hour
    "pts-forward": _leap(_DAY),  # the source's clock goes forward a day
    "clock-back": _clock(-_HOUR),  # the wall clock is set back an hour
    "clock-forward": _clock(_DAY),  # the wall clock is set forward a day
    "keyframe-raise": _ordered("raise"),  # the keyframe model throws
    "keyframe-memory": _ordered("memory"),  # the keyframe model asks for more memory than there is
    "keyframe-nan": _ordered("nan"),  # the keyframe model gives NaN
    "keyframe-hang": _ordered("hang"),  # the keyframe model never comes back
    "keyframe-kill": _kill_worker,  # the keyframe worker is killed (SIGKILL)
    "consumer-block": _block,  # a consumer blocks for seconds while the source goes on
    "query": _ask,  # other queries are asked
    "models": _choose_models,  # other keyframe models are chosen
    "streams": _pass_by,  # a stream is added and removed
    "clients": _come_and_go,  # clients connect and vanish without a word
    "server-kill": _kill_server,  # the HTTP server of another stream is killed and started again
}
"""Every kind of fault, and what brings it about."""


def worker_pids() -> list[int]:
    """Keyframe workers of this process."""
    return [pid for pid in children(os.getpid()) if _WORKER in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
