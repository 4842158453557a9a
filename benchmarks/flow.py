"""Endpoint error of optical flow on pairs with ground truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.plots import colours_of, make_panels, save_figure
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.types import BoolArray, ByteArray, FloatArray

FlowFunction = Callable[[ByteArray, ByteArray], FloatArray]
"""Function from two pictures, `[H, W, 3]` RGB, to the flow `[H, W, 2]` from the first to the second, in pixels."""

_FLO_MAGIC = 202021.25
_LARGEST_FLO_PX = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class FlowPair:
    """Two pictures and the true flow from the first to the second.

    Args:
        name: Name of the folder.
        first, second: `[H, W, 3]` RGB.
        flow_px: `[H, W, 2]`.
        valid: `[H, W]`, where the truth is known.
    """

    name: str
    first: ByteArray
    second: ByteArray
    flow_px: FloatArray
    valid: BoolArray


@dataclass(frozen=True, slots=True)
class FlowRow:
    """One estimator on one pair.

    Args:
        endpoint_error_px: Mean distance from the truth where it is known.
        milliseconds: One estimate, median of three.
    """

    estimator: str
    pair: str
    endpoint_error_px: float
    true_mean_px: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class FlowReport(Report):
    """All rows of an evaluation."""

    rows: tuple[FlowRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        """One line an estimator, with error and time of each pair beside each other."""
        found = {(row.estimator, row.pair): row for row in self.rows}
        true_px = {row.pair: row.true_mean_px for row in self.rows}
        rows: list[tuple[Value, ...]] = []
        for estimator in dict.fromkeys(row.estimator for row in self.rows):
            figures = (
                (found[estimator, pair].endpoint_error_px, found[estimator, pair].milliseconds) for pair in true_px
            )
            rows.append((estimator, *chain(*figures)))
        headings = ("estimator", *chain(*((f"{pair}, px", "ms") for pair in true_px)))
        note = "Mean true motion: " + ", ".join(f"{pair} {mean:.1f} px" for pair, mean in true_px.items()) + "."
        return (ResultTable("Mean endpoint error", headings, tuple(rows), note, digits=2),)

    def facts(self) -> Mapping[str, Any]:
        return {"pairs": self.rows}


def load_pairs(folder: Path) -> list[FlowPair]:
    """Load flow pairs: from folders with two pictures and a `.flo` file or a KITTI flow PNG, or from generated clips.

    Of each clip with a truth file beside it, two pairs are taken, a quarter from either end.

    Raises:
        EvaluationDataError: None there, or a malformed file.
        NotAMediaFile: A picture cannot be read.
    """
    truths = sorted(folder.glob("*.truth.npz"))
    if truths:
        return [pair for path in truths for pair in _truth_pairs(path)]
    pairs = [_load_pair(path) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    if not pairs:
        raise EvaluationDataError(
            f"{folder}: no flow pairs",
            remedy="expected folders with two pictures and a .flo or *flow*.png each, or NAME.mp4 with NAME.truth.npz",
        )
    return pairs


def evaluate_flow(pairs: Sequence[FlowPair], estimators: Mapping[str, FlowFunction]) -> FlowReport:
    """Return the mean endpoint error of each estimator on each pair."""
    rows = []
    for pair in pairs:
        true_mean = float(np.linalg.norm(pair.flow_px, axis=2)[pair.valid].mean())
        for name, estimate in estimators.items():
            seconds = []
            for _ in range(3):
                start = time.perf_counter()
                found = estimate(pair.first, pair.second)
                seconds.append(time.perf_counter() - start)
            error = float(np.linalg.norm(found - pair.flow_px, axis=2)[pair.valid].mean())
            rows.append(FlowRow(name, pair.name, error, true_mean, float(np.median(seconds)) * 1e3))
    return FlowReport(tuple(rows))


def read_flo(path: Path) -> FloatArray:
    """Read a Middlebury `.flo` file: a magic number, width, height, then (u, v) pixel by pixel."""
    raw = path.read_bytes()
    if len(raw) < 12 or np.frombuffer(raw, "<f4", 1)[0] != np.float32(_FLO_MAGIC):
        raise EvaluationDataError(f"{path}: not a .flo file", remedy="expected the Middlebury format")
    width, height = np.frombuffer(raw, "<i4", 2, offset=4).tolist()
    if len(raw) != 12 + width * height * 8:
        raise EvaluationDataError(f"{path}: {len(raw)} bytes for {width}x{height}", remedy="the file is cut or damaged")
    return np.frombuffer(raw, "<f4", offset=12).reshape(height, width, 2).astype(np.float32)


def read_kitti(path: Path) -> tuple[FloatArray, BoolArray]:
    """Read a KITTI flow PNG: 16-bit red and green are (value - 32768) / 64 px, blue above 0 marks known pixels."""
    import cv2

    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if picture is None or picture.dtype != np.uint16 or picture.ndim != 3:
        raise EvaluationDataError(f"{path}: not a KITTI flow picture", remedy="expected a 16-bit colour PNG")
    blue, green, red = (picture[:, :, channel].astype(np.float32) for channel in range(3))
    flow = np.stack([(red - 32768) / 64, (green - 32768) / 64], axis=2)
    return flow.astype(np.float32), blue > 0


def _load_pair(folder: Path) -> FlowPair:
    from arr_stream.sources.images import read_picture

    files = sorted(folder.iterdir())
    truths = [path for path in files if path.suffix == ".flo" or (path.suffix == ".png" and "flow" in path.stem)]
    sides = [path for path in files if path.suffix in (".png", ".ppm", ".jpg") and path not in truths]
    if len(truths) != 1 or len(sides) != 2:
        raise EvaluationDataError(
            f"{folder}: {len(sides)} pictures and {len(truths)} flow files", remedy="expected two and one"
        )
    if truths[0].suffix == ".flo":
        flow = read_flo(truths[0])
        valid = np.abs(flow).max(axis=2) < _LARGEST_FLO_PX
    else:
        flow, valid = read_kitti(truths[0])
    first, second = (read_picture(path) for path in sides)
    return FlowPair(folder.name, first, second, np.where(valid[..., None], flow, 0).astype(np.float32), valid)


def _truth_pairs(path: Path) -> list[FlowPair]:
    from arr_stream.evaluation.davis import truth_sequence
    from arr_stream.evaluation.truth import load_truth

    truth, clip = load_truth(path), truth_sequence(path)
    frames = clip.frames()
    if len(frames) != truth.frames:
        raise EvaluationDataError(f"{clip.source}: {len(frames)} frames, {path.name} knows {truth.frames}")
    pairs = []
    for index in sorted({max(1, truth.frames // 4), max(1, 3 * truth.frames // 4)}):
        flow, valid = truth.backward_flow(index)
        flow = np.where(valid[..., None], flow, 0).astype(np.float32)
        pairs.append(FlowPair(f"{clip.name} {index}", frames[index].rgb, frames[index - 1].rgb, flow, valid))
    return pairs


def dis_reference(preset: str) -> FlowFunction:
    """Return OpenCV's DIS alone at full size.

    Where motion exceeds its search range, its mean error is unstable: on a KITTI pair with motion of 190 px, grey
    pictures that differ by one level of rounding give 24 or 38 px.
    """
    import cv2

    from arr_stream.motion.dis import PRESETS

    search = cv2.DISOpticalFlow.create(PRESETS[preset])

    def estimate(first: ByteArray, second: ByteArray) -> FloatArray:
        greys = [cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) for picture in (first, second)]
        flow: FloatArray = search.calc(greys[0], greys[1], None)
        return flow

    return estimate


def pipeline_flow(name: str, preset: str) -> FlowFunction:
    """Return the flow as the pipeline uses it: estimated at half size, kept on its raster, resized to full size."""
    from arr_stream.motion import make_flow
    from arr_stream.motion.flow import FlowInput, resize_offsets
    from arr_stream.texture.pictures import Pictures
    from arr_stream.types import Frame, Grid

    estimator = make_flow(name, preset)

    def estimate(first: ByteArray, second: ByteArray) -> FloatArray:
        height, width = first.shape[:2]
        grid = Grid.for_size((width, height))
        given = []
        for index, picture in enumerate((second, first)):
            frame = Frame(index, index / 30, picture)
            given.append(FlowInput(Pictures(frame, grid).grey, frame))
        # The backward flow from `first` to `second` gives the position of each pixel of `first` on `second`.
        return np.asarray(resize_offsets(estimator.estimate(*given).offset_px, (height, width)))

    return estimate


def plot_flow(report: FlowReport, path: Path) -> None:
    """Endpoint error by pair and estimator, logarithmic."""
    pairs = sorted({row.pair for row in report.rows})
    estimators = list(dict.fromkeys(row.estimator for row in report.rows))
    figure, (panel,) = make_panels(1)
    width = 0.8 / len(estimators)
    for offset, (estimator, colour) in enumerate(zip(estimators, colours_of(estimators), strict=True)):
        values = {row.pair: row.endpoint_error_px for row in report.rows if row.estimator == estimator}
        places = [index + (offset - (len(estimators) - 1) / 2) * width for index in range(len(pairs))]
        bars = panel.bar(places, [values[pair] for pair in pairs], width=width, color=colour, label=estimator)
        if len(pairs) <= 4:
            panel.bar_label(bars, fmt="%.2g", padding=2, fontsize=8)
    panel.set(ylabel="mean endpoint error (px)", yscale="log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_xticks(range(len(pairs)), pairs, rotation=35 if len(pairs) > 4 else 0)
    panel.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9)
    save_figure(figure, path)
