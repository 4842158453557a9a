"""Whole tuning: record, fit, record again, and evaluate the held-out footage only at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.tuning.fitting import Case, Fit, FitOptions, fit
from arr_stream.tuning.footage import Division, Footage, divide
from arr_stream.tuning.gain import Gain
from arr_stream.tuning.parameters import NAMES, check_names
from arr_stream.tuning.recording import KINDS, Kind, Run, kinds_of, run

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
        names: Names of the weights to fit.
        fit: Options of one fit; its seed is also that of the division.
        in_time: Called between steps; False ends the fitting with the best weights so far.
    """

    kinds: tuple[Kind, ...] = ("nothing", "region")
    hold_out: tuple[str, ...] = ("half",)
    rounds: int = 3
    names: tuple[str, ...] = NAMES
    fit: FitOptions = field(default_factory=FitOptions)
    in_time: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Round:
    """One fit, and the coverage of the pipeline with it.

    Args:
        fit: The fit.
        validation: True coverage on the validation frames with its weights.
    """

    fit: Fit
    validation: float


@dataclass(frozen=True, slots=True)
class TuneReport:
    """Weights before and after, and true runs with both.

    Args:
        division: Fitted and held-out sequences.
        start, weights: Before and after; equal if no weights did better on the validation frames.
        validation: True coverage on the validation frames before.
        rounds: Every round, in order.
        before, after: Runs over all sequences in the same order, without tables.
        budget: Tokens, as in the settings.
        seed: Seed of all draws.
    """

    division: Division
    start: ScoringSettings
    weights: ScoringSettings
    validation: float
    rounds: tuple[Round, ...]
    before: tuple[Run, ...]
    after: tuple[Run, ...]
    budget: str
    seed: int

    def mean(self, runs: Sequence[Run], *, held_out: bool, kind: Kind) -> float:
        """Return the mean coverage over the sequences of one part, for one kind of query; NaN without any."""
        names = {footage.name for footage in (self.division.held_out if held_out else self.division.fitted)}
        found = [float(each.coverage.mean()) for each in runs if each.footage.name in names and each.kind == kind]
        return float(np.mean(found)) if found else float("nan")

    @property
    def gain(self) -> Gain:
        """Gain in coverage on held-out sequences, averaged over kinds of query within a sequence."""
        held_out = {footage.name: list[float]() for footage in self.division.held_out}
        for before, after in zip(self.before, self.after, strict=True):
            if before.footage.name in held_out:
                held_out[before.footage.name].append(float(after.coverage.mean() - before.coverage.mean()))
        return Gain.of([float(np.mean(each)) for each in held_out.values() if each], "sequences")


def tune(
    footage: Sequence[Footage],
    settings: Settings,
    options: TuneOptions | None = None,
    progress: Progress = lambda what, done, of: None,
) -> TuneReport:
    """Fit the scorers' weights to one part of some footage and test them on the other.

    Args:
        footage: At least two sequences.
        settings: Everything else, and the weights to start from.
        options: Options of tuning.
        progress: Called after every run and every validation.

    Raises:
        EvaluationDataError: Footage that does not fit, or is too short.
        InvalidSetting: A division that leaves a part empty, a budget that leaves nothing to choose, or another
            strategy than `topk`.
        UnknownSetting: A weight does not exist.
    """
    chosen = options or TuneOptions()
    check_names(chosen.names)
    check_strategy(settings)
    division = divide(footage, chosen.hold_out, chosen.fit.seed)
    _check_truths(division, chosen.kinds)
    start = settings.scoring
    before = _run_all(division.fitted, settings, chosen, progress, "untuned", tables=True)
    _check(before)
    validation = _validation_coverage(before)
    best, best_coverage, best_runs, rounds = start, validation, before, []
    runs = before
    for number in range(1, chosen.rounds + 1):
        if not chosen.in_time():
            break
        fitted = _fit(runs, best, start, chosen, progress, number)
        if fitted.weights in (best, start):
            rounds.append(Round(fitted, best_coverage))
            break
        runs = _run_all(
            division.fitted, _with(settings, fitted.weights), chosen, progress, f"round {number}", tables=True
        )
        coverage = _validation_coverage(runs)
        rounds.append(Round(fitted, coverage))
        if coverage <= best_coverage:
            break
        best, best_coverage, best_runs = fitted.weights, coverage, runs
    held_before = _run_all(division.held_out, settings, chosen, progress, "held out, untuned")
    held_after = held_before
    if best != start:
        held_after = _run_all(division.held_out, _with(settings, best), chosen, progress, "held out, tuned")
    return TuneReport(
        division,
        start,
        best,
        validation,
        tuple(rounds),
        tuple(replace(each, tables=()) for each in (*before, *held_before)),
        tuple(replace(each, tables=()) for each in (*best_runs, *held_after)),
        settings.selection.budget,
        chosen.fit.seed,
    )


def _run_all(
    footage: Sequence[Footage],
    settings: Settings,
    options: TuneOptions,
    progress: Progress,
    what: str,
    *,
    tables: bool = False,
) -> list[Run]:
    wanted = [(each, kind) for each in footage for kind in kinds_of(each, options.kinds)]
    runs = []
    for done, (each, kind) in enumerate(wanted):
        progress(f"{what}: {each.name}", done, len(wanted))
        runs.append(run(each, kind, settings, tables=tables))
    progress(what, len(wanted), len(wanted))
    return runs


def _check_truths(division: Division, kinds: Sequence[Kind]) -> None:
    """Check that every sequence shows its object often enough, before a fit of hours starts.

    Held-out sequences are examined here for this only.
    """
    for each in (*division.fitted, *division.held_out):
        seen = [bool(mask.any()) for mask in each.sequence.masks()]
        boxed = any(seen[:1]) or "region" not in kinds
        if not boxed or sum(seen[1:]) < VALIDATION_PART:
            first = "on" if any(seen[:1]) else "not on"
            raise EvaluationDataError(
                f"{each.name}: the object is {first} the first frame, and on {sum(seen[1:])} after it",
                remedy=f"it must be on at least {VALIDATION_PART} later ones, and, where its box is asked for, on the "
                "first, or leave the sequence out",
            )


def _check(runs: Sequence[Run]) -> None:
    if not runs:
        raise EvaluationDataError(
            "no fitted sequence supports these kinds of query", remedy=f"--ask is one of {', '.join(KINDS)}"
        )
    for each in runs:
        if any(not 0 < table.fine < len(table.share) for table in each.tables):
            raise InvalidSetting(
                f"{each.footage.name}: the budget shows the whole frame or none of it in detail",
                remedy="set --budget to a share of the frame, such as 10%",
            )


def check_strategy(settings: Settings) -> None:
    """Check that weights can be fitted with the strategy.

    Raises:
        InvalidSetting: Another strategy than `topk`.
    """
    if settings.selection.strategy != "topk":
        raise InvalidSetting(
            f"selection.strategy={settings.selection.strategy}: weights are fitted to the choice of `topk`",
            remedy="tune with selection.strategy=topk",
        )


def fitted_frames(count: int) -> int:
    """Return the number of a sequence's frames to fit to."""
    return count - max(1, count // VALIDATION_PART)


def _validation_coverage(runs: Sequence[Run]) -> float:
    """Return the coverage of real runs on the validation frames; sequences and kinds of query have equal weight."""
    return float(np.mean([each.coverage[fitted_frames(len(each.indices)) :].mean() for each in runs]))


def _fit(
    runs: Sequence[Run],
    present: ScoringSettings,
    start: ScoringSettings,
    options: TuneOptions,
    progress: Progress,
    number: int,
) -> Fit:
    training: list[Case] = [each.tables[: fitted_frames(len(each.indices))] for each in runs]
    validation: list[Case] = [each.tables[fitted_frames(len(each.indices)) :] for each in runs]

    def advance(step: int, steps: int, coverage: float) -> bool:
        progress(f"fit {number}: coverage {coverage:.3f}", step, steps)
        return options.in_time()

    return fit(training, validation, present, options.fit, names=options.names, advance=advance)


def _with(settings: Settings, weights: ScoringSettings) -> Settings:
    return settings.model_copy(update={"scoring": weights})
