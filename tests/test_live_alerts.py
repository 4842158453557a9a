"""Alerts from frames to clips and messages; with real files and servers."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from arr_stream.config import VideoSettings
from arr_stream.errors import InvalidSetting
from arr_stream.live.alerts import Alerts
from arr_stream.live.clips import list_clips
from arr_stream.live.webhook import Alert, Webhook
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.types import Frame
from tests.choices import choose
from tests.live_fakes import no_thread_left, wait_until
from tests.test_live_clips import FPS, MADE_UNIX, grey, shown

FAST = VideoSettings(preset="ultrafast", crf=18)
ALERT = Alert("relevance > 0.6", "relevance 0.9", 7, 0.7, MADE_UNIX, "door", Path("/clips/a.mp4"))


def watch(alerts: Alerts, frames: range, hits: tuple[int, ...] = (), **changes) -> None:
    """Give frames whose relevance is high on `hits`, no faster than they are taken."""
    for index in frames:
        frame = Frame(index, index / FPS, grey(index))
        alerts.consume(frame, choose(frame, query_scores=(0.9 if index in hits else 0.1,), **changes))
        wait_until(lambda: not alerts._waiting)


class Heard:
    """Collects alerts and notices."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.notices: list[str] = []

    def watching(self, rules: list[str], **options) -> Alerts:
        options = {"stream_name": "door", "video": FAST, "before_seconds": 1.0, "after_seconds": 1.0} | options
        return Alerts(rules, on_alert=self.alerts.append, on_notice=self.notices.append, **options)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr("arr_stream.live.webhook._END_SECONDS", 0.5)
    with no_thread_left():
        yield Heard()


def deal_with(action: Webhook, heard: Heard, done: Callable[[], object]) -> None:
    action.send(ALERT, heard.notices.append)
    wait_until(done)
    action.close()


def test_an_alert_tells_what_was_seen(heard: Heard) -> None:
    alerts = heard.watching(["relevance > 0.6", 'answer contains "dog"'])
    before = time.time()
    watch(alerts, range(20), (12,))
    watch(alerts, range(20, 21), answers=(Answer("What?", "A dog.", 20, 2.0, "model"),))
    alerts.close()
    alerts.close()
    first, second = heard.alerts
    assert (first.rule, first.message, first.frame_index, first.pts_seconds) == (
        "relevance > 0.6",
        "relevance 0.9",
        12,
        1.2,
    )
    assert first.clip is None and before <= first.made_unix <= time.time()
    assert second.message == "answer: A dog."
    assert first.record()["stream"] == "door" and json.dumps(first.record())
    frame = Frame(21, 2.1, grey(21))
    with pytest.raises(ValueError, match="closed"):
        alerts.consume(frame, choose(frame))


def test_a_clip_is_recorded_and_shows_what_is_drawn(tmp_path: Path, heard: Heard) -> None:
    def draw(frame: Frame, patches: PatchSet) -> np.ndarray:
        return np.asarray(frame.rgb + 4, np.uint8)

    alerts = heard.watching(["relevance > 0.6"], clip_folder=tmp_path / "clips", draw=draw)
    watch(alerts, range(40), (20,))
    wait_until(lambda: list_clips(tmp_path / "clips"))
    alerts.close()
    (clip,), (alert,) = list_clips(tmp_path / "clips"), heard.alerts
    assert clip.name == alert.clip and alert.record()["clip"] == clip.name
    assert shown(tmp_path / "clips" / clip.name)[1] == list(range(11, 32))
    assert heard.notices == [] and alerts.dropped == 0


def test_closing_finishes_the_clip(tmp_path: Path, heard: Heard) -> None:
    alerts = heard.watching(["relevance > 0.6"], clip_folder=tmp_path)
    watch(alerts, range(6), (5,))
    alerts.close(failed=True)
    assert shown(tmp_path / str(heard.alerts[0].clip))[1] == list(range(6))


def test_a_source_that_goes_silent_ends_the_clip(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.live.alerts._SILENT_SECONDS", 0.2)
    alerts = heard.watching(["relevance > 0.6"], clip_folder=tmp_path, after_seconds=0.3)
    watch(alerts, range(6), (5,))
    wait_until(lambda: list_clips(tmp_path))
    watch(alerts, range(6, 10))
    alerts.close()
    assert len(list_clips(tmp_path)) == 1


def test_a_slow_picture_holds_up_no_frame_and_no_alert(tmp_path: Path, heard: Heard) -> None:
    go_on = threading.Event()

    def draw(frame: Frame, patches: PatchSet) -> np.ndarray:
        go_on.wait(20)
        return frame.rgb

    alerts = heard.watching(["relevance > 0.6"], clip_folder=tmp_path, draw=draw, cooldown_seconds=0.0)
    for index in range(60):
        frame = Frame(index, index / FPS, grey(index))
        alerts.consume(frame, choose(frame, query_scores=(0.9 if index % 10 == 9 else 0.1,)))
    assert alerts.dropped >= 40
    go_on.set()
    alerts.close()
    assert [alert.frame_index for alert in heard.alerts] == [9, 19, 29, 39, 49, 59]
    assert sum("missing from the clips" in notice for notice in heard.notices) == 1


def test_what_others_raise_becomes_a_notice(tmp_path: Path, heard: Heard) -> None:
    def draw(frame: Frame, patches: PatchSet) -> np.ndarray:
        raise RuntimeError("no ink")

    def refuse(alert: Alert) -> None:
        raise RuntimeError("no ear")

    alerts = Alerts(["relevance > 0.6"], clip_folder=tmp_path, draw=draw, on_alert=refuse, video=FAST)
    watch(alerts, range(10), (5,))
    alerts.close()
    assert sum("no ink" in notice for notice in alerts.notices) == 1
    assert sum("no ear" in notice for notice in alerts.notices) == 1
    assert len(list_clips(tmp_path)) == 1


class Server:
    """A web server on loopback that answers each POST as it is told to."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[tuple[int, str | None]] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.bodies.append(
                    json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"at": self.path}
                )
                server.headers.append(dict(self.headers))
                status, location = server.answers.pop(0) if server.answers else (204, None)
                self.send_response(status)
                if location is not None:
                    self.send_header("Location", location)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_each_alert_of_a_stream_is_sent(tmp_path: Path, server: Server, heard: Heard) -> None:
    alerts = heard.watching(["relevance > 0.6"], clip_folder=tmp_path, webhooks=[Webhook(server.url)])
    watch(alerts, range(40), (20,))
    alerts.close()
    assert [body["clip"] for body in server.bodies] == [heard.alerts[0].clip] == [list_clips(tmp_path)[0].name]


def test_too_many_alerts_are_counted(heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(40):
            webhook.send(ALERT, heard.notices.append)
        webhook.close()
    assert webhook.dropped >= 23 and "dropped" in heard.notices[0]


def test_an_alert_is_sent_as_json(server: Server, heard: Heard) -> None:
    url = server.url.replace("//", "//me:s%40fe@") + "/hook/T0/secret?token=abc"
    deal_with(Webhook(url), heard, lambda: server.bodies)
    assert server.bodies == [ALERT.record() | {"at": "/hook/T0/secret?token=abc"}]
    assert server.bodies[0]["clip"] == "a.mp4" and "/clips" not in json.dumps(server.bodies)
    assert server.headers[0]["Authorization"] == "Basic bWU6c0BmZQ=="
    assert server.headers[0]["Content-Type"] == "application/json" and heard.notices == []


def test_a_second_attempt_after_a_failure_that_may_pass(server: Server, heard: Heard) -> None:
    server.answers = [(503, None)]
    deal_with(Webhook(server.url), heard, lambda: len(server.bodies) == 2)
    assert heard.notices == []


def test_no_second_attempt_after_a_refusal_and_no_secret_in_the_notice(server: Server, heard: Heard) -> None:
    server.answers = [(403, None)]
    url = server.url.replace("//", "//me:hunter2@") + "/hook/hunter2?key=hunter2"
    deal_with(Webhook(url), heard, lambda: heard.notices)
    assert len(server.bodies) == 1
    assert "answered with 403" in heard.notices[0] and "hunter2" not in heard.notices[0]


def test_redirects_are_followed_on_the_same_host_alone(server: Server, heard: Heard) -> None:
    other = Server()
    try:
        server.answers = [(307, "/there")]
        deal_with(Webhook(server.url), heard, lambda: len(server.bodies) == 2)
        assert server.bodies[1]["at"] == "/there" and heard.notices == []
        server.answers = [(302, f"{other.url}/x")]
        deal_with(Webhook(server.url), heard, lambda: heard.notices)
        assert "another host" in heard.notices[0] and other.bodies == []
        server.answers = [(307, "http://[broken")]
        deal_with(Webhook(server.url), heard, lambda: len(heard.notices) == 2)
        server.answers = [(307, "/a"), (307, "/b"), (307, "/c"), (307, "/d")]
        deal_with(Webhook(server.url), heard, lambda: len(heard.notices) == 3)
        assert "307" in heard.notices[2]
    finally:
        other.close()


def test_nobody_there_is_told_after_the_second_attempt(heard: Heard) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    deal_with(Webhook(f"http://127.0.0.1:{port}/x"), heard, lambda: heard.notices)
    assert heard.notices == [f"POST to 127.0.0.1:{port}: connection refused"]


def test_a_server_that_never_answers_is_given_up(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.live.webhook._SEND_SECONDS", 0.3)
    monkeypatch.setattr("arr_stream.live.webhook._RETRY_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        deal_with(Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}"), heard, lambda: heard.notices)
    assert len(heard.notices) == 1


def test_closing_ends_a_message_within_seconds(heard: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        action = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}")
        action.send(ALERT, heard.notices.append)
        taken, _ = silent.accept()
        action.close()
        taken.close()
    assert len(heard.notices) == 1


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "file:///etc/passwd", "a.b/c", "http://", "http://a b/", "http://[x/", "http://a:x/"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="alerts cannot be sent"):
        Webhook(url)
