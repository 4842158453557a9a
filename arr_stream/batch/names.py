"""What the outputs of each file of a batch are called: unique, safe on any file system, and the same on every run."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit

_MOST_BYTES = 80
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
"""Devices of Windows, whatever ending they bear."""


def assign_names(sources: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """A name for every source.

    A source alone with its stem is called by it. Those that share one are told apart by their endings, then by the
    folders that they lie in, then by a hash of the whole path: whatever comes first is enough, for each by itself, so
    that no name depends on the order.

    Args:
        sources: Absolute paths or addresses, each once.
        known: Names that were given before; their sources keep them.

    Returns:
        By source. No two names are equal, also where case and ways to write an accent do not count.
    """
    known = known or {}
    names = {source: known[source] for source in sources if source in known}
    taken = {_key(name) for name in known.values()}
    left = [source for source in sources if source not in names]
    for level in range(_LEVELS):
        wished = {source: _candidate(source, level) for source in left}
        counts = Counter(_key(name) for name in wished.values())
        settled = [source for source in left if counts[_key(wished[source])] == 1 and _key(wished[source]) not in taken]
        names.update((source, wished[source]) for source in settled)
        # What two wanted is nobody's: a later run may bring a third.
        taken.update(_key(name) for name in wished.values())
        left = [source for source in left if source not in names]
    for source in left:
        names[source] = _numbered(_candidate(source, _LEVELS - 1), taken)
    return {source: names[source] for source in sources}


_LEVELS = 5


def _candidate(source: str, level: int) -> str:
    """A name that tells more of the source with every level."""
    path = _path(source)
    parent = path.parent.name
    if level == 0:
        return safe_name(path.stem)
    if level == 1:
        return safe_name(_joined(path.stem, path.suffix.lstrip(".")))
    if level == 2:
        return safe_name(_joined(parent, path.stem))
    if level == 3:
        return safe_name(_joined(parent, path.stem, path.suffix.lstrip(".")))
    return safe_name(path.stem, mark=_hash(source))


def _numbered(name: str, taken: set[str]) -> str:
    number = 2
    while _key(f"{name}-{number}") in taken:
        number += 1
    taken.add(_key(f"{name}-{number}"))
    return f"{name}-{number}"


def safe_name(text: str, *, mark: str = "") -> str:
    """The text as the name of a folder: letters, digits, `.`, `_` and `-`, in any script; at most 80 bytes of UTF-8.

    Args:
        text: Anything.
        mark: Stands at the end, whatever has to be cut off before it.
    """
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))
    kept = "".join(letter if _harmless(letter) else "_" for letter in text).lstrip(".-").rstrip(".")
    if not kept.strip("_"):
        kept = "video"
    if kept.partition(".")[0].casefold() in _RESERVED:
        kept = f"video-{kept}"
    if len(kept.encode()) > _MOST_BYTES and not mark:
        mark = _hash(text)
    if not mark:
        return kept
    room = _MOST_BYTES - len(mark) - 1
    return f"{kept.encode()[:room].decode('utf-8', 'ignore').rstrip('.-')}-{mark}"


def _harmless(letter: str) -> bool:
    return letter in "._-" or unicodedata.category(letter)[0] in "LMN"


def _joined(*parts: str) -> str:
    return "-".join(part for part in parts if part)


def _path(source: str) -> PurePosixPath:
    """Path of a file, or of an address without what is asked of its server."""
    return PurePosixPath(urlsplit(source).path if "://" in source else source)


def _key(name: str) -> str:
    """Equal for names that some file system would take for the same."""
    return unicodedata.normalize("NFC", name.casefold())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def all_unique(names: Iterable[str]) -> bool:
    """Whether no file system takes two of these for the same."""
    keys = [_key(name) for name in names]
    return len(keys) == len(set(keys))
