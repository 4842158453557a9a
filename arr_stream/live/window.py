"""A window on the screen: what every kind of it can do, and which kind there is on this machine.

Windows belong to the main thread. They show pictures and tell of keys and the pointer, and know nothing of streams.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal, Protocol

from arr_stream.errors import DisplayUnavailable
from arr_stream.types import ByteArray

REMEDY = "watch in a browser with --serve, or run without pictures with --headless"

_MOST_WH = (1280, 800)
_LEAST_WIDTH = 800


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """A key, as the sign that it types, or `escape`, `enter` or `backspace`."""

    key: str


@dataclass(frozen=True, slots=True)
class PointerEvent:
    """What the pointer did, and where on the picture that is shown, in its pixels."""

    kind: Literal["move", "press", "release", "leave"]
    x: int = 0
    y: int = 0


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """Somebody has closed the window."""


WindowEvent = KeyPressed | PointerEvent | WindowClosed


class Window(Protocol):
    """Shows pictures; all calls come from the main thread."""

    @property
    def size_wh(self) -> tuple[int, int]:
        """The size that a picture should have now, in pixels."""
        ...

    def resize(self, size_wh: tuple[int, int]) -> None:
        """Ask for another size."""
        ...

    def show(self, rgb: ByteArray) -> None:
        """Show a picture `[H, W, 3]`, uint8."""
        ...

    def events(self) -> list[WindowEvent]:
        """What has happened since the last call; keeps the window alive, so call it often."""
        ...

    def full_screen(self, on: bool) -> None:
        """Fill the screen, or no longer."""
        ...

    def close(self) -> None:
        """Take the window away; safe to call again."""
        ...


def open_window(title: str) -> Window:
    """A window, not seen before its first picture.

    OpenCV's own where its build has one, Tk's otherwise.

    Raises:
        DisplayUnavailable: No display, one that refuses, or nothing to open a window with.
    """
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise DisplayUnavailable("there is no display for a window", remedy=REMEDY)
    from arr_stream.live.window_opencv import OpenCvWindow, has_windows
    from arr_stream.live.window_tk import TkWindow, check_tk

    no_tk = check_tk()
    if has_windows():
        return OpenCvWindow(title)
    if no_tk is not None:
        raise DisplayUnavailable(f"nothing to open a window with: {no_tk}", remedy=REMEDY)
    return TkWindow(title)


def first_size(frame_wh: tuple[int, int], bars_px: int) -> tuple[int, int]:
    """How large a window begins: the frame as it is, within bounds, and so much higher for the bars around it."""
    width, height = frame_wh
    scale = max(1.0, _LEAST_WIDTH / width)
    scale = min(scale, _MOST_WH[0] / width, (_MOST_WH[1] - bars_px) / height)
    return max(160, round(width * scale)), max(120, round(height * scale)) + bars_px
