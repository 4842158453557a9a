"""Browsers' cameras over real connections: aiortc as the sender, and Chromium with its fake camera."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, BudgetError, ConnectionFailed, NoVideoStream, SourceTooLarge
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import ByteArray, Frame

aiortc = pytest.importorskip("aiortc", reason="needs aiortc: pip install 'arr-stream[web]'")
av = pytest.importorskip("av")

from arr_stream.web.webrtc import BrowserCameras, TooManyPeers  # noqa: E402
from arr_stream.web.webrtc_packets import PictureAssembler  # noqa: E402
from arr_stream.web.webrtc_peer import divert, offer_loopback  # noqa: E402
from arr_stream.web.webrtc_sdp import OfferRefused  # noqa: E402

LONG_SECONDS = 30.0
BITS = 12
SIZE_WH = (384, 128)


def painted(number: int, size_wh: tuple[int, int] = SIZE_WH) -> ByteArray:
    """A picture with a number as white and black blocks."""
    width, height = size_wh
    rgb = np.full((height, width, 3), 90, np.uint8)
    side = width // BITS
    for bit in range(BITS):
        rgb[: height // 2, bit * side : (bit + 1) * side] = 255 if number >> bit & 1 else 0
    return rgb


def number_in(rgb: ByteArray) -> int:
    side = rgb.shape[1] // BITS
    row = rgb[rgb.shape[0] // 4]
    return sum((row[bit * side + side // 2].mean() > 128) << bit for bit in range(BITS))


class Counter(aiortc.VideoStreamTrack):  # type: ignore[misc,name-defined]
    """Sends pictures with a number that grows, 30 a second, as long as it may."""

    def __init__(self, most: int = 1 << BITS, size_wh: Callable[[int], tuple[int, int]] = lambda n: SIZE_WH) -> None:
        super().__init__()
        self.sent = 0
        self._most = most
        self._size_wh = size_wh
        self.may_go_on = asyncio.Event()

    async def recv(self) -> Any:
        if self.sent >= self._most:
            await self.may_go_on.wait()
        pts, time_base = await self.next_timestamp()
        frame = av.VideoFrame.from_ndarray(painted(self.sent, self._size_wh(self.sent)), format="rgb24")
        frame.pts, frame.time_base = pts, time_base
        self.sent += 1
        return frame


class Reader:
    """Takes a source's frames in a thread, as a stream does, with some work on each."""

    def __init__(self, source: BrowserSource, work_seconds: float = 0.0, on_frame: Callable[[], None] | None = None):
        self.source, self.frames, self.error = source, list[Frame](), None
        self._work_seconds, self._on_frame = work_seconds, on_frame
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for frame in self.source.frames():
                self.frames.append(frame)
                if self._on_frame is not None:
                    self._on_frame()
                time.sleep(self._work_seconds)
        except Exception as exc:
            self.error = exc

    @property
    def numbers(self) -> list[int]:
        return [number_in(frame.rgb) for frame in list(self.frames)]


async def until(condition: Callable[[], bool], seconds: float = LONG_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def cameras(**options: Any) -> AsyncIterator[BrowserCameras]:
    made = BrowserCameras(loopback=True, **options)
    try:
        yield made
    finally:
        began = time.monotonic()
        await made.close()
        assert time.monotonic() - began < 10 and len(made) == 0


@contextlib.asynccontextmanager
async def sender(*tracks: Any, codec: str = "VP8", data: bool = False) -> AsyncIterator[Any]:
    connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
    for track in tracks:
        connection.addTrack(track)
    for transceiver in connection.getTransceivers():
        offer_loopback(transceiver.receiver)
        if transceiver.kind == "video":
            able = aiortc.RTCRtpReceiver.getCapabilities("video").codecs
            transceiver.setCodecPreferences([one for one in able if one.mimeType in (f"video/{codec}", "video/rtx")])
    if data:
        connection.createDataChannel("chat")
    await connection.setLocalDescription(await connection.createOffer())
    try:
        yield connection
    finally:
        await connection.close()


async def connect(
    made: BrowserCameras,
    connection: Any,
    on_source: Callable[[BrowserSource], object] = lambda source: None,
    **values: object,
) -> BrowserSource:
    sources: list[BrowserSource] = []

    def keep(source: BrowserSource) -> object:
        sources.append(source)
        return on_source(source)

    settings = Settings().with_values(values)
    sdp = await made.answer(connection.localDescription.sdp, "offer", keep, settings=settings, name="a camera")
    await connection.setRemoteDescription(aiortc.RTCSessionDescription(sdp, "answer"))
    return sources[0]


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine, and see that no thread stays behind."""
    before = set(threading.enumerate())
    asyncio.run(asyncio.wait_for(test(), 90))
    deadline = time.monotonic() + LONG_SECONDS
    while (left := [t.name for t in set(threading.enumerate()) - before if t.is_alive()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    assert left == []


@pytest.mark.parametrize("codec", ["VP8", "H264"])
def test_pictures_arrive_whole_and_in_order(codec: str) -> None:
    async def test() -> None:
        track = Counter()
        async with cameras() as made, sender(track, codec=codec) as connection:
            source = await connect(made, connection, **{"live.policy": "every"})
            reader = Reader(source)
            await until(lambda: len(reader.frames) >= 40)
            assert source.info.codec == codec.lower() and source.info.size_wh == SIZE_WH
            await made.close()
            await until(lambda: not reader.thread.is_alive())
            assert reader.error is None
            numbers = reader.numbers
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            times = [frame.pts_seconds for frame in reader.frames]
            assert times == sorted(times) and times[-1] == pytest.approx((len(times) - 1) / 30, abs=0.5)

    run(test)


@pytest.mark.parametrize("codec", ["VP8", "H264"])
def test_a_picture_is_there_before_the_next_one_is_sent(codec: str) -> None:
    """With aiortc's own jitter buffer the last picture sent would never come."""

    async def test() -> None:
        track = Counter(most=1)
        async with cameras() as made, sender(track, codec=codec) as connection:
            source = await connect(made, connection, **{"live.stall_seconds": 100})
            await asyncio.to_thread(source.wait_first, LONG_SECONDS)
            frame = await asyncio.to_thread(next, source.frames())
            assert track.sent == 1 and number_in(frame.rgb) == 0
            assert 0 <= time.monotonic() - frame.captured_seconds < LONG_SECONDS
            track.may_go_on.set()

    run(test)


@pytest.mark.parametrize("codec", ["VP8", "H264"])
def test_lost_packets_are_sent_again_or_a_key_picture_is(codec: str) -> None:
    async def test() -> None:
        seen, lost = [0], [0]

        def lossy(send: Callable[..., None]) -> Callable[..., None]:
            def sendto(data: bytes, address: Any = None) -> None:
                # Pictures, not reports (RFC 5761), checks or handshakes.
                media = 127 < data[0] < 192 and not 64 <= data[1] & 0x7F < 96
                seen[0] += media
                if media and seen[0] > 30 and seen[0] % 15 == 0:
                    lost[0] += 1
                    return
                send(data, address)

            return sendto

        async with cameras() as made, sender(Counter(), codec=codec) as connection:
            source = await connect(made, connection, **{"live.policy": "every"})
            for transceiver in connection.getTransceivers():
                for protocol in transceiver.sender.transport.transport._connection._protocols:
                    protocol.transport.sendto = lossy(protocol.transport.sendto)
            reader = Reader(source)
            await until(lambda: len(reader.frames) >= 60 and lost[0] >= 3)
            numbers = reader.numbers
            assert numbers == sorted(set(numbers))
            # Most of what was lost came again; nothing hangs for long behind it.
            assert numbers[-1] - numbers[0] < 2 * len(numbers)

    run(test)


def test_a_slow_consumer_gets_the_newest() -> None:
    """60 ms of work a frame at 30 fps: half are passed over, and the lag stays where it is."""

    async def test() -> None:
        track, behind = Counter(), list[int]()
        async with cameras() as made, sender(track) as connection:
            source = await connect(made, connection)
            reader = Reader(source, 0.06, lambda: behind.append(track.sent - number_in(reader.frames[-1].rgb)))
            await until(lambda: len(reader.frames) >= 50)
            assert source.dropped > 10
            numbers = reader.numbers
            assert numbers == sorted(set(numbers))
            # A queue would be 45 pictures behind by now.
            assert np.median(behind[-20:]) <= 8

    run(test)


def test_a_changed_size_goes_on() -> None:
    async def test() -> None:
        track = Counter(size_wh=lambda n: SIZE_WH if n < 20 else (192, 64))
        async with cameras() as made, sender(track) as connection:
            reader = Reader(await connect(made, connection))
            await until(lambda: (192, 64) in [frame.size_wh for frame in list(reader.frames)])
            assert reader.frames[0].size_wh == SIZE_WH and reader.thread.is_alive()

    run(test)


@pytest.mark.parametrize("end", ["browser", "source", "server", "silence"])
def test_whoever_ends_it_all_ends(end: str) -> None:
    async def test() -> None:
        async with cameras() as made, sender(Counter()) as connection:
            source = await connect(made, connection, **{"live.stall_seconds": 1.0})
            reader = Reader(source)
            await until(lambda: len(reader.frames) >= 3)
            assert len(made) == 1
            if end == "browser":
                await connection.close()
            elif end == "source":
                await asyncio.to_thread(source.close)
            elif end == "server":
                await made.close()
            else:  # the browser's machine is gone without a word
                for transceiver in connection.getTransceivers():
                    ice = transceiver.sender.transport.transport._connection
                    for protocol in ice._protocols:
                        protocol.transport.sendto = lambda data, address=None: None
            await until(lambda: not reader.thread.is_alive() and len(made) == 0)
            assert reader.error is None and source.ended
            if end == "server":
                with pytest.raises(TooManyPeers):
                    await connect(made, connection)

    run(test)


def test_a_browser_that_never_comes_is_given_up() -> None:
    async def test() -> None:
        async with cameras() as made, sender(Counter()) as connection:
            sources: list[BrowserSource] = []
            settings = Settings().with_values({"live.connect_seconds": 0.3})
            await made.answer(connection.localDescription.sdp, "offer", sources.append, settings=settings)
            reader = Reader(sources[0])
            await until(lambda: len(made) == 0 and not reader.thread.is_alive())
            assert isinstance(reader.error, ConnectionFailed) and "UDP" in str(reader.error)

    run(test)


def test_too_large_a_picture_is_an_error_of_the_source() -> None:
    async def test() -> None:
        for codec in ("VP8", "H264"):
            async with cameras() as made, sender(Counter(), codec=codec) as connection:
                source = await connect(made, connection, **{"source.max_pixels": 40_000})
                with pytest.raises(SourceTooLarge, match="384x128 are 49152 pixels"):
                    await asyncio.to_thread(source.wait_first, LONG_SECONDS)
                reader = Reader(source)
                await until(lambda r=reader: not r.thread.is_alive() and len(made) == 0)  # type: ignore[misc]

    run(test)


def test_audio_is_not_received() -> None:
    async def test() -> None:
        tracks = aiortc.AudioStreamTrack(), Counter()
        async with cameras() as made, sender(*tracks) as connection:
            reader = Reader(await connect(made, connection))
            await until(lambda: len(reader.frames) >= 3)
            directions = {t.kind: t.currentDirection for t in connection.getTransceivers()}
            assert directions == {"audio": "inactive", "video": "sendonly"}

    run(test)


def test_offers_that_are_refused_leave_nothing_behind() -> None:
    async def test() -> None:
        settings = Settings()
        sources: list[BrowserSource] = []
        async with cameras() as made:
            async with sender(aiortc.AudioStreamTrack()) as connection:
                with pytest.raises(NoVideoStream):
                    await connect(made, connection, sources.append)
            async with sender(Counter(), data=True) as connection:
                with pytest.raises(OfferRefused, match="application"):
                    await connect(made, connection, sources.append)
            async with sender(Counter()) as connection:
                sound = connection.localDescription.sdp
            for bad in (
                sound.replace("a=ice-pwd", "a=x"),
                sound.replace("VP8", "VP7"),
                sound.replace("UDP/TLS/RTP/SAVPF 97", "UDP/TLS/RTP/SAVPF seven"),
                sound.replace("a=fingerprint:sha-256 ", "a=fingerprint:"),
                sound.replace("a=setup:actpass", "a=setup:perhaps"),
                sound.replace("a=mid:0", "a=mid"),
                "\r\n".join(sound.splitlines()[:12]),
            ):
                with pytest.raises(OfferRefused, match="WebRTC"):
                    await made.answer(bad, "offer", sources.append, settings=settings)
            assert sources == [] and len(made) == 0

    run(test)


def test_no_more_than_allowed_and_a_refusal_of_the_server_ends_the_connection() -> None:
    def refuse(source: BrowserSource) -> None:
        raise BudgetError("eight streams run already")

    async def test() -> None:
        async with cameras(most=1) as made, sender(Counter()) as first, sender(Counter()) as second:
            with pytest.raises(BudgetError):
                await connect(made, first, refuse)
            assert len(made) == 0
            await connect(made, first)
            with pytest.raises(TooManyPeers, match="at most 1 may"):
                await connect(made, second)

    run(test)


def test_another_aiortc_is_told_of_and_not_used() -> None:
    with pytest.raises(BackendUnavailable, match="gives no access to the packets"):
        divert(object(), PictureAssembler(lambda picture: None), {})  # type: ignore[arg-type]


PAGE = """<!doctype html><title>camera</title><script>
async function go() {
  const stream = await navigator.mediaDevices.getUserMedia({video: {width: 640, height: 360, frameRate: 30}});
  window.connection = new RTCPeerConnection({iceServers: []});
  window.connection.addTrack(stream.getVideoTracks()[0], stream);
  await window.connection.setLocalDescription();
  const said = window.connection.localDescription;
  const answer = await fetch("/offer", {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(said),
  });
  await window.connection.setRemoteDescription(await answer.json());
}
</script>"""


@contextlib.contextmanager
def served(sources: list[BrowserSource]) -> Iterator[str]:
    """A page that sends its camera, and the server for it, on a free port; yields the address."""
    fastapi = pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    made: list[BrowserCameras] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        made.append(BrowserCameras(loopback=True))
        yield
        await made[0].close()

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.get("/")
    def page() -> Any:
        return fastapi.responses.HTMLResponse(PAGE)

    @app.post("/offer")
    async def offer(said: dict[str, str]) -> dict[str, str]:
        sdp = await made[0].answer(said["sdp"], said["type"], sources.append, settings=Settings())
        return {"sdp": sdp, "type": "answer"}

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(LONG_SECONDS)
        listening.close()
        assert not thread.is_alive()


@pytest.fixture
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("needs Chromium on the PATH")
    arguments = [
        "--use-fake-device-for-media-stream=fps=30",
        "--use-fake-ui-for-media-stream",
        "--allow-loopback-in-peer-connection",
        "--no-sandbox",
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(Path(path)), args=arguments)
        yield browser
        browser.close()


def test_chromium_sends_its_camera(chromium: Any) -> None:
    sources: list[BrowserSource] = []
    with served(sources) as address:
        page = chromium.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.evaluate("go()")
        reader = Reader(sources[0])
        info = sources[0].wait_first(LONG_SECONDS)
        assert info.size_wh == (640, 360) and info.codec in ("h264", "vp8")
        deadline = time.monotonic() + LONG_SECONDS
        while len(reader.frames) < 45 and time.monotonic() < deadline:
            page.wait_for_timeout(50)
        assert len(reader.frames) >= 45 and errors == []
        # It began at full size and stays there.
        assert {frame.size_wh for frame in reader.frames} == {(640, 360)}
        # The fake camera is a green picture with a moving pie.
        assert any(not np.array_equal(frame.rgb, reader.frames[0].rgb) for frame in reader.frames)
        page.evaluate("connection.close()")
        reader.thread.join(LONG_SECONDS)
        assert not reader.thread.is_alive() and reader.error is None
