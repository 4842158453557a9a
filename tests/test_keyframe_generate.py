"""Generation in step: the parts in order, their times, and what happens when one fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arr_stream.config import KeyframeSettings
from arr_stream.errors import InvalidSetting, KeyframeFailed
from arr_stream.keyframes.clusters import make_clusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    StandardGenerator,
    check_result,
    make_generator,
)
from arr_stream.keyframes.text import make_text_finder
from tests import keyframe_fakes as fakes

PLAIN = KeyframeSettings(clusters="grid", text="none")


class Failing:
    """All three parts at once, each failing with the same error."""

    name = "failing"

    def cluster(self, picture: object) -> Any:
        raise ZeroDivisionError("on purpose")

    embed = find = cluster


class FailingText(Failing):
    def find(self, picture: object, *, read: bool) -> Any:
        raise ZeroDivisionError("on purpose")


def test_generation_gives_all_parts_with_times_and_names() -> None:
    made = make_generator(PLAIN).generate(fakes.request(7))
    assert made.index == 7
    assert made.embedding.shape == (16, 4, 6)
    assert made.text_mask.shape == (16, 24)
    assert set(made.seconds) == {"clusters", "embedding", "text"}
    assert all(0.0 <= seconds < 10.0 for seconds in made.seconds.values())
    assert made.backends == {"clusters": "grid", "embedding": "appearance", "text": "none"}


def test_generation_is_deterministic() -> None:
    first, second = (make_generator(PLAIN).generate(fakes.request(7)) for _ in range(2))
    np.testing.assert_array_equal(first.embedding, second.embedding)
    np.testing.assert_array_equal(first.clusters.labels, second.clusters.labels)


@pytest.mark.parametrize("part", ["clusters", "embedding", "text"])
def test_a_failing_part_is_named(part: str) -> None:
    parts: dict[str, Any] = {
        "clusters": make_clusterer("grid", 4),
        "embedding": make_embedder("appearance"),
        "text": make_text_finder("none"),
    }
    parts[part] = FailingText() if part == "text" else Failing()
    provider = InStepKeyframes(StandardGenerator(*parts.values()))
    with pytest.raises(KeyframeFailed, match=f"frame 3: {part}: ZeroDivisionError: on purpose") as caught:
        provider.submit(fakes.request(3))
    assert provider.collect() == []
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.5, -1.5])
@pytest.mark.parametrize("part", ["embedding", "text_mask"])
def test_unusable_values_are_refused_by_part(part: str, value: float) -> None:
    good = fakes.result(fakes.request(0))
    spoilt = getattr(good, part).copy()
    spoilt.flat[3] = value
    check_result(good)
    with pytest.raises(KeyframeFailed, match=part.split("_", maxsplit=1)[0]):
        check_result(replace(good, **{part: spoilt}))


def test_unusable_clusters_are_refused() -> None:
    good = fakes.result(fakes.request(0))
    for clusters in (
        replace(good.clusters, labels=good.clusters.labels + 1),
        replace(good.clusters, centroids_xy=np.full((1, 2), np.nan, np.float32)),
        replace(good.clusters, areas=np.zeros(0, np.float32)),
    ):
        with pytest.raises(KeyframeFailed, match="clusters"):
            check_result(replace(good, clusters=clusters))


def test_in_step_provider_answers_at_once_and_only_once() -> None:
    provider = InStepKeyframes(make_generator(PLAIN))
    assert provider.submit(fakes.request(1)) and provider.submit(fakes.request(2))
    assert [one.index for one in provider.collect()] == [1, 2]
    assert provider.collect() == []
    provider.close()


def test_in_step_provider_checks_what_any_generator_gives() -> None:
    with pytest.raises(KeyframeFailed, match="frame 4: embedding: values from nan"):
        InStepKeyframes(fakes.Fake({"do": "nan"}, 1)).submit(fakes.request(4))
    with pytest.raises(KeyframeFailed, match="frame 4: generation: ArithmeticError"):
        InStepKeyframes(fakes.Fake({"do": "raise"}, 1)).submit(fakes.request(4))


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSetting, match="slic-skimage"):
        make_clusterer("voronoi", 4)
    with pytest.raises(InvalidSetting, match="at least 1"):
        make_clusterer("grid", 0)
    with pytest.raises(InvalidSetting, match="appearance"):
        make_embedder("smell")
    with pytest.raises(InvalidSetting, match="rapidocr"):
        make_text_finder("monks")


def test_importing_the_package_loads_no_heavy_one() -> None:
    code = (
        "import sys, arr_stream.keyframes; print([m for m in ('torch','cv2','skimage','rapidocr') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
