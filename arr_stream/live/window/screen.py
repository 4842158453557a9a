"""A window on the screen, made with Tk, which comes with Python.

It runs in the main thread, shows pictures and reports keys and the pointer, and does not depend on streams.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from arr_stream.errors import DisplayUnavailable
from arr_stream.types import ByteArray

if TYPE_CHECKING:
    import tkinter

    from PIL.ImageTk import PhotoImage

_REMEDY = "watch in a browser with `arr-stream serve SOURCE`, or run without pictures with --headless"
EventKind = Literal["key", "press", "move", "release", "close"]

_POINTER_KINDS: dict[str, EventKind] = {
    "<Motion>": "move",
    "<ButtonPress-1>": "press",
    "<B1-Motion>": "move",
    "<ButtonRelease-1>": "release",
}
_KEY_NAMES = {
    "Return": "enter",
    "KP_Enter": "enter",
    "Escape": "escape",
    "BackSpace": "backspace",
    "Delete": "backspace",
}
_COMMAND_KEYS = 0x4 | 0x8
"""Bits of Tk's key state for Control and Alt, with which a key types nothing."""


@dataclass(frozen=True, slots=True)
class WindowEvent:
    """Key press, pointer event, or close request.

    Args:
        x, y: Pointer position on the current picture, in its pixels.
        key: The character that a key types, or `escape`, `enter` or `backspace`.
    """

    kind: EventKind
    x: int = 0
    y: int = 0
    key: str = ""


class TkWindow:
    """Window that is hidden until its first picture; all calls come from the main thread.

    Raises:
        DisplayUnavailable: No display, one that refuses, or a Python without Tk.
    """

    def __init__(self, title: str) -> None:
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise DisplayUnavailable("there is no display for a window", remedy=_REMEDY)
        try:
            import tkinter

            from PIL import ImageTk  # noqa: F401
        except ImportError as exc:
            raise DisplayUnavailable(
                f"nothing to open a window with: this Python has no Tk ({exc})", remedy=_REMEDY
            ) from exc
        self._events: list[WindowEvent] = []
        self._photo: PhotoImage | None = None
        self._gone = tkinter.TclError
        try:
            self._root = tkinter.Tk(className="arr-stream")
        except tkinter.TclError as exc:
            raise DisplayUnavailable(f"the display cannot be used: {exc}", remedy=_REMEDY) from exc
        self._root.withdraw()
        self._root.title(title)
        self._root.minsize(320, 240)
        self._root.configure(background="black")
        self._canvas = tkinter.Canvas(self._root, background="black", highlightthickness=0, borderwidth=0)
        self._canvas.pack(fill="both", expand=True)
        self._image = self._canvas.create_image(0, 0, anchor="nw")
        self._root.protocol("WM_DELETE_WINDOW", self._closed)
        self._root.bind("<Key>", self._key)
        for sequence, kind in _POINTER_KINDS.items():
            self._canvas.bind(sequence, partial(self._pointer, kind))

    @property
    def size_wh(self) -> tuple[int, int]:
        """Current size for a picture, in pixels."""
        return max(1, self._canvas.winfo_width()), max(1, self._canvas.winfo_height())

    def resize(self, size_wh: tuple[int, int]) -> None:
        """Request another size."""
        # The window manager reports the new size later; until then, use the requested one.
        self._root.geometry(f"{size_wh[0]}x{size_wh[1]}")
        self._root.deiconify()
        self._root.update()

    def show(self, rgb: ByteArray) -> None:
        """Show a picture `[H, W, 3]`, uint8."""
        from PIL import Image, ImageTk

        picture = Image.fromarray(rgb)
        try:
            if self._photo is None or (self._photo.width(), self._photo.height()) != picture.size:
                self._photo = ImageTk.PhotoImage(picture, master=self._root)
                self._canvas.itemconfigure(self._image, image=str(self._photo))
            else:
                self._photo.paste(picture)
            self._root.update_idletasks()
        except self._gone:
            self._closed()

    def events(self) -> list[WindowEvent]:
        """Return the events since the last call; call it often, since it keeps the window responsive."""
        try:
            self._root.update()
        except self._gone:
            self._closed()
        taken, self._events = self._events, []
        return taken

    def full_screen(self, on: bool) -> None:
        """Switch full screen on or off."""
        self._root.attributes("-fullscreen", on)

    def close(self) -> None:
        """Destroy the window; safe to call again, even if the display is gone."""
        # The picture must be freed before its window, and in this thread.
        self._photo = None
        with contextlib.suppress(self._gone):
            self._root.destroy()

    def _closed(self) -> None:
        self._events.append(WindowEvent("close"))

    def _pointer(self, kind: EventKind, event: tkinter.Event[tkinter.Canvas]) -> None:
        self._events.append(WindowEvent(kind, event.x, event.y))

    def _key(self, event: tkinter.Event[tkinter.Misc]) -> None:
        if event.keysym in _KEY_NAMES:
            self._events.append(WindowEvent("key", key=_KEY_NAMES[event.keysym]))
        elif event.char and event.char.isprintable() and not int(event.state) & _COMMAND_KEYS:
            self._events.append(WindowEvent("key", key=event.char))
