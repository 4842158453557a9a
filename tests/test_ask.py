"""`arr-stream ask` from end to end, over a tiny model with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest

from arr_stream.records.json_lines import read_answers, read_records
from tests.conftest import Refused, Run
from tests.fault_helpers import ctrl_c, lines
from tests.media import moving_frames, write_video

QUESTION = "What is red?"
SOUGHT = ["red"]
QUICK = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--set", "vlm.answer_tokens=4")
NOBODY = ("--endpoint", "http://127.0.0.1:9/v1")
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of a red square that moves."""
    return write_video(tmp_path_factory.mktemp("clips") / "clip.mp4", moving_frames(20, (192, 160)), fps=10)


@pytest.fixture
def ask(run: Run, clip: Path, tiny_qwen: Path) -> Ask:
    """Asks the tiny model about the clip; more arguments come last."""

    def call(*arguments: object, question: str = QUESTION) -> tuple[int, str, str]:
        return run("ask", clip, question, "--model", tiny_qwen, "--budget", 8, *QUICK, *arguments)

    return call


def fed(path: Path) -> list[dict[str, Any]]:
    """What each frame that was shown added to the memory."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["model"] for line in lines if line["type"] == "frame" and "model" in line]


def test_an_answer_on_standard_output_in_records_and_in_the_video(ask: Ask, tmp_path: Path) -> None:
    video, path, report = tmp_path / "out.mp4", tmp_path / "out.jsonl", tmp_path / "report"
    code, out, err = ask("-o", video, "--patches", path, "--report", report)
    assert code == 0, err
    header, frames, end = read_records(path)
    (answer,) = read_answers(path)
    assert out.strip() == answer.text.strip() != ""
    assert header.query == SOUGHT and len(frames) == 20 and end is not None
    assert answer.frame_index == 19 and answer.finish == "length" and answer.answer_tokens == 4
    assert answer.visual_tokens > 0 and 0 < len(answer.cells) <= 100
    # Two frames a second in pairs, and the last one alone, before the question.
    looked_at = [feeding["sent"] + feeding["held"] > 0 for feeding in fed(path)]
    assert looked_at == [False, True, False, True, True]
    assert sum(feeding["sent"] for feeding in fed(path)) == answer.visual_tokens
    assert fed(path)[-1]["memory_tokens"] == answer.memory_tokens
    assert "tokens in" in err and "cells in" in err
    with av.open(str(video)) as container:
        assert container.duration / 1e6 > 4, "the answer stays on the last picture"
    assert json.loads((report / "summary.json").read_text())["model"]["answers"] == {"count": 1, "failed": 0}


@pytest.mark.parametrize("mode", ["sparse", "prune", "weight"])
def test_every_mode_answers(ask: Ask, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert ask("--set", f"vlm.mode={mode}", "--patches", path)[0] == 0
    cells = read_answers(path)[0].visual_tokens
    # Three blocks of 30 cells where all are kept, fewer where they are chosen.
    assert cells == 90 if mode == "weight" else 8 <= cells <= 24


def test_a_scene_that_does_not_change_is_answered_about_once(run: Run, tiny_qwen: Path, tmp_path: Path) -> None:
    still = write_video(tmp_path / "still.mp4", moving_frames(1, (192, 160)) * 30, fps=10)
    path = tmp_path / "out.jsonl"
    code, _, err = run("ask", still, QUESTION, "--model", tiny_qwen, "--watch", "--patches", path, *QUICK)
    assert code == 0, err
    assert [answer.frame_index for answer in read_answers(path)] == [0]
    cells = 30
    assert sum(feeding["sent"] for feeding in fed(path)) <= cells, "what has not changed is not sent again"


def test_a_small_context_is_rebuilt_and_never_exceeded(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    small = ("--set", "vlm.context_tokens=128", "--set", "selection.novelty=off")
    code, _, err = ask("--set", "vlm.fps=10", *small, "--patches", path)
    assert code == 0, err
    assert max(feeding["memory_tokens"] for feeding in fed(path)) <= 128
    assert any(feeding["rebuilt"] == "budget" for feeding in fed(path))


def test_progress_and_answers_for_programs_and_the_same_once_more(ask: Ask) -> None:
    code, out, err = ask("--log=json")
    events = [json.loads(line) for line in err.splitlines()]
    (answer,) = [event for event in events if event["event"] == "answer"]
    assert code == 0 and answer["text"].strip() == out.strip() != ""
    assert ask("--log=quiet") == (0, out, "")


def test_questions_more_often_than_frames(refused: Refused, clip: Path, tiny_qwen: Path) -> None:
    model = ("--model", tiny_qwen, "--budget", 8, *QUICK)
    refused(51, "vlm.fps", "ask", clip, QUESTION, *model, "--log=quiet", "--every", 0.1)


@pytest.mark.parametrize(
    ("question", "expected", "said"),
    [("  ", 30, "empty"), ("what \udcff is", 51, "UTF-8"), ("why " * 400, 66, "context")],
)
def test_questions_that_cannot_be_asked(ask: Ask, question: str, expected: int, said: str) -> None:
    code, _, err = ask("--log=quiet", "-q", "red", "--set", "vlm.context_tokens=256", question=question)
    assert code == expected and said in err.splitlines()[-1]


@pytest.mark.usefixtures("no_retries")
def test_a_server_that_is_down_leaves_whole_records(run: Run, clip: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    code, out, _ = run("ask", clip, QUESTION, *QUICK, *NOBODY, "--model", "x", "--every", 0.5, "--patches", path)
    assert code == 67
    assert out.splitlines() == [f"[{seconds} s] (no answer)" for seconds in (0.5, 1.0, 1.5, 1.9)]
    assert len(read_records(path)[1]) == 20
    assert all(answer.finish == "failed" and "127.0.0.1:9" in str(answer.error) for answer in read_answers(path))


def test_ctrl_c_ends_within_seconds(run: Run, clip: Path, tiny_qwen: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    long = (
        "--set",
        "vlm.answer_tokens=20000",
        "--set",
        "vlm.context_tokens=32768",
        "--every",
        0.2,
        "--set",
        "vlm.fps=10",
    )
    arguments = ("--model", tiny_qwen, *QUICK[:4], *long, "--patches", path)
    # At the third frame a question is asked, whose answer takes minutes.
    with ctrl_c(lambda: lines(path) > 2):
        assert run("ask", clip, QUESTION, *arguments)[0] == 130
    end = read_records(path)[2]
    assert end is not None and end.reason == "interrupted"
