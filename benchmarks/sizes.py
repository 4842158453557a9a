"""Sizes that are given on a command line."""

from __future__ import annotations

from arr_stream.errors import InvalidSetting


def parse_size(text: str, *, least: int = 1) -> tuple[int, int]:
    """Width and height from WIDTHxHEIGHT.

    Args:
        text: What was given as `--size`.
        least: Fewest pixels of either.

    Raises:
        InvalidSetting: Not two whole numbers of at least that.
    """
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise InvalidSetting(f"--size {text!r}", remedy="write WIDTHxHEIGHT, such as 864x480")
    if min(int(width), int(height)) < least:
        raise InvalidSetting(f"--size {text} is too small", remedy=f"give at least {least}x{least}")
    return int(width), int(height)
