"""`python -m benchmarks compare`: our choice of cells beside published and plain rules, on the same frames.

Every rule is given the same number of tokens. Ours decides on each frame from what it knows by then; rules that share a
clip's tokens out among its frames are given the whole clip at once, as they are published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import arr_stream
from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import EvaluationDataError
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.budget import budget_tokens
from arr_stream.types import FloatArray, Frame, Grid
from benchmarks.comparison.report import ASKED, OURS, CompareReport, CompareRow
from benchmarks.comparison.truth import Cells, KnownClip, known_clip, score_choices
from benchmarks.rivals import RULES, Clip, Rule
from benchmarks.rivals.features import FeatureMaker, make_clip
from benchmarks.rivals.plain import Random
from benchmarks.scenes.footage import Footage


def compare(
    footage: Iterable[Footage],
    budgets: Sequence[str],
    settings: Settings,
    features: Mapping[str, FeatureMaker],
    *,
    seeds: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> CompareReport:
    """Run everything on every clip.

    Args:
        footage: Clips with their truths.
        budgets: Tokens a frame, or shares of the grid such as `10%`.
        settings: Of ours; `keyframes.text` only holds for clips with known text, elsewhere it is `none`.
        features: What rules on features look at, by short names; each rule runs once with each.
        seeds: Random choices.
        progress: Told what comes next.

    Raises:
        EvaluationDataError: No clips, or truths that do not fit their frames.
        BudgetError: A budget that does not fit a clip's grid.
    """
    rows: list[CompareRow] = []
    for clip in footage:
        progress(f"{clip.kind}: {clip.name}")
        if not rows:
            _warm_up(clip, settings, features.values())
        rows += _on_clip(clip, budgets, settings, features, seeds)
    if not rows:
        raise EvaluationDataError("nothing to compare on", remedy="give a folder with footage, or another --kind")
    return CompareReport(tuple(rows), {short: maker.name for short, maker in features.items()})


def _warm_up(clip: Footage, settings: Settings, features: Iterable[FeatureMaker]) -> None:
    """What libraries load and allocate at first use is nobody's frame."""
    frame = next(iter(clip.frames()))
    for maker in features:
        maker.features(frame, Grid.for_size(frame.size_wh, max_pixels=settings.grid.max_pixels))
    with arr_stream.open(clip.open(), settings=settings.with_values({"selection.budget": "10%"})) as stream:
        for _, _ in zip(range(3), stream, strict=False):
            pass


def _on_clip(
    clip: Footage, budgets: Sequence[str], settings: Settings, features: Mapping[str, FeatureMaker], seeds: int
) -> Iterator[CompareRow]:
    known = known_clip(clip, settings.grid.max_pixels)
    views = [_view(clip, known.grid, "", None)]
    views += [_view(clip, known.grid, short, maker) for short, maker in features.items()]
    if "text" not in known.counts:
        settings = settings.with_values({"keyframes.text": "none"})

    for budget in budgets:
        tokens = budget_tokens(budget, known.grid.cells)
        runs = chain(_our_runs(clip, known, settings, tokens), _rival_runs(views, tokens, seeds))
        for run in runs:
            yield CompareRow(
                footage=clip.name,
                kind=clip.kind,
                camera=known.camera,
                cells=known.grid.cells,
                budget=budget,
                method=run.method,
                features=run.features,
                asked=run.asked,
                seed=run.seed,
                score=score_choices(known, run.choices),
                rule_ms=run.rule_ms,
                before_ms=run.before_ms,
                needed=run.needed,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The cells that one method chose on every frame of a clip; other fields as in `CompareRow`."""

    method: str
    choices: Sequence[Cells]
    rule_ms: float
    features: str = ""
    asked: str = ASKED[0]
    seed: int = 0
    before_ms: float = 0.0
    needed: str = ""


def _our_runs(clip: Footage, known: KnownClip, settings: Settings, tokens: int) -> Iterator[_Run]:
    for asked, queries in _questions(clip, known):
        yield _Run(OURS, *_ours(clip, settings, tokens, queries), asked=asked)


def _rival_runs(views: Sequence[_View], tokens: int, seeds: int) -> Iterator[_Run]:
    """Every rule; those on features once for each view that has some."""
    for rule, seed in _rules(seeds):
        looked_at = views[1:] if rule.needs == "features" else views[:1]
        for view in looked_at:
            chosen, rule_ms = _theirs(rule, view.clip, tokens)
            if rule.needs == "nothing":
                yield _Run(rule.name, chosen, rule_ms, seed=seed)
            else:
                needed = "features on every cell" if view.features else "small pictures"
                yield _Run(rule.name, chosen, rule_ms, view.features, before_ms=view.milliseconds, needed=needed)


def _questions(clip: Footage, known: KnownClip) -> Iterator[tuple[str, dict[str, Any]]]:
    """What ours is asked on a clip: all that its truths can judge."""
    yield "no query", {}
    if known.region_xywh is not None:
        yield "box", {"region": known.region_xywh}
    if clip.words is not None:
        yield "words", {"query": clip.words}
    if "text" in known.counts:
        yield "text", {"query": "text"}


def _rules(seeds: int) -> Iterator[tuple[Rule, int]]:
    for make in RULES.values():
        rule = make()
        if isinstance(rule, Random):
            yield from ((Random(seed), seed) for seed in range(seeds))
        else:
            yield rule, 0


def _ours(clip: Footage, settings: Settings, tokens: int, queries: dict[str, Any]) -> tuple[list[Cells], float]:
    """The cells of every frame, and milliseconds a frame with everything in."""
    chosen: list[Cells] = []
    spent = 0.0
    with arr_stream.open(clip.open(), budget=tokens, settings=settings, **queries) as stream:
        for patches in stream:
            # A patch set holds its frame's channels, which must not pile up.
            chosen.append(Allocation(patches.rows, patches.columns, patches.level, patches.score))
            spent += total_ms(patches.latency_ms)
    return chosen, spent / len(chosen)


def _theirs(rule: Rule, seen: Clip, tokens: int) -> tuple[list[Allocation], float]:
    started = time.perf_counter()
    chosen = rule.choose(seen, tokens)
    return chosen, (time.perf_counter() - started) * 1e3 / len(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What rules look at, and the milliseconds a frame that it took to make, reading left out.

    Args:
        clip: What they look at.
        features: Short name of their maker; empty without any.
        milliseconds: Of the features where there are any, else of the pixels.
    """

    clip: Clip
    features: str
    milliseconds: float


def _view(clip: Footage, grid: Grid, short: str, maker: FeatureMaker | None) -> _View:
    """Look through a clip once, and time what is made of it."""
    reading = _TimedFrames(clip.frames())
    describing = _TimedFeatures(maker) if maker is not None else None
    started = time.perf_counter()
    seen = make_clip(reading, grid, describing)
    spent_s = time.perf_counter() - started - reading.seconds
    spent_s = describing.seconds if describing is not None else spent_s
    return _View(seen, short, spent_s * 1e3 / len(seen))


class _TimedFrames:
    """Passes frames on, and counts the time that reading them takes."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        started = time.perf_counter()
        try:
            return next(self._frames)
        finally:
            self.seconds += time.perf_counter() - started


class _TimedFeatures:
    """Passes features on, and counts the time that making them takes."""

    def __init__(self, maker: FeatureMaker) -> None:
        self._maker = maker
        self.name = maker.name
        self.seconds = 0.0

    def features(self, frame: Frame, grid: Grid) -> FloatArray:
        started = time.perf_counter()
        made = self._maker.features(frame, grid)
        self.seconds += time.perf_counter() - started
        return made
