"""The window of live streams: what it draws, what its keys mean, and a real one on a display of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arr_stream
from arr_stream.draw.annotate import Annotator
from arr_stream.draw.views import VIEWS
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.pictures import Shown
from arr_stream.live.window import drawing
from arr_stream.live.window.controls import Controls, Scene
from arr_stream.live.window.drawing import bars_px, frame_pane
from arr_stream.live.window.loop import Feed
from arr_stream.live.window.screen import EventKind, WindowEvent
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.relevance.query import Query, RegionQuery, TextQuery, parse_text
from arr_stream.types import Frame
from tests.conftest import Run
from tests.live_fakes import wait_until
from tests.media import write_video
from tests.scenes import moving_square

PATIENCE_SECONDS = 60.0
STATUS = {
    "name": "rtsp://user:secret@host/a", "view": "channel:edge_dark", "state": "stalled", "fps": 29.9, "age_ms": 12.0
}  # fmt: skip


@pytest.fixture(scope="module")
def processed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Frame, PatchSet]]:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_video(path, [frame.rgb for frame in moving_square(3)])
    settings = arr_stream.Settings.load(overrides=["keyframes.text=none"])
    with arr_stream.open(path, query="red", budget=12, settings=settings) as stream:
        return [(stream.frame, patches) for patches in stream if stream.frame is not None]


@dataclass
class FakeStream:
    """Takes commands as a stream does, and keeps them."""

    paused: bool = False
    queries: tuple[Query, ...] = (parse_text("red"),)
    query_notices: dict[Query, str] = field(default_factory=dict)

    @property
    def asked(self) -> str | None:
        return ", ".join(query.shown_label for query in self.queries) or None

    def ask(self, *queries: Query | str) -> None:
        self.queries = tuple(parse_text(query) if isinstance(query, str) else query for query in queries)


class Strip:
    """Takes what an annotator is told."""

    view = "patches"

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, tuple[float, ...] | None, float]] = []

    def ask(self, *asked) -> None:
        self.asked.append(asked)


class Desk:
    """Controls of a fake stream whose frame of 256x192 is seen twice as large, 20 px down."""

    def __init__(self) -> None:
        self.stream, self.strip = FakeStream(), Strip()
        self.controls = Controls(self.stream, self.strip)
        self.pane = frame_pane((512, 384 + sum(bars_px((512, 424)))), (256, 192))
        assert (self.pane.width, self.pane.height) == (512, 384)
        self.scene = Scene(self.pane, Frame(0, 7.5, np.zeros((192, 256, 3), np.uint8)))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.controls.take(WindowEvent("key", key=key), self.scene)

    def drag(self, x0: int, y0: int, x1: int, y1: int) -> None:
        moves: list[tuple[EventKind, int, int]] = [("press", x0, y0), ("move", x0, y1), ("release", x1, y1)]
        for kind, x, y in moves:
            self.point(kind, self.pane.x + x, self.pane.y + y)

    def point(self, kind: EventKind, x: int = 0, y: int = 0) -> None:
        self.controls.take(WindowEvent(kind, x, y), self.scene)


class TestControls:
    def test_views_go_round_both_ways(self) -> None:
        desk = Desk()
        seen = []
        for _ in VIEWS:
            desk.press("v")
            seen.append(desk.strip.view)
        assert sorted(seen) == sorted(VIEWS)
        desk.press("V")
        assert desk.strip.view == "source"

    def test_a_query_is_typed(self) -> None:
        desk = Desk()
        desk.stream.queries = (parse_text("red"), RegionQuery((1, 2, 30, 40)))
        desk.press("/", *"blux", "backspace", "e", " ", *"qv")
        assert desk.controls.typed == "blue qv"
        assert desk.strip.view == "patches"
        desk.press("enter")
        assert [query.label for query in desk.stream.queries] == ["blue qv", "region 1,2,30,40"]
        assert desk.controls.typed is None
        desk.press("enter", "x", "escape")
        assert desk.controls.typed is None and not desk.controls.quitting
        assert isinstance(desk.stream.queries[0], TextQuery)
        desk.press("/", "enter")
        assert [type(query) for query in desk.stream.queries] == [RegionQuery]

    def test_what_is_not_understood_is_said_once(self) -> None:
        desk = Desk()
        desk.stream.query_notices = {parse_text("word"): "nobody knows this word"}
        for _ in range(2):
            desk.press("/", "x", "enter")
        assert desk.controls.messages == [("nobody knows this word", True)]

    def test_a_box_is_dragged_and_forgotten(self) -> None:
        desk = Desk()
        desk.drag(200, 100, 100, 40)
        region = desk.stream.queries[-1]
        assert isinstance(region, RegionQuery)
        assert region.xywh == pytest.approx((50, 20, 50, 30))
        assert desk.strip.asked[-1] == ("red, region", pytest.approx((50, 20, 100, 50)), 7.5)
        desk.drag(10, 10, 90, 90)
        assert len([query for query in desk.stream.queries if isinstance(query, RegionQuery)]) == 1
        desk.press("r")
        assert [query.label for query in desk.stream.queries] == ["red"]

    def test_a_box_ends_at_the_frame_and_a_click_is_none(self) -> None:
        desk = Desk()
        desk.drag(50, 50, 51, 51)
        assert desk.strip.asked == []
        desk.drag(400, 300, 5000, 5000)
        region = desk.stream.queries[-1]
        assert isinstance(region, RegionQuery)
        assert region.xywh == pytest.approx((200, 150, 56, 42))
        desk.point("press", 1, 1)
        assert desk.controls.drag is None, "the bar at the head is no part of the frame"

    def test_pause_help_and_the_ways_out(self) -> None:
        desk = Desk()
        desk.press(" ")
        assert desk.stream.paused
        desk.press(" ", "h", "f")
        assert (desk.stream.paused, desk.controls.help, desk.controls.full_screen) == (False, True, True)
        desk.press("escape", "escape")
        assert not (desk.controls.help or desk.controls.full_screen or desk.controls.quitting)
        desk.press("escape")
        assert desk.controls.quitting
        closed, quits = Desk(), Desk()
        closed.controls.take(WindowEvent("close"), None)
        quits.press("q")
        assert closed.controls.quitting and quits.controls.quitting


class TestDrawing:
    @given(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), st.tuples(st.integers(1, 3000), st.integers(1, 3000)))
    def test_the_frame_lies_on_the_picture(self, size_wh: tuple[int, int], frame_wh: tuple[int, int]) -> None:
        pane = frame_pane(size_wh, frame_wh)
        assert pane.width >= 1 and pane.height >= 1
        assert pane.x >= 0 and pane.x + pane.width <= size_wh[0]
        assert pane.frame_point(pane.x, pane.y, frame_wh) == (0, 0)
        assert pane.frame_point(pane.x + pane.width, pane.y, frame_wh)[0] == pytest.approx(frame_wh[0])

    def test_every_size_is_drawn(self, processed: list[tuple[Frame, PatchSet]]) -> None:
        annotator = Annotator("relevance", asked="red")
        shown = Shown(*processed[1], 3, 29.9)
        for size_wh in ((160, 120), (801, 491), (300, 900), (40, 30)):
            picture = drawing.draw_frame(annotator, shown, size_wh)
            assert picture.shape == (size_wh[1], size_wh[0], 3)
            drawing.draw_status(picture, shown, **STATUS)
            drawing.draw_prompt(picture, "a long text " * 12)
            drawing.draw_message(picture, [("something", (255, 255, 255))] * 3)
            drawing.draw_help(picture)

    def test_an_answer_of_a_frame_that_was_not_shown_is_not_lost(self, processed: list[tuple[Frame, PatchSet]]) -> None:
        from dataclasses import replace

        feed = Feed(lambda: 4)
        (first, first_patches), (second, second_patches) = processed[:2]
        answer = Answer("what?", "a red square", first.index, first.pts_seconds, "model")
        feed.consume(first, replace(first_patches, answers=(answer,)))
        feed.consume(second, second_patches)
        shown = feed.take(1.0)
        assert shown is not None
        assert (shown.frame.index, shown.patches.answers, shown.dropped) == (second.index, (answer,), 4)
        assert feed.take(0.0) is None


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """A display of its own that nobody sees."""
    for program in ("Xvfb", "xdotool"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    pytest.importorskip("tkinter", reason="this Python has no Tk")
    read_end, write_end = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write_end), "-screen", "0", "1400x1000x24", "-nolisten", "tcp"],
        pass_fds=(write_end,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as told:
            number = told.readline().strip()
        assert number, "Xvfb did not start"
        yield f":{number}"
    finally:
        server.terminate()
        server.wait(10)


class Hand(threading.Thread):
    """Works the keys and the pointer of a window beside the run that shows it; closes it in the end, whatever happens.

    Args:
        asked: What the stream is asked for, as it is asked.
    """

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked = asked
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as exc:
            self.error = exc
        finally:
            self.tool("key", "q")

    def work(self) -> None:
        search = ("search", "--onlyvisible", "--name", "arr-stream")
        wait_until(lambda: self.tool(*search), PATIENCE_SECONDS)
        window = self.tool(*search).split()[0]
        self.tool("windowfocus", "--sync", window)
        wait_until(self.asks, PATIENCE_SECONDS)
        self.tool("mousemove", "--window", window, 200, 200, "mousedown", 1)
        for x, y in ((250, 240), (300, 280)):
            self.tool("mousemove", "--window", window, x, y)
            time.sleep(0.1)
        self.tool("mouseup", 1)
        wait_until(lambda: self.asked[-1].startswith("green; region"))
        self.tool("key", "r")
        wait_until(lambda: self.asked[-1] == "green")
        self.tool("key", "h")
        self.tool("key", "Escape")

    def asks(self) -> bool:
        """Type a query; keys may come before the window has the focus."""
        self.tool("key", "slash")
        self.tool("type", "--delay", 30, "green")
        self.tool("key", "Return")
        time.sleep(0.2)
        return self.asked[-1:] == ["green"]

    def tool(self, *arguments: object) -> str:
        words = ["xdotool", *map(str, arguments)]
        return subprocess.run(words, text=True, capture_output=True, timeout=30, check=False).stdout


def test_a_real_window(display: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are typed and a box is dragged as by hand; the stream tells what it was asked."""
    asked: list[str] = []
    ask = LiveStream.ask

    def ask_and_tell(stream: LiveStream, *queries: Query | str) -> None:
        ask(stream, *queries)
        asked.append("; ".join(query.label for query in stream.queries))

    monkeypatch.setattr(LiveStream, "ask", ask_and_tell)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.chdir(tmp_path)
    hand = Hand(asked)
    code, _, said = run(
        "stream", "lavfi:testsrc2=size=320x240:rate=20", "--query", "red", "--duration", PATIENCE_SECONDS,
        "--set", "keyframes.text=none", "--set", "keyframes.clusters=grid",
    )  # fmt: skip
    hand.join()
    assert hand.error is None and code == 0, said
    assert "ms when shown" in said
