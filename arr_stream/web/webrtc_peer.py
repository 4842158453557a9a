"""One browser that sends its camera or screen: its connection, and how its pictures leave aiortc."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import aiortc
from aiortc.jitterbuffer import JitterBuffer, JitterFrame
from aiortc.rtcconfiguration import RTCConfiguration
from aiortc.rtcrtpparameters import RTCRtpCodecCapability
from aiortc.rtcrtpreceiver import RTCRtpReceiver
from aiortc.rtcsessiondescription import RTCSessionDescription
from aiortc.rtp import RtpPacket

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, BackendUnavailable, ConnectionFailed
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.web.webrtc_decoding import PictureDecoder
from arr_stream.web.webrtc_packets import Packet, PictureAssembler
from arr_stream.web.webrtc_sdp import OfferRefused, video_codecs, with_rates

_CLOSE_SECONDS = 1.2
_LOOK_EVERY_SECONDS = 0.5
_NEGOTIATE_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
_BUFFER = "_RTCRtpReceiver__jitter_buffer"
# H.264 costs half as much to decode as VP8 does.
_PREFERRED = ("video/H264", "video/VP8", "video/rtx")


class Peer:
    """The server's end of a connection; all methods are for the event loop's thread.

    Args:
        name: Of the source.
        settings: Of the source.
        loopback: Offer 127.0.0.1 too.
        on_end: Called once when everything of it has ended.
    """

    def __init__(self, name: str, settings: Settings, *, loopback: bool, on_end: Callable[[Peer], None]) -> None:
        self.source = BrowserSource(name, settings)
        self._settings = settings
        self._loopback = loopback
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        # Without an empty list, aiortc asks a public STUN server.
        self._connection = aiortc.RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._changed = asyncio.Event()
        self._connection.on("connectionstatechange", self._changed.set)
        self._decoder: PictureDecoder | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.source.on_close = self._end_from_anywhere

    async def negotiate(self, offer_sdp: str) -> str:
        """The answer to an offer that `checked_offer` has let pass.

        Raises:
            OfferRefused: aiortc makes nothing of it, or has no coding in common with the browser.
            BackendUnavailable: This aiortc gives no access to the packets.
        """
        try:
            async with asyncio.timeout(_NEGOTIATE_SECONDS):
                answer_sdp = await self._answer(offer_sdp)
        except ArrStreamError:
            raise
        except Exception as exc:
            said = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            raise OfferRefused(f"WebRTC: the offer cannot be answered: {said[:200]}") from exc
        self._watching = self._loop.create_task(self._watch())
        return answer_sdp

    async def end(self, error: ArrStreamError | None = None) -> None:
        """End the connection, the source and the thread; safe to call again.

        Args:
            error: Why, where somebody should hear of it.
        """
        if self._ending is None:
            self.source.finish(error)
            self._ending = self._loop.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _answer(self, offer_sdp: str) -> str:
        connection = self._connection
        video = connection.addTransceiver("video", direction="recvonly")
        video.setCodecPreferences(preferred_codecs())
        await connection.setRemoteDescription(RTCSessionDescription(offer_sdp, "offer"))
        if self._loopback:
            offer_loopback(video.receiver)
        for transceiver in connection.getTransceivers():
            if transceiver is not video:
                transceiver.direction = "inactive"
        await connection.setLocalDescription(await connection.createAnswer())
        answer_sdp: str = connection.localDescription.sdp
        self._receive(video.receiver, video_codecs(answer_sdp))
        return with_rates(answer_sdp)

    def _receive(self, receiver: RTCRtpReceiver, codecs: dict[int, str]) -> None:
        every = self._settings.live.policy == "every"
        self._decoder = PictureDecoder(self.source, max_pixels=self._settings.source.max_pixels, every=every)
        assembler = PictureAssembler(self._decoder.put)
        self._decoder.need_key = assembler.need_key
        divert(receiver, assembler, codecs)

    async def _watch(self) -> None:
        """Wait until the browser is gone: it says so, never connects, or is not heard of any more.

        A sender that has no new picture (a still screen) still sends reports each second.
        """
        error: ArrStreamError | None = None
        try:
            if not await self._gone():
                error = ConnectionFailed(
                    f"{self.source.name}: the browser could not connect by WebRTC",
                    remedy="let UDP from the browser's machine reach the server",
                )
        finally:
            await self.end(error)

    async def _gone(self) -> bool:
        """Wait as `_watch` says; whether the browser was ever connected."""
        live = self._settings.live
        began_seconds = heard_seconds = self._loop.time()
        heard_packets, connected = 0, False
        while (state := self._connection.connectionState) not in ("closed", "failed"):
            now_seconds = self._loop.time()
            if state == "connected":
                packets, connected = await self._packets(), True
                if packets != heard_packets:
                    heard_packets, heard_seconds = packets, now_seconds
                elif now_seconds - heard_seconds > live.stall_seconds:
                    break
            elif not connected and now_seconds - began_seconds > live.connect_seconds:
                break
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_EVERY_SECONDS)
        return connected

    async def _packets(self) -> int:
        report = await self._connection.getStats()
        return sum(stats.packetsReceived for stats in report.values() if stats.type == "transport")

    async def _end(self) -> None:
        current = asyncio.current_task()
        if self._watching is not None and self._watching is not current:
            self._watching.cancel()
        if self._decoder is not None:
            self._decoder.close()
        # Not cancelled when it takes longer: aiortc would leave a thread behind.
        closing = self._loop.create_task(self._connection.close())
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        if self._decoder is not None:
            await asyncio.to_thread(self._decoder.join)
        self._on_end(self)

    def _end_from_anywhere(self) -> None:
        """Whoever took the pictures wants no more."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        if self._ending is None:
            self.source.finish()
            self._ending = self._loop.create_task(self._end())


class _Diverted(JitterBuffer):
    """Stands where aiortc's jitter buffer stood and hands every packet on; aiortc itself gets no picture to decode."""

    def __init__(self, assembler: PictureAssembler, codecs: dict[int, str]) -> None:
        super().__init__(capacity=16, is_video=True)
        self._assembler = assembler
        self._codecs = codecs

    def add(self, packet: RtpPacket) -> tuple[bool, JitterFrame | None]:
        taken = Packet(
            sender=packet.ssrc,
            sequence=packet.sequence_number,
            timestamp=packet.timestamp,
            marker=bool(packet.marker),
            codec=self._codecs[packet.payload_type],
            data=packet._data,  # type: ignore[attr-defined]
        )
        return self._assembler.add(taken, time.monotonic()), None


def preferred_codecs() -> list[RTCRtpCodecCapability]:
    """The codings that aiortc takes, those that cost least first."""
    able = RTCRtpReceiver.getCapabilities("video")
    return [codec for kind in _PREFERRED for codec in (able.codecs if able else ()) if codec.mimeType == kind]


def divert(receiver: RTCRtpReceiver, assembler: PictureAssembler, codecs: dict[int, str]) -> None:
    """Hand a receiver's packets to an assembler, so that each picture is there as soon as its last packet is.

    Args:
        receiver: Of a video that has not begun.
        assembler: Gets the packets that are decrypted and, where they were sent again, unwrapped.
        codecs: The coding of each payload type.

    Raises:
        BackendUnavailable: This version of aiortc keeps them elsewhere.
    """
    if not isinstance(getattr(receiver, _BUFFER, None), JitterBuffer):
        raise BackendUnavailable(
            f"WebRTC: aiortc {aiortc.__version__} gives no access to the packets that come in",
            remedy="pip install 'aiortc>=1.14,<1.17'",
        )
    setattr(receiver, _BUFFER, _Diverted(assembler, codecs))


def offer_loopback(receiver: RTCRtpReceiver) -> None:
    """Let the connection of a receiver listen on 127.0.0.1 too, which aioice leaves out.

    Only this connection is changed. The machine's other addresses are offered as well, because browsers do not use
    their own loopback address unless told to.
    """
    connection: Any = receiver.transport.transport.iceGatherer._connection
    gather = connection.get_component_candidates

    async def gather_with_loopback(*, component: int, addresses: list[str]) -> Any:
        return await gather(component=component, addresses=[_LOOPBACK, *addresses])

    connection.get_component_candidates = gather_with_loopback
