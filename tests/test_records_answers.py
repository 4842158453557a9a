"""Records of a model that watches: what it was given stands with the frame, each answer on a line of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.answers import model_name, most_attended
from arr_stream.errors import EvaluationDataError
from arr_stream.patch_set import Answer, Feeding
from arr_stream.records.json_lines import Records, read_answers, read_records
from arr_stream.records.schema import Header
from arr_stream.types import Grid
from tests.answers import FED, answer_on
from tests.choices import choose, frames_of
from tests.media import moving_frames

SIZE = (200, 120)
FRAMES = frames_of(moving_frames(5, SIZE))
HEADER = Header.for_grid(Grid.for_size(SIZE), source="a.mp4", query=None, budget_tokens=20, config={})


def write(path: Path, answers: dict[int, tuple[Answer, ...]], feedings: dict[int, Feeding] | None = None) -> Path:
    """Records of all frames; answers and feedings by index of the frame."""
    records = Records(path, HEADER)
    for frame in FRAMES:
        given_ = {"answers": answers.get(frame.index, ()), "feeding": (feedings or {}).get(frame.index)}
        records.consume(frame, choose(frame, **given_))
    records.close()
    return path


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_an_answer_comes_after_its_frame_with_the_documented_keys(tmp_path: Path) -> None:
    answers = {1: (answer_on(choose(FRAMES[1])), answer_on(choose(FRAMES[1]), question="And green?"))}
    lines = lines_of(write(tmp_path / "r.jsonl", answers))
    assert [line["type"] for line in lines] == ["header", *["frame"] * 2, *["answer"] * 2, *["frame"] * 3, "end"]
    assert list(lines[3]) == [
        "type", "frame_index", "pts_seconds", "question", "text", "model", "cells", "visual_tokens", "prompt_tokens",
        "answer_tokens", "prefill_ms", "decode_ms", "memory_tokens", "cache_bytes", "finish", "error",
    ]  # fmt: skip
    assert [line["question"] for line in lines[3:5]] == ["What is red?", "And green?"]
    assert lines[-1]["frames"] == 5, "answers are not frames"


def test_feeding_stands_with_its_frame_only(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {}, {2: FED, 3: Feeding(error="no\ncells at http://me:secret@host")})
    assert ["model" in line for line in lines_of(path)[1:-1]] == [False, False, True, True, False]
    assert lines_of(path)[3]["model"] == {
        "sent": 40, "held": 12, "memory_tokens": 1843, "cache_bytes": 9 << 20, "vision_ms": 31.5, "prefill_ms": 48.25,
        "rebuilt": "cut", "error": None, "frame_index": 0,
    }  # fmt: skip
    frames = read_records(path)[1]
    assert frames[0].model is None
    assert frames[2].model is not None
    assert frames[2].model.memory_tokens == 1843
    assert frames[3].model is not None
    assert frames[3].model.error == "no cells at http://***@host"


def test_round_trip(tmp_path: Path) -> None:
    patches = choose(FRAMES[3])
    said = answer_on(patches, text="Ein Quadrat — 红色 🟥\nund mehr", frame_index=2, finish="length", pts_seconds=1 / 3)
    failed = Answer("And now?", "", 3, 0.1, "m", finish="failed", error="down")
    path = write(tmp_path / "r.jsonl", {3: (said, failed)})
    header, frames, end = read_records(path)
    assert header == HEADER
    assert (len(frames), end is not None) == (5, True)
    first, second = read_answers(path)
    assert (first.text, first.frame_index, first.finish, first.error) == (said.text, 2, "length", None)
    assert first.pts_seconds == pytest.approx(1 / 3, abs=1e-6)
    np.testing.assert_allclose([cell[:4] for cell in first.cells], said.cells[: len(first.cells), :4], atol=0.006)
    np.testing.assert_allclose([cell[4] for cell in first.cells], said.cells[: len(first.cells), 4], atol=6e-5)
    assert {cell[5] for cell in first.cells} == {3}
    assert (second.finish, second.error, second.cells) == ("failed", "down", [])


def test_files_without_a_model_have_no_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {})
    assert read_answers(path) == []
    assert all("model" not in line for line in lines_of(path))


def test_cells_are_those_that_carry_most_of_the_attention(tmp_path: Path) -> None:
    halves = answer_on(choose(FRAMES[0]))
    many = np.tile(np.float32([0, 0, 32, 32, 1 / 5000]), (5000, 1))
    even = Answer("Where?", "All over.", 0, 0.0, "m", cells=many, cell_frames=np.zeros(5000, np.int32))
    first, second = read_answers(write(tmp_path / "r.jsonl", {0: (halves, even)}))
    assert len(first.cells) == 4, "1/2 + 1/4 + 1/8 + 1/16 is the first sum above 0.9"
    assert len(second.cells) == 100


@given(
    st.lists(st.floats(0, 1, width=32), max_size=300),
    st.floats(0.05, 1.0),
    st.integers(1, 120),
)
def test_weightiest_is_the_fewest_that_will_do(shares: list[float], share: float, most: int) -> None:
    cells = np.zeros((len(shares), 5), np.float32)
    cells[:, 4] = shares
    kept = most_attended(cells, share, most)
    total = float(np.sum(shares, dtype=np.float64))
    reached = float(cells[kept, 4].sum(dtype=np.float64))
    assert len(set(kept.tolist())) == len(kept) <= most
    assert sorted(cells[kept, 4].tolist(), reverse=True) == cells[kept, 4].tolist()
    if total == 0:
        assert len(kept) == 0
    elif len(kept) < most:
        assert reached >= share * total * (1 - 1e-5)
        assert len(kept) == 1 or reached - cells[kept[-1], 4] < share * total


def test_secrets_are_blanked_everywhere(tmp_path: Path) -> None:
    address = "see http://me:secret@host/v1?api_key=secret"
    answer = answer_on(
        choose(FRAMES[0]),
        question=address,
        text=address,
        model="http://me:secret@host/m",
        error=address,
        finish="failed",
    )
    path = write(tmp_path / "r.jsonl", {0: (answer,)}, {0: Feeding(error=address)})
    assert "secret" not in path.read_text()
    assert read_answers(path)[0].text == "see http://***@host/v1?api_key=***"


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"),
        ("/home/anna/models/tiny", "tiny"),
        ("./models/tiny/", "tiny"),
        ("~/tiny", "tiny"),
        ("http://anna:pw@host/model", "http://***@host/model"),
    ],
)
def test_a_model_is_told_by_name(model: str, shown: str) -> None:
    assert model_name(model) == shown


@pytest.mark.parametrize("where", ["share", "corner", "time", "pts"])
def test_what_is_no_number_is_never_written(tmp_path: Path, where: str) -> None:
    patches = choose(FRAMES[0])
    wrong = {"time": {"decode_ms": float("nan")}, "pts": {"pts_seconds": float("inf")}}
    answer = answer_on(patches, **wrong.get(where, {}))
    if where in ("share", "corner"):
        answer.cells[1, 4 if where == "share" else 0] = np.nan
    records = Records(tmp_path / "r.jsonl", HEADER)
    records.consume(FRAMES[0], patches)
    with pytest.raises(ValueError, match="finite"):
        records.consume(FRAMES[1], choose(FRAMES[1], answers=(answer,)))
    records.close(failed=True)
    assert len(read_records(tmp_path / "r.jsonl")[1]) == 1
    assert read_answers(tmp_path / "r.jsonl") == []


class TestReader:
    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ('{"type": "answer", "frame_index": 1}', "line 3: pts_seconds"),
            ('{"type": "answer", "finish": "bored"}', "line 3"),
            ('{"type": ["answer"]}', "line 3: type .*not known; types are header, frame, answer and end"),
        ],
    )
    @pytest.mark.parametrize("read", [read_records, read_answers])
    def test_a_wrong_line_is_named(self, tmp_path: Path, read, line: str, complaint: str) -> None:
        path = write(tmp_path / "r.jsonl", {0: (answer_on(choose(FRAMES[0])),)})
        lines = path.read_text().splitlines()
        lines[2] = line
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(EvaluationDataError, match=complaint):
            read(path)

    def test_an_answer_cut_off_is_passed_over(self, tmp_path: Path) -> None:
        path = write(tmp_path / "r.jsonl", {0: (answer_on(choose(FRAMES[0])),)})
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:2]) + lines[2][:80])
        _, frames, end = read_records(path)
        assert (len(frames), end, read_answers(path)) == (1, None, [])

    @pytest.mark.parametrize("read", [read_records, read_answers])
    def test_missing_and_empty(self, tmp_path: Path, read) -> None:
        with pytest.raises(EvaluationDataError, match="no such file"):
            read(tmp_path / "none.jsonl")
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(EvaluationDataError, match="no records"):
            read(tmp_path / "empty.jsonl")
