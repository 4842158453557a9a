"""`arr-stream replay`: the video drawn again from records and source, or the run done again and compared."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import Reporter, counted, print_line
from arr_stream.cli.options import But, ReadOptions, TellOptions, WriteOptions, grouped
from arr_stream.cli.running import Figures, finish, last_word, run_told, stop_on_signals, tell_notices
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.records.recording import Recording

_AGAIN = "What to do"


@grouped
def replay(
    records: Annotated[Path, typer.Argument(help="Records that `process --patches` wrote.")],
    write: Annotated[
        WriteOptions,
        But(
            "report",
            view="What the video shows: patches or source; with --rerun, whatever `process --view` can.",
            patches="With --rerun: its records.",
        ),
    ],
    read: Annotated[ReadOptions, But("video_stream", "stride", "max_frames")],
    tell: TellOptions,
    source: Annotated[str | None, typer.Argument(help="Where the source is now, if not where it was.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run again and compare with the records.", rich_help_panel=_AGAIN)
    ] = False,
    rerun: Annotated[
        bool,
        typer.Option("--rerun", help="Run again, as the records say, and write what comes.", rich_help_panel=_AGAIN),
    ] = False,
) -> None:
    """Draw the annotated video again, without choosing anything; or run again and see whether the same comes of it.

    The source must be the one that the records were made of, byte for byte.
    """
    again = check or rerun
    _check_options(write, read, again=again, check=check)
    from arr_stream.records.recording import Recording, source_of

    recording = Recording(records)
    write.check(source_of(recording, source))
    if not again:
        from arr_stream.replay.redraw import check_replay_view

        check_replay_view(write.view)
    for path in (write.output, write.patches):
        if path is not None and path.exists() and path.samefile(records):
            raise InvalidSetting(f"{path}: the records themselves", remedy="choose another name for the output")
    settings = recording.settings() if again else recording.settings_for_drawing()
    if again:
        _run_again(recording, source, settings, write, tell, check=check)
    else:
        _draw_again(recording, source, settings, write, read, tell)


def _check_options(write: WriteOptions, read: ReadOptions, *, again: bool, check: bool) -> None:
    if write.output is None and write.patches is None and not check:
        raise InvalidSetting("nothing to write", remedy="give -o VIDEO, or --check")
    if write.patches is not None and not again:
        raise InvalidSetting("--patches without --rerun", remedy="records come of a run; give --rerun as well")
    if again and (read.start, read.end) != (None, None):
        raise InvalidSetting(
            "--start or --end beside --check or --rerun", remedy="what is run again is all of it: leave them out"
        )


def _draw_again(
    recording: Recording,
    source: str | None,
    settings: Settings,
    write: WriteOptions,
    read: ReadOptions,
    tell: TellOptions,
) -> None:
    """Draw the video as it was drawn when the records were made."""
    from arr_stream.replay.redraw import RecordedStream, redrawn_video
    from arr_stream.run import run

    assert write.output is not None
    part = {"start_seconds": read.start, "end_seconds": read.end}
    stream = RecordedStream(recording, source, settings=settings, **part)
    try:
        drawn = itertools.count()
        video = redrawn_video(stream, write.output, view=write.view, audio=write.audio, force=write.force, **part)
        with tell.reporting(stream.source.info.num_frames) as reporter, stop_on_signals() as stop:
            _tell_unsure(recording, reporter)
            result = run(
                stream,
                [video],
                stop=stop,
                on_frame=lambda patches: reporter.frame(next(drawn), 0.0, patches.tokens),
            )
            tell_notices([video], reporter)
            if result.frames:
                frames = counted(result.frames, "frame")
                reporter.done(f"{frames} drawn again, {result.reason}; wrote {write.output}")
    finally:
        stream.close()
    finish(result)


def _run_again(
    recording: Recording, source: str | None, settings: Settings, write: WriteOptions, tell: TellOptions, *, check: bool
) -> None:
    """Run as the records say, write what was asked for, and compare."""
    from arr_stream.replay.rerun import Comparison, changed_versions, reopened
    from arr_stream.run import header_of

    stream = reopened(recording, source, settings)
    with stream, tell.reporting(stream.source.info.num_frames) as reporter, stop_on_signals() as stop:
        versions = changed_versions(recording, settings)
        if versions:
            reporter.notice("not as it was when the records were made: " + "; ".join(versions))
        _tell_unsure(recording, reporter)
        consumers = write.consumers(stream)
        # Where nothing else is made, there is no use in going on once it is known.
        comparison = Comparison(recording, header_of(stream), None if consumers else stop) if check else None
        figures = Figures()
        compared = [] if comparison is None else [comparison]
        result = run_told(stream, [*consumers, *compared], reporter, figures, stop=stop)
        if result.frames and write.written:
            reporter.done(last_word(result, figures, write.written))
    if comparison is None:
        finish(result)
        return
    if comparison.difference is not None:
        raise comparison.difference
    if not comparison.explains(result.reason):
        finish(result)
    print_line(comparison.verdict)


def _tell_unsure(recording: Recording, reporter: Reporter) -> None:
    identity = recording.provenance.source
    if identity is None or identity.sha256 is None:
        reporter.notice(
            f"{recording.path} holds no hash of its source: only the sizes and times of its frames are compared"
        )
