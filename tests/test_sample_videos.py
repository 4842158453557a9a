"""The sample clips: their truth is exact, and the committed files are in order."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import av
import cv2
import numpy as np
import pytest

from arr_stream.errors import EvaluationDataError
from benchmarks.scenes.shapes import moving_scene
from benchmarks.scenes.truth import load_truth

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_videos"
NAMES = ("street", "pan_zoom", "cut", "signs")


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_sample_videos", ROOT / "scripts" / "make_sample_videos.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


maker = _maker()


def _away_from_borders(labels: np.ndarray, px: int) -> np.ndarray:
    """Pixels whose neighbourhood shows one surface only."""
    kernel = np.ones((2 * px + 1, 2 * px + 1), np.uint8)
    return cv2.dilate(labels, kernel) == cv2.erode(labels, kernel)


@pytest.mark.parametrize("name", NAMES)
def test_flow_takes_the_frame_before_to_the_present_one(name: str) -> None:
    clip = maker.make_clip(maker.make_scene(name, seconds=0.2).without_effects())
    truth, differences, moved = clip.truth, [], []
    for frame in (1, 5):
        flow, valid = truth.backward_flow(frame)
        height, width = valid.shape
        y, x = np.mgrid[0:height, 0:width].astype(np.float32)
        filled = np.nan_to_num(flow)
        there_x, there_y = x + filled[..., 0], y + filled[..., 1]
        before, now = (clip.frames[i].astype(np.float32) for i in (frame - 1, frame))
        warped = cv2.remap(before, there_x, there_y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        clean_before = _away_from_borders(truth.labels[frame - 1], 3)[
            np.clip(np.rint(there_y), 0, height - 1).astype(int), np.clip(np.rint(there_x), 0, width - 1).astype(int)
        ]
        clean = valid & clean_before & _away_from_borders(truth.labels[frame], 3)
        assert clean.mean() > 0.8
        differences.append(np.abs(warped - now).mean(axis=2)[clean])
        moved.append(np.abs(before - now).mean(axis=2)[clean & (np.hypot(*filled.transpose(2, 0, 1)) > 1)])
    error = np.concatenate(differences)
    assert error.mean() < 1.5 and np.quantile(error, 0.99) < 12, (error.mean(), np.quantile(error, 0.99))
    # What moves by a pixel or more would differ far more if it were not followed.
    assert np.concatenate(moved).mean() > 3 * error.mean()


def test_a_cut_has_no_flow_across_it() -> None:
    truth = maker.make_clip(maker.make_scene("cut", seconds=0.4, scale=0.5)).truth
    _, at_cut = truth.backward_flow(truth.frames // 2)
    assert not at_cut.any()
    _, after = truth.backward_flow(truth.frames // 2 + 1)
    assert after.mean() > 0.9


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_a_bad_truth_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.truth.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EvaluationDataError, match=r"bad\.truth\.npz"):
        load_truth(path)


@pytest.mark.parametrize("name", NAMES)
def test_committed_clips(name: str) -> None:
    video, truth = SAMPLES / f"{name}.mp4", load_truth(SAMPLES / f"{name}.truth.npz")
    assert video.stat().st_size < 1_000_000
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(decoded) == truth.frames and decoded[0].shape[:2] == truth.labels.shape[1:]
    assert all(truth.masks(i + 1).any() for i in range(len(truth.object_names)))
    boxes = json.loads((SAMPLES / f"{name}.boxes.json").read_text())
    assert boxes == {frame: list(box) for frame, box in maker.first_boxes(truth).items()}
    # The committed picture is the one that the maker draws, but for compression.
    drawn = maker.make_clip(maker.make_scene(name, seconds=2 / 30)) if name != "cut" else None
    if drawn is not None:
        assert np.abs(drawn.frames[0].astype(int) - decoded[0]).mean() < 4
        assert np.array_equal(drawn.truth.labels[0], truth.labels[0])


def test_the_committed_shapes_are_the_ones_that_are_drawn() -> None:
    video = SAMPLES / "shapes.mp4"
    with av.open(str(video)) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(decoded) == 120
    drawn = next(moving_scene(np.random.default_rng(maker.SHAPES_SEED), (640, 360), 120))
    assert np.abs(drawn.rgb.astype(int) - decoded[0]).mean() < 6
