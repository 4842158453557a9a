"""What is measured in vLLM, as tables and as a picture; the servers themselves are in test_vllm_plugin.py."""

from __future__ import annotations

import json
from pathlib import Path

import cv2

from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.tables import ResultTable
from benchmarks.results.pictures import draw, drawn
from benchmarks.results.records import Record
from benchmarks.results.records import Run as Measured
from benchmarks.results.targets import TARGETS
from benchmarks.serving.measure import BESIDE, LARGE, OURS, SMALL, WAYS, Call, ServingReport
from tests.conftest import Run


def report() -> ServingReport:
    """Sixteen streams, four times as fast with cells on large frames and twice as fast on small ones."""
    calls, took = [], {}
    for clip, times in ((LARGE, 4.0), (SMALL, 2.0)):
        for way in reversed(list(WAYS)):
            seconds = 8.0 / times if way == OURS else 8.0
            calls += [Call(str(clip), way, 16, 1000.0 * k, 100, 50, 4, lost=k == 4) for k in (1, 2, 3, 4)]
            took[str(clip), way, 16] = seconds
    calls += [Call("question", way, 1, 60.0, 130, 0, right=k > 0) for way in WAYS for k in range(4)]
    calls += [Call("picture", way, 1, ms, 278, 0) for way, ms in ((BESIDE, 500.0), (OURS, 100.0))]
    return ServingReport("random weights", tuple(calls), took)


def test_streams_are_told_beside_those_of_whole_frames() -> None:
    streams = next(table for table in report().tables if table.title == "Streams that ask")
    rows = {row[:3]: dict(zip(streams.columns[3:], row[3:], strict=True)) for row in streams.rows}
    assert [row[0] for row in streams.rows] == [str(SMALL)] * len(WAYS) + [str(LARGE)] * len(WAYS)
    ours = rows[str(LARGE), 16, OURS]
    assert ours["of whole"] == 4.0 and rows[str(SMALL), 16, OURS]["of whole"] == 2.0
    assert ours["answers a second"] == 1.5 and ours["tokens a second"] == 8.0
    assert ours["median ms"] == 2500.0 and ours["cached share"] == 0.5 and ours["lost"] == 1


def test_they_are_on_the_page_and_drawn(tmp_path: Path) -> None:
    made = json.loads(json.dumps(report().as_json()))
    record = Record(
        "serving", "2026-01-02 03:04", "0123abcd", "c0de", {}, False, (Measured("", "benchmarks", 1.0, 0, made),)
    )
    values = {target.what: target.value(record) for target in TARGETS if target.section == "serving"}
    assert list(values.values()) == [5.0, 4.0, 2.0], values
    draw({"serving": record}, tmp_path)
    picture = cv2.imread(str(tmp_path / drawn("serving")))
    assert picture is not None and picture.std() > 20
    assert all(ResultTable.from_json(table).rows for table in made["tables"])


def test_a_vllm_that_is_not_there_is_one_line(measure: Run) -> None:
    code, _, err = measure("serving", "--vllm", "/nowhere/vllm")
    assert code == InvalidSetting.exit_code and "no such program" in err
