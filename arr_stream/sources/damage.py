"""Damage in media files: lost or unreliable frames, and truncated files.

FFmpeg often resynchronises without an error, so unreported damage is derived from the packets themselves, and from the
sizes that the file's elements declare.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from arr_stream.sources.base import SourceStats

_MOST_PENDING = 4096
_MOST_REORDERED = 32
"""Largest delay, in packets, of a decoded picture behind one that was sent later."""


@dataclass(slots=True, eq=False)
class Ticket:
    """Packet followed through the decoder; `DamageLog.received` attaches it to the picture decoded from it.

    Args:
        number: Number of packets sent before.
        key: Decoding can start here.
        ticks: Presentation time, or decoding time without one.
        hidden: The packet need not yield a picture: an edit list cuts it off, or it leads the first keyframe.
        unreliable: The packet is incomplete, or its picture may refer to one that is lost or damaged.
        refused: The decoder raised an error for it.
    """

    number: int
    key: bool
    ticks: int | None
    hidden: bool
    unreliable: bool = False
    refused: bool = False


class DamageLog:
    """Log that follows packets through the decoder, marks unreliable pictures, and counts lost ones.

    Pictures are unreliable from damage on until the next keyframe. A file whose first packet is a keyframe promises a
    picture for it; without one (a recording of a broadcast starts anywhere), errors before the first sound picture are
    not damage.

    Args:
        stats: Counters to update.
        key_ticks: Time of the file's first keyframe in its index; a parser does not recognise a damaged keyframe.

    Attributes:
        pending: Packets without a picture so far, oldest first.
        last_key: The last keyframe that was sent.
        lost_start: Time of the first keyframe in ticks, if it is lost.
    """

    def __init__(self, stats: SourceStats, key_ticks: int | None = None) -> None:
        self.pending: deque[Ticket] = deque()
        self.last_key: Ticket | None = None
        self.lost_start: int | None = None
        self._first: Ticket | None = None
        self._stats, self._key_ticks = stats, key_ticks
        self._begun = self._hides = self._unreliable = False
        self._sent = self._received = 0
        self._leading_until: int | None = None

    def sending(self, packet: Packet[VideoStream], *, incomplete: bool) -> None:
        """Note a packet before it is decoded; `incomplete` if some of its data are missing."""
        ticks = _ticks(packet)
        ticket = Ticket(self._sent, packet.is_keyframe, ticks, packet.is_discard)
        self._sent += 1
        if self._first is None:
            self._first = ticket
            ticket.key |= self._key_ticks is not None and self._key_ticks in (packet.pts, packet.dts)
            self._begun = ticket.key and not ticket.hidden
        elif self.last_key is self._first and ticks is not None and self._first.ticks is not None:
            ticket.hidden |= ticks < self._first.ticks
        if ticket.key:
            self.last_key = ticket
            # Pictures that are shown before a keyframe and decoded after it may refer to those before it.
            self._leading_until = ticks if self._unreliable else None
            self._unreliable = False
        self._unreliable |= incomplete
        leading = self._leading_until is not None and ticks is not None and ticks < self._leading_until
        ticket.unreliable = self._unreliable or leading
        self.pending.append(ticket)
        if len(self.pending) > _MOST_PENDING:
            self._stats.lost_frames += self.pending.popleft().unreliable and self._begun

    def failed(self) -> bool:
        """Note that the decoder refused a packet; return whether that is damage."""
        if self._begun:
            # With frame threads an error arrives some packets late: it belongs to the oldest one without a picture.
            rest = (ticket for ticket in self.pending if not ticket.refused)
            if (oldest := next(rest, None)) is not None:
                oldest.refused = oldest.unreliable = True
            self._spoil(rest)
        return self._begun

    def expects(self, picture: VideoFrame) -> Ticket | None:
        """Return the packet that a picture was decoded from, by its times; None if no packet matches."""
        # PyAV could carry an object along, but worker threads of the decoder would then wait for the interpreter.
        ticks = _ticks(picture)
        return next((each for each in self.pending if each.ticks == ticks), None)

    def received(self, picture: VideoFrame) -> None:
        """Note a picture that was decoded, and attach its ticket."""
        ticket = picture.opaque = self.expects(picture)
        if ticket is None:
            # One packet may yield two pictures, for example: then counting by packets does not work.
            self._hides = True
        else:
            if not self._received:
                self._note_start(ticket)
            self._received += 1
            self._settle(ticket)
            if picture.is_corrupt and self._begun:
                ticket.unreliable = True
                self._spoil(self.pending)
        self._stats.concealed_frames += self._begun and unreliable(picture)
        self._begun |= not picture.is_corrupt

    def missing(self, *, every: bool) -> list[Ticket]:
        """Return the packets whose pictures should have come by the end; all if the decoder broke off (`every`)."""
        # PyAV does not always report that the decoder breaks off while it is drained.
        every = every or (self._received > 2 * _MOST_REORDERED and not self._hides)
        lost = [ticket for ticket in self.pending if ticket.unreliable or (every and not ticket.hidden)]
        return lost if self._received else []

    def finish(self, *, every: bool) -> None:
        """Count the `missing` frames as lost."""
        self._stats.lost_frames += len(self.missing(every=every))
        self.pending.clear()

    def _note_start(self, ticket: Ticket) -> None:
        """Determine from the first picture if the file's first keyframe is lost, and which pictures refer to it."""
        first = self._first
        if first is None or not first.key or first.hidden or None in (first.ticks, ticket.ticks):
            return
        if ticket is not first and (ticket.ticks or 0) > (first.ticks or 0):
            self.lost_start = first.ticks
            for each in self.pending:
                each.unreliable |= each.number < ticket.number

    def _settle(self, ticket: Ticket) -> None:
        """Remove a ticket from the list, together with the overdue ones."""
        self.pending.remove(ticket)
        while self.pending and ticket.number - self.pending[0].number > _MOST_REORDERED:
            overdue = self.pending.popleft()
            # Packets without a picture are normal (hidden frames, second fields), but not in the middle of damage.
            if overdue.unreliable and self._begun:
                self._stats.lost_frames += 1
            else:
                self._hides = True

    def _spoil(self, tickets: Iterable[Ticket]) -> None:
        """Mark packets as unreliable, up to a keyframe."""
        for ticket in tickets:
            if ticket.key:
                return
            ticket.unreliable = True
        self._unreliable = True


def _ticks(timed: Packet[VideoStream] | VideoFrame) -> int | None:
    return timed.dts if timed.pts is None else timed.pts


def unreliable(picture: VideoFrame) -> bool:
    """Return True if a picture is damaged, or may refer to one that is."""
    ticket = picture.opaque
    return picture.is_corrupt or (isinstance(ticket, Ticket) and ticket.unreliable)


def is_broken(file: IO[bytes], container: str) -> bool:
    """Return True if a file ends before an element that its header declares, or a Matroska file is damaged inside.

    FFmpeg reads such files to their end without an error, skips damaged elements of Matroska and ignores its checksums.

    Args:
        file: The file; its position stays as it is.
        container: FFmpeg's name of its format; others than Matroska, AVI, MP4 and MPEG-TS count as whole.

    Raises:
        OSError: It cannot be read.
    """
    place = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(4096)
    try:
        match container:
            case "matroska,webm":
                return not _whole_matroska(file, size)
            case "avi":
                # Some writers count the 8 bytes of the header as well.
                return int.from_bytes(head[4:8], "little") > size
            case "mov,mp4,m4a,3gp,3g2,mj2":
                return _end_of_boxes(file, size) > size
            case "mpegts":
                # Packets of 188 bytes, in recordings of some cameras with a time of 4 bytes before each.
                start, length = (0, 188) if head[:1] == b"G" else (4, 192)
                return (
                    head[start : start + 1] == head[start + length : start + length + 1] == b"G" and size % length > 0
                )
        return False
    finally:
        file.seek(place)


_SEGMENT, _CLUSTER, _BLOCK_GROUP, _TRACKS, _TRACK = 0x18538067, 0x1F43B675, 0xA0, 0x1654AE6B, 0xAE
_BLOCKS, _TRACK_NUMBER, _CRC = (0xA1, 0xA3), 0xD7, 0xBF
_UNKNOWN_SIZE = -1
_CHUNK_BYTES = 1 << 20
_MOST_ELEMENTS = 4_000_000
"""Limit of elements, above that of a feature film; a file of tiny elements would take minutes."""


def _whole_matroska(file: IO[bytes], size: int) -> bool:
    """Check the elements of the segment: their ends, the tracks of blocks, and the checksums of clusters."""
    place, ends, tracks, cluster = 0, [size], set[int](), (0, 0)
    for _ in range(_MOST_ELEMENTS):
        if place >= size:
            return place == size
        while place >= ends[-1]:
            if place != ends.pop():
                return False
            if len(ends) == 1:
                # FFmpeg does not read what follows the segment either.
                return True
        file.seek(place)
        head = file.read(24)
        name = _variable_int(head, 0, most=4)
        length = name and _variable_int(head, name[1], most=8)
        if not name or not length:
            return False
        identity, start = int.from_bytes(head[: name[1]]), name[1] + length[1]
        end = ends[-1] if length[0] == _UNKNOWN_SIZE else place + start + length[0]
        if end > ends[-1]:
            return False
        place += start
        if identity in (_SEGMENT, _CLUSTER, _BLOCK_GROUP, _TRACKS, _TRACK):
            if identity == _CLUSTER and len(ends) > 2:
                return False  # clusters in clusters, whose checksums would be read again and again
            # A cluster of unknown size ends where the next element of the segment begins.
            if length[0] != _UNKNOWN_SIZE or identity == _SEGMENT:
                ends.append(end)
            if identity == _CLUSTER:
                cluster = place, end
            continue
        if identity == _CRC and place - start == cluster[0] and length[0] == 4:
            checksum = int.from_bytes(head[start : start + 4], "little")
            if cluster[1] != ends[-1] or _checksum(file, place + 4, end=cluster[1]) != checksum:
                return False
        if identity == _TRACK_NUMBER:
            tracks.add(int.from_bytes(head[start : start + length[0]]))
        elif identity in _BLOCKS:
            track = _variable_int(head, start, most=8)
            if track is None or track[0] not in tracks:
                return False
        place = end
    return True


def _checksum(file: IO[bytes], start: int, *, end: int) -> int:
    checksum = 0
    file.seek(start)
    while start < end and (read := file.read(min(end - start, _CHUNK_BYTES))):
        checksum, start = zlib.crc32(read, checksum), start + len(read)
    return checksum


def _variable_int(head: bytes, start: int, *, most: int) -> tuple[int, int] | None:
    """Return a number of EBML, -1 for an unknown one, and its length in bytes; None if it is not valid."""
    if start >= len(head) or not head[start]:
        return None
    count = 9 - head[start].bit_length()
    if count > most or start + count > len(head):
        return None
    mask = (1 << 7 * count) - 1
    value = int.from_bytes(head[start : start + count]) & mask
    if most == 4:
        return None if value == mask else (value, count)
    return (_UNKNOWN_SIZE if value == mask else value), count


def _end_of_boxes(file: IO[bytes], size: int) -> int:
    """Return the end of the last box that begins in the file."""
    end = 0
    for _ in range(_MOST_ELEMENTS):
        if end + 8 > size:
            break
        file.seek(end)
        head = file.read(16)
        length = int.from_bytes(head[:4])
        if length == 1:
            length = int.from_bytes(head[8:])
        if length < 8 or not head[4:8].isalnum():
            # 0 reaches to the end of the file; anything else is padding.
            break
        end += length
    return end
