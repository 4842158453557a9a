"""No text: channel 16 stays zero."""

from __future__ import annotations

import numpy as np

from arr_stream.keyframes.base import KeyframeInput, TextFinding


class NoText:
    """Finds nothing, at no cost."""

    name = "none"

    def find(self, picture: KeyframeInput, *, read: bool) -> TextFinding:
        return TextFinding(np.zeros(picture.quarter_hw, np.float32))
