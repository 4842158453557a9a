"""A budget over time: what may be spent, where it is spent, and what becomes of it when nobody is shown the frame."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arr_stream
from arr_stream.config import Settings
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.selection.allocation import allocate_tokens
from arr_stream.selection.spending import Spending
from arr_stream.types import Frame
from arr_stream.vlm.watcher import Plan, Watcher
from tests.conftest import Run
from tests.media import write_video
from tests.scenes import background, moving_square, square_cells
from tests.test_watching import ScriptedSession

BASE = {"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "12", "selection.per_second": 60.0}
MOST = 12
FPS = 30
EVENT = range(60, 84)
"""Frames of `visited` on which the square crosses."""


def _pipeline(queries: Sequence[str] = (), **values: object) -> Pipeline:
    settings = Settings().with_values(BASE | {key.replace("__", "."): value for key, value in values.items()})
    return Pipeline(settings, InStepKeyframes(make_generator(settings)), [parse_text(text) for text in queries])


def _chosen(patches: PatchSet) -> tuple[object, ...]:
    return patches.rows.tolist(), patches.columns.tolist(), patches.level.tolist(), patches.score.tolist()


def _cells(patches: PatchSet) -> set[tuple[int, int]]:
    fine = patches.level == 0
    return set(zip(patches.rows[fine].tolist(), patches.columns[fine].tolist(), strict=True))


def _still(count: int) -> list[Frame]:
    """Nothing happens, but for the sensor's noise."""
    noise = np.random.default_rng(5)
    scenery = background((192, 256)).astype(np.int16)
    pictures = [scenery + noise.integers(-3, 4, scenery.shape[:2], np.int16)[..., None] for _ in range(count)]
    return [Frame(index, index / FPS, rgb.clip(0, 255).astype(np.uint8)) for index, rgb in enumerate(pictures)]


@pytest.fixture(scope="module")
def visited() -> list[Frame]:
    """A still scene that a square crosses, and that is still again."""
    frames = _still(120)
    crossing = moving_square(len(EVENT), start_xy=(0, 60), step_xy=(8, 0))
    for index, moved in zip(EVENT, crossing, strict=True):
        frames[index] = Frame(index, index / FPS, moved.rgb)
    return frames


@pytest.fixture(scope="module")
def spent(visited: list[Frame]) -> list[PatchSet]:
    pipeline = _pipeline()
    return [pipeline.step(frame) for frame in visited]


TIMES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(TIMES, st.floats(0.1, 1e5), st.integers(1, 40), st.data())
@settings(deadline=None)
def test_never_more_is_spent_than_came_in(
    times: list[float], per_second: float, most: int, data: st.DataObject
) -> None:
    spending, total, earned, before = Spending(), 0, float(most), times[0]
    for seconds in times:
        earned += per_second * max(0.0, seconds - before)
        before = seconds
        score = np.random.default_rng(data.draw(st.integers(0, 99))).random((5, 8), np.float32)
        difference = data.draw(st.sampled_from((None, np.zeros_like(score), np.full_like(score, 99))))
        if data.draw(st.booleans()):
            spending.restart()
        offer = spending.offer(seconds, per_second, most, difference)
        assert 0 <= offer.tokens <= most
        chosen = allocate_tokens(score, offer.wanted(score), offer.tokens, 0)
        spending.spend(offer, most, score, chosen)
        total += len(chosen)
        assert total <= earned * (1 + 1e-9) + 1e-6


def test_a_still_scene_costs_its_first_frame_and_little_more(spent: list[PatchSet]) -> None:
    assert len(spent[0]) == MOST
    assert sum(map(len, spent[1 : EVENT.start])) <= MOST / 2


def test_an_event_gets_more_than_the_mean_and_never_more_than_a_frame_may(
    visited: list[Frame], spent: list[PatchSet]
) -> None:
    tokens = np.array([len(patches) for patches in spent])
    assert tokens.max() <= MOST
    assert tokens[EVENT].mean() > 2 * tokens.mean()
    assert tokens.sum() <= MOST + 60 * visited[-1].pts_seconds
    assert all(patches.fresh.all() for patches in spent)


def test_no_later_frame_is_looked_at(visited: list[Frame], spent: list[PatchSet]) -> None:
    pipeline = _pipeline()
    for frame, expected in itertools.islice(zip(visited, spent, strict=True), EVENT.start + 8):
        assert _chosen(pipeline.step(frame)) == _chosen(expected)
    other = Frame(EVENT.start + 8, (EVENT.start + 8) / FPS, np.ascontiguousarray(visited[0].rgb[::-1] // 4))
    assert _chosen(pipeline.step(other)) != _chosen(spent[EVENT.start + 8])


@pytest.mark.parametrize("strategy", ["topk", "proportional", "canonical", "tiers"])
@pytest.mark.parametrize("cascade", ["on", "off"])
@pytest.mark.parametrize("novelty", ["skip", "off"])
def test_every_way_to_choose_keeps_within_what_is_there(
    visited: list[Frame], strategy: str, cascade: str, novelty: str
) -> None:
    pipeline = _pipeline(selection__strategy=strategy, selection__cascade=cascade, selection__novelty=novelty)
    tokens = [len(pipeline.step(frame)) for frame in visited[50:80]]
    assert tokens[0] == MOST and 0 in tokens
    assert sum(tokens) <= MOST + 60 * 29 / FPS
    assert sum(tokens[EVENT.start - 50 :]) > 0


def test_a_cut_shows_what_the_reserve_allows() -> None:
    pipeline = _pipeline()
    for frame in _still(30):
        pipeline.step(frame)
    cut = pipeline.step(Frame(30, 1.0, np.ascontiguousarray(background((192, 256), 9)[::-1] // 4)))
    assert cut.refresh_reason == "cut" and len(cut) == MOST
    again = pipeline.step(Frame(31, 1 + 1 / FPS, _still(1)[0].rgb))
    assert again.refresh_reason == "cut" and len(again) == MOST


def test_a_question_is_worth_a_frame_less_what_the_model_has() -> None:
    frames = [Frame(index, index / FPS, moving_square(1)[0].rgb) for index in range(40)]
    pipeline = _pipeline()
    first, *_ = [pipeline.step(frame) for frame in frames[:30]]
    pipeline.ask([parse_text("red")])
    answer = pipeline.step(frames[30])
    had, asked = _cells(first), _cells(answer)
    assert len(answer) == MOST and not had & asked
    assert square_cells(frames[0]) <= had | asked


def test_it_can_be_switched_while_a_stream_runs(visited: list[Frame]) -> None:
    pipeline = _pipeline(selection__per_second=0.0)
    before = pipeline.step(visited[0])
    pipeline.configure(Settings().with_values(BASE))
    tokens = [len(pipeline.step(frame)) for frame in visited[1:40]]
    assert len(before) == tokens[0] == MOST and sum(tokens[1:]) <= MOST / 2
    pipeline.configure(Settings().with_values(BASE | {"selection.per_second": 0.0}))
    assert len(pipeline.step(visited[40])) == MOST


def test_what_was_not_shown_costs_nothing_and_is_offered_again() -> None:
    frames = [Frame(index, 0.0, moving_square(1)[0].rgb) for index in range(3)]
    pipeline = _pipeline()
    first = pipeline.step(frames[0])
    pipeline.undo_last_selection()
    assert _cells(pipeline.step(frames[1])) == _cells(first)
    assert len(pipeline.step(frames[2])) == 0


def test_what_rests_is_sent_once_more_after_the_model_lost_it(visited: list[Frame]) -> None:
    later = []
    for rebuilt_on in (None, 0):
        pipeline = _pipeline()
        session = ScriptedSession(rebuilt_on=rebuilt_on)
        stream: Any = SimpleNamespace(pipeline=pipeline, settings=Settings())
        watcher = Watcher(session, Plan("what?"), stream=stream, fps=FPS)
        tokens = [watcher.watch(frame, pipeline.step(frame)).tokens for frame in visited[: EVENT[0]]]
        later.append(sum(tokens[1:]))
    assert later[1] >= later[0] + MOST / 2


def test_a_model_is_shown_all_that_is_paid_for_and_no_empty_frame(visited: list[Frame], tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", [frame.rgb for frame in visited], fps=FPS)
    session = ScriptedSession()
    # The square counts alike wherever it is on its way.
    settings = Settings().with_values(
        BASE | {"scoring.fovea": 0.0, "scoring.change": 0.0, "scoring.change_moving": 0.0}
    )
    with arr_stream.open(clip, budget=12, budget_per_second=20, settings=settings) as stream:
        watcher = Watcher(session, Plan("what?"), stream=stream, fps=5)
        told = [watcher.watch(stream.frame, patches, "last" if patches.index == 119 else None) for patches in stream]
    shown = [len(patches) for patches in session.shown]
    assert 0 not in shown and shown[0] == MOST
    assert max(shown[1:]) > 4, "what came in between two shown frames is there for the next"
    assert sum(shown) <= MOST + 20 * visited[-1].pts_seconds
    assert not any(patches.notices for patches in told)
    assert [answer.finish for patches in told for answer in patches.answers] == ["stop"]


def test_a_run_with_empty_frames_is_written_replayed_and_drawn(run: Run, visited: list[Frame], tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", [frame.rgb for frame in visited[50:74]], fps=FPS)
    records, again, video = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "a.mp4"
    options = ["--budget", "12", "--set", "selection.per_second=60", "--set", "keyframes.text=none"]
    report = tmp_path / "report"
    code, _, err = run("process", clip, "--patches", records, "-o", video, "--report", report, *options)
    assert code == 0, err
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    tokens = [len(line["cells"]) for line in lines if line["type"] == "frame"]
    assert lines[0]["config"]["selection"]["per_second"] == 60 and 0 in tokens and max(tokens[1:]) > 0
    with av.open(str(video)) as container:
        assert sum(1 for _ in container.decode(video=0)) == len(tokens)
    code, out, err = run("replay", records)
    assert code == 0 and "the same records" in out + err, err
    code, _, err = run("process", clip, "--patches", again, *options)
    assert code == 0 and again.read_bytes() == records.read_bytes()
