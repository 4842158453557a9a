"""Bottom-up merging: what merges first, and the regions that come out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.keyframes.clusters.merge import MergeClusterer, RegionGraph, merged
from arr_stream.keyframes.clusters.regions import pieces_of, shared_borders
from tests.keyframe_fakes import seen

LABELS = arrays(np.int32, st.tuples(st.integers(1, 8), st.integers(1, 8)), elements=st.integers(0, 6))


def plain_graph(labels: npt.NDArray[np.int32], looks: npt.NDArray[np.float64]) -> RegionGraph:
    """Regions with given mean looks `[n, d]` and no edges between them."""
    sizes = np.bincount(labels.ravel(), minlength=len(looks)).astype(np.float64)
    return RegionGraph(sizes, looks * sizes[:, None], *shared_borders(labels))


@settings(max_examples=50)
@given(LABELS, st.integers(1, 12), st.integers(0, 1000))
def test_each_merge_is_the_cheapest_there_is_until_as_many_are_left_as_were_asked_for(
    labels: npt.NDArray[np.int32], count: int, seed: int
) -> None:
    from arr_stream.keyframes.clusters import merge

    pieces = pieces_of(labels)
    graph = plain_graph(pieces, np.random.default_rng(seed).random((int(pieces.max()) + 1, 2)))

    def by_looking_at_all() -> npt.NDArray[np.int32]:
        """The same, with every cost computed anew before every merge."""
        owner = np.arange(len(graph.sizes), dtype=np.int32)
        while len(np.unique(owner)) > count:
            pairs, _, _ = shared_borders(owner[pieces])
            if not len(pairs):
                break
            sizes, looks = np.bincount(owner, graph.sizes, len(owner)), np.zeros_like(graph.looks)
            np.add.at(looks, owner, graph.looks)
            a, b = pairs.T
            apart = looks[a] / sizes[a, None] - looks[b] / sizes[b, None]
            small = (sizes[a] * sizes[b] / (sizes[a] + sizes[b]) / pieces.size) ** merge.SIZE_POWER
            best = int(np.argmin(np.linalg.norm(apart, axis=1) * small))
            owner[owner == b[best]] = a[best]
        return owner

    owner = merged(graph, count)
    np.testing.assert_array_equal(owner, by_looking_at_all())
    left = min(len(graph.sizes), count)
    assert len(np.unique(owner)) == left and pieces_of(owner[pieces]).max() + 1 == left


def shapes() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """`[256, 384, 3]` with noise, and its truth: two discs and a bar on a ground that grows lighter to the right."""
    y, x = np.mgrid[:256, :384]
    truth = np.zeros((256, 384), np.int32)
    truth[np.hypot(y - 90, x - 100) < 50] = 1
    truth[np.hypot(y - 170, x - 270) < 60] = 2
    truth[200:230, 20:180] = 3
    rgb = np.array([[70, 80, 70], [200, 60, 50], [60, 90, 200], [210, 200, 70]])[truth] + (x // 12)[..., None]
    noise = np.random.default_rng(0).normal(0, 6, rgb.shape)
    return np.clip(rgb + noise, 0, 255).astype(np.uint8), truth


def test_shapes_come_out_whole() -> None:
    rgb, truth = shapes()
    clusters = MergeClusterer(6).cluster(seen(rgb))
    assert (clusters.count, clusters.method) == (6, "merge")
    assert pieces_of(clusters.labels).max() + 1 == 6
    small_truth = truth[2::4, 2::4]
    for shape in (1, 2, 3):
        best = max(
            ((clusters.labels == region) & (small_truth == shape)).sum()
            / ((clusters.labels == region) | (small_truth == shape)).sum()
            for region in range(clusters.count)
        )
        assert best > 0.9, shape
