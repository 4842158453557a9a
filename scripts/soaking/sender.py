"""An HTTP server of MPEG-TS in a process of its own, which can be killed.

    python -m soaking.sender --port N

Every connection gets a stream from then on, at its own speed. It says `ready PORT`, and ends with its standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import threading
import time

from soaking.footage import Broadcast, Footage

SIZE_WH = (160, 96)


def handle(connection: socket.socket, footage: Footage) -> None:
    """Answer one request with pictures, until the other side goes."""
    with connection, contextlib.suppress(OSError):
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n")
        broadcast, started = Broadcast(footage, 0.0), time.monotonic()
        while True:
            time.sleep(max(0.0, started + broadcast.seconds - time.monotonic()))
            connection.sendall(broadcast.next())


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    footage = Footage(SIZE_WH, seed=11)
    with socket.create_server(("127.0.0.1", port)) as server:
        print(f"ready {server.getsockname()[1]}", flush=True)
        threading.Thread(target=_accept, args=(server, footage), daemon=True).start()
        sys.stdin.buffer.read()


def _accept(server: socket.socket, footage: Footage) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=handle, args=(connection, footage), daemon=True).start()


if __name__ == "__main__":
    main()
