"""`python -m benchmarks compare`: our choice of cells beside published and plain rules, on the same frames.

Every rule is given the same number of tokens. Ours decides on each frame from what it knows by then; rules that share a
clip's tokens out among its frames are given the whole clip at once, as they are published. Where ours is asked for an
object by its first box, it stands beside rules that are given that box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import arr_stream
from arr_stream.budget import budget_tokens
from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.tables import timed
from arr_stream.selection.allocation import Allocation
from arr_stream.types import Grid
from benchmarks.comparison.report import ASKED, ORACLE, OURS, CompareReport, CompareRow
from benchmarks.comparison.truth import KnownClip, best_score, known_clip, score_choices
from benchmarks.rivals import RULES, Clip, Rule
from benchmarks.rivals.boxes import FOLLOWERS, RANKINGS, Box
from benchmarks.rivals.features import FeatureMaker, make_clip
from benchmarks.rivals.plain import random_rule
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
        settings: Of ours.
        features: What rules on features look at, by short names; each rule runs once with each.
        seeds: Random choices.
        progress: Told what comes next.

    Raises:
        EvaluationDataError: No clips, or truths that do not fit their frames.
        BudgetError: A malformed budget.
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
    """Run everything once, so that no timed frame pays for loading and allocation."""
    frame = next(iter(clip.frames()))
    for maker in features:
        maker.features(frame, Grid.for_size(frame.size_wh, max_pixels=settings.grid.max_pixels))
    with arr_stream.open(clip.open(), settings=settings.with_values({"selection.budget": "10%"})) as stream:
        for _, _ in zip(range(3), stream, strict=False):
            pass


def _on_clip(
    clip: Footage,
    budgets: Sequence[str],
    settings: Settings,
    features: Mapping[str, FeatureMaker],
    seeds: int,
) -> Iterator[CompareRow]:
    known = known_clip(clip, settings.grid.max_pixels)
    followed = _followed(clip, known)
    # A track is one object among others: a choice without its box says nothing about it.
    unasked = clip.kind != "tracks"
    plain = make_clip(clip.frames(), known.grid, None) if unasked else None
    described = {short: make_clip(clip.frames(), known.grid, maker) for short, maker in features.items() if unasked}

    for budget in budgets:
        tokens = budget_tokens(budget, known.grid.cells)
        runs = chain(
            _our_runs(clip, known, settings, tokens),
            _rival_runs(plain, described, tokens, seeds) if plain is not None else (),
            _boxed_runs(followed, known.grid, tokens),
            [_Run(ORACLE, (), None)],
        )
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
                objects=clip.objects,
                score=best_score(known, tokens) if run.method == ORACLE else score_choices(known, run.choices),
                rule_ms=run.rule_ms,
                before_ms=run.before_ms,
                needed=run.needed,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The cells that one method chose on every frame of a clip (the oracle: none); other fields as in `CompareRow`."""

    method: str
    choices: Sequence[Allocation]
    rule_ms: float | None
    features: str = ""
    asked: str = ASKED[0]
    seed: int = 0
    before_ms: float = 0.0
    needed: str = ""


def _our_runs(clip: Footage, known: KnownClip, settings: Settings, tokens: int) -> Iterator[_Run]:
    """Yield ours under every question."""
    for asked, queries in _questions(clip, known):
        yield _Run(OURS, *_ours(clip, settings, tokens, queries), asked=asked)


def _rival_runs(plain: Clip, described: Mapping[str, Clip], tokens: int, seeds: int) -> Iterator[_Run]:
    """Every rule; those on features once for each way to describe the clip."""
    for name, rule in RULES.items():
        if name == "random":
            for seed in range(seeds):
                yield _Run(rule.name, *_theirs(random_rule(seed), plain, tokens), seed=seed)
        elif rule.needs == "nothing":
            yield _Run(rule.name, *_theirs(rule, plain, tokens))
        elif rule.needs == "pixels":
            chosen = _theirs(rule, plain, tokens)
            yield _Run(rule.name, *chosen, before_ms=plain.made_ms, needed="small pictures")
        else:
            for short, clip in described.items():
                chosen = _theirs(rule, clip, tokens)
                yield _Run(rule.name, *chosen, short, before_ms=clip.made_ms, needed="features on every cell")


def _followed(clip: Footage, known: KnownClip) -> dict[str, tuple[list[Box], float]]:
    """Return the object's box on every frame and the milliseconds a frame that it took, by follower."""
    found: dict[str, tuple[list[Box], float]] = {}
    if known.region_xywh is None:
        return found
    for name, start in FOLLOWERS.items():
        frames, boxes, spent = clip.frames(), [known.region_xywh], list[float]()
        first = next(frames)
        with timed(spent):
            follow = start(first, known.region_xywh)
        for frame in frames:
            with timed(spent):
                boxes.append(follow(frame))
        found[name] = boxes, sum(spent) / len(boxes)
    return found


def _boxed_runs(followed: Mapping[str, tuple[list[Box], float]], grid: Grid, tokens: int) -> Iterator[_Run]:
    """Yield the choices around a box that is followed, by every ranking of cells."""
    for name, (boxes, follow_ms) in followed.items():
        for ranking, rank in RANKINGS.items():
            chosen = _chosen(partial(_ranked, rank, boxes, grid, tokens))
            yield _Run(f"{name}, {ranking}", *chosen, asked="box", before_ms=follow_ms, needed="the box followed")


def _ranked(
    rank: Callable[[Box, Grid, int], Allocation], boxes: Sequence[Box], grid: Grid, tokens: int
) -> list[Allocation]:
    return [rank(box, grid, tokens) for box in boxes]


def _questions(clip: Footage, known: KnownClip) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the queries for ours on a clip: all that its truths can score."""
    if clip.kind != "tracks":
        yield "no query", {}
    if known.region_xywh is not None:
        yield "box", {"region": known.region_xywh}
    if clip.words is not None:
        yield "words", {"query": clip.words}
    if "text" in known.counts:
        yield "text", {"query": "text"}


def _ours(clip: Footage, settings: Settings, tokens: int, queries: dict[str, Any]) -> tuple[list[Allocation], float]:
    """The cells of every frame, and milliseconds a frame with everything in."""
    chosen: list[Allocation] = []
    spent = 0.0
    with arr_stream.open(clip.open(), budget=tokens, settings=settings, **queries) as stream:
        for patches in stream:
            # A patch set holds its frame's channels: keep only the allocation.
            chosen.append(Allocation(patches.rows, patches.columns, patches.level, patches.score))
            spent += total_ms(patches.latency_ms)
    return chosen, spent / len(chosen)


def _theirs(rule: Rule, seen: Clip, tokens: int) -> tuple[list[Allocation], float]:
    return _chosen(lambda: rule.choose(seen, tokens))


def _chosen(choose: Callable[[], list[Allocation]]) -> tuple[list[Allocation], float]:
    """Return the cells of every frame, and the milliseconds a frame that choosing them took."""
    spent: list[float] = []
    with timed(spent):
        chosen = choose()
    return chosen, spent[0] / len(chosen)
