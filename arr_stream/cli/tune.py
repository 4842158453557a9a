"""`arr-stream tune`: fit the scorers' weights to footage in which the object is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import counting, interrupted, out, say
from arr_stream.cli.measuring import (
    Json,
    Overrides,
    Preset,
    cpu_settings,
    show_tables,
)
from arr_stream.errors import EvaluationDataError, NoGain

DEFAULT_ROUNDS = 3

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.tuning.tuner import Progress, TuneOptions, TuneReport


def tune(
    data: Annotated[
        Path,
        typer.Argument(help="Folder with frames/SEQ and masks/SEQ or boxes/SEQ.json, or clips with truth files."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Preset to write (TOML), if the weights prove better.")
    ] = None,
    ask: Annotated[
        list[str] | None,
        typer.Option(help="Query for the object: nothing, region or words; repeatable (nothing and region)."),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(help="Held-out sequences: half, other-half, a share such as 0.5, or names; repeatable."),
    ] = None,
    budget: Annotated[str, typer.Option(help="Tokens a frame, or a share of the grid.")] = "10%",
    rounds: Annotated[int, typer.Option(min=1, help="Most rounds of fitting and testing.")] = DEFAULT_ROUNDS,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Longest time of fitting; results then depend on the machine.")
    ] = None,
    weight: Annotated[list[str] | None, typer.Option(help="Fit only this weight; repeatable.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of all random draws; the same seed gives the same weights.")
    ] = 0,
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
    from arr_stream.files import make_parent, prepare_output
    from arr_stream.tuning.fitting import FitOptions
    from arr_stream.tuning.parameters import NAMES
    from arr_stream.tuning.tuner import TuneOptions

    # Report an unwritable output at once.
    if output is not None:
        prepare_output(output, force)
    if output is None:
        say("nothing will be written: --out names a file for the weights")
    options = TuneOptions(
        hold_out=tuple(hold_out or ("half",)),
        rounds=rounds,
        names=tuple(dict.fromkeys(weight)) if weight else NAMES,
        fit=FitOptions(seed=seed),
        in_time=_within(minutes),
    )
    # A fit takes minutes: a missing folder must not lose its result.
    if output is not None:
        make_parent(output)
    report = _fit(data, settings, options, ask, judged=output is not None)
    _finish(report, data.resolve().name, output, as_json=as_json, force=force)
    if output is not None and not report.gain.reliable:
        raise NoGain(
            f"{output} not written: gain {report.gain}", remedy="keep the present weights, or give more footage"
        )


def _fit(data: Path, settings: Settings, options: TuneOptions, ask: list[str] | None, *, judged: bool) -> TuneReport:
    from arr_stream.tuning.footage import divide, load_footage
    from arr_stream.tuning.gain import LEAST_HELD_OUT
    from arr_stream.tuning.recording import checked_kinds
    from arr_stream.tuning.tuner import tune as tune_weights

    options = replace(options, kinds=checked_kinds(ask)) if ask else options
    footage = load_footage(data)
    held_out = len(divide(footage, options.hold_out, options.fit.seed).held_out)
    if judged and held_out < LEAST_HELD_OUT:
        raise EvaluationDataError(
            f"{data}: {held_out} of {len(footage)} sequences would be held out, too few to tell a gain from noise",
            remedy=f"give at least {LEAST_HELD_OUT} to hold out and one to fit to, or leave out --out to try it",
        )
    with _told() as progress:
        return tune_weights(footage, settings, options, progress)


@contextmanager
def _told() -> Iterator[Progress]:
    """Yield the progress callback of a fit; Ctrl-C within ends the fit with nothing written."""
    try:
        with counting() as advance:

            def progress(what: str, done: int, of: int) -> None:
                advance(f"{what}, {done} of {of}", done, of)

            yield progress
    except KeyboardInterrupt:
        raise interrupted(", nothing was written") from None


def _within(minutes: float | None) -> Callable[[], bool]:
    """Return a function that returns True while there is time left."""
    if minutes is None:
        return lambda: True
    end = time.monotonic() + minutes * 60
    return lambda: time.monotonic() < end


def _finish(report: TuneReport, origin: str, output: Path | None, *, as_json: bool, force: bool) -> None:
    """Write the preset if it is reliably better, and print the results."""
    from arr_stream.files import written_whole
    from arr_stream.tuning.report import gains, preset, tables

    text, last, division = preset(report, origin), gains(report), report.division
    more = {
        "fitted": [footage.name for footage in division.fitted],
        "held_out": [footage.name for footage in division.held_out],
        "budget": report.budget,
        "seed": report.seed,
    }
    # First: the weights took longest, so a later failure must not lose them.
    if output is not None and report.gain.reliable:
        with written_whole(output, force=force) as partial:
            partial.write_text(text, encoding="utf-8")
        say(f"wrote {output}; use it with --preset {output}")
    if not as_json:
        show_tables(tables(report))
        out.print(last, markup=False)
        return
    values = {
        "tables": [table.as_json() for table in tables(report)],
        "gain": {**asdict(report.gain), "reliable": report.gain.reliable},
        "scoring": report.weights.model_dump(),
        "preset": text if report.gain.reliable else None,
        **more,
    }
    out.print_json(json.dumps(values))
