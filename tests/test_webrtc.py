"""Browsers' cameras: what an offer may hold, and real connections with aiortc as the sender."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import BudgetError, ConnectionFailed, NoVideoStream, SourceTooLarge
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import ByteArray, Frame

aiortc = pytest.importorskip("aiortc", reason="needs aiortc")
av = pytest.importorskip("av")

from arr_stream.web import webrtc  # noqa: E402
from arr_stream.web.webrtc import (  # noqa: E402
    LARGEST_OFFER_BYTES,
    BrowserCameras,
    OfferRefused,
    TooManyPeers,
    checked_offer,
    offer_loopback,
    with_rates,
)

HEAD = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"
VIDEO = (
    "m=video 9 UDP/TLS/RTP/SAVPF 96 97 102\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=sendrecv\r\n"
    "a=candidate:1 1 udp 1 192.168.0.9 5000 typ host\r\na=candidate:2 1 udp 1 x.local 5000 typ host\r\n"
    "a=end-of-candidates\r\na=rtpmap:96 VP8/90000\r\na=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\n"
    "a=rtpmap:102 H264/90000\r\na=fmtp:102 packetization-mode=1\r\n"
)
AUDIO = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:1\r\na=sendrecv\r\na=rtpmap:111 opus/48000/2\r\n"
DATA = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:2\r\n"

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


async def answered(
    made: BrowserCameras, sdp: str, on_source: Callable[[BrowserSource], object] = lambda source: None, **values: object
) -> tuple[BrowserSource, str]:
    sources: list[BrowserSource] = []

    async def keep(source: BrowserSource) -> None:
        sources.append(source)
        on_source(source)

    answer = await made.answer(sdp, keep, settings=Settings().with_values(values), name="a camera")
    return sources[0], answer


async def connect(made: BrowserCameras, connection: Any, *on_source: Any, **values: object) -> BrowserSource:
    source, answer = await answered(made, connection.localDescription.sdp, *on_source, **values)
    await connection.setRemoteDescription(aiortc.RTCSessionDescription(answer, "answer"))
    return source


def transports(connection: Any) -> list[Any]:
    """The UDP sockets that a connection sends by."""
    ices = [transceiver.sender.transport.transport._connection for transceiver in connection.getTransceivers()]
    return [protocol.transport for ice in ices for protocol in ice._protocols]


def alone(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a coroutine as a test, and sees that no thread stays behind."""

    @functools.wraps(test)
    def runs(*arguments: Any, **named: Any) -> None:
        before = set(threading.enumerate())
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 90))  # type: ignore[arg-type]
        deadline = time.monotonic() + LONG_SECONDS
        while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left

    return runs


@pytest.mark.parametrize("codec", ["VP8", "H264"])
@alone
async def test_pictures_arrive_whole_and_in_order(codec: str) -> None:
    track = Counter()
    async with cameras() as made, sender(track, codec=codec) as connection:
        source = await connect(made, connection, **{"live.policy": "every"})
        reader = Reader(source)
        await until(lambda: len(reader.frames) >= 20)
        assert source.info.codec == codec.lower() and source.info.size_wh == SIZE_WH
        await made.close()
        await until(lambda: not reader.thread.is_alive())
        assert reader.error is None
        numbers = reader.numbers
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        times = [frame.pts_seconds for frame in reader.frames]
        assert times == sorted(times) and times[-1] == pytest.approx((len(times) - 1) / 30, abs=0.5)


@pytest.mark.parametrize("codec", ["VP8", "H264"])
@alone
async def test_lost_packets_are_sent_again_or_a_key_picture_is(codec: str) -> None:
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
        for transport in transports(connection):
            transport.sendto = lossy(transport.sendto)
        reader = Reader(source)
        await until(lambda: len(reader.frames) >= 45 and lost[0] >= 3)
        numbers = reader.numbers
        assert numbers == sorted(set(numbers))
        # Most of what was lost came again; nothing hangs for long behind it.
        assert numbers[-1] - numbers[0] < 2 * len(numbers)


@alone
async def test_a_slow_consumer_gets_the_newest() -> None:
    """60 ms of work a frame at 30 fps: half are passed over, and the lag stays where it is."""
    track, behind = Counter(), list[int]()
    async with cameras() as made, sender(track) as connection:
        source = await connect(made, connection)
        reader = Reader(source, 0.06, lambda: behind.append(track.sent - number_in(reader.frames[-1].rgb)))
        await until(lambda: len(reader.frames) >= 30)
        assert source.dropped > 10
        numbers = reader.numbers
        assert numbers == sorted(set(numbers))
        # A queue would be 25 pictures behind by now.
        assert np.median(behind[-10:]) <= 8


@alone
async def test_a_changed_size_goes_on() -> None:
    track = Counter(size_wh=lambda n: SIZE_WH if n < 20 else (192, 64))
    async with cameras() as made, sender(track) as connection:
        reader = Reader(await connect(made, connection))
        await until(lambda: (192, 64) in [frame.size_wh for frame in list(reader.frames)])
        assert reader.frames[0].size_wh == SIZE_WH and reader.thread.is_alive()


@pytest.mark.parametrize("end", ["browser", "source", "server", "silence"])
@alone
async def test_whoever_ends_it_all_ends(end: str) -> None:
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
            for transport in transports(connection):
                transport.sendto = lambda data, address=None: None
        await until(lambda: not reader.thread.is_alive() and len(made) == 0)
        assert reader.error is None and source.ended
        if end == "server":
            with pytest.raises(TooManyPeers):
                await connect(made, connection)


@alone
async def test_a_browser_that_never_comes_is_given_up() -> None:
    async with cameras() as made, sender(Counter()) as connection:
        source, _ = await answered(made, connection.localDescription.sdp, **{"live.connect_seconds": 0.3})
        reader = Reader(source)
        await until(lambda: len(made) == 0 and not reader.thread.is_alive())
        assert isinstance(reader.error, ConnectionFailed) and "UDP" in str(reader.error)


@alone
async def test_too_large_a_picture_is_an_error_of_the_source() -> None:
    for codec in ("VP8", "H264"):
        async with cameras() as made, sender(Counter(), codec=codec) as connection:
            source = await connect(made, connection, **{"source.max_pixels": 40_000})
            with pytest.raises(SourceTooLarge, match="384x128 are 49152 pixels"):
                await asyncio.to_thread(source.wait_first, LONG_SECONDS)
            reader = Reader(source)
            await until(lambda r=reader: not r.thread.is_alive() and len(made) == 0)  # type: ignore[misc]


@alone
async def test_pictures_that_fall_ever_further_behind_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do where decoding is too slow; what waits for it would fill the memory."""

    class Slow(Counter):
        async def next_timestamp(self) -> tuple[int, Any]:
            pts, time_base = await super().next_timestamp()
            return pts // 4, time_base

    monkeypatch.setattr(webrtc, "LATE_SECONDS", 0.3)
    monkeypatch.setattr(webrtc, "LATE_FOR_SECONDS", 0.3)
    async with cameras() as made, sender(Slow()) as connection:
        reader = Reader(await connect(made, connection))
        await until(lambda: not reader.thread.is_alive() and len(made) == 0)
        assert "come faster than they are decoded" in str(reader.error)


@alone
async def test_audio_is_not_received() -> None:
    tracks = aiortc.AudioStreamTrack(), Counter()
    async with cameras() as made, sender(*tracks) as connection:
        reader = Reader(await connect(made, connection))
        await until(lambda: len(reader.frames) >= 3)
        directions = {t.kind: t.currentDirection for t in connection.getTransceivers()}
        assert directions == {"audio": "inactive", "video": "sendonly"}


@alone
async def test_offers_that_are_refused_leave_nothing_behind() -> None:
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
            "\r\n".join(sound.splitlines()[:12]),
        ):
            with pytest.raises(OfferRefused, match="WebRTC"):
                await answered(made, bad, sources.append)
        assert sources == [] and len(made) == 0


@alone
async def test_no_more_than_allowed_and_a_refusal_of_the_server_ends_the_connection() -> None:
    def refuse(source: BrowserSource) -> None:
        raise BudgetError("eight streams run already")

    async with cameras(most=1) as made, sender(Counter()) as first, sender(Counter()) as second:
        with pytest.raises(BudgetError):
            await connect(made, first, refuse)
        assert len(made) == 0
        await connect(made, first)
        with pytest.raises(TooManyPeers, match="at most 1 may"):
            await connect(made, second)


def test_an_offer_is_handed_on_without_the_addresses_in_it() -> None:
    for sdp in (HEAD + VIDEO, HEAD + AUDIO + VIDEO, HEAD.replace("\r\n", "\n") + VIDEO.replace("\r\n", "\n")):
        kept = checked_offer(sdp)
        assert "candidate" not in kept and "192.168" not in kept and ".local" not in kept
        assert {line for line in sdp.splitlines() if "candidate" not in line} <= set(kept.splitlines())


@pytest.mark.parametrize(
    ("sdp", "says"),
    [
        (HEAD + VIDEO + "a=x:" + "y" * LARGEST_OFFER_BYTES, "at most 64000"),
        *((sdp, "no session description") for sdp in ("v=0\n" * 3000, "", "hello", '{"sdp": 1}')),
        (HEAD + VIDEO + VIDEO, "2 videos"),
        (HEAD + VIDEO + DATA, "application"),
        (HEAD + VIDEO + AUDIO + AUDIO, "audio, audio"),
        (HEAD + "m=video\r\n", "malformed"),
        *(
            (sdp, "no video that the browser sends")
            for sdp in (HEAD, HEAD + AUDIO, HEAD + VIDEO.replace("sendrecv", "recvonly"), HEAD + DATA)
        ),
    ],
)
def test_what_is_no_offer_of_one_video_is_refused(sdp: str, says: str) -> None:
    with pytest.raises((OfferRefused, NoVideoStream), match=says) as caught:
        checked_offer(sdp)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_rates_are_told_of_every_coding_of_the_video_and_of_nothing_else() -> None:
    told = with_rates(HEAD + AUDIO + VIDEO).splitlines()
    audio, video = told[: told.index(VIDEO.splitlines()[0])], told[told.index(VIDEO.splitlines()[0]) :]
    assert not any("bitrate" in line or line.startswith("b=") for line in audio)
    assert video[2] == "b=AS:8000"
    rated = [line for line in video if "x-google-start-bitrate=2500" in line]
    assert [line.split(" ")[0] for line in rated] == ["a=fmtp:96", "a=fmtp:102"]
    assert "a=fmtp:102 packetization-mode=1;x-google-start" in rated[1] and "a=fmtp:97 apt=96" in video
