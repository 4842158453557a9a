"""Files that name other files or addresses: neither is touched."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from arr_stream.errors import NotAMediaFile, SourceError
from arr_stream.sources import open_source
from arr_stream.types import ByteArray
from tests.media import write_video

GREEN = (20, 220, 20)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Takes connections; that there is one is all it needs to know."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A video that is green all over, in MPEG-TS, which can be joined at any place."""
    return write_video(tmp_path / "canary.ts", [_plain(GREEN)] * 6)


def _plain(colour: tuple[int, int, int]) -> ByteArray:
    return np.full((64, 96, 3), colour, np.uint8)


def nobody_called(server: socket.socket) -> bool:
    """Whether there has been no connection: on the loopback, one is there as soon as the caller knows of it."""
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return True
    return False


PLAYLISTS = {
    "list.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n",
    "key.m3u8": '#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{target}"\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n',
    "map.m3u8": '#EXTM3U\n#EXT-X-MAP:URI="{target}"\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n',
    "disguised.mp4": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n",
    "concat.mp4": "ffconcat version 1.0\nfile '{target}'\n",
    "list.ffconcat": "ffconcat version 1.0\nfile '{target}'\n",
    "list.mpd": (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"'
        ' mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:full:2011"><Period><AdaptationSet'
        ' mimeType="video/mp2t"><Representation id="0" bandwidth="1000"><BaseURL>{target}</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>"
    ),
    "list.sdp": (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\na=control:{target}\r\n"
        "m=video {port} RTP/AVP 33\r\n"
    ),
    "list.rtsp": "rtsptext\nrtsp://127.0.0.1:{port}/a\n",
    "list.asx": '<asx version="3.0"><entry><ref href="{target}"/></entry></asx>',
}


@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("target", ["file", "path", "http", "tcp"])
def test_playlists_are_refused(tmp_path: Path, server: socket.socket, canary: Path, name: str, target: str) -> None:
    port = server.getsockname()[1]
    targets = {
        "file": canary.as_uri(),
        "path": canary.name,
        "http": f"http://127.0.0.1:{port}/canary.ts",
        "tcp": f"tcp://127.0.0.1:{port}",
    }
    path = tmp_path / name
    path.write_text(PLAYLISTS[name].format(target=targets[target], port=port))
    with pytest.raises(NotAMediaFile):
        open_source(path)
    assert nobody_called(server)


def test_the_server_would_notice(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname()):
        assert not nobody_called(server)


def _boxes(content: bytes) -> list[tuple[bytes, bytes]]:
    """Names and contents of the boxes of a QuickTime file or of a box in it."""
    found, at = [], 0
    while at < len(content):
        size, name = struct.unpack_from(">I4s", content, at)
        found.append((name, content[at + 8 : at + size]))
        at += size
    return found


def _referring(content: bytes, entry: bytes) -> bytes:
    """The same file, with `entry` in place of the reference that says: the pictures are in this file."""
    made = b""
    for name, old in _boxes(content):
        inside = old
        if name in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
            inside = _referring(old, entry)
        elif name == b"dref":
            inside = old[:4] + struct.pack(">I", 1) + entry
        made += struct.pack(">I4s", 8 + len(inside), name) + inside
    return made


def _url(address: str) -> bytes:
    text = address.encode() + b"\0"
    return struct.pack(">I4sI", 12 + len(text), b"url ", 0) + text


def _alias(path: Path) -> bytes:
    """A Macintosh alias with an absolute path, as FFmpeg reads it where it is allowed to."""
    name = path.name.encode()
    text = str(path).encode()
    text += b"\0" * (len(text) % 2)
    inside = bytes(10) + b"\x01/" + bytes(26) + bytes(12) + bytes([len(name)]) + name.ljust(63, b"\0") + bytes(16)
    inside += struct.pack(">HH", 1, 1) + bytes(16) + struct.pack(">HH", 2, len(text)) + text
    inside += struct.pack(">HH", 0xFFFF, 0) + bytes(64)
    return struct.pack(">I4sI", 12 + len(inside), b"alis", 0) + inside


@pytest.mark.parametrize("kind", ["url-http", "url-file", "alias"])
def test_external_data_of_quicktime_is_not_read(tmp_path: Path, server: socket.socket, kind: str) -> None:
    # Both files have the same layout, so that following the reference would show green.
    target = write_video(tmp_path / "target.mov", [_plain(GREEN)] * 6)
    own = write_video(tmp_path / "own.mov", [_plain((200, 20, 20))] * 6)
    entry = {
        "url-http": _url(f"http://127.0.0.1:{server.getsockname()[1]}/target.mov"),
        "url-file": _url(target.as_uri()),
        "alias": _alias(target),
    }[kind]
    path = tmp_path / "referring.mov"
    path.write_bytes(_referring(own.read_bytes(), entry))
    assert len(path.read_bytes()) > own.stat().st_size
    if kind == "alias":
        with av.open(str(path), options={"enable_drefs": "1", "use_absolute_path": "1"}) as container:
            followed = next(container.decode(video=0)).to_ndarray(format="rgb24")
        assert followed[..., 1].mean() > followed[..., 0].mean(), "the reference must be one that can be followed"
    try:
        with open_source(path) as source:
            seen = [frame.rgb.reshape(-1, 3).mean(axis=0) for frame in source.frames()]
    except SourceError:
        seen = []
    assert all(colour[0] > colour[1] for colour in seen)
    assert nobody_called(server)
