"""The texture put together on a device: the same 40 channels, dense and in levels, and no copy back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from arr_stream.gpu.device import TorchDevice
from arr_stream.keyframes.base import KeyframePart, TextFinding
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.motion.flow import Flow
from arr_stream.motion.memory import HISTORY_CHANNELS, KEPT, TemporalCache, carried
from arr_stream.texture import CHANNEL_INDEX
from arr_stream.texture.array import Texture
from arr_stream.texture.visual import frame_features, picture_channels
from arr_stream.threads import one_torch_thread
from arr_stream.types import Embedding, Grid
from benchmarks.scenes.shapes import make_scene
from tests.device_checks import DEVICES


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


def smooth(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random planes that vary over a few places, `[..., h, w]` in [0, 1]."""
    planes = rng.random((*shape[:-2], shape[-2] // 4 + 2, shape[-1] // 4 + 2))
    planes = np.repeat(np.repeat(planes, 4, axis=-2), 4, axis=-1)[..., : shape[-2], : shape[-1]]
    return np.ascontiguousarray(planes, dtype=np.float32)


def both(size_wh: tuple[int, int], device: str, *, empty: bool = False) -> tuple[Texture, Texture]:
    """One frame's texture by the CPU path and on a device, from the same memory."""
    rng = np.random.default_rng(3)
    rgb = make_scene(rng, size_wh).rgb
    grid, there = Grid.for_size(size_wh), TorchDevice(device)
    here, moved = TemporalCache(grid, np.asarray), TemporalCache(grid, there.put)
    height, width = here.keyframes.reduced_hw(8)
    if not empty:
        for cache, put in ((here, np.asarray), (moved, there.put)):
            fill(cache, np.random.default_rng(4), put)
    motion = smooth(rng, height, width)
    return assembled(rgb, motion, here), assembled(there.put(rgb), there.put(motion), moved)


def assembled(rgb: Any, motion: Any, cache: TemporalCache) -> Texture:
    wh = cache.keyframes.grid.texture_wh
    look = frame_features(rgb, None, cache.keyframes.grid)
    return Texture(wh, {**picture_channels(look, rgb, motion, wh), **cache.planes})


def fill(cache: TemporalCache, rng: np.random.Generator, put: Callable[[Any], Any]) -> None:
    """Regions, text and an embedding of an earlier frame, and a way back to it that is a drift and some."""
    height, width = cache.keyframes.reduced_hw(8)
    offset_px = (2 * smooth(rng, 2, height, width) + np.array([1.0, -0.5])[:, None, None]).astype(np.float32)
    sure, rest = np.ones((2, height, width), np.float32)
    flow = Flow(*(put(plane) for plane in (np.ascontiguousarray(offset_px.transpose(1, 2, 0)), sure, rest)))
    clusters = clusters_from_labels((smooth(rng, *cache.keyframes.reduced_hw(4)) * 6).astype(np.int32), "test")
    text = (smooth(rng, *cache.keyframes.reduced_hw(4)) > 0.7).astype(np.float32)
    channels = smooth(rng, 16, cache.keyframes.grid.rows * 2, cache.keyframes.grid.columns * 2) * 2 - 1
    cache.keyframes.record_request(0, ("clusters", "embedding", "text"))
    cache.keyframes.adopt(KeyframePart(0, "clusters", clusters, "test"))
    cache.keyframes.adopt(KeyframePart(0, "text", TextFinding(text), "test"))
    cache.keyframes.adopt(KeyframePart(0, "embedding", Embedding(channels, "test"), "test"))
    cache.keyframes.set_embedding_channels(channels)
    cache.move(carried(cache.moving, flow), flow)
    relevance, saliency = (
        smooth(rng, cache.keyframes.grid.rows, cache.keyframes.grid.columns),
        smooth(rng, height, width),
    )
    for name in KEPT:
        cache.history[name] = put(smooth(rng, height, width))
    cache.history.end_frame(cache.history.values, put(relevance), put(saliency))


SAME = ("red", "green", "blue", "x", "y", "eccentricity", "motion", *HISTORY_CHANNELS)
CARRIED = ("text", *(f"embedding_{i}" for i in range(16)))
IDS = ("cluster", "centroid_distance", "cluster_size", "boundary")
SEEN = ("edge_rising", "edge_falling", "high_pass", "low_pass", "saliency", "edge_distance")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size_wh", [(448, 256), (427, 239)], ids=["whole cells", "odd"])
def test_all_channels_are_those_of_the_cpu(size_wh: tuple[int, int], device: str) -> None:
    here, there = both(size_wh, device)
    assert there.dense().device.type == device
    off = (there.dense().cpu() - here.dense()).abs().flatten(1)
    mean, of_99 = off.mean(dim=1), off.kthvalue(int(0.99 * off.shape[1]), dim=1).values
    for name in SAME:
        assert off[CHANNEL_INDEX[name]].max() < 2e-5, name
    for name in CARRIED:
        # OpenCV carries more than four channels at a time in steps of 1/32 pixel.
        assert mean[CHANNEL_INDEX[name]] < 0.005, name
        assert of_99[CHANNEL_INDEX[name]] < 0.03, name
    for name in IDS:
        # A place that lies half-way between two goes to either.
        assert (off[CHANNEL_INDEX[name]] > 0.01).float().mean() < 0.005, name
    for name in SEEN:
        assert mean[CHANNEL_INDEX[name]] < 0.01, name
        assert of_99[CHANNEL_INDEX[name]] < 0.03, name
