"""Generation in step: the parts with their times, and values that are refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import KeyframeFailed
from arr_stream.keyframes.base import KeyframePart, PartName
from arr_stream.keyframes.generate import (
    KeyframeGenerator,
    KeyframeRequest,
    check_value,
    make_generator,
    make_part,
)
from tests import keyframe_fakes as fakes

WRONG = (np.nan, np.inf, 1.5, -1.5)
HEAVY = ("torch", "skimage", "rapidocr", "onnxruntime", "easyocr", "open_clip", "timm", "segment_anything")
PLAIN = Settings().with_values({"keyframes.clusters": "grid", "keyframes.text": "none", "keyframes.objects": "off"})


def generated(generator: KeyframeGenerator, request: KeyframeRequest) -> dict[str, KeyframePart]:
    made = [make_part(request.frame.index, part, job) for part, job in generator.jobs(request).items()]
    return {part.part: part for part in made if isinstance(part, KeyframePart)}


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


def test_importing_the_package_loads_no_heavy_one() -> None:
    modules = "generate, worker, clusters, embeddings, text"
    code = f"import sys; from arr_stream.keyframes import {modules}; print([m for m in {HEAVY} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
