"""Exact ground truth of a generated clip: the layer of each pixel, and its position in the previous frame.

A generated scene is a stack of flat layers. The file holds, for each pixel of each frame, the visible layer, and for
each layer and frame the affine map from the layer's own pixels to the frame's. Masks and backward flow of any frame
follow without estimation.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arr_stream.errors import EvaluationDataError
from arr_stream.types import BoolArray, ByteArray, FloatArray

DoubleArray = npt.NDArray[np.float64]

VERSION = 1
"""Supported version of the truth files."""


@dataclass(frozen=True, slots=True, eq=False)
class TruthWord:
    """Word on a layer.

    Args:
        text: The word.
        layer: Index of the layer that carries it.
        corners_xy: `[4, 2]`, corners of its box in pixels of the layer.
    """

    text: str
    layer: int
    corners_xy: DoubleArray


@dataclass(frozen=True, eq=False)
class SceneTruth:
    """Ground truth of a generated clip of `T` frames and `L` layers.

    Args:
        fps: Frames a second.
        labels: `[T, H, W]` uint8, 1 + the layer that is visible at a pixel.
        affines: `[T, L, 2, 3]`, layer pixels to frame pixels (pixel centres on whole numbers), NaN while absent.
        layer_names: `[L]`.
        layer_objects: `[L]`, object that each layer is a part of, 0 for the background.
        object_names: Names of objects 1, 2, ...
        words: Words on the layers.
    """

    fps: float
    labels: ByteArray
    affines: DoubleArray
    layer_names: tuple[str, ...]
    layer_objects: tuple[int, ...]
    object_names: tuple[str, ...]
    words: tuple[TruthWord, ...] = ()

    @property
    def frames(self) -> int:
        return len(self.labels)

    def object_map(self, frame: int) -> ByteArray:
        """Return `[H, W]` uint8: 0 for the background, else the number of the visible object."""
        lookup = np.array([0, *self.layer_objects], np.uint8)
        return np.asarray(lookup[self.labels[frame]], np.uint8)

    def masks(self, object_id: int) -> BoolArray:
        """Return the visible part of an object in every frame, `[T, H, W]`."""
        return np.stack([self.object_map(frame) == object_id for frame in range(self.frames)])

    def word_polygons(self, frame: int) -> list[DoubleArray]:
        """Return the corners of each word, `[4, 2]` in pixels of the frame, NaN where it is absent; they may be hidden
        or outside the frame."""
        affines = self.affines[frame]
        return [w.corners_xy @ affines[w.layer, :, :2].T + affines[w.layer, :, 2] for w in self.words]

    def backward_flow(self, frame: int) -> tuple[FloatArray, BoolArray]:
        """Return the backward flow of a frame from 1 on: the offset to each pixel's position in the previous frame.

        Returns:
            `[H, W, 2]` float32 in px: the pixel at `p` was at `p + flow[p]`. NaN where it was hidden or outside. `[H,
            W]` bool: where it was visible.
        """
        seen, before = self.labels[frame], self.labels[frame - 1]
        height, width = seen.shape
        y, x = np.mgrid[0:height, 0:width].astype(np.float64)
        there = _chained(self.affines[frame - 1], self.affines[frame])[seen.astype(np.intp) - 1]
        u = there[..., 0, 0] * x + there[..., 0, 1] * y + there[..., 0, 2]
        v = there[..., 1, 0] * x + there[..., 1, 1] * y + there[..., 1, 2]
        with np.errstate(invalid="ignore"):
            inside = (u > -0.5) & (u < width - 0.5) & (v > -0.5) & (v < height - 0.5)
        column = np.rint(np.where(inside, u, 0)).astype(np.intp)
        row = np.rint(np.where(inside, v, 0)).astype(np.intp)
        valid = inside & (before[row, column] == seen)
        flow = np.stack([u - x, v - y], axis=-1)
        return np.where(valid[..., None], flow, np.nan).astype(np.float32), valid


def _chained(before: DoubleArray, now: DoubleArray) -> DoubleArray:
    """Return maps from this frame's pixels to the previous frame's, `[L, 2, 3]`, NaN for layers absent in either."""
    bottom = np.broadcast_to(np.array([0.0, 0.0, 1.0]), (len(now), 1, 3))
    square = np.concatenate([now, bottom], axis=1)
    absent = np.isnan(now).any(axis=(1, 2)) | np.isnan(before).any(axis=(1, 2))
    square[absent] = np.eye(3)
    chained = np.concatenate([before, bottom], axis=1) @ np.linalg.inv(square)
    chained[absent] = np.nan
    return np.asarray(chained[:, :2])


def load_truth(path: Path) -> SceneTruth:
    """Read a truth file.

    Raises:
        EvaluationDataError: It is missing, or not a truth file of this version.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            facts = json.loads(archive["facts"].tobytes())
            if facts.pop("version") != VERSION:
                raise ValueError(f"its version is not {VERSION}")
            words = tuple(TruthWord(text, layer, np.array(corners)) for text, layer, corners in facts.pop("words"))
            labels = np.bitwise_xor.accumulate(archive["label_changes"], axis=0)
            return SceneTruth(labels=labels, affines=archive["affines"], words=words, **facts)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise EvaluationDataError(
            f"{path}: not a truth file: {exc}", remedy="scripts/make_sample_videos.py makes them"
        ) from exc


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
