"""Footage to fit weights to: sequences with a mask or a box a frame, divided into fitted and held out.

Masks are read as `evaluation.davis` does. Boxes, of the same object throughout, are in a small JSON file a sequence:

    DATA/frames/SEQ/00000.jpg ...     DATA/boxes/SEQ.json
    DATA/NAME.mp4                     DATA/NAME.boxes.json

    {"0": [x, y, w, h], "1": [x, y, w, h], ...}

Keys are frame indices from 0, boxes are in pixels of the frame; the object is not visible on frames without an entry.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence as Several
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.evaluation.davis import Sequence, load_sequences
from arr_stream.types import BoolArray, Frame

Box = tuple[float, float, float, float]

BOXES_SUFFIX = ".boxes.json"
_VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov", ".avi", ".webm")
_FORMAT = 'boxes are {"FRAME": [x, y, w, h], ...} in pixels, frames counted from 0'


@dataclass(frozen=True, slots=True)
class Footage:
    """Sequence and the name of its object.

    Args:
        sequence: Frames and masks; boxes are masks of their rectangles.
        words: Name of the object; empty if it has none.
    """

    sequence: Sequence
    words: str = ""

    @property
    def name(self) -> str:
        return self.sequence.name


@dataclass(frozen=True, slots=True)
class Division:
    """Division into footage to fit to, and held-out footage that is used only after all decisions."""

    fitted: tuple[Footage, ...]
    held_out: tuple[Footage, ...]


def load_footage(folder: Path) -> list[Footage]:
    """Return all sequences of a folder, by name; a sequence with boxes needs no masks.

    Raises:
        EvaluationDataError: The folder has no sequence, a malformed file, or fewer masks than frames.
    """
    boxed = _boxed(folder)
    masked = (folder / "masks").is_dir() or any(folder.glob("*.truth.npz"))
    if not masked and not boxed:
        raise EvaluationDataError(
            f"{folder}: no masks, truths or boxes",
            remedy="expected frames/SEQ with masks/SEQ or boxes/SEQ.json, or NAME.mp4 with NAME.truth.npz "
            f"or NAME{BOXES_SUFFIX}",
        )
    names = {footage.name for footage in boxed}
    found = load_sequences(folder, names) if masked else []
    return sorted([*boxed, *(Footage(each, _words(each)) for each in found)], key=lambda footage: footage.name)


def divide(footage: Several[Footage], hold_out: Several[str], seed: int = 0) -> Division:
    """Divide footage in two parts.

    Args:
        footage: All of it, at least two.
        hold_out: `half` (every second sequence by name is held out), `other-half` (those that `half` fits to), one
            share above 0 and below 1 (drawn with the seed), or names of sequences.
        seed: Seed of the draw.

    Raises:
        InvalidSetting: A name is unknown, or a part has no sequence.
    """
    ordered = sorted(footage, key=lambda each: each.name)
    names = _held_out_names([each.name for each in ordered], hold_out, seed)
    division = Division(
        tuple(each for each in ordered if each.name not in names), tuple(each for each in ordered if each.name in names)
    )
    if not division.fitted or not division.held_out:
        raise InvalidSetting(
            f"--hold-out {' '.join(hold_out)} keeps {len(division.held_out)} of {len(ordered)} sequences",
            remedy="leave at least one to fit to and one to hold out",
        )
    return division


def _held_out_names(names: list[str], hold_out: Several[str], seed: int) -> set[str]:
    if list(hold_out) == ["half"]:
        return set(names[1::2])
    if list(hold_out) == ["other-half"]:
        return set(names[::2])
    share = _share(hold_out[0]) if len(hold_out) == 1 and hold_out[0] not in names else None
    if share is not None:
        drawn = np.random.default_rng(seed).permutation(len(names))[: round(share * len(names))]
        return {names[index] for index in drawn.tolist()}
    unknown = [name for name in hold_out if name not in names]
    if unknown:
        raise InvalidSetting(
            f"--hold-out {unknown[0]}: no such sequence",
            remedy=f"write half, other-half, a share such as 0.5, or names of {', '.join(names)}",
        )
    return set(hold_out)


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _words(sequence: Sequence) -> str:
    """Return the name of the first object of a generated clip."""
    truth = sequence.source.with_suffix(".truth.npz")
    if not truth.is_file():
        return ""
    from arr_stream.evaluation.truth import load_truth

    names = load_truth(truth).object_names
    return names[0] if names else ""


def _boxed(folder: Path) -> list[Footage]:
    found = []
    for path in sorted((folder / "boxes").glob("*.json")):
        source = folder / "frames" / path.stem
        if not source.is_dir():
            raise EvaluationDataError(f"{path}: no folder {source}", remedy="boxes/SEQ.json belongs to frames/SEQ")
        found.append(boxed_footage(path, source, path.stem))
    for path in sorted(folder.glob(f"*{BOXES_SUFFIX}")):
        stem = path.name.removesuffix(BOXES_SUFFIX)
        clips = [folder / f"{stem}{suffix}" for suffix in _VIDEO_SUFFIXES]
        clip = next((clip for clip in clips if clip.is_file()), None)
        if clip is None:
            raise EvaluationDataError(f"{path}: no video {stem} beside it", remedy="name it as its video")
        found.append(boxed_footage(path, clip, stem))
    return found


def boxed_footage(path: Path, source: Path, name: str) -> Footage:
    """Return footage with the boxes of a file.

    Raises:
        EvaluationDataError: The file is not readable, or does not hold boxes by frame.
    """
    boxes = _read_boxes(path)

    def frames() -> list[Frame]:
        from arr_stream.sources import open_source

        with open_source(source) as opened:
            return list(opened.frames())

    def masks() -> list[BoolArray]:
        return [_filled(boxes.get(frame.index), frame.size_wh) for frame in frames()]

    return Footage(Sequence(name, source, frames, masks))


def _read_boxes(path: Path) -> dict[int, Box]:
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise EvaluationDataError(f"{path}: not readable JSON: {exc}", remedy=_FORMAT) from exc
    if not isinstance(values, dict) or not values:
        raise EvaluationDataError(f"{path}: no boxes by frame", remedy=_FORMAT)
    boxes: dict[int, Box] = {}
    for key, box in values.items():
        if not key.isdecimal() or not _is_box(box):
            raise EvaluationDataError(f"{path}: {json.dumps({key: box})}", remedy=_FORMAT)
        boxes[int(key)] = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
    return boxes


def _is_box(box: Any) -> bool:
    numbers = isinstance(box, list) and len(box) == 4 and all(type(value) in (int, float) for value in box)
    return numbers and all(math.isfinite(value) for value in box) and box[2] > 0 and box[3] > 0


def _filled(box: Box | None, size_wh: tuple[int, int]) -> BoolArray:
    mask = np.zeros(size_wh[::-1], bool)
    if box is not None:
        x, y, w, h = box
        mask[max(0, round(y)) : max(0, round(y + h)), max(0, round(x)) : max(0, round(x + w))] = True
    return mask
