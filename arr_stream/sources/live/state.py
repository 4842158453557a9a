"""What a live source tells about itself while it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

StateName = Literal["connecting", "live", "stalled", "reconnecting", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a live source is doing.

    Args:
        state: `connecting` before the first picture, `live` while pictures come, `stalled` when they have stopped
            coming, `reconnecting` from then, or from a break, until a picture is there again, `ended` when it is over
            as it should be, `failed` when it is over because of an error.
        message: One line that says why, without passwords; None where there is nothing to say.
        attempt: Which attempt at opening this is, 1 the first since the last picture.
        next_retry_seconds: How long it waits before the next attempt; None while it does not wait.
    """

    state: StateName
    message: str | None = None
    attempt: int = 0
    next_retry_seconds: float | None = None


OnState = Callable[[SourceState], None]
