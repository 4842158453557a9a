"""Times for live pictures: the source's own where they can be believed, the arrival's where they cannot."""

from __future__ import annotations

_JUMP_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0


class ArrivalClock:
    """Places pictures on one time line that starts at 0.0 and never goes back.

    The source's own steps are kept, since arrival is uneven. Its clock is taken to have changed, and the picture is
    placed by its arrival, when its time goes back, or runs ahead of the arrival, by more than a second in one step, or
    has lagged behind by more than a second for five (a burst that catches up after a pause of the network is over by
    then).
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._last_arrival = 0.0
        self._forget()

    def _forget(self) -> None:
        self._last_own: float | None = None
        self._shift = 0.0
        self._least_lag = 0.0
        self._lagging_since: float | None = None

    def restart(self) -> None:
        """The next picture comes from a new connection, whose times have nothing to do with the ones before."""
        self._forget()

    def place(self, own_seconds: float | None, arrival_seconds: float) -> float:
        """The time of the next picture.

        Args:
            own_seconds: What the source says, on whatever clock; None where it says nothing.
            arrival_seconds: When it came, on a clock that never goes back.
        """
        placed = None if own_seconds is None else self._by_own(own_seconds, arrival_seconds)
        if placed is None:
            placed = self._by_arrival(arrival_seconds)
            if own_seconds is not None:
                self._shift = placed - own_seconds
                self._least_lag = arrival_seconds - placed
                self._lagging_since = None
        if own_seconds is not None:
            self._last_own = own_seconds
        self._last = placed if self._last is None else max(placed, self._last)
        self._last_arrival = arrival_seconds
        return self._last

    def _by_arrival(self, arrival_seconds: float) -> float:
        if self._last is None:
            return 0.0
        return self._last + max(0.0, arrival_seconds - self._last_arrival)

    def _by_own(self, own_seconds: float, arrival_seconds: float) -> float | None:
        """The place that the source tells; None where its clock is new, or has changed."""
        if self._last_own is None:
            return None
        step = own_seconds - self._last_own
        if step < -_JUMP_SECONDS or step - (arrival_seconds - self._last_arrival) > _JUMP_SECONDS:
            return None
        lag = arrival_seconds - own_seconds - self._shift
        self._least_lag = min(self._least_lag, lag)
        if lag - self._least_lag <= _JUMP_SECONDS:
            self._lagging_since = None
        elif self._lagging_since is None:
            self._lagging_since = arrival_seconds
        elif arrival_seconds - self._lagging_since > _PATIENCE_SECONDS:
            self._shift += lag - self._least_lag
            self._lagging_since = None
        return own_seconds + self._shift
