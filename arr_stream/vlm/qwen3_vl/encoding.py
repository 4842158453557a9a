"""Four ways to turn chosen cells into visual tokens.

| mode | encoded by the vision tower | given to the language model |
|---|---|---|
| `sparse` | the chosen cells alone | all of them |
| `prune` | every cell | the chosen ones |
| `halo` | the chosen cells and a ring around them | the chosen ones |
| `weight` | every cell | every cell, attention biased by the logarithm of its relevance |

`sparse` computes nothing for what is left out, `prune` is the reference for quality (each cell has seen the whole
frame), `halo` lies between. In each, a coarse cell is a block of the frame scaled down, and a finer one four tokens cut
from the frame itself; but `weight`, which has every cell, has each as one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from arr_stream.errors import NothingChosen
from arr_stream.types import ByteArray, FloatArray
from arr_stream.vlm.qwen3_vl.adapter import Adapter, VisualTokens
from arr_stream.vlm.qwen3_vl.cells import Cells, Normalisation, concatenated, patch_rows

Mode = Literal["sparse", "prune", "halo", "weight"]

LEAST_WEIGHT = 0.01
"""Relevance below this counts as this in `weight`: a bias of -4.6, nearly unseen and yet there."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """K tokens of one frame, or of a pair, as the language model takes them, in reading order.

    `bias` is `[K]` float32, added to the attention to each; None outside of `weight`.
    """

    cells: Cells
    tokens: VisualTokens
    bias: Tensor | None = None

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, keep: FloatArray | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Block:
        """Some of the cells, by mask."""
        mask = torch.from_numpy(np.asarray(keep, bool))
        tokens = self.tokens.take(mask.to(self.tokens.features.device))
        return Block(self.cells.take(np.asarray(keep, bool)), tokens, None if self.bias is None else self.bias[mask])


class Feeder:
    """Encodes chosen cells in one of the modes of the module's text; `halo` is the width of the ring in cells."""

    def __init__(self, adapter: Adapter, normalisation: Normalisation, mode: Mode = "sparse", halo: int = 1) -> None:
        self._adapter = adapter
        self._normalisation = normalisation
        self._mode = mode
        self._halo = halo

    @torch.inference_mode()
    def feed(
        self,
        first: ByteArray,
        second: ByteArray,
        chosen: Cells,
        relevance: FloatArray | None = None,
        sources: tuple[ByteArray, ByteArray] | None = None,
    ) -> Block:
        """Encode the cells of a pair of frames, or of one frame given twice.

        Args:
            first, second: `[32 gh, 32 gw, 3]` pictures.
            chosen: Cells of both.
            relevance: `[gh, gw]` in [0, 1], for `weight`.
            sources: Both in source pixels, where cells are given finer.

        Raises:
            NothingChosen: No cells.
        """
        if not len(chosen):
            raise NothingChosen("no cell was chosen", remedy="raise the budget, or ask for something else")
        chosen = chosen.in_reading_order()
        if self._mode == "weight":
            return self._weighted(first, second, chosen, relevance)
        # The vision tower does not mind the order: the chosen come first, and of their tokens nothing else is kept.
        encoded = [chosen] if self._mode == "sparse" else [chosen, self._seen_beside(chosen)]
        tokens = self._encode(first, second, concatenated(encoded), sources)
        return Block(chosen, tokens.take(slice(len(chosen))))

    def _seen_beside(self, chosen: Cells) -> Cells:
        """Cells that are encoded with the chosen ones and then left out."""
        if self._mode == "halo":
            return chosen.ring(self._halo)
        whole = Cells.whole(chosen.grid_hw)
        fine = chosen.level <= 0
        left = np.ones(len(whole), bool)
        left[chosen.rows[fine] * chosen.grid_hw[1] + chosen.columns[fine]] = False
        return whole.take(left)

    def _weighted(self, first: ByteArray, second: ByteArray, chosen: Cells, relevance: FloatArray | None) -> Block:
        if relevance is None:
            relevance = np.zeros(chosen.grid_hw, np.float32)
            for (row, column, height, width), score in zip(chosen.blocks.tolist(), chosen.score.tolist(), strict=True):
                block = relevance[row : row + height, column : column + width]
                np.maximum(block, score, out=block)
        cells = Cells.whole(chosen.grid_hw, relevance)
        bias = torch.from_numpy(np.log(np.maximum(cells.score, LEAST_WEIGHT)).astype(np.float32))
        return Block(cells, self._encode(first, second, cells), bias)

    def _encode(
        self, first: ByteArray, second: ByteArray, cells: Cells, sources: tuple[ByteArray, ByteArray] | None = None
    ) -> VisualTokens:
        rows = patch_rows(first, second, cells, self._normalisation, sources)
        return self._adapter.encode(rows, cells, [len(cells)])
