"""Keyframe workers that several streams share: models are loaded once, however many streams run."""

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
_BUT_THE_SCHEDULE = {
    "keyframes": {"interval", "min_interval", "min_confidence", "text_interval", "window_share", "cut_threshold"}
}


def maker_values(settings: Settings) -> str:
    """Return the settings that affect generation, as text: equal for settings that can share workers."""
    return settings.model_dump_json(include=_OF_MAKERS, exclude=_BUT_THE_SCHEDULE)


def with_maker_values(settings: Settings, of: Settings) -> Settings:
    """Settings with the `maker_values` of others."""
    sections = of.model_dump(include=_OF_MAKERS, exclude=_BUT_THE_SCHEDULE)
    values = {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}
    return settings.with_values(values)


class WorkerPool:
    """Lends keyframe workers to streams; those with the same models share them. Any thread may call."""

    def __init__(self, make: Callable[[Settings], KeyframeWorkers] = KeyframeWorkers) -> None:
        self._make = make
        self._shared: dict[str, _Shared] = {}
        self._lock = threading.Lock()

    def lease(self, settings: Settings) -> Lease:
        """Workers for these settings; they end when the last lease of them is closed."""
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
    """Workers and their lessees.

    Args:
        lock: Of the pool.
        arrived: By lease, outcomes not collected yet.
        owners: By ticket, whose request it is, and its frame's index there: frames of different streams bear the same.
        tickets: Requests are numbered anew by these.
        ended: The last lease was closed.
    """

    workers: KeyframeWorkers
    lock: threading.Lock
    arrived: dict[Lease, list[Outcome]] = field(default_factory=dict)
    owners: dict[int, tuple[Lease, int]] = field(default_factory=dict)
    tickets: Iterator[int] = field(default_factory=itertools.count)
    ended: bool = False


class Lease:
    """One stream's share in the workers; a `KeyframeProvider`, made by `WorkerPool.lease`.

    Where the workers are busy with another stream, nothing is accepted, and the pipeline asks again on its next frame.
    """

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the workers are ready; see `KeyframeWorkers.wait_ready`."""
        return self._shared.workers.wait_ready(timeout_seconds)

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        shared = self._shared
        with shared.lock:
            if self not in shared.arrived:
                return ()
            ticket = next(shared.tickets)
            # Before the request is under way: its first part may arrive at once.
            shared.owners[ticket] = self, request.frame.index
            accepted = shared.workers.submit(replace(request, frame=replace(request.frame, index=ticket)))
            if not accepted:
                del shared.owners[ticket]
            # Parts of one request arrive within its time-out; far more recent ones have replaced it by then.
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
        """End it, and the workers with the last one."""
        shared = self._shared
        with shared.lock:
            shared.arrived.pop(self, None)
            shared.ended = not shared.arrived
        if shared.ended:
            shared.workers.close()
