"""The main loop of a live window, until the user closes it or the stream ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from arr_stream.consumer import Outcome, Rate, Recent
from arr_stream.draw.annotate import Annotator
from arr_stream.draw.overlay import draw_box
from arr_stream.draw.typeface import ACCENT, ALARM, WHITE
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.pictures import Shown
from arr_stream.live.window import drawing
from arr_stream.live.window.controls import Controls, Scene
from arr_stream.live.window.screen import TkWindow
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.types import ByteArray, Frame

_WAIT_SECONDS = 0.012
"""Interval at which keys and the pointer are read while no frame comes."""
_REDRAW_SECONDS = 0.03
_IDLE_SECONDS = 0.5
_MOST_ANSWERS = 8


class Feed:
    """Consumer that keeps the newest frame for a window, and the answers of frames that were not shown.

    Args:
        dropped: Returns the number of dropped frames so far.

    Attributes:
        fps: Frames processed per second.
    """

    def __init__(self, dropped: Callable[[], int]) -> None:
        self.fps = Rate()
        self._dropped = dropped
        self._newest: tuple[Frame, PatchSet] | None = None
        self._answers: tuple[Answer, ...] = ()
        self._changed = threading.Condition()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Replace the newest frame; never blocks."""
        self.fps.add()
        with self._changed:
            self._newest = frame, patches
            self._answers = (*self._answers, *patches.answers)[-_MOST_ANSWERS:]
            self._changed.notify()

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...

    def take(self, longest_seconds: float) -> Shown | None:
        """Return the newest frame once, waiting up to `longest_seconds`; None if no frame comes in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None, longest_seconds)
            if self._newest is None:
                return None
            frame, patches = self._newest
            self._newest, answers, self._answers = None, self._answers, ()
        return Shown(frame, replace(patches, answers=answers), self._dropped(), self.fps.value)


class WindowLoop:
    """Loop that draws each new frame and forwards keys and the pointer; runs in the main thread.

    Args:
        window: Shows the pictures; its opener closes it.
        stream: The stream.
        feed: A consumer of that stream.
        view: The initial view.
        state: Returns the state of the source and one line about it.

    Attributes:
        ages_ms: Time from capture to display of the shown pictures.
    """

    def __init__(
        self,
        window: TkWindow,
        stream: LiveStream,
        feed: Feed,
        *,
        view: str,
        state: Callable[[], tuple[str, str | None]],
    ) -> None:
        self.ages_ms = Recent()
        self._window, self._stream, self._feed = window, stream, feed
        self._state = state
        self._annotator = Annotator(view, asked=stream.asked)
        self._controls = Controls(stream, self._annotator)
        self._newest: Shown | None = None
        self._drawn_wh = (0, 0)
        self._drawn_at = 0.0
        self._full_screen = False

    def run(self, running: Callable[[], bool]) -> None:
        """Run until the user quits, or `running` returns False."""
        while running() and not self._controls.quitting:
            fresh = self._feed.take(_WAIT_SECONDS)
            if fresh is not None:
                self._begin(fresh)
                self._draw(fresh)
                self.ages_ms.add((time.monotonic() - fresh.captured_seconds) * 1e3)
            elif self._newest is not None and self._is_stale():
                self._draw(self._newest)
            scene = self._scene(self._newest) if self._newest is not None else None
            for event in self._window.events():
                self._controls.take(event, scene)
            if self._controls.full_screen != self._full_screen:
                self._full_screen = self._controls.full_screen
                self._window.full_screen(self._full_screen)

    def _begin(self, fresh: Shown) -> None:
        if self._newest is None:
            self._window.resize(drawing.first_size(fresh.frame.size_wh))
            self._controls.tell("h shows the keys")
        self._newest = fresh
        self._annotator.update(fresh.patches)
        for notice in fresh.patches.notices:
            self._controls.tell(notice, failed=True)

    def _scene(self, shown: Shown) -> Scene:
        return Scene(drawing.frame_pane(self._drawn_wh, shown.frame.size_wh), shown.frame)

    def _is_stale(self) -> bool:
        """Return whether a redraw is due without a new frame."""
        since = time.monotonic() - self._drawn_at
        wanted = self._controls.changed or self._window.size_wh != self._drawn_wh
        return since > _IDLE_SECONDS or (wanted and since > _REDRAW_SECONDS)

    def _draw(self, shown: Shown) -> None:
        self._controls.changed = False
        self._drawn_wh, self._drawn_at = self._window.size_wh, time.monotonic()
        picture = drawing.draw_frame(self._annotator, shown, self._drawn_wh)
        self._draw_over(picture, shown)
        self._window.show(picture)

    def _draw_over(self, picture: ByteArray, shown: Shown) -> None:
        controls = self._controls
        state, message = self._state()
        lines = [(text, ALARM if failed else WHITE) for text, failed in controls.messages]
        if state != "live" and message:
            lines.insert(0, (message, ALARM))
        drawing.draw_status(
            picture,
            shown,
            name=self._stream.source.info.name,
            view=self._annotator.view,
            state="paused" if self._stream.paused and state == "live" else state,
            fps=self._feed.fps.value,
            age_ms=self.ages_ms.median,
        )
        if controls.drag is not None:
            x0, y0, x1, y1 = controls.drag
            draw_box(picture, (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)), ACCENT)
        drawing.draw_message(picture, lines)
        if controls.help:
            drawing.draw_help(picture)
        if controls.typed is not None:
            drawing.draw_prompt(picture, controls.typed)
