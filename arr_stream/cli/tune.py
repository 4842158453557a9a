"""`arr-stream tune`: fit the scorers' weights to footage in which the object is known."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import counting, interrupted, say
from arr_stream.cli.measuring import Json, Overrides, Preset, Sequences, cpu_settings, show
from arr_stream.errors import EvaluationDataError, NoGain


class Kind(StrEnum):
    nothing = "nothing"
    region = "region"


def tune(
    data: Sequences,
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Preset to write (TOML), if the weights prove better.")
    ] = None,
    ask: Annotated[
        list[Kind] | None,
        typer.Option(help="Query for the object; repeatable (both)."),
    ] = None,
    hold_out: Annotated[
        list[str] | None, typer.Option(help="Held-out sequences: half, other-half, or names; repeatable.")
    ] = None,
    budget: Annotated[str, typer.Option(help="Tokens a frame, or a share of the grid.")] = "10%",
    rounds: Annotated[int, typer.Option(min=1, help="Most rounds of fitting and testing.")] = 3,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the preset.")] = False,
) -> None:
    """Fit the scorers' weights to footage with masks or boxes, and test them on held-out footage.

    The preset (`--preset FILE.toml`) is only written when held-out results improve beyond their noise.
    """
    fixed = {"selection.budget": budget, "selection.per_second": 0.0}
    settings = cpu_settings("tune", preset, overrides).with_values(fixed)
    from arr_stream.evaluation.footage import load_footage
    from arr_stream.files import make_parent, prepare_output, written_whole
    from arr_stream.tuning.report import LEAST_HELD_OUT
    from arr_stream.tuning.tuner import divide
    from arr_stream.tuning.tuner import tune as tune_weights

    hold_out = hold_out or ["half"]
    if output is None:
        say("nothing will be written: --out names a file for the weights")
    else:
        # A fit takes minutes: an unwritable output or a missing folder must not lose its result.
        prepare_output(output, force)
        make_parent(output)
    footage = load_footage(data)
    held_out = len(divide(footage, hold_out)[1])
    if output is not None and held_out < LEAST_HELD_OUT:
        raise EvaluationDataError(
            f"{data}: {held_out} of {len(footage)} sequences would be held out, too few to tell a gain from noise",
            remedy=f"give at least {LEAST_HELD_OUT} to hold out and one to fit to, or leave out --out to try it",
        )
    try:
        with counting() as advance:
            report = tune_weights(
                footage,
                settings,
                origin=data.resolve().name,
                kinds=[kind.value for kind in Kind if kind in (ask or Kind)],
                hold_out=hold_out,
                rounds=rounds,
                progress=lambda what, done, of: advance(f"{what}, {done} of {of}", done, of),
            )
    except KeyboardInterrupt:
        raise interrupted(", nothing was written") from None
    # First: the weights took longest, so a later failure must not lose them.
    if output is not None and report.gain.reliable:
        with written_whole(output, force=force) as partial:
            partial.write_text(report.preset(), encoding="utf-8")
        say(f"wrote {output}; use it with --preset {output}")
    show(report, as_json=as_json)
    if output is not None and not report.gain.reliable:
        raise NoGain(
            f"{output} not written: gain {report.gain}", remedy="keep the present weights, or give more footage"
        )
