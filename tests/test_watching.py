"""When a watcher shows frames and asks, and what becomes of failures; with a scripted viewer in place of a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import arr_stream
from arr_stream.errors import NothingChosen, ServerFailed
from arr_stream.outputs import records_of
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.records.json_lines import read_answers, read_records
from arr_stream.run import run
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm import OnText, Stop
from arr_stream.vlm.watcher import LiveWatcher, Plan, Watcher
from tests.live_fakes import LIGHT
from tests.media import moving_frames, write_video

FPS = 10


class ScriptedSession:
    """Remembers what it was shown; fails where it is told to."""

    name = "scripted"

    def __init__(
        self, *, blind: Sequence[int] = (), mute: bool = False, seconds: float = 0.0, rebuilt_on: int | None = None
    ) -> None:
        self.shown: list[PatchSet] = []
        self.asked_at: list[float] = []
        self.closed = 0
        self._blind = blind
        self._mute = mute
        self._seconds = seconds
        self._rebuilt_on = rebuilt_on
        self._map: FloatArray | None = None

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        if frame.index in self._blind:
            raise NothingChosen("no cell was chosen", remedy="raise the budget")
        self.shown.append(patches)
        return Feeding(sent=len(patches), rebuilt="budget" if frame.index == self._rebuilt_on else None)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        if not self.shown:
            raise NothingChosen("the model has seen nothing yet", remedy="show it a frame first")
        latest = self.shown[-1]
        self.asked_at.append(latest.pts_seconds)
        ends = time.monotonic() + self._seconds
        while time.monotonic() < ends and not (stop is not None and stop.is_set()):
            time.sleep(0.01)
        if self._mute:
            raise ServerFailed("http://127.0.0.1:1: nobody answers", remedy="start the server")
        self._map = np.zeros((latest.grid.rows, latest.grid.columns), np.float32)
        self._map[0, 0] = 1
        if on_text is not None:
            on_text("fine")
        return Answer(question, "fine", latest.index, latest.pts_seconds, self.name)

    @property
    def attention(self) -> FloatArray | None:
        return self._map

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds: a still scene, and another one from 2 s on."""
    first, second = moving_frames(1, (128, 96))[0], moving_frames(1, (128, 96), seed=9)[0][::-1] // 6
    return write_video(tmp_path_factory.mktemp("clip") / "clip.mp4", [first] * 20 + [second] * 10, fps=FPS)


def _stream(clip: Path) -> arr_stream.Stream:
    return arr_stream.open(clip, query="red", budget=6, settings=LIGHT.with_values({"vlm.feedback": True}))


def _watched(clip: Path, watcher: Watcher) -> Iterator[PatchSet]:
    with _stream(clip) as stream:
        for patches in stream:
            assert stream.frame is not None
            yield watcher.watch(stream.frame, patches, "last" if patches.index == 29 else None)


def test_frames_are_shown_at_the_rate_that_was_asked_for(clip: Path) -> None:
    session = ScriptedSession()
    fed = [patches for patches in _watched(clip, Watcher(session, Plan("what?"), fps=2)) if patches.feeding is not None]
    assert [patches.index for patches in fed] == [0, 5, 10, 15, 20, 25, 29]
    assert all(patches.feeding is not None and patches.feeding.sent == 6 for patches in fed)


def test_a_cut_between_two_shown_frames_is_told_with_the_next(clip: Path) -> None:
    session = ScriptedSession()
    list(_watched(clip, Watcher(session, Plan("what?"), fps=0.7)))
    assert [patches.refresh_reason for patches in session.shown] == ["first", None, "cut"]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan("what?"), [2.9]),  # the last frame
        (Plan("what?", "every", 1.0), [1.0, 2.0]),
        (Plan("what?", "every", 60.0), [2.9]),
        (Plan("what?", "change"), [0.0, 2.0]),
    ],
)
def test_questions_are_asked_when_the_plan_says(clip: Path, plan: Plan, expected: list[float]) -> None:
    session = ScriptedSession()
    answers = [answer for patches in _watched(clip, Watcher(session, plan, fps=10)) for answer in patches.answers]
    assert session.asked_at == pytest.approx(expected, abs=1e-3)
    assert [answer.pts_seconds for answer in answers] == pytest.approx(expected, abs=1e-3)


def test_a_frame_that_cannot_be_shown_is_told_and_the_stream_goes_on(clip: Path) -> None:
    session = ScriptedSession(blind=[0, 5])
    patches = list(_watched(clip, Watcher(session, Plan("what?"), fps=2)))
    assert len(patches) == 30 and patches[-1].answers[0].text == "fine"
    assert patches[0].feeding is not None and "raise the budget" in str(patches[0].feeding.error)
    assert any("was not shown" in notice for notice in patches[0].notices)


def test_failures_are_in_the_records_and_the_run_ends_well(clip: Path, tmp_path: Path) -> None:
    session = ScriptedSession(mute=True)
    watcher = Watcher(session, Plan("what?", "every", 1.0))
    stream, path = _stream(clip), tmp_path / "out.jsonl"
    result = run(stream, [records_of(stream, path)], watcher=watcher)
    assert result.error is None and result.frames == 30 and session.closed
    answers = read_answers(path)
    assert len(answers) == 3 and all("start the server" in str(answer.error) for answer in answers)
    assert len(read_records(path)[1]) == 30


def _live(session: ScriptedSession, plan: Plan, stream: arr_stream.Stream, stop: Stop | None = None) -> LiveWatcher:
    return LiveWatcher(Watcher(session, plan, stream=stream, fps=10, stop=stop))


def _watched_live(live: LiveWatcher, stream: arr_stream.Stream, pause_seconds: float) -> Iterator[PatchSet]:
    """Every frame of a stream, at a pace of its own; then the end."""
    for patches in stream:
        assert stream.frame is not None
        yield live.watch(stream.frame, patches)
        time.sleep(pause_seconds)
    live.close()


def test_a_slow_model_holds_no_frame_up(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, attended = ScriptedSession(seconds=0.5), []
    with _stream(clip) as stream:
        attend = stream.attend
        monkeypatch.setattr(
            stream, "attend", lambda attention, index: attended.append(index) or attend(attention, index)
        )
        live = _live(session, Plan("what?", "change"), stream)
        watched = list(_watched_live(live, stream, 0.04))
    answered = [(patches.index, answer.frame_index) for patches in watched for answer in patches.answers]
    assert answered and answered[0][1] == 0 and answered[0][0] >= 5
    assert attended[0] == 0
    assert not any(thread.name == "arr-stream-watcher" for thread in threading.enumerate())


@pytest.mark.parametrize("plan", [Plan("what?"), Plan("what?", "change")])
def test_the_answer_at_the_end_of_a_live_stream_is_recorded(clip: Path, tmp_path: Path, plan: Plan) -> None:
    stream, path, session = _stream(clip), tmp_path / "out.jsonl", ScriptedSession(seconds=0.5)
    result = run(stream, [records_of(stream, path)], watcher=_live(session, plan, stream))
    answers = read_answers(path)
    assert result.frames == 30 and len(answers) == len(session.asked_at) >= 1
    assert plan.when == "change" or [answer.frame_index for answer in answers] == [29]


def test_the_answer_under_way_when_a_live_run_is_stopped_is_recorded(clip: Path, tmp_path: Path) -> None:
    stream, path, session, stop = (
        _stream(clip),
        tmp_path / "out.jsonl",
        ScriptedSession(seconds=20.0),
        threading.Event(),
    )
    live = _live(session, Plan("what?", "change"), stream, stop)

    def stop_soon(patches: PatchSet) -> None:
        time.sleep(0.02)
        if patches.index == 3:
            stop.set()

    result = run(stream, [records_of(stream, path)], watcher=live, on_frame=stop_soon, stop=stop)
    assert result.reason == "interrupted" and result.frames < 10
    assert len(read_answers(path)) == len(session.asked_at) == 1


def test_attention_to_the_last_frame_before_a_change_of_size_is_no_error(tmp_path: Path) -> None:
    for index, size_wh in enumerate([(128, 96)] * 6 + [(96, 128)] * 6):
        Image.fromarray(moving_frames(1, size_wh)[0]).save(tmp_path / f"{index:02}.png")
    stream = _stream(tmp_path)
    watcher = Watcher(ScriptedSession(), Plan("what?", "every", 0.2), stream=stream, fps=30)
    result = run(stream, [], watcher=watcher)
    assert result.error is None and watcher.answered >= 1


def test_words_that_came_before_a_failure_are_kept(clip: Path) -> None:
    class BreaksOff(ScriptedSession):
        def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
            assert on_text is not None
            on_text("half an ")
            raise ServerFailed("http://127.0.0.1:1: broke off", remedy="ask again")

    answer = list(_watched(clip, Watcher(BreaksOff(), Plan("what?"))))[-1].answers[0]
    assert answer.text == "half an " and answer.finish == "failed"


def test_what_breaks_in_the_thread_ends_the_run(clip: Path) -> None:
    class Broken(ScriptedSession):
        def see(self, frame: Frame, patches: PatchSet) -> Feeding:
            raise RuntimeError("a fault of the program")

    stream = _stream(clip)
    result = run(stream, [], watcher=_live(Broken(), Plan("what?"), stream))
    assert isinstance(result.error, RuntimeError)


def test_a_password_in_the_server_s_address_reaches_no_record(clip: Path, tmp_path: Path) -> None:
    settings = LIGHT.with_values({"vlm.endpoint": "http://me:secret@127.0.0.1:1/v1?key=abc"})
    stream, path = arr_stream.open(clip, settings=settings, max_frames=1), tmp_path / "out.jsonl"
    run(stream, [records_of(stream, path)])
    assert "secret" not in path.read_text() and "abc" not in path.read_text()
    assert read_records(path)[0].config["vlm"]["endpoint"].startswith("http://***@127.0.0.1:1/")


def test_a_question_that_comes_while_a_frame_is_shown_is_not_cancelled(clip: Path) -> None:
    seeing = threading.Event()
    stopped: list[bool] = []

    class Slow(ScriptedSession):
        def see(self, frame: Frame, patches: PatchSet) -> Feeding:
            seeing.set()
            time.sleep(0.3)
            return super().see(frame, patches)

        def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
            assert stop is not None
            stopped.append(stop.is_set())
            return super().ask(question, on_text=on_text, stop=stop)

    with _stream(clip) as stream:
        live = _live(Slow(), Plan("", "never"), stream)
        for patches in _watched_live(live, stream, 0.06):
            if patches.index == 0 and seeing.wait(5):
                live.request("what?")
    assert stopped == [False]
