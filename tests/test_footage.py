"""Footage and its truths: cameras that do what they are said to, masks that lie where things are."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.truth import load_truth
from benchmarks.comparison.truth import known_clip
from benchmarks.scenes.camera import CAMERAS, Camera, camera_homography, camera_kind, camera_path, homography_flow
from benchmarks.scenes.cameras import camera_footage, track_footage
from benchmarks.scenes.footage import MOVING_SHARE, davis_footage, moved_truths, moving_things, sample_footage, written
from benchmarks.scenes.photographs import generated_footage, text_footage
from tests.test_evaluate_davis import squares, write_sequence

SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"
SMALL_WH = (320, 192)
ALL_PIXELS = 1 << 62


def _shift(x: float, y: float) -> np.ndarray:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)


@given(st.sampled_from(CAMERAS), st.integers(0, 2**32 - 1), st.integers(24, 90))
def test_the_kind_of_a_virtual_camera_is_told(camera: Camera, seed: int, frames: int) -> None:
    path = camera_path(camera, frames, (200.0, 120.0), np.random.default_rng(seed))
    steps = [_shift(x, y) for x, y in np.diff(path, axis=0)]
    assert camera_kind(steps, (640, 352)) == camera


@given(st.sampled_from(CAMERAS), st.integers(0, 2**32 - 1), st.integers(2, 200), st.floats(0, 300), st.floats(0, 300))
def test_a_camera_stays_within_its_room(camera: Camera, seed: int, frames: int, width: float, height: float) -> None:
    path = camera_path(camera, frames, (width, height), np.random.default_rng(seed))
    assert path.shape == (frames, 2)
    assert (path >= -1e-6).all() and (path <= np.array([width, height]) + 1e-6).all()


def test_a_steady_zoom_counts_as_panning_and_no_frames_as_still() -> None:
    zoom = _shift(160, 96) @ np.diag([1.01, 1.01, 1.0]) @ _shift(-160, -96)
    assert camera_kind([zoom] * 40, (320, 192)) == "panning"
    assert camera_kind([], (320, 192)) == "still"
    assert camera_kind([np.eye(3)] * 10, (320, 192)) == "still"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_camera_is_found_in_spite_of_a_thing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    turn = np.eye(3) + rng.uniform(-0.01, 0.01, (3, 3)) * np.array([[1, 1, 500], [1, 1, 500], [1e-3, 1e-3, 0]])
    flow = homography_flow(turn, (160, 96))
    thing = np.zeros((96, 160), bool)
    thing[20:70, 40:120] = True
    flow[thing] += rng.uniform(-9, 9, 2).astype(np.float32)
    flow[80:90, 10:30] = np.nan
    found = homography_flow(camera_homography(flow, thing), (160, 96))
    assert np.abs(found - homography_flow(turn, (160, 96))).max() < 0.05


def test_things_move_where_their_way_is_not_the_cameras() -> None:
    still, moves, absent = (np.zeros((96, 160), bool) for _ in range(3))
    still[10:30, 10:40] = moves[50:80, 90:130] = True
    flow = np.full((96, 160, 2), 3.0, np.float32)
    least_px = MOVING_SHARE * np.hypot(160, 96)
    flow[moves] += [least_px + 0.05, 0]
    camera = _shift(3, 3)
    assert np.array_equal(moving_things((still, moves, absent), flow, camera), moves)
    flow[moves] -= [0.1, 0]
    slow = moving_things((still, moves, absent), flow, camera)
    assert slow is not None and not slow.any()
    assert moving_things((), flow, camera) is None


@pytest.mark.parametrize("camera", CAMERAS)
def test_measured_cameras_and_motion_agree_with_what_was_generated(camera: Camera) -> None:
    clips = generated_footage(26, sceneries=("coffee",), size_wh=SMALL_WH)
    (clip,) = (clip for clip in clips if clip.camera == camera)
    given_moving = [truth.moving for truth in clip.truths()]
    unknown = replace(
        clip, camera=None, truths=lambda: (replace(truth, moving=None, flow_px=None) for truth in clip.truths())
    )
    assert known_clip(unknown, ALL_PIXELS).camera == camera
    measured = [moved.moving for moved in moved_truths(unknown)]
    assert measured[0] is None
    right = [np.array_equal(a, b) for a, b in zip(measured[1:], given_moving[1:], strict=True)]
    assert np.mean(right) > 0.9


@pytest.mark.parametrize("number", [0, 1])
def test_a_generated_scene_is_the_same_under_every_camera(number: int) -> None:
    clips = generated_footage(8, sceneries=("coffee", "gravel"), size_wh=SMALL_WH)
    still, panning, shaking = clips[3 * number : 3 * number + 3]
    assert [clip.camera for clip in (still, panning, shaking)] == list(CAMERAS)
    assert still.words == panning.words == shaking.words
    first, again = (next(iter(still.frames())).rgb for _ in range(2))
    assert np.array_equal(first, again)
    pictures = [frame.rgb.astype(int) for frame in still.frames()]
    masks = [truth.object for truth in still.truths()]
    assert len(pictures) == len(masks) == 8
    # Under a still camera nothing but grain changes outside of the moving thing.
    before, now = pictures[0], pictures[-1]
    changed = np.abs(now - before).max(axis=2) > 40
    reach = cv2.dilate((masks[0] | masks[-1]).astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    assert changed.any() and not changed[~reach].any()
    areas = [[truth.object.sum() for truth in clip.truths()] for clip in (still, panning, shaking)]
    assert np.ptp(areas, axis=0).max() < 0.05 * np.max(areas)


def _words_in_white(folder: Path, box_xyxy: tuple[int, int, int, int], size_wh: tuple[int, int]) -> None:
    """A dark photograph with one legible word in white, another in grey that nobody can read, as mmocr lays it out."""
    x0, y0, x1, y1 = box_xyxy
    picture = np.full((size_wh[1], size_wh[0], 3), 30, np.uint8)
    picture[y0:y1, x0:x1] = 250
    (folder / "imgs").mkdir(parents=True)
    cv2.imwrite(str(folder / "imgs" / "a.png"), picture)
    words = [
        {"polygon": [x0, y0, x1, y0, x1, y1, x0, y1], "ignore": False},
        {"polygon": [0, 0, 9, 0, 9, 9, 0, 9], "ignore": True},
    ]
    entry = {"img_path": "imgs/a.png", "width": size_wh[0], "height": size_wh[1], "instances": words}
    (folder / "textdet_test.json").write_text(json.dumps({"data_list": [entry]}))


@pytest.mark.parametrize("box_xyxy", [(150, 100, 250, 140), (4, 200, 60, 230), (330, 4, 396, 40)])
def test_text_moves_with_the_photograph(tmp_path: Path, box_xyxy: tuple[int, int, int, int]) -> None:
    _words_in_white(tmp_path, box_xyxy, (400, 240))
    for clip in text_footage(tmp_path, 10, size_wh=SMALL_WH):
        for frame, truth in zip(clip.frames(), clip.truths(), strict=True):
            assert truth.text is not None and truth.text.any() and not truth.things
            inside = cv2.erode(truth.text.astype(np.uint8), np.ones((5, 5), np.uint8), borderValue=1) > 0
            outside = cv2.dilate(truth.text.astype(np.uint8), np.ones((5, 5), np.uint8)) == 0
            assert frame.rgb[inside].min() > 200 and frame.rgb[outside].max() < 80


def test_photographs_without_legible_words_are_refused(tmp_path: Path) -> None:
    _words_in_white(tmp_path, (10, 10, 50, 50), (400, 240))
    truth = tmp_path / "textdet_test.json"
    truth.write_text(truth.read_text().replace("false", "true"))
    with pytest.raises(EvaluationDataError, match="no pictures with legible words"):
        text_footage(tmp_path)


def test_sample_clips_with_what_moves_and_what_is_written() -> None:
    clips = {clip.name: clip for clip in sample_footage(SAMPLES, 6)}
    assert {"street", "pan_zoom", "signs", "cut"} <= set(clips)
    assert clips["street"].words == "green bus"
    *_, last = moved_truths(clips["street"])
    # All four vehicles drive, and the camera drifts.
    assert np.array_equal(last.moving, np.logical_or.reduce(last.truth.things))
    signs = list(clips["signs"].truths())
    assert len(signs) == 6 and all(truth.text is not None and truth.text.any() for truth in signs)
    assert not (signs[-1].text & ~np.logical_or.reduce(signs[-1].things)).any()
    with pytest.raises(EvaluationDataError, match="no clips with truth files"):
        sample_footage(SAMPLES / "nothing")


def test_the_camera_of_a_sample_clip_is_told_from_its_true_motion() -> None:
    table = load_truth(SAMPLES / "pan_zoom.truth.npz").affines[:, 0]
    square = np.concatenate([table, np.broadcast_to([[[0.0, 0.0, 1.0]]], (len(table), 1, 3))], axis=1)
    steps = [before @ np.linalg.inv(now) for before, now in pairwise(square)]
    assert camera_kind(steps, (640, 360)) == "panning"


def test_words_count_only_where_their_thing_is_seen() -> None:
    seen = np.zeros((20, 30), bool)
    seen[:, :10] = True
    word = np.array([[5, 5], [20, 5], [20, 10], [5, 10]], float)
    text = written((20, 30), [word, np.full((4, 2), np.nan)], (seen,))
    assert text[5:11, 5:10].all() and text.sum() == 6 * 5


def test_sequences_with_masks(tmp_path: Path) -> None:
    write_sequence(tmp_path, "square", squares(6, step_px=4))
    (clip,) = davis_footage(tmp_path, 4)
    assert clip.camera is None and len(list(clip.frames())) == len(list(clip.truths())) == 4
    known = known_clip(clip, ALL_PIXELS)
    assert known.region_xywh == (8.0, 20.0, 24.0, 24.0)
    assert known.counts["object"].sum(axis=(1, 2)).tolist() == [24 * 24] * 4


def _pictures(folder: Path, count: int) -> None:
    (folder / "frames").mkdir(parents=True)
    for index in range(count):
        cv2.imwrite(str(folder / "frames" / f"{index + 1:06d}.jpg"), np.full((96, 160, 3), 90 + index, np.uint8))


def test_real_sequences_with_masks_on_some_frames(tmp_path: Path) -> None:
    _pictures(tmp_path / "a", 40)
    (tmp_path / "a" / "masks").mkdir()
    mask = np.zeros((96, 160), np.uint8)
    mask[10:30, 20:60], mask[50:, :] = 255, 128
    for name in ("000036", "000038"):
        cv2.imwrite(str(tmp_path / "a" / "masks" / f"{name}.png"), mask)
    (clip,) = camera_footage(tmp_path, "fixed")
    # Nothing is known after the last mask, and what is neither object nor ground does not count.
    assert len(list(clip.frames())) == 38 and clip.objects == "several"
    known = known_clip(clip, ALL_PIXELS)
    assert known.region_xywh is None and known.camera == "still"
    assert known.counted("object").sum(axis=(1, 2)).tolist() == [0] * 5 + [800, 0, 800]


def test_tracks_become_clips_that_begin_with_their_object(tmp_path: Path) -> None:
    _pictures(tmp_path / "street", 110)
    walker = [f"{frame},{frame},20,10,30,7" for frame in range(21, 101)]
    passer = [f"{frame},100,40,10,30,8" for frame in range(1, 31)]
    (tmp_path / "street" / "boxes.csv").write_text("\n".join(["frame,x,y,w,h,track", *walker, *passer]))
    (whole,), (track,) = camera_footage(tmp_path, "fixed"), track_footage(tmp_path)
    assert [truth.object.sum() for truth in whole.truths()][:31:30] == [300, 300]
    assert track.name == "street 7" and len(list(track.frames())) == len(list(track.truths())) == 80
    assert known_clip(track, ALL_PIXELS).region_xywh == (21, 20, 10, 30)


def test_boxes_of_one_object_can_be_asked_for(tmp_path: Path) -> None:
    _pictures(tmp_path / "one", 40)
    lines = [f"{frame},12,20,10,30" for frame in range(1, 41)]
    (tmp_path / "one" / "boxes.csv").write_text("\n".join(["frame,x,y,w,h", *lines]))
    (clip,) = camera_footage(tmp_path, "webcam")
    assert clip.objects == "one of many" and known_clip(clip, ALL_PIXELS).region_xywh == (12, 20, 10, 30)
    assert track_footage(tmp_path) == []
    (tmp_path / "one" / "boxes.csv").write_text("frame,x,y,w,h\n1,2,three,4,5\n")
    with pytest.raises(EvaluationDataError, match="line 2 is no box"):
        camera_footage(tmp_path, "webcam")
    for line, said in (("0,2,3,4,5", "line 2 is no box"), ("41,2,3,4,5", "boxes up to frame 41, but 40 pictures")):
        (tmp_path / "one" / "boxes.csv").write_text(f"frame,x,y,w,h\n{line}\n")
        with pytest.raises(EvaluationDataError, match=said):
            camera_footage(tmp_path, "webcam")
    (tmp_path / "one" / "boxes.csv").unlink()
    with pytest.raises(EvaluationDataError, match="one: no frames, or no masks or boxes"):
        camera_footage(tmp_path, "webcam")


def test_an_object_that_is_not_there_is_refused(tmp_path: Path) -> None:
    masks = squares(3)
    masks[0][:] = False
    write_sequence(tmp_path, "late", masks)
    with pytest.raises(EvaluationDataError, match="late: the object is not on the first frame and a later one"):
        known_clip(davis_footage(tmp_path)[0], ALL_PIXELS)
    write_sequence(tmp_path, "short", squares(1))
    with pytest.raises(EvaluationDataError, match="short: 1 frames"):
        known_clip(davis_footage(tmp_path)[1], ALL_PIXELS)
