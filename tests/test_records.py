"""Records: every field comes back from lines, tables and rebuilding; lines are as documented, and none is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arr_stream.consumer import Outcome
from arr_stream.errors import DiskFull, EvaluationDataError, OutputUnwritable
from arr_stream.patch_set import Answer, Feeding, PatchSet, most_attended
from arr_stream.plain_text import model_name, redact_url
from arr_stream.records.json_lines import Records, read_answers, read_records, records_digest
from arr_stream.records.schema import AnswerRecord, FeedingRecord, FrameRecord, answer_record, frame_record
from arr_stream.types import SCORERS, DetectedObject, Frame, Grid
from tests.choices import FED, answer_on, choose, files_no_larger_than, frames_of, header, killed_after_consuming
from tests.media import moving_frames

SIZE = (200, 120)
FRAMES = frames_of(moving_frames(6, SIZE))
ADDRESS = "see http://me:secret@host/v1?api_key=secret"

Line = dict[str, Any]


def write(path: Path, chosen: list[PatchSet] | None = None, outcome: Outcome | None = None) -> Path:
    """Records of what was chosen on the frames, by default on each of them."""
    records = Records(path, header())
    for frame, patches in zip(FRAMES, chosen or map(choose, FRAMES), strict=False):
        records.consume(frame, patches)
    records.close(outcome=outcome)
    return path


def lines_of(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class TestFields:
    """A field is described once, in `records.schema`: what is not, or is lost on one of the ways, fails here."""

    @pytest.fixture
    def patches(self) -> PatchSet:
        said = {
            "grid": Grid.for_size((64, 64)), "parts": {"clusters": (3, "grid")}, "notices": ("one",), "quality": 2,
            "damaged": True,
            "objects": (DetectedObject("dog", 0.75, (0.25, 0.5, 0.75, 1.0), 3),),
            "feeding": Feeding(40, 12, 1843, 9 << 20, 31.5, 48.25, "cut", "lost", 4),
        }  # fmt: skip
        answer = answer_on(choose(FRAMES[5], **said), finish="failed", error="down", cached_tokens=7)
        return choose(FRAMES[5], **said, answers=(answer,))

    def test_all_come_back_from_lines(self, patches: PatchSet, tmp_path: Path) -> None:
        path = write(tmp_path / "r.jsonl", [patches])
        (record,), answers = read_records(path)[1], read_answers(path)
        assert record.model is not None
        for kind, read in ((FrameRecord, record), (FeedingRecord, record.model), (AnswerRecord, answers[0])):
            assert kind.model_fields.keys() == read.model_fields_set and not read.model_extra


class TestLines:
    def test_they_have_exactly_the_designs_keys_first(self, tmp_path: Path) -> None:
        lines = lines_of(write(tmp_path / "r.jsonl"))
        assert list(lines[0])[:9] == [
            "type", "version", "source", "frame_size_wh", "fine_cell_px", "grid_hw", "query", "budget_tokens", "config",
        ]  # fmt: skip
        assert (lines[0]["frame_size_wh"], lines[0]["grid_hw"]) == ([200, 120], [4, 6])
        assert lines[0]["fine_cell_px"] == pytest.approx([200 / 6, 30], abs=1e-4)
        assert list(lines[1])[:9] == [
            "type", "index", "pts_seconds", "keyframe", "refresh_reason", "keyframe_age", "confidence", "cells",
            "latency_ms",
        ]  # fmt: skip
        digest = lines[-1].pop("digest")
        assert lines[-1] == {"type": "end", "frames": 6, "dropped": 0, "reason": "finished"}
        assert digest == records_digest(tmp_path / "r.jsonl") and len(bytes.fromhex(digest)) == 32
        assert [line["type"] for line in lines] == ["header", *["frame"] * 6, "end"]
        assert all("model" not in line for line in lines) and read_answers(tmp_path / "r.jsonl") == []

    def test_they_hold_what_was_chosen(self, tmp_path: Path) -> None:
        read_header, frames, end = read_records(write(tmp_path / "r.jsonl"))
        assert read_header == header()
        assert end is not None and (end.frames, end.reason) == (6, "finished")
        for frame, record in zip(FRAMES, frames, strict=True):
            patches = choose(frame)
            assert record.index == frame.index
            assert record.pts_seconds == pytest.approx(frame.pts_seconds, abs=1e-6)
            np.testing.assert_allclose([cell[:4] for cell in record.cells], patches.cells_xyxy, atol=0.006)
            np.testing.assert_allclose([cell.score for cell in record.cells], patches.score, atol=6e-5)
            assert [reason.scorer for reason in record.reasons] == [SCORERS[scorer] for scorer in patches.scorer]
            queries = [-1 if reason.query is None else reason.query for reason in record.reasons]
            assert queries == patches.query.tolist()
            assert [reason.origin == "carried" for reason in record.reasons] == patches.carried.tolist()
            assert [reason.novelty == "fresh" for reason in record.reasons] == patches.fresh.tolist()
            assert [reason.level for reason in record.reasons] == patches.level.tolist()
            assert record.latency_ms == dict(patches.latency_ms)

    @given(
        score=st.floats(0, 1, width=32),
        confidence=st.floats(0, 1),
        width=st.integers(1, 5000),
        height=st.integers(1, 3000),
    )
    def test_numbers_are_short_and_finite(self, score: float, confidence: float, width: int, height: int) -> None:
        grid = Grid.for_size((width, height), max_pixels=1 << 20)
        patches = choose(FRAMES[1], confidence=confidence, grid=grid)
        patches.score[:] = np.float32(score)
        record = frame_record(patches)
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        for *box, written in record["cells"]:
            assert all(side == round(side, 2) for side in box)
            assert written == round(written, 4)
            assert 0 <= box[0] < box[2] <= width + 0.01
            assert 0 <= box[1] < box[3] <= height + 0.01

    @pytest.mark.parametrize("field", ["score", "confidence", "pts", "share", "corner", "time", "answer"])
    def test_what_is_no_number_is_never_written(self, tmp_path: Path, field: str) -> None:
        wrong: dict[str, dict[str, Any]] = {"confidence": {"confidence": np.nan}, "pts": {"pts_seconds": np.inf}}
        patches = choose(FRAMES[1], **wrong.get(field, {}))
        if field == "score":
            patches.score[0] = np.nan
        elif field in ("share", "corner", "time", "answer"):
            times = {"time": {"decode_ms": np.nan}, "answer": {"pts_seconds": np.inf}}
            answer = answer_on(patches, **times.get(field, {}))
            answer.cells[1, 4 if field == "share" else 0] = 0.1 if field in times else np.nan
            patches = choose(FRAMES[1], answers=(answer,))
        records = Records(tmp_path / "r.jsonl", header())
        records.consume(FRAMES[0], choose(FRAMES[0]))
        with pytest.raises(ValueError, match=r"finite|compliant"):
            records.consume(FRAMES[1], patches)
        records.close(failed=True)
        _, frames, end = read_records(tmp_path / "r.jsonl")
        assert (len(frames), read_answers(tmp_path / "r.jsonl")) == (1, [])
        assert end is not None and end.reason == "failed"

    def test_a_frame_of_another_size_says_so(self, tmp_path: Path) -> None:
        other_size = choose(Frame(1, 0.1, moving_frames(1, (64, 64))[0]))
        _, (same, other), _ = read_records(write(tmp_path / "r.jsonl", [choose(FRAMES[0]), other_size]))
        assert (same.frame_size_wh, same.fine_cell_px, same.grid_hw) == (None, None, None)
        assert (other.frame_size_wh, other.fine_cell_px, other.grid_hw) == ((64, 64), (32.0, 32.0), (2, 2))

    def test_the_end_tells_what_happened(self, tmp_path: Path) -> None:
        outcome = Outcome("damaged", 3, "two\nlines of rtsp://me:secret@host/x", {"refreshes": 2, "frames": 99})
        _, _, end = read_records(write(tmp_path / "r.jsonl", outcome=outcome))
        assert end is not None
        assert (end.frames, end.dropped, end.reason) == (6, 3, "damaged")
        assert end.error == "two lines of rtsp://***@host/x"
        assert end.model_extra == {"refreshes": 2}

    def test_each_is_there_before_the_next_frame(self, tmp_path: Path) -> None:
        records = Records(tmp_path / "r.jsonl", header())
        for count, frame in enumerate(FRAMES, start=1):
            records.consume(frame, choose(frame))
            _, frames, end = read_records(tmp_path / "r.jsonl")
            assert (len(frames), end) == (count, None)
        records.close()
        records.close(failed=True)
        assert (tmp_path / "r.jsonl").read_text().count('"end"') == 1


class TestSecrets:
    @pytest.mark.parametrize(
        ("given_", "expected"),
        [
            ("rtsp://user:pa:ss@cam.local/a", "rtsp://***@cam.local/a"),
            ("rtsp://user:p@ss@cam.local/a", "rtsp://***@cam.local/a"),
            ("see https://token@host/x?key=abc&n=1#t for more", "see https://***@host/x?key=***&n=1#t for more"),
            ("http://host/?access_token=a.b-c", "http://host/?access_token=***"),
            ("https://host/clip@2x.mp4", "https://host/clip@2x.mp4"),
            ("/videos/a@b.mp4", "/videos/a@b.mp4"),
        ],
    )
    def test_passwords_do_not_appear(self, given_: str, expected: str) -> None:
        assert redact_url(given_) == expected

    def test_they_are_blanked_everywhere(self, tmp_path: Path) -> None:
        texts = dict.fromkeys(("question", "text", "model", "error"), ADDRESS)
        answer = answer_on(choose(FRAMES[0]), **texts, finish="failed")
        patches = choose(
            FRAMES[0], notices=(ADDRESS,), feeding=Feeding(error=f"no\ncells: {ADDRESS}"), answers=(answer,)
        )
        records = Records(tmp_path / "r.jsonl", header(source="rtsp://me:secret@host/x"))
        records.consume(FRAMES[0], patches)
        records.close(outcome=Outcome("failed", error=ADDRESS))
        assert "secret" not in (tmp_path / "r.jsonl").read_text()
        model = read_records(tmp_path / "r.jsonl")[1][0].model
        assert model is not None and model.error == "no cells: see http://***@host/v1?api_key=***"
        assert read_answers(tmp_path / "r.jsonl")[0].text == "see http://***@host/v1?api_key=***"

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
    def test_a_model_is_told_by_name(self, model: str, shown: str) -> None:
        assert model_name(model) == shown


class TestAnswers:
    def test_an_answer_comes_after_its_frame_with_the_documented_keys(self, tmp_path: Path) -> None:
        first, second = (choose(frame) for frame in FRAMES[:2])
        answers = answer_on(second), answer_on(second, question="And green?")
        fed = choose(FRAMES[2], feeding=FED)
        lines = lines_of(write(tmp_path / "r.jsonl", [first, choose(FRAMES[1], answers=answers), fed]))
        assert [line["type"] for line in lines] == ["header", "frame", "frame", "answer", "answer", "frame", "end"]
        assert list(lines[3]) == [
            "type", "frame_index", "pts_seconds", "question", "text", "model", "cells", "visual_tokens",
            "prompt_tokens", "answer_tokens", "prefill_ms", "decode_ms", "memory_tokens", "cache_bytes", "finish",
            "error", "note",
        ]  # fmt: skip
        assert [line["question"] for line in lines[3:5]] == ["What is red?", "And green?"]
        assert lines[-1]["frames"] == 3, "answers are not frames"
        assert ["model" in line for line in (lines[1], lines[2], lines[5])] == [False, False, True]
        assert lines[5]["model"] == {
            "sent": 40, "held": 12, "memory_tokens": 1843, "cache_bytes": 9 << 20, "vision_ms": 31.5,
            "prefill_ms": 48.25, "rebuilt": "cut", "error": None, "frame_index": 0,
        }  # fmt: skip

    def test_it_is_read_as_it_was_said(self, tmp_path: Path) -> None:
        text = "Ein Quadrat — 红色 🟥\nund mehr"
        said = answer_on(choose(FRAMES[3]), text=text, frame_index=2, finish="length", pts_seconds=1 / 3)
        failed = Answer("And now?", "", 3, 0.1, "m", finish="failed", error="down")
        first, second = read_answers(write(tmp_path / "r.jsonl", [choose(FRAMES[3], answers=(said, failed))]))
        assert (first.text, first.frame_index, first.finish, first.error) == (text, 2, "length", None)
        assert first.pts_seconds == pytest.approx(1 / 3, abs=1e-6)
        np.testing.assert_allclose([cell[:4] for cell in first.cells], said.cells[: len(first.cells), :4], atol=0.006)
        np.testing.assert_allclose([cell.share for cell in first.cells], said.cells[: len(first.cells), 4], atol=6e-5)
        assert {cell.frame_index for cell in first.cells} == {3}
        assert (second.finish, second.error, second.cells) == ("failed", "down", [])

    def test_its_cells_are_those_that_carry_most_of_the_attention(self) -> None:
        many = np.tile(np.float32([0, 0, 32, 32, 1 / 5000]), (5000, 1))
        even = Answer("Where?", "All over.", 0, 0.0, "m", cells=many, cell_frames=np.zeros(5000, np.int32))
        halves = answer_record(answer_on(choose(FRAMES[0])))
        assert len(halves["cells"]) == 4, "1/2 + 1/4 + 1/8 + 1/16 is the first sum above 0.9"
        assert len(answer_record(even)["cells"]) == 100

    @given(st.lists(st.floats(0, 1, width=32), max_size=300), st.floats(0.05, 1.0), st.integers(1, 120))
    @example([2.0**-149] * 3, 0.75, 4)
    def test_those_are_the_fewest_that_will_do(self, shares: list[float], share: float, most: int) -> None:
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
            assert len(kept) == 1 or reached - float(cells[kept[-1], 4]) < share * total


READERS: list[Callable[[Path], object]] = [read_records, read_answers]
END = '{"type": "end", "frames": 0, "dropped": 0}'


@pytest.mark.parametrize("read", READERS)
class TestReading:
    @pytest.mark.parametrize(
        ("line", "text", "complaint"),
        [
            (2, "[1, 2]", "line 3: .*valid dictionary"),
            (2, '{"type": "frame", "index": 1}', "line 3: frame.pts_seconds"),
            (2, '{"type": "surprise"}', "line 3: .*'surprise'.* 'header', 'frame', 'answer', 'end'"),
            (2, '{"type": "frame", "confidence": NaN}', "line 3: not JSON"),
            (2, '{"type": "answer", "frame_index": 1}', "line 3: answer.pts_seconds"),
            (2, '{"type": ["answer"]}', "line 3: .*answer"),
            (0, END, "line 1: the header is the first line"),
            (0, '{"type": "header", "version": 9}', "line 1: header.version"),
        ],
    )
    def test_a_wrong_line_is_named(
        self, tmp_path: Path, read: Callable[[Path], object], line: int, text: str, complaint: str
    ) -> None:
        path = write(tmp_path / "r.jsonl")
        lines = path.read_text().splitlines()
        lines[line] = text
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(EvaluationDataError, match=complaint):
            read(path)

    def test_two_runs_in_one_file_are_refused(self, tmp_path: Path, read: Callable[[Path], object]) -> None:
        path = write(tmp_path / "r.jsonl")
        path.write_text(path.read_text() * 2)
        with pytest.raises(EvaluationDataError, match="after the end"):
            read(path)

    def test_missing_and_empty(self, tmp_path: Path, read: Callable[[Path], object]) -> None:
        with pytest.raises(EvaluationDataError, match="no such file"):
            read(tmp_path / "none.jsonl")
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(EvaluationDataError, match="no records"):
            read(tmp_path / "empty.jsonl")


class TestTrouble:
    @pytest.mark.parametrize(("whole", "frames"), [(3, 2), (2, 1)])
    def test_a_cut_last_line_is_passed_over(self, tmp_path: Path, whole: int, frames: int) -> None:
        patches = choose(FRAMES[0])
        path = write(tmp_path / "r.jsonl", [choose(FRAMES[0]), choose(FRAMES[1]), choose(FRAMES[2])])
        if whole == 2:
            path.unlink()
            write(path, [choose(FRAMES[0], answers=(answer_on(patches),))])
        data = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(data[:whole]) + data[whole][:50])
        _, read, end = read_records(path)
        assert (len(read), end, read_answers(path)) == (frames, None, [])

    def test_a_killed_run_leaves_valid_lines(self, tmp_path: Path) -> None:
        killed_after_consuming(lambda: Records(tmp_path / "r.jsonl", header()), FRAMES)
        _, frames, end = read_records(tmp_path / "r.jsonl")
        assert (len(frames), end) == (6, None)

    def test_a_file_made_meanwhile_is_kept(self, tmp_path: Path) -> None:
        records = Records(tmp_path / "r.jsonl", header())
        (tmp_path / "r.jsonl").write_text("precious")
        with pytest.raises(OutputUnwritable, match="exists"):
            records.consume(FRAMES[0], choose(FRAMES[0]))
        assert (tmp_path / "r.jsonl").read_text() == "precious"

    def test_a_full_disk(self) -> None:
        records = Records("/dev/full", header())
        with pytest.raises(DiskFull, match="no space left"):
            records.consume(FRAMES[0], choose(FRAMES[0]))
        records.close(failed=True)

    def test_a_disk_that_fills_up_leaves_whole_lines(self, tmp_path: Path) -> None:
        records = Records(tmp_path / "r.jsonl", header())
        with files_no_larger_than(3900):
            with pytest.raises(DiskFull):
                for frame in FRAMES:
                    records.consume(frame, choose(frame))
            records.close(failed=True)
        _, frames, end = read_records(tmp_path / "r.jsonl")
        assert len(frames) == records.frames > 0
        assert end is not None, "the end line is short enough to fit"
        assert end.reason == "failed"

    def test_a_pipe_will_do(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        records = Records(tmp_path / "pipe", header())
        records.consume(FRAMES[0], choose(FRAMES[0]))
        assert os.read(reader, 1 << 16).count(b"\n") == 2
        records.close()
        os.close(reader)

    @pytest.mark.parametrize("name", ["folder", "file/r.jsonl"])
    def test_places_that_will_not_do(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
        with pytest.raises(OutputUnwritable):
            Records(tmp_path / name, header())
