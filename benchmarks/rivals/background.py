"""Background models of OpenCV as rules: the cells that hold the most foreground.

MOG2: Zivkovic, "Improved Adaptive Gaussian Mixture Model for Background Subtraction", ICPR 2004. KNN: Zivkovic and van
der Heijden, "Efficient Adaptive Density Estimation per Image Pixel for the Task of Background Subtraction", Pattern
Recognition Letters 2006. Both with OpenCV's defaults; what they take for shadow is not foreground.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2

from arr_stream.selection.allocation import Allocation
from benchmarks.rivals.base import PIXELS_A_CELL, Choose, Clip, most_of

FOREGROUND = 255
"""Value of foreground in a model's mask; shadow has 127."""


def background_model(make: Callable[[], cv2.BackgroundSubtractor]) -> Choose:
    """Return a rule that ranks cells by their share of foreground; exactly the budget, ties evenly spread."""

    def choose(clip: Clip, tokens: int) -> list[Allocation]:
        model, shape = make(), (clip.grid.rows, PIXELS_A_CELL, clip.grid.columns, PIXELS_A_CELL)
        masks = (model.apply(picture).reshape(shape) for picture in clip.rgb)
        return [most_of((mask == FOREGROUND).mean(axis=(1, 3)), tokens, clip.grid) for mask in masks]

    return choose


mog2 = background_model(cv2.createBackgroundSubtractorMOG2)
knn = background_model(cv2.createBackgroundSubtractorKNN)
