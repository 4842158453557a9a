"""Parts of an answer that every output reports: the cells that it rested on, and the name of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arr_stream.plain_text import redact_url
from arr_stream.types import FloatArray, IntArray

TOLD_SHARE = 0.9
"""Share of an answer's attention that the reported cells carry."""
MOST_TOLD_CELLS = 100
"""Most cells reported per answer; a memory may hold thousands."""


def most_attended(cells: FloatArray, share: float = TOLD_SHARE, most: int = MOST_TOLD_CELLS) -> IntArray:
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


def model_name(model: str) -> str:
    """Return the model's name without its folder; secrets in an address are blanked."""
    if "://" in model:
        return redact_url(model)
    return Path(model).name if model.startswith(("/", "~", ".")) else model
