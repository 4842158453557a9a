"""Who may speak to the server and what may be opened: the rules alone, without any server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, InvalidSetting
from arr_stream.web.access import Access, AllowedSources, Refused, is_loopback, make_access
from arr_stream.web.routes import StreamChange
from arr_stream.web.settings import CHANGEABLE, checked_changes, describe


@pytest.mark.parametrize(
    ("hosts", "known"),
    [
        (["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.0.0.2", "[::1]:9", "localhost.:80"], True),
        (["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "a b", "localhost:http"], False),
        (["[::1", "x@localhost", "[::2]"], False),
    ],
)
def test_names_of_a_loopback_server(hosts: list[str], known: bool) -> None:
    assert {host: Access().allows_host(host) for host in hosts} == dict.fromkeys(hosts, known)


def test_a_public_server_is_reached_by_any_address_but_not_by_any_name() -> None:
    access = make_access("0.0.0.0", token=None, names=("cams.example",))
    assert access.token is not None
    assert len(access.token) >= 30
    assert access.allows_host("192.168.1.9:8080")
    assert access.allows_host("cams.example")
    assert not access.allows_host("evil.example")
    assert access.token not in repr(access)
    assert make_access("0.0.0.0", token=None).token != access.token


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_loopback_asks_for_no_token(host: str) -> None:
    assert is_loopback(host)
    assert make_access(host, token=None).token is None
    assert make_access(host, token=None, names=("localhost", "127.0.0.2")).token is None
    # Who uses a further name comes through a proxy, and may be anybody.
    assert make_access(host, token=None, names=("cams.example",)).token is not None


@pytest.mark.parametrize("token", ["", "short", "has a blank", "ünïcödetoken"])
def test_bad_tokens_are_refused_without_being_told(token: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        make_access("127.0.0.1", token=token)
    assert not token or token not in str(caught.value)


OTHER_ORIGINS = """
http://localhost:9090  http://127.0.0.1:8080  http://localhost.evil.example:8080  http://localhost:8080/x
http://localhost:8080@evil.example  null  file://  http://[  http://localhost  https://localhost
"""


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("HTTP://LOCALHOST:8080", "localhost:8080", True),
        ("http://localhost", "localhost", True),
        ("https://cams.example", "cams.example", True),
        *((origin, "localhost:8080", False) for origin in OTHER_ORIGINS.split()),
    ],
)
def test_origins(origin: str, host: str, allowed: bool) -> None:
    assert Access().allows_origin(origin, host) is allowed


def test_tokens_and_cookies_are_not_each_other() -> None:
    access = Access(token="right-token")
    assert access.knows_token("right-token")
    assert access.knows_cookie(access.cookie_value)
    for wrong in (None, "", "right-toke", "right-token ", access.cookie_value, "ünïcöde"):
        assert not access.knows_token(wrong)
    assert not access.knows_cookie("right-token")
    assert "right-token" not in access.cookie_value
    assert Access(port=1).cookie_name != Access(port=2).cookie_name


ADDRESSES = AllowedSources(
    patterns=("rtsp://10.0.0.*", "http://cams.example:8000", "rtsps://*.cams.example", "lavfi:testsrc2*")
)
WITHIN = """
rtsp://10.0.0.7/stream  rtsp://10.0.0.7:8554/a?b=c  rtsp://user:p%40ss@10.0.0.7/stream  rtsps://door.cams.example/1
http://cams.example:8000/live/one.m3u8  lavfi:testsrc2=size=64x64
"""
OUTSIDE = """
rtsp://10.0.0.1@evil.example  rtsp://10.0.0.1:554@evil.example/x  rtsp://evil.example/rtsp://10.0.0.1
rtsp://evil.example#@10.0.0.1  rtsp://evil.example\\@10.0.0.1  rtsp://a@b@10.0.0.1  rtsp://10.0.0.1.evil.example/x
rtsp://10.0.0.com/x  rtsp://10.0.1.1/x  RTSP://10.0.0.1/x  http://10.0.0.1/x  http://cams.example/live/one.m3u8
http://cams.example:80/one.m3u8  rtsps://door.cams.example.evil/1  rtsp://10.0.0.1:x/1  rtsp://cams.example/1  rtsp://a.b.cams.example/1
lavfi:movie=/etc/passwd  concat:a|b  file:///etc/passwd  /dev/video0  0
"""


@pytest.mark.parametrize("source", WITHIN.split())
def test_patterns_allow_what_they_mean(source: str) -> None:
    assert ADDRESSES.resolve(source) == source


@pytest.mark.parametrize("source", [*OUTSIDE.split(), "rtsp://10.0.0.1 /x", "rtsp://10.0.0.1/x\ny", ""])
def test_patterns_allow_nothing_else(source: str) -> None:
    with pytest.raises(Refused):
        ADDRESSES.resolve(source)


@pytest.mark.parametrize("pattern", ["http://cam/public", "http://user:x@cam", "cam", "rtsp*://cam", "http://cam:*"])
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidSetting, match="--allow"):
        AllowedSources(patterns=(pattern,))


def test_named_sources_are_known_by_their_public_names() -> None:
    allowed = AllowedSources(("rtsp://user:secret@cam/1", "rtsp://user:secret@cam/1", "lavfi:x"))
    public = allowed.public_names
    assert len(public) == 2
    assert "secret" not in str(public)
    assert allowed.resolve(public[0]) == "rtsp://user:secret@cam/1"
    with pytest.raises(Refused) as caught:
        allowed.resolve("rtsp://other:hidden@cam/1")
    assert "hidden" not in str(caught.value)


def test_cameras_are_open_only_where_allowed_and_are_no_other_devices() -> None:
    cameras = ["0", "camera:0", "camera:Logi Cam", "/dev/video1", "/dev/v4l/by-id/usb-cam.1-index0"]
    assert [AllowedSources(cameras=True).resolve(source) for source in cameras] == cameras
    others = ["/dev/sda", "camera:/dev/sda", "/dev/v4l/../sda", "camera:/dev/v4l/by-id/../../sda", "/dev/video0/../sda"]
    for allowed, source in [(False, camera) for camera in cameras] + [(True, other) for other in others]:
        with pytest.raises(Refused):
            AllowedSources(cameras=allowed).resolve(source)


def test_files_lie_below_the_folders(tmp_path: Path) -> None:
    inside, outside = tmp_path / "videos", tmp_path / "private"
    (inside / "more").mkdir(parents=True)
    outside.mkdir()
    for path in (inside / "a.mp4", inside / "more" / "b.mp4", outside / "c.mp4", inside / "0"):
        path.write_bytes(b"x")
    (inside / "link.mp4").symlink_to(outside / "c.mp4")
    (inside / "out").symlink_to(outside)
    allowed = AllowedSources(folders=(inside,))
    assert allowed.resolve("a.mp4") == str(inside / "a.mp4")
    assert allowed.resolve(str(inside / "more" / "b.mp4")) == str(inside / "more" / "b.mp4")
    assert allowed.resolve("loop:more/b.mp4") == f"loop:{inside / 'more' / 'b.mp4'}"
    assert allowed.resolve("0") == str(inside / "0")
    refused = "link.mp4 out/c.mp4 ../private/c.mp4 more/../../private/c.mp4 more . missing.mp4"
    for source in [
        *refused.split(),
        "loop:",
        "loop:loop:a.mp4",
        "file:a.mp4",
        str(outside / "c.mp4"),
        f"file://{inside}/a.mp4",
        "a.mp4\0",
    ]:
        with pytest.raises(Refused):
            allowed.resolve(source)


def test_settings_are_described_and_can_all_be_changed() -> None:
    described = describe(Settings())
    assert list(described) == list(CHANGEABLE)
    assert described["keyframes.interval"]["kind"] == "whole"
    assert described["keyframes.interval"]["low"] == 1
    assert described["keyframes.cluster_count"]["high"] == 4096
    assert described["live.adapt"]["kind"] == "switch"
    assert described["selection.strategy"]["choices"][0] == "topk"
    assert described["selection.budget"]["kind"] == "text"
    share = described["relevance.trust"]
    assert (share["kind"], share["low"], share["high"]) == ("number", 0.0, 1.0)
    started = describe(Settings().with_values({"keyframes.interval": 10}))["keyframes.interval"]
    assert (started["default"], started["start"]) == (30, 10)
    defaults = {key: each["default"] for key, each in described.items()}
    assert Settings().with_values(checked_changes(defaults)) == Settings()


def test_what_names_files_or_costs_memory_is_not_changed() -> None:
    keys = "vlm.endpoint vlm.key_variable models.folder sam.checkpoint live.buffer_frames grid.max_pixels x"
    for key in keys.split():
        with pytest.raises(ArrStreamError):
            checked_changes({key: 1})


@pytest.mark.parametrize("letter", ["\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\u2066"])
def test_names_hold_nothing_that_steers_a_terminal(letter: str) -> None:
    with pytest.raises(ValidationError, match="control characters"):
        StreamChange(name=f"a{letter}b")
    assert StreamChange(name="Tür 門 \U0001f44d\u200d").name == "Tür 門 \U0001f44d\u200d"
