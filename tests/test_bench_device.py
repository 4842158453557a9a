"""`bench device`: it runs anywhere, says what it measured and what not, and its limits follow from the bytes."""

from __future__ import annotations

import json

import pytest
import torch

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.evaluation.limits import touched_bytes
from arr_stream.evaluation.tables import ResultTable
from arr_stream.evaluation.timing import Timing
from arr_stream.types import Grid
from benchmarks.device.bench import (
    HostRun,
    bench_device,
    dense_table,
    frame_table,
    host_table,
    named_device,
)
from benchmarks.device.kernels import kernel_table, time_kernels
from benchmarks.scenes.clips import panning_frames, usual_queries
from tests.conftest import Run

CPU = torch.device("cpu")
SIZE_WH = (192, 128)
SETTINGS = Settings().with_values({"selection.budget": "8", "keyframes.text": "none", "keyframes.clusters": "grid"})


def _column(table: ResultTable, name: str) -> list[object]:
    return [row[table.columns.index(name)] for row in table.rows]


def test_on_the_command_line_it_says_what_was_not_measured(measure: Run) -> None:
    code, out, _ = measure("device", "--device", "cpu", "--size", "192x128", "--frames", "8", "--json")
    report = json.loads(out)
    assert code == 0 and report["device"] == "CPU"
    table = ResultTable.from_json(report["tables"][0])
    assert {*_column(table, "stage")} == {*touched_bytes(Grid.for_size(SIZE_WH), 3), "keyframe", "whole frame"}
    assert "GPU was not measured" in report["unmeasured"][0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(measure: Run) -> None:
    with pytest.raises(BackendUnavailable, match="--device cuda"):
        named_device("cuda")
    assert named_device("auto") == CPU
    code, _, err = measure("device", "--device", "cuda")
    assert code == 60 and "no NVIDIA GPU" in err and "--device cpu" in err


def test_stages_have_their_share_of_the_frame_and_of_the_limit() -> None:
    grid = Grid.for_size((256, 256))
    stages = {"visual": Timing.of([2.0, 2.0]), "keyframe": Timing.of([0.5, 1.5])}
    table = host_table(HostRun(grid, 1, stages, Timing.of([4.0])), bytes_per_ms=1e6)
    visual, keyframe, whole = table.rows
    moved = touched_bytes(grid, 1)["visual"]
    assert visual[:2] == ("visual", 2.0) and visual[3:] == (50.0, moved / 1e6, moved / 1e6, 100 * moved / 1e6 / 2)
    assert keyframe[1] == 1.0 and keyframe[3:] == (25.0, None, None, None)
    assert whole[1] == 4.0 and whole[3] == 100.0


def test_every_part_of_a_frame_has_a_roofline() -> None:
    size_wh = (128, 96)
    timings = time_kernels(size_wh, CPU, SETTINGS, 1)
    table = kernel_table(timings, bytes_per_ms=2e6, device="here")
    names = _column(table, "part")
    assert {"reduced pictures", "flow", "carrying memory", "relevance to a region", "scores of all cells"} <= {*names}
    by_name = {timing.name: timing for timing in timings}
    pixels = size_wh[0] * size_wh[1]
    assert by_name["reduced pictures"].moved_bytes >= 3 * pixels
    assert by_name["all 40 channels, dense"].moved_bytes >= 160 * pixels
    # A third more: each level has a quarter of the one before.
    assert by_name["mip levels of all"].moved_bytes == pytest.approx(160 * pixels * 4 / 3, rel=0.01)
    for row, timing in zip(table.rows, timings, strict=True):
        assert timing.milliseconds > 0 and row[4] == pytest.approx(timing.moved_bytes / 2e6)


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
