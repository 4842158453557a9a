"""`bench device`: it runs anywhere and says what it measured and what not."""

from __future__ import annotations

import json

import pytest
import torch

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable
from arr_stream.types import Grid
from benchmarks.device.bench import bench_device, dense_table, frame_table
from benchmarks.scenes.clips import panning_frames, usual_queries
from tests.conftest import Run

CPU = torch.device("cpu")
SIZE_WH = (192, 128)
STAGES = "visual", "flow", "carry", "keyframe", "texture", "relevance", "selection"
SETTINGS = Settings().with_values({"selection.budget": "8", "keyframes.text": "none", "keyframes.clusters": "grid"})


def _column(table: ResultTable, name: str) -> list[object]:
    return [row[table.columns.index(name)] for row in table.rows]


def test_on_the_command_line_it_says_what_was_not_measured(measure: Run) -> None:
    code, out, _ = measure("device", "--device", "cpu", "--size", "192x128", "--frames", "8", "--json")
    report = json.loads(out)
    assert code == 0 and report["device"] == "CPU"
    table = ResultTable(**report["tables"][0])
    assert {*_column(table, "stage")} == {*STAGES, "whole frame"}
    assert "GPU was not measured" in report["unmeasured"][0]


@pytest.mark.slow
def test_whole_frames_are_timed_by_what_is_asked() -> None:
    table = frame_table(SETTINGS, CPU, SIZE_WH, 4)
    assert _column(table, "asked for") == [*usual_queries(panning_frames(SIZE_WH, 1)[0])]
    cells = Grid.for_size(SIZE_WH).cells
    # Eight numbers a cell, one a query, and one; one a cell more where something was sent before.
    assert _column(table, "bytes back") == [4 * (9 * cells + queries + 1) for queries in (0, 1, 1, 1, 3)]
    dense = dense_table(SETTINGS.with_values({"keyframes.interval": 3}), CPU, SIZE_WH)
    between, keyframe, amortised = _column(dense, "ms")
    assert amortised == pytest.approx((keyframe + 2 * between) / 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
def test_a_gpu_is_measured() -> None:
    report = bench_device(SETTINGS, torch.device("cuda"), size_wh=(256, 256), frames=8, repeats=2)
    assert len(report.tables) == 4 and not report.unmeasured
    frame = report.tables[0]
    assert all(graphs >= 3 for graphs in _column(frame, "graphs"))
