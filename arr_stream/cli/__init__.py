"""The command line: parses, builds, runs and prints, nothing else."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from arr_stream.cli import (
    ask,
    batch,
    bench,
    cameras,
    channels,
    doctor,
    evaluate,
    models,
    process,
    replay,
    serve,
    settings,
    stream,
    train_pca,
    tune,
    webcam,
)
from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, err, give_up_output, out, print_error
from arr_stream.errors import ArrStreamError


class SaysInterrupted(TyperGroup):
    """Ctrl-C in any command is told; the parser would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            err.print("arr-stream: interrupted", markup=False)
            raise typer.Exit(INTERRUPTED_EXIT_CODE) from None


app = typer.Typer(
    name="arr-stream",
    cls=SaysInterrupted,
    help="Decides, for every frame of a video, which few hundred patches a vision-language model should see.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(process.process)
app.command()(batch.batch)
app.command()(replay.replay)
app.command()(ask.ask)
app.command()(serve.serve)
app.command()(webcam.webcam)
app.command()(stream.stream)
app.command()(cameras.cameras)
app.add_typer(evaluate.app, name="eval")
app.command(cls=bench.Bench)(bench.bench)
app.command()(train_pca.train_pca)
app.command()(tune.tune)
app.add_typer(models.app, name="models")
app.command()(doctor.doctor)
app.command()(channels.channels)
app.command()(settings.settings)


def _version(show: bool) -> None:
    if show:
        from arr_stream import __version__

        out.print(f"arr-stream {__version__}", markup=False)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options before any command."""


def main(command: typer.Typer = app) -> None:
    """Run a command line; every expected error ends as one line and an exit code of its own."""
    for file in (sys.stdout, sys.stderr):
        # A terminal that lacks a letter shows a question mark instead of ending the run.
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="replace")
    try:
        command()
    except ArrStreamError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        # Before a command began.
        err.print("arr-stream: interrupted", markup=False)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if os.environ.get("ARR_STREAM_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            # The parser's own words, such as help, go to standard output by another way.
            _disk_full(error)
        message = " ".join(str(error).split())
        err.print(
            f"arr-stream: internal error: {type(error).__name__}: {message}; set ARR_STREAM_DEBUG=1 for the traceback",
            soft_wrap=True,
            markup=False,
        )
        sys.exit(1)


def _disk_full(error: OSError) -> NoReturn:
    from arr_stream.files import output_error

    told = output_error(error, Path(error.filename or "standard output"))
    if error.filename is None:
        give_up_output()
    print_error(told)
    sys.exit(told.exit_code)
