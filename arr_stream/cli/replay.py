"""`arr-stream replay`: repeats the run behind records and compares the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import Log, print_line, reporting
from arr_stream.cli.running import Figures, finish, run_told, stop_on_signals


def replay(
    records: Annotated[Path, typer.Argument(help="Records that `process --patches` wrote.")],
    source: Annotated[str | None, typer.Argument(help="The source; by default at its recorded path.")] = None,
    log: options.LogOption = Log.TEXT,
) -> None:
    """Repeat a recorded run and compare the results.

    The source must be the recorded one, byte for byte.
    """
    from arr_stream.errors import RecordsDiffer
    from arr_stream.outputs import header_of
    from arr_stream.replay import Comparison, Recording

    recording = Recording(records)
    stream = recording.reopened(source)
    with stream, reporting(stream.source.info.num_frames, log) as reporter, stop_on_signals() as stop:
        if versions := recording.changed_versions():
            reporter.notice("versions differ from those of the records: " + "; ".join(versions))
        comparison = Comparison(recording, header_of(stream), stop)
        result = run_told(stream, [comparison], reporter, Figures(), stop=stop)
    if isinstance(result.error, RecordsDiffer) or not comparison.over:
        finish(result)
    print_line(comparison.verdict)
