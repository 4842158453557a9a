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
        ("embedding", {"values": np.zeros((16, 0, 6))}, r"expected \[D, h, w\]"),
        ("text", {"mask": np.zeros((1, 16, 24))}, r"text: mask: .* expected \[h, w\]"),
    ],
)
def test_unusable_values_are_refused(part: PartName, changes: dict[str, Any], words: str) -> None:
    good: Any = fakes.parts(fakes.request(0))[part][0]
    check_value(good)
    with pytest.raises(KeyframeFailed, match=words):
        check_value(replace(good, **changes))


def test_importing_the_package_loads_no_heavy_one() -> None:
    modules = "generate, worker, clusters, embeddings, text"
    code = f"import sys; from arr_stream.keyframes import {modules}; print([m for m in {HEAVY} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
