"""Ways to find text, by name."""

from __future__ import annotations

from collections.abc import Callable

from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.base import TextFinder


def _rapidocr(threads: int | None) -> TextFinder:
    from arr_stream.keyframes.text.rapid import RapidOcrFinder

    return RapidOcrFinder(threads=threads)


def _none(threads: int | None) -> TextFinder:
    from arr_stream.keyframes.text.none import NoText

    return NoText()


TEXT_FINDERS: dict[str, Callable[[int | None], TextFinder]] = {"rapidocr": _rapidocr, "none": _none}


def make_text_finder(name: str, threads: int | None = None) -> TextFinder:
    """The text finder of that name, on at most `threads` threads (None: as it likes).

    Raises:
        InvalidSetting: No text finder has that name.
        BackendUnavailable: Its package or its weights are missing.
    """
    if name not in TEXT_FINDERS:
        raise InvalidSetting(f"keyframes.text={name!r}", remedy=f"choose one of {', '.join(TEXT_FINDERS)}")
    return TEXT_FINDERS[name](threads)
