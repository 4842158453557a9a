"""Pictures and events over sockets: the newest first, slow and malicious clients apart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import cv2
import numpy as np
import pytest

from arr_stream.draw.views import VIEWS
from arr_stream.live import publishing
from arr_stream.live.publishing import Subscription
from tests.web_servers import PATIENCE_SECONDS, RunningServer, close_code, mute, running, unpack, until

from websockets.sync.client import ClientConnection  # isort: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        server.add(name="first", query=["red"])
        yield server


@pytest.fixture
def id(server: RunningServer) -> str:
    return server.serving.streams.runners[0].id


def _said(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.recv(timeout=PATIENCE_SECONDS))
    return found


def _acknowledged(client: ClientConnection) -> dict[str, Any]:
    header, _ = unpack(client.recv(timeout=PATIENCE_SECONDS))
    client.send(json.dumps({"ack": header["seq"]}))
    return header


def test_two_views_with_cells(server: RunningServer, id: str) -> None:
    with server.socket(f"/api/streams/{id}/video?view=patches&view=source&cells=1") as client:
        header, jpegs = unpack(client.recv(timeout=PATIENCE_SECONDS))
        assert [picture["view"] for picture in header["pictures"]] == ["patches", "source"]
        assert all(picture.startswith(b"\xff\xd8\xff") for picture in jpegs)
        assert header["size_wh"] == [160, 96]
        assert len(header["cells"]) == len(header["reasons"]) == header["tokens"]
        client.send(json.dumps({"ack": header["seq"]}))
        client.send(json.dumps({"views": ["channel:edge_rising"], "cells": False}))
        until(lambda: _acknowledged(client)["pictures"][0]["view"] == "channel:edge_rising")
        assert "cells" not in _acknowledged(client)
        client.send(json.dumps({"gaze": [0.5, 0.5]}))
        assert server.status(id)["age_ms"] > 0


def test_who_comes_late_sees_the_last_frame_drawn_once_for_all_and_another_view_of_it(
    server: RunningServer, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = server.serving.streams.runners[0]
    runner.paused = True
    until(lambda: server.status(id)["fps"] == 0)
    shown, drawn, render = runner.publisher.shown, list[str](), publishing.render
    monkeypatch.setattr(publishing, "render", lambda view, *more: drawn.append(view) or render(view, *more))
    with ExitStack() as stack:
        path = f"/api/streams/{id}/video?view=channel:red"
        clients = [stack.enter_context(server.socket(path)) for _ in range(5)]
        assert {_acknowledged(client)["index"] for client in clients} == {shown.frame.index}
        assert drawn == ["channel:red"]
        clients[0].send(json.dumps({"views": ["source"]}))
        header, (jpeg,) = unpack(clients[0].recv(timeout=PATIENCE_SECONDS))
        assert header["index"] == shown.frame.index
        # BGR as OpenCV reads it; JPEG keeps a picture's colours within a few levels.
        bgr = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert np.abs(bgr[..., ::-1].mean((0, 1)) - shown.frame.rgb.mean((0, 1))).max() < 4
    runner.paused = False


def test_a_view_that_cannot_be_drawn_is_told_and_the_others_go_on(
    server: RunningServer, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(frame: object, patches: object) -> None:
        raise ZeroDivisionError("no such colour")

    monkeypatch.setitem(VIEWS, "flow", broken)
    with server.socket(f"/api/streams/{id}/video?view=flow") as flow, server.socket(f"/api/streams/{id}/video") as good:
        assert _said(flow) == {"error": "flow: ZeroDivisionError: no such colour"}
        assert close_code(flow) == 1011
        for _ in range(3):
            _acknowledged(good)


def test_at_most_two_are_under_way_and_then_comes_the_newest(server: RunningServer, id: str) -> None:
    with server.socket(f"/api/streams/{id}/video?view=source") as client:
        first = unpack(client.recv(timeout=PATIENCE_SECONDS))[0]
        second = unpack(client.recv(timeout=PATIENCE_SECONDS))[0]
        processed = server.status(id)["frames"]
        until(lambda: server.status(id)["frames"] > processed + 15)
        with pytest.raises(TimeoutError):
            client.recv(timeout=0.1)
        client.send(json.dumps({"ack": second["seq"]}))
        assert unpack(client.recv(timeout=PATIENCE_SECONDS))[0]["index"] > second["index"] + 10
        assert second["index"] > first["index"]


@pytest.mark.parametrize(
    "message",
    ["", "{", "[]", "1", "{}", '{"ack": "1"}', '{"ack": 999999}', '{"views": []}', '{"views": ["nothing"]}',
     '{"views": ["source", "flow", "text"]}', '{"gaze": [2, 0]}', '{"gaze": [NaN, 0]}', '{"gaze": [0]}', '{"more": 1}',
     "[" * 10_000, b"\x00\x01"],
)  # fmt: skip
def test_a_malformed_message_ends_this_socket_alone(server: RunningServer, id: str, message: str | bytes) -> None:
    with server.socket(f"/api/streams/{id}/video") as client:
        client.send(message)
        texts = (text for _ in range(10) if isinstance(text := client.recv(timeout=PATIENCE_SECONDS), str))
        assert "error" in json.loads(next(texts))
        assert close_code(client) == 1008
    with server.socket(f"/api/streams/{id}/video") as client:
        for _ in range(3):
            _acknowledged(client)


def test_sockets_close_on_nonsense_and_on_what_is_too_large(server: RunningServer, id: str) -> None:
    for path in (f"/api/streams/{id}/video", "/api/events"):
        for message, code in (("nonsense", 1008), ("x" * 100_000, 1009)):
            with server.socket(path) as client:
                client.send(message)
                assert close_code(client) == code
    until(lambda: len(server.serving.clients) == 0)


def test_streams_and_views_that_are_not_there(server: RunningServer, id: str) -> None:
    for path, code in (
        ("/api/streams/nothing/video", 4404),
        (f"/api/events?kind={'%E6%BC%A2' * 40}", 1008),
        (f"/api/streams/{id}/video?view=nothing", 1008),
        (f"/api/streams/{id}/video?view=source&view=flow&view=text", 1008),
        ("/api/events?stream=nothing", 4404),
        ("/api/events?kind=nothing", 1008),
    ):
        with server.socket(path) as client:
            assert close_code(client) == code, path


def test_events_of_all_kinds(server: RunningServer, id: str) -> None:
    with server.socket("/api/events") as client:
        first = _said(client)
        assert first["type"] == "streams"
        assert [status["id"] for status in first["streams"]] == [id]
        kinds = set()
        until(lambda: kinds.add(_said(client)["type"]) or {"state", "summary"} <= kinds)  # type: ignore[func-returns-value]
        assert "frame" not in kinds
    with server.socket(f"/api/events?kind=frame&stream={id}") as client:
        frames = [_said(client) for _ in range(5)]
        assert {(frame["type"], frame["stream"]) for frame in frames} == {("frame", id)}
        assert frames[0]["cells"]


def test_a_slow_listener_loses_the_oldest_events_and_is_told_how_many() -> None:
    slow = Subscription(lambda: None, most_waiting=10)
    for number in range(14):
        slow.put({"type": "answer", "number": number})
    missed, *kept = slow.drain()
    assert missed == {"type": "missed", "count": 4}
    assert [event["number"] for event in kept] == list(range(4, 14))
    assert slow.drain() == []


def test_a_stream_that_is_removed_is_told(server: RunningServer) -> None:
    added = server.add()
    with server.socket(f"/api/streams/{added}/video") as client:
        _acknowledged(client)
        server.http.delete(f"/api/streams/{added}")
        assert close_code(client) == 4410


def test_who_reads_nothing_slows_down_nobody(server: RunningServer, id: str) -> None:
    with ExitStack() as stack:
        for path in [f"/api/streams/{id}/video?view=source&view=flow", "/api/events?kind=frame"] * 5:
            stack.enter_context(mute(server, path))
        until(lambda: len(server.serving.clients) == 10)
        with server.socket(f"/api/streams/{id}/video") as client:
            before, shown = server.status(id)["frames"], 0
            while server.status(id)["frames"] < before + 30:
                _acknowledged(client)
                shown += 1
        assert shown >= 10
    until(lambda: len(server.serving.clients) == 0)


def test_who_takes_nothing_is_dropped(server: RunningServer, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from arr_stream.web import security
    from arr_stream.web import server as connection

    monkeypatch.setattr(connection, "SEND_BUFFER_BYTES", 8192)
    monkeypatch.setattr(security, "SEND_SECONDS", 0.3)
    with mute(server, f"/api/events?kind=frame&stream={id}"):
        until(lambda: len(server.serving.clients) == 1)
        until(lambda: len(server.serving.clients) == 0, 90)


def test_there_is_room_for_so_many_and_no_more() -> None:
    from arr_stream.web.serving import Clients

    with running() as server, ExitStack() as stack:
        server.serving.clients = Clients(most=4)
        id = server.add()
        video = [stack.enter_context(server.socket(f"/api/streams/{id}/video")) for _ in range(2)]
        for client in video:
            _acknowledged(client)
        events = [stack.enter_context(server.socket("/api/events")) for _ in range(2)]
        for client in events:
            _said(client)
        with server.socket("/api/events") as fifth:
            assert close_code(fifth) == 1013
        for client in (*video, *events):
            client.close()
        until(lambda: len(server.serving.clients) == 0)
        with server.socket("/api/events") as again:
            _said(again)


def test_open_sockets_do_not_hold_up_the_end() -> None:
    with running() as server, ExitStack() as stack:
        id = server.add()
        paths = [f"/api/streams/{id}/video"] * 10 + ["/api/events"] * 9
        clients = [stack.enter_context(server.socket(path)) for path in paths]
        silent = mute(server, f"/api/streams/{id}/video")
        until(lambda: len(server.serving.clients) == 20)
        ended = time.monotonic()
        server.stop()
        took = time.monotonic() - ended
        codes = {close_code(client) for client in clients}
        silent.close()
    assert codes <= {1001, 1012}
    assert took < PATIENCE_SECONDS / 2
