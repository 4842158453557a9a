"""`--sandbox` as users meet it: the same records, notices, exit codes, and nothing left after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import av
import psutil
import pytest

from arr_stream.records.json_lines import read_records
from tests.conftest import Refused, Run, Start
from tests.live_servers import wait_for
from tests.media import moving_frames, write_video

pytestmark = pytest.mark.skipif(not hasattr(socket, "send_fds"), reason="the sandbox needs Linux or macOS")

FAST = ("--set", "keyframes.text=none")


def test_records_are_the_same_and_sound_is_told_of(run: Run, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "a.mp4", moving_frames(6), audio=True)
    code, _, err = run("process", clip, "--patches", tmp_path / "plain.jsonl", *FAST)
    assert code == 0, err
    video = tmp_path / "out.mp4"
    code, _, err = run("process", clip, "--patches", tmp_path / "boxed.jsonl", "-o", video, "--sandbox", *FAST)
    assert code == 0, err
    assert "sound left out" in err
    with av.open(str(video)) as container:
        assert not container.streams.audio and sum(1 for _ in container.decode(video=0)) == 6
    plain, boxed = (read_records(tmp_path / f"{name}.jsonl") for name in ("plain", "boxed"))
    assert [frame.cells for frame in boxed[1]] == [frame.cells for frame in plain[1]]
    assert len(boxed[1]) == 6


def test_exit_codes_are_the_same(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(bytes(1000))
    refused(11, "a.mp4", "process", tmp_path / "a.mp4", "--sandbox", *FAST)


@pytest.mark.slow
def test_doctor_says_what_holds(run: Run) -> None:
    _, out, err = run("doctor", "--json")
    found = next(finding for finding in json.loads(out) if finding["name"] == "sandbox")
    assert found["works"], err
    if sys.platform == "linux":
        assert "memory limit" in found["detail"]


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_valid_records(start: Start, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "a.mp4", moving_frames(1500, (160, 120)))
    records = tmp_path / "out.jsonl"
    process = start("process", clip, "--sandbox", "--realtime", "--patches", records, *FAST)
    wait_for(lambda: records.exists() and records.read_text().count("\n") > 5, "records", seconds=90)
    decoders = [
        child
        for child in psutil.Process(process.pid).children()
        if any("sandbox.child" in part for part in child.cmdline())
    ]
    assert len(decoders) == 1
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "arr-stream: interrupted"
    end = read_records(records)[2]
    assert end is not None and end.reason == "interrupted"
    assert not decoders[0].is_running()


@pytest.mark.slow
def test_a_parent_that_is_killed_takes_its_decoder_along(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "a.mp4", moving_frames(300))
    code = (
        "import sys, time; from arr_stream.config import SandboxSettings; from arr_stream.sources import open_source\n"
        "source = open_source(sys.argv[1], sandbox=SandboxSettings())\n"
        "print('open', flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(clip)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n"
        (decoder,) = psutil.Process(process.pid).children()
        process.kill()
        gone, _ = psutil.wait_procs([decoder], timeout=20)
        assert gone
    finally:
        process.kill()
        process.communicate()
