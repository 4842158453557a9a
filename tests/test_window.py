"""The window of live streams: a real one on a display of its own, worked by keys and the pointer."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arr_stream.draw.annotate import Annotator
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.window import Feed
from arr_stream.patch_set import Answer
from arr_stream.relevance.query import Query
from arr_stream.types import Frame
from tests.choices import choose
from tests.conftest import Run
from tests.live_fakes import wait_until

PATIENCE_SECONDS = 60.0


def test_an_answer_of_a_frame_that_was_not_shown_is_not_lost() -> None:
    feed = Feed(lambda: 4)
    first, second = (Frame(index, index / 30, np.zeros((64, 96, 3), np.uint8)) for index in range(2))
    answer = Answer("what?", "a red square", first.index, first.pts_seconds, "model")
    feed.consume(first, replace(choose(first), answers=(answer,)))
    feed.consume(second, choose(second))
    shown = feed.take()
    assert shown is not None
    assert (shown.frame.index, shown.patches.answers, shown.dropped) == (second.index, (answer,), 4)
    assert feed.take() is None


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

    Attributes:
        asked: Queries of the stream each time that they were set, in one line.
        views: Views that were drawn.
        streams: Streams that were asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.views: list[str] = []
        self.streams: list[LiveStream] = []
        self.error: BaseException | None = None

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
        self.window = self.tool(*search).split()[0]
        self.tool("windowfocus", "--sync", self.window)
        wait_until(lambda: self.type_query("green qv") == "green qv", PATIENCE_SECONDS)
        assert self.views[-1] == "patches", "typed letters are no commands"
        self.drag((200, 200), (300, 280))
        wait_until(lambda: self.asked[-1].startswith("green qv; region"))
        x, y, w, h = self.region()
        assert w / 320 == pytest.approx(100 / 800, abs=0.02) and h / w == pytest.approx(0.8, abs=0.1)
        self.drag((700, 500), (2000, 2000))
        wait_until(lambda: self.region()[0] > x)
        x, y, w, h = self.region()
        assert (x + w, y + h) == pytest.approx((320, 240)), "a box ends at the frame"
        self.tool("key", "r")
        wait_until(lambda: self.asked[-1] == "green qv")
        before = len(self.asked)
        self.drag((300, 300), (301, 301))
        self.tool("key", "v")
        wait_until(lambda: self.views[-1] == "relevance")
        assert len(self.asked) == before, "a click is no box"
        self.tool("key", "space")
        wait_until(lambda: self.streams[-1].paused)
        self.tool("key", "space")
        wait_until(lambda: not self.streams[-1].paused)
        wait_until(lambda: self.type_query("") == "", PATIENCE_SECONDS)

    def region(self) -> list[float]:
        return [float(each) for each in self.asked[-1].rpartition("region ")[2].split(",")]

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.tool("mousemove", "--window", self.window, *start, "mousedown", 1)
        for share in (0.3, 1.0):
            x, y = (round(a + share * (b - a)) for a, b in zip(start, end, strict=True))
            self.tool("mousemove", "--window", self.window, x, y)
            time.sleep(0.1)
        self.tool("mouseup", 1)

    def type_query(self, text: str) -> str | None:
        """Type a query and return what the stream was asked; keys may come before the window has the focus."""
        self.tool("key", "slash")
        self.tool("type", "--delay", 30, text)
        self.tool("key", "Return")
        time.sleep(0.2)
        return self.asked[-1] if self.asked else None

    def tool(self, *arguments: object) -> str:
        words = ["xdotool", *map(str, arguments)]
        return subprocess.run(words, text=True, capture_output=True, timeout=30, check=False).stdout


def test_a_real_window(display: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand()
    ask, picture = LiveStream.ask, Annotator.picture

    def ask_and_tell(stream: LiveStream, *queries: Query | str) -> None:
        ask(stream, *queries)
        hand.asked.append("; ".join(query.label for query in stream.queries))
        hand.streams.append(stream)

    def draw_and_tell(annotator: Annotator, *arguments):
        hand.views.append(annotator.view)
        return picture(annotator, *arguments)

    monkeypatch.setattr(LiveStream, "ask", ask_and_tell)
    monkeypatch.setattr(Annotator, "picture", draw_and_tell)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.chdir(tmp_path)
    hand.start()
    code, _, said = run(
        "stream", "lavfi:testsrc2=size=320x240:rate=20", "--query", "red", "--duration", PATIENCE_SECONDS,
        "--set", "keyframes.text=none", "--set", "keyframes.clusters=grid",
    )  # fmt: skip
    hand.join()
    assert hand.error is None and code == 0, said
    assert "ms when shown" in said
