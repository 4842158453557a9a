"""Answers for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from arr_stream.patch_set import Answer, Feeding, PatchSet

FED = Feeding(40, 12, 1843, 9 << 20, 31.5, 48.25, "cut")


def answer_on(patches: PatchSet, **changes: Any) -> Answer:
    """An answer that rested on the chosen cells, on the first of them most; `changes` replace fields of it."""
    weight = 0.5 ** np.arange(len(patches), dtype=np.float32)
    cells = np.concatenate([patches.cells_xyxy, (weight / weight.sum())[:, None]], axis=1)
    fields: dict[str, Any] = {
        "question": "What is red?",
        "text": "A square that goes right.",
        "frame_index": patches.index,
        "pts_seconds": patches.pts_seconds,
        "model": "Qwen/Qwen3-VL-2B-Instruct",
        "cells": cells,
        "cell_frames": np.full(len(cells), patches.index, np.int32),
        "visual_tokens": 1790,
        "prompt_tokens": 14,
        "answer_tokens": 6,
        "prefill_ms": 61.0,
        "decode_ms": 120.4,
        "memory_tokens": 1843,
        "cache_bytes": 9 << 20,
    }
    return Answer(**(fields | changes))
