"""`arr-stream process`: a video in, an annotated video, records and a report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from arr_stream.cli import options
from arr_stream.cli.console import Log, reporting
from arr_stream.cli.models import fetch_needed
from arr_stream.cli.running import Figures, Outputs, finish, last_word, run_told, stop_on_signals


def process(
    source: options.Source,
    query: options.Query = None,
    region: options.Region = None,
    example: options.Example = None,
    gaze: Annotated[Path | None, options.option("CSV of gaze samples: pts_seconds,x,y.", options.LOOK)] = None,
    budget: options.Budget = None,
    output: options.Video = None,
    patches: options.Patches = None,
    report: options.Report = None,
    force: options.Force = False,
    start: options.Start = None,
    end: options.End = None,
    max_frames: options.MaxFrames = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    log: options.LogOption = Log.TEXT,
) -> None:
    """Choose the cells of every frame and write the requested outputs.

    Precedence of settings: options and --set, then the preset, then the defaults (`arr-stream settings`).
    A name that begins with a dash goes after `--`.
    """
    settings = options.load_settings(preset, overrides, budget=budget)

    import arr_stream
    from arr_stream.relevance.query import make_queries

    write = Outputs(output, patches, report, force, settings.video.view)
    write.check(source)
    fetch_needed(settings)
    stream = arr_stream.open(
        source,
        queries=make_queries(query or (), region, example),
        settings=settings,
        gaze_csv=gaze,
        start_seconds=start,
        end_seconds=end,
        max_frames=max_frames,
    )
    with stream, reporting(stream.source.info.num_frames, log) as reporter, stop_on_signals() as stop:
        figures = Figures()
        result = run_told(stream, write.consumers(stream), reporter, figures, stop=stop)
        if result.frames:
            hint = "" if write.written else "; nothing written (see -o, --patches)"
            reporter.done(last_word(result, figures, write.written) + hint)
    finish(result)
