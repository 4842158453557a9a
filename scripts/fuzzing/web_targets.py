"""Fuzzing of what comes over the network: requests, socket messages and WebRTC offers; no socket is opened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuzzing import media_seeds
from fuzzing.mutate import TEXT, inserted, json_value, lines
from fuzzing.target import Run, Target

_BODIES: tuple[tuple[str, Any], ...] = (
    ("NewStream", {"source": "camera:0", "name": "door", "query": ["red"], "preset": "x", "settings": {"live.fps": 5}}),
    (
        "StreamChange",
        {"paused": True, "name": "a", "preset": None, "settings": {"selection.budget": "10%", "live.adapt": True}},
    ),
    ("NewQuery", {"texts": ["red car", "'STOP'"], "region": {"xywh": [1, 2, 30, 40.5]}}),
    ("Looks", {"points": [[0.5, 0.25], [0, 1]]}),
    ("NewQuestion", {"question": "What?", "when": "every", "every_seconds": 2.5}),
    ("Offer", {"sdp": "v=0\r\n", "type": "offer", "name": "mine", "query": [], "preset": None}),
    ("ClientMessage", {"ack": 3, "views": ["patches", "source"], "cells": True, "gaze": [0.5, 0.5]}),
)
"""What clients say, by the model that checks it."""


def _messages() -> list[bytes]:
    return [bytes([index]) + json.dumps(body).encode() for index, (_, body) in enumerate(_BODIES)]


def _open_messages(scratch: Path) -> Run:
    from arr_stream.config import Settings
    from arr_stream.live.stream import PointerGaze
    from arr_stream.relevance.query import RegionQuery, parse_text
    from arr_stream.web import streams
    from arr_stream.web.pictures import VideoSocket
    from arr_stream.web.settings import checked_changes

    serving: Any = SimpleNamespace()
    gaze = PointerGaze()
    watching = SimpleNamespace(views=[], cells=False, acknowledge=lambda number: number == 3)

    def socket_says(text: str) -> str:
        # No event loop runs here, and this part of a socket needs none.
        socket: Any = VideoSocket.__new__(VideoSocket)
        socket.serving, socket._runner, socket._watching = serving, gaze, watching
        socket.heard(text)
        return "socket"

    def run(data: bytes) -> str:
        name, text = _BODIES[data[0] % len(_BODIES)][0], data[1:]
        if name == "ClientMessage":
            return socket_says(text.decode("utf-8", "replace"))
        body = getattr(streams, name).model_validate_json(text)
        if name in ("NewStream", "StreamChange"):
            Settings().with_values(checked_changes(body.settings, running=name == "StreamChange"))
        for asked in [*getattr(body, "texts", ()), *getattr(body, "query", ())]:
            parse_text(asked)
        if getattr(body, "region", None) is not None:
            RegionQuery(body.region.xywh).checked((640, 360))
        for x, y in getattr(body, "points", ()):
            gaze.look(x, y)
        gaze.between(0, 1)
        return name

    return run


def _requests() -> list[bytes]:
    def request(line: str, headers: str = "", body: Any = None) -> bytes:
        said = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{line}\nhost: localhost:8080\nauthorization: Bearer secret-token\n{headers}"
        return head.encode() + b"\n" + said

    kind = "content-type: application/json\n"
    return [
        request("GET /api/streams"),
        request("POST /api/streams", kind, _BODIES[0][1]),
        request("PATCH /api/streams/1", kind, _BODIES[1][1]),
        request("PUT /api/streams/1/query", kind, _BODIES[2][1]),
        request("POST /api/streams/1/gaze", kind, _BODIES[3][1]),
        request("POST /api/streams/1/questions", kind, _BODIES[4][1]),
        request("POST /api/browser", kind, _BODIES[5][1]),
        request(
            "PUT /api/streams/1/example", "content-type: image/png\ncontent-length: 9\n", media_seeds.pictures()[0]
        ),
        request("GET /api/streams/1/answers?search=a%20b&format=markdown"),
        request("GET /api/streams/1/records?from=0", "range: bytes=0-9\nif-none-match: *\n"),
        request("GET /?token=secret-token", "cookie: a=b; arr_stream_8080=x\n"),
        request("GET /static/..%2f..%2fpyproject.toml", "origin: http://localhost:8080\nsec-fetch-site: same-origin\n"),
        request("GET /metrics"),
        request("GET /api/info", "accept: */*\n"),
    ]


def _open_requests(scratch: Path) -> Run:
    from arr_stream.config import Settings
    from arr_stream.live.events import EventHub
    from arr_stream.live.runner import RunnerParts
    from arr_stream.live.streams import LiveStreams
    from arr_stream.web.access import AllowedSources, make_access
    from arr_stream.web.observers import Observer
    from arr_stream.web.server import create_app
    from arr_stream.web.serving import Serving

    runner = asyncio.Runner()
    hub = EventHub()
    unexpected: list[Exception] = []
    streams = LiveStreams(Settings(), parts=RunnerParts(hub))
    access = make_access("127.0.0.1", token="secret-token")
    serving = Serving(streams, access, AllowedSources(browser=False), Observer(hub))
    app = create_app(serving, unexpected.append)

    def run(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        first, *rest = head.split(b"\n")
        method, _, target = first.partition(b" ")
        path, _, query = target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "state": {},
            "method": method.decode("latin-1").upper() or "GET",
            "path": path.decode("utf-8", "replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 8080),
            "headers": [tuple(part.strip() for part in line.partition(b":")[::2]) for line in rest],
        }
        scope["headers"] = [(name.lower(), value) for name, value in scope["headers"]]  # type: ignore[misc,union-attr]
        unexpected.clear()
        status, said = runner.run(_exchange(app, scope, body))
        if unexpected:
            raise unexpected[0]
        if status >= 500 and status != 503:
            raise AssertionError(f"status {status}: {said[:300]!r}")
        return f"{status} {said[:60] if status >= 400 else ''}"

    return run


async def _exchange(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, str]:
    """Status and beginning of the body of an answer; an endless one is left after its first part."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status, said, done = 0, b"", asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, said
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            said += message.get("body", b"")[: 500 - len(said)]
            done.set()

    await app(scope, receive, send)
    return status, said.decode("utf-8", "replace")


_HEAD = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0 1\r\na=msid-semantic: WMS *\r\n"
_VIDEO = (
    "m=video 9 UDP/TLS/RTP/SAVPF 96 97 102\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=sendrecv\r\na=rtcp-mux\r\n"
    "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789abcdef01234567\r\na=setup:actpass\r\n"
    f"a=fingerprint:sha-256 {':'.join(['AB'] * 32)}\r\na=extmap:1 urn:ietf:params:rtp-hdrext:sdes:mid\r\n"
    "a=candidate:1 1 udp 1 192.168.0.9 5000 typ host\r\na=rtpmap:96 VP8/90000\r\na=rtcp-fb:96 nack pli\r\n"
    "a=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\na=rtpmap:102 H264/90000\r\n"
    "a=fmtp:102 packetization-mode=1;profile-level-id=42e01f\r\na=ssrc-group:FID 11 12\r\na=ssrc:11 cname:x\r\n"
)
_AUDIO = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=mid:1\r\na=sendrecv\r\na=rtpmap:111 opus/48000/2\r\n"


def _offers() -> list[bytes]:
    return [text.encode() for text in (_HEAD + _VIDEO, _HEAD + _VIDEO + _AUDIO, _HEAD.replace("\r", "") + _VIDEO)]


def _open_offers(scratch: Path) -> Run:
    from aiortc.sdp import SessionDescription

    from arr_stream.web.webrtc import checked_offer, with_rates

    def run(data: bytes) -> str:
        kept = checked_offer(data.decode("utf-8", "surrogateescape"))
        offer = SessionDescription.parse(kept)
        if any(media.ice_candidates for media in offer.media):
            raise AssertionError("a candidate stays in the offer")
        with_rates(kept)
        return f"{min(sum(len(media.rtp.codecs) for media in offer.media), 5)} codecs"

    return run


def _wire() -> list[bytes]:
    import io

    import numpy as np

    from arr_stream.processes import send

    made = []
    for message in ({"frame": np.zeros((4, 6, 3), np.uint8), "index": 3}, ("text", 1.5, None), np.arange(9.0)):
        out = io.BytesIO()
        send(out, message)
        made.append(out.getvalue())
    return made


def _open_wire(scratch: Path) -> Run:
    import io

    from arr_stream.processes import receive

    def run(data: bytes) -> str:
        return type(receive(io.BytesIO(data))).__name__

    return run


def _cut_short(rng: Any, data: bytes) -> bytes:
    """All that can befall these pipes: the other end dies in the middle of a message."""
    return data[: rng.randrange(len(data) + 1)]


_SDP = (
    b"a=",
    b"m=video 9 UDP/TLS/RTP/SAVPF 96\r\n",
    b"m=application 9 x y\r\n",
    b"a=candidate:1 1 udp 1 127.0.0.1 00000 typ host\r\n",
    b"a=rtpmap:999999999999 x/1\r\n",
    b"a=fmtp:96 \r\n",
    b"a=recvonly\r\n",
    b"\x0b",
    b"\x85",
    b"a=ssrc:9 \r\n",
    b"a=simulcast:send 1\r\n",
)
_JSON = (b"null", b"1e999", b"-0", b"true", b'"\\ud800"', b"{}", b"[]", b'"\\u202e"', b'"x":', b"9" * 30)
_HTTP = (
    b"/api/",
    b"/..%2f",
    b"\nhost: evil\n",
    b"%00",
    b"?token=",
    b"\ncontent-length: 99999999999\n",
    b"\ntransfer-encoding: chunked\n",
    b"\xff",
)

TARGETS = (
    Target(
        "messages",
        "bodies of requests, socket messages",
        _messages,
        _open_messages,
        (json_value, json_value, *TEXT, inserted(_JSON)),
        1.0,
        refusals=("ValidationError", "MalformedMessage"),
    ),
    Target(
        "requests",
        "whole requests to the server",
        _requests,
        _open_requests,
        (*TEXT, inserted(_HTTP), inserted(_HTTP)),
        0.6,
    ),
    Target(
        "offers",
        "WebRTC offers (SDP)",
        _offers,
        _open_offers,
        (*TEXT, lines, lines, inserted(_SDP), inserted(_SDP)),
        1.0,
        ("arr_stream", "aiortc"),
    ),
    Target(
        "wire",
        "a keyframe worker that dies in mid-message",
        _wire,
        _open_wire,
        (_cut_short,),
        0.3,
        refusals=("EOFError",),
        spliced=False,
    ),
)
