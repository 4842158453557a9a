"""A window of OpenCV, where its build has any."""

from __future__ import annotations

import re

import cv2

from arr_stream.errors import DisplayUnavailable
from arr_stream.live.window import REMEDY, KeyPressed, PointerEvent, WindowClosed, WindowEvent
from arr_stream.types import ByteArray

_NAMES = {10: "enter", 13: "enter", 27: "escape", 8: "backspace", 127: "backspace", 0xFF0D: "enter", 0xFF1B: "escape"}
_NAMES |= {0xFF08: "backspace", 0xFFFF: "backspace", 0xFF8D: "enter"}
_MOST_KEYS = 16


def has_windows() -> bool:
    """Whether this build of OpenCV can open windows; the headless flavour cannot."""
    found = re.search(r"^\s*GUI:\s*(\S+)", cv2.getBuildInformation(), re.MULTILINE)
    return found is not None and found[1] != "NONE"


class OpenCvWindow:
    """See `Window`.

    Args:
        title: Of the window, and its name.

    Raises:
        DisplayUnavailable: The display refuses it.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._events: list[WindowEvent] = []
        self._size_wh = (960, 540)
        self._closed = False
        try:
            cv2.namedWindow(title, cv2.WINDOW_NORMAL | cv2.WINDOW_FREERATIO | cv2.WINDOW_GUI_NORMAL)
            cv2.setMouseCallback(title, self._mouse)
        except cv2.error as exc:
            raise DisplayUnavailable(f"OpenCV cannot open a window: {exc.err}", remedy=REMEDY) from exc

    @property
    def size_wh(self) -> tuple[int, int]:
        if not self._closed:
            width, height = cv2.getWindowImageRect(self._title)[2:]
            if width > 0 and height > 0:
                self._size_wh = width, height
        return self._size_wh

    def resize(self, size_wh: tuple[int, int]) -> None:
        self._size_wh = size_wh
        cv2.resizeWindow(self._title, *size_wh)

    def show(self, rgb: ByteArray) -> None:
        if not self._closed:
            cv2.imshow(self._title, cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))

    def events(self) -> list[WindowEvent]:
        if not self._closed:
            for _ in range(_MOST_KEYS):
                code = cv2.waitKeyEx(1)
                if code == -1:
                    break
                self._key(code)
            if cv2.getWindowProperty(self._title, cv2.WND_PROP_VISIBLE) < 1:
                self._events.append(WindowClosed())
        taken, self._events = self._events, []
        return taken

    def full_screen(self, on: bool) -> None:
        how = cv2.WINDOW_FULLSCREEN if on else cv2.WINDOW_NORMAL
        cv2.setWindowProperty(self._title, cv2.WND_PROP_FULLSCREEN, how)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if cv2.getWindowProperty(self._title, cv2.WND_PROP_VISIBLE) >= 0:
            cv2.destroyWindow(self._title)
        cv2.waitKey(1)

    def _key(self, code: int) -> None:
        # Toolkits put modifiers above the lowest 16 bits.
        code &= 0xFFFF
        if code in _NAMES:
            self._events.append(KeyPressed(_NAMES[code]))
        elif code < 0xF000 and chr(code).isprintable():
            self._events.append(KeyPressed(chr(code)))

    def _mouse(self, event: int, x: int, y: int, flags: int, given: object) -> None:
        if event == cv2.EVENT_MOUSEMOVE:
            self._events.append(PointerEvent("move", x, y))
        elif event == cv2.EVENT_LBUTTONDOWN:
            self._events.append(PointerEvent("press", x, y))
        elif event == cv2.EVENT_LBUTTONUP:
            self._events.append(PointerEvent("release", x, y))
