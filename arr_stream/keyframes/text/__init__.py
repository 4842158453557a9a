"""Text finders by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from arr_stream.config import Settings
from arr_stream.extras import needed_by
from arr_stream.keyframes.base import KeyframeInput, TextFinder, TextFinding


class NoText:
    """Text finder that finds nothing; channel 16 stays zero."""

    name = "none"

    def find(self, picture: KeyframeInput) -> TextFinding:
        return TextFinding(np.zeros(picture.quarter_hw, np.float32))


def _rapidocr(settings: Settings, threads: int | None) -> TextFinder:
    from arr_stream.keyframes.text.rapid import RapidOcrFinder

    return RapidOcrFinder(threads=threads)


def _easyocr(settings: Settings, threads: int | None) -> TextFinder:
    with needed_by("keyframes.text=easyocr", "easyocr"):
        from arr_stream.keyframes.text.easy import EasyOcrFinder

        return EasyOcrFinder(threads=threads, device=settings.models.device)


def _auto(settings: Settings, threads: int | None) -> TextFinder:
    from arr_stream.keyframes.text.auto import AutoText

    return AutoText(threads=threads)


TEXT_FINDERS: dict[str, Callable[[Settings, int | None], TextFinder]] = {
    "auto": _auto,
    "rapidocr": _rapidocr,
    "easyocr": _easyocr,
    "none": lambda settings, threads: NoText(),
}


def make_text_finder(settings: Settings, threads: int | None = None) -> TextFinder:
    """Return the text finder that `keyframes.text` names, on at most `threads` threads (None: its default).

    Raises:
        BackendUnavailable: Its package or its weights are missing.
    """
    return TEXT_FINDERS[settings.keyframes.text](settings, threads)
