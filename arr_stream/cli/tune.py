"""`arr-stream tune`: fit the scorers' weights to footage in which the object is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import counting, interrupted, out, say
from arr_stream.cli.measuring import (
    Force,
    Json,
    Overrides,
    Preset,
    check_picture,
    cpu_settings,
    show_tables,
    write_picture,
)
from arr_stream.cli.options import excludes
from arr_stream.errors import EvaluationDataError, NoGain, OutputUnwritable

DEFAULT_ROUNDS = 3

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.tuning.gain import Gain
    from arr_stream.tuning.through_model import TunedAnswers
    from arr_stream.tuning.tuner import Progress, TuneReport


def tune(
    data: Annotated[
        Path,
        typer.Argument(
            help="Folder with frames/SEQ and masks/SEQ or boxes/SEQ.json, or clips with truth files; with "
            "--through-model JSON lines of questions about pictures, as `eval questions` takes them."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Preset to write (TOML), if the weights prove better.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write held-out frames before and after (PNG).")] = None,
    ask: Annotated[
        list[str] | None,
        typer.Option(help="How the object is asked for: nothing, region or words; repeat it (nothing and region)."),
    ] = None,
    hold_out: Annotated[
        list[str] | None, typer.Option(help="half, other-half, a share such as 0.5, or names; repeat it for several.")
    ] = None,
    budget: Annotated[str, typer.Option(help="Tokens a frame, or a share of the grid.")] = "10%",
    rounds: Annotated[int, typer.Option(min=1, help="Most times that weights are fitted and tried.")] = DEFAULT_ROUNDS,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Fit no longer than this; results then depend on the machine.")
    ] = None,
    weight: Annotated[list[str] | None, typer.Option(help="Only this weight may move; repeat it for several.")] = None,
    through_model: Annotated[
        str | None, typer.Option(help="Fit to this model's answers instead: `tiny`, a hub name or a folder.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws; the same seed gives the same weights.")] = 0,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
    force: Force = False,
) -> None:
    """Fit the scorers' weights to footage with masks or boxes, or to answers, and test them on held-out data.

    The preset (`--preset FILE.toml`) is only written when held-out results improve beyond their noise.
    """
    fixed = {"selection.budget": budget, "selection.per_second": 0.0}
    settings = cpu_settings("tune", preset, overrides).with_values(fixed)
    if through_model is not None:
        others: dict[str, object] = {
            "--picture": picture,
            "--ask": ask,
            "--hold-out": hold_out,
            "--rounds": rounds != DEFAULT_ROUNDS or None,
        }
        excludes("--through-model", others, "it fits to answers")
        settings = settings.with_values({"vlm.model": through_model})
        _tune_through_model(data, output, settings, weight, seed, _within(minutes), as_json=as_json, force=force)
        return

    from arr_stream.files import make_parent, prepare_output
    from arr_stream.tuning.fitting import FitOptions
    from arr_stream.tuning.footage import divide, load_footage
    from arr_stream.tuning.gain import LEAST_HELD_OUT
    from arr_stream.tuning.parameters import NAMES
    from arr_stream.tuning.recording import checked_kinds
    from arr_stream.tuning.report import draw_before_and_after
    from arr_stream.tuning.report import preset as to_preset
    from arr_stream.tuning.tuner import TuneOptions
    from arr_stream.tuning.tuner import tune as tune_weights

    # What cannot be written should be said at once.
    if output is not None:
        prepare_output(output, force)
    check_picture(picture, force=force)
    if output is not None and picture is not None and output.resolve() == picture.resolve():
        raise OutputUnwritable(f"{output}: named twice, for preset and picture", remedy="give each its own name")
    if output is None:
        say("nothing will be written: --out names a file for the weights")
    options = TuneOptions(
        kinds=checked_kinds(ask) if ask else TuneOptions().kinds,
        hold_out=tuple(hold_out or ("half",)),
        rounds=rounds,
        names=tuple(dict.fromkeys(weight)) if weight else NAMES,
        fit=FitOptions(seed=seed),
        in_time=_within(minutes),
    )
    footage = load_footage(data)
    # A fit takes minutes, and must not be lost for want of a folder.
    for path in (output, picture):
        if path is not None:
            make_parent(path)
    held_out = len(divide(footage, options.hold_out, seed).held_out)
    if output is not None and held_out < LEAST_HELD_OUT:
        raise EvaluationDataError(
            f"{data}: {held_out} of {len(footage)} sequences would be held out, too few to tell a gain from noise",
            remedy=f"give at least {LEAST_HELD_OUT} to hold out and one to fit to, or leave out --out to try it",
        )
    with _told() as progress:
        report = tune_weights(footage, settings, options, progress)
    tuned = to_preset(report, data.resolve().name) if report.gain.reliable else None
    # First: whatever becomes of the rest, the weights took longest.
    _write(output, tuned, force=force)
    _print(report, tuned, as_json=as_json)
    write_picture(picture, lambda path: draw_before_and_after(report, path), force=force)
    _check_gain(output, report.gain)


def _tune_through_model(
    data: Path,
    output: Path | None,
    settings: Settings,
    weight: list[str] | None,
    seed: int,
    in_time: Callable[[], bool],
    *,
    as_json: bool,
    force: bool,
) -> None:
    from arr_stream.evaluation.questions import read_questions
    from arr_stream.files import make_parent, prepare_output
    from arr_stream.tuning.fitting import FitOptions
    from arr_stream.tuning.parameters import NAMES
    from arr_stream.tuning.report import answer_preset
    from arr_stream.tuning.through_model import TuneOptions, tune_through_model

    if output is not None:
        prepare_output(output, force)
        make_parent(output)
    names = tuple(dict.fromkeys(weight)) if weight else NAMES
    options = TuneOptions(names=names, fit=FitOptions(frames=24, seed=seed), in_time=in_time)
    questions, skipped = read_questions(data)
    for each in skipped:
        say(f"line {each.line} left out: {each.reason}")
    with _told() as progress:
        report = tune_through_model(questions, settings, options, progress)
    preset = answer_preset(report, data.resolve().name) if report.gain.reliable else None
    _write(output, preset, force=force)
    _print(report, preset, as_json=as_json)
    _check_gain(output, report.gain)


@contextmanager
def _told() -> Iterator[Progress]:
    """What tells how a fit goes; Ctrl-C within ends it with nothing written."""
    try:
        with counting() as advance:

            def progress(what: str, done: int, of: int) -> None:
                advance(f"{what}, {done} of {of}", done, of)

            yield progress
    except KeyboardInterrupt:
        raise interrupted(", nothing was written") from None


def _write(output: Path | None, preset: str | None, *, force: bool) -> None:
    from arr_stream.files import written_whole

    if output is not None and preset is not None:
        with written_whole(output, force=force) as partial:
            partial.write_text(preset, encoding="utf-8")
        say(f"wrote {output}; use it with --preset {output}")


def _within(minutes: float | None) -> Callable[[], bool]:
    """Tells whether there is time left."""
    if minutes is None:
        return lambda: True
    end = time.monotonic() + minutes * 60
    return lambda: time.monotonic() < end


def _check_gain(output: Path | None, gain: Gain) -> None:
    if output is not None and not gain.reliable:
        raise NoGain(f"{output} not written: gain {gain}", remedy="keep the weights you have, or give more footage")


def _print(report: TuneReport | TunedAnswers, preset: str | None, *, as_json: bool) -> None:
    from arr_stream.tuning.report import answer_tables, gains, tables
    from arr_stream.tuning.tuner import TuneReport

    found = tables(report) if isinstance(report, TuneReport) else answer_tables(report)
    if not as_json:
        show_tables(found)
        out.print(gains(report) if isinstance(report, TuneReport) else f"gain {report.gain}", markup=False)
        return
    values: dict[str, object] = {
        "tables": [table.as_json() for table in found],
        "gain": {**asdict(report.gain), "reliable": report.gain.reliable},
        "scoring": report.weights.model_dump(),
        "preset": preset,
    }
    if isinstance(report, TuneReport):
        values |= {
            "fitted": [footage.name for footage in report.division.fitted],
            "held_out": [footage.name for footage in report.division.held_out],
            "budget": report.budget,
            "seed": report.seed,
        }
    out.print_json(json.dumps(values))
