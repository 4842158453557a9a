"""Cameras and screens of browsers, which come in by WebRTC; aiortc receives, and decodes in a thread for each."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aioice.ice
import av
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcrtpparameters import RTCRtpCodecCapability
from aiortc.sdp import SessionDescription

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ConnectionFailed, NoVideoStream
from arr_stream.sources.live.browser import BrowserSource

LARGEST_OFFER_BYTES = 64_000
_MOST_LINES = 1000
_VIDEO_CODEC = re.compile(r"a=rtpmap:\d+ (\w+)/90000")
_SENDING = (None, "sendrecv", "sendonly")

# H.264 costs half as much to decode as VP8 does.
_PREFERRED = ("video/H264", "video/VP8", "video/rtx")
# Chromium begins at 300 kbit/s, and with it at a quarter of the size, if it is told nothing.
_RATES = {"x-google-start-bitrate": 2500, "x-google-min-bitrate": 1000, "x-google-max-bitrate": 8000}

_NEGOTIATE_SECONDS = 5.0
_CLOSE_SECONDS = 1.2
LATE_SECONDS, LATE_FOR_SECONDS = 5.0, 10.0
"""A browser whose pictures come so late for so long is let go."""
_DRIFT_SECONDS = 1e-4
"""By which the sender's clock may differ more with each picture."""


class OfferRefused(ConnectionFailed):
    """The browser's offer is malformed, or asks for what is not given."""


class TooManyPeers(OfferRefused):
    """As many browsers send already as are allowed."""


class BrowserCameras:
    """Answers browsers that offer their camera or screen; made and used in the server's event loop.

    No STUN or TURN server is ever asked: a browser must reach the server directly, by UDP.

    Args:
        loopback: Offer 127.0.0.1 to the browser too, as is done anyway where the machine has no other address.
        most: How many browsers may send at a time.
    """

    def __init__(self, *, loopback: bool, most: int = 8) -> None:
        self._loopback = loopback
        self._most = most
        self._peers: set[_Peer] = set()
        self._closed = False

    def __len__(self) -> int:
        """How many browsers send, or are about to."""
        return len(self._peers)

    async def answer(
        self,
        offer_sdp: str,
        on_source: Callable[[BrowserSource], Awaitable[None]],
        *,
        settings: Settings,
        name: str = "browser camera",
    ) -> str:
        """The session description that answers an offer.

        Args:
            offer_sdp: The browser's session description; its candidates are not used and need not be waited for.
            on_source: Gets the source before anything has come through it, and may refuse by raising; must not wait for
                pictures. Closing the source ends the connection.
            settings, name: Of the source.

        Raises:
            OfferRefused: Malformed, too large, not one video, or none in a coding that is known.
            NoVideoStream: No video that the browser sends.
            TooManyPeers: As many as allowed are there, or the server is ending.
            Whatever `on_source` raises.
        """
        offer_sdp = checked_offer(offer_sdp)
        if self._closed or len(self._peers) >= self._most:
            raise TooManyPeers(
                f"WebRTC: {len(self._peers)} browsers send already, at most {self._most} may",
                remedy="end one of them first",
            )
        loopback = self._loopback or not aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True)
        peer = _Peer(name, settings, loopback=loopback, on_end=self._peers.discard)
        self._peers.add(peer)
        try:
            answer_sdp = await peer.negotiate(offer_sdp)
            await on_source(peer.source)
        except BaseException:
            await peer.end()
            raise
        return answer_sdp

    async def close(self) -> None:
        """End all connections, their sources and threads, within two seconds; nothing is answered afterwards."""
        self._closed = True
        await asyncio.gather(*(peer.end() for peer in list(self._peers)), return_exceptions=True)


class _Peer:
    """The server's end of a connection; all methods are for the event loop's thread."""

    def __init__(self, name: str, settings: Settings, *, loopback: bool, on_end: Callable[[_Peer], None]) -> None:
        self.source = BrowserSource(name, settings)
        self.source.on_close = self._end_from_anywhere
        self._settings = settings
        self._loopback = loopback
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        # Without an empty list, aiortc asks a public STUN server.
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.on("connectionstatechange", self._state_changed)
        self._connected = asyncio.Event()
        room = 1 if settings.live.policy == "latest" else settings.live.buffer_frames
        self._waiting: asyncio.Queue[tuple[av.VideoFrame, float]] = asyncio.Queue(room)
        self._least_delay_seconds = math.inf
        self._punctual_seconds = math.inf
        self._work: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def negotiate(self, offer_sdp: str) -> str:
        """The answer to an offer that `checked_offer` has let pass."""
        try:
            async with asyncio.timeout(_NEGOTIATE_SECONDS):
                answer_sdp, receiver = await self._answer(offer_sdp)
            (codec,) = _VIDEO_CODEC.findall(answer_sdp)[:1]
        except Exception as exc:
            raise OfferRefused(f"WebRTC: the offer cannot be answered: {_said(exc)}") from exc
        self.source.codec = codec.lower()
        self._work = self._loop.create_task(self._serve(receiver.track))
        return with_rates(answer_sdp)

    async def end(self, error: ArrStreamError | None = None) -> None:
        """End the connection, the source and the threads; safe to call again."""
        if self._ending is None:
            self.source.finish(error)
            self._ending = self._loop.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _answer(self, offer_sdp: str) -> tuple[str, RTCRtpReceiver]:
        connection = self._connection
        video = connection.addTransceiver("video", direction="recvonly")
        video.setCodecPreferences(_preferred_codecs())
        await connection.setRemoteDescription(RTCSessionDescription(offer_sdp, "offer"))
        if self._loopback:
            offer_loopback(video.receiver)
        for transceiver in connection.getTransceivers():
            if transceiver is not video:
                transceiver.direction = "inactive"
        await connection.setLocalDescription(await connection.createAnswer())
        return connection.localDescription.sdp, video.receiver

    async def _serve(self, track: Any) -> None:
        """Until the browser is gone, or something is wrong with what it sends."""
        error: ArrStreamError | None = None
        tasks = [self._loop.create_task(work) for work in (self._receive(track), self._convert(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ArrStreamError as exc:
            error = exc
        except Exception as exc:
            error = ArrStreamError(f"{self.source.name}: its pictures cannot be taken: {_said(exc)}")
            error.__cause__ = exc
        finally:
            for task in tasks:
                task.cancel()
            await self.end(error)

    async def _receive(self, track: Any) -> None:
        """Take pictures as they are decoded; those that nobody could convert in time make room for newer ones."""
        max_pixels = self._settings.source.max_pixels
        with contextlib.suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                arrived_seconds = time.monotonic()
                if frame.width * frame.height > max_pixels:
                    raise self.source.too_large(frame.width, frame.height)
                self._check_pace(frame.time, arrived_seconds)
                if frame.is_corrupt:
                    self.source.stats.concealed_frames += 1
                    continue
                if self._waiting.full():
                    self._waiting.get_nowait()
                    self.source.passed_over()
                self._waiting.put_nowait((frame, arrived_seconds))

    def _check_pace(self, sent_seconds: float, arrived_seconds: float) -> None:
        """Fail where pictures have come late for long: what is not decoded yet waits in aiortc, without any limit."""
        delay_seconds = arrived_seconds - sent_seconds
        self._least_delay_seconds = min(delay_seconds, self._least_delay_seconds + _DRIFT_SECONDS)
        late_seconds = delay_seconds - self._least_delay_seconds
        if late_seconds < LATE_SECONDS:
            self._punctual_seconds = arrived_seconds
        elif arrived_seconds - self._punctual_seconds > LATE_FOR_SECONDS:
            raise ArrStreamError(
                f"{self.source.name}: pictures are {late_seconds:.0f} s late: they come faster than they are decoded",
                remedy="choose a smaller picture, or fewer a second, in the browser",
            )

    async def _convert(self) -> None:
        """Hand pictures on as RGB, which a thread makes of them: it takes milliseconds that others need."""

        def push(frame: av.VideoFrame, arrived_seconds: float) -> None:
            rgb = np.asarray(frame.to_ndarray(format="rgb24", threads=1), dtype=np.uint8)
            self.source.push(rgb, arrived_seconds, frame.time)

        while True:
            await asyncio.to_thread(push, *await self._waiting.get())

    async def _watch(self) -> None:
        """Until nothing is heard of the browser any more: a still screen sends no pictures, but still reports."""
        live = self._settings.live
        try:
            async with asyncio.timeout(live.connect_seconds):
                await self._connected.wait()
        except TimeoutError:
            raise ConnectionFailed(
                f"{self.source.name}: the browser could not connect by WebRTC",
                remedy="let UDP from the browser's machine reach the server",
            ) from None
        heard_packets = -1
        while (packets := await self._packets()) != heard_packets:
            heard_packets = packets
            await asyncio.sleep(live.stall_seconds)

    async def _packets(self) -> int:
        report = await self._connection.getStats()
        return sum(stats.packetsReceived for stats in report.values() if stats.type == "transport")

    def _state_changed(self) -> None:
        if self._connection.connectionState == "connected":
            self._connected.set()

    async def _end(self) -> None:
        if self._work is not None:
            self._work.cancel()
        # Not cancelled when it takes longer: aiortc would leave a thread behind.
        closing = self._loop.create_task(self._connection.close())
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        self._on_end(self)

    def _end_from_anywhere(self) -> None:
        """Whoever took the pictures wants no more."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self.end()))


def checked_offer(sdp: str) -> str:
    """The offer as aiortc may read it: one video that the browser sends, and at most one audio beside it.

    Its candidates are taken out: the browser finds the server, and the server answers to where the authenticated check
    came from. So nobody can make the server send packets to, or look up the names of, hosts that stand in an offer.

    Raises:
        OfferRefused: Too large, malformed, or with more than one video or a data channel.
        NoVideoStream: There is no video in it, or none that the browser sends.
    """
    size_bytes = len(sdp.encode("utf-8", "replace"))
    if size_bytes > LARGEST_OFFER_BYTES:
        raise OfferRefused(f"WebRTC: the offer has {size_bytes} bytes, at most {LARGEST_OFFER_BYTES} are allowed")
    if not sdp.startswith("v=0") or len(sdp.splitlines()) > _MOST_LINES:
        raise OfferRefused("WebRTC: the offer is no session description (SDP)", remedy="send that of createOffer()")
    try:
        offer = SessionDescription.parse(sdp)
        for media in offer.media:
            media.ice_candidates, media.ice_candidates_complete = [], False
        kept = str(offer)
    except Exception as exc:
        raise OfferRefused(f"WebRTC: the offer is malformed: {_said(exc)}") from exc
    videos = [media for media in offer.media if media.kind == "video"]
    others = [media.kind[:20] for media in offer.media if media.kind != "video"]
    if not any(video.direction in _SENDING for video in videos):
        raise NoVideoStream(
            "WebRTC: the offer has no video that the browser sends",
            remedy="add the camera's or the screen's video track",
        )
    if len(videos) > 1:
        raise OfferRefused(f"WebRTC: the offer has {len(videos)} videos, expected one", remedy="make one offer a video")
    if others not in ([], ["audio"]):
        raise OfferRefused(
            f"WebRTC: the offer has {', '.join(others[:4])} beside its video",
            remedy="offer one video track and no data channel",
        )
    return kept


def with_rates(answer_sdp: str) -> str:
    """The answer with the bit rates that the browser should begin with, not go below and not exceed.

    `b=AS` (RFC 4566, 5.8) is understood by all, the `x-google-` parameters by Chromium and what is made of it.
    """
    answer = SessionDescription.parse(answer_sdp)
    for media in answer.media:
        for codec in media.rtp.codecs if media.kind == "video" else ():
            if codec.name.lower() != "rtx":
                codec.parameters |= _RATES
    limit = f"b=AS:{_RATES['x-google-max-bitrate']}"
    return re.sub(r"(m=video [^\r]*\r\nc=[^\r]*\r\n)", rf"\g<1>{limit}\r\n", str(answer))


def offer_loopback(receiver: RTCRtpReceiver) -> None:
    """Let the connection of a receiver listen on 127.0.0.1 too, which aioice leaves out and has no option for.

    Only this connection is changed. The machine's other addresses are offered as well, because browsers do not use
    their own loopback address unless told to.
    """
    connection: Any = receiver.transport.transport.iceGatherer._connection
    gather = connection.get_component_candidates

    async def gather_with_loopback(*, component: int, addresses: list[str]) -> Any:
        return await gather(component=component, addresses=["127.0.0.1", *addresses])

    connection.get_component_candidates = gather_with_loopback


def _preferred_codecs() -> list[RTCRtpCodecCapability]:
    """The codings that aiortc takes, those that cost least first."""
    able = RTCRtpReceiver.getCapabilities("video")
    return [codec for kind in _PREFERRED for codec in (able.codecs if able else ()) if codec.mimeType == kind]


def _said(error: Exception) -> str:
    """What an error says, in one line that is not too long."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")[:200]
