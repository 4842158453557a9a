"""The report of a run in which a model watched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arr_stream.draw.report import Report
from arr_stream.draw.statistics import ModelStatistics
from arr_stream.patch_set import Answer, Feeding
from tests.choices import FED, answer_on, choose, frames_of
from tests.media import moving_frames

FRAMES = frames_of(moving_frames(4, (128, 96)))


def test_the_summary_tells_what_was_fed_and_answered(tmp_path: Path) -> None:
    report = Report(tmp_path)
    fed = [FED, Feeding(10, 42, 1853, 8 << 20, 10.5, 20.25), Feeding(memory_tokens=1853, error="no cells"), None]
    said = answer_on(choose(FRAMES[1]), model="/home/anna/tiny", text="see http://me:secret@host")
    failed = Answer("And now?", "", 3, FRAMES[3].pts_seconds, "tiny", finish="failed", error="down")
    answers = [(), (said,), (), (failed,)]
    for frame, feeding, told in zip(FRAMES, fed, answers, strict=True):
        report.consume(frame, choose(frame, feeding=feeding, answers=told))
    report.close()
    model = json.loads((tmp_path / "summary.json").read_text())["model"]
    feeding = model["feeding"]
    assert (feeding["frames"], feeding["failed"], feeding["sent"], feeding["held"]) == (3, 1, 50, 54)
    assert feeding["rebuilt"] == {"cut": 1}
    assert feeding["memory_tokens"] == {"last": 1853, "max": 1853}
    assert feeding["cache_bytes_max"] == 9 << 20
    assert feeding["vision_ms"]["mean"] == pytest.approx(21.0), "frames that failed have no times"
    assert feeding["prefill_ms"]["max"] == 48.25
    assert (model["answers"]["count"], model["answers"]["failed"]) == (2, 1)
    assert model["answers"]["newest"] == [
        {
            "pts_seconds": round(FRAMES[1].pts_seconds, 6), "question": "What is red?", "text": "see http://***@host",
            "model": "tiny", "answer_tokens": 6, "prefill_ms": 61.0, "decode_ms": 120.4, "finish": "stop",
            "error": None,
        },
        {
            "pts_seconds": round(FRAMES[3].pts_seconds, 6), "question": "And now?", "text": "", "model": "tiny",
            "answer_tokens": 0, "prefill_ms": 0.0, "decode_ms": 0.0, "finish": "failed", "error": "down",
        },
    ]  # fmt: skip


def test_without_a_model_there_is_no_such_section(tmp_path: Path) -> None:
    report = Report(tmp_path)
    for frame in FRAMES:
        report.consume(frame, choose(frame))
    report.close()
    assert "model" not in json.loads((tmp_path / "summary.json").read_text())


def test_only_the_newest_answers_are_kept() -> None:
    statistics = ModelStatistics()
    patches = choose(FRAMES[0])
    for number in range(1500):
        answer = Answer(f"{number}?", "Yes.", 0, float(number), "tiny")
        statistics.add(choose(FRAMES[0], answers=(answer,), grid=patches.grid))
    summary = statistics.summary()
    assert summary is not None
    assert summary["answers"]["count"] == 1500
    assert [one["question"] for one in summary["answers"]["newest"]] == [f"{number}?" for number in range(500, 1500)]
