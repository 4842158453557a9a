"""What an alert sets off: a command, or a message to an address. Both work beside the stream and never hold it up."""

from __future__ import annotations

import base64
import contextlib
import difflib
import http.client
import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from arr_stream.config import VideoSettings
from arr_stream.errors import ArrStreamError, ConnectionFailed, ConsumerFailed, InvalidSetting
from arr_stream.live.alerts import Action, Alert, Alerts, Draw, Notice
from arr_stream.live.rules import CONTROL, parse_rule

PLACEHOLDERS = ("rule", "message", "stream", "clip", "time")
"""What a command's arguments may name in braces."""

_TOKEN_VARIABLE = "ARR_STREAM_TOKEN"
"""The key to the server is none of a command's business."""

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
_WAITING = 16
_COMMANDS_AT_ONCE = 2
_RUN_SECONDS = 30.0
_SEND_SECONDS = 10.0
_CONNECT_SECONDS = 4.0
_RETRY_SECONDS = 1.0
_END_SECONDS = 3.0
"""How long what is under way, or waits, may still take when the stream ends."""
_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.02
_TAIL_BYTES = 2048
_TAIL_SHOWN = 200
_MOST_REDIRECTS = 3


class _QueuedAction:
    """Takes alerts through a bounded queue and deals with them in threads that start when first needed."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self.dropped = 0
        self._most_threads = threads
        self._waiting: queue.Queue[tuple[Alert, Notice] | None] = queue.Queue(_WAITING)
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._ending = threading.Event()

    def start(self, alert: Alert, notice: Notice) -> None:
        """See `Action.start`."""
        if self._closed:
            return
        try:
            self._waiting.put_nowait((alert, notice))
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                notice(f"{self.name}: alerts come faster than it deals with them; some are passed over")
            return
        if len(self._threads) < self._most_threads:
            thread = threading.Thread(target=self._work, name="arr-stream-action", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Give what waits and what is under way 3 s, then end it."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(queue.Full):
            for _ in self._threads:
                self._waiting.put(None, timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._ending.set()
        self._end()
        for thread in self._threads:
            thread.join(2 * _KILL_SECONDS)
        self._tell_undone()

    def _tell_undone(self) -> None:
        """Alerts that waited until it was too late."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self._waiting.get_nowait()) is not None:
                    self.dropped += 1
                    item[1](f"{self.name}: not done for {item[0].rule!r}, since the stream has ended")

    def _work(self) -> None:
        while not self._ending.is_set() and (item := self._waiting.get()) is not None:
            alert, notice = item
            try:
                self._deal_with(alert)
            except ArrStreamError as exc:
                notice(str(exc))
            except Exception as exc:
                notice(f"{self.name}: failed: {type(exc).__name__}: {exc}")

    def _deal_with(self, alert: Alert) -> None:
        """The work itself; ends soon once `_ending` is set. What it raises becomes a notice."""
        raise NotImplementedError

    def _end(self) -> None:
        """Wake what waits for something outside."""


class RunCommand(_QueuedAction):
    """Runs a program for each alert, at most two at once and each for at most 30 s; never through a shell.

    `{rule}`, `{message}`, `{stream}`, `{clip}` (the path of the MP4, empty without one) and `{time}` (ISO 8601) in an
    argument are replaced; other braces stay. Texts lose control characters, and dashes in front, so that none is taken
    for an option. The environment has the same in ARR_STREAM_RULE and so on. With `{clip}` the program is started once
    the clip is finished, otherwise at once.

    Args:
        argv: Program and arguments.

    Raises:
        InvalidSetting: No such program, or a placeholder that is nearly right.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        if not argv or not argv[0]:
            raise InvalidSetting("no command to run was given", remedy="write such as --run 'notify-send {message}'")
        super().__init__(f"command {os.path.basename(argv[0])!r}", _COMMANDS_AT_ONCE)  # noqa: PTH119
        _check_placeholders(argv)
        self._program = shutil.which(argv[0])
        if self._program is None:
            raise InvalidSetting(
                f"command {argv[0]!r}: there is no such program", remedy="name one that is installed, or its whole path"
            )
        self._argv = tuple(argv)
        self.after_clip = any("{clip}" in argument for argument in argv)

    @classmethod
    def parse(cls, line: str) -> RunCommand:
        """The command that a line means; quotes as in a shell, and nothing else of one."""
        try:
            return cls(shlex.split(line))
        except ValueError as exc:
            raise InvalidSetting(f"command {line!r}: {str(exc).lower()}", remedy="close every quote") from exc

    def _deal_with(self, alert: Alert) -> None:
        values = _values(alert)
        # All at once: what is filled in is not looked at again.
        argv = [_PLACEHOLDER.sub(lambda match: values[match[1]], argument) for argument in self._argv]
        inherited = {name: value for name, value in os.environ.items() if name != _TOKEN_VARIABLE}
        environment = inherited | {f"ARR_STREAM_{name.upper()}": value for name, value in values.items()}
        try:
            process = subprocess.Popen(
                argv,
                executable=self._program,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:
            raise ConsumerFailed(f"{self.name}: {getattr(exc, 'strerror', None) or exc}") from exc
        with process:
            try:
                tail = self._watched(process)
            finally:
                _kill(process)
                assert process.stdout is not None
                process.stdout.close()
        if process.returncode:
            said = _last_line(tail)
            raise ConsumerFailed(f"{self.name}: ended with {process.returncode}{f': {said}' if said else ''}")

    def _watched(self, process: subprocess.Popen[bytes]) -> bytes:
        """Wait for the end of a process; the last of what it wrote."""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + _RUN_SECONDS
        tail = b""
        while True:
            # Asked before reading: what it wrote before it ended is then there. Its own children may keep the pipe.
            ended = process.poll() is not None
            piece = process.stdout.read(65_536)
            tail = (tail + (piece or b""))[-_TAIL_BYTES:]
            late = time.monotonic() > deadline
            if ended and (late or not piece):
                return tail
            if late:
                raise ConsumerFailed(f"{self.name}: stopped after {_RUN_SECONDS:g} s")
            if self._ending.is_set():
                raise ConsumerFailed(f"{self.name}: stopped, since the stream has ended")
            if not piece:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)


class PostJson(_QueuedAction):
    """Sends each alert as a JSON object by POST; tries a second time when that fails for a reason that may pass.

    The object is that of `Alert.record`. At most 10 s an attempt; redirects are followed on the same host alone. User
    and password in the address are sent as basic authentication. Notices name the host alone, since addresses of
    hooks are secrets.

    Raises:
        InvalidSetting: An address that does not begin with http:// or https://, or is malformed.
    """

    after_clip = False

    def __init__(self, url: str) -> None:
        super().__init__(f"POST to {_checked_host(url)}", 1)
        self._url = url
        self._connection: http.client.HTTPConnection | None = None

    def _deal_with(self, alert: Alert) -> None:
        body = json.dumps(alert.record()).encode()
        try:
            self._send(body)
        except ConnectionFailed:
            if self._ending.wait(_RETRY_SECONDS):
                raise
            self._send(body)

    def _send(self, body: bytes) -> None:
        """One attempt, redirects included; what raises `ConnectionFailed` may succeed when tried again."""
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
        """Status and place of redirection."""
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

    def _end(self) -> None:
        connection = self._connection
        if connection is not None:
            _abort(connection)


def _check_placeholders(argv: Sequence[str]) -> None:
    if "{" in argv[0]:
        raise InvalidSetting(f"command {argv[0]!r}: the program itself must be fixed", remedy="fill in arguments only")
    for name in re.findall(r"\{([A-Za-z_]+)\}", " ".join(argv)):
        near = difflib.get_close_matches(name.lower(), PLACEHOLDERS, n=1, cutoff=0.7)
        if name not in PLACEHOLDERS and near:
            known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise InvalidSetting(
                f"command: there is no {{{name}}}", remedy=f"did you mean {{{near[0]}}}? There are {known}"
            )


def _values(alert: Alert) -> dict[str, str]:
    """What placeholders stand for."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(alert.made_unix))
    clip = str(alert.clip_path) if alert.clip_path is not None else ""
    texts = {"rule": alert.rule, "message": alert.message, "stream": alert.stream}
    # Names and answers come from elsewhere.
    clean = {name: CONTROL.sub(" ", text).lstrip("- ") for name, text in texts.items()}
    return clean | {"clip": clip, "time": when}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, with all that it started, and wait for it."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
            return


def _last_line(output: bytes) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return CONTROL.sub(" ", lines[-1])[:_TAIL_SHOWN] if lines else ""


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _checked_host(url: str) -> str:
    """Host and port, for notices; raises `InvalidSetting` where it is no address to send to."""
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
    """Wake whoever waits for this connection."""
    held = connection.sock
    if held is not None:
        with contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class AlertPlan:
    """What to look for in streams, and what follows.

    Args:
        rules: See `arr_stream.live.rules`; none for no alerts.
        before_seconds, after_seconds: How much of the stream a clip shows around an alert.
        clip_folder: Where clips are written; None for none.
        commands: Command lines to run.
        addresses: Where to POST alerts.

    Raises:
        InvalidSetting: A rule, a command or an address that is none.
    """

    rules: tuple[str, ...] = ()
    before_seconds: float = 3.0
    after_seconds: float = 3.0
    clip_folder: Path | None = None
    commands: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.rules:
            parse_rule(rule)
        for action in self._actions():
            action.close()

    def alerts(
        self,
        stream_name: str,
        *,
        on_alert: Callable[[Alert], None],
        on_notice: Notice,
        draw: Draw,
        video: VideoSettings,
    ) -> Alerts:
        """Those of one stream, see `Alerts`."""
        return Alerts(
            self.rules,
            stream_name=stream_name,
            clip_folder=self.clip_folder,
            before_seconds=self.before_seconds,
            after_seconds=self.after_seconds,
            actions=self._actions(),
            on_alert=on_alert,
            on_notice=on_notice,
            draw=draw,
            video=video,
        )

    def _actions(self) -> list[Action]:
        """New ones: each stream has its own."""
        return [*map(RunCommand.parse, self.commands), *map(PostJson, self.addresses)]
