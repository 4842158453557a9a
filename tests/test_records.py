"""Records: what is written is what the design says, line by line, and can be read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.consumer import Outcome
from arr_stream.errors import DiskFull, EvaluationDataError, OutputExists, OutputUnwritable
from arr_stream.plain_text import redact_url
from arr_stream.records.json_lines import Records, read_records, records_digest
from arr_stream.records.schema import Header, frame_record
from arr_stream.types import SCORERS, Frame, Grid
from tests.choices import choose, frames_of
from tests.media import moving_frames

SIZE = (200, 120)
FRAMES = frames_of(moving_frames(6, SIZE))
ROOT = Path(__file__).parent.parent


def header(**changes) -> Header:
    values = {"source": "street.mp4", "query": "red", "budget_tokens": 20, "config": {"motion": {"flow": "dis"}}}
    return Header.for_grid(Grid.for_size(SIZE), **(values | changes))


def write(path: Path, frames: list[Frame] = FRAMES, outcome: Outcome | None = None) -> Path:
    records = Records(path, header())
    for frame in frames:
        records.consume(frame, choose(frame))
    records.close(outcome=outcome)
    return path


def test_lines_have_exactly_the_designs_keys_first(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in write(tmp_path / "r.jsonl").read_text().splitlines()]
    assert list(lines[0])[:9] == [
        "type", "version", "source", "frame_size_wh", "fine_cell_px", "grid_hw", "query", "budget_tokens", "config",
    ]  # fmt: skip
    assert lines[0]["frame_size_wh"] == [200, 120]
    assert lines[0]["grid_hw"] == [4, 6]
    assert lines[0]["fine_cell_px"] == pytest.approx([200 / 6, 30], abs=1e-4)
    assert list(lines[1])[:9] == [
        "type", "index", "pts_seconds", "keyframe", "refresh_reason", "keyframe_age", "confidence", "cells",
        "latency_ms",
    ]  # fmt: skip
    digest = lines[-1].pop("digest")
    assert lines[-1] == {"type": "end", "frames": 6, "dropped": 0, "reason": "finished"}
    assert digest == records_digest(tmp_path / "r.jsonl") and len(bytes.fromhex(digest)) == 32
    assert [line["type"] for line in lines] == ["header", *["frame"] * 6, "end"]


def test_round_trip(tmp_path: Path) -> None:
    read_header, frames, end = read_records(write(tmp_path / "r.jsonl"))
    assert read_header == header()
    assert end is not None and (end.frames, end.reason) == (6, "finished")
    for frame, record in zip(FRAMES, frames, strict=True):
        patches = choose(frame)
        assert record.index == frame.index
        assert record.pts_seconds == pytest.approx(frame.pts_seconds, abs=1e-6)
        np.testing.assert_allclose([cell[:4] for cell in record.cells], patches.cells_xyxy, atol=0.006)
        np.testing.assert_allclose([cell[4] for cell in record.cells], patches.score, atol=6e-5)
        assert [reason[0] for reason in record.reasons] == [SCORERS[scorer] for scorer in patches.scorer]
        assert [-1 if reason[1] is None else reason[1] for reason in record.reasons] == patches.query.tolist()
        assert [reason[2] == "carried" for reason in record.reasons] == patches.carried.tolist()
        assert [reason[3] == "fresh" for reason in record.reasons] == patches.fresh.tolist()
        assert [reason[4] for reason in record.reasons] == patches.level.tolist()
        assert record.latency_ms == dict(patches.latency_ms)


@given(
    score=st.floats(0, 1, width=32),
    confidence=st.floats(0, 1),
    width=st.integers(1, 5000),
    height=st.integers(1, 3000),
)
def test_numbers_are_short_and_finite(score: float, confidence: float, width: int, height: int) -> None:
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


@pytest.mark.parametrize("field", ["score", "confidence", "pts"])
def test_what_is_no_number_is_never_written(tmp_path: Path, field: str) -> None:
    records = Records(tmp_path / "r.jsonl", header())
    records.consume(FRAMES[0], choose(FRAMES[0]))
    patches = choose(FRAMES[1], **({"confidence": float("nan")} if field == "confidence" else {}))
    if field == "score":
        patches.score[0] = np.nan
    elif field == "pts":
        patches = choose(FRAMES[1], pts_seconds=float("inf"))
    with pytest.raises(ValueError, match=r"finite|compliant"):
        records.consume(FRAMES[1], patches)
    records.close(failed=True)
    _, frames, end = read_records(tmp_path / "r.jsonl")
    assert len(frames) == 1
    assert end is not None and end.reason == "failed"


def test_a_frame_of_another_size_says_so(tmp_path: Path) -> None:
    frames = frames_of([*moving_frames(1, SIZE), *moving_frames(1, (64, 64))])
    _, (same, other), _ = read_records(write(tmp_path / "r.jsonl", frames))
    assert (same.frame_size_wh, same.fine_cell_px, same.grid_hw) == (None, None, None)
    assert (other.frame_size_wh, other.fine_cell_px, other.grid_hw) == ((64, 64), (32.0, 32.0), (2, 2))


def test_end_tells_what_happened(tmp_path: Path) -> None:
    outcome = Outcome("damaged", 3, "two\nlines of rtsp://me:secret@host/x", {"refreshes": 2, "frames": 99})
    _, _, end = read_records(write(tmp_path / "r.jsonl", outcome=outcome))
    assert end is not None
    assert (end.frames, end.dropped, end.reason) == (6, 3, "damaged")
    assert end.error == "two lines of rtsp://***@host/x"
    assert end.model_extra == {"refreshes": 2}


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
def test_passwords_do_not_appear(given_: str, expected: str) -> None:
    assert redact_url(given_) == expected


def test_source_is_redacted(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl", header(source="rtsp://me:secret@host/x"))
    records.consume(FRAMES[0], choose(FRAMES[0], notices=("lost rtsp://me:secret@host/x",)))
    records.close()
    assert "secret" not in (tmp_path / "r.jsonl").read_text()


def test_every_line_is_there_before_the_next_frame(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl", header())
    for count, frame in enumerate(FRAMES, start=1):
        records.consume(frame, choose(frame))
        _, frames, end = read_records(tmp_path / "r.jsonl")
        assert (len(frames), end) == (count, None)
    records.close()


def test_a_killed_run_leaves_valid_lines(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from tests.test_records import FRAMES, Records, choose, header
        records = Records({str(tmp_path / "r.jsonl")!r}, header())
        for frame in FRAMES:
            records.consume(frame, choose(frame))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    _, frames, end = read_records(tmp_path / "r.jsonl")
    assert (len(frames), end) == (6, None)


def test_closing_twice_writes_one_end(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.jsonl", header())
    records.consume(FRAMES[0], choose(FRAMES[0]))
    records.close()
    records.close(failed=True)
    assert (tmp_path / "r.jsonl").read_text().count('"end"') == 1
    with pytest.raises(ValueError, match="closed"):
        records.consume(FRAMES[1], choose(FRAMES[1]))


class TestReader:
    def test_a_cut_last_line_is_passed_over(self, tmp_path: Path) -> None:
        path = write(tmp_path / "r.jsonl")
        data = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(data[:3]) + data[3][:50])
        _, frames, end = read_records(path)
        assert (len(frames), end) == (2, None)

    @pytest.mark.parametrize(
        ("line", "text", "complaint"),
        [
            (2, "{broken", "line 3: not JSON"),
            (2, "[1, 2]", "line 3: not a JSON object"),
            (2, '{"type": "frame", "index": 1}', "line 3: pts_seconds"),
            (2, '{"type": "surprise"}', "line 3: type 'surprise'"),
            (2, '{"type": "frame", "confidence": NaN}', "line 3: not JSON"),
            (0, '{"type": "frame"}', "line 1: type"),
            (0, '{"type": "header", "version": 9}', "line 1: version"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: int, text: str, complaint: str) -> None:
        path = write(tmp_path / "r.jsonl")
        lines = path.read_text().splitlines()
        lines[line] = text
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(EvaluationDataError, match=complaint):
            read_records(path)

    def test_two_runs_in_one_file_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "r.jsonl")
        path.write_text(path.read_text() * 2)
        with pytest.raises(EvaluationDataError, match="after the end"):
            read_records(path)

    def test_missing_and_empty(self, tmp_path: Path) -> None:
        with pytest.raises(EvaluationDataError, match="no such file"):
            read_records(tmp_path / "none.jsonl")
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(EvaluationDataError, match="no records"):
            read_records(tmp_path / "empty.jsonl")


class TestTrouble:
    def test_a_file_that_exists_is_kept_until_there_is_a_frame(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        path.write_text("precious")
        with pytest.raises(OutputExists, match="--force"):
            Records(path, header())
        Records(path, header(), force=True).close(failed=True)
        assert path.read_text() == "precious"
        records = Records(path, header(), force=True)
        records.consume(FRAMES[0], choose(FRAMES[0]))
        records.close()
        assert len(read_records(path)[1]) == 1

    def test_a_file_made_meanwhile_is_kept(self, tmp_path: Path) -> None:
        records = Records(tmp_path / "r.jsonl", header())
        (tmp_path / "r.jsonl").write_text("precious")
        with pytest.raises(OutputUnwritable, match="exists"):
            records.consume(FRAMES[0], choose(FRAMES[0]))
        assert (tmp_path / "r.jsonl").read_text() == "precious"

    def test_no_frame_leaves_no_file(self, tmp_path: Path) -> None:
        Records(tmp_path / "new" / "r.jsonl", header()).close()
        assert list(tmp_path.iterdir()) == []

    def test_a_full_disk(self) -> None:
        records = Records("/dev/full", header())
        with pytest.raises(DiskFull, match="no space left"):
            records.consume(FRAMES[0], choose(FRAMES[0]))
        with pytest.raises(DiskFull):
            records.close(failed=True)
        records.close(failed=True)

    def test_a_disk_that_fills_up_leaves_whole_lines(self, tmp_path: Path) -> None:
        script = f"""
            import resource, signal
            from arr_stream.errors import DiskFull
            from tests.test_records import FRAMES, Records, choose, header
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3900, 3900))
            records = Records({str(tmp_path / "r.jsonl")!r}, header())
            try:
                for frame in FRAMES:
                    records.consume(frame, choose(frame))
            except DiskFull:
                print("full after", records.frames)
            records.close(failed=True)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=ROOT, check=False, timeout=60, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout.startswith("full after "), done.stderr
        count = int(done.stdout.split()[-1])
        _, frames, end = read_records(tmp_path / "r.jsonl")
        assert len(frames) == count > 0
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
