"""Whole tuning: record, fit, record again, and evaluate the held-out footage only at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.evaluation.footage import Footage
from arr_stream.tuning.fitting import STEPS, Progress, fit
from arr_stream.tuning.recording import KINDS, Kind, Run, run
from arr_stream.tuning.report import TuneReport

VALIDATION_PART = 4
"""Divisor of the validation part: one in so many of each fitted sequence's (last) frames."""


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
    halves = {"half": names[1::2], "other-half": names[::2]}
    held_out = halves.get(hold_out[0], hold_out) if len(hold_out) == 1 else hold_out
    if not set(held_out) <= set(names) or not 0 < len(set(held_out)) < len(names):
        raise InvalidSetting(
            f"--hold-out {' '.join(hold_out)} of {len(names)} sequences",
            remedy=f"write half, other-half, or names of {', '.join(names)}, and leave at least one to fit to",
        )
    return [each for each in footage if each.name not in held_out], [each for each in footage if each.name in held_out]


def tune(
    footage: Sequence[Footage],
    settings: Settings,
    *,
    origin: str = "",
    kinds: Sequence[Kind] = KINDS,
    hold_out: Sequence[str] = ("half",),
    rounds: int = 3,
    steps: int = STEPS,
    progress: Progress = lambda what, done, of: None,
) -> TuneReport:
    """Fit the scorers' weights to one part of some footage and test them on the other.

    Args:
        footage: At least two sequences, by name.
        settings: Everything else, and the weights to start from.
        origin: Name of the data, for the report.
        kinds: Kinds of query for the object, with equal weight.
        hold_out: As in `divide`.
        rounds: Most times that weights are fitted and the pipeline is run with them.
        steps: Most steps of one fit.
        progress: Called after every run and every validation.

    Raises:
        EvaluationDataError: Footage that does not fit, or is too short.
        InvalidSetting: A division that leaves a part empty, a budget that leaves nothing to choose, or another
            strategy than `topk`.
    """
    if settings.selection.strategy != "topk":
        raise InvalidSetting(
            f"selection.strategy={settings.selection.strategy}: weights are fitted to the choice of `topk`",
            remedy="tune with selection.strategy=topk",
        )
    fitted, held_out = divide(footage, hold_out)
    _check_visible(footage, boxed="region" in kinds)

    def run_all(part: Sequence[Footage], weights: ScoringSettings, what: str) -> list[Run]:
        wanted = [(each, kind) for each in part for kind in kinds]
        runs = []
        for done, (each, kind) in enumerate(wanted):
            progress(f"{what}: {each.name}", done, len(wanted))
            made = run(each, kind, settings.model_copy(update={"scoring": weights}))
            runs.append(made if part is fitted else replace(made, tables=()))
        progress(what, len(wanted), len(wanted))
        return runs

    start = best = settings.scoring
    before = best_runs = runs = run_all(fitted, start, "untuned")
    if any(not 0 < table.fine < len(table.share) for each in before for table in each.tables):
        raise InvalidSetting(
            f"budget {settings.selection.budget}: it shows a whole frame or none of it in detail",
            remedy="set --budget to a share of the frame, such as 10%",
        )
    for number in range(1, rounds + 1):
        found = fit(
            [each.tables[: _fitted_frames(each)] for each in runs],
            [each.tables[_fitted_frames(each) :] for each in runs],
            best,
            steps=steps,
            progress=progress,
        )
        if found in (best, start):
            break
        runs = run_all(fitted, found, f"round {number}")
        if _validation_coverage(runs) <= _validation_coverage(best_runs):
            break
        best, best_runs = found, runs
    held_before = run_all(held_out, start, "held out, untuned")
    held_after = run_all(held_out, best, "held out, tuned") if best != start else held_before
    return TuneReport(
        origin,
        tuple(each.name for each in fitted),
        tuple(each.name for each in held_out),
        start,
        best,
        (*before, *held_before),
        (*best_runs, *held_after),
        settings.selection.budget,
    )


def _check_visible(footage: Sequence[Footage], *, boxed: bool) -> None:
    """Check that every sequence shows its object often enough, before a fit of hours starts.

    Held-out sequences are examined here for this only.
    """
    for each in footage:
        first, *later = (bool(mask.any()) for mask in each.masks())
        if sum(later) < VALIDATION_PART or (boxed and not first):
            raise EvaluationDataError(
                f"{each.name}: the object is {'' if first else 'not '}on the first frame, and on {sum(later)} later",
                remedy=f"show it on {VALIDATION_PART} later frames, and on the first where its box is the query",
            )


def _fitted_frames(run: Run) -> int:
    """Return the number of a run's frames to fit to; the rest is for validation."""
    count = len(run.coverage)
    return count - max(1, count // VALIDATION_PART)


def _validation_coverage(runs: Sequence[Run]) -> float:
    """Return the coverage of real runs on the validation frames; sequences and kinds of query have equal weight."""
    return float(np.mean([each.coverage[_fitted_frames(each) :].mean() for each in runs]))
