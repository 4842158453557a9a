"""Messages between a pipeline and its keyframe worker, over two pipes.

A message is a pickle whose arrays follow it as raw bytes (pickle protocol 5, out of band), so that a picture is
written straight from its own memory. Both ends are the same program: nothing else can write to these pipes.

    uint32 n | n x uint64 length | pickle | buffer 1 | ... | buffer n-1
"""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any


def send(pipe: IO[bytes], message: Any) -> None:
    """Write one message and flush.

    Raises:
        OSError: The other end is gone.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    pipe.write(struct.pack(f"<I{len(parts)}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        pipe.write(part)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Wait for one message.

    Raises:
        EOFError: The other end closed, between messages or in the middle of one.
    """
    (count,) = struct.unpack("<I", _exactly(pipe, 4))
    lengths = struct.unpack(f"<{count}Q", _exactly(pipe, 8 * count))
    head, *buffers = [_exactly(pipe, length) for length in lengths]
    return pickle.loads(head, buffers=buffers)


def _exactly(pipe: IO[bytes], length: int) -> bytearray:
    """A writable buffer, because arrays are made over it without a copy."""
    data = bytearray(length)
    view = memoryview(data)
    filled = 0
    while filled < length:
        read = pipe.readinto(view[filled:])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        filled += read
    return data
