"""Browsers' cameras and screens: the source that takes their pictures, and the socket that brings them."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from arr_stream.config import Settings
from arr_stream.live.publishing import encode
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import Frame
from arr_stream.web.browser import LARGEST_PICTURE_BYTES
from tests.live_fakes import no_thread_left, wait_until
from tests.web_servers import PATIENCE_SECONDS, SETTINGS, RunningServer, close_code, running, unpack, until

EVERY = {"live.policy": "every", "live.buffer_frames": 4}


def picture(value: int, size_wh: tuple[int, int] = (32, 16)) -> bytes:
    """A grey JPEG, ten levels of brightness for each value."""
    return encode(np.full((size_wh[1], size_wh[0], 3), 10 * value, np.uint8))


def value_of(frame: Frame) -> int:
    return round(float(frame.rgb.mean()) / 10)


BOMB = picture(1)[: picture(1).index(b"\xff\xc0") + 5] + struct.pack(">HH", 65000, 65000)
BOMB += picture(1)[len(BOMB) :]
"""A header that names four thousand million pixels."""


def source(**values: object) -> BrowserSource:
    return BrowserSource("camera of a browser", Settings().with_values(values))


def test_the_newest_wins() -> None:
    with source() as made:
        for n in range(5):
            made.push(picture(n), 10.0 + n)
        made.wait_first()
        frame = next(made.frames())
        assert value_of(frame) == 4 and frame.index == 0
        assert frame.captured_seconds == 14.0 and frame.pts_seconds == 4.0
        assert made.stats.frames == 1


def test_a_waiting_reader_gets_what_comes_and_ends_when_it_is_finished() -> None:
    made = source(**EVERY)
    got: list[Frame] = []
    made.push(picture(0), 0.0)
    made.wait_first()
    reader = threading.Thread(target=lambda: got.extend(made.frames()), daemon=True)
    reader.start()
    for n in range(1, 5):
        made.push(picture(n), float(n))
        wait_until(lambda n=n: len(got) > n)  # type: ignore[misc]
    made.finish()
    reader.join(10)
    assert not reader.is_alive()
    assert [frame.index for frame in got] == list(range(5))
    made.push(picture(9), 9.0)
    assert made.ended and len(got) == 5


QUICK = SETTINGS.with_values({"live.connect_seconds": 0.4, "live.stall_seconds": 0.8, "source.max_pixels": 100_000})
MISSING = SETTINGS.with_values({"keyframes.embeddings": "clip", "clip.model": "/no-such-model"})
SIZE_WH = (160, 96)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(presets={"quick": QUICK, "missing": MISSING}, most=2) as server:
        yield server


class Camera:
    """A browser as the server sees it, which sends pictures like the page does."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.sent = 0

    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.client.recv(timeout=PATIENCE_SECONDS))
        return found

    def send(self, jpeg: bytes | None = None) -> None:
        self.sent += 1
        shown = picture(self.sent % 25, SIZE_WH) if jpeg is None else jpeg
        self.client.send(struct.pack("<d", self.sent / 30) + shown)

    def sends(self, count: int) -> None:
        """Pictures, each when the one before was acknowledged."""
        for _ in range(count):
            self.send()
            wait_until(lambda: self.said().get("received") == self.sent)

    def refusal(self) -> tuple[str, int | None]:
        """The line that it is sent at last, and the code that the socket is closed with."""
        said = ""
        try:
            while True:
                said = json.loads(self.client.recv(timeout=PATIENCE_SECONDS)).get("error", said)
        except ConnectionClosed as exc:
            return said, exc.rcvd.code if exc.rcvd is not None else None


@contextlib.contextmanager
def opened(server: RunningServer, query: str = "") -> Iterator[Camera]:
    """A browser until the end of the block."""
    with server.socket(f"/api/browser?{query}") as client:
        yield Camera(client)


@contextlib.contextmanager
def camera(server: RunningServer, query: str = "") -> Iterator[Camera]:
    """A browser until the end of the block; then its stream is gone too."""
    with no_thread_left():
        with opened(server, query) as made:
            yield made
        until(lambda: not server.serving.streams.runners and not len(server.serving.clients))


def test_pictures_become_a_stream_that_ends_with_the_socket(server: RunningServer) -> None:
    with camera(server, "name=my%20camera&query=red&query=moving&preset=quick") as sender:
        status = sender.said()["stream"]
        assert (status["name"], status["texts"], status["preset"]) == ("my camera", ["red", "moving"], "quick")
        sender.sends(5)
        with server.socket(f"/api/streams/{status['id']}/video?view=source") as session:
            sender.sends(5)
            header, _ = unpack(session.recv(timeout=PATIENCE_SECONDS))
            assert header["size_wh"] == list(SIZE_WH)
        assert server.status(status["id"])["kind"] == "browser"
        sender.send(picture(3, (96, 160)))
        until(lambda: server.status(status["id"])["size_wh"] == [96, 160])


@pytest.mark.parametrize(
    ("jpeg", "says"),
    [
        (picture(1, SIZE_WH)[:-9], "is no JPEG, or damaged"),
        (b"hello, here I am", "a picture of 16 bytes is no JPEG"),
        (picture(1, (400, 300)), "400x300 are 120000 pixels, at most 100000"),
        (BOMB, "65000x65000"),
    ],
)
@pytest.mark.parametrize("good_ones", [0, 3])
def test_a_picture_that_cannot_be_used_is_refused_in_one_line(
    server: RunningServer, jpeg: bytes, says: str, good_ones: int
) -> None:
    with camera(server, "preset=quick") as sender:
        sender.said()
        sender.sends(good_ones)
        sender.send(jpeg)
        line, code = sender.refusal()
        assert says in line and "\n" not in line and code == 1008


def test_a_message_that_is_too_long_closes_the_socket(server: RunningServer) -> None:
    with contextlib.suppress(ConnectionClosed), camera(server) as sender:
        sender.said()
        # The server closes while the client still sends, so that a reset may overtake its close frame.
        with contextlib.suppress(ConnectionClosed):
            sender.send(bytes(LARGEST_PICTURE_BYTES + 1))
        code = sender.refusal()[1]
    assert code in (1009, None)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ('{"frame": 1}', "no picture: 8 bytes of capture time"),
        (b"1234", "no picture: 8 bytes of capture time"),
        (struct.pack("<d", float("nan")) + picture(1), "a capture time of nan s"),
        (struct.pack("<d", 1e300) + picture(1), "a capture time of 1e+300 s"),
    ],
)
def test_other_messages_end_the_stream(server: RunningServer, message: str | bytes, says: str) -> None:
    with camera(server) as sender:
        sender.said()
        sender.client.send(message)
        line, code = sender.refusal()
        assert says in line and code == 1008


def test_no_more_browsers_than_streams_are_allowed(server: RunningServer) -> None:
    with camera(server), opened(server):
        until(lambda: len(server.serving.streams.runners) == 2)
        with opened(server) as third:
            line, code = third.refusal()
            assert "2 streams run already" in line and code == 1008


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("preset=none", "preset 'none' is not known"),
        ("name=" + "x" * 81, "name: value should have at most 80 items"),
        ("name=%1b[31m", "control characters"),
        ("colour=red", "colour: extra inputs are not permitted"),
        ("&".join(["query=red"] * 17), "query: list should have at most 16 items"),
    ],
)
def test_what_is_asked_for_is_checked(server: RunningServer, query: str, says: str) -> None:
    with camera(server, query) as sender:
        line, code = sender.refusal()
        assert says in line and code == 1008


def test_a_browser_that_falls_silent_is_asked_again_and_then_given_up(server: RunningServer) -> None:
    with camera(server, "preset=quick") as sender:
        sender.said()
        sender.sends(1)
        for _ in range(2):  # a still screen, whose last picture the page sends again
            assert sender.said() == {"again": True}
            sender.sends(1)
        began = time.monotonic()
        assert sender.said() == {"again": True}
        assert close_code(sender.client) == 4408
        assert time.monotonic() - began < 5


def test_a_model_that_cannot_be_loaded_is_named(server: RunningServer) -> None:
    with camera(server, "preset=missing") as sender:
        sender.said()
        sender.send()
        line, code = sender.refusal()
        assert "no-such-model" in line and "\n" not in line and code == 1011


def test_a_browser_that_never_sends_is_given_up(server: RunningServer) -> None:
    with camera(server, "preset=quick") as sender:
        assert "the browser sent no picture within 0.4 s" in sender.refusal()[0]


@pytest.mark.parametrize("pictures", [0, 2])
def test_removing_the_stream_closes_the_socket(server: RunningServer, pictures: int) -> None:
    with camera(server) as sender:
        id = sender.said()["stream"]["id"]
        sender.sends(pictures)
        assert server.http.delete(f"/api/streams/{id}").status_code == 204
        assert close_code(sender.client) == 4410


def test_the_end_of_the_server_closes_the_socket() -> None:
    with running() as server, opened(server) as sender:
        sender.said()
        sender.sends(2)
        began = time.monotonic()
        server.stop()
        assert close_code(sender.client) in (1001, 1012)
        assert time.monotonic() - began < PATIENCE_SECONDS / 2


def test_other_pages_and_clients_without_the_token_may_not_send() -> None:
    with running(token="a-token-of-some-length-42") as server:
        for headers, code in (
            ({}, 4401),
            ({"Authorization": "Bearer wrong"}, 4401),
            ({"Authorization": "Bearer a-token-of-some-length-42", "Origin": "http://example.invalid"}, 4403),
        ):
            with server.socket("/api/browser", additional_headers=headers) as client:
                assert close_code(client) == code
        assert not server.serving.streams.runners
