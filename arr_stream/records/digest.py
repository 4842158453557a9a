"""Hash of the reproducible content of records.

The same input, settings and versions give the same digest for every user, path and speed. It covers the grid, the
queries and the budget of the header, and every frame and answer. It leaves out times, the source's name, the settings
and the installed versions (`Written.volatile`), so that records can be compared across machines and paths. The end line
is left out too, since it holds the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from arr_stream.records.schema import VOLATILE, Header, Record, written_fields

_HEADER = tuple(name for name, how in written_fields(Header).items() if not how.volatile)


class Digest:
    """SHA-256 over records, one after the other, as they are written or as they were read."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one line, as plain JSON values; an end line changes nothing."""
        if record["type"] != "end":
            self._hash.update(canonical(record) + b"\n")

    def hexdigest(self) -> str:
        """Return the digest of all lines so far: 64 hexadecimal digits."""
        return self._hash.hexdigest()


def canonical(record: Mapping[str, Any]) -> bytes:
    """Return one line without its volatile fields; the order of its keys does not matter."""
    header = record["type"] == "header"
    kept = {key: record.get(key) for key in _HEADER} if header else comparable(record)
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def comparable(record: Mapping[str, Any]) -> Record:
    """Return a copy of a frame or an answer without times."""
    kept = {key: value for key, value in record.items() if key not in VOLATILE}
    if isinstance(model := kept.get("model"), Mapping):
        kept["model"] = comparable(model)
    return kept
