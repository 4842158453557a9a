"""Ground truth of generated scenes: its file is written, and the places of its words are computed."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.evaluation.truth import VERSION, DoubleArray, SceneTruth, TruthWord
from arr_stream.types import BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class PlacedWord:
    """Place of a word in every frame.

    Args:
        text: What is written.
        object_id: The object that carries it, 0 for the background.
        polygons_xy: `[T, 4, 2]`, its corners in pixels of the frame, NaN where it is absent; it may be
            hidden or outside the frame, see `visible`.
        boxes_xyxy: `[T, 4]`, the upright boxes around them.
        visible: `[T]`, share of the polygon's pixels that is in the frame and not hidden.
    """

    text: str
    object_id: int
    polygons_xy: DoubleArray
    boxes_xyxy: DoubleArray
    visible: DoubleArray


def placed_words(truth: SceneTruth) -> tuple[PlacedWord, ...]:
    """Compute the place of every word in every frame."""
    return tuple(_place(truth, word) for word in truth.words)


def _place(truth: SceneTruth, word: TruthWord) -> PlacedWord:
    corners = np.concatenate([word.corners_xy, np.ones((4, 1))], axis=1)
    polygons = np.einsum("tij,kj->tki", truth.affines[:, word.layer], corners)
    boxes = np.concatenate([polygons.min(axis=1), polygons.max(axis=1)], axis=1)
    visible = np.array([_visible(truth, word.layer, polygon, frame) for frame, polygon in enumerate(polygons)])
    return PlacedWord(word.text, truth.layer_objects[word.layer], polygons, boxes, visible)


def _visible(truth: SceneTruth, layer: int, polygon_xy: DoubleArray, frame: int) -> float:
    """Return the share of a polygon's pixels that shows its layer."""
    if np.isnan(polygon_xy).any():
        return 0.0
    x0, y0 = np.floor(polygon_xy.min(axis=0)).astype(int)
    x1, y1 = np.ceil(polygon_xy.max(axis=0)).astype(int) + 1
    y, x = np.mgrid[y0:y1, x0:x1]
    inside = _inside(polygon_xy, x, y)
    width, height = truth.size_wh
    framed = inside & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    seen = truth.labels[frame][y[framed], x[framed]] == layer + 1
    return float(seen.sum() / max(1, inside.sum()))


def _inside(polygon_xy: DoubleArray, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> BoolArray:
    """Return which points lie in a convex polygon of either orientation."""
    ahead = np.roll(polygon_xy, -1, axis=0)
    sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for (ax, ay), (bx, by) in zip(polygon_xy, ahead, strict=True)]
    stack = np.stack(sides)
    return np.asarray((stack >= 0).all(axis=0) | (stack <= 0).all(axis=0))


def save_truth(path: Path, truth: SceneTruth) -> None:
    """Write a truth file (`.npz`); the same truth gives the same bytes."""
    facts = {
        "version": VERSION,
        "fps": truth.fps,
        "layer_names": truth.layer_names,
        "layer_objects": truth.layer_objects,
        "object_names": truth.object_names,
        "words": [[word.text, word.layer, word.corners_xy.tolist()] for word in truth.words],
    }
    # Most labels repeat those of the frame before: the changes compress far better.
    changes = truth.labels.copy()
    changes[1:] ^= truth.labels[:-1]
    arrays = {
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "label_changes": changes,
        "affines": truth.affines,
    }
    # A fixed date for each entry; numpy's writer would store the present time.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
