"""What a model took in and answered, as consumers tell of it; free of OpenCV, like the records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.patch_set import Answer, Feeding
from arr_stream.plain_text import redact_url
from arr_stream.types import FloatArray, IntArray

CELLS_SHARE = 0.9
"""Cells that carry this much of an answer's attention are told of."""
CELLS_MOST = 100
"""At most so many cells are told of; a memory may hold thousands."""


def weightiest(cells: FloatArray, share: float = CELLS_SHARE, most: int = CELLS_MOST) -> IntArray:
    """`[n]` int32, places in `cells` of the fewest that carry `share` of the attention of all, largest first.

    Args:
        cells: `[N, 5]`, rectangles and the share that each got.
        share: In [0, 1].
        most: Upper limit of n.

    Raises:
        ValueError: A rectangle or a share is not finite.
    """
    if not np.isfinite(cells).all():
        raise ValueError("a cell that an answer rested on is not finite")
    order = np.argsort(-cells[:, 4], kind="stable")
    reached = np.cumsum(cells[order, 4], dtype=np.float64)
    if not len(order) or reached[-1] <= 0:
        return np.zeros(0, np.int32)
    # Rounding must not ask for one more cell than carries the share.
    count = int(np.searchsorted(reached, share * reached[-1] * (1 - 1e-6))) + 1
    return order[: min(count, most)].astype(np.int32)


def shown_name(model: str) -> str:
    """The model's name without the folder that it lies in; what is secret in an address is blanked."""
    if "://" in model:
        return redact_url(model)
    return Path(model).name if model.startswith(("/", "~", ".")) else model


def feeding_record(feeding: Feeding) -> dict[str, Any]:
    """What a frame added to the model's memory as plain JSON values; milliseconds to 3 decimals."""
    return {
        "sent": int(feeding.sent),
        "held": int(feeding.held),
        "memory_tokens": int(feeding.memory_tokens),
        "cache_bytes": int(feeding.cache_bytes),
        "vision_ms": round(float(feeding.vision_ms), 3),
        "prefill_ms": round(float(feeding.prefill_ms), 3),
        "rebuilt": feeding.rebuilt,
        "error": one_line(feeding.error),
        "frame_index": int(feeding.frame_index),
    }


def answer_record(answer: Answer) -> dict[str, Any]:
    """An answer as plain JSON values: pixels to 2 decimals, shares to 4, milliseconds to 3.

    Of the cells it keeps those that carry 90% of the attention, at most 100, largest share first.

    Raises:
        ValueError: A number is not finite.
    """
    kept = weightiest(answer.cells)
    boxes = answer.cells[kept, :4].astype(float).round(2).tolist()
    shares = answer.cells[kept, 4].astype(float).round(4).tolist()
    times = float(answer.pts_seconds), float(answer.prefill_ms), float(answer.decode_ms)
    if not all(map(math.isfinite, times)):
        raise ValueError(f"the answer after frame {answer.frame_index}: a time is not finite")
    return {
        "type": "answer",
        "frame_index": int(answer.frame_index),
        "pts_seconds": round(times[0], 6),
        "question": redact_url(answer.question),
        "text": redact_url(answer.text),
        "model": shown_name(answer.model),
        "cells": [
            [*box, share, frame]
            for box, share, frame in zip(boxes, shares, answer.cell_frames[kept].tolist(), strict=True)
        ],
        "visual_tokens": int(answer.visual_tokens),
        "prompt_tokens": int(answer.prompt_tokens),
        "answer_tokens": int(answer.answer_tokens),
        "prefill_ms": round(times[1], 3),
        "decode_ms": round(times[2], 3),
        "memory_tokens": int(answer.memory_tokens),
        "cache_bytes": int(answer.cache_bytes),
        "finish": answer.finish,
        "error": one_line(answer.error),
    }


def one_line(text: str | None) -> str | None:
    """The text in one line, with what is secret in addresses blanked."""
    return None if text is None else redact_url(" ".join(text.split()))
