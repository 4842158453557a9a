"""What every consumer of patch sets has in common: its shape, and how a run ends for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from arr_stream.patch_set import PatchSet
from arr_stream.types import Frame

EndReason = Literal["finished", "interrupted", "damaged", "failed"]

UNREAD_SECONDS = 2.0
"""A run that was told to end waits no longer for somebody who takes nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, for consumers that write it down.

    Args:
        reason: `finished`, `interrupted` (Ctrl-C), `damaged` (the source broke off) or `failed`.
        dropped: Frames that were never shown to the consumers.
        error: One line, where there was an error.
        counters: More numbers about the run; plain JSON values.
    """

    reason: EndReason = "finished"
    dropped: int = 0
    error: str | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *, failed: bool) -> Outcome:
        """What is known when nobody says more."""
        return cls("failed" if failed else "finished")


class Consumer(Protocol):
    """Anything that frames and their patch sets are handed to, in order."""

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Take one frame; `patches.index == frame.index`. Neither is changed.

        Raises:
            OutputError: The output cannot be written.
        """
        ...

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Finish the output so that it is whole; harmless when called again.

        What was taken so far is kept, whether or not the run `failed`. An output that never got a frame leaves no file.
        """
        ...


@runtime_checkable
class Waits(Protocol):
    """A consumer that may have to wait for somebody else, such as the reader of a pipe.

    Attributes:
        stop: Set when the run is to end; waiting is given up then. `consume` raises `KeyboardInterrupt` in that case.
    """

    stop: threading.Event | None


def total_ms(latency_ms: Mapping[str, float]) -> float:
    """Milliseconds of one frame: its `total` where the clock's owner gave one, otherwise the sum of its stages."""
    return float(latency_ms["total"]) if "total" in latency_ms else float(sum(latency_ms.values()))
