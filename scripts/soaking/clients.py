"""Clients of the server: one that watches all the time, and others that vanish without a word."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import struct
import threading
import time

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection."""


class Viewer:
    """Watches a stream over a WebSocket, some pictures a second."""

    def __init__(self, port: int, stream: str) -> None:
        self.pictures = 0
        self._stop = threading.Event()
        self._address = f"ws://127.0.0.1:{port}/api/streams/{stream}/video?view=patches"
        self._thread = threading.Thread(target=self._watch, name="soak-viewer")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            # The server may close on whoever is too slow: then it is opened anew, as the page does.
            with contextlib.suppress(OSError, ConnectionClosed, TimeoutError):
                self._watch_once()
            self._stop.wait(_PAUSE_SECONDS)

    def _watch_once(self) -> None:
        with connect(self._address, proxy=None, open_timeout=_SECONDS, max_size=None) as client:
            while not self._stop.is_set():
                try:
                    message = client.recv(timeout=_PAUSE_SECONDS)
                except TimeoutError:
                    continue
                if isinstance(message, bytes):
                    (length,) = struct.unpack_from("<I", message)
                    client.send(json.dumps({"ack": json.loads(message[4 : 4 + length])["seq"]}))
                    self.pictures += 1
                self._stop.wait(_PAUSE_SECONDS)


def come_and_vanish(port: int, stream: str) -> None:
    """Clients of each kind that begin to listen, and are gone without a word, the last ones never having read."""
    paths = (
        (f"/api/streams/{stream}/video?view=patches&view=source&cells=1", True),
        ("/api/events", True),
        (f"/api/streams/{stream}/video.mjpeg", False),
        (f"/api/streams/{stream}/video", False),
        ("/api/events", False),
    )
    clients = [_begin(port, path, upgrade=upgrade) for path, upgrade in paths]
    for client in clients[:3]:
        with contextlib.suppress(TimeoutError):
            for _ in range(3):
                client.recv(65_536)
    time.sleep(0.3)
    for client in clients:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        client.close()


def _begin(port: int, path: str, *, upgrade: bool) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
    headers = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    if upgrade:
        key = base64.b64encode(os.urandom(16)).decode()
        headers += f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        headers += "Sec-WebSocket-Version: 13\r\n"
    client.sendall(f"{headers}\r\n".encode())
    return client
