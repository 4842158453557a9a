"""What every live source promises, over those that need nothing but this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import SourceTooLarge
from arr_stream.sources.live import SourceState, open_live
from tests.live_servers import PATIENCE_SECONDS, byte_server, hang, http_body, web_folder
from tests.media import moving_frames, write_video

SETTINGS = Settings().with_values({"live.connect_seconds": PATIENCE_SECONDS, "live.stall_seconds": PATIENCE_SECONDS})
COUNT = 20


def _clip(folder: Path) -> Path:
    return write_video(folder / "a.mp4", moving_frames(COUNT), fps=50, container_options={"movflags": "faststart"})


@contextmanager
def _transport_stream(folder: Path) -> Iterator[str]:
    path = write_video(folder / "a.ts", moving_frames(COUNT + 5), fps=50, options={"g": "10", "bf": "0"})
    data = path.read_bytes()

    def serve(connection: socket.socket) -> None:
        http_body(connection, [data[at : at + 1880] for at in range(0, len(data), 1880)], pause_seconds=0.005)
        hang(connection)

    with byte_server(serve) as server:
        yield f"http://127.0.0.1:{server.port}/live.ts"


@contextmanager
def _over_http(folder: Path) -> Iterator[str]:
    path = _clip(folder)
    with web_folder(folder) as port:
        yield f"http://127.0.0.1:{port}/{path.name}"


MAKERS: dict[str, tuple[Callable[[Path], AbstractContextManager[str]], str]] = {
    "lavfi": (lambda folder: nullcontext("lavfi:testsrc2=size=96x64:rate=50"), "test"),
    "loop": (lambda folder: nullcontext(f"loop:{_clip(folder)}"), "loop"),
    "file": (lambda folder: nullcontext(str(_clip(folder))), "file"),
    "http-ts": (_transport_stream, "network"),
    "http-mp4": (_over_http, "network"),
}


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    make, kind = MAKERS[request.param]
    with make(tmp_path_factory.mktemp(request.param)) as spec:
        yield spec, kind


def test_frames_have_their_places_and_times(made: tuple[str, str]) -> None:
    spec, kind = made
    begun = time.monotonic()
    states: list[SourceState] = []
    with open_live(spec, SETTINGS, on_state=states.append) as source:
        assert (source.info.name, source.info.kind, source.info.live) == (spec, kind, True)
        assert source.info.size_wh == (96, 64) and source.info.duration_seconds is None
        frames = []
        for frame in source.frames():
            frames.append(frame)
            if len(frames) == COUNT - 2:
                break
    assert [frame.index for frame in frames] == list(range(COUNT - 2))
    pts = [frame.pts_seconds for frame in frames]
    np.testing.assert_allclose(pts, np.arange(COUNT - 2) / 50, atol=2e-3)
    captured = [frame.captured_seconds or 0.0 for frame in frames]
    assert captured == sorted(captured) and begun <= captured[0] and captured[-1] <= time.monotonic()
    for frame in frames:
        assert frame.rgb.dtype == np.uint8 and frame.rgb.flags.c_contiguous and frame.size_wh == (96, 64)
    assert [state.state for state in states][:2] == ["connecting", "live"]
    assert source.stats.frames == COUNT - 2


def test_one_pass(made: tuple[str, str]) -> None:
    with open_live(made[0], SETTINGS) as source:
        next(source.frames())
        with pytest.raises(RuntimeError, match="taken already"):
            source.frames()


def test_too_many_pixels_are_refused(made: tuple[str, str]) -> None:
    with pytest.raises(SourceTooLarge):
        open_live(made[0], SETTINGS.with_values({"source.max_pixels": 96 * 64 - 1}))
    open_live(made[0], SETTINGS.with_values({"source.max_pixels": 96 * 64})).close()


def test_close_from_another_thread_ends_the_frames(made: tuple[str, str]) -> None:
    source = open_live(made[0], SETTINGS)
    frames = source.frames()
    next(frames)
    thread = threading.Thread(target=lambda: list(frames))
    thread.start()
    begun = time.monotonic()
    source.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive() and time.monotonic() - begun < 5
    source.close()
