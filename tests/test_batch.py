"""Inputs, names, journal, plan and coordinator of a batch; workers are in test_batch_runner and test_batch_kills."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.batch.batch import opened, run_batch
from arr_stream.batch.coordinator import BatchResult, Coordinator
from arr_stream.batch.inputs import assign_names, expand, safe_name
from arr_stream.batch.job import (
    Attempt,
    Event,
    Job,
    JobFailed,
    JobFinished,
    JobOptions,
    difference,
    options_digest,
    public_options,
)
from arr_stream.batch.journal import FolderLock, Journal, read_journal, read_past, source_key
from arr_stream.batch.layout import Done, Layout, Workspace, identity
from arr_stream.batch.plan import make_plan, start_over
from arr_stream.errors import ArrStreamError, BatchBusy, BatchDiffers, SourceNotFound, WorkerLost
from arr_stream.plain_text import redact_url
from tests.batch_fakes import FakeEngine, Heard, attempt, contents, finished, lost, quick_options, write_clips
from tests.conftest import Run


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
def test_names_that_were_given_stay_whatever_comes_later(sources: list[str], cut: int) -> None:
    before = assign_names(sources[:cut])
    after = assign_names(sources, before)
    assert {source: after[source] for source in before} == before
    assert all_unique(after.values())


@settings(deadline=None, max_examples=50)
@given(PATHS)
def test_tables_lie_where_their_readers_look_for_them(source: str) -> None:
    parquet = pytest.importorskip("arr_stream.records.parquet", exc_type=ImportError)
    name = safe_name(source)
    assert Layout(Path("/out")).parquet("cells", name).parent.name == parquet.hive_folder(name)


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
    assert names(".", recursive=True, leave_out=tmp_path / "out") == ["b9.MKV", "b10.mp4", "deep/c.webm"]
    assert names("odd.bin", "b10.mp4", "odd.bin") == ["odd.bin", "b10.mp4"]
    assert names("*.mp4", (tmp_path / "deep").as_uri()) == ["b10.mp4", "deep/c.webm"]
    assert names("@list.txt") == names(lists=["list.txt"]) == ["b10.mp4", "missing.mp4", "odd.bin"]
    for wrong in ("missing.mp4", "*.avi", "@none.txt"):
        with pytest.raises(SourceNotFound, match=r"missing\.mp4|avi|none\.txt"):
            expand([wrong])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFound, match="without videos"):
        expand(["empty"])


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
            found = expand([str(folder)], recursive=True, leave_out=leave_out)
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
    path = tmp_path / "manifest.jsonl"
    journal = Journal(path)
    journal.begin({"video": True}, "d", {})
    journal.add_jobs([(os.fsdecode(b"/odd\xff.mp4"), "odd")])
    journal.append("attempt", name="odd", number=1)
    journal.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert [line["type"] for line in read_journal(path)] == ["batch", "jobs"]
        assert read_past(path).names == {os.fsdecode(b"/odd\xff.mp4"): "odd"}
    Journal(path).close()
    again = Journal(path)
    again.append("attempt", name="odd", number=2)
    again.close()
    assert [line.get("number") for line in read_journal(path)] == [None, None, 2]


def _begun_journal(out: Path, options: JobOptions, *sources: str) -> Journal:
    journal = Journal(_made(out) / "manifest.jsonl")
    journal.begin(public_options(options), options_digest(public_options(options)), {})
    journal.add_jobs([(source_key(source), f"name{number}") for number, source in enumerate(sources)])
    return journal


def test_a_broken_line_can_be_left_out_and_what_is_done_is_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "clip.mp4", tmp_path / "out"
    source.write_bytes(b"one")
    options = quick_options(out)
    _begun_journal(out, options, str(source)).close()
    workspace = Workspace(Layout(out), attempt(source, "name0"))
    workspace.commit(_done(workspace, source, options, "name0"))
    before = contents(out / "videos")
    with (out / "manifest.jsonl").open("ab") as file:
        file.write(b'\0\0\0\n[1]\n{"type": "ended", "reason": "finished"}\n')
    broken = (out / "manifest.jsonl").read_bytes()
    with pytest.raises(BatchDiffers, match="line 3: not JSON") as caught:
        make_plan([str(source)], options)
    assert "--force" in str(caught.value) and "--fresh" not in str(caught.value)
    plan = make_plan([str(source)], options, force=True)
    assert [file.state for file in plan.files] == ["done"]
    assert any("left out (2)" in notice for notice in plan.notices)
    assert (out / "manifest.jsonl").read_bytes() == broken
    result, _ = _run_opened([str(source)], options, FakeEngine(), force=True)
    assert result.reason == "finished" and contents(out / "videos") == before
    # From then on nobody has to insist.
    assert [file.state for file in make_plan([str(source)], options).files] == ["done"]
    told = [line for line in read_journal(out / "manifest.jsonl") if line["type"] == "finished"]
    assert [(line["name"], line["found"]) for line in told] == [("name0", True)]


def test_what_was_missed_is_told_once_for_each_set_of_options(tmp_path: Path) -> None:
    source, out = tmp_path / "clip.mp4", tmp_path / "out"
    source.write_bytes(b"one")

    def found() -> int:
        return sum(line.get("found", False) for line in read_journal(out / "manifest.jsonl"))

    for number, query in enumerate(("red", "blue", "red"), start=1):
        options = dataclasses.replace(quick_options(out), queries=(query,))
        workspace = Workspace(Layout(out), attempt(source))
        workspace.commit(_done(workspace, source, options))
        for _ in range(2):
            _run_opened([str(source)], options, FakeEngine(), force=True)
            assert found() == number


def test_sources_that_differ_in_secrets_alone_keep_their_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = quick_options(out)
    one, other, third = (f"https://host/clip.mp4?token={token}" for token in ("one", "other", "third"))
    assert redact_url(one) == redact_url(other)
    _begun_journal(out, options, one, other).close()
    text = (out / "manifest.jsonl").read_text()
    assert "token=one" not in text and "token=other" not in text

    def names(*sources: str) -> dict[str, str]:
        return {file.job.source: file.job.name for file in make_plan(sources, options).files}

    assert names(one, other) == names(other, one) == {one: "name0", other: "name1"}
    # One that is signed anew is the same, where only one can be meant.
    assert names(third, other) == names(other, third) == {third: "name0", other: "name1"}
    assert names(third)[third] not in ("name0", "name1")
    (out / "manifest.jsonl").unlink()
    _begun_journal(out, options, one).close()
    assert names(other) == {other: "name0"}
    assert names(other, one)[one] == names(one, other)[one] == "name0"


def _run_opened(
    sources: list[str], options: JobOptions, engine: FakeEngine, *, stop: threading.Event | None = None, **values: bool
) -> tuple[BatchResult, FakeEngine]:
    with opened(sources, options, **values) as (plan, lock):
        result, _ = run_batch(
            plan,
            lock,
            lambda *_: engine,
            engine_name="fake",
            retries=0,
            fail_fast=False,
            stop=stop or threading.Event(),
            watch=Heard(),
            fresh=values.get("resume") is False,
        )
    return result, engine


class _Beginning(FakeEngine):
    """An engine whose worker begins at the third look, or refuses to."""

    def __init__(self, error: ArrStreamError | None = None) -> None:
        super().__init__()
        self._looks = 0
        self._error = error
        self.seen: list[bool] = []
        self.done: Path | None = None

    @property
    def begun(self) -> bool:
        return self._looks > 2

    def poll(self, timeout_seconds: float) -> list[Event]:
        self._looks += 1
        assert self.done is not None
        self.seen.append(self.done.exists())
        if self._error is not None and self._looks == 2:
            raise self._error
        return super().poll(timeout_seconds)


def test_starting_over_takes_nothing_away_before_a_worker_has_begun(tmp_path: Path) -> None:
    source, out = tmp_path / "clip.mp4", tmp_path / "out"
    source.write_bytes(b"one")
    options = quick_options(out)
    _begun_journal(out, options).close()
    workspace = Workspace(Layout(out), attempt(source, "old"))
    workspace.commit(_done(workspace, source, options, "old"))
    before = contents(out)

    engine = _Beginning(WorkerLost("no models"))
    engine.done = Layout(out).done("old")
    with pytest.raises(WorkerLost):
        _run_opened([str(source)], options, engine, resume=False)
    stop = threading.Event()
    stop.set()
    result, _ = _run_opened([str(source)], options, engine, stop=stop, resume=False)
    assert result.reason == "interrupted" and len(result.left) == 1
    assert {name: content for name, content in contents(out).items() if name != ".lock"} == before

    engine = _Beginning()
    engine.done = Layout(out).done("old")
    result, _ = _run_opened([str(source)], options, engine, resume=False)
    assert engine.seen[:4] == [True, True, True, False] and len(result.finished) == 1
    assert not Layout(out).video("old").exists()
    assert [line["type"] for line in read_journal(out / "manifest.jsonl")][:3] == ["batch", "jobs", "run"]


def test_starting_over_that_is_broken_off_leaves_a_batch_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = quick_options(tmp_path / "out")
    sources = [str(tmp_path / f"{number}.mp4") for number in range(3)]
    _begun_journal(tmp_path / "out", options, *sources).close()
    for number, source in enumerate(sources):
        Path(source).write_bytes(b"one")
        workspace = Workspace(Layout(tmp_path / "out"), attempt(source, f"name{number}"))
        workspace.commit(_done(workspace, Path(source), options, f"name{number}"))
    remove, removed = Layout.remove, list[str]()

    def killed(self: Layout, name: str) -> None:
        if removed:
            raise _Killed
        removed.append(name)
        remove(self, name)

    monkeypatch.setattr(Layout, "remove", killed)
    with pytest.raises(_Killed):
        start_over(Layout(tmp_path / "out"))
    states = [file.state for file in make_plan(sources, options, resume=True).files]
    assert sorted(states) == ["done", "done", "new"]


def test_a_file_that_is_no_journal_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out" / "manifest.jsonl"
    path.parent.mkdir()
    for text in ('{"theirs": 1}\n', "not JSON\n", "[1]\n"):
        path.write_text(text)
        with pytest.raises(BatchDiffers):
            make_plan(["/x.mp4"], quick_options(path.parent))
        assert path.read_text() == text


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "holiday.mp4").write_bytes(b"precious")
    with pytest.raises(BatchDiffers, match="of no batch"):
        make_plan(["/x.mp4"], quick_options(tmp_path))


def test_one_batch_at_a_time_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.batch.journal._PATIENCE_SECONDS", 0.2)
    with FolderLock(tmp_path / ".lock"), pytest.raises(BatchBusy, match="another batch"):
        FolderLock(tmp_path / ".lock")
    FolderLock(tmp_path / ".lock").close()


def _done(workspace: Workspace, source: Path, options: JobOptions, name: str = "clip") -> Done:
    (workspace.video / "records.jsonl").write_text("{}\n")
    digest = options_digest(public_options(options))
    return Done(name, str(source), identity(str(source), {}), digest, "0" * 64, 8, 0.1, workspace.outputs())


def _states(source: Path, options: JobOptions, **values: bool) -> list[str]:
    return [file.state for file in make_plan([str(source)], options, **values).files]


def test_what_is_done_stands_in_done_json(tmp_path: Path) -> None:
    source, out = tmp_path / "clip.mp4", tmp_path / "out"
    source.write_bytes(b"one")
    options = quick_options(out)
    journal = Journal(_made(out) / "manifest.jsonl")
    journal.begin(public_options(options), options_digest(public_options(options)), {})
    assert _states(source, options) == ["new"]
    # Where nothing is done yet, nothing stands in the way of other options.
    assert _states(source, dataclasses.replace(options, queries=("blue",))) == ["new"]
    workspace = Workspace(Layout(out), attempt(source))
    workspace.commit(_done(workspace, source, options))
    assert not list((out / ".work").iterdir())
    assert _states(source, options) == ["done"]
    assert _states(source, options, resume=False) == ["new"]

    other = dataclasses.replace(options, queries=("blue",))
    with pytest.raises(BatchDiffers, match=r'queries was \["red"\] and is \["blue"\]'):
        _states(source, other)
    assert _states(source, other, force=True) == ["differs"]
    # A setting that is named and set to its default asks for nothing else.
    values = {section: dict(keys) for section, keys in options.settings.items()}
    values["models"]["folder"] = "/elsewhere"
    assert _states(source, dataclasses.replace(options, settings=values)) == ["done"]

    source.write_bytes(b"other")
    plan = make_plan([str(source)], options)
    assert [file.state for file in plan.files] == ["changed"]
    assert any("changed since" in notice for notice in plan.notices)
    source.unlink()
    assert _states(source, options) == ["gone"]
    Layout(out).done("clip").write_text('{"name": "clip"')
    assert _states(source, options) == ["new"]
    journal.close()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
        source, out = tmp_path / f"{call}.mp4", _made(tmp_path / f"out{call}")
        source.write_bytes(b"first")
        options = quick_options(out, formats=("jsonl", "parquet"))
        journal = Journal(out / "manifest.jsonl")
        journal.begin(public_options(options), options_digest(public_options(options)), {})
        journal.add_jobs([(str(source), "clip")])
        journal.close()

        def written(text: str, source: Path = source, out: Path = out, options: JobOptions = options) -> None:
            workspace = Workspace(Layout(out), attempt(source))
            for kind in ("frames", "cells"):
                (workspace.parquet / f"{kind}.parquet").write_text(text)
            done = _done(workspace, source, options)
            (workspace.video / "records.jsonl").write_text(text)
            workspace.commit(done)

        if before:
            written("before")
            source.write_bytes(b"second")
        with monkeypatch.context() as patch:
            try:
                workspace = Workspace(Layout(out), attempt(source))
                for kind in ("frames", "cells"):
                    (workspace.parquet / f"{kind}.parquet").write_text("now")
                done = _done(workspace, source, options)
                (workspace.video / "records.jsonl").write_text("now")
                _kill_at(patch, call)
                workspace.commit(done)
            except _Killed:
                pass
        (state,) = _states(source, options)
        states.append(state)
        texts = {path.read_text() for path in out.rglob("*.parquet") if ".work" not in path.parts}
        if state == "done":
            assert texts == {"now"}
            assert (out / "videos/clip/records.jsonl").read_text() == "now"
        else:
            # Whatever lies there now, doing the file again makes it right.
            written("again")
            assert _states(source, options) == ["done"]
            assert {path.read_text() for path in out.glob("*/video=clip/*.parquet")} == {"again"}
            assert (out / "videos/clip/records.jsonl").read_text() == "again"
    # Both ends were met: not done before the last rename, done after it.
    assert states[0] in ("new", "changed") and states[-1] == "done"
    assert states == sorted(states, key=lambda state: state == "done")


def _run_fake(
    tmp_path: Path, answer: Callable[[Attempt], list[Event]], count: int = 6, **values: object
) -> tuple[BatchResult, FakeEngine, Heard, list[dict[str, object]]]:
    journal = Journal(_made(tmp_path) / "manifest.jsonl")
    engine, heard = FakeEngine(answer), Heard()
    coordinator = Coordinator(Layout(tmp_path), journal, watch=heard, **values)  # type: ignore[arg-type]
    jobs = [Job(index, f"/{index}.mp4", str(index)) for index in range(count)]
    result = coordinator.run(engine, jobs, threading.Event())
    journal.close()
    return result, engine, heard, read_journal(tmp_path / "manifest.jsonl")


def test_every_file_is_given_out_once_and_no_more_than_there_are_slots(tmp_path: Path) -> None:
    result, engine, heard, lines = _run_fake(tmp_path, finished)
    assert [one.job.index for one in engine.attempts] == [0, 1, 2, 3, 4, 5]
    assert engine.most == engine.slots
    assert len(result.finished) == 6 and not result.failed and not result.left and result.reason == "finished"
    assert [line["type"] for line in lines].count("attempt") == 6
    assert sum(isinstance(event, JobFinished) for event in heard.events) == 6


def test_what_may_go_better_is_tried_again_and_what_may_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arr_stream.batch.coordinator._FIRST_PAUSE_SECONDS", 0.01)

    def answer(asked: Attempt) -> list[Event]:
        if asked.job.index == 1 and asked.number < 3:
            return lost(asked)
        if asked.job.index == 2:
            return lost(asked)
        if asked.job.index == 3:
            return [JobFailed(asked, 0, "NotAMediaFile", "not media", "give media", 11)]
        return finished(asked)

    result, engine, _, lines = _run_fake(tmp_path, answer, retries=2)
    tried = [one.job.index for one in engine.attempts]
    assert [tried.count(index) for index in range(6)] == [1, 3, 3, 1, 1, 1]
    assert sorted(event.attempt.job.index for event in result.failed) == [2, 3]
    assert [line["again"] for line in lines if line.get("name") == "2" and line["type"] == "failed"] == [
        True,
        True,
        False,
    ]
    told = json.loads((tmp_path / "errors" / "2.json").read_text())
    assert told["kind"] == "WorkerLost" and [one["number"] for one in told["attempts"]] == [1, 2, 3]
    told = json.loads((tmp_path / "errors" / "3.json").read_text())
    assert (told["remedy"], told["exit_code"], told["frames"]) == ("give media", 11, 0)
    # A later run in which it goes well takes the report away.
    _run_fake(tmp_path, finished)
    assert not list((tmp_path / "errors").iterdir())


def test_what_a_lost_worker_has_finished_is_not_done_again(tmp_path: Path) -> None:
    source, out = tmp_path / "clip.mp4", tmp_path / "out"
    source.write_bytes(b"one")
    options = quick_options(out)
    after: dict[str, tuple[int, str]] = {}

    def answer(asked: Attempt) -> list[Event]:
        """Killed right after the last rename of its commit."""
        workspace = Workspace(Layout(out), asked)
        workspace.commit(_done(workspace, source, options))
        after.update(contents(out / "videos"))
        return lost(asked)

    engine = FakeEngine(answer)
    _begun_journal(out, options).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arr_stream.batch.coordinator._FIRST_PAUSE_SECONDS", 0.01)
        result, _ = _run_opened([str(source)], options, engine)
    assert len(engine.attempts) == 1 and not result.failed and not (out / "errors").exists()
    (event,) = result.finished
    assert (event.frames, event.digest, event.outputs) == (8, "0" * 64, ("videos/clip/records.jsonl",))
    assert contents(out / "videos") == after
    assert [line["type"] for line in read_journal(out / "manifest.jsonl")][-3:] == ["attempt", "finished", "ended"]


def test_what_lies_there_of_other_work_does_not_stand_for_what_was_lost(tmp_path: Path) -> None:
    source, out = tmp_path / "clip.mp4", tmp_path / "out"
    source.write_bytes(b"one")
    options = quick_options(out)
    others = dataclasses.replace(options, queries=("blue",))
    for before, changed in ((others, False), (options, True)):
        workspace = Workspace(Layout(out), attempt(source))
        workspace.commit(_done(workspace, source, before))
        if changed:
            source.write_bytes(b"another")
        result, _ = _run_opened([str(source)], options, FakeEngine(lost), force=True)
        assert len(result.failed) == 1 and not result.finished


def test_what_is_done_is_not_replaced_by_the_same(tmp_path: Path) -> None:
    source, layout = tmp_path / "clip.mp4", Layout(tmp_path / "out")
    source.write_bytes(b"one")
    options = quick_options(layout.folder)
    late, first = Workspace(layout, attempt(source)), Workspace(layout, attempt(source, number=2))
    done = dataclasses.replace(_done(first, source, options), attempt=2)
    assert first.commit(done) == done
    before = contents(layout.folder)
    late.video.mkdir(parents=True, exist_ok=True)
    standing = late.commit(_done(late, source, options))
    assert standing.attempt == 2 and not late.folder.exists()
    assert {name: what for name, what in contents(layout.folder).items() if ".work" not in name} == before


def test_the_first_failure_ends_it_where_that_is_asked(tmp_path: Path) -> None:
    def answer(asked: Attempt) -> list[Event]:
        return [JobFailed(asked, 0, "NoFrames", "none")] if asked.job.index == 2 else finished(asked)

    result, engine, _, _ = _run_fake(tmp_path, answer, fail_fast=True)
    assert result.reason == "stopped" and len(result.failed) == 1
    assert len(engine.attempts) < 6
    assert len(result.finished) + len(result.left) == 5


def test_a_full_disk_ends_it_instead_of_failing_file_by_file(tmp_path: Path) -> None:
    def answer(asked: Attempt) -> list[Event]:
        return [JobFailed(asked, 0, "DiskFull", "no space", "make room", 22)] if asked.job.index else finished(asked)

    result, engine, _, _ = _run_fake(tmp_path, answer)
    assert result.reason == "failed" and result.error is not None and result.error.exit_code == 22
    assert "run the same command again" in str(result.error)
    assert len(engine.attempts) < 6 and not result.failed and len(result.left) == 5
    assert not (tmp_path / "errors").exists()


def test_workers_that_cannot_be_had_end_it(tmp_path: Path) -> None:
    def answer(asked: Attempt) -> list[Event]:
        if asked.job.index == 1:
            raise WorkerLost("no more")
        return finished(asked)

    result, *_ = _run_fake(tmp_path, answer)
    assert result.reason == "failed" and isinstance(result.error, WorkerLost)


def test_stopping_begins_nothing_more(tmp_path: Path) -> None:
    stop = threading.Event()
    journal = Journal(tmp_path / "manifest.jsonl")

    def answer(asked: Attempt) -> list[Event]:
        if asked.job.index == 1:
            stop.set()
        return finished(asked)

    engine = FakeEngine(answer)
    jobs = [Job(index, f"/{index}.mp4", str(index)) for index in range(9)]
    result = Coordinator(Layout(tmp_path), journal, watch=Heard()).run(engine, jobs, stop)
    journal.close()
    assert result.reason == "interrupted"
    assert len(engine.attempts) <= 2 + engine.slots and len(result.finished) + len(result.left) == 9


def test_difference_names_settings_by_their_keys(tmp_path: Path) -> None:
    before = public_options(quick_options(tmp_path))
    values = {section: dict(keys) for section, keys in quick_options(tmp_path).settings.items()}
    values["keyframes"]["interval"] = 7
    now = public_options(dataclasses.replace(quick_options(tmp_path), settings=values, stride=2))
    assert difference(before, before) == ""
    assert difference(before, now) == "stride was 1 and is 2, keyframes.interval was 30 and is 7"


def test_passwords_reach_neither_journal_nor_plan(tmp_path: Path) -> None:
    options = quick_options(tmp_path / "out")
    public = json.dumps(public_options(dataclasses.replace(options, queries=("at rtsp://u:hunter2@host/x",))))
    assert "hunter2" not in public


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
        (["CLIP", "--format", "csv"], 51, "jsonl, parquet"),
        (["CLIP", "--engine", "slurm"], 51, "local, ray"),
        (["CLIP", "--ray-address", "x"], 51, "--engine ray"),
        (["CLIP", "--ray-gpus", "0.5"], 51, "--engine ray"),
        (["CLIP", "--query", " "], 30, "query"),
        (["CLIP", "--region-at", "3"], 51, "--region"),
        (["CLIP", "--storage", "x"], 51, "key=value"),
        (["CLIP", "--video", "--view", "xray"], 51, "xray"),
        (["CLIP", "--resume"], 101, "no batch to go on with"),
        (["CLIP", "--set", "keyframes.intervall=3"], 50, "interval"),
    ],
)
def test_what_cannot_be_is_said_at_once_in_one_line(
    run: Run, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"never opened")
    given = [str(clip) if argument == "CLIP" else argument for argument in arguments]
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
