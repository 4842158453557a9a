"""The report: three files that agree with what was consumed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arr_stream.config import Settings
from arr_stream.draw.report import Report, RunStatistics
from arr_stream.errors import OutputExists
from arr_stream.patch_set import Answer, Feeding
from tests.choices import FED, answer_on, choose, frames_of
from tests.media import moving_frames

FRAMES = frames_of(moving_frames(23, (128, 96)))
FILES = ["contact_sheet.png", "latency.png", "summary.json"]


def write(folder: Path, changes: list[dict[str, Any]] | None = None, **options: Any) -> dict[str, Any]:
    """The summary of a report on all frames, or on the first ones with these changes to what was chosen."""
    report = Report(folder, **options)
    for frame, change in zip(FRAMES, changes or [{}] * len(FRAMES), strict=False):
        report.consume(frame, choose(frame, **change))
    report.close()
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def test_three_files_agree_with_what_was_consumed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    summary = write(
        folder, source={"name": "rtsp://me:secret@host/a", "size_wh": (128, 96)}, asked="red", settings=Settings()
    )
    patches = [choose(frame) for frame in FRAMES]
    totals = [sum(one.latency_ms.values()) for one in patches]
    assert summary["frames"] == 23
    assert summary["ended"] == "finished"
    assert summary["keyframes"] == {"count": 5, "by_reason": {"interval": 4, "first": 1}}
    assert summary["amortised_ms"] == pytest.approx(np.mean(totals), abs=1e-3)
    assert summary["latency_ms"]["all"]["median"] == pytest.approx(np.median(totals), abs=1e-3)
    assert summary["latency_ms"]["stages"]["select"]["p95"] == pytest.approx(
        np.percentile([one.latency_ms["select"] for one in patches], 95), abs=1e-3
    )
    assert summary["latency_ms"]["between"]["max"] < summary["latency_ms"]["keyframes"]["median"]
    assert summary["tokens"]["mean"] == pytest.approx(np.mean([one.tokens for one in patches]))
    assert summary["confidence"]["mean"] == pytest.approx(0.75)
    assert sum(summary["chosen_by"].values()) == pytest.approx(1.0, abs=1e-3)
    assert summary["settings"]["keyframes"]["interval"] == 30
    assert summary["source"] == {"name": "rtsp://***@host/a", "size_wh": [128, 96]}
    assert summary["asked"] == "red"
    assert "model" not in summary
    assert sorted(path.name for path in folder.iterdir()) == FILES
    for name in FILES[:2]:
        picture = np.asarray(Image.open(folder / name).convert("RGB"))
        assert min(picture.shape[:2]) > 300
        assert picture.std() > 5, "not an empty picture"
        assert name != "contact_sheet.png" or (picture < 250).any(axis=2).mean() > 0.3, "with the frames on it"


def test_the_time_of_a_keyframe_is_that_of_the_frame_that_waits_for_its_parts(tmp_path: Path) -> None:
    """Requested on frames 0, 5, ...; the parts arrive three frames later, and that frame waits half a second."""
    changes: list[dict[str, Any]] = []
    for frame in FRAMES:
        arrived = (frame.index - 3) // 5 * 5
        waiting = 500.0 if frame.index % 5 == 3 else 0.1
        parts = {"clusters": (arrived, "grid")} if arrived >= 0 else {}
        changes.append({"parts": parts, "latency_ms": {"flow": 4.0, "keyframe": waiting}})
    statistics = RunStatistics()
    for frame, change in zip(FRAMES, changes, strict=True):
        statistics.add(choose(frame, **change))
    latency = statistics.summary()["latency_ms"]
    assert latency["keyframes"]["median"] == pytest.approx(504) and latency["between"]["max"] == pytest.approx(4.1)
    assert [one.index for one in statistics.sample if one.pays] == [3, 8, 13, 18]
    assert statistics.amortised_ms == pytest.approx((23 * 4 + 4 * 500 + 19 * 0.1) / 23)
    assert write(tmp_path, changes)["amortised_ms"] == pytest.approx(statistics.amortised_ms, abs=1e-3)
    picture = np.asarray(Image.open(tmp_path / "latency.png").convert("RGB")).astype(int)
    orange = (np.abs(picture - (232, 137, 12)).max(axis=2) < 3)[:, :1100]
    columns = np.flatnonzero(orange.any(axis=0))
    assert 1 + int((np.diff(columns) > 1).sum()) == 4, "a mark on each of the frames that wait"


@pytest.mark.parametrize("name", FILES)
def test_files_that_exist_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(OutputExists, match="--force"):
        Report(tmp_path)
    Report(tmp_path, force=True).close()
    assert (tmp_path / name).read_text() == "precious"


def test_the_summary_tells_what_was_fed_and_answered(tmp_path: Path) -> None:
    fed = [FED, Feeding(10, 42, 1853, 8 << 20, 10.5, 20.25), Feeding(memory_tokens=1853, error="no cells"), None]
    said = answer_on(choose(FRAMES[1]), model="/home/anna/tiny", text="see http://me:secret@host")
    failed = Answer("And now?", "", 3, FRAMES[3].pts_seconds, "tiny", finish="failed", error="down")
    answers = [(), (said,), (), (failed,)]
    changes = [{"feeding": feeding, "answers": told} for feeding, told in zip(fed, answers, strict=True)]
    model = write(tmp_path, changes)["model"]
    feeding = model["feeding"]
    assert (feeding["frames"], feeding["failed"], feeding["sent"], feeding["held"]) == (3, 1, 50, 54)
    assert feeding["rebuilt"] == {"cut": 1}
    assert feeding["memory_tokens"] == {"last": 1853, "max": 1853}
    assert feeding["cache_bytes_max"] == 9 << 20
    assert feeding["mean_vision_ms"] == pytest.approx(21.0), "frames that failed have no times"
    assert model["answers"] == {"count": 2, "failed": 1}


def test_the_sample_of_a_long_run_is_bounded_even_and_in_order() -> None:
    statistics, count = RunStatistics(), 9_000
    patches = choose(FRAMES[0])
    for index in range(count):
        statistics.add(dataclasses.replace(patches, index=index))
    indices = [figures.index for figures in statistics.sample]
    assert statistics.frames == count and len(indices) == 8192
    assert indices == sorted(set(indices))
    assert abs(np.mean(indices) - (count - 1) / 2) < 0.02 * count
