"""A window on the screen, by Tk, which comes with Python itself.

It belongs to the main thread, shows pictures and tells of keys and the pointer, and knows nothing of streams.
"""

from __future__ import annotations

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

_REMEDY = "watch in a browser with --serve, or run without pictures with --headless"
PointerKind = Literal["move", "press", "release", "leave"]

_POINTER_KINDS: dict[str, PointerKind] = {
    "<Motion>": "move",
    "<ButtonPress-1>": "press",
    "<B1-Motion>": "move",
    "<ButtonRelease-1>": "release",
    "<Leave>": "leave",
}
_KEY_NAMES = {
    "Return": "enter",
    "KP_Enter": "enter",
    "Escape": "escape",
    "BackSpace": "backspace",
    "Delete": "backspace",
}
_COMMAND_KEYS = 0x4 | 0x8
"""Bits of Tk's key state for Control and Alt: with them a key types nothing."""


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """A key, as the sign that it types, or `escape`, `enter` or `backspace`."""

    key: str


@dataclass(frozen=True, slots=True)
class PointerEvent:
    """What the pointer did, and where on the picture that is shown, in its pixels."""

    kind: PointerKind
    x: int = 0
    y: int = 0


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """Somebody has closed the window."""


WindowEvent = KeyPressed | PointerEvent | WindowClosed


class Window:
    """A window, not seen before its first picture; all calls come from the main thread.

    Args:
        title: Of the window.

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
            self._root: tkinter.Tk | None = tkinter.Tk(className="arr-stream")
        except tkinter.TclError as exc:
            raise DisplayUnavailable(f"the display cannot be used: {exc}", remedy=_REMEDY) from exc
        self._root.withdraw()
        self._root.title(title)
        self._root.minsize(320, 240)
        self._root.configure(background="black")
        self._canvas = tkinter.Canvas(self._root, background="black", highlightthickness=0, borderwidth=0)
        self._canvas.pack(fill="both", expand=True)
        self._image = self._canvas.create_image(0, 0, anchor="nw")
        self._bind(self._root)

    @property
    def size_wh(self) -> tuple[int, int]:
        """The size that a picture should have now, in pixels."""
        if self._root is None:
            return 1, 1
        return max(1, self._canvas.winfo_width()), max(1, self._canvas.winfo_height())

    def resize(self, size_wh: tuple[int, int]) -> None:
        """Ask for another size."""
        if self._root is not None:
            # The window manager tells the new size some time later; until then this one is asked for and drawn.
            self._root.geometry(f"{size_wh[0]}x{size_wh[1]}")
            self._root.deiconify()
            self._root.update()

    def show(self, rgb: ByteArray) -> None:
        """Show a picture `[H, W, 3]`, uint8."""
        from PIL import Image, ImageTk

        if self._root is None:
            return
        picture = Image.fromarray(rgb)
        try:
            if self._photo is None or (self._photo.width(), self._photo.height()) != picture.size:
                self._photo = ImageTk.PhotoImage(picture, master=self._root)
                self._canvas.itemconfigure(self._image, image=str(self._photo))
            else:
                self._photo.paste(picture)
            if self._root.state() == "withdrawn":
                self._root.deiconify()
            self._root.update_idletasks()
        except self._gone:
            self._events.append(WindowClosed())

    def events(self) -> list[WindowEvent]:
        """What has happened since the last call; keeps the window alive, so call it often."""
        if self._root is not None:
            try:
                self._root.update()
            except self._gone:
                self._events.append(WindowClosed())
        taken, self._events = self._events, []
        return taken

    def full_screen(self, on: bool) -> None:
        """Fill the screen, or no longer."""
        if self._root is not None:
            self._root.attributes("-fullscreen", on)

    def close(self) -> None:
        """Take the window away; safe to call again."""
        root, self._root = self._root, None
        # The picture must go before what it was made with, and in this thread.
        self._photo = None
        if root is not None:
            try:
                root.destroy()
            except self._gone:
                # The display has gone before us.
                return

    def _bind(self, root: tkinter.Tk) -> None:
        root.protocol("WM_DELETE_WINDOW", lambda: self._events.append(WindowClosed()))
        root.bind("<Key>", self._key)
        for sequence, kind in _POINTER_KINDS.items():
            self._canvas.bind(sequence, partial(self._pointer, kind))

    def _pointer(self, kind: PointerKind, event: tkinter.Event[tkinter.Canvas]) -> None:
        self._events.append(PointerEvent(kind, event.x, event.y))

    def _key(self, event: tkinter.Event[tkinter.Misc]) -> None:
        if event.keysym in _KEY_NAMES:
            self._events.append(KeyPressed(_KEY_NAMES[event.keysym]))
        elif event.char and event.char.isprintable() and not int(event.state) & _COMMAND_KEYS:
            self._events.append(KeyPressed(event.char))
