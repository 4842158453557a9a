"""Inputs, names, journal, plan and coordinator of a batch; workers are in test_batch_runner and test_batch_kills."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_stream.batch.batch import opened, run_batch
from arr_stream.batch.coordinator import BatchResult
from arr_stream.batch.engine import Message, WorkerEngine
from arr_stream.batch.inputs import assign_names, describe_passed_over, expand, safe_name
from arr_stream.batch.job import (
    Attempt,
    Done,
    Event,
    JobFailed,
    JobFinished,
    JobOptions,
    difference,
    options_digest,
    public_options,
)
from arr_stream.batch.journal import FolderLock, Journal, read_journal, read_past, source_key
from arr_stream.batch.layout import Layout, Workspace, identity
from arr_stream.batch.plan import make_plan
from arr_stream.errors import ArrStreamError, BatchBusy, BatchDiffers, SourceNotFound, WorkerLost
from arr_stream.plain_text import redact_url
from tests.batch_fakes import attempt, contents, fake_engine, lost, quick_options, well, write_clips
from tests.conftest import Run


class Batch:
    """Sources that no engine of a test reads, and what becomes of them in one output folder."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.layout = Layout(self.out)
        self.options = quick_options(self.out)
        self.source = folder / "clip.mp4"
        self.source.write_bytes(b"one")
        self.sources = [str(self.source)]

    def asking(self, **values: object) -> JobOptions:
        return dataclasses.replace(self.options, **values)  # type: ignore[arg-type]

    def begin(self, *sources: Path | str, options: JobOptions | None = None) -> None:
        """A journal in which the sources are called name0, name1 and so on."""
        self.out.mkdir(exist_ok=True)
        journal = Journal(self.layout.manifest)
        journal.begin(public_options(options or self.options), {})
        journal.add_jobs([(source_key(str(source)), f"name{number}") for number, source in enumerate(sources)])
        journal.close()

    def workspace(self, asked: Attempt, text: str = "{}\n") -> Workspace:
        """In which a worker has written everything."""
        workspace = Workspace(self.layout, asked)
        (workspace.video / "records.jsonl").write_text(text)
        return workspace

    def done(self, workspace: Workspace, asked: Attempt, options: JobOptions | None = None) -> Done:
        name, source = asked.job.name, asked.job.source
        digest = options_digest(public_options(options or self.options))
        about = (name, source, identity(source, {}), digest, "0" * 64, 8, 0.1, workspace.outputs())
        return Done(*about, attempt=asked.number)

    def finish(self, asked: Attempt | None = None, options: JobOptions | None = None, text: str = "{}\n") -> Done:
        """As a worker does a file."""
        asked = asked or attempt(self.source)
        workspace = self.workspace(asked, text)
        return workspace.commit(self.done(workspace, asked, options))

    def states(self, options: JobOptions | None = None, **values: bool) -> list[str]:
        return [file.state for file in make_plan(self.sources, options or self.options, **values).files]

    def run(
        self,
        engine: WorkerEngine | None = None,
        *,
        options: JobOptions | None = None,
        stop: threading.Event | None = None,
        retries: int = 0,
        heard: list[Event] | None = None,
        **values: bool,
    ) -> BatchResult:
        with opened(self.sources, options or self.options, **values) as (plan, lock):
            return run_batch(
                plan,
                lock,
                lambda *_: engine or fake_engine()[0],
                engine_name="fake",
                retries=retries,
                stop=stop or threading.Event(),
                watch=(heard if heard is not None else []).append,
            )

    def lines(self) -> list[dict[str, object]]:
        return read_journal(self.layout.manifest)


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setattr("arr_stream.batch.coordinator._FIRST_PAUSE_SECONDS", 0.01)
    return Batch(tmp_path)


@pytest.fixture
def six(batch: Batch, tmp_path: Path) -> Batch:
    """With six sources that are not there, called 0 to 5."""
    batch.sources = [str(tmp_path / f"{number}.mp4") for number in range(6)]
    return batch


def all_unique(names: Iterable[str]) -> bool:
    """Whether no file system takes two of these for the same."""
    keys = [unicodedata.normalize("NFC", name.casefold()) for name in names]
    return len(keys) == len(set(keys))


PATHS = st.lists(
    st.tuples(st.text(st.characters(exclude_characters="/\0"), max_size=90), st.sampled_from(["", ".mp4", ".mov"])).map(
        "".join
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: "/" + "/".join(parts))


@settings(deadline=None, max_examples=50)
@given(st.lists(PATHS, max_size=12, unique=True), st.randoms())
def test_names_are_unique_safe_and_do_not_depend_on_the_order(sources: list[str], random: object) -> None:
    names = assign_names(sources)
    assert list(names) == sources
    assert all_unique(names.values())
    for name in names.values():
        assert 0 < len(name.encode()) <= 80
        assert name[0] not in ".-" and name[-1] != "."
        assert not set(name) & set('/\\:*?"<>|= \0\n')
        assert safe_name(name) == name
    shuffled = list(sources)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign_names(shuffled) == names


@settings(deadline=None, max_examples=50)
@given(st.lists(PATHS, max_size=10, unique=True), st.integers(0, 10))
@example(["/", "/\udd00"], 0)
def test_names_that_were_given_stay_whatever_comes_later(sources: list[str], cut: int) -> None:
    before = assign_names(sources[:cut])
    after = assign_names(sources, before)
    assert {source: after[source] for source in before} == before
    assert all_unique(after.values())


def test_names_tell_no_more_than_is_needed() -> None:
    sources = ["/a/x.mp4", "/a/x.mov", "/b/y.mp4", "/c/y.mp4", "/d/z.mp4", "s3://bucket/w.mp4?versionId=3"]
    assert list(assign_names(sources).values()) == ["x-mp4", "x-mov", "b-y", "c-y", "z", "w"]
    assert safe_name("..hidden") == "hidden"
    assert safe_name("-rf /") == "rf__"
    assert safe_name("CON") == "video-CON"
    assert safe_name("...") == "video"
    assert safe_name("Straße im Regen") == "Straße_im_Regen"


def test_inputs_are_found_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "b10.mp4",
        "b9.MKV",
        "notes.txt",
        ".hidden.mp4",
        "deep/c.webm",
        "odd.bin",
        "out/videos/b9/annotated.mp4",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "list.txt").write_bytes(b"b10.mp4\r\n\nmissing.mp4\nodd.bin")

    def names(*inputs: str, **options: object) -> list[str]:
        found = expand(inputs, **options)  # type: ignore[arg-type]
        assert all(Path(source).is_absolute() for source in found)
        return [os.path.relpath(source, tmp_path) for source in found]

    assert names(".") == ["b9.MKV", "b10.mp4"]
    assert names("**/*.*4", "**/*.MKV", "**/*.webm", leave_out=tmp_path / "out") == ["b10.mp4", "b9.MKV", "deep/c.webm"]
    assert names("odd.bin", "b10.mp4", "odd.bin") == ["odd.bin", "b10.mp4"]
    assert names("*.mp4", (tmp_path / "deep").as_uri()) == ["b10.mp4", "deep/c.webm"]
    assert names("@list.txt") == ["b10.mp4", "missing.mp4", "odd.bin"]
    for wrong in ("missing.mp4", "*.avi", "@none.txt"):
        with pytest.raises(SourceNotFound, match=r"missing\.mp4|avi|none\.txt"):
            expand([wrong])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFound, match="without videos"):
        expand(["empty"])


def test_files_passed_over_in_a_folder_are_named_by_kind_and_count(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    clips = write_clips(folder, 2, frames=2)
    for index in range(4):
        Image.new("RGB", (32, 32)).save(folder / f"{index}.jpg")
    pictures = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    pictures[0].save(folder / "moves.webp", save_all=True, append_images=pictures[1:])
    (folder / "film.bin").write_bytes(clips[0].read_bytes())
    (folder / "out" / "videos").mkdir(parents=True)
    for path in (folder / "notes.txt", folder / ".hidden", folder / "out" / "videos" / "contact_sheet.png"):
        path.write_bytes(b"")
    passed_over: list[Path] = []
    assert expand([str(folder)], leave_out=folder / "out", passed_over=passed_over) == [*map(str, clips)]
    described = "4 pictures (0.jpg, 1.jpg, 2.jpg, ...), 1 media file (film.bin), 1 animation (moves.webp), "
    assert describe_passed_over(passed_over) == f"{described}1 other file (notes.txt)"
    code, out, _ = run("batch", folder, folder / "*.jpg", "-o", tmp_path / "out", "--dry-run")
    assert code == 0 and "1 animation (moves.webp)" in " ".join(out.split()) and "pictures" not in out


def test_the_output_folder_is_left_out_by_whatever_path(tmp_path: Path) -> None:
    made = tmp_path / "in" / "out" / "videos" / "x" / "annotated.mp4"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"")
    (tmp_path / "in" / "a.mp4").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "made.mp4").symlink_to(made)
    inputs, out = tmp_path / "in", tmp_path / "in" / "out"
    for folder in (inputs, tmp_path / "link"):
        for leave_out in (out, tmp_path / "link" / "out", inputs / "out" / ".." / "out"):
            found = expand([f"{folder}/**/*.mp4"], leave_out=leave_out)
            assert found == [str(folder / "a.mp4")]


def test_a_line_that_means_nothing_fails_by_itself(tmp_path: Path) -> None:
    good, pipe = tmp_path / "good.mp4", tmp_path / "pipe.mp4"
    good.write_bytes(b"")
    os.mkfifo(pipe)
    (tmp_path / "empty").mkdir()
    gone = tmp_path / "not here.mp4"
    lines = [gone.as_uri(), str(pipe), str(tmp_path / "empty"), str(tmp_path / "*.avi"), "file://far/x.mp4", str(good)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    assert expand(["@" + str(tmp_path / "list.txt")]) == [str(gone), *lines[1:]]


def test_a_journal_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path, name = tmp_path / "manifest.jsonl", os.fsdecode(b"/odd\xff.mp4")
    journal = Journal(path)
    journal.begin({"video": True}, {})
    journal.add_jobs([(name, "odd")])
    journal.append("attempt", name="odd", number=1)
    journal.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert [line["type"] for line in read_journal(path)] == ["batch", "jobs"]
        assert read_past(path).names == {name: "odd"}
    Journal(path).close()
    again = Journal(path)
    again.append("attempt", name="odd", number=2)
    again.close()
    assert [line.get("number") for line in read_journal(path)] == [None, None, 2]


def test_a_broken_line_can_be_left_out_and_what_is_done_is_kept(batch: Batch) -> None:
    batch.begin(batch.source)
    batch.finish(attempt(batch.source, "name0"))
    before = contents(batch.out / "videos")
    with batch.layout.manifest.open("ab") as file:
        file.write(b'\0\0\0\n[1]\n{"type": "ended", "reason": "finished"}\n')
    broken = batch.layout.manifest.read_bytes()
    with pytest.raises(BatchDiffers, match="line 3: not JSON") as caught:
        batch.states()
    assert "--force" in str(caught.value)
    plan = make_plan(batch.sources, batch.options, force=True)
    assert [file.state for file in plan.files] == ["done"]
    assert any("left out (2)" in notice for notice in plan.notices)
    assert batch.layout.manifest.read_bytes() == broken
    assert batch.run(force=True).reason == "finished" and contents(batch.out / "videos") == before
    # From then on nobody has to insist.
    assert batch.states() == ["done"]
    told = [line for line in batch.lines() if line["type"] == "finished"]
    assert [(line["name"], line["found"]) for line in told] == [("name0", True)]


def test_what_was_missed_is_told_once_for_each_set_of_options(batch: Batch) -> None:
    for number, query in enumerate(("red", "blue", "red"), start=1):
        options = batch.asking(queries=(query,))
        batch.finish(options=options)
        for _ in range(2):
            batch.run(options=options, force=True)
            assert sum(bool(line.get("found")) for line in batch.lines()) == number


def test_sources_that_differ_in_secrets_alone_keep_their_names(batch: Batch) -> None:
    one, other, third = (f"https://host/clip.mp4?token={token}" for token in ("one", "other", "third"))
    assert redact_url(one) == redact_url(other)
    batch.begin(one, other)
    text = batch.layout.manifest.read_text()
    assert "token=one" not in text and "token=other" not in text

    def names(*sources: str) -> dict[str, str]:
        return {file.job.source: file.job.name for file in make_plan(sources, batch.options).files}

    assert names(one, other) == names(other, one) == {one: "name0", other: "name1"}
    # One that is signed anew is the same, where only one can be meant.
    assert names(third, other) == names(other, third) == {third: "name0", other: "name1"}
    assert names(third)[third] not in ("name0", "name1")
    batch.layout.manifest.unlink()
    batch.begin(one)
    assert names(other) == {other: "name0"}
    assert names(other, one)[one] == names(one, other)[one] == "name0"


@pytest.mark.parametrize("text", ['{"theirs": 1}\n', "not JSON\n", "[1]\n"])
def test_a_file_that_is_no_journal_is_not_written_to(batch: Batch, text: str) -> None:
    batch.out.mkdir()
    batch.layout.manifest.write_text(text)
    with pytest.raises(BatchDiffers):
        batch.run()
    assert [path.name for path in batch.out.iterdir()] == ["manifest.jsonl"]
    assert batch.layout.manifest.read_text() == text


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "holiday.mp4").write_bytes(b"precious")
    with pytest.raises(BatchDiffers, match="of no batch"):
        make_plan(["/x.mp4"], quick_options(tmp_path))


def test_one_batch_at_a_time_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.batch.journal._PATIENCE_SECONDS", 0.2)
    with FolderLock(tmp_path / ".lock"), pytest.raises(BatchBusy, match="another batch"):
        FolderLock(tmp_path / ".lock")
    with FolderLock(tmp_path / ".lock"):
        pass


def test_what_is_done_stands_in_done_json(batch: Batch) -> None:
    batch.begin()
    assert batch.states() == ["new"]
    # Where nothing is done yet, nothing stands in the way of other options.
    other = batch.asking(queries=("blue",))
    assert batch.states(other) == ["new"]
    batch.finish()
    assert not list((batch.out / ".work").iterdir())
    assert batch.states() == ["done"]

    with pytest.raises(BatchDiffers, match=r'queries was \["red"\] and is \["blue"\]'):
        batch.states(other)
    assert batch.states(other, force=True) == ["differs"]
    # A setting that is named and set to its default asks for nothing else.
    assert batch.states(quick_options(batch.out, settings={"models.folder": "/elsewhere"})) == ["done"]

    batch.source.write_bytes(b"other")
    plan = make_plan(batch.sources, batch.options)
    assert [file.state for file in plan.files] == ["changed"]
    assert any("changed since" in notice for notice in plan.notices)
    batch.source.unlink()
    assert batch.states() == ["gone"]
    batch.layout.done("clip").write_text('{"name": "clip"')
    assert batch.states() == ["new"]


class _Killed(BaseException):
    pass


def _kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Nothing more happens from the so-manieth change of a name on."""
    count = 0

    def counting(change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count >= call:
                raise _Killed
            return change(*arguments, **options)

        return changed

    monkeypatch.setattr(os, "replace", counting(os.replace))
    monkeypatch.setattr(Path, "replace", counting(Path.replace))
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))
    monkeypatch.setattr("arr_stream.batch.layout.shutil.rmtree", counting(lambda *_, **__: None))


@pytest.mark.parametrize("before", [False, True])
def test_killed_between_any_two_steps_a_file_is_done_or_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    states = []
    for call in range(1, 9):
        (tmp_path / str(call)).mkdir()
        batch = Batch(tmp_path / str(call))
        batch.begin()

        def texts(batch: Batch = batch) -> set[str]:
            return {(batch.out / "videos/clip/records.jsonl").read_text()}

        if before:
            batch.finish(text="before")
            batch.source.write_bytes(b"second")
        asked = attempt(batch.source)
        workspace = batch.workspace(asked, "now")
        with monkeypatch.context() as patch, contextlib.suppress(_Killed):
            done = batch.done(workspace, asked)
            _kill_at(patch, call)
            workspace.commit(done)
        (state,) = batch.states()
        states.append(state)
        if state == "done":
            assert texts() == {"now"}
        else:
            # Whatever lies there now, doing the file again makes it right.
            batch.finish(text="again")
            assert batch.states() == ["done"] and texts() == {"again"}
    # Both ends were met: not done before the last rename, done after it.
    assert states[0] in ("new", "changed") and states[-1] == "done"
    assert states == sorted(states, key=lambda state: state == "done")


def test_every_file_is_given_out_once_and_no_more_than_there_are_slots(six: Batch) -> None:
    engine, crew = fake_engine()
    heard: list[Event] = []
    result = six.run(engine, heard=heard)
    assert sorted(one.job.index for one in crew.attempts) == [0, 1, 2, 3, 4, 5]
    assert crew.most == engine.slots and crew.closed == 1
    assert len(result.finished) == 6 and not result.failed and not result.left and result.reason == "finished"
    assert [line["type"] for line in six.lines()].count("attempt") == 6
    assert sum(isinstance(event, JobFinished) for event in heard) == 6
    summary = json.loads(six.layout.summary.read_text())
    assert (summary["done"], summary["frames"], summary["reason"]) == (6, 48, "finished")


def test_what_may_go_better_is_tried_again_and_what_may_not_is_not(six: Batch) -> None:
    def answer(asked: Attempt) -> list[Message]:
        if asked.job.index == 2 or (asked.job.index == 1 and asked.number < 3):
            return lost(asked)
        if asked.job.index == 3:
            return [JobFailed(asked, 0, "NotAMediaFile", "not media", "give media", 11)]
        return well(asked)

    engine, crew = fake_engine(answer)
    result = six.run(engine, retries=2)
    tried = [one.job.index for one in crew.attempts]
    assert [tried.count(index) for index in range(6)] == [1, 3, 3, 1, 1, 1]
    assert sorted(event.attempt.job.index for event in result.failed) == [2, 3]
    again = [line["again"] for line in six.lines() if line.get("name") == "2" and line["type"] == "failed"]
    assert again == [True, True, False]
    told = json.loads((six.out / "errors" / "2.json").read_text())
    assert told["kind"] == "WorkerLost" and [one["number"] for one in told["attempts"]] == [1, 2, 3]
    told = json.loads((six.out / "errors" / "3.json").read_text())
    assert (told["remedy"], told["exit_code"], told["frames"]) == ("give media", 11, 0)
    # A later run in which it goes well takes the report away.
    six.run()
    assert not list((six.out / "errors").iterdir())


def test_what_a_lost_worker_has_finished_is_not_done_again(batch: Batch) -> None:
    after: dict[str, tuple[int, str]] = {}

    def answer(asked: Attempt) -> list[Message]:
        """Killed right after the last rename of its commit."""
        batch.finish(asked)
        after.update(contents(batch.out / "videos"))
        return lost(asked)

    engine, crew = fake_engine(answer)
    batch.begin()
    result = batch.run(engine, retries=1)
    assert len(crew.attempts) == 1 and not result.failed and not (batch.out / "errors").exists()
    (event,) = result.finished
    assert (event.done.frames, event.done.digest) == (8, "0" * 64)
    assert "videos/clip/records.jsonl" in event.done.outputs
    assert contents(batch.out / "videos") == after
    assert [line["type"] for line in batch.lines()][-3:] == ["attempt", "finished", "ended"]


def test_what_lies_there_of_other_work_does_not_stand_for_what_was_lost(batch: Batch) -> None:
    for before, changed in ((batch.asking(queries=("blue",)), False), (batch.options, True)):
        batch.finish(options=before)
        if changed:
            batch.source.write_bytes(b"another")
        result = batch.run(fake_engine(lost)[0], force=True)
        assert len(result.failed) == 1 and not result.finished


def test_what_is_done_is_not_replaced_by_the_same(batch: Batch) -> None:
    asked = attempt(batch.source)
    late = batch.workspace(asked)
    assert batch.finish(attempt(batch.source, number=2)).attempt == 2
    before = contents(batch.out / "videos")
    assert late.commit(batch.done(late, asked)).attempt == 2 and not late.folder.exists()
    assert contents(batch.out / "videos") == before


def test_a_full_disk_ends_it_instead_of_failing_file_by_file(six: Batch) -> None:
    full = ("DiskFull", "no space", "make room", 22)
    engine, crew = fake_engine(lambda asked: [JobFailed(asked, 0, *full)] if asked.job.index else well(asked))
    result = six.run(engine)
    assert result.reason == "failed" and result.error is not None and result.error.exit_code == 22
    assert "run the same command again" in str(result.error)
    assert len(crew.attempts) < 6 and not result.failed and len(result.left) == 5
    assert not (six.out / "errors").exists()


def test_workers_that_cannot_be_had_end_it(six: Batch) -> None:
    def answer(asked: Attempt) -> list[Message]:
        if asked.job.index == 1:
            raise WorkerLost("no more")
        return well(asked)

    result = six.run(fake_engine(answer)[0])
    assert result.reason == "failed" and isinstance(result.error, WorkerLost)


def test_stopping_begins_nothing_more(six: Batch) -> None:
    stop = threading.Event()

    def answer(asked: Attempt) -> list[Message]:
        if asked.job.index == 1:
            stop.set()
        return well(asked)

    engine, crew = fake_engine(answer)
    result = six.run(engine, stop=stop)
    assert result.reason == "interrupted" and crew.closed == 1
    assert len(crew.attempts) <= 2 + engine.slots and len(result.finished) + len(result.left) == 6


def test_difference_names_settings_by_their_keys(tmp_path: Path) -> None:
    before = public_options(quick_options(tmp_path))
    now = public_options(quick_options(tmp_path, settings={"keyframes.interval": 7}, start_seconds=2))
    assert difference(before, before) == ""
    assert difference(before, now) == "start_seconds was null and is 2, keyframes.interval was 30 and is 7"


def test_passwords_reach_neither_journal_nor_plan(tmp_path: Path) -> None:
    public = public_options(quick_options(tmp_path, queries=("at rtsp://u:hunter2@host/x",)))
    assert "hunter2" not in json.dumps(public)


def test_the_command_says_what_it_would_do_and_does_nothing(run: Run, tmp_path: Path) -> None:
    write_clips(tmp_path / "in", 2, frames=2)
    code, out, _ = run("batch", tmp_path / "in", "-o", tmp_path / "out", "--dry-run")
    assert code == 0 and "clip00" in out and "2 files of 2 to do" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 10, "no input was given"),
        (["none.mp4"], 10, "none.mp4"),
        (["CLIP", "--ray-gpus", "0.5"], 51, "--engine ray"),
        (["CLIP", "--query", " "], 30, "query"),
        (["CLIP", "--region", "MASK"], 51, "x,y,w,h"),
        (["CLIP", "--storage", "x"], 51, "key=value"),
        (["CLIP", "--video", "--set", "video.view=xray"], 51, "xray"),
        (["CLIP", "--set", "keyframes.intervall=3"], 50, "interval"),
    ],
)
def test_what_cannot_be_is_said_at_once_in_one_line(
    run: Run, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"never opened")
    Image.new("L", (8, 8), 255).save(tmp_path / "mask.png")
    paths = {"CLIP": str(clip), "MASK": str(tmp_path / "mask.png")}
    given = [paths.get(argument, argument) for argument in arguments]
    ended, out, err = run("batch", *given, "-o", tmp_path / "out")
    assert (ended, err.count("\n"), out) == (code, 1, "") and words in err
    assert not (tmp_path / "out").exists()


def test_errors_of_batches_have_exit_codes_of_their_own() -> None:
    def below(kind: type[ArrStreamError]) -> list[type[ArrStreamError]]:
        return [kind, *(further for child in kind.__subclasses__() for further in below(child))]

    codes: dict[int, str] = {}
    for kind in below(ArrStreamError):
        if "exit_code" in vars(kind) and kind is not ArrStreamError:
            assert kind.exit_code not in codes, f"{kind.__name__} and {codes[kind.exit_code]}"
            codes[kind.exit_code] = kind.__name__
