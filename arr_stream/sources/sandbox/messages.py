"""Messages between a sandboxed decoder and its parent: JSON with a length before it, over a pair of sockets.

JSON and not pickle: whoever has taken over the decoder must not be able to run anything in the parent by what it
sends. The parent never takes a descriptor from the child, and every value goes through one of the checks below.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
_HUGE = 1e300
_LONGEST_REPLY_BYTES = 1 << 16
_MOST_DESCRIPTORS = 32

Message = dict[str, Any]


class Garbled(Exception):
    """The other end sent what is no message."""


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


def receive(end: socket.socket, timeout_seconds: float) -> Message:
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
    return _parsed(_exactly(end, length, deadline))


def receive_with_files(end: socket.socket) -> tuple[Message, list[int]]:
    """Wait, in the child, for a message from the parent and the open files that come with it.

    Raises:
        EOFError: The parent is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(end, _LENGTH.size, _MOST_DESCRIPTORS)
    if not head:
        raise EOFError
    head += bytes(_exactly(end, _LENGTH.size - len(head), None))
    return _parsed(_exactly(end, _LENGTH.unpack(head)[0], None)), descriptors


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


def _parsed(body: bytearray) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise Garbled(type(exc).__name__) from exc
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise Garbled("no kind")
    return message


def whole(value: object, least: int, most: int) -> int:
    """A whole number from an untrusted message.

    Raises:
        Garbled: It is none, or not within the limits.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Garbled(f"a number that is not within {least} and {most}")
    return value


def number(value: object) -> float | None:
    """A number, or nothing, from an untrusted message.

    Raises:
        Garbled: It is neither, or not finite.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_HUGE < value < _HUGE:
        raise Garbled("number")
    return float(value)


def size(value: object, max_pixels: int) -> tuple[int, int]:
    """Width and height from an untrusted message.

    Raises:
        Garbled: They are none, or more pixels than `max_pixels`.
    """
    if not isinstance(value, list) or len(value) != 2:
        raise Garbled("size")
    width, height = (whole(side, 1, max_pixels) for side in value)
    if width * height > max_pixels:
        raise Garbled("size")
    return width, height


def clean(text: object, longest: int = 2000) -> str:
    """Text from an untrusted message without anything that could control a terminal.

    Raises:
        Garbled: It is no text.
    """
    if not isinstance(text, str):
        raise Garbled("no text")
    return "".join(char if char.isprintable() else "?" for char in text[:longest])
