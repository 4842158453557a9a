"""An alert, and how it is sent to an address as JSON, beside the stream and without ever holding it up."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from arr_stream.errors import ArrStreamError, ConnectionFailed, ConsumerFailed, InvalidSetting

Notice = Callable[[str], None]

_WAITING = 16
_SEND_SECONDS = 10.0
_CONNECT_SECONDS = 4.0
_RETRY_SECONDS = 1.0
_END_SECONDS = 3.0
"""Time for the messages that wait when the stream ends."""
_JOIN_SECONDS = 2.0
_MOST_REDIRECTS = 3


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule has fired on a frame of a stream.

    Args:
        message: What was seen, in one line.
        clip_path: Where the clip is, or will be some seconds later; None without one.
    """

    rule: str
    message: str
    frame_index: int
    pts_seconds: float
    made_unix: float
    stream: str = ""
    clip_path: Path | None = None

    @property
    def clip(self) -> str | None:
        return self.clip_path.name if self.clip_path is not None else None

    def record(self) -> dict[str, Any]:
        """Return the alert as plain JSON values, with the clip's name only."""
        return {
            "stream": self.stream,
            "rule": self.rule,
            "message": self.message,
            "frame_index": self.frame_index,
            "pts_seconds": round(self.pts_seconds, 6),
            "made_unix": round(self.made_unix, 3),
            "clip": self.clip,
        }


class Webhook:
    """Sends each alert as a JSON object by POST, in a thread of its own, and once more after a passing failure.

    The object is that of `Alert.record`. An attempt takes at most 10 s, and at most 16 alerts wait. Redirects are
    followed on the same host alone. User and password in the address are sent as basic authentication. Notices name the
    host alone, since addresses of hooks are secrets.

    Args:
        url: An http or https address.

    Attributes:
        dropped: Alerts that were not sent, because too many waited or the stream had ended.

    Raises:
        InvalidSetting: Another kind of address, or a malformed one.
    """

    def __init__(self, url: str) -> None:
        self.name = f"POST to {_checked_host(url)}"
        self.dropped = 0
        self._url = url
        self._waiting: queue.Queue[tuple[Alert, Notice] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False
        self._ending = threading.Event()

    def send(self, alert: Alert, notice: Notice) -> None:
        """Queue an alert and return at once; `notice` is called from another thread with what goes wrong later."""
        if self._closed:
            return
        try:
            self._waiting.put_nowait((alert, notice))
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                notice(f"{self.name}: alerts come faster than they can be sent; some are dropped")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="arr-stream-webhook", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give the messages that wait 3 s, then end the thread."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + _END_SECONDS
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=_END_SECONDS)
            self._thread.join(max(0.0, deadline - time.monotonic()))
            self._ending.set()
            if (connection := self._connection) is not None:
                _abort(connection)
            self._thread.join(_JOIN_SECONDS)
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self._waiting.get_nowait()) is not None:
                    self.dropped += 1
                    item[1](f"{self.name}: {item[0].rule!r} was not sent before the stream ended")

    def _work(self) -> None:
        while not self._ending.is_set() and (item := self._waiting.get()) is not None:
            alert, notice = item
            try:
                self._post(json.dumps(alert.record()).encode())
            except ArrStreamError as exc:
                notice(str(exc))
            except Exception as exc:
                notice(f"{self.name}: failed: {type(exc).__name__}: {exc}")

    def _post(self, body: bytes) -> None:
        try:
            self._attempt(body)
        except ConnectionFailed:
            if self._ending.wait(_RETRY_SECONDS):
                raise
            self._attempt(body)

    def _attempt(self, body: bytes) -> None:
        """Send once, following redirects; `ConnectionFailed` says that another attempt may succeed."""
        url = self._url
        for _ in range(_MOST_REDIRECTS + 1):
            status, location = self._exchanged(url, body)
            if status not in (301, 302, 307, 308) or not location:
                break
            url = self._onward(url, location)
        if status >= 500 or status == 429:
            raise ConnectionFailed(f"{self.name}: answered with {status}")
        if not 200 <= status < 300:
            raise ConsumerFailed(f"{self.name}: answered with {status}")

    def _onward(self, url: str, location: str) -> str:
        try:
            onward = urljoin(url, location)
            same = _place(onward) == _place(self._url)
        except ValueError:
            same = False
        if not same:
            raise ConsumerFailed(f"{self.name}: it points to another host, which is not followed")
        return onward

    def _exchanged(self, url: str, body: bytes) -> tuple[int, str | None]:
        """Return the status, and the address of a redirect."""
        scheme, host, port = _place(url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = self._connection = kind(host or "", port, timeout=_CONNECT_SECONDS)
        # A time-out of the socket begins anew with every byte that comes; this one does not.
        timer = threading.Timer(_SEND_SECONDS, _abort, (connection,))
        timer.daemon = True
        timer.start()
        try:
            if self._ending.is_set():
                raise OSError("the stream has ended")
            connection.connect()
            connection.sock.settimeout(_SEND_SECONDS)
            parts = urlsplit(url)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body, _headers(url))
            response = connection.getresponse()
            return response.status, response.getheader("Location")
        except (OSError, http.client.HTTPException, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or type(exc).__name__
            raise ConnectionFailed(f"{self.name}: {str(reason).lower()}") from exc
        finally:
            timer.cancel()
            self._connection = None
            connection.close()


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _checked_host(url: str) -> str:
    """Return host and port, for notices.

    Raises:
        InvalidSetting: Not an address to send to.
    """
    remedy = "write such as http://127.0.0.1:8000/alerts"
    try:
        scheme, host, port = _place(url)
    except ValueError as exc:
        raise InvalidSetting("alerts cannot be sent there: the address is malformed", remedy=remedy) from exc
    if scheme not in ("http", "https"):
        raise InvalidSetting(f"alerts cannot be sent by {scheme or 'an address without a scheme'!r}", remedy=remedy)
    if not host or re.search(r"[\x00-\x20\x7f]", url) or not url.isascii():
        raise InvalidSetting("alerts cannot be sent there: the address has no host or odd characters", remedy=remedy)
    return host if port is None else f"{host}:{port}"


def _headers(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "Connection": "close", "User-Agent": "arr-stream"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers


def _abort(connection: http.client.HTTPConnection) -> None:
    """Wake the thread that waits for this connection."""
    held = connection.sock
    if held is not None:
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)
