"""Keyframes beside the frames of a file: each arrives at its frame, however long it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

import arr_stream
import arr_stream.stream
from arr_stream.config import Settings
from arr_stream.keyframes.base import KeyframePart, PartName
from arr_stream.keyframes.beside import KeyframesBeside
from arr_stream.keyframes.generate import Job, KeyframeGenerator, KeyframeRequest, make_generator
from tests import keyframe_fakes as fakes
from tests.fault_helpers import clip

DELAY = 3


EARLY: tuple[PartName, ...] = ("clusters", "embedding", "text")
"""Parts that arrive together."""


def asked(index: int) -> KeyframeRequest:
    return replace(fakes.request(index), parts=EARLY)


class Slow:
    """Works, and takes its time about it; notes what it was asked for."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.begun: list[tuple[int, PartName]] = []

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        def job(part: PartName) -> Job:
            def make() -> object:
                self.begun.append((request.frame.index, part))
                time.sleep(self.seconds)
                return fakes.parts(request)[part]

            return make  # type: ignore[return-value]

        return {part: job(part) for part in request.parts}


@pytest.fixture
def made() -> Iterator[tuple[Slow, KeyframesBeside]]:
    slow = Slow()
    provider = KeyframesBeside(slow, DELAY)
    yield slow, provider
    provider.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "keyframes"]


def arrivals(provider: KeyframesBeside, requests: Mapping[int, KeyframeRequest], frames: int) -> list[list[int]]:
    """For each frame, which frames' parts arrive on it."""
    told = []
    for index in range(frames):
        if index in requests:
            assert set(provider.submit(requests[index])) == set(requests[index].parts)
        told.append([outcome.index for outcome in provider.collect()])
    return told


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_parts_arrive_at_their_frame_however_long_they_take(seconds: float, made: tuple[Slow, KeyframesBeside]) -> None:
    slow, provider = made
    slow.seconds = seconds
    requests = {0: asked(0), 2: replace(asked(2), parts=("text",)), 6: asked(6)}
    assert arrivals(provider, requests, 8) == [[], [], [], [0, 0, 0], [], [2], [], []]


def test_what_a_query_waits_for_arrives_at_once_and_once(made: tuple[Slow, KeyframesBeside]) -> None:
    _, provider = made
    awaiting = replace(asked(0), awaited=frozenset({"text"}))
    provider.submit(awaiting)
    assert [part.part for part in provider.collect() if isinstance(part, KeyframePart)] == ["text"]
    assert [len(provider.collect()) for _ in range(DELAY + 1)] == [0, 0, 2, 0]


def test_nothing_is_begun_for_a_scene_that_is_gone(made: tuple[Slow, KeyframesBeside]) -> None:
    slow, provider = made
    cut = {index: replace(asked(index), new_scene=True) for index in (1, 2, 3)}
    assert arrivals(provider, {0: asked(0), **cut}, 7) == [[], [], [], [], [], [3, 3, 3], []]
    assert slow.begun == [(3, part) for part in EARLY]


def test_a_run_chooses_the_same_however_slow_keyframes_are(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = clip(tmp_path_factory.mktemp("beside") / "clip.mp4", 20)
    settings = Settings().with_values(
        {"keyframes.interval": 6, "keyframes.clusters": "grid", "keyframes.text": "none", "selection.budget": "6"}
    )
    seconds = 0.0

    class Delayed:
        def __init__(self, generator: KeyframeGenerator) -> None:
            self._generator = generator

        def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
            def slowed(job: Job) -> Job:
                return lambda: (time.sleep(seconds), job())[1]

            return {part: slowed(job) for part, job in self._generator.jobs(request).items()}

    monkeypatch.setattr(arr_stream.stream, "make_generator", lambda *given: Delayed(make_generator(*given)))

    def chosen(delay: int) -> list[tuple[object, ...]]:
        asked = settings.with_values({"keyframes.delay": delay})
        return [
            (patches.cells_xyxy.tolist(), patches.score.tolist(), patches.keyframe_index, patches.confidence)
            for patches in arr_stream.open(source, settings=asked)
        ]

    quick = chosen(4)
    seconds = 0.02
    assert chosen(4) == quick
    assert [index for _, _, index, _ in quick][:8] == [None] * 2 + [0] * 6
    assert [index for _, _, index, _ in chosen(0)][:8] == [0] * 6 + [6] * 2
    # One more than leaves every keyframe time to arrive before the next.
    assert chosen(50) == chosen(5)
