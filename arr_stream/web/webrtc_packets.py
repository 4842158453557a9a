"""From RTP packets to coded pictures, each as soon as its last packet is there.

aiortc's own jitter buffer gives a picture away when the first packet of the next one comes, a frame interval late. Here
the marker bit ends a picture (RFC 3550; RFC 7741 for VP8 and RFC 6184 for H.264 both set it on a picture's last
packet). A lost packet is waited for only a moment: what depends on it is passed over, and a key picture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CLOCK_HZ = 90_000
"""Ticks a second of a video's RTP timestamps."""

_MOST_PACKETS = 2048
_MOST_UNITS = 2048
_PATIENCE_SECONDS = 0.2
_ASK_EVERY_SECONDS = 0.5
_SILENT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Packet:
    """What of an RTP packet matters.

    Args:
        sender: Number of its sender (SSRC).
        sequence: 16-bit number, one more for each packet.
        timestamp: 32-bit time of its picture, in ticks of `CLOCK_HZ`.
        marker: It is the last one of its picture.
        codec: Name of the coding, `VP8` or `H264`.
        data: Its part of the picture, without the codec's packet header; empty for padding.
    """

    sender: int
    sequence: int
    timestamp: int
    marker: bool
    codec: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CodedPicture:
    """One whole coded picture.

    Args:
        codec: Name of the coding.
        data: VP8's frame, or H.264's NAL units with start codes.
        key: It can be decoded without those before it.
        sent_seconds: Its time on the sender's clock, from any origin on.
        arrived_seconds: When its last packet came, on the clock that `PictureAssembler.add` is given.
    """

    codec: str
    data: bytes
    key: bool
    sent_seconds: float
    arrived_seconds: float


class PictureAssembler:
    """Puts pictures together, in order, from packets that come twice, late, in the wrong order or not at all.

    Args:
        deliver: Called with each picture; begins with a key picture, and again after a loss.
    """

    def __init__(self, deliver: Callable[[CodedPicture], None]) -> None:
        self.lost_pictures = 0
        self._deliver = deliver
        self._need_key = True
        self._asked_seconds: float | None = None
        self._sender: int | None = None
        self._heard_seconds = 0.0
        self._next: int | None = None
        self._waiting: dict[int, Packet] = {}
        self._gap_at: int | None = None
        self._gap_since_seconds = 0.0
        self._parts: list[Packet] = []
        self._ticks: int | None = None

    def need_key(self) -> None:
        """What comes cannot be decoded without a key picture; may be called by any thread."""
        self._need_key = True

    def add(self, packet: Packet, now_seconds: float) -> bool:
        """Take a packet.

        Returns:
            Whether the sender should be asked for a key picture now.
        """
        if not self._belongs(packet, now_seconds):
            return False
        if self._next is None:
            self._next = packet.sequence
        ahead = (packet.sequence - self._next) & 0xFFFF
        if 0xFFFF - ahead < _MOST_PACKETS:
            return self._asks(now_seconds)  # late, or again
        if ahead >= _MOST_PACKETS:
            self._restart(packet.sequence)
        self._waiting[packet.sequence] = packet
        self._advance(now_seconds)
        self._lose_patience(now_seconds)
        return self._asks(now_seconds)

    def _belongs(self, packet: Packet, now_seconds: float) -> bool:
        """One sender at a time; another one is heard when the first has been silent."""
        if packet.sender != self._sender:
            if self._sender is not None and now_seconds - self._heard_seconds < _SILENT_SECONDS:
                return False
            self._sender, self._ticks = packet.sender, None
            self._restart(packet.sequence)
        self._heard_seconds = now_seconds
        return True

    def _restart(self, sequence: int) -> None:
        self.lost_pictures += bool(self._parts)
        self._next = sequence
        self._waiting.clear()
        self._parts.clear()
        self._gap_at = None
        self._need_key = True

    def _advance(self, now_seconds: float) -> None:
        assert self._next is not None
        while (packet := self._waiting.pop(self._next, None)) is not None:
            self._next = (self._next + 1) & 0xFFFF
            if not packet.data:
                continue
            if self._parts and packet.timestamp != self._parts[0].timestamp:
                self._complete(now_seconds)  # a sender that sets no markers
            self._parts.append(packet)
            if packet.marker:
                self._complete(now_seconds)
            elif len(self._parts) > _MOST_PACKETS:
                self._restart(self._next)
                return

    def _lose_patience(self, now_seconds: float) -> None:
        """Go on behind a packet that has been missing for too long."""
        if not self._waiting:
            self._gap_at = None
        elif self._gap_at is None or self._gap_at != self._next:
            self._gap_at, self._gap_since_seconds = self._next, now_seconds
        elif now_seconds - self._gap_since_seconds > _PATIENCE_SECONDS:
            missing = self._gap_at
            self._next = min(self._waiting, key=lambda sequence: (sequence - missing) & 0xFFFF)
            self._parts.clear()
            self._gap_at = None
            self.lost_pictures += 1
            # The rest of the torn picture is no key picture, so it is passed over like all that depends on it.
            self._need_key = True
            self._advance(now_seconds)

    def _complete(self, now_seconds: float) -> None:
        packets, self._parts = self._parts, []
        data = b"".join(packet.data for packet in packets)
        codec = packets[0].codec
        key = is_key(codec, data)
        sent_seconds = self._unwrapped(packets[0].timestamp) / CLOCK_HZ
        if self._need_key and not key:
            self.lost_pictures += 1
            return
        self._need_key = False
        self._deliver(CodedPicture(codec, data, key, sent_seconds, now_seconds))

    def _unwrapped(self, timestamp: int) -> int:
        """Ticks that do not begin again after 2**32 of them."""
        if self._ticks is None:
            self._ticks = timestamp
        step = (timestamp - self._ticks) & 0xFFFFFFFF
        self._ticks += step if step < 1 << 31 else step - (1 << 32)
        return self._ticks

    def _asks(self, now_seconds: float) -> bool:
        if self._asked_seconds is None:
            # A sender begins with a key picture, and need not be asked for a second one at once.
            self._asked_seconds = now_seconds
        if not self._need_key or now_seconds - self._asked_seconds < _ASK_EVERY_SECONDS:
            return False
        self._asked_seconds = now_seconds
        return True


def is_key(codec: str, data: bytes) -> bool:
    """Whether a coded picture can be decoded without others.

    VP8: the frame tag's lowest bit is 0 and the start code follows (RFC 6386, 9.1). H.264: there are a sequence
    parameter set and a slice of an IDR picture (NAL unit types 7 and 5).
    """
    if codec == "VP8":
        return len(data) >= 10 and not data[0] & 1 and data[3:6] == b"\x9d\x01\x2a"
    kinds = nal_kinds(data)
    return 5 in kinds and 7 in kinds


def nal_kinds(data: bytes) -> set[int]:
    """Types of the first NAL units in an H.264 byte stream with start codes; real pictures have a few dozen at most."""
    kinds: set[int] = set()
    at = data.find(b"\x00\x00\x01")
    for _ in range(_MOST_UNITS):
        if not 0 <= at < len(data) - 3:
            break
        kinds.add(data[at + 3] & 0x1F)
        at = data.find(b"\x00\x00\x01", at + 3)
    return kinds
