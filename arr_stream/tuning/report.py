"""Results of tuning, as tables and as a preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.evaluation.tables import Report, ResultTable, Value, fields_of
from arr_stream.tuning.fitting import DECIMALS, NAMES
from arr_stream.tuning.recording import Kind, Run

LEAST_HELD_OUT = 3
"""Least number of sequences for a meaningful spread of their gains."""


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
class TuneReport(Report):
    """Weights before and after (`start`, `weights`; equal if none did better), and true runs with both.

    `origin` names the data, `fitted` and `held_out` its sequences; the runs `before` and `after` are over all of them,
    in the same order.
    """

    origin: str
    fitted: tuple[str, ...]
    held_out: tuple[str, ...]
    start: ScoringSettings
    weights: ScoringSettings
    before: tuple[Run, ...]
    after: tuple[Run, ...]
    budget: str

    def means(self, names: Sequence[str]) -> dict[Kind, dict[str, tuple[float, float]]]:
        """Return the mean coverage before and after of some sequences, by kind of query and sequence."""
        found: dict[Kind, dict[str, tuple[float, float]]] = {}
        for before, after in zip(self.before, self.after, strict=True):
            if before.footage.name in names:
                pair = float(before.coverage.mean()), float(after.coverage.mean())
                found.setdefault(before.kind, {})[before.footage.name] = pair
        return found

    @property
    def gain(self) -> Gain:
        """Gain in coverage on held-out sequences, averaged over kinds of query within a sequence."""
        kinds = [list(each.values()) for each in self.means(self.held_out).values()]
        return Gain.of(np.diff(np.mean(kinds, axis=0), axis=1)[:, 0].tolist())

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        """Coverage by sequence, and weights."""
        changed, fields = _differences(self.start, self.weights), ScoringSettings.model_fields
        weights = [(f"scoring.{name}", *pair, fields[name].description or "") for name, pair in changed.items()]
        return (
            ResultTable(
                f"Coverage of the object at {self.budget} of the tokens, before and after tuning",
                ("part", "asked by", "sequence", "before", "after", "gain"),
                tuple(self._rows()),
                "Share of the object's pixels in fine cells, means over all frames but the first, from runs of the "
                "whole pipeline. Before the weights were final nothing of held-out sequences was looked at but on "
                f"which frames the object is. Held out: gain {self.gain}.",
            ),
            ResultTable(
                "Weights",
                ("setting", "before", "after", "meaning"),
                tuple(weights),
                "" if weights else "No weights did better on the validation frames; nothing was changed.",
            ),
        )

    def _rows(self) -> Iterator[tuple[Value, ...]]:
        for part, names in (("held out", self.held_out), ("fitted to", self.fitted)):
            for kind, pairs in self.means(names).items():
                mean = {"mean": tuple(np.mean([*pairs.values()], axis=0).tolist())} if len(pairs) > 1 else {}
                for name, (before, after) in {**pairs, **mean}.items():
                    yield part, _asked(kind), name, before, after, after - before

    def facts(self) -> Mapping[str, Any]:
        gain = self.gain
        return {
            "gain": {**dict(fields_of(gain)), "reliable": gain.reliable},
            "scoring": self.weights.model_dump(),
            "preset": self.preset() if gain.reliable else None,
            "fitted": self.fitted,
            "held_out": self.held_out,
            "budget": self.budget,
        }

    def preset(self) -> str:
        """Return a TOML preset with the weights that are not the defaults; its header names their origin."""
        lines = [
            f"# Weights that `arr-stream tune` fitted to {_one_line([self.origin])}.",
            f"# Budget {self.budget}.",
            f"# Fitted to {_one_line(self.fitted)}.",
            f"# Held out: {_one_line(self.held_out)}.",
        ]
        for kind, pairs in self.means(self.held_out).items():
            before, after = np.mean([*pairs.values()], axis=0).tolist()
            coverage = f"{before:.{DECIMALS}f} before, {after:.{DECIMALS}f} after"
            lines.append(f"# Held-out coverage, asked for by {_asked(kind)}: {coverage}.")
        changed = _differences(ScoringSettings(), self.weights)
        if changed:
            lines += ["", "[scoring]", *(f"{name} = {round(after, DECIMALS)}" for name, (_, after) in changed.items())]
        return "\n".join(lines) + "\n"


def _asked(kind: Kind) -> str:
    return "first box" if kind == "region" else kind


def _differences(before: ScoringSettings, after: ScoringSettings) -> Mapping[str, tuple[float, float]]:
    """Return the weights that differ, by name."""
    pairs = {name: (float(getattr(before, name)), float(getattr(after, name))) for name in NAMES}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _one_line(names: Sequence[str]) -> str:
    """Return names as a list that cannot break out of a comment."""
    return ", ".join(" ".join(name.split()) for name in names)
