"""Whole tuning: record, fit, record again, and evaluate the held-out footage only at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.evaluation.footage import Footage
from arr_stream.tuning.fitting import STEPS, Case, Fit, fit
from arr_stream.tuning.recording import KINDS, Kind, Run, run
from arr_stream.tuning.report import Round, TuneReport

VALIDATION_PART = 4
"""Divisor of the validation part: one in so many of each fitted sequence's (last) frames."""

Progress = Callable[[str, int, int], None]
"""Callback for progress: description, amount done, total amount."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of tuning.

    Args:
        kinds: Kinds of query for the object, with equal weight.
        hold_out: As in `divide`.
        rounds: Most times that weights are fitted and the pipeline is run with them.
        steps: Most steps of one fit.
    """

    kinds: tuple[Kind, ...] = KINDS
    hold_out: tuple[str, ...] = ("half",)
    rounds: int = 3
    steps: int = STEPS


def divide(footage: Sequence[Footage], hold_out: Sequence[str]) -> tuple[list[Footage], list[Footage]]:
    """Divide footage into the part to fit to and the held-out part, which is used only after all decisions.

    Args:
        footage: All of it, by name.
        hold_out: `half` (every second sequence is held out), `other-half` (those that `half` fits to), or names of
            sequences.

    Raises:
        InvalidSetting: A name is unknown, or a part has no sequence.
    """
    names = [each.name for each in footage]
    if list(hold_out) in (["half"], ["other-half"]):
        held_out: Sequence[str] = names[1::2] if hold_out[0] == "half" else names[::2]
    else:
        held_out = hold_out
    unknown = [name for name in held_out if name not in names]
    if unknown:
        raise InvalidSetting(
            f"--hold-out {unknown[0]}: no such sequence",
            remedy=f"write half, other-half, or names of {', '.join(names)}",
        )
    fitted = [each for each in footage if each.name not in held_out]
    if not fitted or not held_out:
        raise InvalidSetting(
            f"--hold-out {' '.join(hold_out)} keeps {len(footage) - len(fitted)} of {len(footage)} sequences",
            remedy="leave at least one to fit to and one to hold out",
        )
    return fitted, [each for each in footage if each.name in held_out]


def tune(
    footage: Sequence[Footage],
    settings: Settings,
    options: TuneOptions | None = None,
    progress: Progress = lambda what, done, of: None,
) -> TuneReport:
    """Fit the scorers' weights to one part of some footage and test them on the other.

    Args:
        footage: At least two sequences, by name.
        settings: Everything else, and the weights to start from.
        options: Options of tuning.
        progress: Called after every run and every validation.

    Raises:
        EvaluationDataError: Footage that does not fit, or is too short.
        InvalidSetting: A division that leaves a part empty, a budget that leaves nothing to choose, or another
            strategy than `topk`.
    """
    options = options or TuneOptions()
    if settings.selection.strategy != "topk":
        raise InvalidSetting(
            f"selection.strategy={settings.selection.strategy}: weights are fitted to the choice of `topk`",
            remedy="tune with selection.strategy=topk",
        )
    fitted, held_out = divide(footage, options.hold_out)
    _check_truths(footage, options.kinds)

    def run_all(part: Sequence[Footage], weights: ScoringSettings, what: str, *, tables: bool = False) -> list[Run]:
        wanted = [(each, kind) for each in part for kind in options.kinds]
        runs = []
        for done, (each, kind) in enumerate(wanted):
            progress(f"{what}: {each.name}", done, len(wanted))
            runs.append(run(each, kind, settings.model_copy(update={"scoring": weights}), tables=tables))
        progress(what, len(wanted), len(wanted))
        return runs

    start = settings.scoring
    before = run_all(fitted, start, "untuned", tables=True)
    _check(before)
    validation = _validation_coverage(before)
    best, best_coverage, best_runs, rounds = start, validation, before, list[Round]()
    runs = before
    for number in range(1, options.rounds + 1):
        found = _fit(runs, best, options.steps, progress, number)
        if found.weights in (best, start):
            rounds.append(Round(found, best_coverage))
            break
        runs = run_all(fitted, found.weights, f"round {number}", tables=True)
        coverage = _validation_coverage(runs)
        rounds.append(Round(found, coverage))
        if coverage <= best_coverage:
            break
        best, best_coverage, best_runs = found.weights, coverage, runs
    held_before = run_all(held_out, start, "held out, untuned")
    held_after = run_all(held_out, best, "held out, tuned") if best != start else held_before
    return TuneReport(
        tuple(each.name for each in fitted),
        tuple(each.name for each in held_out),
        start,
        best,
        validation,
        tuple(rounds),
        tuple(replace(each, tables=()) for each in (*before, *held_before)),
        tuple(replace(each, tables=()) for each in (*best_runs, *held_after)),
        settings.selection.budget,
    )


def _check_truths(footage: Sequence[Footage], kinds: Sequence[Kind]) -> None:
    """Check that every sequence shows its object often enough, before a fit of hours starts.

    Held-out sequences are examined here for this only.
    """
    for each in footage:
        seen = [bool(mask.any()) for mask in each.masks()]
        boxed = any(seen[:1]) or "region" not in kinds
        if not boxed or sum(seen[1:]) < VALIDATION_PART:
            first = "on" if any(seen[:1]) else "not on"
            raise EvaluationDataError(
                f"{each.name}: the object is {first} the first frame, and on {sum(seen[1:])} after it",
                remedy=f"it must be on at least {VALIDATION_PART} later ones, and, where its box is asked for, on the "
                "first, or leave the sequence out",
            )


def _check(runs: Sequence[Run]) -> None:
    for each in runs:
        if any(not 0 < table.fine < len(table.share) for table in each.tables):
            raise InvalidSetting(
                f"{each.footage.name}: the budget shows the whole frame or none of it in detail",
                remedy="set --budget to a share of the frame, such as 10%",
            )


def _fitted_frames(run: Run) -> int:
    """Return the number of a run's frames to fit to; the rest is for validation."""
    count = len(run.coverage)
    return count - max(1, count // VALIDATION_PART)


def _validation_coverage(runs: Sequence[Run]) -> float:
    """Return the coverage of real runs on the validation frames; sequences and kinds of query have equal weight."""
    return float(np.mean([each.coverage[_fitted_frames(each) :].mean() for each in runs]))


def _fit(runs: Sequence[Run], present: ScoringSettings, steps: int, progress: Progress, number: int) -> Fit:
    training: list[Case] = [each.tables[: _fitted_frames(each)] for each in runs]
    validation: list[Case] = [each.tables[_fitted_frames(each) :] for each in runs]

    def advance(step: int, steps: int, coverage: float) -> None:
        progress(f"fit {number}: coverage {coverage:.3f}", step, steps)

    return fit(training, validation, present, steps=steps, advance=advance)
