"""Alerts from frames to messages, with real servers."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from arr_stream.errors import InvalidSetting
from arr_stream.live.alerts import Alert, Alerts, Webhook
from arr_stream.types import Frame
from tests.choices import choose
from tests.live_fakes import no_thread_left, wait_until

ALERT = Alert("relevance > 0.6", "relevance 0.9", 7, 0.7, 1795273706.227, "door")
BLACK = np.zeros((64, 96, 3), np.uint8)


def watch(alerts: Alerts, frames: range, hits: tuple[int, ...] = (), **changes) -> None:
    """Give frames, ten a second, whose relevance is high on `hits`."""
    for index in frames:
        frame = Frame(index, index / 10, BLACK)
        alerts.consume(frame, choose(frame, query_scores=(0.9 if index in hits else 0.1,), **changes))


class Heard:
    """Collects alerts and notices."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.notices: list[str] = []

    def watching(self, rules: list[str], **options) -> Alerts:
        return Alerts(rules, stream_name="door", on_alert=self.alerts.append, on_notice=self.notices.append, **options)


@pytest.fixture
def on_message(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr("arr_stream.live.alerts._END_SECONDS", 0.1)
    monkeypatch.setattr("arr_stream.live.alerts._SEND_SECONDS", 0.2)
    with no_thread_left():
        yield Heard()


def deal_with(action: Webhook, on_message: Heard, done: Callable[[], object]) -> None:
    action.send(ALERT, on_message.notices.append)
    wait_until(done)
    action.close()


def test_an_alert_says_what_was_seen(on_message: Heard) -> None:
    alerts = on_message.watching(["relevance > 0.6"])
    before = time.time()
    watch(alerts, range(20), (12,))
    (first,) = on_message.alerts
    assert (first.rule, first.message) == ("relevance > 0.6", "relevance 0.9")
    assert (first.frame_index, first.pts_seconds) == (12, 1.2)
    assert before <= first.made_unix <= time.time()
    assert first.record()["stream"] == "door" and json.dumps(first.record())


def test_rules_may_change_while_a_stream_runs(on_message: Heard) -> None:
    rules = ["relevance > 0.6"]
    alerts = on_message.watching(rules)
    watch(alerts, range(10), (2,))
    rules.append("relevance < 0.6")
    watch(alerts, range(10, 20), (12,))
    # The first rule kept its state: it fires at most once in ten seconds.
    assert [(alert.rule, alert.frame_index) for alert in on_message.alerts] == [(rules[0], 2), (rules[1], 10)]
    rules.clear()
    watch(alerts, range(200, 210), (202,))
    assert len(on_message.alerts) == 2


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


def test_too_many_alerts_are_counted(on_message: Heard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(40):
            webhook.send(ALERT, on_message.notices.append)
        assert not webhook.close()
    assert 23 <= len([notice for notice in on_message.notices if "dropped" in notice]) <= 24


def test_an_alert_is_sent_as_json(server: Server, on_message: Heard) -> None:
    url = server.url.replace("//", "//me:s%40fe@") + "/hook/T0/secret?token=abc"
    deal_with(Webhook(url), on_message, lambda: server.bodies)
    assert server.bodies == [ALERT.record() | {"at": "/hook/T0/secret?token=abc"}]
    assert server.headers[0]["Authorization"] == "Basic bWU6c0BmZQ=="
    assert server.headers[0]["Content-Type"] == "application/json" and on_message.notices == []


def test_a_refusal_is_told_without_secrets(server: Server, on_message: Heard) -> None:
    server.answers = [(403, None)]
    url = server.url.replace("//", "//me:hunter2@") + "/hook/hunter2?key=hunter2"
    deal_with(Webhook(url), on_message, lambda: on_message.notices)
    assert len(server.bodies) == 1
    assert "answered with 403" in on_message.notices[0] and "hunter2" not in on_message.notices[0]


def test_redirects_are_not_followed(server: Server, on_message: Heard) -> None:
    server.answers = [(307, "/there")]
    deal_with(Webhook(server.url), on_message, lambda: on_message.notices)
    assert "answered with 307" in on_message.notices[0] and len(server.bodies) == 1


def test_nobody_there_is_told(on_message: Heard) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    deal_with(Webhook(f"http://127.0.0.1:{port}/x"), on_message, lambda: on_message.notices)
    assert on_message.notices == [f"POST to 127.0.0.1:{port}: connection refused"]


def test_a_name_that_no_host_can_have_is_told(on_message: Heard) -> None:
    deal_with(Webhook("http://a..b/x"), on_message, lambda: on_message.notices)
    assert on_message.notices == ["POST to a..b: unicodeerror"]


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "file:///etc/passwd", "a.b/c", "http://", "http://a b/", "http://[x/", "http://a:x/"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="alerts cannot be sent"):
        Webhook(url)
