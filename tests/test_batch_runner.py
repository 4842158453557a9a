"""The processing of one file by a worker, in this process, with real videos."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import av
import pytest

import arr_stream
from arr_stream.batch.job import Attempt, Done, JobFailed, JobFinished, JobOptions
from arr_stream.batch.plan import expand, make_plan
from arr_stream.batch.runner import JobRunner
from arr_stream.config import Settings
from arr_stream.outputs import records_of
from arr_stream.records.json_lines import read_records, records_digest
from arr_stream.run import run
from tests.batch_fakes import QUICK, attempt, quick_options, write_clips
from tests.media import moving_frames, write_audio, write_images, write_video


def _done(options: JobOptions, *attempts: Attempt) -> dict[str, Done]:
    """Process files one after the other with one runner."""
    runner = JobRunner(options)
    ended = [runner.run(one) for one in attempts]
    assert all(isinstance(event, JobFinished) for event in ended), ended
    return {event.attempt.job.name: event.done for event in ended if isinstance(event, JobFinished)}


def test_a_file_gives_the_records_of_process_and_leaves_nothing_else(tmp_path: Path) -> None:
    (clip,) = write_clips(tmp_path / "in", 1)
    out = tmp_path / "out"
    event = JobRunner(quick_options(out, video=True, report=True)).run(attempt(clip))
    assert isinstance(event, JobFinished) and event.done.frames == 8 and event.done.damaged is None
    assert {Path(path).name for path in event.done.outputs} >= {"records.jsonl", "annotated.mp4", "contact_sheet.png"}
    assert all((out / path).is_file() for path in event.done.outputs)
    assert not list((out / ".work").iterdir())

    alone = tmp_path / "alone.jsonl"
    stream = arr_stream.open(clip, query="red", settings=Settings().with_values(QUICK))
    run(stream, [records_of(stream, alone)])
    assert event.done.digest == records_digest(alone) == records_digest(out / "videos/clip/records.jsonl")
    assert Done.read(out / "videos/clip/done.json") == event.done
    assert event.done.identity == {"bytes": clip.stat().st_size, "mtime_ns": clip.stat().st_mtime_ns}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"keyframes.text": "auto", "keyframes.clusters": "features", "keyframes.embeddings": "clip"},
            marks=pytest.mark.slow,
        ),
        pytest.param({"keyframes.clusters": "merge", "selection.novelty": "skip"}, marks=pytest.mark.slow),
    ],
    ids=["quick", "clip", "merge"],
)
def test_results_do_not_depend_on_the_files_before(tmp_path: Path, settings: dict[str, str]) -> None:
    clips = write_clips(tmp_path / "in", 3, size_wh=(160, 96))

    def digests(folder: str, order: list[int]) -> dict[str, str]:
        given = [attempt(clips[index], f"clip{index}", index=index) for index in order]
        made = _done(quick_options(tmp_path / folder, settings=settings), *given)
        return {name: done.digest for name, done in made.items()}

    forward, backward = digests("a", [0, 1, 2]), digests("b", [2, 1, 0])
    assert forward == backward and len(set(forward.values())) == 3
    assert digests("c", [1])["clip1"] == forward["clip1"]


def test_a_damaged_source_is_done_and_its_damage_is_named(tmp_path: Path) -> None:
    options = {"bf": "0", "g": "100", "slices": "1"}
    broken = write_video(tmp_path / "broken.mp4", moving_frames(40), options=options)
    with av.open(str(broken)) as container:
        position, size = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size][20]
    content = bytearray(broken.read_bytes())
    content[position : position + size] = b"\xff" * size
    broken.write_bytes(content)
    done = _done(quick_options(tmp_path / "out"), attempt(broken))["clip"]
    assert done.frames == 39 and done.damaged is not None and "1 frame" in done.damaged
    assert Done.read(tmp_path / "out/videos/clip/done.json") == done
    end = read_records(tmp_path / "out/videos/clip/records.jsonl")[2]
    assert end is not None and end.reason == "damaged"


def test_a_file_that_fails_leaves_only_its_error(tmp_path: Path) -> None:
    empty, out = tmp_path / "empty.mp4", tmp_path / "out"
    empty.write_bytes(b"")
    sound = write_audio(tmp_path / "sound.m4a")
    small, large = (write_video(tmp_path / f"{width}.mp4", moving_frames(2, (width, 64))) for width in (64, 192))
    runner = JobRunner(quick_options(out, region="100,20,40,40"))
    for source, kind, code in (
        (empty, "NotAMediaFile", 11),
        (sound, "NoVideoStream", 12),
        ("/none.mp4", "SourceNotFound", 10),
        (small, "RegionOutsideFrame", 31),
    ):
        event = runner.run(attempt(source))
        assert isinstance(event, JobFailed)
        assert (event.kind, event.exit_code, event.retryable) == (kind, code, False)
        assert event.message.startswith(str(source)) and event.remedy
        assert not list((out / ".work").iterdir()) and not (out / "videos").exists()
    assert isinstance(runner.run(attempt(large)), JobFinished)


@pytest.mark.parametrize(
    ("error", "kind", "again"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "DiskFull", False),
        (OSError(errno.EROFS, "Read-only file system"), "OutputUnwritable", False),
        (OSError(errno.EIO, "Input/output error"), "OSError", True),
        (MemoryError(), "MemoryError", True),
        (ValueError("a mistake"), "ValueError", False),
    ],
)
def test_only_errors_of_the_system_are_retryable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, again: bool
) -> None:
    (clip,) = write_clips(tmp_path / "in", 1, frames=6)
    out = tmp_path / "out"
    runner = JobRunner(quick_options(out))
    if isinstance(error, OSError) and kind != "OSError":
        error.filename = str(out / "x")
    step = arr_stream.pipeline.Pipeline.step

    def failing(self: arr_stream.pipeline.Pipeline, frame: arr_stream.types.Frame) -> arr_stream.types.PatchSet:
        if frame.index == 3:
            raise error
        return step(self, frame)

    monkeypatch.setattr(arr_stream.pipeline.Pipeline, "step", failing)
    event = runner.run(attempt(clip))
    assert isinstance(event, JobFailed)
    assert (event.kind, event.retryable) == (kind, again)
    assert "\n" not in event.message
    assert not list((out / ".work").iterdir()) and not (out / "videos").exists()


def test_a_remote_file_is_named_by_its_address(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    (clip,) = write_clips(tmp_path / "in", 1)
    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/clip.mp4": clip.read_bytes(), "/bucket/bad.mp4": b"not media"})
    out = tmp_path / "out"
    runner = JobRunner(quick_options(out, report=True))
    found = expand(["memory://bucket/"])
    assert found == ["memory://bucket/bad.mp4", "memory://bucket/clip.mp4"]
    bad = runner.run(attempt(found[0], "bad"))
    assert isinstance(bad, JobFailed) and bad.kind == "NotAMediaFile"
    assert bad.message.startswith("memory://bucket/bad.mp4: ") and str(tmp_path) not in bad.message
    event = runner.run(attempt(found[1]))
    assert isinstance(event, JobFinished)
    assert event.done.digest == _done(quick_options(tmp_path / "local"), attempt(clip))["clip"].digest
    assert str(out / ".work") not in (out / "videos/clip/records.jsonl").read_text()
    report = json.loads((out / "videos/clip/report/summary.json").read_text())["source"]
    assert report["name"] == "memory://bucket/clip.mp4" and ".work" not in json.dumps(report)
    assert not list((out / ".work").iterdir())
    assert make_plan(found, quick_options(out, report=True), force=True).files[1].state == "done"
    store.pipe({"/bucket/clip.mp4": clip.read_bytes() + b"more"})
    assert make_plan(found, quick_options(out, report=True), force=True).files[1].state == "changed"


def test_a_folder_of_pictures_is_one_source(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pictures", moving_frames(4))
    assert _done(quick_options(tmp_path / "out", settings={"source.stride": 2}), attempt(folder))["clip"].frames == 2
    header = json.loads((tmp_path / "out/videos/clip/records.jsonl").read_text().splitlines()[0])
    assert header["source"] == str(folder)
