"""A comparison as tables: with a query, without, by camera, text, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from arr_stream.evaluation.tables import Report, ResultTable, Value, plain
from benchmarks.comparison.truth import Score
from benchmarks.rivals import RULES
from benchmarks.scenes.camera import CAMERAS
from benchmarks.scenes.cameras import LEARNING_FRAMES
from benchmarks.scenes.footage import CAMERA_KINDS, KINDS, FootageKind, Objects

OURS = "arr-stream"
ORACLE = "oracle"
"""The best that could be chosen: a reference, which is ahead of nobody."""
ASKED = ("no query", "box", "words", "text")
"""What ours may be given: nothing, the object's box on the first frame, its name, or the word "text"."""


@dataclass(frozen=True, slots=True)
class CompareRow:
    """One method on one clip at one budget; milliseconds are means over the clip's frames.

    Args:
        footage, kind, camera: Which clip, and what its camera does.
        cells: Of its grid.
        budget: As asked for, such as `10%`.
        method: `OURS`, `ORACLE`, or the rule's name.
        features: What a rule on features looked at, by the short name that `compare` was given; else empty.
        asked: One of `ASKED` for ours, `box` for rules that are given the box, `no query` for all others.
        seed: Of a random choice.
        score: What the cells show.
        rule_ms: The choice alone; for ours all of it, keyframes included; None for the oracle.
        before_ms: What has to be computed of every frame before the choice.
        needed: What that is, empty for nothing.
        objects: What the truth is of, see `Footage`.
    """

    footage: str
    kind: str
    camera: str
    cells: int
    budget: str
    method: str
    features: str
    asked: str
    seed: int
    score: Score
    rule_ms: float | None
    before_ms: float
    needed: str
    objects: Objects = "one"

    def facts(self) -> dict[str, Any]:
        """The row and its score in one."""
        found: dict[str, Any] = plain(self)
        return {**found, **found.pop("score")}


@dataclass(frozen=True, slots=True)
class CompareReport(Report):
    """All rows of a comparison.

    Args:
        rows: By clip, budget and method.
        features: What the rules on features looked at: full names by short ones.
    """

    rows: tuple[CompareRow, ...]
    features: Mapping[str, str]

    @property
    def tables(self) -> list[ResultTable]:
        """All that the footage allows."""
        return tables(self)

    def facts(self) -> Mapping[str, Any]:
        return {"features": self.features, "rows": [row.facts() for row in self.rows]}


Rows = Sequence[CompareRow]
_Key = TypeVar("_Key")

KIND_NAMES: dict[FootageKind, str] = {
    "davis": "sequences with masks",
    "samples": "the sample clips",
    "generated": "generated scenes",
    "photos": "photographs with words under a moving window",
    "fixed": "real cameras that stand still",
    "moving": "real cameras that move",
    "webcam": "people near a webcam",
    "tracks": "single walkers before a camera that stands still",
}
_MOVING_GIVEN: dict[FootageKind, str] = {
    "davis": "what moves is measured (DIS medium at full size, less the homography of what lies outside the mask)",
    "samples": "what moves follows from the clips' true flow",
    "generated": "what moves is known",
    "photos": "nothing moves but the camera",
    "fixed": f"the first {LEARNING_FRAMES} frames are not counted",
    "moving": "what else moves is not told",
    "webcam": "what else moves is not told",
    "tracks": "each clip begins with the first frame of its object",
}

_SHARES = (
    "ours +: by how much ours covers more of the object, and on how many clips; object, moving: share of its pixels "
    "in fine cells; detail: share of the object's pixels left when coarse cells "
    "count by their resolution; current: share of the object that is shown fine now or was and has not changed since; "
    "cells on it: share of the fine cells that hold any of the object; "
    "context: share of the frame in any cell; means over the frames that count, which the first never does, then over "
    "clips; tokens: cells a frame, the first included, which some rules keep whole though it is not scored"
)
_BEST = "oracle: the most that so many fine cells on each frame could cover"


@dataclass(frozen=True, slots=True)
class Method:
    """One method, as a line of a table."""

    name: str
    asked: str
    features: str = ""

    @property
    def ours(self) -> bool:
        return self.name == OURS

    @property
    def rule(self) -> bool:
        """Return whether it is one of the rules that ours is compared with."""
        return self.name not in (OURS, ORACLE)

    @property
    def label(self) -> str:
        if self.ours:
            return f"{self.name}, {self.asked}"
        return f"{self.name} ({self.features})" if self.features else self.name


def methods(rows: Rows) -> list[Method]:
    """All methods of some rows, in the order in which they ran."""
    return list(dict.fromkeys(_method(row) for row in rows))


def of(rows: Rows, method: Method) -> list[CompareRow]:
    """The rows of a method."""
    return [row for row in rows if _method(row) == method]


def _method(row: CompareRow) -> Method:
    return Method(row.method, row.asked, row.features)


def mean(rows: Iterable[CompareRow], value: Callable[[CompareRow], float | None]) -> float | None:
    """Mean over the clips that have the value; over seeds too."""
    values = [figure for row in rows if (figure := value(row)) is not None]
    return float(np.mean(values)) if values else None


def spread(rows: Rows, value: Callable[[CompareRow], float | None]) -> float | None:
    """Standard deviation over seeds of the mean over clips; None for what is not random."""
    seeds = sorted({row.seed for row in rows})
    means = [mean([row for row in rows if row.seed == seed], value) for seed in seeds]
    known = [figure for figure in means if figure is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def tables(report: CompareReport) -> list[ResultTable]:
    """All tables that the footage allows."""
    made: list[ResultTable] = []
    for kind in KINDS:
        rows = [row for row in report.rows if row.kind == kind]
        for asked in ("box", "words", "no query"):
            if any(row.method == OURS and row.asked == asked and row.score.object is not None for row in rows):
                made.append(_objects(report, rows, kind, asked))
    made += [table for kind in CAMERA_KINDS if (table := _each_sequence(report, kind)) is not None]
    made += [table for kind in KINDS if (table := _cameras(report, kind)) is not None]
    made += [table for kind in KINDS if (table := _text(report, kind)) is not None]
    return [*made, _cost(report)]


def _objects(report: CompareReport, rows: Rows, kind: FootageKind, asked: str) -> ResultTable:
    """One line a budget and method; ours under one query beside rules that are given as much, a box, or no query."""
    lines: list[tuple[Value, ...]] = []
    rows = [row for row in rows if row.score.object is not None and _comparable(row, asked)]
    clips = len({row.footage for row in rows if row.method == OURS})
    rows = [row for row in rows if row.footage in {each.footage for each in rows if each.method == OURS}]
    for budget in dict.fromkeys(row.budget for row in rows):
        shown = [row for row in rows if row.budget == budget]
        ours = [row for row in shown if row.method == OURS]
        for method in methods(shown):
            theirs = of(shown, method)
            figures = [
                mean(theirs, lambda row: row.score.object),
                spread(theirs, lambda row: row.score.object),
                *(_ahead(ours, theirs) if method.rule else (None, None)),
                *(mean(theirs, _score(name)) for name in ("moving", "detail", "current", "cells_on_object", *_SHOWN)),
            ]
            lines.append((budget, method.label, *figures))
    what = {"box": "asked with the first box", "words": "asked in words", "no query": "without any query"}[asked]
    columns = ("budget", "method", "object", "±", "ours +", "ahead on", "moving", "detail", "current", "cells on it")
    behind = [(f"at {line[0]}", str(line[1]), -line[4]) for line in lines if isinstance(line[4], float)]
    looked = "" if asked == "box" else f"{_looked_at(report)}; "
    note = f"{clips} clips; {looked}{_MOVING_GIVEN[kind]}. {_SHARES}; {_BEST}. {_leaders(behind)}".strip()
    headings = (*columns, *_SHOWN.values())
    return ResultTable(f"Coverage {what}: {KIND_NAMES[kind]}", headings, tuple(lines), note=note, digits=3)


def _comparable(row: CompareRow, asked: str) -> bool:
    """Return whether a row appears in the table of a question; the table of the box has only rules that get the box."""
    given = "box" if asked == "box" else "no query"
    return row.method == ORACLE or row.asked == (asked if row.method == OURS else given)


def _each_sequence(report: CompareReport, kind: FootageKind) -> ResultTable | None:
    """One line a sequence and budget: ours without a query and asked for what moves, beside rules on change."""
    rows = [row for row in report.rows if row.kind == kind and row.score.object is not None]
    if not rows:
        return None
    ways = [(OURS, "no query"), (OURS, "words"), *((RULES[key].name, "no query") for key in _ON_CHANGE)]
    ways.append((ORACLE, "no query"))
    lines: list[tuple[Value, ...]] = []
    for (footage, budget), shown in _grouped(rows, lambda row: (row.footage, row.budget)).items():
        shares = [mean([row for row in shown if (row.method, row.asked) == way], _score("object")) for way in ways]
        lines.append((footage, shown[0].objects, budget, *shares))
    headings = ("no query", '"moving"', *(RULES[key].name for key in _ON_CHANGE), ORACLE)
    return ResultTable(
        f"Each sequence: {KIND_NAMES[kind]}",
        ("sequence", "truth of", "budget", *headings),
        tuple(lines),
        note=f"Share of the object in fine cells; {_MOVING_GIVEN[kind]}; {_BEST}. Where the truth is of one of many, a "
        "rule is not told which, and what it shows of the others does not count.",
        digits=3,
    )


_ON_CHANGE = ("difference", "mog2", "knn")
"""Keys of the rules that are made for cameras that stand still."""


def _grouped(rows: Rows, key: Callable[[CompareRow], _Key]) -> dict[_Key, list[CompareRow]]:
    found: dict[_Key, list[CompareRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


_SHOWN = {"context": "context", "tokens": "tokens", "later_tokens": "tokens where counted"}
"""Headings of what is told of every choice, by their names in a score."""


def _leaders(gaps: Sequence[tuple[str, str, float]]) -> str:
    """Names the rules that cover more than ours.

    Args:
        gaps: Where, which rule, and how much more than ours it covers there.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    for where, name, gap in gaps:
        if gap > 0:
            found.setdefault(where, []).append((gap, name))
    said = [
        f"{where}: {', '.join(f'{name} by {gap:.3f}' for gap, name in sorted(ahead, reverse=True))}"
        for where, ahead in found.items()
    ]
    if said:
        return f"Ahead of ours {'; '.join(said)}."
    return "No rule is ahead of ours." if gaps else ""


def _looked_at(report: CompareReport) -> str:
    return "rules on features look at " + "; ".join(f"{short}: {name}" for short, name in report.features.items())


def _score(name: str) -> Callable[[CompareRow], float | None]:
    return lambda row: getattr(row.score, name)


def _ahead(ours: Rows, theirs: Rows) -> tuple[float | None, str | None]:
    """Return our mean lead in coverage of the object, and on how many clips ours leads."""
    gaps = []
    for row in ours:
        other = mean([each for each in theirs if each.footage == row.footage], lambda each: each.score.object)
        if row.score.object is not None and other is not None:
            gaps.append(row.score.object - other)
    if not gaps:
        return None, None
    return float(np.mean(gaps)), f"{sum(gap > 0 for gap in gaps)}/{len(gaps)}"


def _cameras(report: CompareReport, kind: FootageKind) -> ResultTable | None:
    """Coverage of what moves, by what the camera does; nobody is asked anything."""
    rows = [row for row in report.rows if row.kind == kind and row.asked == "no query" and row.score.moving is not None]
    if not rows:
        return None
    # Across different clips, a difference need not come from the camera.
    same = kind == "generated"
    lines: list[tuple[Value, ...]] = []
    gaps: list[tuple[str, str, float]] = []
    for budget in dict.fromkeys(row.budget for row in rows):
        shown = [row for row in rows if row.budget == budget]
        found = {method: _by_camera(of(shown, method)) for method in methods(shown)}
        ours = next((moving for method, moving in found.items() if method.ours), None)
        for method, moving in found.items():
            gaps += _gaps(budget, method, moving, ours)
            still = moving[0]
            lost = [still - other if still is not None and other is not None else None for other in moving[1:]]
            lines.append((budget, method.label, *moving, *(lost if same else ())))
    counts = ", ".join(f"{len({r.footage for r in rows if r.camera == camera})} {camera}" for camera in CAMERAS)
    scenes = "the same scenes under each" if same else "different clips, told apart by measured motion"
    return ResultTable(
        f"What moves, by camera: {KIND_NAMES[kind]}",
        ("budget", "method", *CAMERAS, *(("lost by panning", "lost by shaking") if same else ())),
        tuple(lines),
        note=f"{counts}: {scenes}; {_MOVING_GIVEN[kind]}. Share of what moves in fine cells, without any query; "
        f"{_BEST}. "
        f"{_leaders(gaps)}".strip(),
    )


def _by_camera(rows: Rows) -> list[float | None]:
    return [mean([row for row in rows if row.camera == camera], _score("moving")) for camera in CAMERAS]


def _gaps(
    budget: str, method: Method, moving: Sequence[float | None], ours: Sequence[float | None] | None
) -> list[tuple[str, str, float]]:
    """Return a rule's lead over ours under each camera, for `_leaders`; empty if the method is no rule."""
    if not method.rule or ours is None:
        return []
    return [
        (f"at {budget} under a {camera} camera", method.label, theirs - own)
        for camera, theirs, own in zip(CAMERAS, moving, ours, strict=True)
        if theirs is not None and own is not None
    ]


def _text(report: CompareReport, kind: FootageKind) -> ResultTable | None:
    rows = [row for row in report.rows if row.kind == kind and row.score.text is not None]
    rows = [row for row in rows if row.asked in ("text", "no query")]
    if not rows:
        return None
    lines: list[tuple[Value, ...]] = []
    cameras = [camera for camera in CAMERAS if any(row.camera == camera for row in rows)]
    for budget in dict.fromkeys(row.budget for row in rows):
        shown = [row for row in rows if row.budget == budget]
        for method in methods(shown):
            each = of(shown, method)
            by_camera = [mean([row for row in each if row.camera == camera], _score("text")) for camera in cameras]
            whole = mean(each, _score("text")), spread(each, _score("text"))
            lines.append((budget, method.label, *whole, *by_camera, *(mean(each, _score(n)) for n in _SHOWN)))
    clips = len({row.footage for row in rows})
    return ResultTable(
        f"Coverage of text: {KIND_NAMES[kind]}",
        ("budget", "method", "text", "±", *cameras, *_SHOWN.values()),
        tuple(lines),
        note=f"{clips} clips; share of the legible words' outlines in fine cells; ours finds text on keyframes; "
        f"{_BEST}.",
    )


def _cost(report: CompareReport) -> ResultTable:
    """Milliseconds a frame, over all footage and budgets."""
    timed = [row for row in report.rows if row.rule_ms is not None]
    rows = [row for row in timed if row.score.text is None] or timed
    lines: list[tuple[Value, ...]] = []
    ours = mean([row for row in rows if row.method == OURS and row.asked == "no query"], lambda row: row.rule_ms)
    for method in methods(rows):
        each = of(rows, method)
        alone, before = mean(each, lambda row: row.rule_ms), mean(each, lambda row: row.before_ms)
        whole = (alone or 0.0) + (before or 0.0)
        lines.append((method.label, alone, before, whole, whole / ours if ours else None, each[0].needed))
    return ResultTable(
        "Cost",
        ("method", "choice (ms a frame)", "before it", "together", "times ours", "what comes before"),
        tuple(lines),
        note="Means over clips and budgets, decoding left out; times ours: without a query. Ours holds all of its "
        "perception, keyframes amortised, text search left out. Rules on features add their choice to a system that "
        "has run its whole vision tower on every cell of every frame; ours chooses before the tower.",
        digits=2,
    )
