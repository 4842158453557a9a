"""Keyframe models that throw, hang, give nonsense, use up memory or end their process: in files, and in workers."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arr_stream
import arr_stream.stream
from arr_stream.config import Settings
from arr_stream.errors import KeyframeFailed
from arr_stream.keyframes.base import PARTS, PartName
from arr_stream.keyframes.generate import make_generator, make_part
from arr_stream.outputs import records_of
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.run import RunResult, run
from tests.fault_helpers import QUICK, Faulty, clip, decoded, ended, finished, lines, running, until

FRAMES, INTERVAL = 30, 8
KEYFRAMES = range(0, FRAMES, INTERVAL)
OFTEN = {"keyframes.interval": INTERVAL, "keyframes.min_interval": INTERVAL}
SETTINGS = Settings().with_values(
    {"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "6", **OFTEN}
)
in_files = pytest.mark.parametrize("delay", [0, 3])
"""Frames after which what a keyframe brings joins; 0 waits for it in step."""
PROCESS = [*QUICK, *(argument for key, value in OFTEN.items() for argument in ("--set", f"{key}={value}"))]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("keyframes") / "clip.mp4", FRAMES)


def _run(
    source: Path, path: Path, monkeypatch: pytest.MonkeyPatch, delay: int, fault: Mapping[str, Any]
) -> tuple[RunResult, list[PatchSet]]:
    monkeypatch.setattr(arr_stream.stream, "make_generator", lambda *given: Faulty(make_generator(*given), fault))
    stream = arr_stream.open(source, settings=SETTINGS.with_values({"keyframes.delay": delay}))
    seen: list[PatchSet] = []
    return run(stream, [records_of(stream, path)], on_frame=seen.append), seen


@in_files
@pytest.mark.parametrize("do", ["nan", "memory", "sys.exit"])
def test_a_failed_part_leaves_the_last_good_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: str, delay: int
) -> None:
    result, seen = _run(source, tmp_path / "r.jsonl", monkeypatch, delay, {"do": do, "on": [1, 2]})
    assert (result.reason, result.error, result.frames) == ("finished", None, FRAMES)
    _, frames, end = read_records(tmp_path / "r.jsonl")
    used = [frames[index + delay].parts["embedding"] for index in KEYFRAMES]
    assert used == [(0, "appearance"), (0, "appearance"), (0, "appearance"), (24, "appearance")]
    assert [frames[index + delay].parts["clusters"] for index in KEYFRAMES] == [(index, "grid") for index in KEYFRAMES]
    notices = {frame.index: frame.notices for frame in frames if frame.notices}
    assert set(notices) == {8 + delay, 16 + delay}
    for index, (notice,) in notices.items():
        assert notice.startswith(f"keyframe {index - delay} failed: embedding: ")
    assert end is not None and end.model_extra is not None
    assert end.model_extra["keyframe_failures"] == {"embedding": 2}
    for patches in seen:
        assert torch.isfinite(patches.texture.dense()).all() and np.isfinite(patches.relevance).all()


@in_files
@pytest.mark.parametrize(("part", "do"), [("clusters", "raise"), ("embedding", "nan"), ("text", "raise")])
def test_a_part_that_never_worked_is_an_error_at_the_end(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: PartName, do: str, delay: int
) -> None:
    result, _ = _run(source, tmp_path / "r.jsonl", monkeypatch, delay, {"do": do, "parts": [part]})
    assert isinstance(result.error, KeyframeFailed)
    assert str(result.error).startswith(f"{part} failed on all 4 keyframes; the last time: {part}: ")
    _, frames, end = read_records(tmp_path / "r.jsonl")
    assert len(frames) == result.frames == FRAMES
    assert all(frame.parts[part] is None for frame in frames)
    assert end is not None and (end.reason, end.frames) == ("failed", FRAMES)


@in_files
def test_a_keyframe_of_which_nothing_worked_ends_the_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: int
) -> None:
    result, _ = _run(source, tmp_path / "r.jsonl", monkeypatch, delay, {"do": "raise", "parts": PARTS, "on": [2]})
    assert isinstance(result.error, KeyframeFailed) and "frame 16" in str(result.error)
    _, frames, end = read_records(tmp_path / "r.jsonl")
    assert len(frames) == 16 + delay
    assert end is not None and end.reason == "failed"


def test_an_interrupt_in_a_model_is_no_failure_of_the_model() -> None:
    def job() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_part(0, "text", job)


@pytest.mark.slow
@pytest.mark.parametrize("do", ["out of memory", "torch out of memory"])
def test_out_of_memory_costs_one_part_of_one_keyframe(source: Path, tmp_path: Path, do: str) -> None:
    video, path = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    arguments = ["process", source, "-o", video, "--patches", path, *PROCESS]
    result = finished(arguments, fault={"do": do, "on": [1]})
    assert result.code == 0, result
    assert result.err.count("keyframe 8 failed: embedding: ") == 1
    assert "emory" in result.err
    _, frames, _ = read_records(path)
    assert [frames[index].parts["embedding"] for index in (7, 15, 23)] == [(at, "appearance") for at in (0, 0, 16)]
    assert len(decoded(video)) == FRAMES


@pytest.mark.slow
@pytest.mark.parametrize("do", ["die", "segfault"])
def test_a_model_that_ends_the_process_leaves_valid_lines(source: Path, tmp_path: Path, do: str) -> None:
    path = tmp_path / "out.jsonl"
    result = finished(["process", source, "--patches", path, *PROCESS], fault={"do": do, "on": [2]})
    assert result.code == (0 if do == "die" else -signal.SIGSEGV)
    _, frames, end = read_records(path)
    # The frame that is to blame, or one of those that did not wait for it.
    assert 16 < len(frames) < 16 + INTERVAL
    # Whatever the exit code says: without an end line the run did not end by itself.
    assert end is None


@pytest.mark.slow
def test_a_model_that_hangs_ends_with_the_second_ctrl_c(source: Path, tmp_path: Path) -> None:
    video, path = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    arguments = ["process", source, "-o", video, "--patches", path, *PROCESS]
    with running(arguments, fault={"do": "hang", "on": [2]}) as process:
        until(lambda: lines(path) == 24, process)
        process.send_signal(signal.SIGINT)
        with pytest.raises(AssertionError):
            until(lambda: lines(path) > 24, process, seconds=2.0)
        process.send_signal(signal.SIGINT)
        result = ended(process, 30.0)
    assert result.code == 130, result
    end = read_records(path)[2]
    assert end is not None and (end.reason, end.frames) == ("interrupted", 23)
    assert len(decoded(video)) == 23


@pytest.mark.slow
@pytest.mark.parametrize("do", ["raise", "out of memory", "die", "hang"])
def test_in_real_time_frames_go_on_and_the_model_comes_back(tmp_path: Path, do: str) -> None:
    source = clip(tmp_path / "clip.mp4", 450)
    path = tmp_path / "out.jsonl"
    limit = ["--set", "keyframes.timeout_seconds=2"] if do == "hang" else []
    arguments = ["stream", source, "--headless", "--patches", path, *PROCESS, *limit]
    # A worker that is started anew counts its keyframes anew.
    result = finished(arguments, fault={"do": do, "on": [1]})
    assert result.code == 0, result
    _, frames, end = read_records(path)
    assert end is not None and end.reason == "finished"
    assert end.frames + end.dropped == 450 and end.model_extra is not None
    failures = end.model_extra["keyframe_failures"]
    assert failures["embedding"] >= 1
    told = [frame.index for frame in frames if any("failed" in notice for notice in frame.notices)]
    assert told
    sources = [frame.parts["embedding"][0] for frame in frames if frame.parts["embedding"] is not None]
    assert sources == sorted(sources)
    assert max(sources) > told[0]
