"""Motion vectors as flow: what the decoders export, B-frames, blocks and frames without vectors."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from arr_stream.errors import InvalidSetting, MotionVectorsUnavailable
from arr_stream.motion.codec import CodecFlow
from arr_stream.motion.flow import FlowInput
from arr_stream.sources.sandbox.source import VECTORS
from arr_stream.types import ByteArray, Frame
from tests.contracts.test_flow import decode, encode, flow_input, texture


def panning(frames: int, step_xy: tuple[int, int] = (4, 2), hw: tuple[int, int] = (240, 320)) -> list[ByteArray]:
    """A window that runs over a larger picture: what is at x was at x + step on the frame before."""
    (height, width), (dx, dy) = hw, step_xy
    world = texture(height + frames * abs(dy), width + frames * abs(dx))
    return [world[i * dy : i * dy + height, i * dx : i * dx + width] for i in range(frames)]


def blocks(size_wh: tuple[int, int], motion_xy: tuple[int, int], *, source: int = -1, side: int = 16) -> np.ndarray:
    """One vector, in quarter pixels, for every block of the frame, as FFmpeg gives them."""
    ys, xs = np.mgrid[side // 2 : size_wh[1] : side, side // 2 : size_wh[0] : side]
    vectors = np.zeros(xs.size, VECTORS)
    vectors["source"], vectors["w"], vectors["h"], vectors["motion_scale"] = source, side, side, 4
    vectors["dst_x"], vectors["dst_y"] = xs.ravel(), ys.ravel()
    vectors["motion_x"], vectors["motion_y"] = motion_xy
    return vectors


def shifted(shift: int, *, hw: tuple[int, int] = (120, 160)) -> tuple[ByteArray, ByteArray]:
    """Two pictures; what is at x on the second was at x + shift on the first."""
    world = texture(hw[0], hw[1] + 40)
    return world[:, 20 : 20 + hw[1]], world[:, 20 + shift : 20 + shift + hw[1]]


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "3", "b-pyramid": "normal", "refs": "3", "sc_threshold": "0"}),
        ("libx264", {"bf": "0", "refs": "3"}),
        ("mpeg4", {}),
        ("mpeg2video", {"bf": "2"}),
        ("h263p", {}),
    ],
)
def test_the_frame_before_is_meant_whatever_the_vectors_refer_to(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    """B-frames and several references: vectors span one to four frames, the flow always one."""
    path = tmp_path / "clip.avi"
    encode(path, codec, panning(14), options)
    # The last frame of MPEG-2 with B-frames is flushed without its vectors.
    frames = decode(path)[:-1]
    estimator = CodecFlow(raster_divisor=2)
    for previous, present in itertools.pairwise(frames):
        flow = estimator.estimate(previous, present)
        error_px = np.linalg.norm(flow.offset_px - np.float32([1.0, 0.5]), axis=2)
        trusted = flow.confidence > 0.8
        assert trusted.mean() > 0.7
        assert np.quantile(error_px[trusted], 0.9) < 0.25


def test_b_frames_of_mpeg4_are_not_trusted(tmp_path: Path) -> None:
    """FFmpeg exports their direct blocks as vectors of zero: the picture must tell."""
    path = tmp_path / "clip.avi"
    encode(path, "mpeg4", panning(10), {"bf": "2"})
    frames = decode(path)[:-1]
    ahead = [bool((frame.frame.motion_vectors["source"] > 0).any()) for frame in frames[1:]]
    assert any(ahead) and not all(ahead)
    estimator = CodecFlow(raster_divisor=2)
    for (previous, present), b_frame in zip(itertools.pairwise(frames), ahead, strict=True):
        flow = estimator.estimate(previous, present)
        if b_frame:
            assert flow.confidence.mean() < 0.3
        else:
            np.testing.assert_allclose(np.median(flow.offset_px, axis=(0, 1)), [1.0, 0.5], atol=0.02)
            assert flow.confidence.mean() > 0.9


def test_skipped_blocks_count_as_still(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    encode(path, "libx264", [texture(240, 320)] * 4, {"bf": "0"})
    frames = decode(path)
    flow = CodecFlow().estimate(frames[1], frames[2])
    assert flow.confidence.min() > 0.95 and np.abs(flow.offset_px).max() == 0


@pytest.mark.parametrize("codec", ["libx265", "libvpx-vp9"])
def test_decoders_without_vectors_are_refused(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "clip.mkv"
    encode(path, codec, panning(3), {"x265-params": "log-level=none"} if codec == "libx265" else {})
    frames = decode(path)
    assert all(frame.frame.motion_vectors is None for frame in frames)
    with pytest.raises(MotionVectorsUnavailable, match=r"H\.264"):
        CodecFlow().estimate(frames[0], frames[1])


def test_a_frame_of_unknown_kind_without_vectors_is_refused() -> None:
    picture = flow_input(texture(64, 64))
    with pytest.raises(MotionVectorsUnavailable, match=r"motion\.flow=dis"):
        CodecFlow().estimate(picture, picture)


def test_intra_frames_are_still_and_little_trusted() -> None:
    picture, other = texture(64, 64), texture(64, 64, seed=1)
    same = CodecFlow().estimate(flow_input(picture), flow_input(picture, intra=True))
    assert (same.offset_px == 0).all() and same.confidence.max() < 0.5 and same.residual.max() == 0
    cut = CodecFlow().estimate(flow_input(picture), flow_input(other, intra=True))
    assert cut.confidence.mean() < 0.15 and cut.residual.mean() > 0.4


def test_a_cut_inside_a_stream_with_vectors_is_no_error() -> None:
    """A cut coded as an inter frame of intra blocks alone comes without vectors."""
    picture, other = texture(64, 64), texture(64, 64, seed=1)
    estimator = CodecFlow()
    moving = flow_input(picture, motion_vectors=blocks((64, 64), (0, 0)), intra=False)
    estimator.estimate(flow_input(picture), moving)
    assert estimator.estimate(moving, flow_input(other, intra=False)).confidence.mean() < 0.15
    empty = flow_input(picture, motion_vectors=np.zeros(0, VECTORS), intra=False)
    assert CodecFlow().estimate(flow_input(picture), empty).confidence.max() < 0.5


@pytest.mark.parametrize("span", [1, 2, 3, 4])
def test_vectors_over_several_frames_are_brought_to_one(span: int) -> None:
    before, now = shifted(6)
    present = flow_input(now, motion_vectors=blocks((160, 120), (6 * 4 * span, 0)), intra=False)
    flow = CodecFlow(raster_divisor=2).estimate(flow_input(before), present)
    np.testing.assert_allclose(flow.offset_px[..., 0], 1.5, atol=0.01)
    assert flow.confidence[:, :-3].mean() > 0.95


def test_vectors_to_the_future_are_reversed() -> None:
    before, now = shifted(6)
    vectors = blocks((160, 120), (-6 * 4, 0), source=1)
    flow = CodecFlow(raster_divisor=2).estimate(flow_input(before), flow_input(now, motion_vectors=vectors))
    np.testing.assert_allclose(flow.offset_px[..., 0], 1.5, atol=0.01)
    assert 0.8 < flow.confidence[:, :-3].mean() < 0.95


def test_vectors_to_the_past_go_before_those_to_the_future() -> None:
    before, now = shifted(6)
    wrong = blocks((160, 120), (40, 40), source=1)
    vectors = np.concatenate([wrong, blocks((160, 120), (24, 0)), wrong])
    flow = CodecFlow(raster_divisor=2).estimate(flow_input(before), flow_input(now, motion_vectors=vectors))
    np.testing.assert_allclose(flow.offset_px[..., 0], 1.5, atol=0.01)
    assert np.abs(flow.offset_px[..., 1]).max() < 0.01


def test_blocks_without_a_vector_take_their_neighbours_with_little_trust() -> None:
    before, now = shifted(6)
    vectors = blocks((160, 120), (24, 0))
    hole = (abs(vectors["dst_x"] - 80) < 32) & (abs(vectors["dst_y"] - 60) < 32)
    present = flow_input(now, motion_vectors=vectors[~hole], intra=False)
    flow = CodecFlow(raster_divisor=2).estimate(flow_input(before), present)
    np.testing.assert_allclose(flow.offset_px[..., 0], 1.5, atol=0.05)
    assert flow.confidence[13:17, 18:22].max() < 0.35
    assert flow.confidence[:4, :8].min() > 0.9


def test_small_blocks_lie_where_they_belong() -> None:
    """A square of 32x32 in blocks of 8x8; its corners are rounded by the median of three."""
    before = texture(120, 160)
    vectors = blocks((160, 120), (0, 0), side=8)
    inside = (vectors["dst_x"] > 64) & (vectors["dst_x"] < 96) & (vectors["dst_y"] > 40) & (vectors["dst_y"] < 72)
    vectors["motion_x"][inside] = 32
    now = before.copy()
    now[40:72, 64:96] = before[40:72, 72:104]
    flow = CodecFlow(raster_divisor=1).estimate(flow_input(before), flow_input(now, motion_vectors=vectors))
    assert (flow.offset_px[24:32, 36:44, 0] > 3.4).all() and (flow.offset_px[25:31, 38:42, 0] > 3.9).all()
    assert np.abs(flow.offset_px[:18]).max() < 0.01 and np.abs(flow.offset_px[:, :28]).max() < 0.01


@pytest.mark.parametrize("size_wh", [(50, 50), (161, 123), (8, 8), (1, 1), (17, 300)])
def test_sides_that_are_no_multiple_of_a_block(size_wh: tuple[int, int]) -> None:
    """Blocks reach beyond the frame there, and some lie outside altogether."""
    picture = texture(size_wh[1], size_wh[0])
    vectors = blocks((size_wh[0] + 16, size_wh[1] + 16), (0, 0))
    flow = CodecFlow(raster_divisor=2).estimate(flow_input(picture), flow_input(picture, motion_vectors=vectors))
    assert flow.confidence.min() > 0.99


def test_vectors_of_another_layout_are_refused() -> None:
    picture = texture(64, 64)
    vectors = blocks((64, 64), (0, 0))[["source", "w", "h", "dst_x", "dst_y"]]
    with pytest.raises(ValueError, match="motion_scale"):
        CodecFlow().estimate(flow_input(picture), flow_input(picture, motion_vectors=vectors))


def test_settings_and_inputs_are_checked() -> None:
    with pytest.raises(InvalidSetting, match="raster_divisor=0"):
        CodecFlow(raster_divisor=0)
    with pytest.raises(ValueError, match="uint8"):
        FlowInput(np.zeros((4, 4), np.float32), Frame(0, 0.0, np.zeros((8, 8, 3), np.uint8)))  # type: ignore[arg-type]
