"""`arr-stream replay`: the video drawn again from records and source, or the run done again and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import Reporter, out, reporting
from arr_stream.cli.running import Amortised, check_outputs, counted, finish, last_word, make_consumers, run_reported
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.records.recording import Recording

_AGAIN = "What to do"


def replay(
    records: Annotated[Path, typer.Argument(help="Records that `process --patches` wrote.")],
    source: Annotated[str | None, typer.Argument(help="Where the source is now, if not where it was.")] = None,
    output: options.Output = None,
    view: Annotated[
        str,
        typer.Option(
            help="What the video shows: patches or source; with --rerun, whatever `process --view` can.",
            rich_help_panel=options.WRITE,
        ),
    ] = "patches",
    check: Annotated[
        bool, typer.Option("--check", help="Run again and compare with the records.", rich_help_panel=_AGAIN)
    ] = False,
    rerun: Annotated[
        bool,
        typer.Option("--rerun", help="Run again, as the records say, and write what comes.", rich_help_panel=_AGAIN),
    ] = False,
    patches: Annotated[
        Path | None, typer.Option(help="With --rerun: its records.", rich_help_panel=options.WRITE)
    ] = None,
    audio: Annotated[bool, typer.Option(help="Keep the source's sound.", rich_help_panel=options.WRITE)] = True,
    force: options.Force = False,
    start: options.Start = None,
    end: options.End = None,
    sandbox: options.Sandbox = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Draw the annotated video again, without choosing anything; or run again and see whether the same comes of it.

    The source must be the one that the records were made of, byte for byte.
    """
    again = check or rerun
    _check_options(again=again, check=check, output=output, patches=patches, ranged=(start, end) != (None, None))
    from arr_stream.records.recording import Recording, source_of

    recording = Recording(records)
    named = source_of(recording, source)
    check_outputs(named, output=output, patches=patches, view=view, force=force)
    if not again:
        from arr_stream.replay.redraw import check_replay_view

        check_replay_view(view)
    _check_not_records(records, output, patches)
    settings = recording.settings() if again else recording.settings_for_drawing()
    if sandbox:
        settings = settings.with_values({"source.sandbox": True})
    if again:
        _run_again(
            recording, source, settings, check=check, output=output, patches=patches, view=view, audio=audio,
            force=force, quiet=quiet, log_json=log_json,
        )  # fmt: skip
        return

    from arr_stream.replay.redraw import RecordedStream, redrawn_video
    from arr_stream.run import run, stop_on_signals

    assert output is not None
    stream = RecordedStream(recording, source, start_seconds=start, end_seconds=end, settings=settings)
    try:
        video = redrawn_video(stream, output, view=view, audio=audio, force=force, start_seconds=start, end_seconds=end)
        with reporting(stream.source.info.num_frames, quiet=quiet, log_json=log_json) as reporter:
            _tell_unsure(recording, reporter)
            with stop_on_signals() as stop:
                result = run(
                    stream,
                    [video],
                    stop=stop,
                    on_frame=lambda patches: reporter.frame(patches.index, 0.0, len(patches)),
                )
            for notice in video.notices:
                reporter.notice(notice)
            if result.frames:
                reporter.done(f"{counted(result.frames, 'frame')} drawn again, {result.reason}; wrote {output}")
    finally:
        stream.close()
    finish(result)


def _check_options(*, again: bool, check: bool, output: Path | None, patches: Path | None, ranged: bool) -> None:
    if output is None and patches is None and not check:
        raise InvalidSetting("nothing to write", remedy="give -o VIDEO, or --check")
    if patches is not None and not again:
        raise InvalidSetting("--patches without --rerun", remedy="records come of a run; give --rerun as well")
    if ranged and again:
        raise InvalidSetting(
            "--start or --end beside --check or --rerun", remedy="what is run again is all of it: leave them out"
        )


def _check_not_records(records: Path, *outputs: Path | None) -> None:
    for path in outputs:
        if path is not None and path.exists() and path.samefile(records):
            raise InvalidSetting(f"{path}: the records themselves", remedy="choose another name for the output")


def _run_again(
    recording: Recording,
    source: str | None,
    settings: Settings,
    *,
    check: bool,
    output: Path | None,
    patches: Path | None,
    view: str,
    audio: bool,
    force: bool,
    quiet: bool,
    log_json: bool,
) -> None:
    """Run as the records say, write what was asked for, and compare."""
    from arr_stream.replay.rerun import Comparison, changed_versions, reopened
    from arr_stream.run import header_of, stop_on_signals

    stream = reopened(recording, source, settings)
    with stream, reporting(stream.source.info.num_frames, quiet=quiet, log_json=log_json) as reporter:
        versions = changed_versions(recording, settings)
        if versions:
            reporter.notice("not as it was when the records were made: " + "; ".join(versions))
        _tell_unsure(recording, reporter)
        consumers = make_consumers(
            stream, output=output, report=None, patches=patches, view=view, audio=audio, force=force
        )
        amortised = Amortised()
        with stop_on_signals() as stop:
            # Where nothing else is made, there is no use in going on once it is known.
            comparison = Comparison(recording, header_of(stream), None if consumers else stop) if check else None
            compared = [] if comparison is None else [comparison]
            result = run_reported(stream, [*consumers, *compared], reporter, amortised, stop=stop)
        written = [path for path in (output, patches) if path is not None and path.exists()]
        if result.frames and written:
            reporter.done(last_word(result, written, amortised))
    if comparison is None:
        finish(result)
        return
    if comparison.difference is not None:
        raise comparison.difference
    if not comparison.explains(result.reason):
        finish(result)
    out.print(comparison.verdict, markup=False, soft_wrap=True)


def _tell_unsure(recording: Recording, reporter: Reporter) -> None:
    identity = recording.provenance.source
    if identity is None or identity.sha256 is None:
        reporter.notice(
            f"{recording.path} holds no hash of its source: only the sizes and times of its frames are compared"
        )
