"""What keys and the pointer mean in a live window."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arr_stream.draw.views import CHANNEL_PREFIX, VIEWS
from arr_stream.errors import ArrStreamError
from arr_stream.live.stream import LiveStream
from arr_stream.live.window.drawing import Pane
from arr_stream.live.window.screen import KeyPressed, PointerEvent, WindowClosed, WindowEvent
from arr_stream.relevance.query import Query, RegionQuery, TextQuery, parse_text
from arr_stream.texture.layout import CHANNELS

_MOST_SIGNS = 200
_LEAST_DRAG_PX = 6
_MESSAGE_SECONDS = 4.0
_MOST_MESSAGES = 3
_CHANNEL_VIEWS = tuple(CHANNEL_PREFIX + channel.name for channel in CHANNELS)


@dataclass(frozen=True, slots=True)
class Scene:
    """What is on the window just now.

    Args:
        panes: Where the frame is seen.
        frame_wh: Size of that frame.
        pts_seconds: Its time.
    """

    panes: tuple[Pane, ...]
    frame_wh: tuple[int, int]
    pts_seconds: float


class Controls:
    """Turns keys and the pointer into commands to the stream, and knows how it is to be shown.

    Args:
        stream: Takes the commands.
        view: To begin with.
        save: Saves the picture that is shown, and returns where.
        on_ask: Called when something else is asked for.

    Attributes:
        view: What is shown, see `arr_stream.draw.views`.
        beside: The source stands beside it.
        help: The keys are shown.
        full_screen: The window fills the screen.
        typed: What is being typed; None when nothing is.
        gaze: The pointer tells where someone looks.
        drag: Two corners on the window, while a box is being dragged.
        quitting: Nothing more is wanted.
        changed: Something is to be drawn anew; whoever draws sets it back.
    """

    def __init__(
        self,
        stream: LiveStream,
        *,
        view: str,
        save: Callable[[], Path],
        on_ask: Callable[[tuple[Query, ...], float], None],
    ) -> None:
        self.view = view
        self.beside = self.help = self.full_screen = self.gaze = self.quitting = False
        self.changed = True
        self.typed: str | None = None
        self.drag: tuple[int, int, int, int] | None = None
        self.pointer_xy: tuple[int, int] | None = None
        self._stream = stream
        self._save = save
        self._on_ask = on_ask
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
        """Lines to show, and whether each tells of something that failed."""
        now = time.monotonic()
        self._messages = [message for message in self._messages if message[0] > now][-_MOST_MESSAGES:]
        return [(text, failed) for _, text, failed in self._messages]

    def tell(self, text: str, *, failed: bool = False) -> None:
        """Show a line for a moment."""
        self._messages = [message for message in self._messages if message[1] != text]
        self._messages.append((time.monotonic() + _MESSAGE_SECONDS, text, failed))
        self.changed = True

    def take(self, event: WindowEvent, scene: Scene | None) -> None:
        """Deal with what has happened; before the first frame there is no scene."""
        if isinstance(event, WindowClosed):
            self.quitting = True
        elif isinstance(event, KeyPressed):
            self._key(event.key)
        else:
            self._point(event, scene)

    def look(self, scene: Scene) -> None:
        """Tell the stream where the pointer is, if that is wanted."""
        if not self.gaze or self.pointer_xy is None:
            return
        x, y = self.pointer_xy
        for pane in scene.panes:
            if pane.contains(x, y):
                self._stream.pointer.look(*pane.frame_point(x, y, (1, 1)))

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
        """The text takes the place of all others; none at all takes them away."""
        others = [query for query in self._stream.queries if not isinstance(query, TextQuery)]
        self._ask([*([parse_text(typed)] if typed else []), *others])

    def _ask(self, queries: list[Query], at_seconds: float = 0.0) -> None:
        try:
            self._stream.ask(*queries)
        except ArrStreamError as exc:
            self.tell(str(exc), failed=True)
            return
        self._on_ask(self._stream.queries, at_seconds)
        for notice in self._stream.notices:
            self.tell(notice, failed=True)

    def _point(self, event: PointerEvent, scene: Scene | None) -> None:
        self.pointer_xy = None if event.kind == "leave" else (event.x, event.y)
        self.changed = self.changed or self.gaze or self.drag is not None
        if scene is None:
            return
        if event.kind == "press":
            self._dragged = next((pane for pane in scene.panes if pane.contains(event.x, event.y)), None)
            self.drag = (event.x, event.y, event.x, event.y) if self._dragged is not None else None
        elif event.kind in ("move", "release") and self.drag is not None:
            self.drag = (*self.drag[:2], event.x, event.y)
            if event.kind == "release":
                self._mark(scene)

    def _mark(self, scene: Scene) -> None:
        """Look for what is in the box that was dragged."""
        assert self.drag is not None and self._dragged is not None
        x0, y0, x1, y1 = self.drag
        pane, self.drag, self._dragged, self.changed = self._dragged, None, None, True
        if min(abs(x1 - x0), abs(y1 - y0)) < _LEAST_DRAG_PX:
            return
        first = pane.frame_point(min(x0, x1), min(y0, y1), scene.frame_wh)
        last = pane.frame_point(max(x0, x1), max(y0, y1), scene.frame_wh)
        width, height = last[0] - first[0], last[1] - first[1]
        if width < 1 or height < 1:
            return
        region = RegionQuery((*first, width, height))
        self._ask([*self._without_region(), region], scene.pts_seconds)

    def _without_region(self) -> list[Query]:
        return [query for query in self._stream.queries if not isinstance(query, RegionQuery)]

    def _forget_region(self) -> None:
        self.drag = self._dragged = None
        if len(self._without_region()) < len(self._stream.queries):
            self._ask(self._without_region())

    def _turn(self, views: tuple[str, ...], by: int) -> None:
        place = views.index(self.view) + by if self.view in views else 0 if by > 0 else -1
        self.view = views[place % len(views)]

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
        """Leave what is open; with nothing open, quit."""
        if self.drag is not None:
            self.drag = self._dragged = None
        elif self.help or self.full_screen:
            self._toggle("help" if self.help else "full_screen")
        else:
            self.quitting = True
