"""Footage with a mask of one object on each frame: a folder in the layout of DAVIS, or clips with a file beside them.

    DATA/frames/SEQ/00000.jpg ...      DATA/masks/SEQ/00000.png ...      (object > 0)
                                       DATA/boxes/SEQ.json
    DATA/NAME.mp4                      DATA/NAME.truth.npz               (as `scripts/make_sample_videos.py` writes)
                                       DATA/NAME.boxes.json

Boxes are masks of their rectangles, `{"0": [x, y, w, h], ...}` in pixels by frame index; the object is not visible on
frames without an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from arr_stream.errors import EvaluationDataError
from arr_stream.types import BoolArray, Frame

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""

_LAYOUT = (
    "expected frames/SEQ/*.jpg with masks/SEQ/*.png or boxes/SEQ.json, or NAME.mp4 with NAME.truth.npz or "
    "NAME.boxes.json"
)
_Side = Annotated[FiniteFloat, Field(gt=0)]
_BOXES = TypeAdapter(
    Annotated[dict[NonNegativeInt, tuple[FiniteFloat, FiniteFloat, _Side, _Side]], Field(min_length=1)]
)


@dataclass(frozen=True, slots=True)
class Footage:
    """Frames with the mask of one object on each.

    Args:
        name: Unique in its folder.
        source: Argument for `open_source`.
        frames: Reads all frames, in order.
        masks: Reads `[H, W]` of every frame, in order.
    """

    name: str
    source: Path
    frames: Callable[[], list[Frame]]
    masks: Callable[[], list[BoolArray]]


def load_footage(folder: Path) -> list[Footage]:
    """Return all footage of a folder, by name.

    Raises:
        EvaluationDataError: The folder has no footage, a malformed file, or frames without as many masks.
    """
    if (folder / "frames").is_dir():
        found = [_of_pictures(folder, path) for path in sorted((folder / "frames").iterdir()) if path.is_dir()]
    else:
        boxes = [boxed_footage(path, _clip_of(path, ".boxes.json")) for path in folder.glob("*.boxes.json")]
        found = sorted([*boxes, *map(truth_footage, folder.glob("*.truth.npz"))], key=lambda each: each.name)
    if not found:
        raise EvaluationDataError(f"{folder}: no footage", remedy=_LAYOUT)
    return found


def _of_pictures(folder: Path, path: Path) -> Footage:
    boxes = folder / "boxes" / f"{path.name}.json"
    if boxes.is_file():
        return boxed_footage(boxes, path)
    pictures = sorted(path.glob("*.jpg"))
    masks = sorted((folder / "masks" / path.name).glob("*.png"))
    if not pictures or len(pictures) != len(masks):
        raise EvaluationDataError(
            f"{path}: {len(pictures)} pictures and {len(masks)} masks", remedy=f"{_LAYOUT}, as many masks as pictures"
        )
    return Footage(path.name, path, lambda: _read_frames(path), lambda: [_read_mask(mask) for mask in masks])


def truth_footage(path: Path) -> Footage:
    """Return a generated clip with the mask of its first object.

    Raises:
        EvaluationDataError: The clip is not beside its truth.
    """
    from arr_stream.evaluation.truth import load_truth

    clip = _clip_of(path, ".truth.npz")
    return Footage(clip.stem, clip, lambda: _read_frames(clip), lambda: list(load_truth(path).masks(1)))


def boxed_footage(path: Path, source: Path) -> Footage:
    """Return footage with the boxes of a file.

    Raises:
        EvaluationDataError: The file is not readable, or does not hold boxes by frame.
    """
    try:
        boxes = _BOXES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        what = exc.errors()[0]["msg"] if isinstance(exc, ValidationError) else exc
        raise EvaluationDataError(
            f"{path}: {what}", remedy='boxes are {"FRAME": [x, y, w, h], ...} in pixels, frames counted from 0'
        ) from exc

    def masks() -> list[BoolArray]:
        return [_filled(boxes.get(frame.index), frame.size_wh) for frame in _read_frames(source)]

    name = path.name.removesuffix(".json").removesuffix(".boxes")
    return Footage(name, source, lambda: _read_frames(source), masks)


def _clip_of(path: Path, suffix: str) -> Path:
    clip = path.with_name(path.name.removesuffix(suffix) + ".mp4")
    if not clip.is_file():
        raise EvaluationDataError(f"{path}: no {clip.name} beside it", remedy=_LAYOUT)
    return clip


def _filled(box: Box | None, size_wh: tuple[int, int]) -> BoolArray:
    mask = np.zeros(size_wh[::-1], bool)
    if box is not None:
        x, y, w, h = box
        mask[max(0, round(y)) : max(0, round(y + h)), max(0, round(x)) : max(0, round(x + w))] = True
    return mask


def check_mask(footage: Footage, index: int, mask: BoolArray, size_wh: tuple[int, int]) -> None:
    """Check that a mask has the size of its frame.

    Raises:
        EvaluationDataError: A mask of another size than its frame.
    """
    if mask.shape[::-1] != size_wh:
        width, height = mask.shape[::-1]
        raise EvaluationDataError(
            f"{footage.name}: mask {index} has {width}x{height} px, its frame {size_wh[0]}x{size_wh[1]}",
            remedy="masks must have the size of their frames",
        )


def check_visible(footage: Footage, masks: Sequence[BoolArray], *, boxed: bool = True) -> None:
    """Check that the object is on a later frame, and, for a query by its box (`boxed`), on the first frame.

    Raises:
        EvaluationDataError: The object is not on a later frame, or not on the first.
    """
    if (boxed and not masks[0].any()) or not any(mask.any() for mask in masks[1:]):
        raise EvaluationDataError(
            f"{footage.name}: the object is not on {'the first frame and ' if boxed else ''}a later one",
            remedy="start where it is visible",
        )


def read_paired(footage: Footage) -> tuple[list[Frame], list[BoolArray]]:
    """Return all frames and their masks.

    Raises:
        EvaluationDataError: Not one mask a frame, or one of another size.
    """
    frames, masks = footage.frames(), footage.masks()
    if len(frames) != len(masks):
        raise EvaluationDataError(
            f"{footage.name}: {len(masks)} masks for {len(frames)} frames", remedy="every frame needs one mask"
        )
    for index, (frame, mask) in enumerate(zip(frames, masks, strict=True)):
        check_mask(footage, index, mask, frame.size_wh)
    return frames, masks


def _read_frames(path: Path) -> list[Frame]:
    from arr_stream.sources import open_source

    with open_source(path) as source:
        return list(source.frames())


def _read_mask(path: Path) -> BoolArray:
    import cv2

    mask = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if mask is None:
        raise EvaluationDataError(f"{path}: not a readable picture", remedy="masks are 8-bit PNG, object > 0")
    return np.asarray(mask > 0)


def tight_box(mask: BoolArray) -> Box:
    """Return `x, y, w, h` of the smallest box around a mask.

    Raises:
        EvaluationDataError: The mask is empty.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise EvaluationDataError("the first mask is empty", remedy="start where the object is visible")
    x, y = float(columns[0]), float(rows[0])
    return x, y, float(columns[-1]) + 1 - x, float(rows[-1]) + 1 - y
