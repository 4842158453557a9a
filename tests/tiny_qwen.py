"""Tiny models of every family on disk, made once a test run by `scripts/make_tiny_qwen3_vl.py`.

Its weights are random: it shows that a mechanism is exact and says nothing of answers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_stream.vlm.qwen3_vl.families import FAMILIES

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "make_tiny_qwen3_vl.py"


def maker() -> ModuleType:
    """The script as a module: `make_tiny_qwen3_vl(folder, *, seed, vision_layers, text_layers, hidden, ...)`."""
    if SCRIPT.stem in sys.modules:
        return sys.modules[SCRIPT.stem]
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


EVERY_FAMILY = pytest.mark.parametrize("tiny_qwen", FAMILIES, indirect=True)


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a family's model of 4 vision and 4 text layers, 64 wide, with its processor and tokenizer."""
    pytest.importorskip("transformers")
    torch.set_num_threads(1)

    @cache
    def make(family: str) -> Path:
        name = f"tiny-{family.replace('_', '-')}"
        folder: Path = maker().make_tiny_qwen3_vl(tmp_path_factory.mktemp("models") / name, family=family)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_qwen(request: pytest.FixtureRequest, make_tiny: Callable[[str], Path]) -> Path:
    """Folder of a Qwen3-VL, or of the families of `EVERY_FAMILY`."""
    return make_tiny(getattr(request, "param", "qwen3_vl"))


@pytest.fixture(scope="session")
def tiny(tiny_qwen: Path) -> tuple[Any, Any]:
    """Model and processor of that folder; not to be changed."""
    return load_tiny(tiny_qwen)


def load_tiny(folder: Path, **kwargs: Any) -> tuple[Any, Any]:
    """Model (float32, evaluating) and processor of a folder, loaded as a user would load the true ones."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, **kwargs).eval()
    return model, AutoProcessor.from_pretrained(folder)


def picture(width: int = 320, height: int = 256, seed: int = 0) -> npt.NDArray[np.uint8]:
    """`[H, W, 3]` of coloured rectangles under noise: no two cells alike."""
    draw = np.random.default_rng(seed)
    rgb = np.full((height, width, 3), draw.integers(0, 256, 3), np.float32)
    for _ in range(12):
        x0, y0 = draw.integers(0, width - 16), draw.integers(0, height - 16)
        rgb[y0 : y0 + draw.integers(16, height), x0 : x0 + draw.integers(16, width)] = draw.integers(0, 256, 3)
    noisy = rgb + draw.normal(0, 12, rgb.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)
