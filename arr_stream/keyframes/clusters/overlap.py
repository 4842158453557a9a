"""From masks that overlap to one label map."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.types import IntArray

Mask = npt.NDArray[np.bool_]

UNCOVERED = 0
"""Id of what no mask covers."""


def labels_from_masks(masks: Iterable[Mask], hw: tuple[int, int]) -> IntArray:
    """One label for every place: the smallest mask that covers it.

    A part inside a whole so keeps a region of its own, and the whole is what is left around it. Of masks equally large
    the one given first is on top.

    Args:
        masks: `[h', w']` bool each, any number, of any sizes; used one at a time.
        hw: Height and width of the label map; masks of another size are brought to it, a place counting as covered
            when at least half of it is.

    Returns:
        `[h, w]` int32: 1 + the position of the mask in the order given, `UNCOVERED` where there is none.
    """
    fitted = [(float(mask.mean()), _fitted(mask, hw)) for mask in masks]
    # Largest first, so that smaller ones are painted over them.
    labels = np.full(hw, UNCOVERED, np.int32)
    for index in sorted(range(len(fitted)), key=lambda i: (-fitted[i][0], -i)):
        labels[fitted[index][1]] = index + 1
    return labels


def _fitted(mask: Mask, hw: tuple[int, int]) -> Mask:
    if mask.shape == hw:
        return mask
    shrinks = hw[0] < mask.shape[0] or hw[1] < mask.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(mask.astype(np.float32), hw[::-1], interpolation=method) >= 0.5)
