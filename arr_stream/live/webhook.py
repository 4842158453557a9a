"""An alert, and the webhook that sends it as JSON without delaying the stream."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from arr_stream.errors import InvalidSetting

Notice = Callable[[str], None]

_WAITING = 16
_SEND_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_END_SECONDS = 3.0
"""Time for the messages that wait when the stream ends."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that has fired on a frame of a stream; `message` describes the event in one line."""

    rule: str
    message: str
    frame_index: int
    pts_seconds: float
    made_unix: float
    stream: str = ""

    def record(self) -> dict[str, Any]:
        """Return the alert as plain JSON values."""
        return asdict(self) | {"pts_seconds": round(self.pts_seconds, 6), "made_unix": round(self.made_unix, 3)}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that reports redirects as failures: another address could be one that the user did not choose."""

    def redirect_request(self, *_: object) -> None:
        return None


class Webhook:
    """Address that receives each alert, as `Alert.record`, by POST; once more after a failure that may pass.

    A thread sends; at most 16 alerts wait. Redirects are not followed. User and password in the address are sent as
    basic authentication. Notices name the host alone, since addresses of hooks are secrets.

    Args:
        url: An http or https address.

    Attributes:
        dropped: Alerts that were not sent, because too many waited or the stream had ended.

    Raises:
        InvalidSetting: Another kind of address, or a malformed one.
    """

    def __init__(self, url: str) -> None:
        parts = _checked(url)
        self.name = f"POST to {parts.netloc.rpartition('@')[2]}"
        self.dropped = 0
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._headers = {"Content-Type": "application/json", "User-Agent": "arr-stream"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        # Without a proxy from the environment: an alert goes to this address only.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
        self._waiting: queue.Queue[tuple[Alert, Notice] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def send(self, alert: Alert, notice: Notice) -> None:
        """Queue an alert and return at once; `notice` is called from another thread with later failures."""
        if self._ending.is_set():
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
        """Give the messages that wait 3 s; report and drop the others. A thread that hangs ends with its time-out."""
        if self._thread is not None and not self._ending.is_set():
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=_END_SECONDS)
            self._thread.join(_END_SECONDS)
        self._ending.set()
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self._waiting.get_nowait()) is not None:
                    self.dropped += 1
                    item[1](f"{self.name}: {item[0].rule!r} was not sent before the stream ended")

    def _work(self) -> None:
        while not self._ending.is_set() and (item := self._waiting.get()) is not None:
            alert, notice = item
            body = json.dumps(alert.record()).encode()
            fault, may_pass = self._attempt(body)
            if fault and may_pass and not self._ending.wait(_RETRY_SECONDS):
                fault, _ = self._attempt(body)
            if fault:
                notice(f"{self.name}: {fault}")

    def _attempt(self, body: bytes) -> tuple[str | None, bool]:
        """Send once; return the fault, None without one, and whether another attempt may succeed."""
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=_SEND_SECONDS):
                return None, False
        except urllib.error.HTTPError as exc:
            return f"answered with {exc.code}", exc.code >= 500 or exc.code == 429
        except (OSError, http.client.HTTPException, ValueError) as exc:
            reason = getattr(exc, "reason", exc)
            return str(getattr(reason, "strerror", None) or type(reason).__name__).lower(), True


def _checked(url: str) -> SplitResult:
    """Return the parts of an http or https address; raise `InvalidSetting` for any other text."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        whole = parts.hostname and (parts.port or True) and url.isascii() and not re.search(r"[\x00-\x20\x7f]", url)
        if whole and parts.scheme in ("http", "https"):
            return parts
    raise InvalidSetting(
        "alerts cannot be sent there: not an http or https address with a host",
        remedy="write such as http://127.0.0.1:8000/alerts",
    )
