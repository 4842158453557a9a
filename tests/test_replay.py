"""Replay: a run is done again from its records, and what comes is compared."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.media import moving_frames, write_images, write_video
from tests.scenes import moving_square

FAST = ["--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--budget", "12"]
TIMED = ["--set", "records.timings=on"]

Line = dict[str, Any]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_video(path, [frame.rgb for frame in moving_square(16)])


@pytest.fixture(scope="module")
def made(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of a run with two queries, `out.jsonl`."""
    import arr_stream
    from arr_stream.config import Settings
    from arr_stream.outputs import records_of
    from arr_stream.run import run

    folder = tmp_path_factory.mktemp("made")
    settings = Settings.load(None, [text for text in (*FAST, *TIMED) if "=" in text])
    stream = arr_stream.open(clip, query="red", region=(40, 60, 48, 48), budget=12, settings=settings)
    assert run(stream, [records_of(stream, folder / "out.jsonl")]).error is None
    return folder


def lines_of(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, to: Path, change: Callable[[list[Line]], object]) -> Path:
    """A copy of records after a change to its lines."""
    lines = lines_of(path)
    change(lines)
    to.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to


def test_a_source_that_moved_is_named_and_another_is_refused(run: Run, made: Path, clip: Path, tmp_path: Path) -> None:
    records = rewritten(made / "out.jsonl", tmp_path / "r.jsonl", lambda lines: lines[0].update(source="gone.mp4"))
    code, _, err = run("replay", records)
    assert code == 10 and "gone.mp4" in err and "SOURCE" in err and err.count("\n") == 1
    moved = Path(shutil.copy(clip, tmp_path / "moved.mp4"))
    assert run("replay", records, moved)[0] == 0
    with moved.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    code, _, err = run("replay", records, moved)
    assert code == 87 and "SHA-256" in err and err.count("\n") == 1


def test_records_of_a_killed_run_are_compared_to_their_last_whole_line(run: Run, made: Path, tmp_path: Path) -> None:
    lines = (made / "out.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "killed.jsonl").write_bytes(b"".join(lines[:8]) + lines[8][:100])
    code, out, err = run("replay", tmp_path / "killed.jsonl")
    assert code == 0, err
    assert "7 frames, as far as the records go" in out


def test_pictures_of_a_folder(run: Run, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pictures", [frame.rgb for frame in moving_square(4)])
    records = tmp_path / "r.jsonl"
    assert run("process", folder, "--patches", records, *FAST)[0] == 0
    assert run("replay", records)[0] == 0
    (folder / "frame3.png").unlink()
    assert run("replay", records)[0] == 86, "pictures are compared by their results"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[6].update(confidence=0.123), "frame 5 is not the same in confidence"),
        (lambda lines: lines[3]["cells"].pop() and lines[3]["reasons"].pop(), "frame 2 is not the same in cells"),
        (lambda lines: lines.pop(4), "frame 4 is not the same|frame 3"),
        (lambda lines: lines.pop(-2), "frame 15 comes after the last"),
        (lambda lines: lines[0].update(budget_tokens=99), "the header is not the same in budget_tokens"),
    ],
)
def test_the_first_difference_is_named(
    run: Run, made: Path, tmp_path: Path, change: Callable[[list[Line]], object], said: str
) -> None:
    code, out, err = run("replay", rewritten(made / "out.jsonl", tmp_path / "r.jsonl", change))
    assert (code, out) == (86, ""), err
    assert re.search(said, err) and err.count("\n") == 1, err


def test_other_versions_are_told(run: Run, made: Path, tmp_path: Path) -> None:
    def older(lines: list[Line]) -> None:
        lines[0]["provenance"]["versions"]["numpy"] = "0.9"

    code, out, err = run("replay", rewritten(made / "out.jsonl", tmp_path / "r.jsonl", older))
    assert code == 0 and "was 0.9" in err and "the same records" in out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"realtime": True}, "real time"),
        ({"question": {"text": "Why?", "when": "end"}}, "Why?"),
        ({"source": {"kind": "camera", "path": "0"}}, "camera"),
        ({"source": None}, "names neither"),
    ],
)
def test_what_cannot_come_out_the_same_is_refused(
    run: Run, made: Path, tmp_path: Path, change: Line, said: str
) -> None:
    records = rewritten(made / "out.jsonl", tmp_path / "r.jsonl", lambda lines: lines[0]["provenance"].update(change))
    code, _, err = run("replay", records)
    assert code == 85 and said in err and err.count("\n") == 1


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
    assert run("replay", tmp_path / "one.jsonl")[0] == 85
