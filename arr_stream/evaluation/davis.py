"""Sequences with one mask a frame: a folder in the layout of DAVIS, or clips with a truth file beside them.

DATA/frames/SEQ/00000.jpg ...      DATA/masks/SEQ/00000.png ...      (object > 0) DATA/NAME.mp4
DATA/NAME.truth.npz               (as `scripts/make_sample_videos.py` writes)
"""

from __future__ import annotations

from collections.abc import Callable, Container
from collections.abc import Sequence as Several
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.types import BoolArray, Frame

_LAYOUT = "expected frames/SEQ/*.jpg with masks/SEQ/*.png, or NAME.mp4 with NAME.truth.npz"


@dataclass(frozen=True, slots=True)
class Sequence:
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


def load_sequences(folder: Path, without: Container[str] = ()) -> list[Sequence]:
    """Return all sequences of a folder except those in `without`, by name.

    Raises:
        EvaluationDataError: No sequence there, or frames without as many masks.
    """
    if (folder / "frames").is_dir():
        shown = [path for path in sorted((folder / "frames").iterdir()) if path.is_dir()]
        found = [_davis_sequence(folder, path) for path in shown if path.name not in without]
    else:
        found = [truth_sequence(path) for path in sorted(folder.glob("*.truth.npz"))]
        found = [each for each in found if each.name not in without]
    if not found and not without:
        raise EvaluationDataError(f"{folder}: no sequences", remedy=_LAYOUT)
    return found


def _davis_sequence(folder: Path, path: Path) -> Sequence:
    pictures = sorted(path.glob("*.jpg"))
    masks = sorted((folder / "masks" / path.name).glob("*.png"))
    if not pictures or len(pictures) != len(masks):
        raise EvaluationDataError(
            f"{path}: {len(pictures)} pictures and {len(masks)} masks", remedy=f"{_LAYOUT}, as many masks as pictures"
        )
    return Sequence(path.name, path, lambda: _read_frames(path), lambda: [_read_mask(mask) for mask in masks])


def truth_sequence(path: Path) -> Sequence:
    """Return a generated clip with the mask of its first object.

    Raises:
        EvaluationDataError: The clip is not beside its truth.
    """
    from arr_stream.evaluation.truth import load_truth

    clip = path.with_name(path.name.removesuffix(".truth.npz") + ".mp4")
    if not clip.is_file():
        raise EvaluationDataError(f"{path}: no {clip.name} beside it", remedy=_LAYOUT)
    return Sequence(clip.stem, clip, lambda: _read_frames(clip), lambda: list(load_truth(path).masks(1)))


def check_mask(footage: Sequence, index: int, mask: BoolArray, size_wh: tuple[int, int]) -> None:
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


def check_visible(footage: Sequence, masks: Several[BoolArray], *, boxed: bool = True) -> None:
    """Check that the object is on a later frame, and, for a query by its box (`boxed`), on the first frame.

    Raises:
        EvaluationDataError: The object is not on a later frame, or not on the first.
    """
    if (boxed and not masks[0].any()) or not any(mask.any() for mask in masks[1:]):
        raise EvaluationDataError(
            f"{footage.name}: the object is not on {'the first frame and ' if boxed else ''}a later one",
            remedy="start where it is visible",
        )


def read_paired(footage: Sequence) -> tuple[list[Frame], list[BoolArray]]:
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


def tight_box(mask: BoolArray) -> tuple[float, float, float, float]:
    """Return `x, y, w, h` of the smallest box around a mask.

    Raises:
        EvaluationDataError: The mask is empty.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise EvaluationDataError("the first mask is empty", remedy="start where the object is visible")
    x, y = float(columns[0]), float(rows[0])
    return x, y, float(columns[-1]) + 1 - x, float(rows[-1]) + 1 - y
