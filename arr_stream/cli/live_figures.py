"""How a live run goes: the state of its source, and the figures of its last word."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from arr_stream.cli.console import Reporter
from arr_stream.cli.running import counted
from arr_stream.consumer import Outcome, total_ms
from arr_stream.live.rates import Recent
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.run import RunResult
from arr_stream.sources.base import SourceStats
from arr_stream.sources.live import SourceState
from arr_stream.types import Frame

_FRAMES = 36_000
"""Medians are over so many frames at most, twenty minutes at 30 a second."""


class SourceStates:
    """Knows how the source is doing, and tells when it is lost and when it is back.

    Attributes:
        state, message: The newest, see `SourceState`.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.state = "connecting"
        self.message: str | None = None
        self._reporter = reporter
        self._told: str | None = None

    def take(self, state: SourceState) -> None:
        """The source has changed its state; from any thread."""
        self.state = state.state
        self.message = redact_url(state.message) if state.message else None
        if state.state in ("stalled", "reconnecting"):
            if self._told != self.message:
                self._told = self.message
                self._reporter.notice(f"{self.message}; it is opened again")
        elif state.state == "live" and self._told is not None:
            self._told = None
            self._reporter.notice("pictures come again")


class Figures:
    """A consumer that counts frames and times them.

    Attributes:
        frames, keyframes: How many.
        last_ms: Latency of the last frame.
        latency_ms: Of all frames.
        ages_ms: From capture to the end of processing.
        quality: How far it was lowered at worst.
    """

    def __init__(self) -> None:
        self.frames = self.keyframes = self.quality = 0
        self.last_ms = 0.0
        self.latency_ms = Recent(_FRAMES)
        self.ages_ms = Recent(_FRAMES)

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        self.frames += 1
        self.keyframes += patches.keyframe
        self.quality = max(self.quality, patches.quality)
        self.last_ms = total_ms(patches.latency_ms)
        self.latency_ms.add(self.last_ms)
        if frame.captured_seconds is not None:
            self.ages_ms.add((time.monotonic() - frame.captured_seconds) * 1e3)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...


def last_word(
    result: RunResult, figures: Figures, stats: SourceStats, shown_age_ms: float | None, written: Sequence[Path]
) -> str:
    """One line about a live run."""
    counts = [counted(result.frames, "frame")]
    counts += [f"{result.dropped} dropped"] if result.dropped else []
    counts += [counted(figures.keyframes, "keyframe")]
    counts += [counted(stats.reconnects, "reconnect")] if stats.reconnects else []
    counts += [counted(stats.stalls, "stall")] if stats.stalls else []
    counts += [result.reason] if result.reason != "finished" else []
    times = [f"{figures.latency_ms.median or 0.0:.1f} ms a frame"]
    if figures.ages_ms.median is not None:
        times.append(f"{figures.ages_ms.median:.1f} ms old when processed")
    if shown_age_ms is not None:
        times.append(f"{shown_age_ms:.1f} ms when shown")
    line = f"{', '.join(counts)}; {', '.join(times)} (medians)"
    if figures.quality:
        line += f"; quality lowered by up to {figures.quality}"
    return line + ("; wrote " + ", ".join(str(path) for path in written) if written else "")
