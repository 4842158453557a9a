"""What `process` and `ask` share: outputs, queries, and how a run is reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, Reporter, err
from arr_stream.errors import OutputUnwritable

if TYPE_CHECKING:
    import threading

    from arr_stream.config import Settings
    from arr_stream.consumer import Consumer
    from arr_stream.patch_set import PatchSet
    from arr_stream.records.provenance import Question
    from arr_stream.relevance.query import Query
    from arr_stream.run import RunResult
    from arr_stream.stream import Stream
    from arr_stream.vlm.live_watcher import LiveWatcher
    from arr_stream.vlm.watcher import Watcher


def check_outputs(source: str, *, output: Path | None, patches: Path | None, view: str, force: bool) -> None:
    """Say at once, before models are loaded, what cannot be written."""
    from arr_stream.draw.views import check_view
    from arr_stream.files import prepare_output

    check_view(view)
    for path in (output, patches):
        if path is not None and path.exists() and Path(source).exists() and path.samefile(source):
            raise OutputUnwritable(
                f"{path}: is the source itself", remedy="choose another name; --force is no help here"
            )
    if output is not None and patches is not None and output.resolve() == patches.resolve():
        raise OutputUnwritable(f"{output}: named twice, for the video and the records", remedy="give each its own name")
    if output is not None:
        prepare_output(output, force)
    if patches is not None:
        prepare_output(patches, force, direct=True)


def make_consumers(
    stream: Stream,
    *,
    output: Path | None,
    report: Path | None,
    patches: Path | None,
    view: str,
    audio: bool,
    force: bool,
    question: Question | None = None,
) -> list[Consumer]:
    """The consumers behind the options that were given."""
    from arr_stream.consumer import BackgroundConsumer
    from arr_stream.run import annotated_video, records_of, report_of

    consumers: list[Consumer] = []
    if output is not None:
        consumers.append(BackgroundConsumer(annotated_video(stream, output, view=view, audio=audio, force=force)))
    if report is not None:
        consumers.append(report_of(stream, report, force=force))
    # Last: a frame's record says that everything else about the frame is written.
    if patches is not None:
        consumers.append(records_of(stream, patches, force=force, question=question))
    return consumers


def make_queries(texts: Sequence[str], region: str | None, region_at: float, example: Path | None) -> list[Query]:
    """Queries from the options that were given."""
    from arr_stream.relevance.query import load_example, parse_region, parse_text

    queries: list[Query] = [parse_text(text) for text in texts]
    if region is not None:
        queries.append(parse_region(region, region_at))
    if example is not None:
        queries.append(load_example(example))
    return queries


def without_skipping(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Settings in which cells are chosen by relevance alone, and a notice if that is a change.

    What `skip` leaves out is what a model has that is sent every frame. This one is shown a few frames a second, and
    its memory knows better what it holds.
    """
    if settings.selection.novelty != "skip":
        return settings, ()
    notice = "selection.novelty=skip: cells are chosen as with `mark`, and the model's memory leaves out what it holds"
    return settings.with_values({"selection.novelty": "mark"}), (notice,)


class Amortised:
    """Mean latency of a frame, keyframes included."""

    def __init__(self) -> None:
        self.frames = 0
        self.total_ms = 0.0
        self.keyframes = 0

    def add(self, patches: PatchSet) -> float:
        """Count a frame; its latency in milliseconds."""
        from arr_stream.consumer import total_ms

        latency_ms = total_ms(patches.latency_ms)
        self.frames += 1
        self.keyframes += patches.keyframe
        self.total_ms += latency_ms
        return latency_ms

    @property
    def mean_ms(self) -> float:
        return self.total_ms / max(1, self.frames)


def run_reported(
    stream: Stream,
    consumers: Sequence[Consumer],
    reporter: Reporter,
    amortised: Amortised,
    *,
    stop: threading.Event,
    watcher: Watcher | LiveWatcher | None = None,
) -> RunResult:
    """Run a stream into its consumers and tell how it goes."""
    from arr_stream.run import run

    def on_frame(patches: PatchSet) -> None:
        latency_ms = amortised.add(patches)
        for notice in patches.notices:
            reporter.notice(notice)
        reporter.frame(amortised.frames - 1, latency_ms, len(patches))

    result = run(stream, consumers, watcher=watcher, on_frame=on_frame, stop=stop)
    for consumer in consumers:
        for notice in getattr(consumer, "notices", ()):
            reporter.notice(notice)
    return result


def finish(result: RunResult) -> None:
    """Leave with the error or the exit code that a run ended with, if it did.

    Raises:
        ArrStreamError: What ended it early.
    """
    if result.error is not None:
        raise result.error
    if result.reason == "interrupted":
        err.print("arr-stream: interrupted", markup=False)
        raise typer.Exit(INTERRUPTED_EXIT_CODE)


def counted(number: int, what: str) -> str:
    """`1 frame`, `2 frames`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def last_word(result: RunResult, written: Sequence[Path], amortised: Amortised) -> str:
    """One line about a run."""
    ended = "" if result.reason == "finished" else f", {result.reason}"
    dropped = f", {result.dropped} dropped" if result.dropped else ""
    line = (
        f"{counted(result.frames, 'frame')}{dropped}, {counted(amortised.keyframes, 'keyframe')}{ended}; "
        f"{amortised.mean_ms:.1f} ms a frame, amortised over keyframes"
    )
    where = "; wrote " + ", ".join(str(path) for path in written) if written else ""
    return line + where
