"""The product's targets, and the figures that decide whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem

from arr_stream.evaluation.tables import ResultTable, Value
from benchmarks.comparison.report import ORACLE
from benchmarks.results.records import Record
from benchmarks.results.tables import tables_of


@dataclass(frozen=True, slots=True)
class Target:
    """One promise.

    Args:
        what: In words.
        section: Whose figures tell.
        limit: What is to be reached.
        value: The figure, from the section's record; None where its command did not measure it.
        at_least: Whether more is better.
        unit: Of both.
        beyond: Whether the limit itself is not enough.
    """

    what: str
    section: str
    limit: float
    value: Callable[[Record], float | None]
    at_least: bool = True
    unit: str = ""
    beyond: bool = False

    def row(self, record: Record | None) -> tuple[Value, ...]:
        """Cells of the page's table: promise, limit, figure, whether it is reached."""
        limit = f"{self._bound} {self.limit:,g} {self.unit}".strip()
        linked = f"[{self.what}](#{self.section})"
        value = None if record is None or record.missing else self.value(record)
        if value is None:
            return (linked, limit, None, "not measured")
        reached = "reached" if self._reached(value) else "**missed**"
        figure = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return (linked, limit, f"{figure} {self.unit}".strip(), reached)

    @property
    def _bound(self) -> str:
        if self.beyond:
            return "more than" if self.at_least else "less than"
        return "at least" if self.at_least else "at most"

    def _reached(self, value: float) -> bool:
        if value == self.limit:
            return not self.beyond
        return value > self.limit if self.at_least else value < self.limit


def targets_table(records: Mapping[str, Record]) -> ResultTable:
    """All promises, those of the live parts as the command itself states them."""
    rows = [target.row(records.get(target.section)) for target in TARGETS]
    headings = ("what", "to reach", "measured", "")
    return ResultTable("What is promised", headings, (*rows, *_live(records.get("live"))))


def _live(record: Record | None) -> list[tuple[Value, ...]]:
    if record is None or record.missing:
        return [("[Live streams](#live)", None, None, "not measured")]
    figures = [figure for run in record.runs for figure in run.result["figures"] if figure["limit"] is not None]
    return [
        (
            f"[Live: {figure['what']}](#live)",
            f"at {'least' if figure['at_least'] else 'most'} {figure['limit']:g} {figure['unit']}".strip(),
            f"{figure['value']:.3g} {figure['unit']}".strip(),
            "reached" if figure["reached"] else "**missed**",
        )
        for figure in figures
    ]


def table_named(record: Record, words: str) -> ResultTable | None:
    """The section's first table whose title holds all the words, in capitals or not."""
    for table in tables_of(record):
        if all(word in table.title.lower() for word in words.lower().split()):
            return table
    return None


def column(table: ResultTable, heading: str) -> int:
    """Place of the first column whose heading holds that.

    Raises:
        KeyError: There is none.
    """
    for place, words in enumerate(table.columns):
        if heading in words:
            return place
    raise KeyError(f"{table.title}: no column {heading!r} among {', '.join(table.columns)}")


def fact(*path: str, run: int = 0) -> Callable[[Record], float]:
    """A number that one of the section's commands prints, by the keys that lead to it."""
    return lambda record: float(reduce(getitem, path, record.runs[run].result))


def compared(table: ResultTable, heading: str, tokens: str) -> tuple[dict[str, float], dict[str, float]]:
    """A column of a table of `compare` at a share of the tokens: by way of ours, and by other rule, without the best
    possible."""
    place = column(table, heading)
    shares = {str(row[1]): share for row in table.rows if row[0] == tokens and isinstance(share := row[place], float)}
    ours = {name: share for name, share in shares.items() if name.startswith("arr-stream")}
    return ours, {name: share for name, share in shares.items() if name != ORACLE and name not in ours}


def _ahead(asked: str, tokens: str) -> Callable[[Record], float | None]:
    """Return a reader of our lead over the best other choice in `compare`, on sequences with masks."""

    def value(record: Record) -> float | None:
        table = table_named(record, f"coverage {asked} masks")
        if table is None:
            return None
        place = column(table, "ours")
        gaps = [row[place] for row in table.rows if row[0] == tokens]
        return min((float(gap) for gap in gaps if isinstance(gap, int | float)), default=None)

    return value


def _gain(asked: str) -> Callable[[Record], float | None]:
    """Mean gain of `tune` on sequences that were held out, over all ways to divide them."""

    def value(record: Record) -> float | None:
        gains = [
            float(gain)
            for table in tables_of(record)
            if all(word in table.title.lower() for word in ("coverage", "before", "after"))
            for row in table.rows
            if row[:3] == ("held out", asked, "mean") and isinstance(gain := row[column(table, "gain")], int | float)
        ]
        return sum(gains) / len(gains) if gains else None

    return value


def right_answers(record: Record, title: str) -> Mapping[str, Mapping[str, float]]:
    """Shares of right answers of a table of `answers` or `watching`: by who chose and by share of the tokens."""
    table = table_named(record, f"right answers {title}")
    if table is None:
        return {}
    return {
        str(row[0]): {
            heading: value for heading, value in zip(table.columns, row, strict=True) if isinstance(value, float)
        }
        for row in table.rows
    }


def best_rule(found: Mapping[str, Mapping[str, float]], share: str) -> tuple[str, float]:
    """The rule with the most right answers, which knows neither the question nor where things are; its name first."""
    rules = {
        name: shares[share]
        for name, shares in found.items()
        if share in shares and not name.startswith(("ours", "cells of", "all cells"))
    }
    return max(rules.items(), key=lambda each: each[1])


def _kept(share: str) -> Callable[[Record], float | None]:
    """Right answers with a share of the tokens, of those with all."""

    def value(record: Record) -> float | None:
        found = right_answers(record, "pictures")
        whole = found.get("all cells", {}).get("100%")
        ours = found.get(OURS, {}).get(share)
        return ours / whole if ours is not None and whole else None

    return value


def _ahead_of_rules(title: str, share: str) -> Callable[[Record], float | None]:
    """Return a reader of our lead in right answers over the best rule."""

    def value(record: Record) -> float | None:
        found = right_answers(record, title)
        ours = found.get(OURS, {}).get(share)
        return None if ours is None else ours - best_rule(found, share)[1]

    return value


def figure_of(record: Record, title: str, heading: str, *keys: Value) -> float | None:
    """A figure of the section's table of that title, of the row that begins with the keys; None where it is not
    there."""
    table = table_named(record, title)
    found = [row for row in table.rows if row[: len(keys)] == keys] if table is not None else []
    value = found[0][column(table, heading)] if table is not None and found else None
    return float(value) if isinstance(value, int | float) else None


def _figure(title: str, heading: str, *keys: Value) -> Callable[[Record], float | None]:
    """`figure_of` a record that is yet to come."""
    return lambda record: figure_of(record, title, heading, *keys)


def throughput(shown: str) -> Callable[[Record], float | None]:
    """Answers a second of 16 streams that show that, in those of whole frames."""
    return _figure("streams that ask", "of whole", shown, 16, SERVED)


def _sequence(name: str, tokens: str, heading: str) -> Callable[[Record], float | None]:
    """Return what `compare` found on one real sequence."""

    def value(record: Record) -> float | None:
        found = _sequences(record, tokens)
        return None if name not in found else found[name][heading]

    return value


def _most_behind(tokens: str) -> Callable[[Record], float | None]:
    """Return how far ours is behind the best rule on the fixed camera where it is farthest behind."""

    def value(record: Record) -> float | None:
        gaps = [
            max(share for way, share in shares.items() if way not in ("no query", '"moving"', ORACLE))
            - shares["no query"]
            for shares in _sequences(record, tokens).values()
        ]
        return max(gaps, default=None)

    return value


def _sequences(record: Record, tokens: str) -> dict[str, dict[str, float]]:
    """Return the shares by fixed camera whose objects are all annotated, and by way to choose."""
    table = table_named(record, "each sequence stand still")
    if table is None:
        return {}
    return {
        str(row[0]): {way: share for way, share in zip(table.columns, row, strict=True) if isinstance(share, float)}
        for row in table.rows
        if row[1] == "several" and row[2] == tokens
    }


def _ahead_on_text(footage: str, tokens: str) -> Callable[[Record], float | None]:
    """Return a reader of our lead on text, without a query, over the best rule in `compare`."""

    def value(record: Record) -> float | None:
        table = table_named(record, f"coverage of text {footage}")
        if table is None:
            return None
        ours, rules = compared(table, "text", tokens)
        return ours["arr-stream, no query"] - max(rules.values()) if ours and rules else None

    return value


def _fuzzed(record: Record) -> float | None:
    """Mutated inputs, where none of them was a finding."""
    result = record.runs[0].result
    return None if result["findings"] else float(result["inputs"])


def _soaked(record: Record) -> float | None:
    """Return the growth of memory after the warm-up, in MB a minute."""
    return float(record.runs[0].result["slopes"]["all_mb"])


def _on_device(title: str, row: str = "") -> Callable[[Record], float | None]:
    """Milliseconds of `device`: the most of the rows that begin so."""

    def value(record: Record) -> float | None:
        table = table_named(record, title)
        if table is None:
            return None
        place = column(table, "ms")
        times = [line[place] for line in table.rows if str(line[0]).startswith(row)]
        return max((float(ms) for ms in times if isinstance(ms, int | float)), default=None)

    return value


SERVED = "chosen cells, plugin"
STREAMED = ("2 frames of 1280x704", "4 frames of 320x320")
sooner = _figure("time to the first token", "times sooner than whole", "picture", SERVED)
"""In vLLM, the first token of chosen cells against that of a whole picture."""
STAGED = ("640x360, one query", "1280x720")
# A query may cost half of that flow more.
STAGES = (
    ("A frame between keyframes, of bare optical flow", "frame between keyframes / flow alone", False, (4.0, 2.5)),
    ("`process` to a video, of decoding and encoding alone", "process / decode and encode", False, (1.8, 1.6)),
    ("Everything anew on every frame, of the amortised cost", "full generation / amortised", True, (14, 14)),
)
OURS = "ours"
"""The way of ours that understands what the questions are about."""

TARGETS: tuple[Target, ...] = (
    *(
        Target(
            f"Coverage at {tokens} of the tokens, {asked}: ahead of every other rule by",
            "compare",
            limit,
            _ahead(words, tokens),
            beyond=limit == 0,
        )
        for asked, words, limits in (("asked by a box", "box", (0.1, 0.0)), ("without a query", "without", (0.0, 0.0)))
        for tokens, limit in zip(("10%", "25%"), limits, strict=True)
    ),
    *(
        Target(
            f"Coverage at {tokens} tokens of 405, DAVIS (tuned on it), asked by a box",
            "coverage",
            limit,
            _figure("mean coverage", f"{tokens} tokens", "arr-stream"),
        )
        for tokens, limit in ((40, 0.85), (101, 0.99))
    ),
    *(
        Target(
            f"Coverage at {tokens} of the tokens, DAVIS (tuned on it), without a query",
            "compare",
            limit,
            _figure("coverage without masks", "object", tokens, "arr-stream, no query"),
        )
        for tokens, limit in (("10%", 0.76), ("25%", 0.95))
    ),
    *(
        Target(
            f"Walkers before a fixed camera (PETS; the background model was designed on it), {tokens} of the tokens, "
            "without a query",
            "cameras",
            limit,
            _sequence("pets_walkers", tokens, "no query"),
        )
        for tokens, limit in (("5%", 0.84), ("10%", 0.96), ("25%", 0.99))
    ),
    *(
        Target(
            f"Each sequence of fixed cameras with every object annotated, {tokens} of the tokens, without a query: "
            "behind the best rule by",
            "cameras",
            0.01,
            _most_behind(tokens),
            at_least=False,
        )
        for tokens in ("10%", "25%")
    ),
    *(
        Target(
            f"Text on {words}, {tokens} of the tokens, without a query: ahead of every other rule by",
            "compare",
            0.0,
            _ahead_on_text(footage, tokens),
            beyond=True,
        )
        for words, footage in (("the sample clips", "sample"), ("photographs", "photographs"))
        for tokens in ("10%", "25%")
    ),
    Target("Right answers with 25% of the tokens, of those with all", "answers", 0.98, _kept("25%")),
    Target("Right answers with 10% of the tokens, of those with all", "answers", 0.95, _kept("10%")),
    Target("Right answers, 25%: ahead of the best rule by", "answers", 0.05, _ahead_of_rules("pictures", "25%")),
    Target("Right answers, 10%: ahead of the best rule by", "answers", 0.10, _ahead_of_rules("pictures", "10%")),
    Target("The same with eight things and more, 10%", "answers", 0.10, _ahead_of_rules("crowded pictures", "10%")),
    *(
        Target(
            f"A mask carried over {frames} frames, DAVIS (tuned on it): mean IoU",
            "carry",
            limit,
            _figure("carried masks", "mean IoU", "arr-stream, mask", frames),
        )
        for frames, limit in ((10, 0.81), (30, 0.75))
    ),
    Target(
        "Its time, of that of bare optical flow",
        "carry",
        2.2,
        _figure("carried masks", "times the flow", "arr-stream, mask", 10),
        at_least=False,
        unit="times",
    ),
    Target(
        "Text found on photographs (ICDAR 2015): recall of its pixels",
        "text",
        0.8,
        _figure("with text", "recall", "icdar2015", "auto"),
    ),
    *(
        Target(f"{what}, {size}", "stages", limit, fact("ratios", name, run=run), at_least=at_least, unit="times")
        for what, name, at_least, limits in STAGES
        for run, (size, limit) in enumerate(zip(STAGED, limits, strict=True))
    ),
    Target("From the command to the first frame done", "start", 1.5, fact("seconds"), at_least=False, unit="s"),
    Target("Memory of that", "start", 350, fact("memory_mb"), at_least=False, unit="MB"),
    Target(
        "In vLLM, a quarter of 1,024 cells: first token sooner than of the whole", "serving", 5, sooner, unit="times"
    ),
    *(
        Target(
            f"In vLLM, 16 streams, {shown}: answers a second, of whole frames'",
            "serving",
            4,
            throughput(shown),
            unit="times",
        )
        for shown in STREAMED
    ),
    Target(
        "Coverage after tuning, on held-out sequences, without a query: gain",
        "tune",
        0.03,
        _gain("nothing"),
    ),
    Target(
        "Coverage after tuning, on held-out sequences, asked by a box: gain",
        "tune",
        0.03,
        _gain("first box"),
    ),
    Target(
        "On a GPU, a frame of 1024x1024 between keyframes, whatever is asked",
        "device",
        0.8,
        _on_device("frame between keyframes 1024x1024"),
        at_least=False,
        unit="ms",
    ),
    Target(
        "On a GPU, all 40 channels of 1024x1024, dense, amortised",
        "device",
        2.8,
        _on_device("all 40 channels 1024x1024", "amortised"),
        at_least=False,
        unit="ms",
    ),
    Target("Mutated inputs over all parsers, without a finding", "fuzz", 20_000, _fuzzed),
    Target(
        "A server under faults: memory grows by",
        "soak",
        1.0,
        _soaked,
        at_least=False,
        unit="MB a minute",
        beyond=True,
    ),
)
