"""Key and pointer commands of a live window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from arr_stream.draw.annotate import Annotator
from arr_stream.draw.views import VIEWS
from arr_stream.errors import ArrStreamError
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.window.drawing import Pane
from arr_stream.live.window.screen import WindowEvent
from arr_stream.relevance.query import Query, RegionQuery, TextQuery, parse_text
from arr_stream.types import Frame

_MOST_SIGNS = 200
_LEAST_DRAG_PX = 6
_MESSAGE_SECONDS = 4.0
_MOST_MESSAGES = 3
_VIEWS = tuple(VIEWS)


@dataclass(frozen=True, slots=True)
class Scene:
    """Frame in the window, and its place there."""

    pane: Pane
    frame: Frame


class Controls:
    """Translator of keys and the pointer into commands to the stream; holds the display state.

    Args:
        stream: Receives the commands.
        annotator: Draws the picture; the controls change its view and its queries.

    Attributes:
        typed: Text that the user is typing; None otherwise.
        drag: Two corners on the window while the user drags a box.
        changed: A redraw is due; the drawing code resets it.
    """

    def __init__(self, stream: LiveStream, annotator: Annotator) -> None:
        self.help = self.full_screen = self.quitting = False
        self.changed = True
        self.typed: str | None = None
        self.drag: tuple[int, int, int, int] | None = None
        self._stream, self._annotator = stream, annotator
        self._messages: list[tuple[float, str, bool]] = []
        self._keys: dict[str, Callable[[], None]] = {
            "v": lambda: self._turn(1),
            "V": lambda: self._turn(-1),
            "h": lambda: self._toggle("help"),
            "f": lambda: self._toggle("full_screen"),
            " ": self._pause,
            "r": self._forget_region,
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
        self.changed = self.changed or self.drag is not None
        if scene is None:
            return
        if event.kind == "press":
            inside = scene.pane.contains(event.x, event.y)
            self.drag = (event.x, event.y, event.x, event.y) if inside else None
        elif event.kind in ("move", "release") and self.drag is not None:
            self.drag = (*self.drag[:2], event.x, event.y)
            if event.kind == "release":
                self._mark(self.drag, scene.pane, scene.frame)

    def _mark(self, drag: tuple[int, int, int, int], pane: Pane, frame: Frame) -> None:
        """Set a region query from the dragged box."""
        self.drag, self.changed = None, True
        (x0, x1), (y0, y1) = sorted(drag[::2]), sorted(drag[1::2])
        left, top = pane.frame_point(x0, y0, frame.size_wh)
        right, bottom = pane.frame_point(x1, y1, frame.size_wh)
        if min(x1 - x0, y1 - y0) >= _LEAST_DRAG_PX and right - left >= 1 and bottom - top >= 1:
            region = RegionQuery((left, top, right - left, bottom - top))
            self._ask([*self._without_region(), region], frame.pts_seconds)

    def _without_region(self) -> list[Query]:
        return [query for query in self._stream.queries if not isinstance(query, RegionQuery)]

    def _forget_region(self) -> None:
        self.drag = None
        if len(self._without_region()) < len(self._stream.queries):
            self._ask(self._without_region())

    def _turn(self, by: int) -> None:
        view = self._annotator.view
        place = _VIEWS.index(view) + by if view in _VIEWS else 0
        self._annotator.view = _VIEWS[place % len(_VIEWS)]

    def _toggle(self, name: str) -> None:
        setattr(self, name, not getattr(self, name))

    def _pause(self) -> None:
        self._stream.paused = not self._stream.paused

    def _begin_typing(self) -> None:
        self.typed, self.help = "", False

    def _escape(self) -> None:
        """Close the open element; quit without one."""
        if self.drag is not None:
            self.drag = None
        elif self.help or self.full_screen:
            self._toggle("help" if self.help else "full_screen")
        else:
            self.quitting = True
