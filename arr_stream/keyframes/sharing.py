"""Keyframe workers that several streams share, so that each model is loaded once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from arr_stream.config import Settings
from arr_stream.keyframes.base import PartName
from arr_stream.keyframes.generate import KeyframeRequest, Outcome
from arr_stream.keyframes.worker import KeyframeWorkers

_MOST_TICKETS = 256
_OF_MAKERS = {"keyframes", "clip", "sam", "models"}
_BUT_THE_SCHEDULE = {"keyframes": {"interval", "min_interval", "min_confidence", "text_interval", "window_share"}}


def maker_values(settings: Settings) -> str:
    """Return the settings that affect generation as JSON; equal for settings that can share workers."""
    return settings.model_dump_json(include=_OF_MAKERS, exclude=_BUT_THE_SCHEDULE)


def with_maker_values(settings: Settings, of: Settings) -> Settings:
    """Return the settings with the `maker_values` of others."""
    sections = of.model_dump(include=_OF_MAKERS, exclude=_BUT_THE_SCHEDULE)
    values = {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}
    return settings.with_values(values)


class WorkerPool:
    """Pool of keyframe workers; streams with the same models share them. Thread-safe."""

    def __init__(self, make: Callable[[Settings], KeyframeWorkers] = KeyframeWorkers) -> None:
        self._make = make
        self._shared: dict[str, _Shared] = {}
        self._lock = threading.Lock()

    def lease(self, settings: Settings) -> Lease:
        """Return a lease of workers for these settings; the workers end when their last lease is closed."""
        key = maker_values(settings)
        with self._lock:
            self._shared = {key: shared for key, shared in self._shared.items() if not shared.ended}
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = _Shared(self._make(settings), self._lock)
            lease = Lease(shared)
            shared.arrived[lease] = []
        return lease


@dataclass(slots=True, eq=False)
class _Shared:
    """Workers with their leases.

    Args:
        lock: Lock of the pool.
        arrived: Outcomes that each lease has not collected yet.
        owners: Lease and frame index of each ticket; frame indices alone are not unique across streams.
        tickets: Numbers of the requests.
        ended: The last lease was closed.
    """

    workers: KeyframeWorkers
    lock: threading.Lock
    arrived: dict[Lease, list[Outcome]] = field(default_factory=dict)
    owners: dict[int, tuple[Lease, int]] = field(default_factory=dict)
    tickets: Iterator[int] = field(default_factory=itertools.count)
    ended: bool = False


class Lease:
    """One stream's share of the workers; a `KeyframeProvider`, made by `WorkerPool.lease`.

    It accepts nothing while the workers serve another stream; the pipeline retries on its next frame.
    """

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait as `KeyframeWorkers.wait_ready` does."""
        return self._shared.workers.wait_ready(timeout_seconds)

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        shared = self._shared
        with shared.lock:
            if self not in shared.arrived:
                return ()
            ticket = next(shared.tickets)
            # Register the owner first: a part may arrive as soon as the request is submitted.
            shared.owners[ticket] = self, request.frame.index
            accepted = shared.workers.submit(replace(request, frame=replace(request.frame, index=ticket)))
            if not accepted:
                del shared.owners[ticket]
            # Parts arrive within the timeout, so only expired tickets exceed this number.
            while len(shared.owners) > _MOST_TICKETS:
                del shared.owners[next(iter(shared.owners))]
        return accepted

    def collect(self) -> list[Outcome]:
        shared = self._shared
        with shared.lock:
            for outcome in shared.workers.collect():
                owner, index = shared.owners.get(outcome.index, (None, 0))
                if owner is not None and owner in shared.arrived:
                    shared.arrived[owner].append(replace(outcome, index=index))
            mine = shared.arrived.get(self, [])
            arrived = mine[:]
            mine.clear()
        return arrived

    def close(self) -> None:
        """Close the lease; closing the last one ends the workers."""
        shared = self._shared
        with shared.lock:
            shared.arrived.pop(self, None)
            shared.ended = not shared.arrived
        if shared.ended:
            shared.workers.close()
