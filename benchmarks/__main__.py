"""`python -m benchmarks NAME`: a command for each measurement."""

from __future__ import annotations

import typer

from arr_stream.cli import SaysInterrupted
from arr_stream.cli import main as run
from benchmarks.commands import quality, speed
from benchmarks.results.command import results

app = typer.Typer(
    cls=SaysInterrupted,
    help="Measure arr-stream beside published rules, plain ways and stock models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    quality.compare,
    quality.localisation,
    quality.answers,
    quality.carry,
    quality.text,
    speed.start,
    speed.device,
    speed.vlm,
    speed.serving,
    speed.live,
    results,
):
    app.command()(command)


def main() -> None:
    """Run the command line; errors end as one line and an exit code, as those of the product do."""
    run(app)


if __name__ == "__main__":
    main()
