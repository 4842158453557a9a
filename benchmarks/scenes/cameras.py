"""Real footage with ground truth, read from a folder: fixed cameras, moving cameras, people near a webcam.

    DATA/cameras/{fixed,moving,webcam}/NAME/frames/*.jpg or *.png, or NAME/clip.*
    DATA/cameras/{fixed,moving,webcam}/NAME/masks/*.png, or NAME/boxes.csv

A mask has the name of its picture, and 255 where there is an object; pictures without a mask are not counted.
`boxes.csv` has a header and the columns `frame` (from 1), `x`, `y`, `w` and `h` in pixels. A column `track` numbers the
objects; without one the boxes are of one object, and others may be in view.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.sources import open_source
from arr_stream.types import BoolArray, ByteArray
from benchmarks.scenes.camera import Camera, GeneratedSource
from benchmarks.scenes.footage import Footage, FootageKind, Truth

LEARNING_FRAMES = 30
"""First frames of fixed cameras that are not counted, so that a background model has seen something."""
SHORTEST_TRACK = 60
"""Frames between the first and the last of a track that is followed."""
AFTER_TRACK = 30
"""Frames that are shown after the last of a track."""

_CAMERAS: dict[FootageKind, Camera | None] = {"fixed": "still", "moving": None, "webcam": "still"}
_LAYOUT = "expected NAME/frames/*.jpg or NAME/clip.*, with NAME/masks/*.png or NAME/boxes.csv"

ONLY = ""
"""Track of the boxes that have none."""

_Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A sequence with masks or boxes.

    Args:
        name: Of its folder.
        clip: What `open_source` takes.
        masks: By frame, from 0.
        boxes: x, y, width and height by track and frame, from 0.
    """

    name: str
    clip: Path
    masks: Mapping[int, Path]
    boxes: Mapping[str, Mapping[int, _Box]]

    @property
    def frames(self) -> int:
        """Frames up to the last annotated one."""
        return 1 + max([*self.masks, *(index for track in self.boxes.values() for index in track)])

    def truths(self, indices: Sequence[int], tracks: Sequence[str]) -> Iterator[Truth]:
        """Yield the objects on some frames; of boxes, those of some tracks."""
        with open_source(self.clip, max_frames=1) as source:
            width, height = source.info.size_wh
        for index in indices:
            if self.boxes:
                found = [self.boxes[track][index] for track in tracks if index in self.boxes[track]]
                yield Truth(_inside(found, (height, width)))
            elif index in self.masks:
                yield Truth(_read_mask(self.masks[index]))
            else:
                yield Truth()


def camera_footage(folder: Path, kind: FootageKind, max_frames: int | None = None) -> list[Footage]:
    """Return the sequences of a folder, asked for what moves.

    Raises:
        EvaluationDataError: No sequence there, or one without frames or ground truth.
    """
    return [_whole(sequence, kind, max_frames) for sequence in _sequences(folder)]


def _whole(sequence: _Sequence, kind: FootageKind, max_frames: int | None) -> Footage:
    frames = min(sequence.frames, max_frames or sequence.frames)
    return Footage(
        sequence.name,
        kind,
        _CAMERAS[kind],
        "moving",
        lambda: open_source(sequence.clip, max_frames=frames),
        lambda: sequence.truths(range(frames), list(sequence.boxes)),
        learning_frames=LEARNING_FRAMES if kind == "fixed" else 1,
        objects="one of many" if list(sequence.boxes) == [ONLY] else "several",
    )


def track_footage(folder: Path, max_frames: int | None = None) -> list[Footage]:
    """Return a clip for each track of a folder, from its first frame until some frames after its last.

    Raises:
        EvaluationDataError: As for `camera_footage`.
    """
    return [
        _followed(sequence, track, max_frames)
        for sequence in _sequences(folder)
        for track, boxes in sequence.boxes.items()
        if track != ONLY and max(boxes) - min(boxes) >= SHORTEST_TRACK
    ]


def _followed(sequence: _Sequence, track: str, max_frames: int | None) -> Footage:
    boxes = sequence.boxes[track]
    start, end = min(boxes), min(max(boxes) + 1 + AFTER_TRACK, sequence.frames)
    end = min(end, start + max_frames) if max_frames else end

    def pictures() -> Iterator[ByteArray]:
        with open_source(sequence.clip, max_frames=end) as source:
            yield from (frame.rgb for frame in islice(source.frames(), start, None))

    name = f"{sequence.name} {track}"
    return Footage(
        name,
        "tracks",
        "still",
        None,
        lambda: GeneratedSource(name, pictures, end - start),
        lambda: sequence.truths(range(start, end), [track]),
        objects="one of many",
    )


def _sequences(folder: Path) -> list[_Sequence]:
    found = [_sequence(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    if not found:
        raise EvaluationDataError(f"{folder}: no sequences", remedy=_LAYOUT)
    return found


def _sequence(path: Path) -> _Sequence:
    pictures = sorted(each for each in (path / "frames").glob("*") if each.suffix in (".jpg", ".png"))
    masks = {
        index: mask for index, each in enumerate(pictures) if (mask := path / "masks" / f"{each.stem}.png").is_file()
    }
    clip = path / "frames" if pictures else next(iter(sorted(path.glob("clip.*"))), None)
    boxes = _read_boxes(path / "boxes.csv") if not masks else {}
    if clip is None or not (masks or boxes):
        raise EvaluationDataError(f"{path}: no frames, or no masks or boxes of them", remedy=_LAYOUT)
    sequence = _Sequence(path.name, clip, masks, boxes)
    if pictures and sequence.frames > len(pictures):
        raise EvaluationDataError(
            f"{path}: boxes up to frame {sequence.frames}, but {len(pictures)} pictures",
            remedy="boxes.csv counts frames from 1",
        )
    return sequence


def _read_boxes(path: Path) -> dict[str, dict[int, _Box]]:
    """Return x, y, width and height by track and frame, from 0."""
    found: dict[str, dict[int, _Box]] = {}
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                x, y, width, height = (float(row[name]) for name in ("x", "y", "w", "h"))
                index = int(row["frame"]) - 1
                if index < 0:
                    raise ValueError("frames count from 1")
                found.setdefault(row.get("track", ONLY), {})[index] = x, y, width, height
            except (KeyError, TypeError, ValueError) as error:
                raise EvaluationDataError(
                    f"{path}: line {line} is no box", remedy="the columns are frame, x, y, w, h and optionally track"
                ) from error
    return found


def _inside(boxes: Sequence[_Box], shape_hw: tuple[int, int]) -> BoolArray:
    """`[H, W]`, pixels in any of some boxes."""
    inside = np.zeros(shape_hw, bool)
    for x, y, width, height in boxes:
        inside[max(0, round(y)) : max(0, round(y + height)), max(0, round(x)) : max(0, round(x + width))] = True
    return inside


def _read_mask(path: Path) -> BoolArray:
    mask = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if mask is None:
        raise EvaluationDataError(f"{path}: no picture", remedy=_LAYOUT)
    return np.asarray(mask == 255)
