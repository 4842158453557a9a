"""Evaluation of carried regions: every Nth frame gives the mask, or the box around it, which is carried in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import cv2
import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.footage import Footage, read_paired, tight_box
from arr_stream.evaluation.stages import half_grey
from arr_stream.evaluation.tables import Report, ResultTable, plain
from arr_stream.motion.flow import DisFlow, FlowInput
from arr_stream.motion.region import Region
from arr_stream.texture.pictures import Pictures
from arr_stream.threads import one_opencv_thread
from arr_stream.types import BoolArray, Frame, Grid

TIME_REFERENCE = "DIS ultrafast, half size"


class MaskTracker(Protocol):
    """Tracker that carries one mask `[H, W]` from its frame over the following frames."""

    def start(self, frame: Frame, mask: BoolArray) -> None: ...

    def step(self, frame: Frame) -> BoolArray: ...


class Still:
    """Baseline that does not move the mask."""

    def start(self, frame: Frame, mask: BoolArray) -> None:
        self._mask = mask

    def step(self, frame: Frame) -> BoolArray:
        return self._mask


class ChainedDis:
    """Baseline that warps the mask along DIS ultrafast at half size, frame by frame; also the time reference."""

    def __init__(self) -> None:
        self._search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self.flow_seconds: list[float] = []

    def start(self, frame: Frame, mask: BoolArray) -> None:
        self._grey = half_grey(frame.rgb)
        size_wh = self._grey.shape[::-1]
        self._soft = cv2.resize(mask.astype(np.float32), size_wh, interpolation=cv2.INTER_AREA)
        y, x = np.mgrid[: size_wh[1], : size_wh[0]].astype(np.float32)
        self._base = np.stack([x, y], axis=2)

    def step(self, frame: Frame) -> BoolArray:
        start = time.perf_counter()
        grey = half_grey(frame.rgb)
        flow_px = self._search.calc(grey, self._grey, None)
        self.flow_seconds.append(time.perf_counter() - start)
        self._grey = grey
        self._soft = cv2.remap(self._soft, self._base + flow_px, None, cv2.INTER_LINEAR)
        return _binary(self._soft, frame)


class Anchored:
    """The pipeline's carrying of a region: along the flow, corrected by the region's appearance.

    Args:
        exact: Start from the mask; else from the box, as a region query.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._estimator = DisFlow()

    def start(self, frame: Frame, mask: BoolArray) -> None:
        self._grid = Grid.for_size(frame.size_wh)
        pictures = Pictures(frame, self._grid)
        self._previous = FlowInput(pictures.grey, frame)
        given = mask if self._exact or not mask.any() else _boxed(mask)
        soft = cv2.resize(given.astype(np.float32), pictures.reduced_wh(4), interpolation=cv2.INTER_AREA)
        self._region = Region.learned(pictures.quarter, soft, exact=self._exact)

    def step(self, frame: Frame) -> BoolArray:
        pictures = Pictures(frame, self._grid)
        present = FlowInput(pictures.grey, frame)
        flow = self._estimator.estimate(self._previous, present)
        self._previous = present
        self._region = self._region.follow(pictures.quarter, flow)
        return _binary(self._region.posterior, frame)


def _boxed(mask: BoolArray) -> BoolArray:
    x, y, width, height = (round(side) for side in tight_box(mask))
    box = np.zeros_like(mask)
    box[y : y + height, x : x + width] = True
    return box


def _binary(soft: np.ndarray, frame: Frame) -> BoolArray:
    full = cv2.resize(soft, frame.size_wh, interpolation=cv2.INTER_LINEAR)
    return np.asarray(full > 0.5)


OURS = "arr-stream, mask"

TRACKERS: dict[str, Callable[[], MaskTracker]] = {
    "not moved": Still,
    "DIS alone": ChainedDis,
    OURS: partial(Anchored, exact=True),
    "arr-stream, box": partial(Anchored, exact=False),
}


@dataclass(frozen=True, slots=True)
class CarryRow:
    """One tracker at one interval.

    Args:
        iou: Mean over sequences of the mean over frames between keyframes.
        by_sequence: Mean of each sequence.
        by_age: Mean over sequences at each age in frames, from 1 on.
        milliseconds: Median time of a step.
    """

    tracker: str
    interval: int
    iou: float
    by_sequence: dict[str, float]
    by_age: tuple[float, ...]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class CarryReport(Report):
    """All rows, and the median time of the flow alone on the same frames in the same run."""

    rows: tuple[CarryRow, ...]
    flow_milliseconds: float

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        rows = (
            (row.tracker, row.interval, row.iou, row.milliseconds, row.milliseconds / self.flow_milliseconds)
            for row in self.rows
        )
        return (
            ResultTable(
                "Carried masks",
                ("tracker", "a mask every ... frames", "mean IoU", "ms a frame", "times the flow"),
                (*rows, (TIME_REFERENCE, None, None, self.flow_milliseconds, 1.0)),
            ),
        )

    def facts(self) -> Mapping[str, Any]:
        times = [row.milliseconds / self.flow_milliseconds for row in self.rows]
        rows = [plain(row) | {"times_the_flow": ratio} for row, ratio in zip(self.rows, times, strict=True)]
        return {"time_reference": {TIME_REFERENCE: self.flow_milliseconds}, "rows": rows}


@one_opencv_thread()
def evaluate_carry(
    sequences: Sequence[Footage],
    intervals: Sequence[int],
    trackers: Mapping[str, Callable[[], MaskTracker]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> CarryReport:
    """Score carried masks by intersection over union with the true ones, at full size.

    Trackers take turns frame by frame, so that noise of the machine affects all alike, with OpenCV on one thread as in
    `process`. The mean is over sequences, of the mean over each one's frames: keyframes and frames without the object
    do not count.

    Raises:
        EvaluationDataError: Masks that do not fit the frames, or no frame between keyframes to score.
    """
    trackers = {**TRACKERS, **(trackers or {})}
    overlap: dict[tuple[str, int], dict[str, list[tuple[int, float]]]] = {}
    seconds: dict[tuple[str, int], list[float]] = {}
    flow_seconds: list[float] = []
    for footage in sequences:
        progress(footage.name)
        frames, masks = read_paired(footage, boxed=False)
        for interval in intervals:
            running = {name: make() for name, make in trackers.items()}
            for name, (ages, spent) in _run(frames, masks, interval, running).items():
                overlap.setdefault((name, interval), {})[footage.name] = ages
                seconds.setdefault((name, interval), []).extend(spent)
            for tracker in running.values():
                flow_seconds += getattr(tracker, "flow_seconds", [])
    rows = [
        _row(name, interval, by_sequence, seconds[name, interval]) for (name, interval), by_sequence in overlap.items()
    ]
    return CarryReport(tuple(rows), float(np.median(flow_seconds)) * 1e3)


def _run(
    frames: Sequence[Frame], masks: Sequence[BoolArray], interval: int, trackers: Mapping[str, MaskTracker]
) -> dict[str, tuple[list[tuple[int, float]], list[float]]]:
    """Return for each tracker (age, IoU) of the frames between keyframes, and the seconds of its steps."""
    found: dict[str, tuple[list[tuple[int, float]], list[float]]] = {name: ([], []) for name in trackers}
    for index, (frame, mask) in enumerate(zip(frames, masks, strict=True)):
        age = index % interval
        for name, tracker in trackers.items():
            if age == 0:
                tracker.start(frame, mask)
                continue
            start = time.perf_counter()
            carried = tracker.step(frame)
            found[name][1].append(time.perf_counter() - start)
            if mask.any():
                found[name][0].append((age, intersection_over_union(carried, mask)))
    return found


def intersection_over_union(first: BoolArray, second: BoolArray) -> float:
    """Return the intersection over union; 1 for two empty masks."""
    union = int((first | second).sum())
    return float((first & second).sum() / union) if union else 1.0


def _row(
    name: str, interval: int, by_sequence: Mapping[str, Sequence[tuple[int, float]]], seconds: Sequence[float]
) -> CarryRow:
    if not any(by_sequence.values()):
        raise EvaluationDataError(
            f"no frame with the object between keyframes {interval} frames apart", remedy="choose a smaller interval"
        )
    means = {sequence: float(np.mean([iou for _, iou in ages])) for sequence, ages in by_sequence.items() if ages}
    by_age = []
    for age in range(1, interval):
        at_age = [
            np.mean([iou for a, iou in ages if a == age])
            for ages in by_sequence.values()
            if any(a == age for a, _ in ages)
        ]
        if at_age:
            by_age.append(float(np.mean(at_age)))
    return CarryRow(
        name, interval, float(np.mean(list(means.values()))), means, tuple(by_age), float(np.median(seconds)) * 1e3
    )
