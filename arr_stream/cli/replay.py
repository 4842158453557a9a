"""`arr-stream replay`: repeats the run behind records and compares the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import print_line
from arr_stream.cli.options import But, TellOptions, WriteOptions, grouped
from arr_stream.cli.running import Figures, finish, last_word, run_told, stop_on_signals
from arr_stream.errors import InvalidSetting


@grouped
def replay(
    records: Annotated[Path, typer.Argument(help="Records that `process --patches` wrote.")],
    write: Annotated[WriteOptions, But("report")],
    tell: TellOptions,
    source: Annotated[str | None, typer.Argument(help="The source; by default where it was.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare what comes with the records.")] = False,
) -> None:
    """Run again what records were made of, to compare the results or to write more of them.

    The source must be the one that the records were made of, byte for byte.
    """
    if write.output is None and write.patches is None and not check:
        raise InvalidSetting("nothing to do", remedy="give --check, -o VIDEO or --patches RECORDS")
    from arr_stream.outputs import header_of
    from arr_stream.replay import Comparison, Recording

    recording = Recording(records)
    write.check(recording.source(source))
    if write.patches is not None and write.patches.exists() and write.patches.samefile(records):
        raise InvalidSetting(f"{write.patches}: the records themselves", remedy="choose another name for the output")
    settings = recording.settings()
    stream = recording.reopened(source, settings)
    with stream, tell.reporting(stream.source.info.num_frames) as reporter, stop_on_signals() as stop:
        versions = recording.changed_versions(settings)
        if versions:
            reporter.notice("versions differ from those of the records: " + "; ".join(versions))
        consumers = write.consumers(stream)
        # With nothing to write, the run ends at the first difference.
        comparison = Comparison(recording, header_of(stream), None if consumers else stop) if check else None
        figures = Figures()
        compared = [] if comparison is None else [comparison]
        result = run_told(stream, [*consumers, *compared], reporter, figures, stop=stop)
        if result.frames and write.written:
            reporter.done(last_word(result, figures, write.written))
    if comparison is not None and comparison.difference is not None:
        raise comparison.difference
    if comparison is None or not comparison.explains(result.reason):
        finish(result)
    if comparison is not None:
        print_line(comparison.verdict)
