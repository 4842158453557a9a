"""The soak: when faults come, how growth is measured, what is a good outcome; and a short one from end to end."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from soaking.faults import FAULTS  # noqa: E402
from soaking.footage import FPS, Broadcast, Footage  # noqa: E402
from soaking.running import plan_faults  # noqa: E402
from soaking.sampling import Held, Sample, fit_slope  # noqa: E402
from soaking.verdicts import Outcome, Survived, judge  # noqa: E402

KIND = st.sampled_from(sorted(FAULTS))


@given(
    kinds=st.lists(KIND, unique=True, max_size=6),
    stream_seconds=st.floats(1, 600),
    gap_seconds=st.floats(1, 60),
    seed=st.integers(0, 99),
)
def test_faults_come_in_turn_and_by_seed(
    kinds: list[str], stream_seconds: float, gap_seconds: float, seed: int
) -> None:
    def planned(by: int) -> list[tuple[float, str]]:
        return plan_faults(kinds, stream_seconds=stream_seconds, first_seconds=2.0, gap_seconds=gap_seconds, seed=by)

    faults = planned(seed)
    assert faults == planned(seed)
    times = [at for at, _ in faults]
    assert all(2.0 <= at <= stream_seconds - gap_seconds for at in times)
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert all(0.49 * gap_seconds <= step <= 1.51 * gap_seconds for step in steps)
    for turn in range(0, len(faults), max(1, len(kinds))):
        assert len({kind for _, kind in faults[turn : turn + len(kinds)]}) == len(faults[turn : turn + len(kinds)])
    counted = Counter(kind for _, kind in faults)
    assert set(counted) <= set(kinds)
    assert not counted or max(counted.values()) - min(counted.get(kind, 0) for kind in kinds) <= 1


def test_another_seed_is_another_order() -> None:
    plans = [
        plan_faults(tuple(FAULTS), stream_seconds=3600, first_seconds=30, gap_seconds=30, seed=seed) for seed in (1, 2)
    ]
    assert plans[0] != plans[1] and all(len(plan) > 80 for plan in plans)


def test_the_slope_of_a_straight_line_is_exact() -> None:
    minutes = [0.0, 1.0, 2.5, 4.0, 7.0]
    slope = fit_slope(minutes, [300 + 2.5 * x for x in minutes])
    assert slope.per_minute == pytest.approx(2.5) and slope.error == pytest.approx(0.0, abs=1e-9)
    assert slope.points == 5


def test_levels_of_their_own_are_no_slope() -> None:
    minutes = [float(k) for k in range(20)]
    groups = [int(k >= 10) for k in range(20)]
    values = [100.0 + 50 * group for group in groups]
    assert fit_slope(minutes, values).per_minute > 2
    assert fit_slope(minutes, values, groups).per_minute == pytest.approx(0)


def test_the_error_of_a_slope_is_how_far_it_is_off() -> None:
    draw = random.Random(4)
    minutes = [k / 10 for k in range(60)]
    found = [fit_slope(minutes, [draw.gauss(3 * x, 2.0) for x in minutes]) for _ in range(400)]
    within = sum(abs(slope.per_minute - 3) <= 2 * slope.error for slope in found)
    assert 0.92 <= within / len(found) <= 0.98


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_points_have_no_slope(count: int) -> None:
    assert fit_slope([float(k) for k in range(count)], [1.0] * count).error == math.inf


def test_a_broadcast_can_be_decoded_whatever_its_clock_does() -> None:
    import io

    import av

    small, large = Footage((96, 64)), Footage((128, 96))
    broadcast = Broadcast(small, 100.0)
    sent = [broadcast.next() for _ in range(FPS)]
    broadcast.leap(-50.0)
    broadcast.show(large)
    sent += [broadcast.next() for _ in range(FPS)]
    assert broadcast.seconds == pytest.approx(52.0)
    with av.open(io.BytesIO(b"".join(sent)), format="mpegts") as container:
        sizes = [(frame.width, frame.height) for frame in container.decode(video=0)]
    assert sizes == [(96, 64)] * FPS + [(128, 96)] * FPS


NOTHING = Held((), ("MainThread",), 3, ())


def sample(minute: float, megabytes: float, fault: str | None = None) -> Sample:
    return Sample(
        run_seconds=minute * 10,
        stream_seconds=minute * 60,
        fault=fault,
        own_mb=megabytes,
        all_mb=megabytes + 100,
        resident_mb=megabytes + 200,
        handles=20,
        threads=30,
        children=2,
        waiting=1,
        dropped=0,
        blocks=1000,
    )


def outcome(megabytes_a_minute: float = 0.0) -> Outcome:
    """An hour in ten minutes; memory rises so much a minute of the run."""
    minutes = [k / 10 for k in range(600)]
    return Outcome(
        seed=1,
        stream_seconds=3600,
        run_seconds=600,
        frames=108_000,
        records=108_000,
        faults=(Survived("stall", 10.0, 2.0, 0.4),),
        samples=tuple(sample(at, 400 + megabytes_a_minute * at / 6) for at in minutes),
        before=NOTHING,
        after=NOTHING,
        failures=(),
    )


def bad(of: Outcome) -> list[str]:
    return [verdict.what for verdict in judge(of) if not verdict.good]


def test_what_is_flat_and_leaves_nothing_is_good() -> None:
    assert bad(outcome()) == [] and bad(outcome(0.9)) == []


def test_growth_is_judged_by_the_clock_on_the_wall() -> None:
    """A minute of the stream takes less: the same growth is more a minute of the run."""
    grown = bad(outcome(1.5))
    assert len(grown) == 2 and all("grows" in what for what in grown)


def test_growth_before_the_end_of_the_warm_up_and_during_faults_does_not_count() -> None:
    made = outcome()
    early = tuple(replace(each, own_mb=each.own_mb / 2) if each.stream_seconds < 600 else each for each in made.samples)
    assert bad(replace(made, samples=early)) == []
    faulty = tuple(
        replace(each, own_mb=each.own_mb + k, fault="stall") if k % 2 else each for k, each in enumerate(made.samples)
    )
    assert bad(replace(made, samples=faulty)) == []


def test_too_few_samples_prove_nothing() -> None:
    made = outcome()
    assert len(bad(replace(made, samples=made.samples[-5:]))) == 5


@pytest.mark.parametrize(("field", "word"), [("handles", "handles"), ("threads", "threads"), ("waiting", "wait")])
def test_what_piles_up_is_told_from_streams_that_come_and_go(field: str, word: str) -> None:
    made = outcome()
    leaking = tuple(replace(each, **{field: getattr(each, field) + k // 60}) for k, each in enumerate(made.samples))
    (told,) = bad(replace(made, samples=leaking))
    assert word in told and "pile up" in told
    busier = tuple(
        replace(each, **{field: getattr(each, field) + (k // 100) % 2 * 4}) for k, each in enumerate(made.samples)
    )
    assert bad(replace(made, samples=busier)) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"after": replace(NOTHING, threads=("MainThread", "arr-stream-reader"))}, "threads left"),
        ({"after": replace(NOTHING, handles=("socket:",))}, "handles left"),
        ({"after": replace(NOTHING, children=("python -m worker",))}, "child processes left"),
        ({"after": replace(NOTHING, tasks=4)}, "thread of a library left"),
        ({"faults": (Survived("stall", 10.0, 2.0, None, "no frames"),)}, "fault survived"),
        ({"failures": ("camera: ConsumerFailed: x",)}, "no stream ended"),
        ({"records": 107_999}, "record for every frame"),
    ],
)
def test_each_thing_that_is_wrong_is_told(changes: dict[str, object], word: str) -> None:
    (found,) = bad(replace(outcome(), **changes))
    assert word in found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
@pytest.mark.timeout(900)
def test_a_short_soak_survives_every_kind_of_fault(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])
    command = ["-m", "soaking", "--stream-minutes", "3", "--gap", "6", "--out", str(tmp_path), "--seed", "7"]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=880,
    )
    assert done.returncode in (0, 1), done.stderr
    written = json.loads((tmp_path / "soak.json").read_text())
    assert done.returncode == int(not all(verdict["good"] for verdict in written["verdicts"]))
    # What is loaded and cached in the first minutes says nothing about growth.
    wrong = [verdict for verdict in written["verdicts"] if not verdict["good"] and "grows" not in verdict["what"]]
    assert not wrong, done.stderr
    assert {fault["kind"] for fault in written["faults"]} >= set(FAULTS)
    assert written["frames"] >= 180 * FPS and (tmp_path / "soak.png").stat().st_size > 10_000
