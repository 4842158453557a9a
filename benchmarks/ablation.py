"""Does each part earn its cost? One at a time is switched off, or exchanged for another, and everything is measured.

All variants take turns frame by frame on the same footage (`ablation_runs`). The default runs twice: how far the second
differs in time is noise, and nothing smaller is believed. Choices are deterministic and have no noise; a difference
counts from a limit on, and from two of its own standard errors over sequences on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.tables import Report, ResultTable, Value
from benchmarks.ablation_runs import QUESTIONS, Run, Variant, footage_name, run_in_turns, usual_footage

Kind = Literal["default", "without", "instead"]

DEFAULT = "default"
AGAIN = "default, once more"
ERRORS = 2
"""Standard errors over sequences from which on a difference of quality counts."""

LEAST_TIME = 0.02
"""Smaller relative differences of time are not told apart, however quiet the machine."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something to switch off or to exchange.

    Args:
        variant: How.
        kind: `without` a part of the default, or another choice `instead` of the default's.
        usual: It is measured unless others are named.
    """

    variant: Variant
    kind: Kind
    usual: bool = True


def _without(name: str, **values: object) -> Part:
    return Part(Variant(name, {key.replace("__", "."): value for key, value in values.items()}), "without")


def _instead(name: str, *, usual: bool = True, **values: object) -> Part:
    return Part(Variant(name, {key.replace("__", "."): value for key, value in values.items()}), "instead", usual)


PARTS = (
    _without("information", scoring__information=0.0),
    _without("perspective", scoring__perspective=0.0),
    _without("saliency", scoring__saliency=0.0),
    _without("motion", scoring__motion=0.0),
    _without("figure", scoring__figure=0.0),
    _without("text among the scores", scoring__text=0.0),
    _without("fovea", scoring__fovea=0.0),
    _without("bonus for staying", scoring__stay=0.0),
    _without("settling of near-ties", scoring__settling=0.0),
    _without("commitment to the question", scoring__commitment=0.0),
    _without("exploring beside the question", scoring__commitment=1.0, scoring__commitment_power=0.01),
    _without("re-anchoring", relevance__anchoring=False),
    _without("model's attention", scoring__attention=0.0),
    _without("novelty", selection__novelty="off"),
    _without("refresh at low confidence", keyframes__min_confidence=0.0),
    Part(Variant("clusters", parts=("embedding", "text")), "without"),
    Part(Variant("embeddings", parts=("clusters", "text")), "without"),
    Part(Variant("text", parts=("clusters", "embedding")), "without"),
    _instead("coarse cells", selection__context_share=0.1),
    _instead("cascade on", selection__cascade="on"),
    _instead("novelty skips", selection__novelty="skip"),
    _instead("flow: DIS fast", motion__preset="fast"),
    _instead("flow: DIS medium", motion__preset="medium"),
    _instead("flow: torch", usual=False, motion__flow="torch"),
)
"""Everything that can be named, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a variant, a mean over sequences.

    Args:
        name: Heading.
        field: Of `Run`.
        questions: Those that it is the mean of.
        least: Smallest difference that counts.
        better: 1 where more is better, -1 where less is.
    """

    name: str
    field: str
    questions: tuple[str, ...]
    least: float
    better: int = 1


_ALL = tuple(question.name for question in QUESTIONS)
MEASURES = (
    *(Measure(question.name, "coverage", (question.name,), 0.005) for question in QUESTIONS),
    Measure("context", "context", _ALL, 0.02),
    Measure("held", "held", _ALL, 0.01),
    Measure("kept", "kept", _ALL, 0.02),
    Measure("new", "sent", _ALL, 0.05, better=-1),
)


@dataclass(frozen=True, slots=True)
class AblationRow:
    """One variant beside the default.

    Args:
        name: Of the variant.
        kind: What it is.
        figures: One for each of `MEASURES`.
        gains, losses: Measures that are better or worse than the default's, each with its difference.
        frame_ratio: Time of a frame over the default's, what keyframes make left out.
        amortised_ratio: The same with keyframes.
        same: Every choice equals the default's.
        noise: How far equal settings differ in time.
    """

    name: str
    kind: Kind
    figures: tuple[float, ...]
    gains: tuple[tuple[str, float], ...]
    losses: tuple[tuple[str, float], ...]
    frame_ratio: float
    amortised_ratio: float
    same: bool
    noise: float

    @property
    def cost(self) -> str:
        """What the variant costs or saves, empty where that is not told from noise."""
        for what, ratio in (("a frame", self.frame_ratio), ("with keyframes", self.amortised_ratio)):
            if abs(ratio - 1) > self.noise:
                return f"{'saves' if ratio < 1 else 'costs'} {abs(ratio - 1):.0%} {what}"
        return ""

    @property
    def verdict(self) -> str:
        """In words, from the figures alone."""
        if self.kind == "default":
            return ""
        gained, lost = (", ".join(f"{name} {by:+.3f}" for name, by in found) for found in (self.gains, self.losses))
        if gained and lost:
            said = f"a trade: {gained}; {lost}"
        elif self.kind == "without":
            said = f"harms: {gained} without" if gained else f"earns its cost: {lost} without" if lost else ""
        else:
            said = f"better: {gained}" if gained else f"worse: {lost}" if lost else ""
        said = said or ("changes no choice" if self.same else "neutral")
        return f"{said}; {self.cost}" if self.cost else said


@dataclass(frozen=True, slots=True)
class AblationReport(Report):
    """All variants.

    Args:
        rows: The default first, and a second time next.
        footage: What was measured on.
    """

    rows: tuple[AblationRow, ...]
    footage: str

    @property
    def tables(self) -> list[ResultTable]:
        return ablation_tables(self.rows, self.footage)


def evaluate_ablation(
    data: Path | None = None,
    *,
    only: Sequence[str] = (),
    settings: Settings | None = None,
    most_frames: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> AblationReport:
    """Measure the parts, each against the default in the same run.

    Args:
        data: Folder with sequences; the generated clips for None.
        only: Names from `PARTS`; the usual ones where none are named.
        settings: What counts as the default here.
        most_frames: Frames of a sequence, from its first.
        progress: Told what comes next.

    Raises:
        EvaluationDataError: No usable footage.
        InvalidSetting: There is no such part.
    """
    parts = chosen_parts(only)
    variants = [Variant(DEFAULT), Variant(AGAIN), *(part.variant for part in parts)]
    runs = run_in_turns(usual_footage(data, most_frames), variants, settings=settings, progress=progress)
    rows = rows_of(runs, [(DEFAULT, "default"), (AGAIN, "default"), *((p.variant.name, p.kind) for p in parts)])
    return AblationReport(tuple(rows), footage_name(data))


def chosen_parts(only: Sequence[str]) -> list[Part]:
    """The named parts, or the usual ones.

    Raises:
        InvalidSetting: There is no such part.
    """
    known = {part.variant.name: part for part in PARTS}
    for name in only:
        if name not in known:
            raise InvalidSetting(f"--only {name!r}: there is no such part", remedy=f"choose from {', '.join(known)}")
    return [known[name] for name in only] if only else [part for part in PARTS if part.usual]


def rows_of(runs: Sequence[Run], named: Sequence[tuple[str, Kind]]) -> list[AblationRow]:
    """Rows beside the default, which comes first, and a second time next."""
    of = {name: [run for run in runs if run.variant == name] for name, _ in named}
    default = of[DEFAULT]
    noise = _noise(of[AGAIN], default)
    return [_row(name, kind, of[name], default, noise) for name, kind in named]


def _row(name: str, kind: Kind, runs: Sequence[Run], default: Sequence[Run], noise: float) -> AblationRow:
    figures: list[float] = []
    gains: list[tuple[str, float]] = []
    losses: list[tuple[str, float]] = []
    for measure in MEASURES:
        here, there = _by_sequence(runs, measure), _by_sequence(default, measure)
        figures.append(float(here.mean()))
        change = here - there
        by, error = float(change.mean()), _standard_error(change)
        if abs(by) >= measure.least and abs(by) >= ERRORS * error:
            (gains if by * measure.better > 0 else losses).append((measure.name, by))
    frame_ratio, amortised_ratio = _time_ratios(runs, default)
    same = [run.choice for run in runs] == [run.choice for run in default]
    return AblationRow(
        name, kind, tuple(figures), tuple(gains), tuple(losses), frame_ratio, amortised_ratio, same, noise
    )


def _by_sequence(runs: Sequence[Run], measure: Measure) -> npt.NDArray[np.float64]:
    names = sorted({run.sequence for run in runs})
    return np.array(
        [
            np.mean([getattr(r, measure.field) for r in runs if r.sequence == name and r.question in measure.questions])
            for name in names
        ]
    )


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    """Of a mean; 0 where there is one value and nothing to tell it from."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _time_ratios(runs: Sequence[Run], default: Sequence[Run]) -> tuple[float, float]:
    """Of frames between keyframes and of all, medians over sequences and questions."""
    pairs = list(zip(runs, default, strict=True))
    frame = np.median([run.frame_ms / other.frame_ms for run, other in pairs])
    return float(frame), float(np.median([run.amortised_ms / other.amortised_ms for run, other in pairs]))


def _noise(again: Sequence[Run], default: Sequence[Run]) -> float:
    """Relative difference of time below which equal settings cannot be told apart.

    How far the two medians differ, or three standard errors of such a median, from the median deviation of single runs
    (1.48 of it is a standard deviation, and a median's error is 1.25 times a mean's).
    """
    apart = max(abs(ratio - 1) for ratio in _time_ratios(again, default))
    single = np.array([run.frame_ms / other.frame_ms for run, other in zip(again, default, strict=True)])
    error = 1.25 * 1.48 * float(np.median(np.abs(single - np.median(single)))) / np.sqrt(len(single))
    return float(max(LEAST_TIME, apart, 3 * error))


def ablation_tables(rows: Sequence[AblationRow], footage: str) -> list[ResultTable]:
    """Figures of every variant, and what they come to: for the terminal, a page and JSON.

    Args:
        rows: As `evaluate_ablation` gives them.
        footage: What was measured on.
    """
    figures: list[tuple[Value, ...]] = [(_shown(row), *row.figures) for row in rows]
    verdicts: list[tuple[Value, ...]] = [
        (_shown(row), row.frame_ratio, row.amortised_ratio, row.verdict) for row in rows
    ]
    return [
        ResultTable(
            f"Each part switched off or exchanged, on {footage}: quality",
            ("what", *(measure.name for measure in MEASURES)),
            tuple(figures),
            note="Coverage of the object by the chosen cells, asked by the box of the first frame and without a query, "
            "at 10 and 25% of the cells; means over the four of context (share of the frame shown at all), held (share "
            "of the object that was sent since the last refresh and has not changed), kept (share of the cells that "
            "were chosen on the frame before too) and new (share of the cells that a model does not have yet).",
        ),
        ResultTable(
            f"Each part switched off or exchanged, on {footage}: time and verdict",
            ("what", "frame", "amortised", "verdict"),
            tuple(verdicts),
            note="Times are ratios to the default's, taken in turns: of a frame alone, and with its share of the "
            f"keyframes. A difference counts from {ERRORS} of its standard errors over sequences on, and of time above "
            f"{rows[0].noise:.0%}.",
        ),
    ]


def _shown(row: AblationRow) -> str:
    return row.name if row.kind != "without" else f"without {row.name}"
