"""Encoding of chosen cells into visual tokens, in three modes.

| mode | encoded by the vision tower | given to the language model |
|---|---|---|
| `sparse` | the chosen cells alone | all of them |
| `prune` | every cell | the chosen ones |
| `weight` | every cell | every cell, attention biased by the logarithm of its relevance |

`sparse` computes nothing for the other cells; `prune` is the reference for quality, since each cell has attended to the
whole frame. In both, a coarse cell is a block of the frame scaled down, and a finer one four tokens cut from the frame
itself; `weight` takes every cell as one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from arr_stream.errors import InvalidSetting, NothingChosen
from arr_stream.types import BoolArray, ByteArray, FloatArray
from arr_stream.vlm.qwen3_vl.adapter import Adapter, VisualTokens
from arr_stream.vlm.qwen3_vl.cells import Cells, Normalisation, concatenated, patch_rows, token_positions

Mode = Literal["sparse", "prune", "weight"]

LEAST_WEIGHT = 0.01
"""Lower bound of relevance in `weight`: a bias of -4.6 makes a cell nearly invisible."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Tokens of one frame, or of a pair: K cells in reading order, one token each, and the features of each.

    `bias` `[K]` is added to the attention to each cell.
    """

    cells: Cells
    tokens: VisualTokens
    bias: Tensor | None = None

    def __len__(self) -> int:
        return len(self.cells)

    def positions(self, start: float) -> Tensor:
        """Return time, row and column of every token of a block that starts at `start`; `[3, K]` float32."""
        return token_positions(self.cells, start)

    def select(self, keep: BoolArray) -> Block:
        """Return the tokens that the mask keeps."""
        mask = torch.from_numpy(keep)
        tokens = self.tokens.select(mask.to(self.tokens.features.device))
        return Block(self.cells.select(keep), tokens, None if self.bias is None else self.bias[mask])


class Feeder:
    """Encoder of chosen cells in one of the modes described above.

    Raises:
        InvalidSetting: `weight` with a model that has recurrent layers.
    """

    def __init__(self, adapter: Adapter, normalisation: Normalisation, mode: Mode = "sparse") -> None:
        if mode == "weight" and adapter.family.recurrent:
            raise InvalidSetting(
                f"vlm.mode=weight biases attention, and most layers of a {adapter.family.name} have no attention",
                remedy="choose vlm.mode=sparse or prune, or a Qwen3-VL",
            )
        self._adapter = adapter
        self._normalisation = normalisation
        self._mode = mode

    @torch.inference_mode()
    def feed(
        self,
        first: ByteArray,
        second: ByteArray,
        chosen: Cells,
        relevance: FloatArray | None = None,
        sources: tuple[ByteArray, ByteArray] | None = None,
    ) -> Block:
        """Encode the cells of a pair of `[32 gh, 32 gw, 3]` pictures, or of one given twice.

        Args:
            first, second, chosen: The pictures and the cells of both.
            relevance: `[gh, gw]` in [0, 1], for `weight`; by default that of the chosen cells, 0 elsewhere.
            sources: Both in source pixels, if there are finer cells.

        Raises:
            NothingChosen: No cells.
        """
        if not len(chosen):
            raise NothingChosen("no cell was chosen", remedy="raise the budget, or ask for something else")
        chosen = chosen.in_reading_order()
        if self._mode == "weight":
            return self._weighted(first, second, chosen, relevance)
        # The vision tower ignores the order, so the chosen cells come first.
        beside = None if self._mode == "sparse" else _others(chosen)
        encoded = self._encode(first, second, chosen if beside is None else concatenated([chosen, beside]), sources)
        return Block(chosen, encoded.select(slice(len(chosen))))

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


def _others(chosen: Cells) -> Cells:
    """Return the fine cells that are not chosen, which `prune` encodes with the chosen ones and then drops."""
    whole = Cells.whole(chosen.grid_hw)
    fine = chosen.level <= 0
    left = np.ones(len(whole), bool)
    left[chosen.rows[fine] * chosen.grid_hw[1] + chosen.columns[fine]] = False
    return whole.select(left)
