"""Generation in step: the parts in order, their times, and what happens when one fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting, KeyframeFailed
from arr_stream.keyframes.base import PARTS, KeyframeInput, KeyframePart, ObjectFinding, PartName
from arr_stream.keyframes.clusters import make_clusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    KeyframeFailure,
    KeyframeGenerator,
    KeyframeRequest,
    OncePerPicture,
    StandardGenerator,
    check_value,
    make_generator,
    make_part,
)
from arr_stream.keyframes.text import make_text_finder
from arr_stream.types import Embedding
from tests import keyframe_fakes as fakes

WRONG = (np.nan, np.inf, 1.5, -1.5)
HEAVY = ("torch", "skimage", "rapidocr", "onnxruntime", "easyocr", "open_clip", "timm", "segment_anything")
PLAIN = Settings().with_values({"keyframes.clusters": "grid", "keyframes.text": "none", "keyframes.objects": "off"})


class Failing:
    """All three parts at once, each failing with the same error."""

    name = "failing"

    def cluster(self, picture: object) -> Any:
        raise ZeroDivisionError("on purpose")

    embed = cluster

    def find(self, picture: object) -> Any:
        raise ZeroDivisionError("on purpose")


def generated(generator: KeyframeGenerator, request: KeyframeRequest) -> dict[str, KeyframePart]:
    made = [make_part(request.frame.index, part, job) for part, job in generator.jobs(request).items()]
    return {part.part: part for part in made if isinstance(part, KeyframePart)}


class NoObjects:
    name = "none"

    def find(self, picture: KeyframeInput) -> ObjectFinding:
        return ObjectFinding(())


def test_generation_gives_all_parts_with_times_and_names() -> None:
    made = generated(make_generator(PLAIN), fakes.request(7))
    assert all(part.index == 7 for part in made.values())
    assert made["embedding"].value.values.shape == (16, 4, 6)
    assert made["text"].value.mask.shape == (16, 24)
    assert all(0.0 <= part.seconds < 10.0 for part in made.values())
    assert {name: part.backend for name, part in made.items()} == {
        "clusters": "grid",
        "embedding": "appearance",
        "text": "none",
    }


def test_only_the_parts_that_are_wanted_are_made() -> None:
    generator = make_generator(PLAIN, parts=["text"])
    assert generator.clusterer is None and generator.embedder is None
    assert list(generator.jobs(fakes.request(0))) == ["text"]
    assert list(make_generator(PLAIN).jobs(replace(fakes.request(0), parts=("clusters",)))) == ["clusters"]


@pytest.mark.parametrize("part", PARTS)
def test_a_failing_part_is_named_and_the_others_work(part: str) -> None:
    parts: dict[str, Any] = {
        "clusters": make_clusterer(PLAIN),
        "embedding": make_embedder(PLAIN),
        "text": make_text_finder(PLAIN),
        "objects": NoObjects(),
    }
    parts[part] = Failing()
    provider = InStepKeyframes(StandardGenerator(*parts.values()))
    assert provider.submit(fakes.request(3)) == PARTS
    outcomes = provider.collect()
    (failure,) = [one for one in outcomes if isinstance(one, KeyframeFailure)]
    assert failure.message == f"{part}: ZeroDivisionError: on purpose"
    assert failure.parts == (part,) and failure.index == 3
    assert "Traceback" in failure.details
    assert {one.part for one in outcomes if isinstance(one, KeyframePart)} == set(PARTS) - {part}


def test_in_step_nothing_at_all_is_an_error() -> None:
    provider = InStepKeyframes(StandardGenerator(Failing(), Failing(), Failing()))
    with pytest.raises(KeyframeFailed, match="frame 3: clusters: ZeroDivisionError: on purpose; embedding: "):
        provider.submit(fakes.request(3))
    assert provider.collect() == []


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        *(("embedding", {"values": np.full((16, 4, 6), value)}, "embedding: values from") for value in WRONG),
        *(("text", {"mask": np.full((16, 24), value)}, "text: mask: values from") for value in WRONG),
        ("embedding", {"values": np.zeros((16, 6))}, r"embedding: \[16, 6\], expected \[D, h, w\]"),
        ("embedding", {"values": np.zeros((1, 16, 4, 6))}, r"expected \[D, h, w\]"),
        ("embedding", {"values": np.zeros((16, 0, 6))}, "no values"),
        ("text", {"mask": np.zeros((1, 16, 24))}, r"text: mask: .* expected \[h, w\]"),
        ("clusters", {"labels": np.zeros(9, np.int32)}, r"clusters: labels: \[9\], expected \[h, w\]"),
        ("clusters", {"labels": np.ones((16, 24), np.int32)}, "clusters: labels: values from 1.0"),
        ("clusters", {"areas": np.ones((1, 1))}, r"clusters: areas: .* expected \[n\]"),
        ("clusters", {"centroids_xy": np.zeros((3, 2))}, r"centroids are \[3, 2\] for 1 regions"),
        ("clusters", {"centroids_xy": np.zeros((1, 3))}, r"centroids are \[1, 3\] for 1 regions"),
        ("clusters", {"centroids_xy": np.full((1, 2), np.nan)}, "clusters: centroids: values from nan"),
    ],
)
def test_unusable_values_are_refused(part: PartName, changes: dict[str, Any], words: str) -> None:
    good: Any = fakes.parts(fakes.request(0))[part][0]
    check_value(part, good)
    with pytest.raises(KeyframeFailed, match=words):
        check_value(part, replace(good, **changes))


def test_another_kind_of_value_is_refused() -> None:
    made = fakes.parts(fakes.request(0))
    with pytest.raises(KeyframeFailed, match="text: got Clusters"):
        check_value("text", made["clusters"][0])
    with pytest.raises(KeyframeFailed, match="512 rows"):
        check_value("embedding", Embedding(np.zeros((512, 2, 2), np.float32), "somewhere"))
    check_value("embedding", Embedding(np.zeros((512, 2, 2), np.float32), "somewhere", joint=True))


def test_in_step_provider_answers_at_once_and_only_once() -> None:
    provider = InStepKeyframes(make_generator(PLAIN))
    assert provider.submit(fakes.request(1)) and provider.submit(fakes.request(2))
    assert [one.index for one in provider.collect()] == [1, 1, 1, 2, 2, 2]
    assert provider.collect() == []
    provider.close()


def test_in_step_provider_checks_what_any_generator_gives() -> None:
    provider = InStepKeyframes(fakes.Fake({"do": "nan", "to": ["embedding"]}))
    provider.submit(fakes.request(4))
    (failure,) = [one for one in provider.collect() if isinstance(one, KeyframeFailure)]
    assert "embedding: values from nan" in failure.message


def test_a_shared_embedder_looks_at_a_picture_once() -> None:
    class Counting:
        name = "counting"
        calls = 0

        def embed(self, picture: KeyframeInput) -> Embedding:
            self.calls += 1
            return Embedding(np.zeros((16, 1, 1), np.float32), "counting")

    counting = Counting()
    shared = OncePerPicture(counting)
    first, second = (KeyframeInput(fakes.request(i).frame, fakes.request(i).grid) for i in range(2))
    assert shared.embed(first) is shared.embed(first)
    shared.embed(second)
    assert counting.calls == 2 and shared.name == "counting"


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("keyframes.clusters", "slic-skimage"),
        ("keyframes.embeddings", "appearance"),
        ("keyframes.text", "rapidocr"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(key: str, known: str) -> None:
    with pytest.raises(InvalidSetting, match=known):
        Settings().with_values({key: "monks"})
    with pytest.raises(InvalidSetting, match="greater than or equal to 1"):
        Settings().with_values({"keyframes.cluster_count": 0})


def test_importing_the_package_loads_no_heavy_one() -> None:
    modules = "generate, worker, sharing, clusters, embeddings, text"
    code = f"import sys; from arr_stream.keyframes import {modules}; print([m for m in {HEAVY} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
