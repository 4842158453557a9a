"""Keyframe workers that several streams share: models are loaded once, however many streams run."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from arr_stream.config import Settings
from arr_stream.keyframes.base import PartName
from arr_stream.keyframes.generate import KeyframeRequest
from arr_stream.keyframes.worker import KeyframeWorkers, Outcome

_MOST_TICKETS = 256
_OF_THE_SCHEDULE = {"interval", "min_interval", "min_confidence", "cut_threshold"}
_SECTIONS = {"clip", "sam", "models"}


def maker_values(settings: Settings) -> str:
    """What decides how keyframes are made, and nothing else: equal for settings that can share workers."""
    values = settings.model_dump(mode="json", include={"keyframes", *_SECTIONS})
    values["keyframes"] = {key: value for key, value in values["keyframes"].items() if key not in _OF_THE_SCHEDULE}
    return json.dumps(values, sort_keys=True)


@dataclass(slots=True, eq=False)
class _Shared:
    """Workers with all who lease them.

    Requests are numbered anew, since frames of different streams bear the same index.
    """

    workers: KeyframeWorkers
    leases: set[Lease] = field(default_factory=set)
    owners: dict[int, tuple[Lease, int]] = field(default_factory=dict)

    def hand_out(self) -> None:
        """Give what has arrived to those who asked for it."""
        for outcome in self.workers.collect():
            owner = self.owners.get(outcome.index)
            if owner is not None and owner[0] in self.leases:
                owner[0].arrived.append(replace(outcome, index=owner[1]))


class Lease:
    """One stream's share in the workers; a `KeyframeProvider`.

    Where the workers are busy with another stream, nothing is accepted, and the pipeline asks again on its next frame.
    """

    def __init__(self, pool: WorkerPool, shared: _Shared) -> None:
        self.arrived: list[Outcome] = []
        self._pool = pool
        self._shared = shared

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """See `KeyframeWorkers.wait_ready`."""
        return self._shared.workers.wait_ready(timeout_seconds)

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        return self._pool.submit(self, self._shared, request)

    def collect(self) -> list[Outcome]:
        return self._pool.collect(self, self._shared)

    def close(self) -> None:
        self._pool.give_back(self, self._shared)


class WorkerPool:
    """Lends keyframe workers to streams; those with the same models share them. Any thread may call.

    Args:
        make: Makes workers for settings.
    """

    def __init__(self, make: Callable[[Settings], KeyframeWorkers] = KeyframeWorkers) -> None:
        self._make = make
        self._shared: dict[str, _Shared] = {}
        self._tickets = itertools.count()
        self._lock = threading.Lock()

    def lease(self, settings: Settings) -> Lease:
        """Workers for these settings; they end when the last lease of them is closed."""
        key = maker_values(settings)
        with self._lock:
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = _Shared(self._make(settings))
            lease = Lease(self, shared)
            shared.leases.add(lease)
        return lease

    def submit(self, lease: Lease, shared: _Shared, request: KeyframeRequest) -> tuple[PartName, ...]:
        with self._lock:
            if lease not in shared.leases:
                return ()
            ticket = next(self._tickets)
            # Before the request is under way: its first part may arrive at once.
            shared.owners[ticket] = lease, request.frame.index
            accepted = shared.workers.submit(replace(request, frame=replace(request.frame, index=ticket)))
            if not accepted:
                del shared.owners[ticket]
            # Parts of one request arrive within its time-out; far more recent ones have replaced it by then.
            while len(shared.owners) > _MOST_TICKETS:
                del shared.owners[next(iter(shared.owners))]
        return accepted

    def collect(self, lease: Lease, shared: _Shared) -> list[Outcome]:
        with self._lock:
            shared.hand_out()
            arrived, lease.arrived = lease.arrived, []
        return arrived

    def give_back(self, lease: Lease, shared: _Shared) -> None:
        """End a lease, and the workers with the last one."""
        with self._lock:
            shared.leases.discard(lease)
            last = not shared.leases
            if last:
                self._shared = {key: value for key, value in self._shared.items() if value is not shared}
        if last:
            shared.workers.close()
