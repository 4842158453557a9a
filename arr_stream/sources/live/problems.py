"""What FFmpeg reports of live sources, in our own errors."""

from __future__ import annotations

import errno
import socket
from urllib.parse import urlsplit

import av.error

from arr_stream.errors import (
    ArrStreamError,
    AuthenticationFailed,
    BackendUnavailable,
    CameraBusy,
    CameraLost,
    CameraNotFound,
    ConnectionFailed,
    HostUnknown,
    NotAMediaFile,
    SourceError,
    StreamNotFound,
    StreamSilent,
)
from arr_stream.sources.container import reason
from arr_stream.sources.live.spec import LiveSpec

DEFAULT_PORTS = {"rtsp": 554, "rtspt": 554, "rtsps": 322, "http": 80, "https": 443, "rtmp": 1935, "rtmps": 443}

_PROBE_SECONDS = 1.0


def host_and_port(spec: LiveSpec) -> tuple[str, int | None]:
    """Of an address; the host is empty where none is named.

    Raises:
        HostUnknown: It is no address.
    """
    try:
        parts = urlsplit(spec.target)
        return parts.hostname or "", parts.port or DEFAULT_PORTS.get(spec.scheme)
    except ValueError as exc:
        raise HostUnknown(f"{spec.name}: not an address", remedy="write it as rtsp://host:port/path") from exc


def network_problem(spec: LiveSpec, error: Exception, *, waited_seconds: float | None = None) -> ArrStreamError:
    """Why an address cannot be opened.

    Args:
        spec: The address.
        error: What PyAV raised.
        waited_seconds: Set where the wait was ended by us after so long.
    """
    name, number = spec.name, getattr(error, "errno", None)
    if waited_seconds is not None or isinstance(error, av.error.ExitError):
        return _silent(spec, waited_seconds or 0.0)
    if isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError):
        return AuthenticationFailed(
            f"{name}: the server refuses the user or password",
            remedy="write user and password into the address, before the host and an @",
        )
    if isinstance(error, av.error.HTTPNotFoundError):
        return StreamNotFound(f"{name}: the server has no such stream", remedy="check the path of the address")
    if isinstance(error, av.error.HTTPClientError | av.error.HTTPServerError):
        return ConnectionFailed(f"{name}: {reason(error)}", remedy="look at the server")
    if isinstance(error, av.error.ProtocolNotFoundError):
        return BackendUnavailable(
            f"{name}: this FFmpeg does not know {spec.scheme}://", remedy="use another kind of address"
        )
    if isinstance(error, av.error.InvalidDataError):
        return NotAMediaFile(f"{name}: what it sends is no video that FFmpeg knows", remedy="check the address")
    return ConnectionFailed(
        f"{name}: {_REASONS.get(number or 0) or reason(error)}", remedy="check that the server runs"
    )


_REASONS = {
    errno.ECONNREFUSED: "connection refused, nothing listens there",
    errno.ENETUNREACH: "no way to its network",
    errno.EHOSTUNREACH: "no way to this host",
    errno.EADDRINUSE: "another program receives at this port",
    errno.EIO: "the connection broke off while it was opened",
}


def _silent(spec: LiveSpec, waited_seconds: float) -> SourceError:
    """Nothing came: tells a server that is mute from one that is not there."""
    host, port = host_and_port(spec)
    if host and port and spec.scheme not in {"udp", "srt"}:
        try:
            socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
        except OSError:
            return ConnectionFailed(
                f"{spec.name}: no answer within {waited_seconds:g} s",
                remedy="check the address and that the server runs",
            )
    return StreamSilent(
        f"{spec.name}: connected, but nothing came within {waited_seconds:g} s",
        remedy="check that the server sends, or raise live.connect_seconds",
    )


def camera_problem(name: str, error: Exception, *, opened: bool) -> SourceError:
    """Why a camera cannot be opened, or has stopped.

    Args:
        name: What was given.
        error: What PyAV raised.
        opened: It had been open before.
    """
    number = getattr(error, "errno", None)
    if opened:
        return CameraLost(f"{name}: the camera has stopped: {reason(error)}", remedy="check its plug and cable")
    if number == errno.EBUSY:
        return CameraBusy(f"{name}: another program uses this camera", remedy="close it there")
    if number in (errno.EACCES, errno.EPERM):
        return CameraBusy(
            f"{name}: may not be opened", remedy="join the group `video`, or allow the camera to programs"
        )
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return CameraNotFound(f"{name}: no such camera", remedy="see `arr-stream cameras`")
    if number in (errno.ENOTTY, errno.EISDIR):
        return CameraNotFound(f"{name}: not a camera", remedy="see `arr-stream cameras`")
    return CameraNotFound(
        f"{name}: the camera cannot be opened: {reason(error)}",
        remedy="see `arr-stream cameras`, and leave live.size and live.fps at their defaults",
    )
