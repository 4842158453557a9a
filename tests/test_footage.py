"""Footage and its truths: cameras that do what they are said to, masks that lie where things are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arr_stream.errors import EvaluationDataError
from benchmarks.comparison.truth import known_clip
from benchmarks.scenes.camera import CAMERAS, Camera
from benchmarks.scenes.footage import moved_truths, sample_footage
from benchmarks.scenes.photographs import generated_footage

SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"
SMALL_WH = (320, 192)
ALL_PIXELS = 1 << 62


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
