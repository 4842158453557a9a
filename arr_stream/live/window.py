"""The window of `webcam` and `stream`, made with Tk, which comes with Python."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from arr_stream.consumer import Outcome, Rate, Recent
from arr_stream.draw.annotate import Annotator
from arr_stream.draw.views import VIEWS
from arr_stream.errors import ArrStreamError, DisplayUnavailable
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.publishing import Shown
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.relevance.query import Query, RegionQuery, TextQuery
from arr_stream.types import Frame

if TYPE_CHECKING:
    import tkinter

    from PIL.ImageTk import PhotoImage

_TITLE = "arr-stream: v view, / query, drag region, r forget it, space pause, q quit"
_REMEDY = "watch in a browser with `arr-stream serve SOURCE`, or run without pictures with --headless"
_MOST_WH = (1280, 800)
_LEAST_WIDTH = 800
_LEAST_DRAG_PX = 6
_MESSAGE_SECONDS = 4.0
_WAIT_SECONDS = 0.012
"""Interval at which keys and the pointer are read while no frame comes."""
_MOST_ANSWERS = 8


class Feed:
    """Consumer that keeps the newest frame for a window, and the answers of frames that were not shown.

    `dropped` returns the number of dropped frames so far.
    """

    def __init__(self, dropped: Callable[[], int]) -> None:
        self._fps = Rate()
        self._dropped = dropped
        self._newest: tuple[Frame, PatchSet] | None = None
        self._answers: tuple[Answer, ...] = ()
        self._lock = threading.Lock()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Replace the newest frame; never blocks."""
        self._fps.add()
        with self._lock:
            self._newest = frame, patches
            self._answers = (*self._answers, *patches.answers)[-_MOST_ANSWERS:]

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...

    def take(self) -> Shown | None:
        """Return the newest frame once; None until the next one comes."""
        with self._lock:
            if self._newest is None:
                return None
            frame, patches = self._newest
            self._newest, answers, self._answers = None, self._answers, ()
        return Shown(frame, replace(patches, answers=answers), self._dropped(), self._fps.value)


class LiveWindow:
    """Window that is hidden until its first picture; all calls come from the main thread.

    Attributes:
        ages_ms: Time from capture to display of the shown pictures.

    Raises:
        DisplayUnavailable: No display, one that refuses, or a Python without Tk.
    """

    def __init__(self) -> None:
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise DisplayUnavailable("there is no display for a window", remedy=_REMEDY)
        try:
            import tkinter

            from PIL import ImageTk  # noqa: F401
        except ImportError as exc:
            raise DisplayUnavailable(
                f"nothing to open a window with: this Python has no Tk ({exc})", remedy=_REMEDY
            ) from exc
        self._gone = tkinter.TclError
        try:
            self._root = tkinter.Tk(className="arr-stream")
        except tkinter.TclError as exc:
            raise DisplayUnavailable(f"the display cannot be used: {exc}", remedy=_REMEDY) from exc
        self._root.withdraw()
        self._root.title(_TITLE)
        self._root.minsize(320, 240)
        self._root.protocol("WM_DELETE_WINDOW", self._quit)
        self._root.tk_setPalette(background="black", foreground="white")
        self._status = tkinter.Label(self._root, anchor="w", padx=8, pady=4)
        self._canvas = tkinter.Canvas(self._root, highlightthickness=0, borderwidth=0)
        self._lines = tkinter.Label(self._root, anchor="w", justify="left", font="TkFixedFont", padx=8, pady=4)
        self._entry = tkinter.Entry(self._root, borderwidth=8, relief="flat")
        self._status.pack(fill="x")
        self._canvas.pack(fill="both", expand=True)
        self._image = self._canvas.create_image(0, 0, anchor="center")
        self._photo: PhotoImage | None = None
        self._bind()
        self.ages_ms = Recent()
        self._quitting = False
        self._messages: list[tuple[float, str]] = []
        self._drag: tuple[int, int] | None = None
        self._drawn: tuple[str, tuple[int, int]] | None = None

    def run(
        self,
        stream: LiveStream,
        feed: Feed,
        *,
        view: str,
        state: Callable[[], tuple[str, str | None]],
        running: Callable[[], bool],
    ) -> None:
        """Show each new frame and pass commands to the stream, until the user quits or `running` returns False.

        `feed` is a consumer of that stream; `state` returns the state of its source and one line about it.
        """
        self._stream = stream
        self._annotator = Annotator(view, asked=stream.asked)
        self._shown: Shown | None = None
        # A display that goes away ends the window as its user does.
        with contextlib.suppress(self._gone):
            while running() and not self._quitting:
                fresh = feed.take()
                if fresh is None:
                    time.sleep(_WAIT_SECONDS)
                else:
                    self._begin(fresh)
                if self._shown is not None and (fresh is not None or self._drawn != self._wanted):
                    self._draw(self._shown)
                if fresh is not None:
                    self.ages_ms.add((time.monotonic() - fresh.captured_seconds) * 1e3)
                self._write(*state())
                self._root.update()

    def close(self) -> None:
        """Destroy the window; safe to call again, even if the display is gone."""
        # The picture must be freed before its window, and in this thread.
        self._photo = None
        with contextlib.suppress(self._gone):
            self._root.destroy()

    @property
    def _wanted(self) -> tuple[str, tuple[int, int]]:
        """View and size in pixels to draw."""
        return self._annotator.view, (max(1, self._canvas.winfo_width()), max(1, self._canvas.winfo_height()))

    def _bind(self) -> None:
        keys: dict[str, Callable[[], None]] = {
            "v": self._next_view,
            "r": lambda: self._ask(self._without_region()),
            "<space>": self._pause,
            "/": self._begin_typing,
            "q": self._quit,
        }

        def bind(widget: tkinter.Misc, sequence: str, act: Callable[[], None]) -> None:
            widget.bind(sequence, lambda _: act())

        for sequence, act in keys.items():
            bind(self._canvas, sequence, act)
        bind(self._entry, "<Return>", self._apply_typed)
        bind(self._entry, "<Escape>", self._end_typing)
        self._canvas.bind("<ButtonPress-1>", self._press)
        self._canvas.bind("<B1-Motion>", self._move)
        self._canvas.bind("<ButtonRelease-1>", self._release)

    def _begin(self, fresh: Shown) -> None:
        if self._shown is None:
            width, height = fresh.frame.size_wh
            scale = min(max(1.0, _LEAST_WIDTH / width), _MOST_WH[0] / width, _MOST_WH[1] / height)
            bar_px = self._status.winfo_reqheight()
            self._root.geometry(f"{max(320, round(width * scale))}x{max(240, round(height * scale)) + bar_px}")
            self._root.deiconify()
            self._root.update()
            self._canvas.focus_set()
        self._shown = fresh
        self._annotator.update(fresh.patches)
        for notice in fresh.patches.notices:
            self._say(notice)

    def _draw(self, shown: Shown) -> None:
        from PIL import Image, ImageTk

        self._drawn = _, (width, height) = self._wanted
        frame_w, frame_h = shown.frame.size_wh
        self._scale = min(width / frame_w, height / frame_h)
        size_wh = max(1, round(frame_w * self._scale)), max(1, round(frame_h * self._scale))
        rgb = self._annotator.picture(shown.frame, shown.patches, size_wh)
        self._annotator.finish(rgb, shown.patches)
        picture = Image.fromarray(rgb)
        if self._photo is None or (self._photo.width(), self._photo.height()) != picture.size:
            self._photo = ImageTk.PhotoImage(picture, master=self._root)
            self._canvas.itemconfigure(self._image, image=str(self._photo))
        else:
            self._photo.paste(picture)
        self._canvas.coords(self._image, width / 2, height / 2)
        self._root.update_idletasks()

    def _write(self, state: str, message: str | None) -> None:
        """Update the status line, and the lines below the picture."""
        parts = [redact_url(self._stream.source.info.name), self._annotator.view.replace("_", " ")]
        parts.append("paused" if self._stream.paused and state == "live" else state)
        if (shown := self._shown) is not None:
            parts.append(f"{shown.fps:.1f} fps")
            parts += [f"{age_ms:.0f} ms old"] if (age_ms := self.ages_ms.median) is not None else []
            parts += [f"{shown.dropped} dropped"] if shown.dropped else []
            parts += [f"quality -{shown.patches.quality}"] if shown.patches.quality else []
        self._status["text"] = "   ".join(parts)
        now = time.monotonic()
        self._messages = [each for each in self._messages if each[0] > now]
        lines = [redact_url(message)] if state != "live" and message else []
        lines += [text for _, text in self._messages]
        self._lines["text"] = "\n".join(lines)
        if lines:
            self._lines.pack(fill="x")
        else:
            self._lines.pack_forget()

    def _say(self, text: str) -> None:
        """Show a line for a moment."""
        self._messages = [each for each in self._messages if each[1] != text]
        self._messages.append((time.monotonic() + _MESSAGE_SECONDS, redact_url(text)))

    def _next_view(self) -> None:
        views = tuple(VIEWS)
        place = views.index(self._annotator.view) + 1 if self._annotator.view in views else 0
        self._annotator.view = views[place % len(views)]

    def _pause(self) -> None:
        self._stream.paused = not self._stream.paused

    def _quit(self) -> None:
        self._quitting = True

    def _begin_typing(self) -> None:
        self._entry.delete(0, "end")
        self._entry.pack(fill="x")
        self._entry.focus_set()

    def _end_typing(self) -> None:
        self._entry.pack_forget()
        self._canvas.focus_set()

    def _apply_typed(self) -> None:
        """Replace the text queries with the typed one; an empty text removes them."""
        typed = self._entry.get().strip()
        self._end_typing()
        others = [query for query in self._stream.queries if not isinstance(query, TextQuery)]
        self._ask([*([typed] if typed else []), *others])

    def _without_region(self) -> list[Query]:
        return [query for query in self._stream.queries if not isinstance(query, RegionQuery)]

    def _ask(self, queries: Sequence[Query | str]) -> None:
        try:
            self._stream.ask(*queries)
        except ArrStreamError as exc:
            self._say(str(exc))
            return
        self._annotator.ask(self._stream.asked)
        for notice in self._stream.query_notices.values():
            self._say(notice)

    def _press(self, event: tkinter.Event[tkinter.Canvas]) -> None:
        self._drag = event.x, event.y

    def _move(self, event: tkinter.Event[tkinter.Canvas]) -> None:
        self._canvas.delete("drag")
        if self._drag is not None:
            self._canvas.create_rectangle(*self._drag, event.x, event.y, outline="orange", width=2, tags="drag")

    def _release(self, event: tkinter.Event[tkinter.Canvas]) -> None:
        """Set a region query from the dragged box, clamped to the frame."""
        self._canvas.delete("drag")
        if self._drag is None or self._shown is None or self._drawn is None:
            return
        frame_wh = self._shown.frame.size_wh
        corners = (self._drag, (event.x, event.y))
        self._drag = None
        (x0, x1), (y0, y1) = (
            sorted(
                min(max((corner[axis] - window_px / 2) / self._scale + frame_px / 2, 0.0), frame_px)
                for corner in corners
            )
            for axis, (window_px, frame_px) in enumerate(zip(self._drawn[1], frame_wh, strict=True))
        )
        if min(x1 - x0, y1 - y0) >= max(1.0, _LEAST_DRAG_PX / self._scale):
            self._ask([*self._without_region(), RegionQuery((x0, y0, x1 - x0, y1 - y0))])
