"""SAM: overlapping masks into one label map, checkpoints of every kind, and the true code with a small real model."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.config import ModelSettings, SamSettings
from arr_stream.errors import KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.clusters import sam
from arr_stream.keyframes.clusters.regions import absorb_small, pieces_of, shared_borders
from arr_stream.keyframes.clusters.sam import UNCOVERED, SamClusterer, labels_from_masks
from arr_stream.threads import one_torch_thread
from arr_stream.types import BoolArray, Clusters
from tests import tiny_sam
from tests.contracts.test_clusterers import assert_sound
from tests.keyframe_fakes import seen

SMALL_HW = st.tuples(st.integers(1, 9), st.integers(1, 9))
ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "tiny": tiny_sam.build,
    "wide": partial(tiny_sam.build, 48),
    "colours": tiny_sam.by_colour,
}
CPU = ModelSettings(device="cpu")


# Overlapping masks -> one label map


@st.composite
def some_masks(draw: st.DrawFn) -> BoolArray:
    hw = draw(SMALL_HW)
    return draw(arrays(np.bool_, (draw(st.integers(0, 6)), *hw)))


@settings(max_examples=50)
@given(some_masks())
def test_a_place_belongs_to_the_smallest_mask_that_covers_it(masks: BoolArray) -> None:
    hw = masks.shape[1:]
    labels = labels_from_masks(masks, (hw[0], hw[1]))
    assert labels.shape == hw and labels.dtype == np.int32
    np.testing.assert_array_equal(labels == UNCOVERED, ~masks.any(axis=0))
    areas = masks.sum(axis=(1, 2))
    for y, x in np.argwhere(labels != UNCOVERED):
        over = np.flatnonzero(masks[:, y, x])
        assert labels[y, x] - 1 == min(over, key=lambda mask: (areas[mask], mask))


# Regions that touch, and pieces too small to stay


@settings(max_examples=50)
@given(arrays(np.int32, SMALL_HW, elements=st.integers(0, 4)))
def test_borders_are_those_counted_place_by_place(labels: npt.NDArray[np.int32]) -> None:
    counted: dict[tuple[int, int], int] = {}
    for y, x in np.ndindex(labels.shape):
        for there in ((y, x + 1), (y + 1, x)):
            if there[0] < labels.shape[0] and there[1] < labels.shape[1] and labels[there] != labels[y, x]:
                low, high = sorted((int(labels[y, x]), int(labels[there])))
                counted[low, high] = counted.get((low, high), 0) + 1
    pairs, lengths, strengths = shared_borders(labels, np.ones(labels.shape, np.float32))
    assert {(int(a), int(b)): int(n) for (a, b), n in zip(pairs, lengths, strict=True)} == counted
    np.testing.assert_array_equal(strengths, lengths)


@settings(max_examples=50)
@given(arrays(np.int32, SMALL_HW, elements=st.integers(0, 4)), st.integers(1, 12))
def test_no_small_piece_is_left_and_large_ones_stay(labels: npt.NDArray[np.int32], smallest_px: int) -> None:
    made = absorb_small(labels, smallest_px)
    assert set(np.unique(made)) <= set(np.unique(labels))
    sizes = np.bincount(pieces_of(made).ravel())
    assert len(sizes) == 1 or sizes.min() >= smallest_px
    before = pieces_of(labels)
    large = np.flatnonzero(np.bincount(before.ravel()) >= smallest_px)
    kept = np.isin(before, large)
    np.testing.assert_array_equal(made[kept], labels[kept])


# The model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower on several."""
    with one_torch_thread():
        yield


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    """Untrained weights."""
    state: dict[str, Any] = tiny_sam.build().state_dict()
    return state


@pytest.fixture(scope="module")
def untrained(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("sam") / "untrained.pth"
    save(state, path)
    return path


@pytest.fixture(scope="module", params=["sam.pth", "sam.safetensors"])
def colours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("sam") / request.param
    save(tiny_sam.by_colour().state_dict(), path)
    return path


def save(state: dict[str, Any], path: Path) -> None:
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    else:
        import torch

        torch.save(state, path)


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds that suit the tiny model."""
    monkeypatch.setattr(sam, "STABILITY_SCORE_THRESH", 0.6)
    monkeypatch.setattr(sam, "MIN_AREA", 0.004)


def of(path: Path | str, **values: Any) -> SamSettings:
    given = {"points_per_side": 12, **values}
    return SamSettings(**{"model": "tiny", "checkpoint": str(path), **given})


def clusterer(path: Path | str, **values: Any) -> SamClusterer:
    return SamClusterer(of(path, **values), CPU, ARCHITECTURES)


def enlarged(array: npt.NDArray[Any], times: int) -> npt.NDArray[Any]:
    return array.repeat(times, axis=0).repeat(times, axis=1)


def best_iou(clusters: Clusters, mask: BoolArray) -> float:
    regions = [clusters.labels == region for region in range(clusters.count)]
    return float(max((region & mask).sum() / (region | mask).sum() for region in regions))


def test_shapes_become_regions_the_same_each_time_without_a_word(
    colours: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rgb, truth = tiny_sam.picture()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = clusterer(colours, model="colours")
        clusters = made.cluster(seen(enlarged(rgb, 8)))
    assert capfd.readouterr() == ("", "")
    assert_sound(clusters)
    assert clusters.method == "sam"
    assert clusters.labels.shape == (64, 128) and clusters.count >= 4
    truth = enlarged(truth, 2)
    assert min(best_iou(clusters, truth == shape) for shape in range(4)) > 0.9
    assert np.bincount(pieces_of(clusters.labels).ravel()).min() >= 0.004 * truth.size
    made.cluster(seen(enlarged(rgb[::-1, ::-1].copy(), 2)))
    np.testing.assert_array_equal(made.cluster(seen(enlarged(rgb, 8))).labels, clusters.labels)


def test_any_size_of_picture(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sam, "PRED_IOU_THRESH", 0.0)
    monkeypatch.setattr(sam, "STABILITY_SCORE_THRESH", 0.0)
    made = clusterer(untrained, points_per_side=3)
    for width, height in ((1, 1), (8, 8), (300, 4), (33, 320)):
        made_from = seen(np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8))
        clusters = made.cluster(made_from)
        assert_sound(clusters)
        assert clusters.labels.shape == made_from.quarter_hw


@pytest.mark.parametrize("part", ["image_encoder.neck.2.weight", "mask_decoder.output_upscaling.0.weight"])
def test_values_that_are_not_numbers_are_one_line(state: dict[str, Any], tmp_path: Path, part: str) -> None:
    state = {name: value.clone() for name, value in state.items()}
    state[part].fill_(3e38)  # numbers themselves, but their products are not
    save(state, tmp_path / "sam.safetensors")
    rgb, _ = tiny_sam.picture()
    with pytest.raises(KeyframeFailed, match=r"sam: \w+ gave values that are not numbers") as caught:
        clusterer(tmp_path / "sam.safetensors").cluster(seen(rgb))
    assert "\n" not in str(caught.value)


# What can be wrong with weights and settings


def truncated(state: dict[str, Any], path: Path) -> None:
    save(state, path)
    path.write_bytes(path.read_bytes()[:-1000])


class Code:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (Path("ran"),)


def with_code(state: dict[str, Any], path: Path) -> None:
    path.write_bytes(pickle.dumps({"state": Code()}, protocol=2))


def of_another_kind(state: dict[str, Any], path: Path) -> None:
    save({name: value for name, value in state.items() if "prompt" in name}, path)


@pytest.mark.parametrize("spoil", [truncated, with_code, of_another_kind])
@pytest.mark.parametrize("name", ["sam.pth", "sam.safetensors"])
def test_spoilt_weights_are_one_line(
    state: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil(state, tmp_path / name)
    with pytest.raises(WeightsInvalid) as caught:
        clusterer(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert not Path("ran").exists()
