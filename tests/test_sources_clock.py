"""True times from bad timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.sources.base import SourceStats
from arr_stream.sources.clock import Clock


@dataclass(frozen=True)
class Stamp:
    pts: int | None
    dts: int | None = None


def placed(stamps: list[Stamp], *, fps: float | None = 10.0) -> tuple[list[float], SourceStats]:
    """Times in tenths of a second, the length of a tick."""
    stats = SourceStats()
    clock = Clock(Fraction(1, 10), fps, stats)
    times = clock.times(stamps)  # type: ignore[arg-type]
    return [round(seconds * 10, 6) for seconds, _ in times], stats


def pts(*ticks: int | None) -> list[Stamp]:
    return [Stamp(each) for each in ticks]


def test_decoding_times_are_used_once_presentation_times_go_back() -> None:
    stamps = [Stamp(1, 1), Stamp(2, 2), Stamp(4, 3), Stamp(3, 5), Stamp(7, 6), Stamp(6, 7), Stamp(5, None)]
    times, stats = placed(stamps)
    assert times == [0, 1, 3, 4, 5, 6, 7]
    assert stats.backward_jumps == 1


def test_a_restarted_clock_goes_on_with_its_own_steps() -> None:
    times, stats = placed(pts(10, 11, 12, 0, 2, 3))
    assert times == [0, 1, 2, 3, 5, 6]
    assert stats.backward_jumps == 1


def test_the_sources_own_time_returns_once_it_has_caught_up() -> None:
    assert placed(pts(0, 1, 2, 3, 1, 20, 21))[0] == [0, 1, 2, 3, 4, 20, 21]


def test_missing_times_follow_the_usual_step() -> None:
    times, _ = placed(pts(0, 2, None, 6, None, None))
    assert times == [0, 2, 4, 6, 8, 10]
    assert placed(pts(None, None, None), fps=5.0)[0] == [0, 2, 4]
    assert placed(pts(None, None), fps=None)[0] == pytest.approx([0, 1 / 3], abs=1e-6)


def test_uneven_and_repeated_steps_are_kept() -> None:
    assert placed(pts(0, 10, 20, 30, 33, 33, 43))[0] == [0, 10, 20, 30, 33, 33, 43]


ticks = st.none() | st.integers(-1000, 1000)


@given(st.lists(st.builds(Stamp, ticks, ticks), max_size=40))
def test_time_never_decreases_and_nothing_is_dropped(stamps: list[Stamp]) -> None:
    times, _ = placed(stamps)
    assert len(times) == len(stamps)
    assert times == sorted(times)
    assert not times or times[0] == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(-100, 100))
def test_good_times_are_kept_exactly(steps: list[int], start: int) -> None:
    own = [start]
    for step in steps:
        own.append(own[-1] + step)
    times, stats = placed(pts(*own))
    assert times == [each - start for each in own]
    assert stats.backward_jumps == 0
