"""What tuning found, as tables and as a preset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from arr_stream.config import ScoringSettings
from arr_stream.evaluation.tables import ResultTable, Value
from arr_stream.tuning.parameters import DECIMALS, differences
from arr_stream.tuning.recording import KINDS, Kind, Run
from arr_stream.tuning.tuner import TuneReport

_ASKED: dict[Kind, str] = {"nothing": "nothing", "region": "first box", "words": "its name"}


def tables(report: TuneReport) -> tuple[ResultTable, ...]:
    """Coverage by sequence, weights, and the rounds that led to them."""
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
        "" if report.weights != report.start else "Nothing did better on the validation frames; nothing was changed.",
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
    """A TOML preset with the weights that are not the defaults; its header says where they come from.

    Args:
        report: What was found.
        origin: Name of the data.
    """
    lines = [*_header(report, origin), ""]
    changed = differences(ScoringSettings(), report.weights)
    if changed:
        lines.append("[scoring]")
        lines += [f"{name} = {_number(after)}" for name, (_, after) in changed.items()]
    return "\n".join(lines).rstrip() + "\n"


def _header(report: TuneReport, origin: str) -> Iterator[str]:
    yield f"# Weights that `arr-stream tune` fitted to {' '.join(origin.split())}."
    yield f"# Budget {report.budget}, seed {report.seed}."
    yield from _folded("# Fitted to ", [footage.name for footage in report.division.fitted])
    yield from _folded("# Held out: ", [footage.name for footage in report.division.held_out])
    for kind in KINDS:
        if any(each.kind == kind for each in report.before):
            before = report.mean(report.before, held_out=True, kind=kind)
            after = report.mean(report.after, held_out=True, kind=kind)
            if before == before:
                yield (
                    f"# Coverage on what was held out, asked for by {_ASKED[kind]}: "
                    f"{before:.{DECIMALS}f} before, {after:.{DECIMALS}f} after."
                )
    if report.weights == report.start:
        yield "# Nothing did better than what was there; nothing is changed."


def _folded(start: str, names: Sequence[str], width: int = 118) -> Iterator[str]:
    """A list in comment lines; names cannot break out of the comment."""
    words = [" ".join(name.split()) for name in names]
    text = [*(f"{word}, " for word in words[:-1]), f"{words[-1]}."]
    line = start
    for piece in text:
        if len(line) + len(piece.rstrip()) > width and line not in (start, "#   "):
            yield line.rstrip()
            line = "#   "
        line += piece
    yield line.rstrip()


def _number(value: float) -> str:
    text = f"{value:.{DECIMALS}f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def gains(report: TuneReport) -> str:
    """One line: what the held-out sequences gained."""
    parts = []
    for kind in KINDS:
        before = report.mean(report.before, held_out=True, kind=kind)
        after = report.mean(report.after, held_out=True, kind=kind)
        if before == before:
            parts.append(f"{before:.3f} -> {after:.3f} ({after - before:+.3f}) asked for by {_ASKED[kind]}")
    return "held-out coverage " + "; ".join(parts)


def shown(report: TuneReport, most: int) -> list[tuple[Run, Run]]:
    """Runs worth a picture: held-out sequences, spread over their list, each asked for in the first way there is."""
    names = {footage.name for footage in report.division.held_out}
    first = next(kind for kind in KINDS if any(each.kind == kind for each in report.before))
    pairs = [
        (a, b) for a, b in zip(report.before, report.after, strict=True) if a.footage.name in names and a.kind == first
    ]
    if len(pairs) <= most:
        return pairs
    places = [round(index * (len(pairs) - 1) / max(1, most - 1)) for index in range(most)]
    return [pairs[place] for place in places]
