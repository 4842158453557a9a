"""What rules look at: pictures by area average, and features that are those of the models they are named after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_stream.config import Settings
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.clip import ClipEmbedder
from arr_stream.threads import one_torch_thread
from arr_stream.types import Frame, Grid
from benchmarks.rivals import RULES, Clip
from benchmarks.rivals.base import PIXELS_A_CELL
from benchmarks.rivals.change import cosine_to_previous
from benchmarks.rivals.features import DenseClip, FeatureMaker, Pixels, QwenTower, make_clip
from tests.tiny_qwen import load_tiny, picture

SIZE_WH = (160, 96)
GRID = Grid.for_size(SIZE_WH)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


def frame(index: int = 0, seed: int = 0, size_wh: tuple[int, int] = SIZE_WH) -> Frame:
    return Frame(index, index / 25, picture(*size_wh, seed=seed))


# ---- the clip


def test_a_clip_holds_area_averages_of_every_frame() -> None:
    frames = [frame(index, seed=index) for index in range(3)]
    clip = make_clip(iter(frames), GRID, None)
    assert len(clip) == 3 and clip.features is None
    side = 32 // PIXELS_A_CELL
    for made, source in zip(clip.rgb, frames, strict=True):
        blocks = source.rgb.reshape(96 // side, side, 160 // side, side, 3).mean(axis=(1, 3))
        assert np.abs(made - blocks).max() <= 0.51


def test_frames_are_read_one_at_a_time() -> None:
    described: list[int] = []

    class Counting:
        name = "counting"

        def features(self, frame: Frame, grid: Grid) -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
            described.append(frame.index)
            return np.full((grid.rows, grid.columns, 2), frame.index, np.float32)

    def frames() -> Iterator[Frame]:
        for index in range(3):
            assert described == list(range(index))
            yield frame(index)

    clip = make_clip(frames(), GRID, Counting())
    assert clip.features is not None and clip.features[:, 1, 1, 0].tolist() == [0, 1, 2]


def test_frames_that_make_no_clip() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        make_clip([], GRID, None)
    with pytest.raises(ValueError, match="frame 1 is"):
        make_clip([frame(), frame(1, size_wh=(96, 160))], GRID, None)


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 3, 5, 4), (2, 5, 3, 4), (2, 3, 5, 0)])
def test_features_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    rgb = make_clip([frame(), frame(1)], GRID, None).rgb
    with pytest.raises(ValueError, match="features are"):
        Clip(GRID, rgb, np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="not numbers"):
        Clip(GRID, rgb, np.full((2, 3, 5, 4), np.nan, np.float32))
    with pytest.raises(ValueError, match="rgb is"):
        Clip(GRID, rgb[:, ::2], None)


# ---- makers


def test_pixels_are_each_cells_own_around_mid_grey() -> None:
    rgb = np.full((96, 160, 3), 255, np.uint8)
    rgb[32:64, 64:96] = (0, 51, 204)
    features = Pixels().features(Frame(0, 0.0, rgb), GRID)
    assert features.shape == (3, 5, 192)
    np.testing.assert_allclose(features[1, 2].reshape(8, 8, 3), np.broadcast_to([-1, -0.6, 0.6], (8, 8, 3)), atol=1e-6)
    features[1, 2] = 1
    assert (features == 1).all()


def _maker(name: str, tiny_qwen: Path) -> FeatureMaker:
    makers = {"pixels": Pixels, "clip": lambda: DenseClip(Settings()), "qwen": lambda: QwenTower(tiny_qwen)}
    return makers[name]()


@pytest.mark.parametrize("name", ["pixels", "clip", "qwen"])
@pytest.mark.parametrize("size_wh", [SIZE_WH, (150, 110)])
def test_every_maker_describes_cells_and_shows_what_changed(
    name: str, size_wh: tuple[int, int], tiny_qwen: Path
) -> None:
    maker = _maker(name, tiny_qwen)
    grid = Grid.for_size(size_wh)
    rgb = picture(*size_wh).copy()
    changed = rgb.copy()
    changed[: size_wh[1] // grid.rows, : size_wh[0] // grid.columns] ^= 255
    clip = make_clip([Frame(i, float(i), shown) for i, shown in enumerate([rgb, rgb, changed])], grid, maker)
    assert clip.features is not None and clip.features.dtype == np.float32
    likeness = cosine_to_previous(clip.features)
    assert (likeness[0] == 1).all()
    assert likeness[1].argmin() == 0 and likeness[1, 0, 0] < 0.99
    assert maker.name
    chosen = RULES["evs-per-frame"].choose(clip, 1)[2]
    assert (chosen.rows.item(), chosen.columns.item()) == (0, 0)


def test_dense_clip_is_the_mean_of_the_embedders_places_in_a_cell() -> None:
    settings = Settings()
    shown = frame()
    places = ClipEmbedder(settings.clip, settings.models).embed(KeyframeInput(shown, GRID)).values
    assert places.shape[1:] == (6, 10)
    means = places.reshape(len(places), 3, 2, 5, 2).mean(axis=(2, 4)).transpose(1, 2, 0)
    means /= np.linalg.norm(means, axis=-1, keepdims=True)
    np.testing.assert_allclose(DenseClip(settings).features(shown, GRID), means, atol=1e-5)


@pytest.mark.parametrize("size_wh", [(320, 256), (330, 270)])
def test_qwens_tower_gives_the_models_own_visual_tokens(tiny_qwen: Path, size_wh: tuple[int, int]) -> None:
    model, processor = load_tiny(tiny_qwen)
    shown, grid = frame(size_wh=size_wh), Grid.for_size(size_wh)
    inputs = processor.image_processor(images=[shown.rgb], return_tensors="pt")
    with torch.inference_mode():
        own = model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"]).pooler_output
    ours = QwenTower(tiny_qwen).features(shown, grid)
    np.testing.assert_allclose(ours.reshape(grid.cells, -1), own.numpy(), atol=1e-5)
