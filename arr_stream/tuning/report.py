"""Results of tuning, as tables and as a preset."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from arr_stream.config import ScoringSettings
from arr_stream.evaluation.tables import ResultTable, Value
from arr_stream.tuning.parameters import DECIMALS, differences
from arr_stream.tuning.recording import KINDS, Kind, Run
from arr_stream.tuning.tuner import TuneReport

_ASKED: dict[Kind, str] = {"nothing": "nothing", "region": "first box", "words": "its name"}


def tables(report: TuneReport) -> tuple[ResultTable, ...]:
    """Return tables of coverage by sequence, of weights, and of the rounds that led to them."""
    return _coverage(report), _weights(report), _rounds(report)


def _coverage(report: TuneReport) -> ResultTable:
    held_out = {footage.name for footage in report.division.held_out}
    rows: list[tuple[Value, ...]] = []
    for part, inside in (("held out", True), ("fitted to", False)):
        for kind in KINDS:
            pairs = [
                (a, b)
                for a, b in zip(report.before, report.after, strict=True)
                if (a.footage.name in held_out) is inside and a.kind == kind
            ]
            rows += [_row(part, kind, a.footage.name, [a], [b]) for a, b in pairs]
            if len(pairs) > 1:
                rows.append(_row(part, kind, "mean", [a for a, _ in pairs], [b for _, b in pairs]))
    return ResultTable(
        f"Coverage of the object at {report.budget} of the tokens, before and after tuning",
        ("part", "asked by", "sequence", "before", "after", "gain", "context", "and after", "tokens"),
        tuple(rows),
        "Share of the object's pixels in fine cells, means over all frames but the first, from runs of the whole "
        "pipeline; context is the share of the frame in any cell. Before the weights were final nothing of "
        "held-out sequences was looked at but on which frames the object is.",
    )


def _row(part: str, kind: Kind, name: str, before: Sequence[Run], after: Sequence[Run]) -> tuple[Value, ...]:
    def mean(runs: Sequence[Run], what: str) -> float:
        return sum(float(getattr(each, what).mean()) for each in runs) / len(runs)

    first, last = mean(before, "coverage"), mean(after, "coverage")
    return (
        *(part, _ASKED[kind], name, first, last, last - first),
        *(mean(before, "context"), mean(after, "context"), mean(after, "tokens")),
    )


def _weights(report: TuneReport) -> ResultTable:
    fields = ScoringSettings.model_fields
    return ResultTable(
        "Weights",
        ("setting", "before", "after", "meaning"),
        tuple(
            (f"scoring.{name}", before, after, fields[name].description or "")
            for name, (before, after) in differences(report.start, report.weights).items()
        ),
        ""
        if report.weights != report.start
        else "No weights did better on the validation frames; nothing was changed.",
    )


def _rounds(report: TuneReport) -> ResultTable:
    return ResultTable(
        "Rounds of fitting and running",
        ("round", "steps", "best step", "records before", "records after", "true coverage"),
        (
            (0, None, None, None, None, report.validation),
            *(
                (number, each.fit.steps, each.fit.best_step, each.fit.before, each.fit.after, each.validation)
                for number, each in enumerate(report.rounds, start=1)
            ),
        ),
        "Coverage on the validation frames: from the records that a fit was made on, then in true runs.",
    )


def preset(report: TuneReport, origin: str) -> str:
    """Return a TOML preset with the weights that are not the defaults; its header names their origin.

    Args:
        report: Result of tuning.
        origin: Name of the data.
    """
    return _preset(_header(report, origin), report.weights)


def _preset(header: Iterable[str], weights: ScoringSettings) -> str:
    lines = [*header, ""]
    changed = differences(ScoringSettings(), weights)
    if changed:
        lines.append("[scoring]")
        lines += [f"{name} = {_number(after)}" for name, (_, after) in changed.items()]
    return "\n".join(lines).rstrip() + "\n"


def _header(report: TuneReport, origin: str) -> Iterator[str]:
    yield f"# Weights that `arr-stream tune` fitted to {' '.join(origin.split())}."
    yield f"# Budget {report.budget}, seed {report.seed}."
    yield from _folded("# Fitted to ", [footage.name for footage in report.division.fitted])
    yield from _folded("# Held out: ", [footage.name for footage in report.division.held_out])
    for asked, before, after in _held_out(report):
        yield f"# Held-out coverage, asked for by {asked}: {before:.{DECIMALS}f} before, {after:.{DECIMALS}f} after."
    if report.weights == report.start:
        yield "# No weights did better than the present ones; nothing is changed."


def _folded(start: str, names: Sequence[str], width: int = 118) -> list[str]:
    """Return a list as comment lines; names cannot break out of the comment."""
    text = ", ".join(" ".join(name.split()) for name in names)
    return textwrap.wrap(f"{start}{text}.", width, subsequent_indent="#   ", break_on_hyphens=False)


def _number(value: float) -> str:
    text = f"{value:.{DECIMALS}f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def gains(report: TuneReport) -> str:
    """Return one line with the held-out coverage before and after, and whether the gain exceeds its noise."""
    parts = [f"asked for by {asked} {before:.3f} -> {after:.3f}" for asked, before, after in _held_out(report)]
    return f"held-out coverage {'; '.join(parts)}; gain {report.gain}"


def _held_out(report: TuneReport) -> Iterator[tuple[str, float, float]]:
    """Yield the kind of query and the mean coverage before and after, for each kind that was tried."""
    for kind in KINDS:
        before, after = (report.mean(runs, held_out=True, kind=kind) for runs in (report.before, report.after))
        if before == before:
            yield _ASKED[kind], before, after
