"""When which fault comes: decided by a seed, before anything runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS: dict[str, str] = {
    "stall": "the source sends nothing until it is opened anew",
    "break": "the connection is reset",
    "vanish": "the camera is gone (ENODEV), and cannot be opened for a while",
    "corrupt": "packets with flipped bits",
    "resize": "the pictures change their size",
    "pts-back": "the source's clock goes back an hour",
    "pts-forward": "the source's clock goes forward a day",
    "clock-back": "the wall clock is set back an hour",
    "clock-forward": "the wall clock is set forward a day",
    "keyframe-raise": "the keyframe model throws",
    "keyframe-memory": "the keyframe model asks for more memory than there is",
    "keyframe-nan": "the keyframe model gives NaN",
    "keyframe-hang": "the keyframe model never comes back",
    "keyframe-kill": "the keyframe worker is killed (SIGKILL)",
    "consumer-block": "a consumer blocks for seconds while the source goes on",
    "disk-full": "no room is left for clips",
    "query": "other queries are asked",
    "models": "other keyframe models are chosen",
    "streams": "a stream is added and removed",
    "clients": "clients connect and vanish without a word",
    "server-kill": "the HTTP server of another stream is killed and started again",
}
"""Every kind of fault, and what happens."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come.

    Args:
        at_seconds: When, in seconds of the stream.
        kind: One of `KINDS`.
    """

    at_seconds: float
    kind: str


def plan_faults(
    kinds: Sequence[str], *, stream_seconds: float, first_seconds: float, gap_seconds: float, seed: int
) -> tuple[Planned, ...]:
    """Faults in an order drawn by the seed: every kind comes once before any comes again.

    Args:
        kinds: Which there are.
        stream_seconds: The end of the stream; no fault comes within one gap of it.
        first_seconds: When the first comes.
        gap_seconds: Mean time between two; each is drawn from half of it to one and a half.
        seed: The same plan for the same seed.
    """
    draw = random.Random(seed)
    planned: list[Planned] = []
    waiting: list[str] = []
    at_seconds = first_seconds
    while kinds and at_seconds <= stream_seconds - gap_seconds:
        if not waiting:
            waiting = draw.sample(sorted(kinds), len(kinds))
        planned.append(Planned(at_seconds, waiting.pop()))
        at_seconds += gap_seconds * draw.uniform(0.5, 1.5)
    return tuple(planned)
