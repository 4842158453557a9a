"""`arr-stream serve`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import httpx
import pytest

from tests.conftest import Refused, Run, Start
from tests.live_servers import free_port
from tests.web_servers import PATIENCE_SECONDS, PICTURE, until

from websockets.sync.client import connect  # isort: skip

LIGHT = ["--set", "keyframes.text=none", "--set", "keyframes.clusters=grid"]


@pytest.fixture
def served(run: Run) -> Callable[..., tuple[str, str]]:
    """Runs a server in this process until `visit(client)` has returned; what it said on its two outputs."""

    def call(visit: Callable[[httpx.Client], None], *arguments: object, end: int = signal.SIGINT) -> tuple[str, str]:
        port, faults, over = free_port(), list[BaseException](), threading.Event()

        def go() -> None:
            try:
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
                    until(lambda: over.is_set() or _answers(client))
                    visit(client)
            except BaseException as exc:
                faults.append(exc)
            if not over.is_set():
                os.kill(os.getpid(), end)

        visitor = threading.Thread(target=go)
        visitor.start()
        code, out, err = run("serve", "--port", port, *arguments)
        over.set()
        visitor.join(PATIENCE_SECONDS)
        assert not faults, (faults, err)
        assert code == 130, err
        return out, err

    return call


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_run_with_alerts_ends_at_ctrl_c_within_seconds_with_sockets_open(start: Start) -> None:
    """As a process of its own: Ctrl-C, threads and sockets are the whole program's."""
    process = start("serve", "--port", 0, PICTURE, PICTURE, "--query", "red", "--when", "relevance < 1", *LIGHT)
    assert process.stdout is not None
    told = re.match(r"open (http://\S+)", process.stdout.readline())
    assert told, process.communicate(timeout=PATIENCE_SECONDS)
    with httpx.Client(base_url=told[1], timeout=PATIENCE_SECONDS) as client, ExitStack() as stack:
        # A source that is named twice is two streams, and one that may be opened.
        until(lambda: all(status["frames"] > 0 for status in client.get("/api/streams").json()))
        assert [status["id"] for status in client.get("/api/streams").json()] == ["s1", "s2"]
        assert len(client.get("/api/info").json()["sources"]["named"]) == 1
        for place in range(20):
            path = "api/events" if place % 2 else "api/streams/s1/video"
            socket = stack.enter_context(connect(told[1].replace("http", "ws") + path, proxy=None, max_size=None))
            socket.recv(timeout=PATIENCE_SECONDS)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        # The bound is what a busy machine leaves room for; alone it takes about a second.
        assert process.returncode == 130 and time.monotonic() - started < 15
    assert "Traceback" not in said
    assert "live" in said and "alert: relevance < 1: relevance 0" in said


def test_a_public_address_gets_a_token(served: Callable[..., tuple[str, str]]) -> None:
    def visit(client: httpx.Client) -> None:
        assert client.get("/api/streams").status_code == 401

    out, _ = served(visit, "--host", "0.0.0.0")
    opened, programs, camera = out.splitlines()
    token = re.fullmatch(r"open http://127\.0\.0\.1:\d+/\?token=(\S{20,})", opened)
    assert token and f"Bearer {token[1]}" in programs
    assert "https" in camera


def test_the_token_of_the_environment_and_json_lines(
    served: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "from-the-environment"

    def visit(client: httpx.Client) -> None:
        client.headers["Authorization"] = f"Bearer {token}"
        until(lambda: client.get("/api/streams").json()[0]["frames"] > 0)
        status = client.get("/api/streams").json()[0]
        assert status["preset"] == "surveillance"
        assert status["settings"]["selection.budget"] == "25%"
        info = client.get("/api/info").json()
        assert info["sources"]["patterns"] == ["rtsp://10.0.0.*"]
        assert {"documents", "surveillance"} <= {preset["name"] for preset in info["presets"]}
        assert all(preset["description"] for preset in info["presets"])

    monkeypatch.setenv("ARR_STREAM_TOKEN", token)
    arguments = ["lavfi:testsrc2=size=64x64", "--log=json", "--preset", "surveillance", "--allow", "rtsp://10.0.0.*"]
    out, err = served(visit, *arguments, *LIGHT, end=signal.SIGTERM)
    assert f"/?token={token}" in out
    lines = [json.loads(line) for line in err.splitlines()]
    assert {"connecting", "live"} <= {line.get("state") for line in lines}
    assert token not in err


def test_attempts_that_fail_alike_and_the_end_are_not_told_again(served: Callable[..., tuple[str, str]]) -> None:
    def visit(client: httpx.Client) -> None:
        until(lambda: "in 4 s" in (client.get("/api/streams/s1").json()["message"] or ""))

    _, said = served(visit, f"http://user:secret@127.0.0.1:{free_port()}/x", *LIGHT)
    assert said.count(": connecting\n") == 1
    assert said.count("; next attempt in") == 1
    assert ": ended" not in said and "secret" not in said


def test_a_port_in_use(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(72, f"port {port}: address already in use", "serve", "--port", port)
