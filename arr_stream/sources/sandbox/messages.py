"""Messages between a sandboxed decoder and its parent: JSON with a length before it, over a pair of sockets.

JSON and not pickle: whoever has taken over the decoder must not be able to run anything in the parent by what it
sends. The parent never takes a descriptor from the child, and takes no value that does not fit the models below; what
they cannot know, such as how large a slot is, it checks where it uses the value.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from arr_stream.sources.base import SourceKind, SourceStats
from arr_stream.sources.sandbox.lockdown import Layers

SLOTS = 3
"""Places in shared memory, each for one frame."""

_LENGTH = struct.Struct("<I")
_LONGEST_REPLY_BYTES = 1 << 16
_MOST_DESCRIPTORS = 32
_COUNTERS = len(fields(SourceStats))

Message = dict[str, Any]
"""What the parent says."""

Whole = Annotated[int, Field(ge=0, le=1 << 53)]
Count = Annotated[int, Field(ge=1, le=1 << 53)]
Number = Annotated[float, Field(gt=-1e300, lt=1e300)]


class Garbled(Exception):
    """The other end sent what is no message."""


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Ready(_Reply):
    """It is closed in, and goes to work."""

    kind: Literal["ready"]
    layers: Layers


class Want(_Reply):
    """Files to be handed over, by their numbers."""

    kind: Literal["want"]
    numbers: Annotated[list[Whole], Field(max_length=16)]


class Alive(_Reply):
    """Pictures are being passed over."""

    kind: Literal["alive"]


class Info(_Reply):
    """What is known of the source; see `SourceInfo` for the fields."""

    kind: SourceKind
    size_wh: tuple[Count, Count]
    codec: str
    pixel_aspect: Annotated[float, Field(gt=0, lt=1e300)]
    average_fps: Number | None
    duration_seconds: Number | None
    num_frames: Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | None
    has_audio: bool
    rotation_degrees: Literal[0, 90, 180, 270]
    video_streams: Count
    start_offset_seconds: Number


class _Counted(_Reply):
    counters: Annotated[tuple[Whole, ...], Field(min_length=_COUNTERS, max_length=_COUNTERS)]


class Opened(_Counted):
    kind: Literal["info"]
    info: Info


class Delivered(_Counted):
    """A frame lies in a slot."""

    kind: Literal["frame"]
    slot: Annotated[int, Field(ge=0, lt=SLOTS)]
    index: int
    pts_seconds: Number
    size_wh: tuple[Count, Count]


class End(_Counted):
    kind: Literal["end"]


class Refusal(_Counted):
    """An error of `arr_stream.errors`, by the name of its class."""

    kind: Literal["error"]
    error: str
    message: str
    remedy: str | None


class Failure(_Counted):
    """Any other error."""

    kind: Literal["failed"]
    why: Literal["memory", "forbidden", "raised"]
    text: str


Told = Opened | Delivered | End | Refusal | Failure
"""What a decoder says of its source."""

Reply = Ready | Want | Alive | Told
_REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def send(end: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message, with open files.

    Raises:
        OSError: The other end is gone, or does not read.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    packet = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(end, [packet], list(descriptors)) if descriptors else end.send(packet)
    if sent < len(packet):
        end.sendall(packet[sent:])


def receive(end: socket.socket, timeout_seconds: float) -> Reply:
    """Wait for a message from a child that is not trusted; files that it sends are not accepted.

    Raises:
        TimeoutError: It is not there, or not in full, after so long.
        EOFError: The child has closed its end.
        Garbled: It is no message, or too long.
    """
    deadline = time.monotonic() + timeout_seconds
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size, deadline))
    if length > _LONGEST_REPLY_BYTES:
        raise Garbled(f"a message of {length} bytes")
    try:
        return _REPLY.validate_json(_exactly(end, length, deadline))
    except ValueError as exc:
        raise Garbled(str(exc)) from exc


def receive_with_files(end: socket.socket) -> tuple[Message, list[int]]:
    """Wait, in the child, for a message from the parent and the open files that come with it.

    Raises:
        EOFError: The parent is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(end, _LENGTH.size, _MOST_DESCRIPTORS)
    if not head:
        raise EOFError
    head += bytes(_exactly(end, _LENGTH.size - len(head), None))
    return dict(json.loads(_exactly(end, _LENGTH.unpack(head)[0], None))), descriptors


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _exactly(end: socket.socket, length: int, deadline: float | None) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            end.settimeout(left)
        read = end.recv_into(view)
        if not read:
            raise EOFError
        view = view[read:]
    return data


def clean(text: str, longest: int = 2000) -> str:
    """Text from a decoder without anything that could control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:longest])
