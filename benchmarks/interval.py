"""How seldom may keyframes be? Quality and cost at several intervals, and the knee of the one over the other.

Keyframes come by the interval and at cuts alone here: the refresh at low confidence, which would come first at long
intervals, is switched off.

The knee is that of Kneedle (Satopaa, Albrecht, Irwin and Raghavan, "Finding a 'kneedle' in a haystack: detecting knee
points in system behavior", 2011) without its smoothing: cost and quality are each brought to [0, 1], and the knee is
where quality lies farthest above the chord from the cheapest to the dearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.davis import Sequence as Footage
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.evaluation.truth import SceneTruth, load_truth
from arr_stream.keyframes.beside import make_provider
from arr_stream.keyframes.embeddings import find_pca, make_embedder, make_text_encoder
from arr_stream.keyframes.generate import make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import FloatArray, Frame
from benchmarks.ablation_runs import (
    QUESTIONS,
    SAMPLES,
    RememberedGenerator,
    Run,
    Variant,
    footage_name,
    run_in_turns,
    usual_footage,
)
from benchmarks.carry import OURS, evaluate_carry
from benchmarks.meaning import evaluate_carried, held_out_clips
from benchmarks.scenes.truth import placed_words
from benchmarks.text import FOUND_SHARE

INTERVALS = (1, 2, 3, 5, 8, 15, 30, 60, 120)
ASKED = tuple(question for question in QUESTIONS if question.budget == "10%")
MODEL = "tiny"
VISIBLE = 0.5
"""Share of a word that must be in sight for it to count."""

_TEXT = CHANNEL_INDEX["text"]
_ALMOST = 0.02
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """One interval; shares in [0, 1], means over all frames, keyframes among them.

    Args:
        interval: Frames from keyframe to keyframe.
        region: Coverage of the object by a tenth of the cells, asked by the box of the first frame.
        unasked: The same without a query.
        iou: Of the object's mask, given at keyframes and carried between, with the true one.
        words: What the cells chosen for a text by a model cover of what the best would.
        text: Share of the words in sight that channel 16 covers; None without footage with words.
        amortised_ms: Time of a frame with its share of a keyframe.
    """

    interval: int
    region: float
    unasked: float
    iou: float
    words: float
    text: float | None
    amortised_ms: float

    @property
    def quality(self) -> float:
        """Mean of all that was measured."""
        known = [v for v in (self.region, self.unasked, self.iou, self.words, self.text) if v is not None]
        return float(np.mean(known))


@dataclass(frozen=True, slots=True)
class IntervalReport(Report):
    """All rows, by rising interval.

    Args:
        rows: One an interval.
        usual: The interval of the settings that were measured with.
        knee: The interval of the knee; None where quality does not depend on the interval.
        longest: Of the sequences, in frames: longer intervals than this are those of a single keyframe.
        footage: What was measured on.
    """

    rows: tuple[IntervalRow, ...]
    usual: int
    knee: int | None
    longest: int
    footage: str = ""

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        return (interval_table(self),)

    def facts(self) -> Mapping[str, Any]:
        return {"knee": self.knee, "sufficient": self.sufficient}

    @property
    def sufficient(self) -> int:
        """The longest interval whose quality is within 0.02 of the best."""
        best = max(row.quality for row in self.rows)
        return max(row.interval for row in self.rows if row.quality >= best - _ALMOST)


def evaluate_interval(
    data: Path | None = None,
    *,
    intervals: Sequence[int] = INTERVALS,
    settings: Settings | None = None,
    most_frames: int | None = None,
    clips: int = 4,
    progress: Callable[[str], None] = lambda _: None,
) -> IntervalReport:
    """Measure every interval on the same footage in turns.

    Args:
        data: Folder with sequences; the generated clips for None. Texts to a model are always asked of generated
            scenes, and words are looked for on the project's own clip with signs where the footage has none.
        intervals: Frames from keyframe to keyframe, at least two of them.
        settings: Everything else.
        most_frames: Frames of a sequence, from its first.
        clips: Generated clips that texts are asked of.
        progress: Told what comes next.

    Raises:
        EvaluationDataError: No usable footage.
        ValueError: Fewer than two intervals.
    """
    ordered = sorted(set(intervals))
    if len(ordered) < 2:
        raise ValueError(f"{ordered}: a curve needs at least two intervals")
    settings = (settings or Settings()).with_values({"keyframes.min_confidence": 0.0})
    sequences = usual_footage(data, most_frames)
    variants = [Variant(str(interval), {"keyframes.interval": interval}) for interval in ordered]
    runs = run_in_turns(sequences, variants, settings=settings, questions=ASKED, progress=progress)
    progress("masks")
    carried = evaluate_carry(sequences, [interval for interval in ordered if interval > 1], progress=progress)
    iou = {row.interval: row.iou for row in carried.rows if row.tracker == OURS}
    progress("texts to a model")
    by_age = meaning_by_age(settings, clips, max(2, ordered[-1] if most_frames is None else most_frames))
    progress("words")
    text = text_found(worded(sequences), settings, ordered, most_frames)
    between_ms, keyframe_ms = costs(runs)
    rows = tuple(
        IntervalRow(
            interval=interval,
            region=_mean(runs, interval, ASKED[0].name),
            unasked=_mean(runs, interval, ASKED[1].name),
            # On the keyframe itself the mask is given.
            iou=(1 + (interval - 1) * iou[interval]) / interval if interval > 1 else 1.0,
            words=float(np.mean(by_age[:interval])),
            text=text.get(interval),
            amortised_ms=between_ms + keyframe_ms / interval,
        )
        for interval in ordered
    )
    at = knee([row.amortised_ms for row in rows], [row.quality for row in rows])
    longest = max(len(footage.masks()) for footage in sequences)
    return IntervalReport(
        rows, settings.keyframes.interval, None if at is None else rows[at].interval, longest, footage_name(data)
    )


def knee(costs: Sequence[float], qualities: Sequence[float]) -> int | None:
    """Index of the knee of quality over cost; of equals the cheapest.

    Quality counts as the best that is to be had for the money, so that a dip along the way is no knee.

    Returns:
        None where there is no knee: cost or quality does not vary, or nothing lies above the chord.
    """
    order = np.argsort(costs, kind="stable")
    cost = np.asarray(costs, float)[order]
    quality = np.maximum.accumulate(np.asarray(qualities, float)[order])
    if len(cost) < 2 or cost[-1] <= cost[0] or quality[-1] <= quality[0]:
        return None
    above = (quality - quality[0]) / (quality[-1] - quality[0]) - (cost - cost[0]) / (cost[-1] - cost[0])
    return int(order[int(above.argmax())]) if above.max() > _ROUNDING else None


def costs(runs: Iterable[Run]) -> tuple[float, float]:
    """Milliseconds of a frame without what keyframes make, and of what one keyframe makes; medians over runs."""
    runs = list(runs)
    between = float(np.median([run.frame_ms for run in runs]))
    return between, float(np.median([run.keyframe_ms / run.keyframe_share for run in runs]))


def _mean(runs: Sequence[Run], interval: int, question: str) -> float:
    found = [run.coverage for run in runs if run.variant == str(interval) and run.question == question]
    return float(np.mean(found))


def meaning_by_age(settings: Settings, clips: int, longest: int) -> tuple[float, ...]:
    """What a model's answer is still worth so many frames after its keyframe, see `benchmarks.meaning`."""
    chosen = settings.with_values({"keyframes.embeddings": "clip", "clip.model": MODEL})
    embedder, encoder = make_embedder(chosen), make_text_encoder(chosen)
    assert encoder is not None
    report = evaluate_carried(
        held_out_clips(clips, longest), embedder, encoder, find_pca(chosen, encoder), interval=longest
    )
    return report.coverage_share


def worded(sequences: Sequence[Footage]) -> list[tuple[Footage, SceneTruth]]:
    """Sequences with a truth that knows of words; the project's own where there is none among these."""
    found = _with_words(sequences)
    if not found and SAMPLES.is_dir():
        found = _with_words(usual_footage(None))
    return found


def _with_words(sequences: Sequence[Footage]) -> list[tuple[Footage, SceneTruth]]:
    found = []
    for footage in sequences:
        path = footage.source.with_name(f"{footage.source.stem}.truth.npz")
        if path.is_file() and (truth := load_truth(path)).words:
            found.append((footage, truth))
    return found


def text_found(
    footage: Sequence[tuple[Footage, SceneTruth]],
    settings: Settings,
    intervals: Sequence[int],
    most_frames: int | None = None,
) -> dict[int, float]:
    """For each interval, the share of the words in sight that channel 16 covers by half; empty without footage.

    Raises:
        EvaluationDataError: No word is ever in sight.
    """
    if not footage:
        return {}
    generator = make_generator(settings, parts=("text",))
    hits: dict[int, list[bool]] = {interval: [] for interval in intervals}
    for sequence, truth in footage:
        made, words = RememberedGenerator(generator, {}, ("text",)), placed_words(truth)
        running = {
            often.keyframes.interval: Pipeline(often, make_provider(made, often.keyframes))
            for often in (settings.with_values({"keyframes.interval": interval}) for interval in intervals)
        }
        for frame in sequence.frames()[:most_frames]:
            polygons = [word.polygons_xy[frame.index] for word in words if word.visible[frame.index] >= VISIBLE]
            for interval, pipeline in running.items():
                mask = pipeline.step(frame).texture.plane(_TEXT)
                hits[interval] += [covered(np.asarray(mask, np.float32), frame, polygon) for polygon in polygons]
    if not all(hits.values()):
        raise EvaluationDataError("no word is in sight", remedy="name a folder whose clips show words")
    return {interval: float(np.mean(found)) for interval, found in hits.items()}


def covered(mask: FloatArray, frame: Frame, polygon_xy: np.ndarray) -> bool:
    """At least half of a word's pixels lie where the mask `[h, w]` says text.

    Args:
        mask: In [0, 1], of the whole frame, at any resolution.
        frame: The frame.
        polygon_xy: `[N, 2]` in pixels of the frame.
    """
    width, height = frame.size_wh
    word = np.zeros((height, width), np.uint8)
    cv2.fillPoly(word, [np.rint(polygon_xy).astype(np.int32)], 1)
    if not word.any():
        return False
    full = cv2.resize(mask, (width, height), interpolation=cv2.INTER_LINEAR)
    return float((full[word > 0] > 0.5).mean()) >= FOUND_SHARE


def interval_table(report: IntervalReport) -> ResultTable:
    """A line an interval, with remarks on the ones that stand out."""
    rows: list[tuple[Value, ...]] = [
        (
            row.interval,
            row.region,
            row.unasked,
            row.iou,
            row.words,
            row.text,
            row.quality,
            row.amortised_ms,
            ", ".join(_remarks(row.interval, report)),
        )
        for row in report.rows
    ]
    columns = ("interval", "region 10%", "no query 10%", "mask IoU", "asked in words", "text found", "mean", "ms", "")
    return ResultTable(
        f"Keyframe interval against quality and cost, on {report.footage}",
        columns,
        tuple(rows),
        note="Coverage of the object with and without a question; overlap of its mask, given at keyframes; cells for "
        f"texts asked of the model {MODEL} on generated scenes, as a share of the best choice; words in sight that "
        "channel 16 covers; the mean of these; milliseconds of a frame with its share of a keyframe. No refresh at low "
        f"confidence. The longest sequence has {report.longest} frames. The knee is where the mean lies farthest above "
        "the chord of quality over cost (Kneedle, Satopaa et al. 2011).",
    )


def _remarks(interval: int, report: IntervalReport) -> list[str]:
    told = [("default", report.usual), ("knee", report.knee), ("longest within 0.02 of the best", report.sufficient)]
    return [name for name, at in told if at == interval]


def plot_interval(report: IntervalReport, path: Path) -> None:
    """Quality by interval on the left, quality over cost with its knee on the right."""
    from arr_stream.evaluation.plots import OTHER_COLOURS, OUR_COLOUR, make_panels, save_figure

    figure, (left, right) = make_panels(2)
    intervals = [row.interval for row in report.rows]
    measures: dict[str, list[float] | list[float | None]] = {
        "asked by a box, a tenth of the cells": [row.region for row in report.rows],
        "no query, a tenth of the cells": [row.unasked for row in report.rows],
        "carried mask (IoU)": [row.iou for row in report.rows],
        "asked in words": [row.words for row in report.rows],
        "text found": [row.text for row in report.rows],
    }
    for (name, values), colour in zip(measures.items(), (OUR_COLOUR, *OTHER_COLOURS), strict=True):
        known = [value for value in values if value is not None]
        if len(known) == len(intervals):
            left.plot(intervals, known, label=name, color=colour, linewidth=2, marker="o", markersize=4)
    left.set(xscale="log", xlabel="frames from keyframe to keyframe", ylabel="share", ylim=(0, 1.02))
    left.set_xticks(intervals, [str(interval) for interval in intervals])
    left.minorticks_off()
    left.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9)
    _plot_cost(right, report)
    if report.knee is not None:
        left.axvline(report.knee, color=OTHER_COLOURS[1], linewidth=1, linestyle="--")
    save_figure(figure, path)


def _plot_cost(panel: Any, report: IntervalReport) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    from arr_stream.evaluation.plots import OTHER_COLOURS, OUR_COLOUR

    cost, quality = [row.amortised_ms for row in report.rows], [row.quality for row in report.rows]
    panel.plot(cost, quality, color=OUR_COLOUR, linewidth=2, marker="o", markersize=4)
    if report.knee is not None:
        # Straight where both axes are, as the knee is measured; not on an axis of powers.
        along = np.linspace(min(cost), max(cost), 200)
        best = max(quality)
        cheapest = quality[int(np.argmin(cost))]
        chord = cheapest + (best - cheapest) * (along - min(cost)) / (max(cost) - min(cost))
        panel.plot(along, chord, color=OTHER_COLOURS[0], linewidth=1, linestyle="--", label="chord")
        panel.legend(frameon=False, loc="lower right", fontsize=9)
    for row in report.rows:
        if row.interval == report.knee:
            panel.plot(
                row.amortised_ms, row.quality, "o", markersize=13, markerfacecolor="none", color=OTHER_COLOURS[1]
            )
        name = f"{row.interval} (knee)" if row.interval == report.knee else str(row.interval)
        place = (row.amortised_ms, row.quality)
        panel.annotate(name, place, xytext=(-5, 7), textcoords="offset points", ha="right", fontsize=9)
    middle, half = (max(quality) + min(quality)) / 2, max(0.05, (max(quality) - min(quality)) * 0.6)
    panel.set(xscale="log", xlabel="ms a frame, amortised", ylabel="mean of all shares")
    panel.set_ylim(middle - half, middle + half)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
