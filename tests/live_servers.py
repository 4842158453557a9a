"""Real servers of live pictures on loopback; each ends for certain when its context does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"
PATIENCE_SECONDS = 30.0

_RTSP_SCRIPT = """
import sys
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
port, user, password, launches = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(port)
if user:
    auth = GstRtspServer.RTSPAuth()
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "viewer")
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    server.set_auth(auth)
for place in launches:
    path, launch = place.split("=", 1)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(launch)
    factory.set_shared(True)
    if user:
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_permission_for_role("viewer", "media.factory.access", True)
        permissions.add_permission_for_role("viewer", "media.factory.construct", True)
        factory.set_permissions(permissions)
    server.get_mount_points().add_factory(path, factory)
if not server.attach(None):
    sys.exit("cannot listen")
print("ready", flush=True)
GLib.MainLoop().run()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds, and fail when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)


class Server:
    """A process that can be killed, frozen and started again.

    Args:
        command: What to start.
        ready: A line that it prints once it listens; None where it has nothing to say.
    """

    def __init__(self, command: Sequence[str], *, ready: str | None = None) -> None:
        self._command, self._ready = list(command), ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str] | None = None) -> None:
        self._command = list(command or self._command)
        with tempfile.TemporaryFile() as said:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
            if self._ready is not None:
                self._wait_until_ready(said.fileno())

    def _wait_until_ready(self, descriptor: int) -> None:
        process, ready = self._process, (self._ready or "").encode()
        assert process is not None
        wait_for(lambda: ready in os.pread(descriptor, 65_536, 0) or process.poll() is not None, "a server")
        if process.poll() is not None:
            text = os.pread(descriptor, 65_536, 0).decode(errors="replace")
            self._process = None
            pytest.fail(f"the server did not start: {text}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running(command: Sequence[str], *, ready: str | None = None) -> Iterator[Server]:
    server = Server(command, ready=ready)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@cache
def need_ffmpeg() -> None:
    """Skips where the ffmpeg program is missing."""
    try:
        subprocess.run(["ffmpeg", "-version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the program ffmpeg is missing")


@cache
def need_gstreamer() -> None:
    """Skips where GStreamer's RTSP server is missing."""
    code = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    try:
        subprocess.run([SYSTEM_PYTHON, "-c", code], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("GStreamer's RTSP server for Python (gir1.2-gst-rtsp-server-1.0) is missing")


def rtsp_launch(size_wh: tuple[int, int] = (160, 120), *, fps: int = 30, video: bool = True) -> str:
    """A stream for `rtsp_command`: a moving test picture as H.264, or a tone."""
    if not video:
        return "( audiotestsrc is-live=true ! mulawenc ! rtppcmupay name=pay0 )"
    width, height = size_wh
    return (
        f"( videotestsrc is-live=true pattern=ball ! video/x-raw,width={width},height={height},framerate={fps}/1 "
        "! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 ! rtph264pay name=pay0 config-interval=1 )"
    )


def rtsp_command(port: int, *, user: str = "", password: str = "", **streams: str) -> list[str]:
    """An RTSP server with a stream under `/NAME` for each keyword."""
    places = [f"/{name}={launch}" for name, launch in streams.items()]
    return [SYSTEM_PYTHON, "-c", _RTSP_SCRIPT, str(port), user, password, *places]


def ffmpeg_command(target: str, *, size: str = "160x120", fps: int = 30, form: str = "mpegts") -> list[str]:
    """The ffmpeg program sends a test picture in real time to `target`; it listens where the options say so."""
    made = f"testsrc2=size={size}:rate={fps}"
    coded = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "15", "-pix_fmt", "yuv420p"]
    listening = ["-listen", "1"] if target.startswith("http") else []
    return ["ffmpeg", "-v", "error", "-re", "-f", "lavfi", "-i", made, *coded, "-f", form, *listening, target]


@contextmanager
def rtsp_server(**options: str) -> Iterator[tuple[Server, int]]:
    """An RTSP server with a stream under `/live`, and its port; `options` as for `rtsp_command`."""
    need_gstreamer()
    port = free_port()
    with running(rtsp_command(port, live=rtsp_launch(), **options), ready="ready") as server:
        yield server, port


class ByteServer:
    """A TCP server that answers every connection with what `serve` does with it."""

    def __init__(self, serve: Callable[[socket.socket], None], port: int = 0) -> None:
        self._serve, self._open = serve, True
        self._socket = socket.create_server(("127.0.0.1", port))
        self._socket.settimeout(0.1)
        self.port = int(self._socket.getsockname()[1])
        self.connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self._handle, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _handle(self, connection: socket.socket) -> None:
        with suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._open = False
        self._threads[0].join()
        self._socket.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def byte_server(serve: Callable[[socket.socket], None], port: int = 0) -> Iterator[ByteServer]:
    server = ByteServer(serve, port)
    try:
        yield server
    finally:
        server.close()


def http_body(
    connection: socket.socket, chunks: Sequence[bytes], *, status: str = "200 OK", pause_seconds: float = 0.0
) -> None:
    """Reads one request, and answers with these pieces, with pauses between them."""
    connection.recv(65_536)
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n".encode())
    for chunk in chunks:
        connection.sendall(chunk)
        time.sleep(pause_seconds)


def hang(connection: socket.socket) -> None:
    """Takes what comes, and says nothing, until the other side or the server closes."""
    while connection.recv(65_536):
        pass


@contextmanager
def web_folder(folder: Path) -> Iterator[int]:
    """The files of a folder over HTTP; gives the port."""
    with web_server(folder) as (_, port):
        yield port


@contextmanager
def web_server(folder: Path) -> Iterator[tuple[Server, int]]:
    """The same, with the server."""
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder), str(port)]
    with running(["env", "PYTHONUNBUFFERED=1", *command], ready="Serving") as server:
        yield server, port
