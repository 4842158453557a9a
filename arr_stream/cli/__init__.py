"""The command line: parses, builds, runs and prints, nothing else."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from arr_stream.cli.console import give_up_output, interrupted, print_error, print_line, say
from arr_stream.errors import ArrStreamError

COMMANDS = {
    "process": "arr_stream.cli.process:process",
    "batch": "arr_stream.cli.batch:batch",
    "replay": "arr_stream.cli.replay:replay",
    "ask": "arr_stream.cli.ask:ask",
    "serve": "arr_stream.cli.serve:serve",
    "webcam": "arr_stream.cli.live:webcam",
    "stream": "arr_stream.cli.live:stream",
    "cameras": "arr_stream.cli.tables:cameras",
    "eval": "arr_stream.cli.evaluate:app",
    "bench": "arr_stream.cli.bench:app",
    "train-pca": "arr_stream.cli.train_pca:train_pca",
    "tune": "arr_stream.cli.tune:tune",
    "models": "arr_stream.cli.models:app",
    "doctor": "arr_stream.cli.doctor:doctor",
    "channels": "arr_stream.cli.tables:channels",
    "settings": "arr_stream.cli.tables:settings",
}
"""Where each is: a function, or an app with commands of its own. Imported when it is called, or listed."""


class _Commands(dict[str, Any]):
    """Commands by name, made of `COMMANDS` when they are asked for."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(place := super().__getitem__(name), str):
            self[name] = _command(name, place)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401


def _command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        command = get_command(target)
        command.name = name
        return command
    alone = typer.Typer(add_completion=False)
    alone.command(name)(target)
    return get_command(alone)


class SaysInterrupted(TyperGroup):
    """Tells of Ctrl-C in any command; the parser would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise interrupted() from None


class _Root(SaysInterrupted):
    """Imports what is called alone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(COMMANDS)


app = typer.Typer(
    name="arr-stream",
    cls=_Root,
    help="Decides, for every frame of a video, which few hundred patches a vision-language model should see.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        from arr_stream import __version__

        print_line(f"arr-stream {__version__}")
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
        sys.exit(interrupted().exit_code)
    except Exception as error:
        if os.environ.get("ARR_STREAM_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            # The parser's own words, such as help, go to standard output by another way.
            _disk_full(error)
        message = " ".join(str(error).split())
        say(f"arr-stream: internal error: {type(error).__name__}: {message}; set ARR_STREAM_DEBUG=1 for the traceback")
        sys.exit(1)


def _disk_full(error: OSError) -> NoReturn:
    from arr_stream.files import output_error

    told = output_error(error, Path(error.filename or "standard output"))
    if error.filename is None:
        give_up_output()
    print_error(told)
    sys.exit(told.exit_code)
