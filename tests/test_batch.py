"""Inputs, names, output folder, plan and dispatch of a batch; test_batch_runner and test_batch_kills cover workers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.batch.batch import BatchResult, opened, run_batch
from arr_stream.batch.engine import Lost, Message, WorkerEngine
from arr_stream.batch.folder import Layout, Workspace, folder_lock, write_json
from arr_stream.batch.job import (
    Attempt,
    Done,
    Event,
    JobFailed,
    JobOptions,
    difference,
    options_digest,
    public_options,
)
from arr_stream.batch.plan import assign_names, expand, identity, make_plan, safe_name
from arr_stream.errors import ArrStreamError, BatchDiffers, SourceNotFound, WeightsInvalid, WorkerLost
from arr_stream.plain_text import redact_url
from arr_stream.processes import Refused
from tests.batch_fakes import FakeEngine, attempt, contents, lost, quick_options, well
from tests.conftest import Run


class Batch:
    """Output folder with a source that no engine of a test reads."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.layout = Layout(self.out)
        self.options = quick_options(self.out)
        self.source = folder / "clip.mp4"
        self.source.write_bytes(b"one")
        self.sources = [str(self.source)]

    def with_options(self, **values: object) -> JobOptions:
        return dataclasses.replace(self.options, **values)  # type: ignore[arg-type]

    def begin(self, options: JobOptions | None = None) -> None:
        """Write the options of a batch that has begun."""
        self.out.mkdir(exist_ok=True)
        write_json(self.layout.options, {"options": public_options(options or self.options)})

    def workspace(self, asked: Attempt, text: str = "{}\n") -> Workspace:
        """Write the outputs of an attempt, as a worker does."""
        workspace = Workspace(self.layout, asked)
        (workspace.video / "records.jsonl").write_text(text)
        return workspace

    def done(self, workspace: Workspace, asked: Attempt, options: JobOptions | None = None) -> Done:
        name, source = asked.job.name, asked.job.source
        digest = options_digest(public_options(options or self.options))
        found = {} if "://" in source else identity(source, {})
        return Done(name, source, found, digest, "0" * 64, 8, 0.1, workspace.outputs(), attempt=asked.number)

    def finish(self, asked: Attempt | None = None, options: JobOptions | None = None, text: str = "{}\n") -> Done:
        """Process a file as a worker does."""
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
        watch: Callable[[Event], None] = lambda event: None,
        **values: bool,
    ) -> BatchResult:
        with opened(self.sources, options or self.options, **values) as (plan, lock):
            return run_batch(
                plan,
                lock,
                lambda *_: engine or FakeEngine(),
                engine_name="fake",
                retries=retries,
                stop=stop or threading.Event(),
                watch=watch,
            )


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setattr("arr_stream.batch.batch._FIRST_PAUSE_SECONDS", 0.01)
    return Batch(tmp_path)


@pytest.fixture
def six(batch: Batch, tmp_path: Path) -> Batch:
    """With six missing sources, called 0 to 5."""
    batch.sources = [str(tmp_path / f"{number}.mp4") for number in range(6)]
    return batch


PATHS = st.lists(
    st.tuples(st.text(st.characters(exclude_characters="/\0"), max_size=90), st.sampled_from(["", ".mp4", ".mov"])).map(
        "".join
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: "/" + "/".join(parts))


@settings(deadline=None, max_examples=50)
@given(st.lists(PATHS, max_size=12, unique=True), st.integers(0, 12))
def test_names_are_unique_safe_and_the_same_after_any_kill(sources: list[str], done: int) -> None:
    names = assign_names(sources, {})
    keys = [unicodedata.normalize("NFC", name.casefold()) for name in names.values()]
    assert list(names) == sources and len(keys) == len(set(keys))
    for name in names.values():
        assert 0 < len(name.encode()) <= 80
        assert name[0] not in ".-" and name[-1] != "."
        assert not set(name) & set('/\\:*?"<>|= \0\n')
        assert safe_name(name) == name
    finished = {names[source]: redact_url(source) for source in sources[:done]}
    assert assign_names(sources, finished) == names


def test_names_are_short_and_avoid_those_of_earlier_results() -> None:
    sources = ["/a/x.mp4", "/a/x.mov", "/b/y.mp4", "/c/Y.mp4", "/d/z.mp4", "s3://bucket/w.mp4?versionId=3"]
    names = list(assign_names(sources, {"Z": "/e/z.mp4"}).values())
    assert [name[:2] for name in names] == ["x", "x-", "y", "Y-", "z-", "w"] and len(set(names)) == 6
    assert [safe_name(text) for text in ("..hidden", "-rf /", "...", "Straße im Regen")] == [
        *("hidden", "rf__", "video", "Straße_im_Regen")
    ]


def test_inputs_are_found_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b10.mp4", "b9.MKV", "notes.txt", ".hidden.mp4", "deep/c.webm", "odd.bin"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "list.txt").write_bytes(b"b10.mp4\r\n\nmissing.mp4\nodd.bin")

    def names(*inputs: str) -> list[str]:
        return [os.path.relpath(source, tmp_path) for source in expand(inputs)]

    assert names(".") == ["b9.MKV", "b10.mp4"]
    assert names("odd.bin", "b10.mp4", "odd.bin") == ["odd.bin", "b10.mp4"]
    assert names("**/*.webm", (tmp_path / "deep").as_uri(), "*.mp4") == ["deep/c.webm", "b10.mp4"]
    assert names("@list.txt") == ["b10.mp4", "missing.mp4", "odd.bin"]
    (tmp_path / "empty").mkdir()
    for wrong, words in (("missing.mp4", "missing"), ("*.avi", "avi"), ("@none.txt", "none"), ("empty", "no|without")):
        with pytest.raises(SourceNotFound, match=words):
            expand([wrong])


def test_the_output_folder_is_left_out_by_whatever_path(tmp_path: Path) -> None:
    made = tmp_path / "in" / "out" / "videos" / "x" / "annotated.mp4"
    made.parent.mkdir(parents=True)
    for path in (made, tmp_path / "in" / "a.mp4"):
        path.write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "made.mp4").symlink_to(made)
    for folder in (tmp_path / "in", tmp_path / "link"):
        for leave_out in (tmp_path / "in" / "out", tmp_path / "link" / "out"):
            assert expand([f"{folder}/**/*.mp4"], leave_out=leave_out) == [str(folder / "a.mp4")]


def test_an_invalid_line_of_a_list_fails_by_itself(tmp_path: Path) -> None:
    good, pipe = tmp_path / "good.mp4", tmp_path / "pipe.mp4"
    good.write_bytes(b"")
    os.mkfifo(pipe)
    gone = tmp_path / "not here.mp4"
    lines = [
        gone.as_uri(),
        str(pipe),
        str(tmp_path / "*.avi"),
        "file://far/x.mp4",
        f"https://host/{'x' * 5000}.mp4",
        str(good),
    ]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    assert expand(["@" + str(tmp_path / "list.txt")]) == [str(gone), *lines[1:]]


@pytest.mark.parametrize("text", ['{"theirs": 1}\n', "not JSON\n", "[1]\n", '{"options": 5}'])
def test_a_file_that_holds_no_options_is_not_written_to(batch: Batch, text: str) -> None:
    batch.out.mkdir()
    batch.layout.options.write_text(text)
    with pytest.raises(BatchDiffers, match="not the options of a batch"):
        batch.run()
    assert [path.name for path in batch.out.iterdir()] == ["options.json"]
    assert batch.layout.options.read_text() == text


def test_finished_files_stay_when_the_options_are_lost(batch: Batch) -> None:
    batch.begin()
    batch.finish(attempt(batch.source, "earlier"))
    before = contents(batch.out / "videos")
    batch.layout.options.unlink()
    with pytest.raises(BatchDiffers, match="no batch wrote it"):
        batch.states()
    assert batch.run(force=True).reason == "finished"
    assert batch.states() == ["done"] and contents(batch.out / "videos") == before


def test_an_address_signed_anew_is_the_same_source(batch: Batch) -> None:
    one, other = (f"https://host/clip.mp4?token={token}" for token in ("one", "other"))
    public = "https://host/clip.mp4?token=***"
    batch.begin()
    batch.finish(attempt(public, "name"))

    def names(*sources: str) -> list[str]:
        return [file.job.name for file in make_plan(sources, batch.options).files]

    assert names(one) == names(other) == ["name"]
    first, second = names(one, other)
    assert first == "name" and second.startswith("clip")
    assert names("https://elsewhere/name.mp4")[0].startswith("name-")


def test_two_batches_in_the_same_folder_are_refused(batch: Batch, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.batch.folder._PATIENCE_SECONDS", 0.2)
    with folder_lock(batch.layout.lock):
        code, _, err = run("batch", batch.source, "-o", batch.out)
        assert code == 102 and "another batch" in err
    assert batch.run().reason == "finished"


def test_done_json_alone_decides_whether_a_file_is_done(batch: Batch) -> None:
    batch.begin()
    assert batch.states() == ["new"]
    # Other options are allowed as long as nothing is done.
    other = batch.with_options(queries=("blue",))
    assert batch.states(other) == ["new"]
    batch.finish()
    assert not list((batch.out / ".work").iterdir())
    assert batch.states() == ["done"]

    with pytest.raises(BatchDiffers, match="other settings: queries"):
        batch.states(other)
    assert batch.states(other, force=True) == ["differs"]
    # The place of the models changes no result.
    assert batch.states(quick_options(batch.out, settings={"models.folder": "/elsewhere"})) == ["done"]

    batch.source.write_bytes(b"other")
    plan = make_plan(batch.sources, batch.options)
    assert [file.state for file in plan.files] == ["changed"]
    assert any("changed since" in notice for notice in plan.notices)
    batch.source.unlink()
    assert batch.states() == ["gone"]
    (batch.layout.video("clip") / "done.json").write_text('{"name": "clip"')
    assert batch.states() == ["new"]


class _Killed(BaseException):
    pass


def _kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Raise from the given change of a name on."""
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
    monkeypatch.setattr(Path, "unlink", counting(Path.unlink))
    monkeypatch.setattr("arr_stream.batch.folder.shutil.rmtree", counting(lambda *_, **__: None))


@pytest.mark.parametrize("before", [False, True])
def test_killed_between_any_two_steps_a_file_is_done_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    states = []
    for call in range(1, 7):
        (tmp_path / str(call)).mkdir()
        batch = Batch(tmp_path / str(call))
        batch.begin()
        if before:
            batch.finish(text="before")
            batch.source.write_bytes(b"second")
        asked = attempt(batch.source)
        workspace = batch.workspace(asked, "now")
        with monkeypatch.context() as patch, contextlib.suppress(_Killed):
            done = batch.done(workspace, asked)
            _kill_at(patch, call)
            workspace.commit(done)
        states += batch.states()
        records = batch.out / "videos/clip/records.jsonl"
        if states[-1] == "done":
            assert records.read_text() == "now"
        else:
            # Processing the file again repairs it.
            batch.finish(text="again")
            assert batch.states() == ["done"] and records.read_text() == "again"
    assert states[0] == ("changed" if before else "new") and states[-1] == "done"
    assert states == sorted(states, key=lambda state: state == "done")


def test_every_file_is_processed_once_and_no_more_at_a_time_than_there_are_slots(six: Batch) -> None:
    engine, on_message = FakeEngine(), list[Event]()
    result = six.run(engine, watch=on_message.append)
    assert sorted(one.job.index for one in engine.attempts) == [0, 1, 2, 3, 4, 5]
    assert engine.most == engine.slots and engine.closed > 0
    assert len(result.finished) == 6 and not result.failed and not result.left and result.reason == "finished"
    assert [type(event).__name__ for event in on_message].count("JobStarted") == 6
    summary = json.loads(six.layout.summary.read_text())
    assert (summary["done"], summary["frames"], summary["reason"]) == (6, 48, "finished")


def test_retryable_errors_are_retried_and_errors_are_reported(six: Batch) -> None:
    def answer(asked: Attempt) -> list[Message]:
        if asked.job.index == 2 or (asked.job.index == 1 and asked.number < 3):
            return lost(asked)
        if asked.job.index == 3:
            return [JobFailed(asked, "NotAMediaFile", "not media", "give media", 11)]
        return well(asked)

    engine = FakeEngine(answer)
    result = six.run(engine, retries=2)
    tried = [one.job.index for one in engine.attempts]
    assert [tried.count(index) for index in range(6)] == [1, 3, 3, 1, 1, 1]
    assert sorted(event.attempt.job.index for event in result.failed) == [2, 3]
    error = json.loads((six.out / "errors" / "2.json").read_text())
    assert error["kind"] == "WorkerLost" and error["attempts"] == 3
    assert error["exit_code"] == 103 and "was ended by SIGKILL" in error["message"]
    error = json.loads((six.out / "errors" / "3.json").read_text())
    assert (error["remedy"], error["exit_code"]) == ("give media", 11)
    # A later success removes the report.
    six.run()
    assert not list((six.out / "errors").iterdir())


def test_a_file_that_a_lost_worker_finished_is_not_processed_again(batch: Batch) -> None:
    after: dict[str, tuple[int, str]] = {}

    def answer(asked: Attempt) -> list[Message]:
        """Killed right after the last rename of its commit."""
        batch.finish(asked)
        after.update(contents(batch.out / "videos"))
        return lost(asked)

    engine = FakeEngine(answer)
    batch.begin()
    result = batch.run(engine, retries=1)
    assert len(engine.attempts) == 1 and not result.failed and not (batch.out / "errors").exists()
    assert [event.done.outputs for event in result.finished] == [("videos/clip/records.jsonl",)]
    assert contents(batch.out / "videos") == after


def test_results_of_other_options_or_content_do_not_count_for_a_lost_worker(batch: Batch) -> None:
    for before, changed in ((batch.with_options(queries=("blue",)), False), (batch.options, True)):
        batch.finish(options=before)
        if changed:
            batch.source.write_bytes(b"another")
        result = batch.run(FakeEngine(lost), force=True)
        assert len(result.failed) == 1 and not result.finished


def test_a_finished_file_is_not_replaced_by_the_same(batch: Batch) -> None:
    asked = attempt(batch.source)
    late = batch.workspace(asked)
    assert batch.finish(attempt(batch.source, number=2)).attempt == 2
    before = contents(batch.out / "videos")
    assert late.commit(batch.done(late, asked)).attempt == 2 and not late.folder.exists()
    assert contents(batch.out / "videos") == before


def test_a_full_disk_ends_the_batch_instead_of_failing_file_by_file(six: Batch) -> None:
    full = ("DiskFull", "no space", "make room", 22)
    engine = FakeEngine(lambda asked: [JobFailed(asked, *full)] if asked.job.index else well(asked))
    result = six.run(engine)
    assert result.reason == "failed" and result.error is not None and result.error.exit_code == 22
    assert "run the same command again" in str(result.error)
    assert len(engine.attempts) < 6 and not result.failed and len(result.left) == 5
    assert not (six.out / "errors").exists()


@pytest.mark.parametrize(
    ("first", "error", "words"),
    [
        (Refused("WeightsInvalid", "clip.pt: damaged", "fetch it"), WeightsInvalid, "clip.pt: damaged; fetch it"),
        (Refused("KeyError", "x", None), WorkerLost, "could not begin: KeyError: x"),
        (Lost("no memory"), WorkerLost, "3 workers in a row.*no memory"),
    ],
)
def test_workers_that_cannot_begin_end_the_batch(
    six: Batch, first: Message, error: type[ArrStreamError], words: str
) -> None:
    engine = FakeEngine(first=first)
    result = six.run(engine)
    assert result.reason == "failed" and type(result.error) is error and not engine.attempts
    with pytest.raises(error, match=words):
        raise result.error
    assert 2 <= len(engine.started) <= 5 and len(result.left) == 6


def test_stopping_begins_nothing_more(six: Batch) -> None:
    stop = threading.Event()

    def answer(asked: Attempt) -> list[Message]:
        if asked.job.index == 1:
            stop.set()
        return well(asked)

    engine = FakeEngine(answer)
    result = six.run(engine, stop=stop)
    assert result.reason == "interrupted" and engine.closed
    assert len(engine.attempts) <= 2 + engine.slots and len(result.finished) + len(result.left) == 6


def test_difference_names_settings_by_their_keys(tmp_path: Path) -> None:
    before = public_options(quick_options(tmp_path))
    now = public_options(quick_options(tmp_path, settings={"keyframes.interval": 7}, start_seconds=2))
    assert difference(before, before) == ""
    assert difference(before, now) == "start_seconds, keyframes.interval"


def test_passwords_do_not_reach_the_options(tmp_path: Path) -> None:
    public = public_options(quick_options(tmp_path, queries=("at rtsp://u:hunter2@host/x",)))
    assert "hunter2" not in json.dumps(public)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 10, "no input was given"),
        (["none.mp4"], 10, "none.mp4"),
        (["CLIP", "--query", " "], 30, "query"),
        (["CLIP", "--region", "mask.png"], 51, "x,y,w,h"),
        (["CLIP", "--storage", "x"], 51, "key=value"),
        (["CLIP", "--video", "--set", "video.view=xray"], 51, "xray"),
        (["CLIP", "--set", "keyframes.intervall=3"], 50, "interval"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(
    run: Run, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"never opened")
    given = [str(clip) if argument == "CLIP" else argument for argument in arguments]
    ended, out, err = run("batch", *given, "-o", tmp_path / "out")
    assert (ended, err.count("\n"), out) == (code, 1, "") and words in err
    assert not (tmp_path / "out").exists()


def test_errors_have_exit_codes_of_their_own() -> None:
    kinds, codes = [ArrStreamError], list[int]()
    for kind in kinds:
        kinds += kind.__subclasses__()
        codes += [kind.exit_code] if "exit_code" in vars(kind) else []
    assert len(codes) == len(set(codes)) > 30
