"""Addresses through FFmpeg: RTSP, RTMP, HTTP with HLS, MPEG-TS over UDP; and FFmpeg's errors mapped to ours."""

from __future__ import annotations

import errno
import math
import socket
from functools import partial
from urllib.parse import urlsplit

import av
import av.error
from av.container import InputContainer

from arr_stream.config import Settings
from arr_stream.errors import (
    ArrStreamError,
    AuthenticationFailed,
    BackendUnavailable,
    ConnectionFailed,
    NotAMediaFile,
    NoVideoStream,
    StreamNotFound,
    StreamSilent,
)
from arr_stream.sources.base import SourceStats
from arr_stream.sources.live.connection import Interrupt
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.spec import LiveSpec
from arr_stream.sources.media import reason

_WEB = "http,https,tcp,tls,crypto,httpproxy"
_RTMP = "rtmp,rtmpe,rtmps,rtmpt,rtmpts,ffrtmphttp,ffrtmpcrypt,http,https,tcp,tls"
_RTSP = "rtp,srtp,rtsp,udp,tcp,tls"

_PROTOCOLS = {
    **dict.fromkeys(("http", "https"), _WEB),
    **dict.fromkeys(("rtmp", "rtmpe", "rtmps", "rtmpt", "rtmpts"), _RTMP),
    **dict.fromkeys(("rtsp", "rtsps", "rtspt"), _RTSP),
    "udp": "udp",
    "srt": "srt,udp",
}
"""Protocols that FFmpeg may use for an address of each scheme, redirections and playlists included; never `file`."""

_FORMATS = {"rtsp": "rtsp", "rtsps": "rtsp", "rtspt": "rtsp", "udp": "mpegts", "srt": "mpegts"}

_FORMATS_ALLOWED = (
    "aac,ac3,asf,avi,flv,h264,hevc,hls,ivf,live_flv,m4v,matroska,mjpeg,mov,mp3,mp4,mpeg,mpegts,mpegvideo,mpjpeg,nut,obu,"
    "ogg,rtsp,wav,webm,webvtt"
)

_PROBE_BYTES = 500_000
_ANALYSE_MICROSECONDS = 1_000_000
_NEAR_END_SECONDS = 1.0


def open_network(spec: LiveSpec, settings: Settings, interrupt: Interrupt, stats: SourceStats) -> Decoding:
    """Open the address once; see `open_live` for the errors."""
    _require_host(spec)
    container = _open(spec, settings, interrupt)
    if not container.streams:
        container.close()
        raise NoVideoStream(f"{spec.name}: no video in this stream", remedy="give the address of a stream with video")
    start_seconds = (container.start_time or 0) / av.time_base
    end_seconds = start_seconds + container.duration / av.time_base if container.duration else math.inf
    return Decoding(
        container,
        name=spec.name,
        settings=settings,
        interrupt=interrupt,
        stats=stats,
        problem=partial(_problem, spec),
        ends=lambda last_seconds: last_seconds >= end_seconds - _NEAR_END_SECONDS,
        # Files and playlists arrive as fast as the network allows, long parts at a time.
        paced=bool(container.duration) or container.format.name == "hls",
    )


def _require_host(spec: LiveSpec) -> None:
    """Check that the host's name has an address: FFmpeg does not distinguish this from other failures."""
    try:
        host = urlsplit(spec.target).hostname
    except ValueError as exc:
        raise ConnectionFailed(f"{spec.name}: not an address", remedy="write it as rtsp://host:port/path") from exc
    if not host:
        if spec.scheme in {"udp", "srt"}:
            return
        raise ConnectionFailed(f"{spec.name}: no host is named", remedy=f"write {spec.scheme}://HOST/...")
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as exc:
        raise ConnectionFailed(
            f"{spec.name}: the host {host!r} is not known", remedy="check its name, or give its IP address"
        ) from exc


def _open(spec: LiveSpec, settings: Settings, interrupt: Interrupt) -> InputContainer:
    seconds = settings.live.connect_seconds
    try:
        with interrupt.within(seconds):
            return av.open(
                spec.target,
                "r",
                format=_FORMATS.get(spec.scheme),
                options=_options(spec, settings),
                metadata_errors="replace",
                timeout=(seconds, settings.live.stall_seconds),
            )
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        if interrupt.stopped:
            raise ConnectionFailed(f"{spec.name}: stopped while it was opened") from exc
        if interrupt.late or isinstance(exc, av.error.ExitError):
            raise StreamSilent(
                f"{spec.name}: nothing came within {seconds:g} s",
                remedy="check the address and that the server sends, or raise live.connect_seconds",
            ) from exc
        raise _problem(spec, exc) from exc


def _options(spec: LiveSpec, settings: Settings) -> dict[str, str]:
    """Return FFmpeg's options for short delays and no access to other files."""
    options = {
        "protocol_whitelist": _PROTOCOLS[spec.scheme],
        "format_whitelist": _FORMATS_ALLOWED,
        # Not `nobuffer`: it would discard the data read to learn the format, and with them the first whole picture.
        "probesize": str(_PROBE_BYTES),
        "analyzeduration": str(_ANALYSE_MICROSECONDS),
        "fpsprobesize": "2",
    }
    if spec.scheme in {"rtsp", "rtsps"}:
        options |= {"rtsp_transport": settings.live.rtsp_transport, "allowed_media_types": "video+audio"}
    elif spec.scheme == "udp":
        options |= {"overrun_nonfatal": "1", "buffer_size": str(1 << 22)}
    elif spec.scheme.startswith("rtmp"):
        options |= {"rtmp_live": "live", "rtmp_buffer": "100"}
    return options


def _problem(spec: LiveSpec, error: Exception) -> ArrStreamError:
    """Return the error for an address that cannot be opened or read."""
    name, number = spec.name, getattr(error, "errno", None)
    if isinstance(error, EOFError):
        return ConnectionFailed(f"{name}: the stream has ended", remedy="check that the server still sends")
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
        return NotAMediaFile(f"{name}: it sends no video format that FFmpeg supports", remedy="check the address")
    return ConnectionFailed(
        f"{name}: {_REASONS.get(number or 0) or reason(error)}", remedy="check that the server runs"
    )


_REASONS = {
    errno.ECONNREFUSED: "connection refused, nothing listens there",
    errno.ENETUNREACH: "no way to its network",
    errno.EHOSTUNREACH: "no way to this host",
    errno.EADDRINUSE: "another program receives at this port",
    errno.EIO: "the connection broke off",
}
