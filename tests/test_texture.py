"""The contract of the texture: sampling equals the dense tensor, for every channel, level and device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.texture import CHANNEL_INDEX, CHANNELS, EMBEDDING
from arr_stream.texture.array import CELL_LEVEL, Plane, Texture
from arr_stream.types import Grid
from tests.device_checks import DEVICES
from tests.textures import HEIGHT, WIDTH, random_texture

LINEAR = [c.index for c in CHANNELS if c.interpolation == "linear"]


def test_the_table_is_the_public_contract() -> None:
    assert [c.index for c in CHANNELS] == list(range(40))
    assert len({c.name for c in CHANNELS}) == 40
    expected = {"red": 0, "eccentricity": 5, "motion": 10, "cluster": 13, "text": 16, "boundary": 17}
    expected |= {"previous_relevance": 34, "fixation": 36, "attention": 37, "attention_history": 38, "gaze": 39}
    assert {name: CHANNEL_INDEX[name] for name in expected} == expected
    assert [c.name for c in CHANNELS][EMBEDDING] == [f"embedding_{i}" for i in range(16)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channel", CHANNELS, ids=lambda c: c.name)
def test_sampling_equals_the_dense_tensor(channel, device: str) -> None:
    texture = random_texture(device=device)
    dense = texture.dense()[channel.index]
    points = torch.rand(300, 2) * torch.tensor([WIDTH, HEIGHT])
    sampled = texture.sample(points, channels=[channel.index])[:, 0]
    torch.testing.assert_close(sampled, dense[points[:, 1].long(), points[:, 0].long()], rtol=0, atol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", range(CELL_LEVEL + 1))
def test_mip_levels_are_means_of_the_dense_tensor(level: int, device: str) -> None:
    texture = random_texture(1, device)
    mip, dense = texture.mip(level), texture.dense()
    assert mip.shape == (40, HEIGHT >> level, WIDTH >> level)
    pooled = torch.nn.functional.avg_pool2d(dense[None], 1 << level)[0]
    torch.testing.assert_close(mip[LINEAR], pooled[LINEAR], rtol=0, atol=2e-5)
    points = torch.rand(100, 2) * torch.tensor([WIDTH, HEIGHT])
    cell = (points / (1 << level)).long()
    torch.testing.assert_close(texture.sample(points, level), mip[:, cell[:, 1], cell[:, 0]].T, rtol=0, atol=2e-5)


@given(st.sampled_from([1, 2, 3, 6, 12, 24, 48, 96, 192, 50]), st.integers(1, 90), st.integers(0, 99))
@settings(deadline=None)
def test_bytes_have_the_means_of_the_same_numbers(rows: int, columns: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 256, (2, rows, columns), dtype=np.uint8)
    of_bytes, of_numbers = (Plane(6, data, 1 / 255).cells((160, 96), (0, 1)) for data in (values, values * 1.0))
    np.testing.assert_allclose(of_bytes, of_numbers, atol=1e-6)


@pytest.mark.parametrize("texture_wh", [(160, 96), (1024, 64)])
def test_cells_on_the_host_are_means_of_the_dense_tensor(texture_wh: tuple[int, int]) -> None:
    drawn = random_texture(4).planes.values()
    there = {plane.first: plane for plane in drawn if isinstance(plane, Plane)}
    here = {first: Plane(first, plane.data.numpy(), plane.scale) for first, plane in there.items()}
    cells = Texture(texture_wh, dict(here)).cells(range(len(CHANNELS)))
    mip = Texture(texture_wh, dict(there)).mip(CELL_LEVEL)
    assert isinstance(cells, np.ndarray) and cells.dtype == np.float32
    np.testing.assert_allclose(cells, mip.numpy(), rtol=1e-6, atol=2e-5)
    backwards = Texture(texture_wh, dict(here)).cells(range(len(CHANNELS))[::-1])
    np.testing.assert_array_equal(backwards, cells[::-1])


@pytest.mark.parametrize("level", range(CELL_LEVEL + 1))
def test_ids_are_never_mixed(level: int) -> None:
    texture = random_texture(3)
    ids = set(texture.plane("cluster").ravel().tolist())
    assert set(texture.mip(level, [CHANNEL_INDEX["cluster"]]).ravel().tolist()) <= ids


@settings(max_examples=30, deadline=None)
@given(st.floats(-50, 250, allow_nan=False), st.floats(-50, 250, allow_nan=False), st.integers(0, CELL_LEVEL))
def test_points_outside_read_the_nearest_pixel(x: float, y: float, level: int) -> None:
    texture = random_texture(4)
    inside = [min(max(x, 0), WIDTH - 1e-3), min(max(y, 0), HEIGHT - 1e-3)]
    near, far = texture.sample(torch.tensor([inside, [x, y]], dtype=torch.float64), level)
    torch.testing.assert_close(near, far)


@given(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), st.integers(1024, 1 << 22))
def test_a_grid_stays_within_its_limit(size_wh: tuple[int, int], max_pixels: int) -> None:
    grid = Grid.for_size(size_wh, max_pixels=max_pixels)
    assert 1 <= grid.cells <= max_pixels // 1024
    if grid.cells > 64 and max(size_wh) < 4 * min(size_wh):
        assert grid.columns / grid.rows == pytest.approx(size_wh[0] / size_wh[1], rel=0.25)


@pytest.mark.parametrize("size_wh", [(640, 360), (1366, 768), (1920, 1080), (3840, 2160), (1080, 1920), (4000, 3000)])
def test_the_grid_is_that_of_the_models_own_processor(size_wh: tuple[int, int]) -> None:
    resize = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl").smart_resize
    height, width = resize(size_wh[1], size_wh[0], factor=32, min_pixels=1024, max_pixels=1 << 20)
    grid = Grid.for_size(size_wh, max_pixels=1 << 20)
    assert (grid.columns * 32, grid.rows * 32) == (width, height)
