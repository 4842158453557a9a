"""A window of Tk, which comes with Python itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.errors import DisplayUnavailable
from arr_stream.live.window import REMEDY, KeyPressed, PointerEvent, WindowClosed, WindowEvent
from arr_stream.types import ByteArray

if TYPE_CHECKING:
    import tkinter

    from PIL.ImageTk import PhotoImage

_NAMES = {"Return": "enter", "KP_Enter": "enter", "Escape": "escape", "BackSpace": "backspace", "Delete": "backspace"}
_COMMAND_KEYS = 0x4 | 0x8
"""Bits of Tk's key state for Control and Alt: with them a key types nothing."""


def check_tk() -> str | None:
    """Why there is no Tk here, in a few words; None where there is.

    Raises:
        DisplayUnavailable: There is, and the display refuses it.
    """
    try:
        import tkinter

        from PIL import ImageTk  # noqa: F401
    except ImportError as exc:
        return f"this Python has no Tk ({exc})"
    try:
        root = tkinter.Tk()
    except tkinter.TclError as exc:
        raise DisplayUnavailable(f"the display cannot be used: {exc}", remedy=REMEDY) from exc
    root.destroy()
    return None


class TkWindow:
    """See `Window`.

    Args:
        title: Of the window.

    Raises:
        DisplayUnavailable: The display refuses it.
    """

    def __init__(self, title: str) -> None:
        import tkinter

        self._events: list[WindowEvent] = []
        self._photo: PhotoImage | None = None
        self._gone = tkinter.TclError
        try:
            self._root: tkinter.Tk | None = tkinter.Tk(className="arr-stream")
        except tkinter.TclError as exc:
            raise DisplayUnavailable(f"the display cannot be used: {exc}", remedy=REMEDY) from exc
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
        if self._root is None:
            return 1, 1
        return max(1, self._canvas.winfo_width()), max(1, self._canvas.winfo_height())

    def resize(self, size_wh: tuple[int, int]) -> None:
        if self._root is not None:
            # The window manager tells the new size some time later; until then this one is asked for and drawn.
            self._root.geometry(f"{size_wh[0]}x{size_wh[1]}")
            self._root.deiconify()
            self._root.update()

    def show(self, rgb: ByteArray) -> None:
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
        if self._root is not None:
            try:
                self._root.update()
            except self._gone:
                self._events.append(WindowClosed())
        taken, self._events = self._events, []
        return taken

    def full_screen(self, on: bool) -> None:
        if self._root is not None:
            self._root.attributes("-fullscreen", on)

    def close(self) -> None:
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
        self._canvas.bind("<Motion>", lambda event: self._pointer("move", event))
        self._canvas.bind("<ButtonPress-1>", lambda event: self._pointer("press", event))
        self._canvas.bind("<B1-Motion>", lambda event: self._pointer("move", event))
        self._canvas.bind("<ButtonRelease-1>", lambda event: self._pointer("release", event))
        self._canvas.bind("<Leave>", lambda event: self._pointer("leave", event))

    def _pointer(self, kind: str, event: tkinter.Event[tkinter.Canvas]) -> None:
        assert kind in ("move", "press", "release", "leave")
        self._events.append(PointerEvent(kind, event.x, event.y))  # type: ignore[arg-type]

    def _key(self, event: tkinter.Event[tkinter.Misc]) -> None:
        if event.keysym in _NAMES:
            self._events.append(KeyPressed(_NAMES[event.keysym]))
        elif event.char and event.char.isprintable() and not int(event.state) & _COMMAND_KEYS:
            self._events.append(KeyPressed(event.char))
