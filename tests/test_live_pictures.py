"""Pictures for viewers: the newest frame only, nothing for nobody, and no viewer disturbs another."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.live.pictures import PictureRoom, Shown, Watching
from arr_stream.pipeline import Pipeline
from arr_stream.types import Frame
from tests.live_fakes import LIGHT, picture


@pytest.fixture
def room() -> Iterator[PictureRoom]:
    made = PictureRoom("test")
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if "pictures-test" in thread.name]


class Frames:
    def __init__(self) -> None:
        self.pipeline = Pipeline(LIGHT, InStepKeyframes(make_generator(LIGHT)))
        self.count = 0

    def next(self, size_wh: tuple[int, int] = (160, 128)) -> Shown:
        frame = Frame(self.count, self.count / 30, picture(self.count, size_wh), captured_seconds=time.monotonic())
        self.count += 1
        return Shown(frame, self.pipeline.step(frame), 0, 30.0)


class Client:
    """Takes messages as they come."""

    def __init__(self, room: PictureRoom, *views: str, cells: bool = False) -> None:
        self.woken = threading.Event()
        self.ages: list[float] = []
        self.watching: Watching = room.watch(
            views or ("patches",), self.woken.set, cells=cells, on_age=self.ages.append
        )

    def next(self, seconds: float = 10.0) -> tuple[dict, list[np.ndarray]]:
        assert self.woken.wait(seconds), "no message came"
        self.woken.clear()
        message = self.watching.next_message()
        assert message is not None
        return parsed(message)


def parsed(message: bytes) -> tuple[dict, list[np.ndarray]]:
    (length,) = struct.unpack_from("<I", message)
    header, rest = json.loads(message[4 : 4 + length]), message[4 + length :]
    pictures = []
    for described in header["pictures"]:
        jpeg, rest = rest[: described["bytes"]], rest[described["bytes"] :]
        pictures.append(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))
    assert rest == b""
    return header, pictures


def test_a_message_holds_the_frame_in_each_view_and_what_is_known_of_it(room: PictureRoom) -> None:
    frames, client = Frames(), Client(room, "source", "channel:edge_rising", cells=True)
    shown = frames.next()
    room.show(shown)
    header, (source, channel) = client.next()
    assert header["index"] == 0 and header["refresh_reason"] == "first" and header["size_wh"] == [160, 128]
    assert [each["view"] for each in header["pictures"]] == ["source", "channel:edge_rising"]
    assert len(header["cells"]) == len(header["reasons"]) == header["tokens"] == len(shown.patches) > 0
    # BGR as OpenCV reads it; JPEG keeps a picture's lightness within a few levels.
    assert np.abs(source[..., ::-1].astype(int).mean() - shown.frame.rgb.mean()) < 3
    assert channel.shape == source.shape == (128, 160, 3) and np.abs(channel.astype(int) - source).mean() > 10
    assert abs(header["captured_unix"] - time.time()) < 20 and header["sent_age_ms"] >= 0


def test_who_comes_late_sees_the_last_frame_at_once_and_another_view_of_it(room: PictureRoom) -> None:
    frames = Frames()
    room.show(frames.next())
    client = Client(room)
    assert client.next()[0]["index"] == 0
    client.watching.show(["source"])
    header, _ = client.next()
    assert header["index"] == 0 and header["pictures"][0]["view"] == "source" and "cells" not in header
    client.watching.acknowledge(header["seq"])
    client.watching.show(cells=True)
    assert client.next()[0]["cells"]


def test_each_view_is_drawn_once_for_all(room: PictureRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(
        "arr_stream.live.pictures.render", lambda view, frame, *_, **__: drawn.append(view) or frame.rgb
    )
    frames = Frames()
    clients = [Client(room) for _ in range(20)]
    room.show(frames.next())
    assert all(client.next()[0]["index"] == 0 for client in clients)
    assert len(drawn) == 1
    for client in clients:
        client.watching.close()
    room.show(frames.next())
    time.sleep(0.1)
    assert len(drawn) == 1


def test_a_view_that_cannot_be_drawn_is_told_and_the_others_go_on(
    room: PictureRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arr_stream.draw import views

    def broken(frame: object, patches: object) -> None:
        raise ZeroDivisionError("no such colour")

    monkeypatch.setitem(views.VIEWS, "flow", broken)
    frames, flow, good = Frames(), Client(room, "flow"), Client(room)
    room.show(frames.next())
    assert flow.woken.wait(10)
    assert flow.watching.error == "flow: ZeroDivisionError: no such colour" and flow.watching.next_message() is None
    assert good.next()[0]["index"] == 0
