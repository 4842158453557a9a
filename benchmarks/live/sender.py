"""A small streaming server that can be killed: the scene with its counter as H.264 in MPEG-TS over HTTP.

    python -m benchmarks.live.sender --port N [--size WIDTHxHEIGHT]

Every connection gets a stream of its own from then on. It ends when it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import socket
import threading
import time
from fractions import Fraction

import av

from benchmarks.live.process import end_with_parent
from benchmarks.live.scene import Scene
from benchmarks.sizes import parse_size

FPS = 30

_OPTIONS = {"preset": "ultrafast", "tune": "zerolatency", "crf": "23"}
_KEY_INTERVAL = FPS
_CLOCK = 90_000


class _SocketFile(io.RawIOBase):
    """Output file for a muxer that writes to a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self._connection.sendall(view)
        return view.nbytes


def send(connection: socket.socket, scene: Scene) -> None:
    """Answer one request with pictures, until the other side closes."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n")
    with av.open(_SocketFile(connection), "w", format="mpegts", options={"flush_packets": "1"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options=_OPTIONS)
        stream.width, stream.height = scene.size_wh
        stream.pix_fmt = "yuv420p"
        stream.gop_size = _KEY_INTERVAL
        stream.time_base = stream.codec_context.time_base = Fraction(1, _CLOCK)
        started = time.monotonic()
        for index in range(1 << 40):
            time.sleep(max(0.0, started + index / FPS - time.monotonic()))
            frame = av.VideoFrame.from_ndarray(scene.picture(index, index / FPS), format="rgb24")
            frame.pts, frame.time_base = index * _CLOCK // FPS, Fraction(1, _CLOCK)
            for packet in stream.encode(frame):
                container.mux(packet)


def handle(connection: socket.socket, scene: Scene) -> None:
    """`send`, until the other side goes, as it may at any time."""
    with connection, contextlib.suppress(OSError, av.FFmpegError):
        send(connection, scene)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=parse_size, default=(640, 360))
    given = parser.parse_args()
    end_with_parent()
    scene = Scene(given.size, seed=1)
    with socket.create_server(("127.0.0.1", given.port)) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=handle, args=(connection, scene), daemon=True).start()


if __name__ == "__main__":
    main()
