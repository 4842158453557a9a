"""Processes of a measurement: started, asked, watched, and ended for certain."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from arr_stream.errors import MeasurementFailed

_START_SECONDS = 60.0
_END_SECONDS = 10.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Wait until the condition holds.

    Raises:
        MeasurementFailed: It did not in that time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)


def end_with_parent() -> None:
    """Shut this child down as on SIGTERM once its parent is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, name="arr-stream-parent", daemon=True).start()


class Child:
    """A Python process of ours, which should call `end_with_parent`.

    Args:
        arguments: For `python`, such as `-m MODULE ...`.
        port: Where the server in it listens; also an attribute.

    Attributes:
        address: Of that server.
    """

    def __init__(self, arguments: Sequence[str], port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=self._said, stderr=subprocess.STDOUT
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> bytes:
        """The answer to a request.

        Raises:
            MeasurementFailed: The server is gone, or answers with an error.
        """
        try:
            with urllib.request.urlopen(self.address + path, timeout=10) as answer:
                return bytes(answer.read())
        except OSError as exc:
            raise MeasurementFailed(f"GET {path}: {exc}; {self._last_words()}") from exc

    def get_json(self, path: str) -> Any:
        """Likewise, as values."""
        return json.loads(self.get(path))

    def wait_ready(self, path: str = "/healthz") -> None:
        """Wait until it answers.

        Raises:
            MeasurementFailed: It ended, or did not in time.
        """
        wait_until(lambda: self._answers(path), "the server", _START_SECONDS)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def end(self) -> float:
        """Ask it to end, and make sure of it; the seconds that it took.

        Raises:
            MeasurementFailed: It had to be killed.
        """
        if self._process.poll() is not None:
            return 0.0
        started = time.monotonic()
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise MeasurementFailed(f"the server did not end within {_END_SECONDS:g} s") from None
        return time.monotonic() - started

    def _answers(self, path: str) -> bool:
        if self._process.poll() is not None:
            raise MeasurementFailed(f"the server ended with {self._process.returncode}: {self._last_words()}")
        try:
            with urllib.request.urlopen(self.address + path, timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _last_words(self) -> str:
        if self._said.closed:
            return "killed"
        text = os.pread(self._said.fileno(), 1 << 20, 0).decode(errors="replace")
        return " | ".join(text.split("\n")[-4:]).strip(" |") or "it said nothing"


@contextmanager
def live_server(
    *, counters: Sequence[float] = (), sources: Sequence[str] = (), settings: Sequence[str] = ()
) -> Iterator[tuple[Child, Path]]:
    """A server in a process of its own.

    Args:
        counters: Frames a second of each stream of our own, from a scene with a counter; they come first.
        sources: Further streams, as for `serve`.
        settings: `key=value`.

    Returns:
        The server, and the folder with `captures-K.txt` of each counter, K from 0: lines of index and time in seconds
        since 1970.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="arr-stream-bench-") as folder:
        arguments = ["-m", "benchmarks.live.server", "--port", str(port), "--captures", folder]
        for flag, values in (("--counter", counters), ("--source", sources), ("--set", settings)):
            for value in values:
                arguments += [flag, str(value)]
        child = Child(arguments, port)
        try:
            child.wait_ready()
            yield child, Path(folder)
            child.end()
        finally:
            child.kill()


def start_sender(port: int, *, size_wh: tuple[int, int] = (640, 360)) -> Child:
    """A streaming server that can be killed, see `benchmarks.live.sender`; it is ready.

    Raises:
        MeasurementFailed: It ended, or did not begin in time.
    """
    child = Child(["-m", "benchmarks.live.sender", "--port", str(port), "--size", f"{size_wh[0]}x{size_wh[1]}"], port)
    try:
        child.wait_ready("/")
    except BaseException:
        child.kill()
        raise
    return child


def captures(folder: Path, counter: int = 0) -> dict[int, float]:
    """Return the capture time of each frame, in milliseconds since 1970, by index."""
    lines = (folder / f"captures-{counter}.txt").read_text().splitlines()
    # The last line may be half written.
    return {int(index): float(seconds) * 1e3 for index, seconds in (line.split() for line in lines[:-1])}


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        found += children(parent)
    return found


def children(pid: int) -> list[int]:
    """Processes that one has started and that are not gone.

    Raises:
        OSError: There is no such process, or this is no Linux.
    """
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end while its siblings are listed.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
