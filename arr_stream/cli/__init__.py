"""The command line: parses options, builds the parts, runs them and prints the results."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from arr_stream.cli.console import give_up_output, interrupted, print_error, print_line, say
from arr_stream.errors import ArrStreamError
from arr_stream.extras import missing_package

_WATCH = "Process a live source: choose the cells of each frame, show and record them, and ask a model."

COMMANDS = {
    "process": ("process:process", "Choose the cells of every frame and write the requested outputs."),
    "batch": ("batch:batch", "Process many videos in parallel; run the same command again to resume."),
    "replay": ("replay:replay", "Repeat a recorded run and compare the results."),
    "ask": (
        "ask:ask",
        "Show a video to a model and ask it a question, at the end, at an interval, or when the scene changes.",
    ),
    "serve": ("serve:serve", "Serve a page and an interface for programs (docs/api.md) until Ctrl-C."),
    "webcam": ("live:stream", _WATCH),
    "stream": ("live:stream", _WATCH),
    "cameras": ("tables:cameras", "List the cameras of this machine and the argument that opens each."),
    "eval": ("evaluate:app", "Measure quality on footage with ground truth."),
    "bench": (
        "evaluate:bench",
        "Measure a file: stages, keyframes and frames between, and baselines in the same run. Look at the ratios.",
    ),
    "tune": (
        "tune:tune",
        "Fit the scorers' weights to footage with masks or boxes, and test them on held-out footage.",
    ),
    "models": ("models:app", "Weights on disk: list, download and verify them."),
    "vllm-args": (
        "vllm_args:vllm_args",
        "Print the command that starts vLLM with the plugin for cells at their true places.",
    ),
    "doctor": (
        "doctor:doctor",
        "Look at extras, backends and devices; exit with 1 if something that the defaults need does not work.",
    ),
    "channels": (
        "tables:channels",
        "Print the 40 channels of the texture: order, names, ranges, when each is renewed.",
    ),
    "settings": (
        "tables:settings",
        "List every setting with its value and meaning. Precedence: --set and options, then the preset, then defaults.",
    ),
}
"""Module and function (or group) of each command in this package, and its line in the list of commands."""


def _command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    target = getattr(import_module(f"arr_stream.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        command = get_command(target)
        command.name = name
        return command
    alone = typer.Typer(add_completion=False)
    alone.command(name)(target)
    return get_command(alone)


class SaysInterrupted(TyperGroup):
    """Group that reports Ctrl-C in any command; typer would end without a message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise interrupted() from None


class LazyGroup(SaysInterrupted):
    """Group that imports a command only when it is called; listing the commands imports none of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that `args` names, then resolve it as the parser does."""
        if args[0] in COMMANDS:
            self.commands[args[0]] = _command(args[0], COMMANDS[args[0]][0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="arr-stream",
    cls=LazyGroup,
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
    """Run a command line; report every expected error as one line with its own exit code."""
    # At exit, Python searches all imported objects for reference cycles: 0.1 s after a run, for no benefit.
    atexit.register(gc.freeze)
    for file in (sys.stdout, sys.stderr):
        # A terminal that lacks a letter shows a question mark instead of ending the run.
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="replace")
    try:
        command()
    except ArrStreamError as error:
        _leave(error)
    except KeyboardInterrupt:
        # Ctrl-C before a command began.
        sys.exit(interrupted().exit_code)
    except Exception as error:
        if os.environ.get("ARR_STREAM_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            from arr_stream.files import output_error

            if error.filename is None:
                # The parser writes its own text, such as help, to standard output without our console.
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
