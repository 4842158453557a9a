"""Mutations that keep the structure of a format valid, so that they reach the code behind its first checks."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Plain = Callable[[bytes], bytes]
"""Mutation of plain bytes, libFuzzer's own."""
Mutation = Callable[[random.Random, bytes, Plain], bytes]

_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 2**64 - 1, 0.5, 1e308, 10**400, float("nan"), float("inf")),
    *("", "a", "\ud800", "\x1b[31m", "x" * 3000, [], {}, [[]], {"a": 1}),
)


def json_value(rng: random.Random, data: bytes, plain: Plain) -> bytes:
    """Remove, duplicate, rename, nest or replace a value of a JSON document."""
    try:
        root: Any = json.loads(data)
        holders = list(_holders(root))
    except (ValueError, RecursionError):
        return plain(data)
    if not holders:
        return json.dumps(rng.choice(_ODD_VALUES)).encode()
    holder = rng.choice(holders)
    key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(("type", "", "__class__", "x" * 200))] = holder[key]
        case 1:
            holder[key:key] = [holder[key]] * rng.choice((1, 100))
        case 2:
            holder[key] = [holder[key]]
        case _:
            holder[key] = rng.choice(_ODD_VALUES)
    return json.dumps(root).encode()


def _holders(value: Any) -> Any:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if children:
        yield value
    for child in children:
        yield from _holders(child)


def json_line(rng: random.Random, data: bytes, plain: Plain) -> bytes:
    """Mutate a line of JSON lines."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = json_value(rng, lines[at], plain)
    return b"\n".join(lines)


def png_chunk(rng: random.Random, data: bytes, plain: Plain) -> bytes:
    """Mutate the body of a PNG's chunk and correct its checksum, which readers compare first."""
    start = data.find(b"\x89PNG") + 8
    if start < 8:
        return plain(data)
    at, out, left = start, bytearray(data[:start]), rng.randrange(6)
    while at + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if left == 0 and body:
            body = plain(body)
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        left, at = left - 1, at + 12 + size
    return bytes(out)


def safetensors_header(rng: random.Random, data: bytes, plain: Plain) -> bytes:
    """Mutate the JSON header of a safetensors file, and correct its length nine times out of ten."""
    size = int.from_bytes(data[:8], "little")
    if size > len(data):
        return plain(data)
    header = json_value(rng, data[8 : 8 + size], plain)
    stated = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(header) + 1))
    return struct.pack("<Q", stated) + header + data[8 + size :]


def zip_member(rng: random.Random, data: bytes, plain: Plain) -> bytes:
    """Mutate, rename, duplicate or remove a member of a zip archive, which itself stays valid."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # An earlier mutation damaged the archive; zipfile raises many kinds.
        return plain(data)
    if not members:
        return plain(data)
    at = rng.randrange(len(members))
    name, body = members[at]
    match rng.randrange(6):
        case 0:
            del members[at]
        case 1:
            members[at] = (rng.choice(("archive/code/x.py", "archive/constants.pkl", "../x", "archive/data.pkl")), body)
        case 2:
            members.append((name, body))
        case _:
            members[at] = (name, plain(body))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, body in members:
            archive.writestr(zipfile.ZipInfo(name), body)
    return out.getvalue()
