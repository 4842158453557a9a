"""The same input, settings and versions give the same records, byte for byte; and the header says what these were."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import arr_stream
from arr_stream.config import Settings
from arr_stream.errors import EvaluationDataError, SourceNotFound
from arr_stream.outputs import records_of
from arr_stream.records.json_lines import Digest, read_records, records_digest
from arr_stream.records.provenance import AskedExample, AskedRegion, AskedText, Question
from arr_stream.records.schema import Header, frame_record, header_record
from arr_stream.run import run as run_stream
from arr_stream.stream import Models
from arr_stream.types import Frame, Grid
from tests.choices import FED, answer_on, choose
from tests.conftest import Run
from tests.media import write_video
from tests.scenes import moving_square

CLIP = ("--set", "keyframes.embeddings=clip")
FAST = {"keyframes.text": "none", "keyframes.interval": 4, "keyframes.min_interval": 2, "selection.budget": "14"}
HEADER = Header.for_grid(Grid.for_size((200, 120)), source="a.mp4", query=["red"], budget_tokens=3, config={})
FRAME = Frame(3, 0.1, np.zeros((120, 200, 3), np.uint8))

SAMPLES = Path(__file__).parent.parent / "sample_videos"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "clip.mp4", [frame.rgb for frame in moving_square(12)])


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an example picture and a file of gaze samples."""
    folder = tmp_path_factory.mktemp("asked")
    Image.fromarray(moving_square(1)[0].rgb[60:108, 40:88]).save(folder / "example.png")
    samples = "".join(f"{time / 60:.4f},{0.2 + time / 100:.3f},0.4\n" for time in range(40))
    (folder / "gaze.csv").write_text("pts_seconds,x,y\n" + samples)
    return folder


def recorded(path: Path, source: Path, settings: dict[str, Any] | None = None, **options: Any) -> Path:
    """Records of a run in this process."""
    stream = arr_stream.open(source, settings=Settings().with_values(FAST | (settings or {})), **options)
    assert run_stream(stream, [records_of(stream, path)]).error is None
    return path


def processes(folder: Path, arguments: list[object], environments: list[dict[str, str]]) -> list[bytes]:
    """Records of `arr-stream process` in a process each, two at a time."""
    paths = [folder / f"{number}.jsonl" for number in range(len(environments))]
    for first in range(0, len(paths), 2):
        running = []
        for path, environment in zip(paths[first : first + 2], environments[first : first + 2], strict=True):
            command = [
                sys.executable,
                "-m",
                "arr_stream",
                "process",
                *map(str, arguments),
                "--patches",
                path,
                "--log=quiet",
            ]
            running.append(subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True))
        for process in running:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    return [path.read_bytes() for path in paths]


def digest_of(*records: dict[str, Any]) -> str:
    digest = Digest()
    for record in records:
        digest.add(record)
    return digest.hexdigest()


class TestDigest:
    def test_times_and_names_do_not_count(self) -> None:
        slow = frame_record(choose(FRAME, latency_ms={"flow": 99.0}, feeding=FED), HEADER)
        fast = frame_record(choose(FRAME, latency_ms={}, feeding=FED), HEADER)
        fast["model"] |= {"vision_ms": 0.5, "prefill_ms": None}
        elsewhere = HEADER.model_copy(update={"source": "/else/b.mp4", "config": {"video": {"crf": 1}}})
        assert digest_of(header_record(HEADER), slow) == digest_of(header_record(elsewhere), fast)

    @pytest.mark.parametrize(
        "change",
        [
            {"index": 4},
            {"confidence": 0.7499},
            {"cells": []},
            {"keyframe": True},
            {"notices": ["a word"]},
            {"model": {"sent": 1, "held": 0}},
            {"type": "answer"},
        ],
    )
    def test_everything_else_does(self, change: dict[str, Any]) -> None:
        record = frame_record(choose(FRAME), HEADER)
        assert digest_of(record) != digest_of(record | change)
        assert digest_of(record) == digest_of(json.loads(json.dumps(dict(reversed(record.items())))))

    @pytest.mark.parametrize("key", ["query", "budget_tokens", "grid_hw", "frame_size_wh"])
    def test_so_does_what_the_header_asks(self, key: str) -> None:
        record = header_record(HEADER)
        assert digest_of(record) != digest_of(record | {key: [1, 1]})

    def test_a_file_and_what_is_left_of_it(self, clip: Path, tmp_path: Path) -> None:
        path = recorded(tmp_path / "r.jsonl", clip)
        end = read_records(path)[2]
        assert end is not None and end.digest == records_digest(path)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]))
        assert records_digest(path) == end.digest, "the end line is not part of it"
        path.write_bytes(b"".join(lines[:-2]))
        assert records_digest(path) != end.digest
        path.write_bytes(b"")
        with pytest.raises(EvaluationDataError, match="holds no records"):
            records_digest(path)


class TestTimings:
    @pytest.mark.parametrize(("setting", "written"), [("auto", False), ("on", True), ("off", False)])
    def test_they_are_written_where_they_are_wanted(
        self, clip: Path, tmp_path: Path, setting: str, written: bool
    ) -> None:
        path = recorded(tmp_path / "r.jsonl", clip, {"records.timings": setting}, max_frames=3)
        assert [bool(frame.latency_ms) for frame in read_records(path)[1]] == [written] * 3

    def test_without_them_a_models_times_are_null(self, tmp_path: Path) -> None:
        from arr_stream.records.json_lines import Records

        path = tmp_path / "r.jsonl"
        records = Records(path, HEADER, timings=False)
        patches = choose(FRAME, feeding=FED)
        records.consume(FRAME, choose(FRAME, feeding=FED, answers=(answer_on(patches),)))
        records.close()
        frame, answer = [json.loads(line) for line in path.read_text().splitlines()][1:3]
        assert (frame["latency_ms"], frame["model"]["vision_ms"], frame["model"]["prefill_ms"]) == ({}, None, None)
        assert (answer["prefill_ms"], answer["decode_ms"]) == (None, None)
        assert frame["model"]["sent"] == FED.sent and answer["answer_tokens"] == 6
        read_records(path)


class TestProvenance:
    def test_it_names_input_range_questions_and_versions(self, clip: Path, asked: Path, tmp_path: Path) -> None:
        path = recorded(
            tmp_path / "r.jsonl", clip, query=["red", "a sign that says rtsp://me:secret@host/x"],
            region=(40, 60, 48, 48), region_at_seconds=0.1, example=asked / "example.png",
            gaze_csv=asked / "gaze.csv", start_seconds=0.1, end_seconds=0.3, stride=2, max_frames=9,
        )  # fmt: skip
        told = read_records(path)[0].provenance
        assert told is not None and told.source is not None and told.gaze is not None
        data = clip.read_bytes()
        assert (told.source.kind, told.source.size_bytes) == ("file", len(data))
        assert told.source.sha256 == hashlib.sha256(data).hexdigest()
        reading = told.reading
        assert (reading.start_seconds, reading.end_seconds, reading.stride, reading.max_frames) == (0.1, 0.3, 2, 9)
        text, secret, region, example = told.queries
        assert isinstance(text, AskedText) and text.text == "red"
        assert isinstance(secret, AskedText) and "secret" not in path.read_text()
        assert isinstance(region, AskedRegion) and (region.xywh, region.at_seconds) == ((40, 60, 48, 48), 0.1)
        assert isinstance(example, AskedExample)
        picture = (asked / "example.png").read_bytes()
        assert example.picture.sha256 == hashlib.sha256(picture).hexdigest()
        assert told.gaze.sha256 == hashlib.sha256((asked / "gaze.csv").read_bytes()).hexdigest()
        assert told.versions["arr-stream"] == arr_stream.__version__
        assert told.versions["python"] == platform.python_version()
        for package in ("numpy", "opencv-python-headless", "av", "pillow", "scikit-image"):
            assert told.versions[package] == metadata.version(package)

    def test_it_names_neither_host_nor_time_nor_output(self, clip: Path, tmp_path: Path) -> None:
        path = recorded(tmp_path / "some-output-name.jsonl", clip, max_frames=2)
        text = path.read_text()
        assert "some-output-name" not in text and socket.gethostname() not in text
        first = path.read_bytes()
        recorded(tmp_path / "again.jsonl", clip, max_frames=2)
        assert (tmp_path / "again.jsonl").read_bytes() == first

    def test_a_question_is_kept(self, clip: Path, tmp_path: Path) -> None:
        stream = arr_stream.open(clip, settings=Settings().with_values(FAST), max_frames=1)
        question = Question(text="What is red?", when="every", every_seconds=2.0)
        run_stream(stream, [records_of(stream, tmp_path / "r.jsonl", question=question)])
        told = read_records(tmp_path / "r.jsonl")[0].provenance
        assert told is not None and told.question == question

    def test_a_source_that_goes_while_it_is_read_is_an_error(self, clip: Path, tmp_path: Path) -> None:
        gone = write_video(tmp_path / "gone.mp4", [frame.rgb for frame in moving_square(3)])
        gaze = tmp_path / "gaze.csv"
        gaze.write_text("pts_seconds,x,y\n0,0.5,0.5\n")
        with arr_stream.open(gone, settings=Settings().with_values(FAST), gaze_csv=gaze) as stream:
            gaze.unlink()
            with pytest.raises(SourceNotFound, match=r"gaze\.csv"):
                records_of(stream, tmp_path / "r.jsonl")


class TestSameEveryTime:
    def test_in_a_process_with_other_hashes_and_threads(
        self, run: Run, clip: Path, asked: Path, tmp_path: Path
    ) -> None:
        arguments: list[object] = [clip, "-q", "red", "--region", "40,60,48,48", "--example", asked / "example.png"]
        arguments += ["--gaze", asked / "gaze.csv", *itertools.chain(*(("--set", f"{k}={v}") for k, v in FAST.items()))]
        other = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
        (there,) = processes(tmp_path, arguments, [other])
        assert run("process", *arguments, "--patches", tmp_path / "here.jsonl", "--log=quiet")[0] == 0
        assert (tmp_path / "here.jsonl").read_bytes() == there and there.count(b"\n") == 14

    @pytest.mark.parametrize("kind", ["appearance", pytest.param("clip", marks=pytest.mark.slow)])
    def test_one_after_the_other_in_one_process(self, clip: Path, tmp_path: Path, kind: str) -> None:
        """Nothing of a video is left when the next one comes, models that are shared included."""
        settings = FAST | {"keyframes.embeddings": kind, "clip.model": "tiny"}
        shared = Models.load(Settings().with_values(settings))
        other = write_video(
            tmp_path / "other.mp4", [frame.rgb for frame in moving_square(8, seed=5, colour=(9, 9, 230))]
        )
        records = [
            recorded(tmp_path / f"{number}.jsonl", source, settings, query=query, models=models).read_bytes()
            for number, (source, query, models) in enumerate(
                [(clip, "red", None), (clip, "red", shared), (other, "blue", shared), (clip, "red", shared)]
            )
        ]
        assert records[0] == records[1] == records[3] != records[2]


MATRIX: dict[str, tuple[str, list[str]]] = {
    "texts": ("street.mp4", ["-q", "red car", "-q", "moving", "-q", "people on the left"]),
    "region": ("street.mp4", ["--region", "100,100,80,80@0.1"]),
    "words": ("signs.mp4", ["-q", '"EXIT"', "--set", "keyframes.text=auto"]),
    "rapidocr": ("signs.mp4", ["-q", '"OPEN"', "--set", "keyframes.text=rapidocr"]),
    "clip": ("street.mp4", ["-q", "a red car", *CLIP, "--set", "relevance.language=clip"]),
    "features": ("street.mp4", ["--set", "keyframes.clusters=features"]),
    "merge": ("street.mp4", ["--set", "keyframes.clusters=merge"]),
    "moving camera": ("pan_zoom.mp4", []),
    "cascade": ("cut.mp4", ["--set", "selection.cascade=on", "--set", "selection.strategy=tiers"]),
    "novelty": ("cut.mp4", ["--set", "selection.novelty=skip"]),
    "canonical": ("street.mp4", ["--preset", "canonical"]),
    "documents": ("signs.mp4", ["--preset", "documents"]),
    "realtime preset": ("street.mp4", ["--preset", "realtime"]),
    "surveillance": ("street.mp4", ["--preset", "surveillance"]),
    "untuned": ("street.mp4", ["--preset", "untuned"]),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MATRIX)
def test_every_way_of_working_gives_the_same_every_time(name: str, tmp_path: Path) -> None:
    video, options = MATRIX[name]
    options = [*options, "--max-frames", "16", "--set", "keyframes.interval=6", "--set", "keyframes.min_interval=4"]
    if not any("text" in option for option in options) and "documents" not in options:
        options += ["--set", "keyframes.text=none"]
    one, two = processes(
        tmp_path,
        [SAMPLES / video, *options],
        [{"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "2"}],
    )
    assert one == two and one.count(b"\n") == 18
