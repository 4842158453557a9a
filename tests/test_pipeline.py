"""The frame loop as a whole: what is carried, when it is renewed, and what is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NoReturn

import cv2
import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.base import KeyframeInput, KeyframePart, PartName, TextBefore, TextFinding
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    KeyframeFailure,
    KeyframeRequest,
    StandardGenerator,
    make_generator,
    make_part,
)
from arr_stream.keyframes.text.regions import finding
from arr_stream.motion.memory import _HALF_LIVES_SECONDS
from arr_stream.motion.refresh import TEXT_EVERY
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.gaze import GazeTrack
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, parse_text
from arr_stream.texture import CHANNELS, EMBEDDING
from arr_stream.types import FINER, SCORERS, ByteArray, Frame, TextRegion
from tests.scenes import moving_square, square_cells

BASE = {"keyframes.text": "none", "keyframes.clusters": "slic-skimage", "selection.budget": "12"}


def _pipeline(queries=(), gaze=None, provider=None, **values: object) -> Pipeline:
    settings = Settings().with_values({**BASE, **{key.replace("__", "."): value for key, value in values.items()}})
    provider = provider or InStepKeyframes(make_generator(settings))
    return Pipeline(settings, provider, queries, gaze=gaze)


def _cells(patches: PatchSet) -> set[tuple[int, int]]:
    fine = patches.level == 0
    return set(zip(patches.rows[fine].tolist(), patches.columns[fine].tolist(), strict=True))


LOOKED_AT = {(0, column) for column in range(2, 8)}
"""Cells at the rim, where nothing moves."""


class LateProvider:
    """Results arrive a number of frames after they were asked for; generation number `failing` fails."""

    def __init__(self, delay_frames: int, failing: int | None = None) -> None:
        self._generator = make_generator(Settings().with_values(BASE))
        self._delay = delay_frames
        self._failing = failing
        self._asked: list[tuple[int, KeyframeRequest]] = []
        self._polls = 0
        self.submitted: list[int] = []

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        if self._asked:
            return ()
        self.submitted.append(request.frame.index)
        self._asked.append((self._polls + self._delay, request))
        return request.parts

    def collect(self) -> list[KeyframePart | KeyframeFailure]:
        self._polls += 1
        if not self._asked or self._polls <= self._asked[0][0]:
            return []
        request = self._asked.pop(0)[1]
        if len(self.submitted) - 1 == self._failing:
            return [KeyframeFailure(request.frame.index, "model fell over")]
        return [make_part(request.frame.index, part, job) for part, job in self._generator.jobs(request).items()]

    def close(self) -> None: ...


def test_a_query_finds_its_colour_on_every_frame() -> None:
    pipeline = _pipeline([parse_text("red")])
    for frame in moving_square():
        patches = pipeline.step(frame)
        assert len(patches) == 12
        assert square_cells(frame) <= _cells(patches)
        assert patches.query_scores[0] > 0.6


def test_a_region_is_followed() -> None:
    frames = moving_square(20)
    pipeline = _pipeline([RegionQuery((40, 60, 48, 48))])
    for frame in frames:
        patches = pipeline.step(frame)
        wanted = square_cells(frame)
        assert len(wanted & _cells(patches)) >= 0.75 * len(wanted)
    assert patches.carried.any()


def test_a_region_is_followed_on_when_something_else_is_asked_beside_it() -> None:
    frames, region = moving_square(12), RegionQuery((40, 60, 48, 48))
    undisturbed, asked = _pipeline([region]), _pipeline([region])
    for frame in frames[:10]:
        undisturbed.step(frame), asked.step(frame)
    asked.ask([region, parse_text("blue"), parse_text("blue")])
    for frame in frames[10:]:
        first, second = undisturbed.step(frame), asked.step(frame)
        assert second.query_scores[0] == first.query_scores[0]
        assert second.query_scores[1] == second.query_scores[2]
    asked.ask([parse_text("blue")])
    asked.step(dataclasses.replace(frames[0], index=12, pts_seconds=12 / 30))
    # Asked for again it begins anew, at the place where it was drawn.
    asked.ask([region])
    assert asked.step(dataclasses.replace(frames[0], index=13, pts_seconds=13 / 30)).query_scores[0] > 0.5


def test_an_example_is_found() -> None:
    frames = moving_square(6)
    crop = frames[0].rgb[64:104, 44:84]
    pipeline = _pipeline([ExampleQuery("crop.png", np.ascontiguousarray(crop))])
    for frame in frames:
        wanted = square_cells(frame)
        assert len(wanted & _cells(pipeline.step(frame))) >= 0.75 * len(wanted)


def test_without_a_query_the_moving_object_wins_attention() -> None:
    pipeline = _pipeline()
    hits = []
    for frame in moving_square(10, colour=(90, 120, 100), step_xy=(5, 0)):
        patches = pipeline.step(frame)
        wanted = square_cells(frame, step_xy=(5, 0))
        hits.append(len(wanted & _cells(patches)) / len(wanted))
    assert np.mean(hits[2:]) > 0.6
    assert set(patches.query.tolist()) == {-1}


def test_what_moves_slowly_is_seen_to_have_moved_since_the_keyframe() -> None:
    """A pixel every third frame, which no two frames tell from noise."""
    pipeline = _pipeline()
    for index in range(25):
        (frame,) = moving_square(1, (384, 512), start_xy=(100 + index // 3, 120), side=96, colour=(90, 120, 100))
        patches = pipeline.step(dataclasses.replace(frame, index=index, pts_seconds=index / 30))
    motion = patches.texture.plane("motion")
    inside = motion[120 // 8 : 216 // 8, 108 // 8 : 204 // 8]
    assert inside.mean() > 0.3
    assert (motion.sum() - inside.sum()) / (motion.size - inside.size) < 0.05


def test_refreshes_come_at_the_interval_and_on_a_cut() -> None:
    pipeline = _pipeline(keyframes__interval=5, keyframes__min_confidence=0.0)
    first = moving_square(8)
    second = [dataclasses.replace(f, index=8 + i, rgb=255 - f.rgb) for i, f in enumerate(moving_square(4, seed=9))]
    reasons = [pipeline.step(frame).refresh_reason for frame in [*first, *second]]
    assert reasons == ["first", None, None, None, None, "interval", None, None, "cut", None, None, None]


def test_damaged_frames_are_trusted_less_and_renewed_once_sound_frames_come() -> None:
    sound = moving_square(30)
    damaged = [dataclasses.replace(frame, damaged=4 <= frame.index < 14) for frame in sound]
    trusted, doubted = _pipeline(), _pipeline()
    before = [trusted.step(frame) for frame in sound]
    after = [doubted.step(frame) for frame in damaged]
    assert [patches.confidence for patches in after[:4]] == [patches.confidence for patches in before[:4]]
    # The flow from the last damaged frame to the first sound one is doubtful too, but a keyframe replaces it.
    for index in range(4, 14):
        assert after[index].confidence < before[index].confidence
    assert after[13].confidence < 0.4 < 0.9 < after[20].confidence
    assert {p.index: p.refresh_reason for p in after if p.keyframe} == {0: "first", 14: "confidence"}
    assert {p.index for p in before if p.keyframe} == {0}


def test_a_stream_whose_frames_are_all_damaged_has_keyframes_at_the_interval() -> None:
    pipeline = _pipeline(keyframes__interval=15)
    frames = [dataclasses.replace(frame, damaged=frame.index > 0) for frame in moving_square(40)]
    assert [patches.index for patches in map(pipeline.step, frames) if patches.keyframe] == [0, 15, 30]


def test_a_new_query_is_answered_from_what_is_kept() -> None:
    pipeline = _pipeline()
    frames = moving_square(3)
    pipeline.step(frames[0])
    pipeline.ask([parse_text("red")])
    patches = pipeline.step(frames[1])
    assert patches.refresh_reason is None
    assert square_cells(frames[1]) <= _cells(patches)


def test_a_new_query_asks_for_a_refresh_where_what_it_needs_was_never_made() -> None:
    pipeline, provider = _looking_for_text()
    works, provider.generator.text_finder = provider.generator.text_finder, _NeverFinds()
    frames = moving_square(3)
    pipeline.step(frames[0])
    provider.generator.text_finder = works
    pipeline.ask([parse_text("text")])
    assert pipeline.step(frames[1]).refresh_reason == "query"
    pipeline.ask([parse_text('"exit"')])
    assert pipeline.step(frames[2]).refresh_reason is None


def test_a_new_frame_size_starts_afresh() -> None:
    pipeline = _pipeline()
    pipeline.step(moving_square(1)[0])
    bigger = dataclasses.replace(moving_square(1, (256, 320))[0], index=1)
    patches = pipeline.step(bigger)
    assert patches.refresh_reason == "size"
    assert (patches.grid.rows, patches.grid.columns) == (8, 10)


def test_regions_keep_their_place_in_frames_of_another_size() -> None:
    small, large = moving_square(1)[0], moving_square(1)[0]
    wide = np.repeat(np.repeat(large.rgb, 2, axis=0), 2, axis=1)
    larger = dataclasses.replace(large, rgb=wide, index=1, pts_seconds=0.1)
    smaller = dataclasses.replace(small, index=2, pts_seconds=0.2)
    pipeline = _pipeline([RegionQuery((80, 120, 96, 96))])
    pipeline.step(dataclasses.replace(larger, index=0, pts_seconds=0.0))
    for frame in (smaller, dataclasses.replace(larger, index=3, pts_seconds=0.3)):
        patches = pipeline.step(frame)
        assert patches.refresh_reason == "size" and patches.query_scores[0] > 0.5


def test_late_results_are_carried_to_the_present() -> None:
    frames = moving_square(10)
    late, in_step = _pipeline(provider=LateProvider(4)), _pipeline()
    for frame in frames:
        patches, reference = late.step(frame), in_step.step(frame)
        if frame.index < 4:
            assert patches.keyframe_index is None
            assert patches.confidence == 0
    assert patches.keyframe_index == 0
    assert patches.keyframe_age == 9
    same = patches.texture.plane("cluster") == reference.texture.plane("cluster")
    assert same.mean() > 0.95


def test_a_failed_generation_is_reported_and_tried_again_at_the_next_keyframe() -> None:
    provider = LateProvider(1, failing=0)
    pipeline = _pipeline(provider=provider, keyframes__interval=6)
    steps = [pipeline.step(frame) for frame in moving_square(10)]
    notices = [notice for patches in steps for notice in patches.notices]
    assert len(notices) == 1
    assert "model fell over" in notices[0]
    assert provider.submitted == [0, 6]
    assert [p.refresh_reason for p in steps if p.keyframe] == ["first", "retry"]
    assert steps[-1].keyframe_index == 6


def test_all_channels_are_alive() -> None:
    gaze = GazeTrack(np.array([0.0, 0.1], np.float64), np.array([[0.5, 0.5], [0.3, 0.6]], np.float32))
    pipeline = _pipeline([parse_text("red")], gaze=gaze)
    for frame in moving_square(6):
        patches = pipeline.step(frame)
        pipeline.attend(np.full((6, 8), 0.5, np.float32))
    patches = pipeline.step(moving_square(7)[6])
    dense = patches.texture.dense()
    assert dense.shape == (40, 192, 256)
    for channel in CHANNELS:
        plane = dense[channel.index]
        assert bool(plane.isfinite().all()), channel.name
        assert float(plane.min()) >= channel.low - 1e-5, channel.name
        assert channel.high is None or float(plane.max()) <= channel.high + 1e-5, channel.name
        # Nothing is written in this scene, and it lacks most of the hues that the embedding tells apart.
        if channel.name != "text" and not channel.name.startswith("embedding"):
            assert float(plane.abs().max()) > 0, channel.name
    assert (dense[EMBEDDING].abs().amax(dim=(1, 2)) > 0).sum() >= 8


@pytest.mark.parametrize("asked", [None, "where is the star", "red"])
def test_what_a_model_looked_at_counts_whatever_was_asked(asked: str | None) -> None:
    frames = moving_square(2)
    pipeline = _pipeline([] if asked is None else [parse_text(asked)])
    assert not _cells(pipeline.step(frames[0])) & LOOKED_AT
    attention = np.zeros((6, 8), np.float32)
    attention[tuple(np.transpose(sorted(LOOKED_AT)))] = 1
    pipeline.attend(attention)
    assert len(_cells(pipeline.step(frames[1])) & LOOKED_AT) >= 5


def test_attention_that_comes_late_is_carried_to_the_present() -> None:
    frames = moving_square(8, step_xy=(8, 0))
    late, at_once = _pipeline([parse_text("red")]), _pipeline([parse_text("red")])
    for pipeline in (late, at_once):
        pipeline.step(frames[0])
        attention = (pipeline.step(frames[1]).relevance > 0.3).astype(np.float32)
    late.follow()
    at_once.attend(attention)
    for frame in frames[2:7]:
        late.step(frame)
        at_once.step(frame)
    assert late.attend(attention, frames[1].index)
    planes = [pipeline.step(frames[7]).texture.plane("attention") for pipeline in (late, at_once)]
    columns = [float((plane.sum(axis=0) * np.arange(plane.shape[1])).sum() / plane.sum()) for plane in planes]
    start = float((attention.sum(axis=0) * (np.arange(8) * 4 + 1.5)).sum() / attention.sum())
    # It went on with the square, as far as attention that was given at once; the cells around it stayed.
    assert columns[0] > start + 0.5
    assert columns[0] == pytest.approx(columns[1], abs=0.7)


def test_late_attention_to_a_scene_that_is_gone_changes_nothing() -> None:
    frames = moving_square(3)
    pipeline = _pipeline()
    pipeline.step(frames[0])
    pipeline.follow()
    pipeline.step(frames[1])
    assert not pipeline.attend(np.ones((6, 8), np.float32), 17)
    assert not pipeline.attend(np.ones((2, 2), np.float32), frames[0].index)
    assert pipeline.step(frames[2]).texture.plane("attention").max() == 0


def test_a_new_query_forgets_where_the_model_looked_for_the_old_one() -> None:
    frames = moving_square(3)
    pipeline = _pipeline([parse_text("red")])
    pipeline.step(frames[0])
    pipeline.attend(np.ones((6, 8), np.float32))
    pipeline.ask([parse_text("blue")])
    texture = pipeline.step(frames[1]).texture
    assert texture.plane("attention").max() == 0 and texture.plane("attention_history").max() > 0.9


def _two_squares(count: int, fps: float = 10) -> list[Frame]:
    """A red square that goes right, and a blue one at the lower right that stands still."""
    frames = []
    for frame in moving_square(count, step_xy=(2, 0)):
        rgb = frame.rgb.copy()
        rgb[128:176, 192:240] = (30, 30, 220)
        frames.append(Frame(frame.index, frame.index / fps, rgb))
    return frames


RED_THING = (slice(2, 4), slice(1, 4))
BLUE_THING = (slice(4, 6), slice(6, 8))


@pytest.mark.parametrize("asked", ["blue", None])
def test_what_was_asked_before_keeps_a_claim_that_fades(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_HALF_LIVES_SECONDS, "attention_history", 0.5)
    with_history, without = (
        _pipeline([parse_text("red")], scoring__history=weight, scoring__stay=0.0) for weight in (0.2, 0.0)
    )
    claims, led, blue = [], [], []
    for frame in _two_squares(30):
        if frame.index == 5:
            for pipeline in (with_history, without):
                pipeline.ask([] if asked is None else [parse_text(asked)])
        kept, plain = with_history.step(frame), without.step(frame)
        claims.append(kept.texture.cells([CHANNELS[38].index])[0])
        led.append(_lead(kept) / _lead(plain))
        blue.append([len(_cells(each) & _within(BLUE_THING)) for each in (kept, plain)])
    assert not any(claim.any() for claim in claims[:5]) and led[:5] == [1] * 5, "the question is the same"
    assert _mean(claims[5], RED_THING) > 4 * _mean(claims[5], BLUE_THING)
    assert led[5] > led[15] > led[25] > 1
    # Two seconds are four half-lives.
    assert claims[5].max() > 0.5 and 0 < claims[25].max() < claims[5].max() / 8
    if asked:
        assert all(abs(kept - plain) <= 1 and plain >= 2 for kept, plain in blue[6:])


def _lead(patches: PatchSet) -> float:
    """Score of the red thing over that of the frame."""
    return _mean(patches.relevance, RED_THING) / float(patches.relevance.mean())


def _mean(cells: np.ndarray, place: tuple[slice, slice]) -> float:
    return float(cells[place].mean())


def _within(place: tuple[slice, slice]) -> set[tuple[int, int]]:
    rows, columns = place
    return {(row, column) for row in range(rows.start, rows.stop) for column in range(columns.start, columns.stop)}


def test_only_what_is_asked_no_longer_joins_the_history() -> None:
    frames = _two_squares(2)
    pipeline = _pipeline([parse_text("red"), parse_text("blue")])
    pipeline.step(frames[0])
    pipeline.ask([parse_text("blue")])
    claim = pipeline.step(frames[1]).texture.cells([CHANNELS[38].index])[0]
    assert _mean(claim, RED_THING) > 0.2 and _mean(claim, BLUE_THING) == 0


def test_a_cut_ends_what_was_asked_before() -> None:
    frames = _two_squares(2)
    pipeline = _pipeline([parse_text("red")])
    pipeline.step(frames[0])
    pipeline.ask([])
    patches = pipeline.step(dataclasses.replace(frames[1], rgb=255 - frames[1].rgb))
    assert patches.refresh_reason == "cut" and not patches.texture.plane("attention_history").any()


@pytest.mark.parametrize("attention", [np.zeros((2, 2), np.float32), np.full((6, 8), np.nan), np.full((6, 8), 2.0)])
def test_impossible_attention_is_refused(attention: np.ndarray) -> None:
    pipeline = _pipeline()
    pipeline.step(moving_square(1)[0])
    with pytest.raises(ValueError, match="attention"):
        pipeline.attend(attention)


def test_gaze_fades_and_moves_with_the_picture() -> None:
    gaze = GazeTrack(np.array([0.0], np.float64), np.array([[0.25, 0.44]], np.float32))
    pipeline = _pipeline(gaze=gaze)
    peaks = [pipeline.step(frame).texture.plane("gaze") for frame in moving_square(10)]
    assert peaks[0].max() > 0.9
    assert 0.1 < peaks[-1].max() < peaks[0].max()
    # The gaze fell on the square, which moves 36 pixels to the right.
    assert int(peaks[-1].max(axis=0).argmax()) > int(peaks[0].max(axis=0).argmax())


def test_a_first_frame_knows_where_someone_looks_by_now_and_not_all_that_was_seen_before() -> None:
    gaze = GazeTrack(np.array([0.0, 2.9], np.float64), np.array([[0.1, 0.1], [0.9, 0.9]], np.float32))
    pipeline = _pipeline(gaze=gaze)
    frame = moving_square(1)[0]
    plane = pipeline.step(dataclasses.replace(frame, pts_seconds=3.0)).texture.plane("gaze")
    rows, columns = (side // 2 for side in plane.shape)
    assert plane[rows:, columns:].max() > 0.5 and plane[:rows, :columns].max() < 0.1
    larger = dataclasses.replace(moving_square(1, (256, 320))[0], index=1, pts_seconds=3.1)
    assert pipeline.step(larger).texture.plane("gaze").max() < 0.1


@pytest.mark.parametrize(("asked", "least"), [(None, 0.3), ("red", 0.15)])
def test_where_someone_looks_gets_a_share_of_the_budget(asked: str | None, least: float) -> None:
    gaze = GazeTrack(np.array([0.0], np.float64), np.array([[0.8, 0.75]], np.float32))
    queries = [] if asked is None else [parse_text(asked)]
    looking, other = (_pipeline(queries, given, selection__budget=30) for given in (gaze, None))
    near = []
    for index, frame in enumerate(moving_square(20, (256, 512))):
        at = dataclasses.replace(frame, pts_seconds=index / 8)
        both = looking.step(at), other.step(at)
        assert len(both[0]) == 30
        near.append([sum(np.hypot(row - 5.5, column - 12.3) < 3 for row, column in _cells(each)) for each in both])
    assert max(least * 30, near[0][1]) <= near[0][0] <= 11
    # They looked away more than two seconds ago.
    assert near[-1][0] < near[0][0]


@pytest.mark.parametrize("strategy", ["topk", "proportional", "canonical", "tiers"])
@pytest.mark.parametrize("cascade", ["on", "off"])
def test_every_strategy_keeps_the_budget_and_gives_reasons(strategy: str, cascade: str) -> None:
    pipeline = _pipeline([parse_text("red")], selection__strategy=strategy, selection__cascade=cascade)
    for frame in moving_square(4):
        patches = pipeline.step(frame)
        assert len(patches) == 12
        assert all(0 <= scorer < len(SCORERS) for scorer in patches.scorer)
        assert (patches.score >= 0).all()
        assert (patches.score <= 1).all()
    assert patches.cells_scored <= patches.grid.cells
    assert cascade == "on" or patches.cells_scored == patches.grid.cells
    asked = SCORERS.index("participation")
    assert asked in patches.scorer.tolist()


def test_a_small_faint_answer_gets_cells_beside_a_large_sure_one_and_says_why() -> None:
    rgb = np.full((256, 512, 3), 128, np.uint8)
    rgb[32:224, 32:256], rgb[192:224, 448:480] = (220, 20, 20), (95, 95, 175)
    patches = _pipeline([parse_text("red"), parse_text("blue")], selection__budget="12").step(Frame(0, 0.0, rgb))
    blue = (patches.rows == 6) & (patches.columns == 14)
    assert patches.query[blue].tolist() == [1]
    assert patches.scorer[blue].tolist() == [SCORERS.index("participation")]


def test_novelty_marks_or_skips_what_the_model_has() -> None:
    still = moving_square(1)[0]
    frames = [dataclasses.replace(still, index=i, pts_seconds=i / 30) for i in range(3)]
    marking = _pipeline()
    skipping = _pipeline(selection__novelty="skip")
    marked = [marking.step(frame) for frame in frames]
    assert marked[0].fresh.all()
    again = [cell in _cells(marked[0]) for cell in zip(marked[1].rows, marked[1].columns, strict=True)]
    assert sum(again) > 6
    assert not marked[1].fresh[again].any()
    assert marked[1].fresh[~np.array(again)].all()
    skipped = [skipping.step(frame) for frame in frames]
    assert not _cells(skipped[0]) & _cells(skipped[1])


@pytest.mark.parametrize("hw", [(1, 1), (8, 8), (3, 500), (33, 65)])
def test_tiny_and_odd_frames_work(hw: tuple[int, int]) -> None:
    pipeline = _pipeline([parse_text("red left")], selection__budget="auto")
    rng = np.random.default_rng(0)
    for index in range(4):
        patches = pipeline.step(Frame(index, index / 30, rng.integers(0, 255, (*hw, 3), np.uint8)))
        assert 1 <= len(patches) <= patches.grid.cells
        assert patches.texture.dense().isfinite().all()


class _Asked(InStepKeyframes):
    """Remembers what was asked for."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(make_generator(settings))
        self.requests: list[KeyframeRequest] = []

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        self.requests.append(request)
        return super().submit(request)


class _NeverFinds:
    name = "never"

    def find(self, picture: KeyframeInput) -> NoReturn:
        raise RuntimeError("no such model")


def _looking_for_text() -> tuple[Pipeline, _Asked]:
    settings = Settings().with_values(
        {**BASE, "keyframes.interval": 4, "keyframes.text_interval": 12, "keyframes.text": "auto"}
    )
    provider = _Asked(settings)
    return Pipeline(settings, provider), provider


def test_text_is_looked_for_where_the_picture_is_new() -> None:
    pipeline, provider = _looking_for_text()
    frames = moving_square(26)
    for frame in frames[:25]:
        pipeline.step(frame)
    before = {request.frame.index: request.text_before for request in provider.requests}
    whole = [index for index, known in before.items() if known is None or known.new.all()]
    assert list(before) == [0, 4, 8, 12, 16, 20, 24] and whole == [0, 12, 24]
    assert all(known.new.mean() < 0.3 for index, known in before.items() if index not in whole)
    pipeline.ask([parse_text('"exit"')])
    for frame in moving_square(29)[25:]:
        pipeline.step(frame)
    assert provider.requests[-1].frame.index == 28 and provider.requests[-1].text_before.new.all()


def test_known_text_moves_with_the_picture() -> None:
    random = np.random.default_rng(0)
    ground = cv2.resize(random.integers(60, 120, (60, 80, 3), np.uint8), (960, 480), interpolation=cv2.INTER_CUBIC)
    cv2.putText(ground, "BAKERY", (400, 240), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (250, 250, 245), 3, cv2.LINE_AA)
    pipeline, provider = _looking_for_text()
    for index in range(5):
        left = 20 * index
        pipeline.step(Frame(index, index / 30, np.ascontiguousarray(ground[:, left : left + 640])))
    (found,) = pipeline._state.cache.keyframes.text.regions
    (expected,) = provider.generator.text_finder.find(
        KeyframeInput(provider.requests[0].frame, provider.requests[0].grid)
    ).regions
    (moved,) = provider.requests[1].text_before.known
    assert np.array(moved.polygon_xy) == pytest.approx(np.array(expected.polygon_xy) - (80 / 640, 0), abs=0.01)
    assert found == moved
    # What came in at the right is new.
    assert provider.requests[1].text_before.new[:, -8:].mean() > 0.9


def _street(covered: tuple[int, int] | None = None) -> ByteArray:
    """A wall of 640x480 with two words; columns of both may be covered."""
    random = np.random.default_rng(0)
    wall = cv2.resize(random.integers(60, 120, (60, 80, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
    for text, x in (("BAKERY", 60), ("GARAGE", 380)):
        cv2.putText(wall, text, (x, 240), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (250, 250, 245), 3, cv2.LINE_AA)
    if covered is not None:
        wall[170:300, covered[0] : covered[1]] = (30, 90, 40)
    return wall


def _looked_for(
    rgbs: Iterable[ByteArray], queries: Sequence[Query] = (), **values: object
) -> tuple[Pipeline, dict[int, TextBefore | None]]:
    """The pipeline after these pictures, and what was known when text was looked for."""
    settings = Settings().with_values({**BASE, "keyframes.interval": 60, "keyframes.text": "auto", **values})
    provider = _Asked(settings)
    pipeline = Pipeline(settings, provider, queries)
    for index, rgb in enumerate(rgbs):
        pipeline.step(Frame(index, index / 30, rgb))
    return pipeline, {request.frame.index: request.text_before for request in provider.requests}


def _words(pipeline: Pipeline) -> set[str | None]:
    return {region.text for region in pipeline._state.cache.keyframes.text.regions}


def test_a_word_that_something_covers_is_looked_for_and_forgotten_and_found_again() -> None:
    shown, hidden = _street(), _street(covered=(30, 250))
    pipeline, looks = _looked_for([shown] * (TEXT_EVERY + 1))
    assert list(looks) == [0] and _words(pipeline) == {"BAKERY", "GARAGE"}
    pipeline, looks = _looked_for([*[shown] * 5, *[hidden] * 50])
    assert len(looks) >= 4 and _words(pipeline) == {"GARAGE"}
    pipeline, looks = _looked_for([*[shown] * 5, *[hidden] * 15, *[shown] * TEXT_EVERY])
    sure = {region.text: region.confidence for region in pipeline._state.cache.keyframes.text.regions}
    assert sure["BAKERY"] > 0.7 and any(before.doubtful for before in looks.values() if before)


def test_text_that_is_uncovered_is_found_between_keyframes_where_there_is_text() -> None:
    def uncovered(*words: str) -> list[ByteArray]:
        """A board over the right word goes away after five frames."""
        without = () if "BAKERY" in words else (30, 250)
        rgbs = [_street(covered=(350, 600))] * 5 + [_street()] * TEXT_EVERY
        for rgb in rgbs:
            rgb[170:300, slice(*without) if without else slice(0)] = (60, 40, 30)
        return rgbs

    pipeline, _ = _looked_for(uncovered("BAKERY"))
    assert _words(pipeline) == {"BAKERY", "GARAGE"}
    for name in ("rapidocr", "none"):
        assert list(_looked_for(uncovered("BAKERY"), **{"keyframes.text": name})[1]) == [0]
    # Where nothing is written there is none to be expected, unless somebody asks.
    assert list(_looked_for(uncovered())[1]) == [0]
    pipeline, looks = _looked_for(uncovered(), [parse_text("text")])
    assert list(looks) == [0, TEXT_EVERY] and _words(pipeline) == {"GARAGE"}


class _SmallLine:
    """Finds one line, 9 px high in the texture of 1920x1080, where the first frame has it."""

    name = "small line"

    def find(self, picture: KeyframeInput) -> TextFinding:
        corners = ((0.50, 0.50), (0.57, 0.50), (0.57, 0.512), (0.50, 0.512))
        return finding(picture, [TextRegion(corners, 1.0, "small line")])


def _panned(count: int, size_wh: tuple[int, int] = (1920, 1080)) -> list[Frame]:
    """The camera goes right by a cell a frame."""
    width, height = size_wh
    step = round(width / 42)
    noise = np.random.default_rng(0).integers(0, 256, (54, 120, 3), np.uint8)
    wall = cv2.resize(noise, (width + count * step, height), interpolation=cv2.INTER_CUBIC)
    return [Frame(i, i / 30, np.ascontiguousarray(wall[:, i * step : i * step + width])) for i in range(count)]


def _with_small_line(**values: object) -> Pipeline:
    made = Settings().with_values({"selection.budget": "60", "keyframes.delay": 0, **values})
    provider = InStepKeyframes(StandardGenerator(GridClusterer(12), make_embedder(made), _SmallLine()))
    return Pipeline(made, provider, [parse_text("text")])


def _finer(patches: PatchSet) -> set[tuple[int, int]]:
    there = patches.level == FINER
    return set(zip(patches.rows[there].tolist(), patches.columns[there].tolist(), strict=True))


def test_small_text_of_a_large_source_is_given_finer_and_carried() -> None:
    pipeline = _with_small_line()
    for index, frame in enumerate(_panned(4)):
        patches = pipeline.step(frame)
        assert patches.grid.has_finer and patches.tokens == 60 and len(patches) == 60 - 3 * len(_finer(patches))
        assert {(12, 21 - index), (12, 22 - index)} <= _finer(patches)
        assert {row for row, _ in _finer(patches)} == {12}
    # Its quarters are of the same place, and the record's rectangles are.
    assert (patches.span[patches.level == FINER] == 1).all()


def test_nothing_is_finer_where_the_source_has_no_more_pixels_or_it_is_switched_off() -> None:
    frames = _panned(2)
    for changes in ({"selection.fine_share": 0.0}, {"grid.max_pixels": 4_000_000}):
        pipeline = _with_small_line(**changes)
        assert not any(_finer(pipeline.step(frame)) for frame in frames)
    small = _panned(2, (1280, 720))
    for share in (0.0, 1.0):
        pipeline = _with_small_line(**{"selection.fine_share": share})
        chosen = [pipeline.step(frame) for frame in small]
        assert all(len(patches) == 60 == patches.tokens for patches in chosen)


@pytest.mark.parametrize("strategy", ["proportional", "canonical", "tiers"])
def test_strategies_with_quotas_keep_one_level(strategy: str) -> None:
    pipeline = _with_small_line(**{"selection.strategy": strategy})
    assert not _finer(pipeline.step(_panned(1)[0]))
