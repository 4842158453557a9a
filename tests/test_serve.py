"""`arr-stream serve` as a process: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import Refused

from tests.web_servers import PATIENCE_SECONDS, PICTURE, until  # isort: skip

from websockets.sync.client import connect  # isort: skip

LIGHT = ["--set", "keyframes.text=none", "--set", "keyframes.clusters=grid"]


@contextmanager
def _served(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, and the address that it tells."""
    command = [sys.executable, "-m", "arr_stream", "serve", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        assert process.stdout is not None
        told = re.match(r"open (http://\S+)", process.stdout.readline())
        assert told, process.communicate(timeout=PATIENCE_SECONDS)
        yield process, told.group(1)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def test_a_run_with_alerts_ends_at_ctrl_c_within_seconds_with_sockets_open(tmp_path: Path) -> None:
    rule = ["--when", "tokens > 0", "--before", "0.2", "--after", "0.2", "--clips", tmp_path / "clips"]
    with _served(PICTURE, PICTURE, "--query", "red", *rule, *LIGHT) as (process, address), ExitStack() as stack:
        # A source that is named twice is two streams, and one that may be opened.
        until(lambda: all(status["frames"] > 0 for status in httpx.get(f"{address}api/streams").json()))
        assert [status["id"] for status in httpx.get(f"{address}api/streams").json()] == ["s1", "s2"]
        assert len(httpx.get(f"{address}api/info").json()["sources"]["named"]) == 1
        (clip, *_) = until(lambda: httpx.get(f"{address}api/clips").json())
        assert (tmp_path / "clips" / clip["name"]).stat().st_size == clip["bytes"]
        for place in range(20):
            path = "api/events" if place % 2 else "api/streams/s1/video"
            client = stack.enter_context(connect(address.replace("http", "ws") + path, proxy=None, max_size=None))
            client.recv(timeout=PATIENCE_SECONDS)
        said = _ended(process, signal.SIGINT)
    assert "Traceback" not in said
    assert "live" in said


def _ended(process: subprocess.Popen[str], number: int) -> str:
    """What was said on standard error by a server that a signal ends."""
    started = time.monotonic()
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) == 130
    # The bound is what a busy machine leaves room for; alone it takes about a second.
    assert time.monotonic() - started < 15
    assert process.stderr is not None
    return process.stderr.read()


def test_a_public_address_gets_a_token() -> None:
    with _served("--host", "0.0.0.0") as (process, address):
        assert process.stdout is not None
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S{20,})", address)
        assert found
        assert f"Bearer {found.group(2)}" in process.stdout.readline()
        assert "https" in process.stdout.readline()
        base = f"http://127.0.0.1:{found.group(1)}"
        assert httpx.get(f"{base}/api/streams").status_code == 401
        assert httpx.get(f"{base}/healthz").status_code == 200
        headers = {"Authorization": f"Bearer {found.group(2)}"}
        assert httpx.get(f"{base}/api/streams", headers=headers).status_code == 200


def test_the_token_of_the_environment_and_json_lines() -> None:
    arguments = ["lavfi:testsrc2=size=64x64", "--log-json", "--preset", "surveillance", "--allow", "rtsp://10.0.0.*"]
    with _served(*arguments, *LIGHT, ARR_STREAM_TOKEN="from-the-environment") as (process, address):
        base, _, token = address.partition("?token=")
        assert token == "from-the-environment"
        headers = {"Authorization": f"Bearer {token}"}
        until(lambda: httpx.get(f"{base}api/streams", headers=headers).json()[0]["frames"] > 0)
        status = httpx.get(f"{base}api/streams", headers=headers).json()[0]
        assert status["preset"] == "surveillance"
        assert status["settings"]["selection.budget"] == "25%"
        info = httpx.get(f"{base}api/info", headers=headers).json()
        assert info["sources"]["patterns"] == ["rtsp://10.0.0.*"]
        assert {"documents", "surveillance"} <= {preset["name"] for preset in info["presets"]}
        assert all(preset["description"] for preset in info["presets"])
        lines = [json.loads(line) for line in _ended(process, signal.SIGTERM).splitlines()]
    assert {"connecting", "live"} <= {line.get("state") for line in lines}
    assert "from-the-environment" not in json.dumps(lines)


def test_a_port_in_use(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(72, f"port {port} is in use", "serve", "--port", port)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--host", "192.0.2.1"], 72, "not an address of this machine"),
        (["--host", "no such host"], 72, "not an address of this machine"),
        (["--token", "short"], 51, "at least 8"),
        (["--token", ""], 51, "--token is empty"),
        (["--allow", "10.0.0.*"], 51, "--allow"),
        (["--folder", "/no/such/folder"], 51, "--folder"),
        (["--allow-host", "http://x"], 51, "--allow-host"),
        (["--preset", "nothing"], 52, "surveillance"),
        (["--set", "no.key=1"], 50, "no.key"),
        (["--when", "relevance >"], 51, "relevance"),
        (["--when", 'tokens > 1 and answer contains "dog"'], 51, "no model is asked"),
        (["--clips", "/tmp/x"], 51, "without --when"),
        (["--when", "tokens > 1", "--run", "no-such-program"], 51, "no-such-program"),
        (["--when", "tokens > 1", "--post", "ftp://x"], 51, "http"),
        (["a", "b", "--max-streams", "1"], 51, "--max-streams"),
        (["a", "a", "--max-streams", "1"], 51, "--max-streams"),
        (["--endpoint", "http://127.0.0.1:9/v1"], 51, "model"),
        (["--port", "70000"], 2, "--port"),
    ],
)
def test_what_is_wrong_is_said_at_once(refused: Refused, arguments: list[str], code: int, said: str) -> None:
    refused(code, said, "serve", "--port", "0", *arguments)


def test_attempts_that_fail_alike_and_the_end_are_not_told_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = taken.getsockname()[1]
    with _served(f"http://user:secret@127.0.0.1:{closed}/x", *LIGHT) as (process, address):
        until(lambda: "in 4 s" in (httpx.get(f"{address}api/streams/s1").json()["message"] or ""))
        said = _ended(process, signal.SIGINT)
    assert said.count(": connecting\n") == 1
    assert said.count("; next attempt in") == 1
    assert ": ended" not in said and "secret" not in said
