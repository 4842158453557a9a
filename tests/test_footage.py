"""Footage and its truths: cameras that do what they are said to, masks that lie where things are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from arr_stream.errors import EvaluationDataError
from benchmarks.comparison.truth import known_clip
from benchmarks.scenes.camera import CAMERAS, Camera
from benchmarks.scenes.cameras import camera_footage, track_footage
from benchmarks.scenes.footage import MOVING_SHARE, davis_footage, moved_truths, moving_things, sample_footage
from benchmarks.scenes.photographs import generated_footage, text_footage
from tests.test_evaluate_davis import squares, write_sequence

SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"
SMALL_WH = (320, 192)
ALL_PIXELS = 1 << 62


def _shift(x: float, y: float) -> np.ndarray:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)


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
