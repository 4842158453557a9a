"""The soak: what counts as growth and as left behind; and a short run from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from soaking.running import FAULTS, Fault, Outcome  # noqa: E402
from soaking.sampling import Sample  # noqa: E402
from soaking.verdicts import judge  # noqa: E402

FLAT = tuple(Sample(float(second), None, 400.0, 500.0, 20, 30, 2) for second in range(600))
GOOD = Outcome(600.0, 36_000, (Fault("query", 10.0, 0.5),), FLAT, (), 1.0)


def bad(outcome: Outcome) -> list[str]:
    return [verdict.what for verdict in judge(outcome) if not verdict.good]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (replace(GOOD, samples=tuple(replace(s, own_mb=s.own_mb + 2 * s.seconds / 60) for s in FLAT)), "memory of the"),
        (replace(GOOD, samples=tuple(replace(s, handles=20 + int(s.seconds) // 60) for s in FLAT)), "handles"),
        (replace(GOOD, faults=(Fault("query", 1.0, None, "no frames"),)), "every fault"),
        (replace(GOOD, left=(4711,)), "no process"),
        (replace(GOOD, ended_seconds=None), "ends when asked"),
    ],
)
def test_each_thing_that_is_wrong_is_named(outcome: Outcome, words: str) -> None:
    assert bad(GOOD) == []
    (found,) = bad(outcome)
    assert words in found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
@pytest.mark.timeout(600)
def test_a_short_soak_survives_every_kind_of_fault(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "soaking", "--minutes", "2", "--gap", "2", "--out", str(tmp_path)]
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=580)
    written = json.loads((tmp_path / "soak.json").read_text())
    assert done.returncode == int(not all(verdict["good"] for verdict in written["verdicts"])), done.stderr
    # Two minutes are mostly warm-up: they say nothing about growth.
    wrong = [each for each in written["verdicts"] if not each["good"] and "grows" not in each["what"]]
    assert not wrong, done.stderr
    assert {fault["kind"] for fault in written["faults"]} == set(FAULTS)
