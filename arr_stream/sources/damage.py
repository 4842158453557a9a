"""Damage in media files: lost or unreliable frames, and truncated files.

FFmpeg often resynchronises without an error, so unreported damage is derived from the packets themselves, from the
file's header, and from the sizes that its elements declare.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO

import numpy as np
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
        place: Position in the file, in bytes; None if the demuxer does not say.
        ticks: Presentation time, or decoding time without one.
        hidden: The packet need not yield a picture: an edit list cuts it off, or it leads the first keyframe.
        unreliable: The packet is incomplete, or its picture may refer to one that is lost or damaged.
    """

    number: int
    key: bool
    place: int | None
    ticks: int | None
    hidden: bool
    unreliable: bool = False


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
        self._lost: deque[Ticket] = deque(maxlen=_MOST_REORDERED)
        self._sent = self._received = 0
        self._leading_until: int | None = None

    def sending(self, packet: Packet[VideoStream], *, incomplete: bool) -> None:
        """Note a packet before it is decoded.

        Args:
            packet: The packet.
            incomplete: Some of its data are missing.
        """
        ticks = _ticks(packet)
        ticket = Ticket(self._sent, packet.is_keyframe, packet.pos, ticks, packet.is_discard)
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
        if len(self.pending) == _MOST_PENDING:
            self.pending.popleft()
        self.pending.append(ticket)

    def failed(self) -> bool:
        """Note that the decoder refused a packet; return whether that is damage."""
        if not self._begun:
            self._stats.undecodable_packets += 1
            return False
        # With frame threads an error arrives some packets late: it belongs to the oldest one without a picture.
        if self.pending:
            self._lose(self.pending.popleft())
        self._spoil()
        return True

    def expects(self, picture: VideoFrame) -> Ticket | None:
        """Return the packet that a picture was decoded from, by its times; None if no packet matches."""
        # PyAV could carry an object along, but worker threads of the decoder would then wait for the interpreter.
        return _first_of(self.pending, picture)

    def received(self, picture: VideoFrame) -> None:
        """Note a picture that was decoded, and attach its ticket."""
        ticket = picture.opaque = self.expects(picture) or self._take_back(picture)
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
                self._spoil()
        self._stats.concealed_frames += self._begun and unreliable(picture)
        self._begun |= not picture.is_corrupt

    def missing(self, *, every: bool) -> list[Ticket]:
        """Return the packets whose pictures should have come by the end.

        Args:
            every: The decoder is known to have broken off, so none of them is a hidden frame.
        """
        # PyAV does not always report that the decoder breaks off while it is drained.
        every = every or (self._received > 2 * _MOST_REORDERED and not self._hides)
        lost = [ticket for ticket in self.pending if ticket.unreliable or (every and not ticket.hidden)]
        return lost if self._received else []

    def finish(self, *, every: bool) -> None:
        """Count the `missing` frames as lost."""
        for ticket in self.missing(every=every):
            self._lose(ticket)
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

    def _take_back(self, picture: VideoFrame) -> Ticket | None:
        """Return the ticket of a picture counted as lost because an error of its neighbour was ascribed to it."""
        found = _first_of(self._lost, picture)
        if found is not None:
            self._lost.remove(found)
            self._stats.lost_frames -= 1
        return found

    def _settle(self, ticket: Ticket) -> None:
        """Remove a ticket from the list, together with the overdue ones."""
        if ticket not in self.pending:
            return
        self.pending.remove(ticket)
        while self.pending and ticket.number - self.pending[0].number > _MOST_REORDERED:
            overdue = self.pending.popleft()
            # Packets without a picture are normal (hidden frames, second fields), but not in the middle of damage.
            if overdue.unreliable and self._begun:
                self._lose(overdue)
            else:
                self._hides = True

    def _lose(self, ticket: Ticket) -> None:
        self._lost.append(ticket)
        self._stats.lost_frames += 1

    def _spoil(self) -> None:
        """Mark pending packets as unreliable, up to a keyframe."""
        for ticket in self.pending:
            if ticket.key:
                return
            ticket.unreliable = True
        self._unreliable = True


def _ticks(timed: Packet[VideoStream] | VideoFrame) -> int | None:
    return timed.dts if timed.pts is None else timed.pts


def _first_of(tickets: Iterable[Ticket], picture: VideoFrame) -> Ticket | None:
    ticks = _ticks(picture)
    return next((each for each in tickets if each.ticks == ticks), None)


def unreliable(picture: VideoFrame) -> bool:
    """Return True if a picture is damaged, or may refer to one that is."""
    ticket = picture.opaque
    return picture.is_corrupt or (isinstance(ticket, Ticket) and ticket.unreliable)


def place_of(picture: VideoFrame) -> int | None:
    """Return the position of a picture's packet in the file, in bytes; None if unknown."""
    return picture.opaque.place if isinstance(picture.opaque, Ticket) else None


def is_broken(file: IO[bytes], container: str) -> bool:
    """Return True if a file's structure is broken: an element is truncated, or out of place.

    FFmpeg resynchronises there without an error, and ignores checksums. Only the headers of elements are read, except
    for transport streams and Matroska with checksums, which are read whole.

    Args:
        file: The file; its position stays as it is.
        container: FFmpeg's name of its format; unknown formats count as whole.

    Raises:
        OSError: It cannot be read.
    """
    check = _CHECKS.get(container)
    if check is None:
        return False
    place = file.tell()
    try:
        return not check(file, file.seek(0, os.SEEK_END))
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


def _whole_riff(file: IO[bytes], size: int) -> bool:
    place = 0
    while place + 8 <= size:
        file.seek(place)
        head = file.read(8)
        if head[:4] != b"RIFF":
            return True
        length = int.from_bytes(head[4:], "little")
        # Some writers count the header as well; recorders that are switched off leave 0.
        if place + length > size:
            return False
        place += 8 + length + length % 2 if length else size
    return True


def _whole_boxes(file: IO[bytes], size: int) -> bool:
    place = 0
    while place + 8 <= size:
        file.seek(place)
        head = file.read(16)
        length = int.from_bytes(head[:4])
        if length == 1:
            length = int.from_bytes(head[8:])
        if length < 8 or not head[4:8].isalnum():
            # 0 reaches to the end of the file; anything else is padding.
            return True
        place += length
    return place <= size


def _whole_tags(file: IO[bytes], size: int) -> bool:
    """Check the tags of an FLV file: audio, video with the kind of each picture, or data."""
    place = 9 + 4
    for _ in range(_MOST_ELEMENTS):
        if place >= size:
            break
        file.seek(place)
        head = file.read(12)
        place += 11 + int.from_bytes(head[1:4]) + 4
        if place > size or head[0] & 31 not in (8, 9, 18) or (head[0] & 31 == 9 and not head[11] & 0x70):
            return False
    return True


def _whole_packets(file: IO[bytes], size: int) -> bool:
    """Check a transport stream: rows of packets of 188 bytes, in some files with 4 before or 16 after each.

    The demuxer skips a picture without a header silently, so the headers are checked too.
    """
    file.seek(0)
    head = file.read(4 + 2 * 204)
    for length, start in ((188, 0), (192, 4), (204, 0)):
        if len(head) > start + length and head[start] == head[start + length] == 0x47:
            return size % length == 0 and _has_headers(file, length, start)
    return True


def _has_headers(file: IO[bytes], length: int, start: int) -> bool:
    """Return whether each unit begins with the code of a PES header, on all PIDs where most do."""
    with_code, without = np.zeros((2, 1 << 13), np.int64)
    file.seek(0)
    while read := file.read(_CHUNK_BYTES // length * length):
        rows = np.frombuffer(read, np.uint8, len(read) // length * length).reshape(-1, length)[:, start : start + 188]
        flags = rows[:, 3]
        # a unit begins here, it is not scrambled, and it has a payload
        rows = rows[(rows[:, 0] == 0x47) & (rows[:, 1] & 0x40 > 0) & (flags & 0xC0 == 0) & (flags & 0x10 > 0)]
        begin = np.where(rows[:, 3] & 0x20, 5 + rows[:, 4].astype(int), 4)
        rows, begin = rows[begin <= 188 - 3], begin[begin <= 188 - 3]
        code = rows[np.arange(len(rows))[:, None], begin[:, None] + np.arange(3)]
        pids = (rows[:, 1] & 31).astype(int) << 8 | rows[:, 2]
        has_code = (code == (0, 0, 1)).all(axis=1)
        # Joined recordings may carry tables on the same PID.
        is_table = (code[:, 0] == 0) & (code[:, 2] & 0x30 == 0x30)
        with_code += np.bincount(pids[has_code], minlength=1 << 13)
        without += np.bincount(pids[~has_code & ~is_table], minlength=1 << 13)
    return not ((without > 0) & (with_code > without)).any()


_CHECKS: dict[str, Callable[[IO[bytes], int], bool]] = {
    "matroska,webm": _whole_matroska,
    "avi": _whole_riff,
    "flv": _whole_tags,
    "mov,mp4,m4a,3gp,3g2,mj2": _whole_boxes,
    "mpegts": _whole_packets,
}
