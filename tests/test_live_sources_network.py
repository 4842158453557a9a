"""Network streams against real servers on loopback: reading, breaks, stalls, changes, and all that can be wrong."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Self

import pytest

from arr_stream.config import Settings
from arr_stream.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    NotAMediaFile,
    NoVideoStream,
    SourceError,
    SourceTooLarge,
    StreamNotFound,
    StreamSilent,
)
from arr_stream.sources.base import Source
from arr_stream.sources.live import SourceState, open_live
from tests.live_servers import (
    PATIENCE_SECONDS,
    Server,
    byte_server,
    ffmpeg_command,
    free_port,
    hang,
    http_body,
    need_ffmpeg,
    rtsp_command,
    rtsp_launch,
    rtsp_server,
    running,
    wait_for,
    web_folder,
)
from tests.media import moving_frames, write_audio, write_video

PATIENT = Settings().with_values({"live.connect_seconds": PATIENCE_SECONDS, "live.stall_seconds": PATIENCE_SECONDS})
QUICK = Settings().with_values({"live.connect_seconds": 5.0, "live.stall_seconds": 1.5})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.sources.live.source.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("arr_stream.sources.live.source.LONGEST_RETRY_SECONDS", 0.2)


class Reading:
    """Reads a source in a thread and keeps what it told; the pictures themselves are let go."""

    def __init__(self, source: Source) -> None:
        self.source, self.error = source, None
        self.times: list[tuple[int, float, float]] = []
        self.sizes: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for frame in self.source.frames():
                self.times.append((frame.index, frame.pts_seconds, frame.captured_seconds or 0.0))
                self.sizes.append(frame.size_wh)
        except SourceError as exc:
            self.error = exc

    @property
    def count(self) -> int:
        return len(self.times)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        begun = time.monotonic()
        self.source.close()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        assert time.monotonic() - begun < 5

    def check_order(self) -> None:
        assert [index for index, _, _ in self.times] == list(range(self.count))
        for place in (1, 2):
            values = [entry[place] for entry in self.times]
            assert values == sorted(values)


@pytest.fixture(scope="module")
def rtsp() -> Iterator[str]:
    with rtsp_server(sound=rtsp_launch(video=False)) as (_, port):
        yield f"rtsp://127.0.0.1:{port}"


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_rtsp(rtsp: str, transport: str) -> None:
    states: list[SourceState] = []
    settings = PATIENT.with_values({"live.rtsp_transport": transport})
    with open_live(f"{rtsp}/live", settings, on_state=states.append) as source:
        info = source.info
        frames = list(islice(source.frames(), 20))
    assert (info.size_wh, info.codec, info.kind, info.live) == ((160, 120), "h264", "network", True)
    assert info.average_fps == pytest.approx(30)
    steps = [after.pts_seconds - before.pts_seconds for before, after in pairwise(frames[5:])]
    assert sum(steps) / len(steps) == pytest.approx(1 / 30, rel=0.2)
    assert [state.state for state in states[:2]] == ["connecting", "live"]


@pytest.mark.parametrize(("path", "kind"), [("sound", NoVideoStream), ("none", StreamNotFound)])
def test_rtsp_without_what_is_wanted(rtsp: str, path: str, kind: type[SourceError]) -> None:
    with pytest.raises(kind):
        open_live(f"{rtsp}/{path}", PATIENT)


def test_passwords() -> None:
    with rtsp_server(user="me", password="geheim") as (_, port):
        with open_live(f"rtsp://me:geheim@127.0.0.1:{port}/live", PATIENT) as source:
            assert "geheim" not in repr(source.info)
            assert len(list(islice(source.frames(), 2))) == 2
        for user in ("me:falsch@", ""):
            states: list[SourceState] = []
            with pytest.raises(AuthenticationFailed) as caught:
                open_live(f"rtsp://{user}127.0.0.1:{port}/live", PATIENT, on_state=states.append)
            assert "falsch" not in f"{caught.value}{states}" and states[-1].state == "failed"


def test_a_server_killed_and_started_again_with_another_size() -> None:
    states: list[SourceState] = []
    with rtsp_server() as (server, port):
        settings = QUICK.with_values({"live.stall_seconds": PATIENCE_SECONDS})
        with Reading(open_live(f"rtsp://me:geheim@127.0.0.1:{port}/live", settings, on_state=states.append)) as reading:
            wait_for(lambda: reading.count > 5, "frames")
            server.kill()
            wait_for(lambda: any(state.attempt > 2 for state in states), "attempts")
            assert states[-1].state == "reconnecting"
            server.start(rtsp_command(port, live=rtsp_launch((320, 240))))
            wait_for(lambda: (320, 240) in reading.sizes, "frames of the new server")
    reading.check_order()
    assert reading.error is None and reading.source.stats.reconnects >= 1
    assert "geheim" not in repr(states)
    waits = [state.next_retry_seconds for state in states if state.next_retry_seconds]
    assert waits and max(waits) <= 0.2
    _, pts, captured = reading.times[-1]
    assert pts == pytest.approx(captured - reading.times[0][2], abs=2.0)


def test_a_password_that_is_changed_meanwhile_ends_the_frames() -> None:
    with rtsp_server(user="me", password="alt") as (server, port):
        settings = QUICK.with_values({"live.stall_seconds": PATIENCE_SECONDS})
        with Reading(open_live(f"rtsp://me:alt@127.0.0.1:{port}/live", settings)) as reading:
            wait_for(lambda: reading.count > 2, "frames")
            server.kill()
            server.start(rtsp_command(port, user="me", password="neu", live=rtsp_launch()))
            wait_for(lambda: reading.error, "the end")
    assert isinstance(reading.error, AuthenticationFailed)


def test_udp_with_a_sender_that_starts_again_with_another_size() -> None:
    need_ffmpeg()
    port = free_port()
    target = f"udp://127.0.0.1:{port}?pkt_size=1316"
    with running(ffmpeg_command(target)) as server, Reading(open_live(f"udp://127.0.0.1:{port}", QUICK)) as reading:
        wait_for(lambda: reading.count > 10, "frames")
        server.kill()
        server.start(ffmpeg_command(target, size="320x240"))
        wait_for(lambda: reading.sizes[-5:] == [(320, 240)] * 5, "frames of the new size")
    reading.check_order()
    _, pts, captured = reading.times[-1]
    assert pts == pytest.approx(captured - reading.times[0][2], abs=2.0)


def test_hls(tmp_path: Path) -> None:
    write_video(
        tmp_path / "live.m3u8", moving_frames(60), options={"g": "15", "preset": "ultrafast"}, container_format="hls",
        container_options={"hls_time": "0.5", "hls_list_size": "0"},
    )  # fmt: skip
    with web_folder(tmp_path) as port, open_live(f"http://127.0.0.1:{port}/live.m3u8", PATIENT) as source:
        frames = list(islice(source.frames(), 30))
    captured = [frame.captured_seconds or 0.0 for frame in frames]
    assert captured[-1] - captured[0] >= 0.8 and frames[-1].pts_seconds == pytest.approx(29 / 30, abs=0.1)


def test_a_playlist_does_not_reach_files_of_this_machine(tmp_path: Path) -> None:
    path = write_video(tmp_path / "private.ts", moving_frames(30))
    served = tmp_path / "served"
    served.mkdir()
    head = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.0,\n"
    (served / "a.m3u8").write_text(f"{head}file://{path}\n#EXT-X-ENDLIST\n")
    (served / "b.m3u8").write_text(f"{head}{path}\n#EXT-X-ENDLIST\n")
    with web_folder(served) as port:
        for name in ("a", "b"):
            with pytest.raises(SourceError):
                open_live(f"http://127.0.0.1:{port}/{name}.m3u8", QUICK)


def test_what_http_servers_may_have_instead(tmp_path: Path) -> None:
    write_audio(tmp_path / "sound.mp4")
    (tmp_path / "page.html").write_text("<html><body>hello</body></html>" * 200)
    write_video(tmp_path / "big.mp4", moving_frames(3, (320, 240)))
    small = QUICK.with_values({"source.max_pixels": 96 * 64})
    with web_folder(tmp_path) as port:
        expected = {"none.ts": StreamNotFound, "sound.mp4": NoVideoStream, "page.html": NotAMediaFile}
        for name, kind in (expected | {"big.mp4": SourceTooLarge}).items():
            with pytest.raises(kind):
                open_live(f"http://127.0.0.1:{port}/{name}", small)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_http_passwords(status: str) -> None:
    def serve(connection: socket.socket) -> None:
        http_body(connection, [], status=status)

    with byte_server(serve) as server, pytest.raises(AuthenticationFailed) as caught:
        open_live(f"http://me:geheim@127.0.0.1:{server.port}/a?token=heimlich", QUICK)
    assert not re.search("geheim|heimlich", str(caught.value))


@pytest.mark.parametrize("scheme", ["rtsp", "http", "rtmp"])
def test_a_server_that_says_nothing_and_none_at_all(scheme: str) -> None:
    with byte_server(hang) as server, pytest.raises(StreamSilent, match=r"nothing came within 0\.5 s") as caught:
        open_live(f"{scheme}://me:geheim@127.0.0.1:{server.port}/a", QUICK.with_values({"live.connect_seconds": 0.5}))
    assert "geheim" not in str(caught.value)
    with pytest.raises(ConnectionFailed, match="refused"):
        open_live(f"{scheme}://127.0.0.1:{free_port()}/a", QUICK)
    with pytest.raises(ConnectionFailed, match="not known"):
        open_live(f"{scheme}://me:geheim@nowhere.invalid/a", QUICK)


@pytest.fixture(scope="module")
def transport_stream(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ts") / "a.ts"
    options = {"g": "10", "bf": "0", "preset": "ultrafast", "crf": "10"}
    return write_video(path, moving_frames(60, (160, 120)), options=options).read_bytes()


def test_half_a_frame_is_left_out_and_the_rest_goes_on(transport_stream: bytes) -> None:
    packets = [transport_stream[at : at + 188] for at in range(0, len(transport_stream), 188)]
    third = len(packets) // 3
    damaged = packets[:third] + packets[third + max(3, len(packets) // 40) :]
    chunks = [b"".join(damaged[at : at + 40]) for at in range(0, len(damaged), 40)]

    with (
        byte_server(lambda connection: _then_hang(connection, chunks, 0.005)) as server,
        Reading(open_live(f"http://127.0.0.1:{server.port}/a.ts", PATIENT)) as reading,
    ):
        wait_for(lambda: reading.count >= 35, "the frames after the damage")
    assert reading.source.stats.concealed_frames >= 1 and reading.source.stats.reconnects == 0
    assert reading.count < 60


def test_a_size_that_grows_beyond_the_limit_ends_the_frames(transport_stream: bytes, tmp_path: Path) -> None:
    options = {"g": "10", "bf": "0", "preset": "ultrafast"}
    larger = write_video(tmp_path / "b.ts", moving_frames(20, (640, 480)), options=options).read_bytes()
    whole = transport_stream + larger
    chunks = [whole[at : at + 8000] for at in range(0, len(whole), 8000)]

    with byte_server(lambda connection: _then_hang(connection, chunks, 0.01)) as server:
        limited = PATIENT.with_values({"source.max_pixels": 200 * 200})
        with Reading(open_live(f"http://127.0.0.1:{server.port}/a.ts", limited)) as reading:
            wait_for(lambda: reading.error is not None, "the end of the frames")
    assert isinstance(reading.error, SourceTooLarge)
    assert "640x480" in str(reading.error)
    assert set(reading.sizes) == {(160, 120)}


def _then_hang(connection: socket.socket, chunks: list[bytes], pause_seconds: float) -> None:
    http_body(connection, chunks, pause_seconds=pause_seconds)
    hang(connection)


def _while_frozen(server: Server, reading: Reading, states: list[SourceState]) -> None:
    server.freeze()
    time.sleep(0.2)


def _while_retrying(server: Server, reading: Reading, states: list[SourceState]) -> None:
    server.kill()
    wait_for(lambda: any(state.next_retry_seconds for state in states), "a pause")


@pytest.mark.parametrize("phase", [_while_frozen, _while_retrying])
def test_close_ends_every_wait(
    phase: Callable[[Server, Reading, list[SourceState]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[SourceState] = []
    monkeypatch.setattr("arr_stream.sources.live.source.RETRY_SECONDS", 20.0)
    monkeypatch.setattr("arr_stream.sources.live.source.LONGEST_RETRY_SECONDS", 20.0)
    with (
        rtsp_server() as (server, port),
        Reading(open_live(f"rtsp://127.0.0.1:{port}/live", PATIENT, on_state=states.append)) as reading,
    ):
        wait_for(lambda: reading.count > 3, "frames")
        phase(server, reading, states)
    assert reading.error is None and states[-1].state == "ended"
