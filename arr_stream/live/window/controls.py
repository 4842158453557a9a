"""Key and pointer commands of a live window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arr_stream.draw.annotate import Annotator
from arr_stream.draw.views import CHANNEL_PREFIX, VIEWS
from arr_stream.errors import ArrStreamError
from arr_stream.live.stream import LiveStream
from arr_stream.live.window.drawing import Pane
from arr_stream.live.window.screen import WindowEvent
from arr_stream.relevance.query import Query, RegionQuery, TextQuery, parse_text
from arr_stream.texture.layout import CHANNELS
from arr_stream.types import Frame

_MOST_SIGNS = 200
_LEAST_DRAG_PX = 6
_MESSAGE_SECONDS = 4.0
_MOST_MESSAGES = 3
_CHANNEL_VIEWS = tuple(CHANNEL_PREFIX + channel.name for channel in CHANNELS)


@dataclass(frozen=True, slots=True)
class Scene:
    """Frame in the window, and its place there."""

    panes: tuple[Pane, ...]
    frame: Frame


class Controls:
    """Translator of keys and the pointer into commands to the stream; holds the display state.

    Args:
        stream: Receives the commands.
        annotator: Draws the picture; the controls change its view and its queries.
        save: Saves the current picture and returns its path.

    Attributes:
        beside: Show the source beside the view.
        typed: Text that the user is typing; None otherwise.
        gaze: Use the pointer as the user's gaze.
        drag: Two corners on the window while the user drags a box.
        changed: A redraw is due; the drawing code resets it.
    """

    def __init__(self, stream: LiveStream, annotator: Annotator, save: Callable[[], Path]) -> None:
        self.beside = self.help = self.full_screen = self.gaze = self.quitting = False
        self.changed = True
        self.typed: str | None = None
        self.drag: tuple[int, int, int, int] | None = None
        self.pointer_xy: tuple[int, int] | None = None
        self._stream, self._annotator, self._save = stream, annotator, save
        self._dragged: Pane | None = None
        self._messages: list[tuple[float, str, bool]] = []
        self._keys: dict[str, Callable[[], None]] = {
            "v": lambda: self._turn(tuple(VIEWS), 1),
            "V": lambda: self._turn(tuple(VIEWS), -1),
            "c": lambda: self._turn(_CHANNEL_VIEWS, 1),
            "C": lambda: self._turn(_CHANNEL_VIEWS, -1),
            "b": lambda: self._toggle("beside"),
            "h": lambda: self._toggle("help"),
            "f": lambda: self._toggle("full_screen"),
            "p": self._toggle_gaze,
            " ": self._pause,
            "r": self._forget_region,
            "s": self._snapshot,
            "/": self._begin_typing,
            "enter": self._begin_typing,
            "q": lambda: self._toggle("quitting"),
            "escape": self._escape,
        }

    @property
    def messages(self) -> list[tuple[str, bool]]:
        """Lines to show, each with whether it reports a failure."""
        now = time.monotonic()
        self._messages = [message for message in self._messages if message[0] > now][-_MOST_MESSAGES:]
        return [(text, failed) for _, text, failed in self._messages]

    def tell(self, text: str, *, failed: bool = False) -> None:
        """Show a line for a moment."""
        self._messages = [message for message in self._messages if message[1] != text]
        self._messages.append((time.monotonic() + _MESSAGE_SECONDS, text, failed))
        self.changed = True

    def take(self, event: WindowEvent, scene: Scene | None) -> None:
        """Handle an event; the scene is None before the first frame."""
        if event.kind == "close":
            self.quitting = True
        elif event.kind == "key":
            self._key(event.key)
        else:
            self._point(event, scene)

    def look(self, scene: Scene) -> None:
        """Send the pointer position to the stream if it is used as gaze."""
        if self.gaze and self.pointer_xy is not None:
            for pane in scene.panes:
                if pane.contains(*self.pointer_xy):
                    self._stream.pointer.look(*pane.frame_point(*self.pointer_xy, (1, 1)))

    def _key(self, key: str) -> None:
        if self.typed is not None:
            self._type(key)
        elif key in self._keys:
            self._keys[key]()
        else:
            return
        self.changed = True

    def _type(self, key: str) -> None:
        assert self.typed is not None
        if key == "escape":
            self.typed = None
        elif key == "enter":
            typed, self.typed = self.typed.strip(), None
            self._ask_for(typed)
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1:
            self.typed = (self.typed + key)[:_MOST_SIGNS]

    def _ask_for(self, typed: str) -> None:
        """Replace the text queries with the typed one; an empty text removes them."""
        others = [query for query in self._stream.queries if not isinstance(query, TextQuery)]
        self._ask([*([parse_text(typed)] if typed else []), *others])

    def _ask(self, queries: list[Query], at_seconds: float = 0.0) -> None:
        """Set the queries; a region marked at `at_seconds` is shown for a moment."""
        try:
            self._stream.ask(*queries)
        except ArrStreamError as exc:
            self.tell(str(exc), failed=True)
            return
        region = next((query for query in self._stream.queries if isinstance(query, RegionQuery)), None)
        x, y, w, h = region.xywh if region is not None else (0.0, 0.0, 0.0, 0.0)
        marked = (x, y, x + w, y + h) if region is not None and at_seconds else None
        self._annotator.ask(self._stream.asked, marked, at_seconds)
        for notice in self._stream.query_notices.values():
            self.tell(notice, failed=True)

    def _point(self, event: WindowEvent, scene: Scene | None) -> None:
        self.pointer_xy = None if event.kind == "leave" else (event.x, event.y)
        self.changed = self.changed or self.gaze or self.drag is not None
        if scene is None:
            return
        if event.kind == "press":
            self._dragged = next((pane for pane in scene.panes if pane.contains(event.x, event.y)), None)
            self.drag = (event.x, event.y, event.x, event.y) if self._dragged is not None else None
        elif event.kind in ("move", "release") and self.drag is not None and self._dragged is not None:
            self.drag = (*self.drag[:2], event.x, event.y)
            if event.kind == "release":
                self._mark(self.drag, self._dragged, scene.frame)

    def _mark(self, drag: tuple[int, int, int, int], pane: Pane, frame: Frame) -> None:
        """Set a region query from the dragged box."""
        self.drag, self._dragged, self.changed = None, None, True
        (x0, x1), (y0, y1) = sorted(drag[::2]), sorted(drag[1::2])
        left, top = pane.frame_point(x0, y0, frame.size_wh)
        right, bottom = pane.frame_point(x1, y1, frame.size_wh)
        if min(x1 - x0, y1 - y0) >= _LEAST_DRAG_PX and right - left >= 1 and bottom - top >= 1:
            region = RegionQuery((left, top, right - left, bottom - top))
            self._ask([*self._without_region(), region], frame.pts_seconds)

    def _without_region(self) -> list[Query]:
        return [query for query in self._stream.queries if not isinstance(query, RegionQuery)]

    def _forget_region(self) -> None:
        self.drag = self._dragged = None
        if len(self._without_region()) < len(self._stream.queries):
            self._ask(self._without_region())

    def _turn(self, views: tuple[str, ...], by: int) -> None:
        view = self._annotator.view
        place = views.index(view) + by if view in views else 0 if by > 0 else -1
        self._annotator.view = views[place % len(views)]

    def _toggle(self, name: str) -> None:
        setattr(self, name, not getattr(self, name))

    def _toggle_gaze(self) -> None:
        self.gaze = not self.gaze
        self.tell("the pointer tells where to look" if self.gaze else "the pointer is free")

    def _pause(self) -> None:
        self._stream.paused = not self._stream.paused

    def _begin_typing(self) -> None:
        self.typed, self.help = "", False

    def _snapshot(self) -> None:
        try:
            self.tell(f"saved {self._save()}")
        except ArrStreamError as exc:
            self.tell(str(exc), failed=True)

    def _escape(self) -> None:
        """Close the open element; quit without one."""
        if self.drag is not None:
            self.drag = self._dragged = None
        elif self.help or self.full_screen:
            self._toggle("help" if self.help else "full_screen")
        else:
            self.quitting = True
