"""Tables of the measurements in vLLM; test_vllm_plugin.py runs the servers."""

from __future__ import annotations

from benchmarks.serving.measure import BESIDE, LARGE, OURS, SMALL, WAYS, Call, ServingReport


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
