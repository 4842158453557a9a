"""Quality goes down under load, comes back after, and does not swing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.live.live_stream import STEPS, Governor


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.governor = Governor()

    def run(self, seconds: float, *, load: float, drop_every: int = 0, fps: int = 30) -> list[int]:
        """Let frames come for so long; the steps after each change."""
        changes = []
        for number in range(round(seconds * fps)):
            self.now += 1 / fps
            dropped = int(drop_every > 0 and number % drop_every == 0)
            if self.governor.note(self.now, load / fps, dropped):
                changes.append(self.governor.step)
        return changes


@pytest.mark.parametrize("strain", [{"load": 1.0}, {"load": 0.3, "drop_every": 5}])
def test_is_lowered_step_by_step_under_load_and_restored_after(strain: dict[str, float]) -> None:
    clock = Clock()
    lowered = clock.run(30, **strain)  # type: ignore[arg-type]
    assert lowered == [1, 2, 3, 4]
    assert clock.run(140, load=0.3) == [3, 2, 1, 0]
    assert clock.run(40, load=0.3) == []


def test_changes_at_most_twice_in_half_a_minute_where_each_restoring_brings_back_the_load() -> None:
    clock = Clock()
    changes = sum(len(clock.run(1, load=1.0 if clock.governor.step == 0 else 0.4)) for _ in range(600))
    assert 4 <= changes <= 40


def test_one_slow_second_is_forgiven() -> None:
    clock = Clock()
    assert clock.run(1.2, load=1.0) == []
    assert clock.run(20, load=0.7) == []


@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.floats(0, 1), st.integers(0, 9)), max_size=400))
def test_never_leaves_the_steps(frames: list[tuple[float, float, int]]) -> None:
    governor, now = Governor(), 0.0
    for step_seconds, share, dropped in frames:
        now += step_seconds
        before = governor.step
        changed = governor.note(now, step_seconds * share, dropped)
        assert 0 <= governor.step < len(STEPS) and abs(governor.step - before) == int(changed)
