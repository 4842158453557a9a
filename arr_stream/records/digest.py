"""A hash of what records say, and of nothing that may change from one run to the next.

The same input, settings and versions give the same digest, whoever ran it, where, and how fast. It covers the grid, the
questions and the budget of the header, and every frame and answer; what took how long, what the source is called, the
settings, and what was installed are left out (`Written.volatile`), so that records can be compared over machines and
paths. The end line is not part of it: that is where it stands.
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
        """Take one line, as plain JSON values; an end line changes nothing."""
        if record["type"] != "end":
            self._hash.update(canonical(record) + b"\n")

    def hexdigest(self) -> str:
        """The digest of all lines so far: 64 hexadecimal digits."""
        return self._hash.hexdigest()


def canonical(record: Mapping[str, Any]) -> bytes:
    """One line without what may differ between two runs of the same; the order of its keys does not count."""
    header = record["type"] == "header"
    kept = {key: record.get(key) for key in _HEADER} if header else comparable(record)
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def comparable(record: Mapping[str, Any]) -> Record:
    """A copy of a frame or an answer without what a clock said."""
    kept = {key: value for key, value in record.items() if key not in VOLATILE}
    if isinstance(model := kept.get("model"), Mapping):
        kept["model"] = comparable(model)
    return kept
