"""What the settings ask of cameras and test sources."""

from __future__ import annotations

import re

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting


def asked_size(settings: Settings) -> tuple[int, int] | None:
    """Width and height in pixels; None leaves it to the source.

    Raises:
        InvalidSetting: `live.size` is neither `auto` nor WIDTHxHEIGHT.
    """
    text = settings.live.size.strip().lower()
    if text in {"", "auto"}:
        return None
    found = re.fullmatch(r"(\d{1,5})\s*[x×]\s*(\d{1,5})", text)
    if found is None or not int(found[1]) or not int(found[2]):
        raise InvalidSetting(f"live.size={settings.live.size!r}: not a size", remedy="write it as 1280x720, or auto")
    return int(found[1]), int(found[2])
