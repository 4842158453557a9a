"""Results of tuning, as tables and as a preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.evaluation.tables import ResultTable, Value
from arr_stream.tuning.fitting import DECIMALS, NAMES
from arr_stream.tuning.recording import KINDS, Kind, Run

LEAST_HELD_OUT = 3
"""Least number of sequences for a meaningful spread of their gains."""

_ASKED: dict[Kind, str] = {"nothing": "nothing", "region": "first box"}


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean gain on held-out sequences, its standard error (None with fewer than two), and their number."""

    mean: float
    standard_error: float | None
    count: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Gain:
        """Summarise after minus before of each sequence."""
        count = len(differences)
        error = float(np.std(differences, ddof=1) / np.sqrt(count)) if count > 1 else None
        return cls(float(np.mean(differences)), error, count)

    @property
    def reliable(self) -> bool:
        """True if there are at least `LEAST_HELD_OUT` sequences and the mean exceeds twice its standard error."""
        return self.count >= LEAST_HELD_OUT and self.mean > 2 * (self.standard_error or 0)

    def __str__(self) -> str:
        held_out = f"{self.count} held-out sequences"
        if self.count < LEAST_HELD_OUT:
            return f"{self.mean:+.3f} over {held_out}, too few to judge: at least {LEAST_HELD_OUT} are needed"
        verdict = "beyond its noise" if self.reliable else "not beyond its noise"
        return f"{self.mean:+.3f} (standard error {self.standard_error:.3f}, {held_out}), {verdict}"


@dataclass(frozen=True, slots=True)
class TuneReport:
    """Weights before and after, and true runs with both.

    Args:
        fitted, held_out: Names of the sequences.
        start, weights: Before and after; equal if no weights did better on the validation frames.
        before, after: Runs over all sequences in the same order.
        budget: Tokens, as in the settings.
    """

    fitted: tuple[str, ...]
    held_out: tuple[str, ...]
    start: ScoringSettings
    weights: ScoringSettings
    before: tuple[Run, ...]
    after: tuple[Run, ...]
    budget: str

    def pairs(self, kind: Kind, *, held_out: bool) -> list[tuple[Run, Run]]:
        """Return the runs before and after on one part of the sequences, for one kind of query."""
        names = self.held_out if held_out else self.fitted
        both = zip(self.before, self.after, strict=True)
        return [(a, b) for a, b in both if a.kind == kind and a.footage.name in names]

    @property
    def gain(self) -> Gain:
        """Gain in coverage on held-out sequences, averaged over kinds of query within a sequence."""
        gains: dict[str, list[float]] = {}
        for kind in KINDS:
            for before, after in self.pairs(kind, held_out=True):
                gains.setdefault(before.footage.name, []).append(after.coverage.mean() - before.coverage.mean())
        return Gain.of([float(np.mean(each)) for each in gains.values()])

    def held_out_means(self) -> Iterator[tuple[str, float, float]]:
        """Yield the kind of query and the mean held-out coverage before and after, for each kind that was tried."""
        for kind in KINDS:
            if pairs := self.pairs(kind, held_out=True):
                before, after = (_mean(runs, "coverage") for runs in zip(*pairs, strict=True))
                yield _ASKED[kind], before, after


def _mean(runs: Sequence[Run], what: str) -> float:
    return float(np.mean([getattr(each, what).mean() for each in runs]))


def tables(report: TuneReport) -> tuple[ResultTable, ...]:
    """Return tables of coverage by sequence and of weights."""
    return _coverage(report), _weights(report)


def _coverage(report: TuneReport) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for part, held_out in (("held out", True), ("fitted to", False)):
        for kind in KINDS:
            pairs = report.pairs(kind, held_out=held_out)
            rows += [_row(part, kind, before.footage.name, [before], [after]) for before, after in pairs]
            if len(pairs) > 1:
                rows.append(_row(part, kind, "mean", *zip(*pairs, strict=True)))
    return ResultTable(
        f"Coverage of the object at {report.budget} of the tokens, before and after tuning",
        ("part", "asked by", "sequence", "before", "after", "gain", "context", "and after", "tokens"),
        tuple(rows),
        "Share of the object's pixels in fine cells, means over all frames but the first, from runs of the whole "
        "pipeline; context is the share of the frame in any cell. Before the weights were final nothing of "
        "held-out sequences was looked at but on which frames the object is.",
    )


def _row(part: str, kind: Kind, name: str, before: Sequence[Run], after: Sequence[Run]) -> tuple[Value, ...]:
    first, last = _mean(before, "coverage"), _mean(after, "coverage")
    return (
        *(part, _ASKED[kind], name, first, last, last - first),
        *(_mean(before, "context"), _mean(after, "context"), _mean(after, "tokens")),
    )


def _differences(before: ScoringSettings, after: ScoringSettings) -> Mapping[str, tuple[float, float]]:
    """Return the weights that differ, by name."""
    pairs = {name: (float(getattr(before, name)), float(getattr(after, name))) for name in NAMES}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _weights(report: TuneReport) -> ResultTable:
    fields = ScoringSettings.model_fields
    rows = [
        (f"scoring.{name}", before, after, fields[name].description or "")
        for name, (before, after) in _differences(report.start, report.weights).items()
    ]
    return ResultTable(
        "Weights",
        ("setting", "before", "after", "meaning"),
        tuple(rows),
        "" if rows else "No weights did better on the validation frames; nothing was changed.",
    )


def preset(report: TuneReport, origin: str) -> str:
    """Return a TOML preset with the weights that are not the defaults; its header names their origin.

    Args:
        report: Result of tuning.
        origin: Name of the data.
    """
    lines = [
        f"# Weights that `arr-stream tune` fitted to {_one_line([origin])}.",
        f"# Budget {report.budget}.",
        f"# Fitted to {_one_line(report.fitted)}.",
        f"# Held out: {_one_line(report.held_out)}.",
    ]
    lines += [
        f"# Held-out coverage, asked for by {asked}: {before:.{DECIMALS}f} before, {after:.{DECIMALS}f} after."
        for asked, before, after in report.held_out_means()
    ]
    changed = _differences(ScoringSettings(), report.weights)
    if changed:
        lines += ["", "[scoring]", *(f"{name} = {round(after, DECIMALS)}" for name, (_, after) in changed.items())]
    return "\n".join(lines) + "\n"


def _one_line(names: Sequence[str]) -> str:
    """Return names as a list that cannot break out of a comment."""
    return ", ".join(" ".join(name.split()) for name in names)


def gains(report: TuneReport) -> str:
    """Return one line with the held-out coverage before and after, and whether the gain exceeds its noise."""
    parts = [f"asked for by {asked} {before:.3f} -> {after:.3f}" for asked, before, after in report.held_out_means()]
    return f"held-out coverage {'; '.join(parts)}; gain {report.gain}"
