"""Shows a model blocks of cells and asks it, many times over, from an empty memory each time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from arr_stream.types import ByteArray, FloatArray, Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, patch_rows
from arr_stream.vlm.qwen3_vl.decoding import respond
from arr_stream.vlm.qwen3_vl.encoding import Feeder, Mode
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.loading import LoadedModel
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt

ANSWER_TOKENS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Cells of one picture, or of a pair of frames.

    Args:
        first, second: `[32 gh, 32 gw, 3]`; twice the same for a picture.
        cells: Of both; none are left out of the memory.
        seconds: Of the pair; None for a picture.
        index: Of the second frame.
    """

    first: ByteArray
    second: ByteArray
    cells: Cells
    seconds: float | None
    index: int = 0

    @property
    def grid(self) -> Grid:
        rows, columns = self.cells.grid_hw
        return Grid((self.first.shape[1], self.first.shape[0]), rows, columns)


class Watcher:
    """A model that is shown blocks and asked.

    Args:
        loaded: The model.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.name = loaded.name
        self._adapter = Adapter(loaded.model)
        self._prompt = Prompt(loaded.tokenizer, self._adapter.config)
        self._normalisation = loaded.normalisation

    def watch(self, blocks: Sequence[Shown], mode: Mode = "sparse") -> tuple[Memory, float]:
        """A memory of these blocks, and the milliseconds that it took."""
        started = time.perf_counter()
        feeder = Feeder(self._adapter, self._normalisation, mode)
        memory = Memory(self._adapter, self._prompt)
        entries = []
        for shown in blocks:
            if len(shown.cells):
                block = feeder.feed(shown.first, shown.second, shown.cells)
                media: Literal["image", "video"] = "image" if shown.seconds is None else "video"
                entries.append(FrameEntry(block, shown.grid, shown.index, shown.seconds or 0.0, media))
        memory.append(entries)
        return memory, (time.perf_counter() - started) * 1e3

    def ask(self, memory: Memory, question: str) -> tuple[str, float]:
        """The answer, and the milliseconds that it took; the memory stays as it was."""
        started = time.perf_counter()
        said = respond(memory, self._prompt.question(question), most_tokens=ANSWER_TOKENS)
        return said.text.strip(), (time.perf_counter() - started) * 1e3

    @torch.inference_mode()
    def features(self, first: ByteArray, second: ByteArray) -> FloatArray:
        """`[gh, gw, D]`: what the tower makes of a whole pair, as rules that come after it see it."""
        cells = Cells.whole((first.shape[0] // 32, first.shape[1] // 32))
        rows = patch_rows(first, second, cells, self._normalisation)
        made = self._adapter.encode(rows, cells, [len(cells)]).features.float().numpy()
        return np.asarray(made.reshape(*cells.grid_hw, -1), np.float32)
