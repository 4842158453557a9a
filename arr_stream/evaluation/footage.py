"""Footage with a mask of one object on each frame: a folder in the layout of DAVIS, or clips with a file beside them.

    DATA/frames/SEQ/00000.jpg ...      DATA/masks/SEQ/00000.png ...      (object > 0)
    DATA/NAME.mp4                      DATA/NAME.boxes.json

Boxes are masks of their rectangles, `{"0": [x, y, w, h], ...}` in pixels by frame index; the object is not visible on
frames without an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from arr_stream.errors import EvaluationDataError
from arr_stream.types import BoolArray, Frame

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""

_LAYOUT = "expected frames/SEQ/*.jpg with masks/SEQ/*.png, or NAME.mp4 with NAME.boxes.json"
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
        found = [_masked(path, folder / "masks") for path in sorted((folder / "frames").iterdir()) if path.is_dir()]
    else:
        found = [_boxed(path) for path in sorted(folder.glob("*.boxes.json"))]
    if not found:
        raise EvaluationDataError(f"{folder}: no footage", remedy=_LAYOUT)
    return found


def _masked(path: Path, masks_folder: Path) -> Footage:
    pictures, masks = sorted(path.glob("*.jpg")), sorted((masks_folder / path.name).glob("*.png"))
    if not pictures or len(pictures) != len(masks):
        counts = f"{len(pictures)} pictures and {len(masks)} masks"
        raise EvaluationDataError(f"{path}: {counts}", remedy=f"{_LAYOUT}, as many masks as pictures")
    return Footage(path.name, path, lambda: _read_frames(path), lambda: [_read_mask(mask) for mask in masks])


def _boxed(path: Path) -> Footage:
    name = path.name.removesuffix(".boxes.json")
    clip = path.with_name(f"{name}.mp4")
    if not clip.is_file():
        raise EvaluationDataError(f"{path}: no {clip.name} beside it", remedy=_LAYOUT)
    try:
        boxes = _BOXES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        what = exc.errors()[0]["msg"] if isinstance(exc, ValidationError) else exc
        raise EvaluationDataError(
            f"{path}: {what}", remedy='boxes are {"FRAME": [x, y, w, h], ...} in pixels, frames counted from 0'
        ) from exc

    def masks() -> list[BoolArray]:
        return [_filled(boxes.get(frame.index), frame.size_wh) for frame in _read_frames(clip)]

    return Footage(name, clip, lambda: _read_frames(clip), masks)


def _filled(box: Box | None, size_wh: tuple[int, int]) -> BoolArray:
    mask = np.zeros(size_wh[::-1], bool)
    x, y, w, h = box or (0, 0, 0, 0)
    mask[max(0, round(y)) : max(0, round(y + h)), max(0, round(x)) : max(0, round(x + w))] = True
    return mask


def read_paired(footage: Footage, *, boxed: bool = True) -> tuple[list[Frame], list[BoolArray]]:
    """Return all frames and their masks.

    Args:
        footage: What to read.
        boxed: The query is the box of the first mask, so the object must be on the first frame.

    Raises:
        EvaluationDataError: Not one mask a frame, one of another size, or the object is not on a later frame or, with
            `boxed`, not on the first.
    """
    frames, masks = footage.frames(), footage.masks()
    if len(frames) != len(masks):
        raise EvaluationDataError(
            f"{footage.name}: {len(masks)} masks for {len(frames)} frames", remedy="every frame needs one mask"
        )
    for frame, mask in zip(frames, masks, strict=True):
        if mask.shape[::-1] != frame.size_wh:
            sizes = "mask {} has {}x{} px, its frame {}x{}".format(frame.index, *mask.shape[::-1], *frame.size_wh)
            raise EvaluationDataError(f"{footage.name}: {sizes}", remedy="masks must have the size of their frames")
    if (boxed and not masks[0].any()) or not any(mask.any() for mask in masks[1:]):
        raise EvaluationDataError(
            f"{footage.name}: the object is not on {'the first frame and ' if boxed else ''}a later one",
            remedy="start where it is visible",
        )
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
    """Return `x, y, w, h` of the smallest box around a mask, which is not empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    x, y = float(columns[0]), float(rows[0])
    return x, y, float(columns[-1]) + 1 - x, float(rows[-1]) + 1 - y
