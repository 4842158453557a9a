"""Changes to inputs, from a seeded generator: of plain bytes, of text, of JSON, of containers with lengths in them."""

from __future__ import annotations

import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

LARGEST_BYTES = 1 << 18
"""Inputs do not grow beyond this."""

CORPUS = Path(__file__).parent / "corpus"
"""Seeds that are texts, and what stands in files of a format (`tokens.json`, a character a byte)."""

NUMBERS = (
    *(0, 1, 2, 7, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31),
    *(2**bits - 1 for bits in (31, 32, 63, 64)),
)
TEXT_NUMBERS = (
    *tuple(
        b"0 -0 1 -1 0.5 1e-320 1e308 1e999 -1e999 nan inf -inf 255 256 65536 2147483647 2147483648 4294967296 "
        b"9223372036854775807 18446744073709551616 0x10 1_000 007 .5 5. 1e5 + - \xc2\xb2 \xd9\xa3".split()
    ),
    b"9" * 400,
    b"1" * 5000,
)


def tokens(name: str) -> tuple[bytes, ...]:
    """Return the tokens of a format."""
    found = json.loads((CORPUS / "tokens.json").read_text(encoding="ascii"))[name]
    return tuple(token.encode("latin-1") for token in found)


TEXTS = (*tokens("odd"), b"A" * 3000)
_FOUR = re.compile(rb"[A-Za-z][A-Za-z0-9 ]{3}")
_WORD = re.compile(rb"[A-Za-z_]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flip a few bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(rng: random.Random, data: bytes) -> bytes:
    """A number at the edge of its type, in any width and order of bytes, in place of what stands there."""
    width = rng.choice([w for w in (1, 2, 4, 8) if w <= len(data)])
    number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))) % (1 << 8 * width)
    at = rng.randrange(len(data) - width + 1)
    return data[:at] + number.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :]


def cut_out(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 16)) + data[end:]


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def fill(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + rng.choice((b"\x00", b"\xff", b" ", rng.randbytes(1))) * (end - start) + data[end:]


def move(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    rest = data[:start] + data[end:]
    at = rng.randint(0, len(rest))
    return rest[:at] + data[start:end] + rest[at:]


PLAIN: tuple[Mutation, ...] = (flip, flip, overwrite, overwrite, cut_out, repeat, truncate, fill, move)


def inserted(name: str) -> Mutation:
    """A token of the format, put in or over what stands there."""
    known = tokens(name)

    def insert(rng: random.Random, data: bytes) -> bytes:
        token = rng.choice(known)
        at = rng.randint(0, len(data))
        return data[:at] + token + data[at + rng.choice((0, len(token))) :]

    return insert


def words(rng: random.Random, data: bytes) -> bytes:
    """Text: a word or number is doubled, taken out, moved, or becomes an odd one."""
    parts = _WORD.findall(data)
    if not parts:
        return rng.choice(TEXTS)
    at = rng.randrange(len(parts))
    match rng.randrange(6):
        case 0:
            del parts[at]
        case 1:
            parts.insert(at, parts[rng.randrange(len(parts))])
        case 2:
            parts[at] = rng.choice(TEXT_NUMBERS)
        case 3:
            parts[at] = rng.choice(TEXTS)
        case 4:
            parts[at] *= rng.choice((2, 3, 200))
        case _:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
    return b"".join(parts)


def numbers(rng: random.Random, data: bytes) -> bytes:
    """Text: one of its numbers becomes another."""
    found = list(re.finditer(rb"[-+]?\d+(?:\.\d+)?", data))
    if not found:
        return words(rng, data)
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(TEXT_NUMBERS) + data[match.end() :]


def lines(rng: random.Random, data: bytes) -> bytes:
    """Text: a line is doubled, taken out or moved."""
    parts = data.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(parts))
    line = parts.pop(at)
    match rng.randrange(4):
        case 0:
            pass
        case 1:
            parts[at:at] = [line, line]
        case 2:
            parts.insert(rng.randint(0, len(parts)), line)
        case _:
            parts.insert(at, line.rstrip(b"\n"))
    return b"".join(parts)


def nested(rng: random.Random, data: bytes) -> bytes:
    """Text: brackets in brackets, deep enough to end a recursion."""
    pair = rng.choice(((b"[", b"]"), (b"(", b")"), (b'{"a":', b"}"), (b"{a=", b"}")))
    depth = rng.choice((10, 100, 2000, 30_000))
    at = rng.randint(0, len(data))
    return data[:at] + pair[0] * depth + rng.choice((b"", b"1", pair[1] * depth)) + data[at:]


TEXT: tuple[Mutation, ...] = (words, words, words, numbers, numbers, lines, nested, flip, truncate, cut_out, repeat)


def json_value(rng: random.Random, data: bytes) -> bytes:
    """JSON: one of its values is taken out, doubled, renamed, or becomes another."""
    try:
        root: Any = json.loads(data)
    except (ValueError, RecursionError):
        return words(rng, data)
    holders: list[Any] = []
    _collect(root, holders)
    if not holders:
        return json.dumps(_odd(rng)).encode()
    holder = rng.choice(holders)
    key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice([*(str(other) for other in holder), "type", "x" * 200, "", "__class__"])] = holder[key]
        case 1:
            holder[key:key] = [holder[key]] * rng.choice((1, 100))
        case 2:
            holder[key] = holders[rng.randrange(len(holders))] if rng.random() < 0.3 else [holder[key]]
        case _:
            holder[key] = _odd(rng)
    try:
        return json.dumps(root, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # It holds itself now.
        return words(rng, data)


def json_line(rng: random.Random, data: bytes) -> bytes:
    """JSON lines: one of them, as `json_value`."""
    parts = data.split(b"\n")
    at = rng.randrange(len(parts))
    parts[at] = json_value(rng, parts[at])
    return b"\n".join(parts)


def boxes(rng: random.Random, data: bytes) -> bytes:
    """Media of named parts with lengths (MP4, RIFF, PNG): a length, a name, or a whole part is changed."""
    found = list(_FOUR.finditer(data))
    if not found:
        return overwrite(rng, data)
    at = rng.choice(found).start()
    match rng.randrange(5):
        case 0 if at >= 4:
            return data[: at - 4] + _length(rng, ">", data[at - 4 : at]) + data[at:]
        case 1:
            return data[: at + 4] + _length(rng, "<", data[at + 4 : at + 8]) + data[at + 8 :]
        case 2:
            other = rng.choice(found)
            return data[:at] + other.group() + data[at + 4 :]
        case 3 if at >= 4:
            size = struct.unpack(">I", data[at - 4 : at])[0]
            part = data[at - 4 : at - 4 + min(size, 1 << 16)]
            return data[: at - 4] + part * rng.choice((0, 2, 3)) + data[at - 4 + len(part) :]
    behind = at + 4 + rng.randrange(64)
    number = struct.pack(rng.choice("<>") + "I", rng.choice(NUMBERS) % (1 << 32))
    return data[:behind] + number + data[behind + 4 :]


def png_sums(rng: random.Random, data: bytes) -> bytes:
    """A change inside a part of a PNG, with its checksum made right again, as readers look at that first."""
    start = data.find(b"\x89PNG")
    if start < 0:
        return boxes(rng, data)
    at, out, which = start + 8, bytearray(data[: start + 8]), rng.randrange(6)
    while at + 12 <= len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        body = data[at + 8 : at + 8 + size]
        if which == 0 and body:
            body = rng.choice((overwrite, flip, cut_out, repeat))(rng, body)
        which -= 1
        kind = data[at + 4 : at + 8]
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        at += 12 + size
    return bytes(out)


def _length(rng: random.Random, order: str, old: bytes) -> bytes:
    before = struct.unpack(order + "I", old.ljust(4, b"\x00"))[0]
    wanted = rng.choice((*NUMBERS, before + 1, before - 1, before * 2, before // 2, before + 8))
    return struct.pack(order + "I", wanted % (1 << 32))


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 1024, 1 + rng.randrange(len(data)))))


def _collect(value: Any, into: list[Any]) -> None:
    children = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    if children:
        into.append(value)
    for child in children:
        _collect(child, into)


def _odd(rng: random.Random) -> Any:
    text = rng.choice(TEXTS).decode("utf-8", "replace")
    number = rng.choice((*NUMBERS, -1, -(2**63), 0.5, 1e308, float("nan"), float("inf"), 10**400))
    return rng.choice(
        (None, True, False, number, number, text, text, "\ud800", [], {}, [[]], [number, text], {"a": text})
    )


def apply(rng: random.Random, data: bytes, mutations: Sequence[Mutation], others: Sequence[bytes]) -> bytes:
    """One to a few mutations after each other, or first a splice with another input; never empty, never too large."""
    if others and rng.random() < 0.08:
        other = rng.choice(others)
        data = data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
        data = rng.choice(mutations)(rng, data or b"\x00")[:LARGEST_BYTES]
    return data or b"\x00"
