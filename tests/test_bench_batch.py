"""`bench batch`: what it makes of its timings, and that it really runs a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arr_stream.errors import MeasurementFailed
from benchmarks import batch as module
from benchmarks.batch import BatchPlan, BatchReport, BatchTimes, bench_batch
from tests.conftest import Run


def times(startup: float, steady: float, digest: str = "a") -> BatchTimes:
    return BatchTimes(startup, steady, 1.0, 40, {"clip0": digest})


def test_ratios_are_those_of_rounds() -> None:
    runs = {
        "local": (times(1, 8), times(1, 18), times(3, 6)),
        "ray": (times(4, 10), times(3, 16), times(4, 15)),
    }
    report = BatchReport(BatchPlan(), 1, runs)
    # Rounds: 15/10, 20/20 and 20/10.
    assert report.ratio("ray", "total") == pytest.approx(1.5)
    assert report.ratio("local", "total") == 1.0
    assert report.ratio("ray", "steady") == pytest.approx(1.25)
    assert report.median("ray", "total") == 20
    told = report.as_json()
    assert told["total_ratio"] == {"ray": 1.5}
    assert told["runs"]["local"][1] == {"startup": 1, "steady": 18, "closing": 1, "total": 20}
    assert report.tables[0].rows[1][-1] == pytest.approx(1.5)
    assert told["same_results"] is True


def test_other_results_are_told() -> None:
    report = BatchReport(BatchPlan(), 1, {"local": (times(1, 8),), "ray": (times(1, 8, "b"),)})
    assert not report.same_results
    assert "DIFFER" in report.tables[0].note


def test_engines_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def timed(engine: str, sources: object, output: Path, plan: BatchPlan) -> BatchTimes:
        order.append(engine)
        return times(1, 2)

    monkeypatch.setattr(module, "_timed", timed)
    bench_batch(BatchPlan(sources=("x.mp4",), rounds=3))
    assert order == ["local", "ray", "ray", "local", "local", "ray"]


def test_a_batch_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="exit code 10"):
        bench_batch(BatchPlan(sources=(str(tmp_path / "missing.mp4"),), engines=("local",), rounds=1))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_real_batch(measure: Run) -> None:
    code, out, err = measure(
        "batch", "--files", 2, "--frames", 6, "--size", "96x64", "--repeats", 1, "--engine", "local",
        "--set", "keyframes.text=none", "--json",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    (times,) = told["runs"]["local"]
    assert told["files"] == 2
    assert times["startup"] > 0 and times["steady"] > 0
    assert times["total"] == pytest.approx(times["startup"] + times["steady"] + times["closing"], abs=1e-3)
