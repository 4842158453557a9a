"""Replay: a patch set comes back from its record, the video from records and source, and a second run is compared."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.consumer import Outcome
from arr_stream.draw.overlay import answer_marks, draw_patches
from arr_stream.errors import EvaluationDataError
from arr_stream.records.json_lines import Records
from arr_stream.records.rebuild import rebuilt, rebuilt_answer, rounded_as_recorded
from arr_stream.records.recording import Recording
from arr_stream.records.schema import AnswerRecord, FrameRecord, Header, answer_record, frame_record
from arr_stream.types import ByteArray, Frame, Grid
from tests.choices import FED, answer_on, choose, frames_of
from tests.conftest import Run
from tests.media import moving_frames, write_images, write_video
from tests.scenes import moving_square

FAST = ["--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--budget", "12"]
TIMED = ["--set", "records.timings=on"]
HEADER = Header.for_grid(Grid.for_size((200, 120)), source="a.mp4", query=None, budget_tokens=3, config={})

Line = dict[str, Any]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_video(path, [frame.rgb for frame in moving_square(16)], audio=True)


@pytest.fixture(scope="module")
def made(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Video and records of a run with two queries: `out.mp4` and `out.jsonl`."""
    import arr_stream
    from arr_stream.config import Settings
    from arr_stream.run import annotated_video, records_of, run

    folder = tmp_path_factory.mktemp("made")
    settings = Settings.load(None, [text for text in (*FAST, *TIMED) if "=" in text])
    stream = arr_stream.open(clip, query="red", region=(40, 60, 48, 48), budget=12, settings=settings)
    consumers = [
        annotated_video(stream, folder / "out.mp4"),
        records_of(stream, folder / "out.jsonl"),
    ]
    assert run(stream, consumers).error is None
    return folder


def lines_of(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, to: Path, change: Callable[[list[Line]], object]) -> Path:
    """A copy of records after a change to its lines."""
    lines = lines_of(path)
    change(lines)
    to.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to


def pictures(path: Path) -> list[tuple[float, ByteArray]]:
    with av.open(str(path)) as container:
        return [(float(frame.time), frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def without_provenance(lines: list[Line]) -> None:
    del lines[0]["provenance"]


class TestRebuilding:
    @given(
        width=st.integers(1, 3000),
        height=st.integers(1, 3000),
        index=st.integers(0, 40),
        confidence=st.floats(0, 1),
        fed=st.booleans(),
        quality=st.integers(0, 3),
    )
    @settings(max_examples=30, deadline=None)
    def test_recording_what_was_rebuilt_gives_the_record(
        self, width: int, height: int, index: int, confidence: float, fed: bool, quality: int
    ) -> None:
        frame = Frame(index, index / 30, np.zeros((1, 1, 3), np.uint8))
        grid = Grid.for_size((width, height), max_pixels=1 << 20)
        patches = choose(
            frame, grid=grid, confidence=confidence, feeding=FED if fed else None, quality=quality,
            parts={"clusters": (3, "grid")}, notices=("one", "two"),
        )  # fmt: skip
        record = json.loads(json.dumps(frame_record(patches, HEADER)))
        again = rebuilt(FrameRecord.model_validate(record), HEADER)
        assert json.loads(json.dumps(frame_record(again, HEADER))) == record
        for name in ("rows", "columns", "level", "scorer", "query", "carried", "fresh"):
            assert np.array_equal(getattr(again, name), getattr(patches, name)), name

    @given(seed=st.integers(0, 10_000), count=st.integers(1, 300))
    @settings(max_examples=15, deadline=None)
    def test_an_answer_that_was_rebuilt_keeps_its_cells_and_is_marked_the_same(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        grid = Grid.for_size((640, 480))
        rows, columns = rng.integers(0, grid.rows, count), rng.integers(0, grid.columns, count)
        ones = np.ones(count, np.int32)
        boxes = grid.cells_xyxy(rows.astype(np.int32), columns.astype(np.int32), ones)
        shares = rng.exponential(size=count).astype(np.float32)
        cells = np.concatenate([boxes, (shares / shares.sum())[:, None]], axis=1)
        frame = Frame(7, 0.25, np.zeros((480, 640, 3), np.uint8))
        patches = choose(frame)
        answer = answer_on(patches, cells=cells, cell_frames=rng.integers(6, 8, count).astype(np.int32))
        record = AnswerRecord.model_validate(answer_record(answer))
        again = rebuilt_answer(record)
        assert answer_record(again) == answer_record(answer)
        # What is drawn live is drawn from rounded numbers too, so that it is the same to the last bit.
        (live,) = rounded_as_recorded(choose(frame, answers=(answer,))).answers
        marks = answer_marks(live, grid, (640, 480)), answer_marks(again, grid, (640, 480))
        drawn = [np.zeros((480, 640, 3), np.uint8) for _ in marks]
        for mark, picture in zip(marks, drawn, strict=True):
            assert mark is not None
            mark.draw(picture)
        assert drawn[0].any() and np.array_equal(drawn[0], drawn[1])

    def test_scores_on_the_edge_of_a_colour_are_drawn_alike(self) -> None:
        frame = frames_of(moving_frames(1, (640, 480)))[0]
        patches = choose(frame)
        edges = np.arange(len(patches), dtype=np.float64) % 5 + 1
        patches.score[:] = np.sort(edges / 6 - 2e-5)[::-1].astype(np.float32)
        again = rebuilt(FrameRecord.model_validate(frame_record(patches)), Header.for_grid(
            patches.grid, source="a", query=None, budget_tokens=3, config={}
        ))  # fmt: skip
        live = draw_patches(frame.rgb, rounded_as_recorded(patches), 0.35)
        assert np.array_equal(live, draw_patches(frame.rgb, again, 0.35))
        assert not np.array_equal(live, draw_patches(frame.rgb, patches, 0.35)), "rounding must matter here"

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"cells": [[1.0, 0.0, 33.3, 30.0, 0.5]]}, "none of the frame's grid"),
            ({"cells": [[900.0, 0.0, 933.3, 30.0, 0.5]]}, "none of the frame's grid"),
            ({"reasons": []}, "1 cells and 0 reasons"),
            ({"reasons": [["luck", None, "computed", "fresh", 0]]}, "luck"),
            ({"reasons": [["context", None, "computed", "fresh", 40]]}, "40"),
            ({"grid_hw": [1_000_000, 6]}, "1000000x6"),
        ],
    )
    def test_what_contradicts_itself_is_refused(self, change: Line, said: str) -> None:
        grid = Grid.for_size((200, 120))
        one = {"cells": [[0.0, 0.0, 33.33, 30.0, 0.5]], "reasons": [["context", None, "computed", "fresh", 0]]}
        record = frame_record(choose(Frame(3, 0.1, np.zeros((120, 200, 3), np.uint8)), grid=grid)) | one
        rebuilt(FrameRecord.model_validate(record), HEADER)
        with pytest.raises(EvaluationDataError, match=said):
            rebuilt(FrameRecord.model_validate(record | change), HEADER)


class TestDrawingAgain:
    def test_the_video_is_the_same_to_the_last_byte(self, run: Run, made: Path, tmp_path: Path) -> None:
        code, out, err = run("replay", made / "out.jsonl", "-o", tmp_path / "again.mp4")
        assert (code, out) == (0, ""), err
        assert "16 frames drawn again" in err
        again, first = pictures(tmp_path / "again.mp4"), pictures(made / "out.mp4")
        assert len(first) == 16
        for (time, picture), (first_time, first_picture) in zip(again, first, strict=True):
            assert time == first_time and np.array_equal(picture, first_picture)
        assert (tmp_path / "again.mp4").read_bytes() == (made / "out.mp4").read_bytes(), "the sound too"

    def test_a_source_that_moved_is_named_and_another_is_refused(
        self, run: Run, made: Path, clip: Path, tmp_path: Path
    ) -> None:
        records = rewritten(made / "out.jsonl", tmp_path / "r.jsonl", lambda lines: lines[0].update(source="gone.mp4"))
        code, _, err = run("replay", records, "-o", tmp_path / "a.mp4")
        assert code == 10 and "gone.mp4" in err and "SOURCE" in err and err.count("\n") == 1
        moved = Path(shutil.copy(clip, tmp_path / "moved.mp4"))
        assert run("replay", records, moved, "-o", tmp_path / "a.mp4")[0] == 0
        assert (tmp_path / "a.mp4").read_bytes() == (made / "out.mp4").read_bytes()
        with moved.open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
        code, _, err = run("replay", records, moved, "-o", tmp_path / "b.mp4")
        assert code == 87 and "SHA-256" in err and err.count("\n") == 1
        assert not (tmp_path / "b.mp4").exists()

    def test_views_that_need_channels_are_refused_and_come_with_rerun(
        self, run: Run, made: Path, tmp_path: Path
    ) -> None:
        code, _, err = run("replay", made / "out.jsonl", "-o", tmp_path / "v.mp4", "--view", "clusters")
        assert code == 51 and "patches and source" in err and "--rerun" in err and err.count("\n") == 1
        assert run("replay", made / "out.jsonl", "-o", tmp_path / "s.mp4", "--view", "source")[0] == 0
        code, _, err = run("replay", made / "out.jsonl", "-o", tmp_path / "v.mp4", "--view", "clusters", "--rerun")
        assert code == 0, err
        assert len(pictures(tmp_path / "v.mp4")) == 16

    def test_records_of_a_killed_run_go_to_their_last_whole_line(self, run: Run, made: Path, tmp_path: Path) -> None:
        lines = (made / "out.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "killed.jsonl").write_bytes(b"".join(lines[:8]) + lines[8][:100])
        code, _, err = run("replay", tmp_path / "killed.jsonl", "-o", tmp_path / "k.mp4")
        assert code == 0, err
        assert len(pictures(tmp_path / "k.mp4")) == 7
        code, out, err = run("replay", tmp_path / "killed.jsonl", "--check")
        assert code == 0, err
        assert "7 frames, as far as the records go" in out

    def test_a_part_begins_with_what_the_strip_said_before_it(self, run: Run, made: Path, tmp_path: Path) -> None:
        def lossless(lines: list[Line]) -> None:
            lines[0]["config"]["video"]["crf"] = 0

        records = rewritten(made / "out.jsonl", tmp_path / "r.jsonl", lossless)
        assert run("replay", records, "-o", tmp_path / "w.mp4")[0] == 0
        code, _, err = run("replay", records, "-o", tmp_path / "p.mp4", "--start", 0.2, "--end", 0.4)
        assert code == 0, err
        part = pictures(tmp_path / "p.mp4")
        whole = [(time, picture) for time, picture in pictures(tmp_path / "w.mp4") if 0.19 < time < 0.39]
        assert len(part) == len(whole) == 6
        for (time, picture), (time_before, before) in zip(part, whole, strict=True):
            assert time == pytest.approx(time_before - 0.2, abs=1e-3)
            assert np.array_equal(picture, before)
        code, _, err = run("replay", records, "-o", tmp_path / "n.mp4", "--start", 60)
        assert code == 18 and err.count("\n") == 1

    def test_older_records_are_drawn_after_a_word_about_what_cannot_be_known(
        self, run: Run, made: Path, clip: Path, tmp_path: Path
    ) -> None:
        old = rewritten(made / "out.jsonl", tmp_path / "old.jsonl", without_provenance)
        code, _, err = run("replay", old, "-o", tmp_path / "o.mp4")
        assert code == 0 and "no hash" in err
        assert len(pictures(tmp_path / "o.mp4")) == 16
        code, _, err = run("replay", old, "--check")
        assert code == 85 and err.count("\n") == 1
        other = write_video(tmp_path / "other.mp4", moving_frames(16, (96, 64)))
        code, _, err = run("replay", old, other, "-o", tmp_path / "x.mp4")
        assert code == 87 and "96x64" in err
        short = write_video(tmp_path / "short.mp4", [frame.rgb for frame in moving_square(5)])
        code, _, err = run("replay", old, short, "-o", tmp_path / "y.mp4")
        assert code == 87 and "ends before frame 5" in err
        assert len(pictures(tmp_path / "y.mp4")) == 5, "what was drawn before is kept"

    def test_frames_passed_over_in_real_time_are_passed_over_again(self, run: Run, made: Path, tmp_path: Path) -> None:
        def drop(lines: list[Line]) -> None:
            lines[:] = [line for line in lines if line.get("index") not in (3, 4, 9)]

        records = rewritten(made / "out.jsonl", tmp_path / "r.jsonl", drop)
        assert run("replay", records, "-o", tmp_path / "r.mp4")[0] == 0
        times = [time for time, _ in pictures(tmp_path / "r.mp4")]
        assert times == pytest.approx([index / 30 for index in range(16) if index not in (3, 4, 9)], abs=1e-3)

    def test_records_of_a_live_source_are_refused(self, run: Run, made: Path, tmp_path: Path) -> None:
        def live(lines: list[Line]) -> None:
            lines[0]["provenance"]["source"] = {"kind": "camera", "path": "0"}

        code, _, err = run(
            "replay", rewritten(made / "out.jsonl", tmp_path / "l.jsonl", live), "-o", tmp_path / "l.mp4"
        )
        assert code == 85 and "camera" in err and err.count("\n") == 1

    @pytest.mark.parametrize("options", [["-o", "a.mp4"], ["--check"]])
    def test_records_of_an_address_need_the_file(
        self, run: Run, made: Path, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        address = "s3://me:hush@bucket/clip.mp4"
        records = rewritten(made / "out.jsonl", tmp_path / "r.jsonl", lambda lines: lines[0].update(source=address))
        code, _, err = run("replay", records, *options)
        assert code == 10 and "bucket/clip.mp4" in err and "SOURCE" in err and err.count("\n") == 1
        assert "hush" not in err
        assert run("replay", records, clip, *options)[0] == 0

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ([], 51),
            (["--patches", "p.jsonl"], 51),
            (["--check", "--start", 1], 51),
            (["-o", "x.avi"], 21),
            (["-o", "x.mp4", "--view", "nonsense"], 51),
        ],
    )
    def test_what_makes_no_sense_is_said_in_one_line(
        self, run: Run, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[object], code: int
    ) -> None:
        monkeypatch.chdir(tmp_path)
        found, _, err = run("replay", made / "out.jsonl", *options)
        assert (found, err.count("\n")) == (code, 1), err
        assert list(tmp_path.iterdir()) == []

    def test_neither_source_nor_records_are_overwritten(self, run: Run, made: Path, clip: Path) -> None:
        before = clip.read_bytes(), (made / "out.jsonl").read_bytes()
        assert run("replay", made / "out.jsonl", "-o", clip, "--force")[0] == 21
        assert run("replay", made / "out.jsonl", "--rerun", "--patches", made / "out.jsonl", "--force")[0] == 51
        assert (clip.read_bytes(), (made / "out.jsonl").read_bytes()) == before

    def test_pictures_of_a_folder(self, run: Run, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "pictures", [frame.rgb for frame in moving_square(4)])
        records, video = tmp_path / "r.jsonl", tmp_path / "v.mp4"
        assert run("process", folder, "--patches", records, "-o", video, *FAST, *TIMED)[0] == 0
        assert run("replay", records, "-o", tmp_path / "again.mp4")[0] == 0
        assert (tmp_path / "again.mp4").read_bytes() == video.read_bytes()
        (folder / "frame3.png").rename(folder / "frame9.png")
        assert run("replay", records, "-o", tmp_path / "x.mp4")[0] == 87


class TestRunningAgain:
    def test_the_same_records_have_the_same_digest(self, run: Run, made: Path, tmp_path: Path) -> None:
        code, out, err = run("replay", made / "out.jsonl", "--check", "--rerun", "--patches", tmp_path / "r.jsonl")
        assert code == 0, err
        end = lines_of(made / "out.jsonl")[-1]
        assert "16 frames" in out and end["digest"] in out
        assert lines_of(tmp_path / "r.jsonl")[-1]["digest"] == end["digest"]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda lines: lines[6].update(confidence=0.123), "frame 5 is not the same in confidence"),
            (lambda lines: lines[3]["cells"].pop() and lines[3]["reasons"].pop(), "frame 2 is not the same in cells"),
            (lambda lines: lines.pop(4), "frame 4 is not the same|frame 3"),
            (lambda lines: lines.pop(-2), "frame 15 comes after the last"),
            (lambda lines: lines[0].update(budget_tokens=99), "the header is not the same in budget_tokens"),
            (lambda lines: lines[-1].update(digest="0" * 64), "was changed after it was written"),
        ],
    )
    def test_the_first_difference_is_named(
        self, run: Run, made: Path, tmp_path: Path, change: Callable[[list[Line]], object], said: str
    ) -> None:
        def changed(lines: list[Line]) -> None:
            if lines[-1].get("digest"):
                del lines[-1]["digest"]
            change(lines)

        code, out, err = run("replay", rewritten(made / "out.jsonl", tmp_path / "r.jsonl", changed), "--check")
        assert (code, out) == (86, ""), err
        assert re.search(said, err) and err.count("\n") == 1, err

    def test_a_frame_that_never_comes_is_a_difference(self, run: Run, made: Path, tmp_path: Path) -> None:
        def longer(lines: list[Line]) -> None:
            del lines[-1]["digest"]
            lines.insert(-1, lines[-2] | {"index": 16, "pts_seconds": 16 / 30})

        code, _, err = run("replay", rewritten(made / "out.jsonl", tmp_path / "r.jsonl", longer), "--check")
        assert code == 86 and "frame 16 is in the records and did not come" in err

    def test_other_versions_are_told(self, run: Run, made: Path, tmp_path: Path) -> None:
        def older(lines: list[Line]) -> None:
            lines[0]["provenance"]["packages"]["numpy"] = "0.9"

        code, out, err = run("replay", rewritten(made / "out.jsonl", tmp_path / "r.jsonl", older), "--check")
        assert code == 0 and "was 0.9" in err and "the same records" in out

    @pytest.mark.parametrize(
        ("change", "said"),
        [({"realtime": True}, "real time"), ({"question": {"text": "Why?", "when": "end"}}, "Why?")],
    )
    def test_what_cannot_come_out_the_same_is_refused(
        self, run: Run, made: Path, tmp_path: Path, change: Line, said: str
    ) -> None:
        records = rewritten(
            made / "out.jsonl", tmp_path / "r.jsonl", lambda lines: lines[0]["provenance"].update(change)
        )
        code, _, err = run("replay", records, "--check")
        assert code == 85 and said in err and err.count("\n") == 1


def test_a_mask_is_asked_for_again(run: Run, clip: Path, tmp_path: Path) -> None:
    mask, records = tmp_path / "mask.png", tmp_path / "r.jsonl"
    shape = np.zeros((192, 256, 3), np.uint8)
    shape[60:108, 40:88] = 255
    cv2.imwrite(str(mask), shape)
    assert run("process", clip, "--mask", mask, "--patches", records, *FAST)[0] == 0
    assert lines_of(records)[1]["query_scores"][0] > 0.7
    assert run("replay", records, "--check")[0] == 0
    cv2.imwrite(str(mask), shape[::2, ::2])
    code, _, err = run("process", clip, "--mask", mask, "--patches", records, "--force", *FAST)
    assert code == 31 and "mask.png has 128x96 pixels, the frame 256x192" in err and err.count("\n") == 1


def test_a_recording_keeps_answers_with_their_frames_and_refuses_disorder(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    records = Records(path, HEADER)
    frames = frames_of(moving_frames(4, (200, 120)))
    for frame in frames:
        patches = choose(frame)
        answers = (answer_on(patches), answer_on(patches, text="more")) if frame.index in (1, 3) else ()
        records.consume(frame, choose(frame, answers=answers))
    records.close(outcome=Outcome("interrupted"))
    recording = Recording(path)
    assert [(each.record.index, len(each.answers)) for each in recording] == [(0, 0), (1, 2), (2, 0), (3, 2)]
    assert recording.end is not None and recording.end.reason == "interrupted"
    twisted = rewritten(path, tmp_path / "t.jsonl", lambda lines: lines.insert(1, lines.pop(2)))
    with pytest.raises(EvaluationDataError, match="frame 0 comes after frame 1"):
        list(Recording(twisted))


@pytest.mark.slow
def test_answers_are_drawn_again(run: Run, tiny_qwen: Path, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", moving_frames(20, (320, 256)), fps=10)
    video, records = tmp_path / "v.mp4", tmp_path / "r.jsonl"
    code, _, err = run(
        "ask", clip, "What is red?", "--model", tiny_qwen, "--every", 0.5, "-o", video, "--patches", records,
        "--set", "vlm.answer_tokens=4", *FAST, *TIMED,
    )  # fmt: skip
    assert code == 0, err
    assert sum(line["type"] == "answer" for line in lines_of(records)) >= 3
    assert run("replay", records, "-o", tmp_path / "again.mp4")[0] == 0
    assert (tmp_path / "again.mp4").read_bytes() == video.read_bytes()


@pytest.mark.slow
def test_a_models_run_is_recorded_without_times_and_the_same_every_time(
    run: Run, tiny_qwen: Path, tmp_path: Path
) -> None:
    clip = write_video(tmp_path / "clip.mp4", moving_frames(12, (192, 160)), fps=10)
    for name in ("one.jsonl", "two.jsonl"):
        code, _, err = run(
            "ask", clip, "What is red?", "--model", tiny_qwen, "--every", 0.5, "--patches", tmp_path / name,
            "--set", "vlm.answer_tokens=4", *FAST,
        )  # fmt: skip
        assert code == 0, err
    one = lines_of(tmp_path / "one.jsonl")
    assert any(line["type"] == "answer" and line["decode_ms"] is None for line in one)
    assert one[0]["provenance"]["question"] == {"text": "What is red?", "when": "every", "every_seconds": 0.5}
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert run("replay", tmp_path / "one.jsonl", "-o", tmp_path / "v.mp4")[0] == 0
    assert run("replay", tmp_path / "one.jsonl", "--check")[0] == 85
