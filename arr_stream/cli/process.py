"""`arr-stream process`: a video in, an annotated video, records and a report out."""

from __future__ import annotations

from arr_stream.cli.models import fetch_needed
from arr_stream.cli.options import (
    LookOptions,
    ReadOptions,
    Realtime,
    SettingsOptions,
    Source,
    TellOptions,
    WriteOptions,
    grouped,
)
from arr_stream.cli.running import Figures, finish, last_word, run_told, stop_on_signals


@grouped
def process(
    source: Source,
    look: LookOptions,
    write: WriteOptions,
    read: ReadOptions,
    chosen: SettingsOptions,
    tell: TellOptions,
    realtime: Realtime = False,
) -> None:
    """Choose the cells of every frame and write what was asked for.

    Precedence of settings: options and --set, then the preset, then the defaults (`arr-stream settings`).
    A name that begins with a dash goes after `--`.
    """
    settings = chosen.load(look)

    import arr_stream

    write.check(source)
    fetch_needed(settings)
    stream = arr_stream.open(
        source,
        queries=look.queries(),
        settings=settings,
        gaze_csv=look.gaze,
        realtime=realtime,
        video_stream=read.video_stream,
        **read.span,
    )
    with stream, tell.reporting(stream.source.info.num_frames) as reporter, stop_on_signals() as stop:
        figures = Figures()
        result = run_told(stream, write.consumers(stream), reporter, figures, stop=stop)
        if result.frames:
            hint = "" if write.written else "; nothing written (see -o, --patches)"
            reporter.done(last_word(result, figures, write.written) + hint)
    finish(result)
