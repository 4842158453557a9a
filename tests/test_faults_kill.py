"""A run that is killed without warning, at any moment: what is left is valid, and running it again makes it good."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from arr_stream.files import partial_path
from arr_stream.records.json_lines import read_records
from tests.fault_helpers import QUICK, clip, decoded, finished, lines, running, until

FRAMES = 160
MOST_BEHIND = 75
"""Frames of video that a kill may cost at 30 frames a second: a fragment of a second, what the encoder holds, which
grows with the number of cores, and what waits for it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("kill") / "clip.mp4", FRAMES)


class Outputs:
    """Where a run writes to, and how it is started."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.video, self.records, self.report = folder / "out.mp4", folder / "out.jsonl", folder / "report"
        written = ["-o", self.video, "--patches", self.records, "--report", self.report]
        self.arguments = ["process", source, *written, "--query", "red", *QUICK]

    def check_what_a_kill_left(self) -> None:
        """Records to the last line, video to its last fragment, each file of the report whole or absent."""
        frames = 0
        if self.records.exists() and lines(self.records):
            _, records, end = read_records(self.records)
            assert [record.index for record in records] == list(range(len(records)))
            frames = len(records)
            assert end is None or end.frames == FRAMES
        left = self.video if self.video.exists() else partial_path(self.video)
        pictures = decoded(left) if frames > MOST_BEHIND else []
        assert frames - MOST_BEHIND <= len(pictures) <= FRAMES
        assert [round(seconds * 30) for seconds, _ in pictures] == list(range(len(pictures)))
        for path in self.report.glob("*") if self.report.exists() else ():
            if path.suffix == ".json":
                assert json.loads(path.read_text())["frames"] == FRAMES
            elif ".partial" not in path.name:
                assert path.read_bytes().endswith(b"IEND\xaeB`\x82")

    def same_as(self, other: Outputs) -> None:
        """Both made the same, and left nothing else behind."""
        for mine, theirs in zip(read_records(self.records)[1], read_records(other.records)[1], strict=True):
            assert mine.model_copy(update={"latency_ms": {}}) == theirs.model_copy(update={"latency_ms": {}})
        for (at, picture), (other_at, other_picture) in zip(decoded(self.video), decoded(other.video), strict=True):
            assert at == other_at and np.array_equal(picture, other_picture)
        assert {path.name for path in self.video.parent.iterdir()} == {"out.mp4", "out.jsonl", "report"}
        assert len(list(self.report.iterdir())) == 3


def test_killed_in_mid_file_records_and_video_are_valid(source: Path, tmp_path: Path) -> None:
    outputs = Outputs(tmp_path, source)
    with running(outputs.arguments) as process:
        until(lambda: lines(outputs.records) > 100, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    outputs.check_what_a_kill_left()
    assert read_records(outputs.records)[2] is None
    assert not outputs.video.exists() and not outputs.report.exists()


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outputs, float]:
    """What a run makes that nobody kills, and how many seconds it takes."""
    outputs = Outputs(tmp_path_factory.mktemp("undisturbed"), source)
    began = time.monotonic()
    assert finished(outputs.arguments).code == 0
    return outputs, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_and_run_again(
    source: Path, tmp_path: Path, undisturbed: tuple[Outputs, float], seed: int
) -> None:
    expected, seconds = undisturbed
    outputs = Outputs(tmp_path, source)
    with running(outputs.arguments) as process:
        # The first seconds go by before there is anything to lose.
        time.sleep(random.Random(seed).uniform(0.4, 1.0) * seconds)
        process.kill()
        process.wait()
    outputs.check_what_a_kill_left()
    if any(tmp_path.iterdir()):
        refused = finished(outputs.arguments)
        assert refused.code == 20, refused
    again = finished([*outputs.arguments, "--force"])
    assert again.code == 0, again
    outputs.same_as(expected)
