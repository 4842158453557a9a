"""One soak: the server with two streams, clients and batches, and faults one after the other."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_stream.errors import MeasurementFailed
from benchmarks.live.process import Child, free_port, start_sender, wait_until
from soaking.sampling import Sample, Sampler, family

PATIENCE_SECONDS = 90.0
_CLIP = Path(__file__).resolve().parents[2] / "sample_videos" / "shapes.mp4"
_PASSING = "lavfi:testsrc2=size=160x96:rate=15"
_LIGHT = ("keyframes.text=none", "selection.budget=8", "live.stall_seconds=2", "live.policy=latest")
_WORDS = (["red"], ["green", "blue"], ["circle"])
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Length of a soak, mean time between faults, seed of their order, and whether there are any."""

    seconds: float
    gap_seconds: float = 10.0
    seed: int = 1
    faults: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was injected: its kind, when, how long until everything worked again, or why it did not."""

    kind: str
    seconds: float
    recovery_seconds: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole soak.

    Args:
        seconds: How long it ran.
        frames: Processed by the streams that were there throughout.
        faults, samples: In their order.
        left: Processes that outlived the server.
        ended_seconds: What the server took to end when asked to; None if it had to be killed.
    """

    seconds: float
    frames: int
    faults: tuple[Fault, ...]
    samples: tuple[Sample, ...]
    left: tuple[int, ...]
    ended_seconds: float | None


class Stage:
    """The running server and what is done to it.

    Args:
        folder: For the outputs of batches.

    Attributes:
        fault: The fault in progress.
    """

    def __init__(self, folder: Path) -> None:
        self.fault: str | None = None
        self._folder, self._batches, self._clusters = folder, 0, "slic"
        self.sender = start_sender(free_port(), size_wh=(160, 96))
        port = free_port()
        sources = [f"{self.sender.address}/live.ts", f"loop:{_CLIP}"]
        settings = [word for value in _LIGHT for word in ("--set", value)]
        command = ["-m", "arr_stream", "serve", *sources, "--port", str(port), "--allow", "lavfi:*", "--query", "red"]
        self.server = Child([*command, *settings], port)
        try:
            self.server.wait_ready()
            self.until(lambda: len(self.frames()) == 2 and min(self.frames().values()) > 30, "frames of both streams")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.server.kill()
        self.sender.kill()

    def frames(self) -> dict[str, int]:
        """Return the frames processed, by stream."""
        return {status["id"]: status["frames"] for status in self.server.get_json("/api/streams")}

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition.

        Raises:
            MeasurementFailed: It did not hold in time.
        """
        wait_until(condition, what, PATIENCE_SECONDS)

    def go_on(self) -> None:
        """Wait until both streams have processed a second of further frames."""
        before = self.frames()
        self.until(lambda: all(self.frames()[name] >= before[name] + 30 for name in ("s1", "s2")), "further frames")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.server.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def kill_sender(self) -> None:
        """Kill the HTTP server of the first stream and start it again."""
        self.sender.kill()
        self.until(lambda: self._state("s1") == "reconnecting", "attempts to reconnect")
        self.sender = start_sender(self.sender.port, size_wh=(160, 96))
        self.until(lambda: self._state("s1") == "live", "the connection")

    def _state(self, name: str) -> str:
        return str(self.server.get_json(f"/api/streams/{name}")["state"])

    def kill_workers(self) -> None:
        """Kill every keyframe worker of the server."""
        killed = family(self.server.pid)
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.until(lambda: len(set(family(self.server.pid)) - set(killed)) >= 1, "another worker")

    def ask(self) -> None:
        """Change the query of a stream."""
        self._call("PUT", "/api/streams/s1/query", {"texts": random.choice(_WORDS)})

    def reconfigure(self) -> None:
        """Change a stream's keyframe model, which replaces its workers."""
        self._clusters = "slic" if self._clusters == "grid" else "grid"
        self._call("PATCH", "/api/streams/s2", {"settings": {"keyframes.clusters": self._clusters}})

    def pass_by(self) -> None:
        """Add a stream, wait for its frames, and remove it."""
        name = self._call("POST", "/api/streams", {"source": _PASSING, "query": ["blue"]})["id"]
        self.until(lambda: self.frames()[name] > 20, "frames of the added stream")
        self._call("DELETE", f"/api/streams/{name}")
        self.until(lambda: name not in self.frames(), "its removal")

    def vanish(self) -> None:
        """Connect clients that begin to read and reset the connection, or never read."""
        clients = []
        for path in ("/api/streams/s1/snapshot.jpg", "/api/streams/s2/records", "/api/streams/s1/records"):
            client = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.server.port}\r\n\r\n".encode())
            clients.append(client)
        clients[0].recv(65_536)
        time.sleep(0.5)
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()

    def batch(self) -> None:
        """Kill a batch in the middle and run it again to its end.

        Raises:
            MeasurementFailed: The second run failed.
        """
        self._batches += 1
        out = self._folder / f"batch-{self._batches}"
        command = [sys.executable, "-m", "arr_stream", "batch", str(_CLIP), "-o", str(out), "--log=quiet"]
        command += ["--query", "red", "--set", "keyframes.text=none", "--budget", "8"]
        with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as first:
            time.sleep(3.0)
            with suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)
        again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
        if again.returncode != 0:
            raise MeasurementFailed(f"the batch ended with {again.returncode}: {again.stderr[-300:]}")


FAULTS: dict[str, Callable[[Stage], None]] = {
    "sender-kill": Stage.kill_sender,
    "worker-kill": Stage.kill_workers,
    "query": Stage.ask,
    "model": Stage.reconfigure,
    "stream": Stage.pass_by,
    "clients": Stage.vanish,
    "batch-kill": Stage.batch,
}
"""Every kind of fault, and what injects it."""


def soak(plan: Plan, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Run a soak: every kind of fault comes once, in an order drawn by the seed, before any comes again.

    Args:
        plan: What to do.
        folder: For outputs that nobody needs afterwards.
        say: Receives progress messages.
    """
    stage, order, waiting = Stage(folder), random.Random(plan.seed), list[str]()
    faults: list[Fault] = []
    sampler = Sampler(stage.server.pid, lambda: stage.fault)
    try:
        due = plan.gap_seconds
        while sampler.seconds < plan.seconds:
            time.sleep(0.1)
            if not plan.faults or sampler.seconds < due:
                continue
            waiting = waiting or order.sample(sorted(FAULTS), len(FAULTS))
            faults.append(_injected(stage, waiting.pop(), sampler))
            say(f"{faults[-1].seconds:6.0f} s: {faults[-1].kind}: {faults[-1].problem or 'recovered'}")
            due = sampler.seconds + plan.gap_seconds
        frames, seconds = sum(stage.frames().values()), sampler.seconds
        workers = family(stage.server.pid)
    finally:
        sampler.close()
        try:
            ended: float | None = stage.server.end()
        except MeasurementFailed:
            ended = None
        stage.close()
    left = tuple(pid for pid in workers if Path(f"/proc/{pid}").exists())
    return Outcome(round(seconds, 1), frames, tuple(faults), tuple(sampler.samples), left, ended)


def _injected(stage: Stage, kind: str, sampler: Sampler) -> Fault:
    began, problem, recovery = sampler.seconds, "", None
    stage.fault = kind
    try:
        FAULTS[kind](stage)
        stage.go_on()
        recovery = round(sampler.seconds - began, 2)
    except (MeasurementFailed, OSError, subprocess.TimeoutExpired) as exc:
        problem = f"{type(exc).__name__}: {exc}"
    stage.fault = None
    return Fault(kind, round(began, 1), recovery, problem)
