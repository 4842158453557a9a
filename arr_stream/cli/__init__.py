"""The command line: parses, builds, runs and prints, nothing else."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from arr_stream.cli.console import give_up_output, interrupted, print_error, print_line, say
from arr_stream.errors import ArrStreamError, InvalidSetting
from arr_stream.extras import missing_package

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
    "bench": "arr_stream.cli.evaluate:bench",
    "train-pca": "arr_stream.cli.train_pca:train_pca",
    "tune": "arr_stream.cli.tune:tune",
    "models": "arr_stream.cli.models:app",
    "vllm-args": "arr_stream.cli.vllm_args:vllm_args",
    "doctor": "arr_stream.cli.doctor:doctor",
    "channels": "arr_stream.cli.tables:channels",
    "settings": "arr_stream.cli.tables:settings",
}
"""Where each is: a function, or an app with commands of its own. Imported when it is called, or listed."""


MOVED = (
    *("ablation", "atlas", "batch", "cascade", "claims", "clusters", "compare", "device", "interval"),
    *("live", "localisation", "meaning", "query", "vlm"),
)
"""Measurements of the product beside others, which were part of `eval` and `bench`."""


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
        self.commands = cast("Any", dict.fromkeys(COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands.get(cmd_name) is None and cmd_name in COMMANDS:
            self.commands[cmd_name] = _command(cmd_name, COMMANDS[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As the parser; names the command that took the place of one that was here.

        Raises:
            InvalidSetting: One of `MOVED` is asked for, and not a file of that name.
        """
        if args[0] in ("eval", "bench") and args[1:2] and args[1] in MOVED and not Path(args[1]).exists():
            raise InvalidSetting(
                f"{args[1]}: no longer a command of arr-stream",
                remedy=f"run `python -m benchmarks {args[1]}` in a checkout of its source code",
            )
        return super().resolve_command(ctx, args)


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
        _leave(error)
    except KeyboardInterrupt:
        # Before a command began.
        sys.exit(interrupted().exit_code)
    except Exception as error:
        if os.environ.get("ARR_STREAM_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            from arr_stream.files import output_error

            if error.filename is None:
                # The parser's own words, such as help, go to standard output by another way.
                give_up_output()
            _leave(output_error(error, Path(error.filename or "standard output")))
        missing = missing_package(error.name, "this command") if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            _leave(missing)
        message = " ".join(str(error).split())
        say(f"arr-stream: internal error: {type(error).__name__}: {message}; set ARR_STREAM_DEBUG=1 for the traceback")
        sys.exit(1)


def _leave(error: ArrStreamError) -> NoReturn:
    print_error(error)
    sys.exit(error.exit_code)
