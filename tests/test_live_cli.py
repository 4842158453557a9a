"""`webcam`, `stream` and `cameras` as users meet them: outputs, exit codes, one line for every error."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest

import arr_stream.sources.live
from arr_stream.cli.live_run import SourceStates
from arr_stream.records.json_lines import read_records
from arr_stream.sources.live import Camera, SourceState
from tests.conftest import Refused, Run
from tests.fake_server import FakeServer, says
from tests.live_servers import PATIENCE_SECONDS, free_port, wait_for, web_server
from tests.media import write_video
from tests.scenes import moving_square

FAST = ["--headless", "--set", "keyframes.text=none", "--set", "keyframes.clusters=grid"]
PATTERN = "lavfi:testsrc2=size=160x120:rate=30"


def _times(path: Path) -> list[float]:
    with av.open(str(path)) as container:
        return [float(frame.time or 0) for frame in container.decode(video=0)]


def _end(path: Path) -> dict[str, object]:
    end: dict[str, object] = json.loads(path.read_text().splitlines()[-1])
    assert end["type"] == "end"
    return end


def test_recorded_and_written_down(run: Run, tmp_path: Path) -> None:
    video, records, report = tmp_path / "out.mp4", tmp_path / "out.jsonl", tmp_path / "report"
    code, out, err = run(
        "stream", PATTERN, *FAST, "--max-frames", 20, "--query", "red", "--budget", 6,
        "--output", video, "--patches", records, "--report", report,
    )  # fmt: skip
    assert code == 0, err
    assert out == ""
    assert "20 frames" in err and "ms old when processed" in err and str(video) in err
    times = _times(video)
    assert 1 <= len(times) <= 20
    assert times == sorted(times)
    header, frames, end = read_records(records)
    assert (header.query, header.budget_tokens, len(frames)) == (["red"], 6, 20)
    assert end is not None and end.reason == "finished"
    assert json.loads((report / "summary.json").read_text())["frames"] == 20


def test_answers_are_printed(run: Run, tmp_path: Path) -> None:
    records = tmp_path / "out.jsonl"
    with FakeServer(says("a test ", "card")) as server:
        code, out, err = run(
            "stream", PATTERN, *FAST, "--duration", 2, "--endpoint", server.url, "--model", "m",
            "--question", "what is it?", "--every", 0.5, "--set", "vlm.fps=4", "--patches", records,
        )  # fmt: skip
    assert code == 0 and "interrupted" not in err, err
    assert out.splitlines()[0].endswith(" s] a test card"), out
    assert '"type": "answer"' in records.read_text()


def test_a_server_that_is_not_there(run: Run) -> None:
    address = f"rtsp://user:hidden@127.0.0.1:{free_port()}/a"
    code, _, err = run("stream", address, *FAST)
    assert code == 94, err
    assert len(err.strip().splitlines()) == 1 and "hidden" not in err


def test_without_a_display(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells of its display in the environment")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    code, _, err = run("stream", PATTERN)
    assert code == 71
    assert "arr-stream serve" in err and "--headless" in err


def test_no_camera(run: Run, refused: Refused) -> None:
    if arr_stream.sources.live.list_cameras():
        pytest.skip("this machine has a camera")
    for arguments in (("cameras",), ("webcam", "--headless"), ("webcam", "FaceTime", "--headless")):
        refused(90, "camera", *arguments)
    assert json.loads(run("cameras", "--json")[1]) == []


def test_cameras_are_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Camera("/dev/video2", "Integrated Camera", "/dev/video2", 2)]
    monkeypatch.setattr(arr_stream.sources.live, "list_cameras", lambda: found)
    code, out, _ = run("cameras")
    assert code == 0
    assert "Integrated Camera" in out and "arr-stream webcam 2" in out
    assert json.loads(run("cameras", "--json")[1])[0]["device"] == "/dev/video2"


def _frames_written(records: Path) -> int:
    return records.read_text().count('"type": "frame"') if records.exists() else 0


@contextmanager
def interrupting(condition: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C as soon as a condition holds."""

    def work() -> None:
        wait_for(condition, "the moment to interrupt")
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


def test_ctrl_c_leaves_whole_files(run: Run, tmp_path: Path) -> None:
    video, records = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    with interrupting(lambda: _frames_written(records) > 10):
        code, _, err = run(
            "stream", PATTERN, *FAST, "--output", video, "--patches", records, "--duration", PATIENCE_SECONDS
        )
    assert code == 130 and "interrupted" in err
    assert len(_times(video)) > 1
    assert _end(records)["reason"] == "interrupted"


def test_ctrl_c_while_the_source_is_gone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame comes that would let the run notice."""
    write_video(tmp_path / "clip.ts", [frame.rgb for frame in moving_square(10)])
    records, lost = tmp_path / "out.jsonl", threading.Event()
    take = SourceStates.update

    def take_and_tell(states: SourceStates, state: SourceState) -> None:
        take(states, state)
        if state.state == "reconnecting" and state.attempt > 2:
            lost.set()

    def gone() -> bool:
        if _frames_written(records) > 5:
            server.kill()
        return lost.is_set()

    monkeypatch.setattr(SourceStates, "update", take_and_tell)
    monkeypatch.setattr("arr_stream.sources.live.source.RETRY_SECONDS", 0.1)
    with web_server(tmp_path) as (server, port), interrupting(gone):
        address = f"http://127.0.0.1:{port}/clip.ts"
        quick = ("--set", "live.policy=every")
        code, _, err = run("stream", address, *FAST, *quick, "--patches", records, "--duration", PATIENCE_SECONDS)
    assert code == 130, err
    assert "opened again" in err and _frames_written(records) > 5
