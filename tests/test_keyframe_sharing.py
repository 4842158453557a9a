"""Streams with the same models share workers, each gets its own results, and the last one to leave ends them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.generate import KeyframeRequest
from arr_stream.keyframes.worker import KeyframeWorker, KeyframeWorkers, WorkerPool, make_workers
from arr_stream.types import Frame, Grid
from tests.live_fakes import LIGHT, picture, wait_until

made: list[tuple[KeyframeWorker, ...]] = []


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    def make(settings: Settings) -> tuple[KeyframeWorker, ...]:
        made.append(make_workers(settings))
        return made[-1]

    made.clear()
    yield WorkerPool(make)
    for worker in itertools.chain(*made):
        worker.close()


def request(index: int, size_wh: tuple[int, int] = (160, 128)) -> KeyframeRequest:
    return KeyframeRequest(Frame(index, index / 30, picture(index, size_wh)), Grid.for_size(size_wh))


def until_accepted(lease: KeyframeWorkers, index: int, size_wh: tuple[int, int] = (160, 128)) -> None:
    wait_until(lambda: lease.submit(request(index, size_wh)))


def parts_of(lease: KeyframeWorkers, count: int) -> list:
    arrived: list = []
    wait_until(lambda: arrived.extend(lease.collect()) or len(arrived) >= count)
    return arrived


def test_the_same_models_are_loaded_once_and_others_apart(pool: WorkerPool) -> None:
    first = pool.lease(LIGHT)
    pool.lease(LIGHT.with_values({"keyframes.interval": 7, "selection.budget": "5"}))
    assert len(made) == 1
    pool.lease(LIGHT.with_values({"keyframes.cluster_count": 9}))
    assert len(made) == 2
    assert first.wait_ready(60)


def test_each_gets_what_it_asked_for_by_its_own_index(pool: WorkerPool) -> None:
    leases = [pool.lease(LIGHT), pool.lease(LIGHT)]
    sizes = [(160, 128), (96, 64)]
    for round_number in range(3):
        for lease, size_wh in zip(leases, sizes, strict=True):
            until_accepted(lease, round_number, size_wh)
        for lease, size_wh in zip(leases, sizes, strict=True):
            parts = parts_of(lease, 3)
            assert {part.part for part in parts} == {"clusters", "embedding", "text"}
            assert {part.index for part in parts} == {round_number}
            grid = Grid.for_size(size_wh)
            labels = next(part.value.labels for part in parts if part.part == "clusters")
            assert labels.shape[1] / labels.shape[0] == pytest.approx(grid.columns / grid.rows, rel=0.2)


def test_who_leaves_disturbs_nobody_and_the_last_one_ends_the_workers(pool: WorkerPool) -> None:
    first, second = pool.lease(LIGHT), pool.lease(LIGHT)
    until_accepted(first, 5)
    first.close()
    first.close()
    assert first.submit(request(6)) == ()
    until_accepted(second, 5)
    assert {part.index for part in parts_of(second, 3)} == {5}
    running: Callable[[], list[bool]] = lambda: [worker._thread.is_alive() for worker in made[0]]  # noqa: E731
    assert all(running())
    second.close()
    assert not any(running())
    pool.lease(LIGHT)
    assert len(made) == 2
