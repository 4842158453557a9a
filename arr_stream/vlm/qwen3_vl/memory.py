"""The model's memory: one growing KV cache at true positions.

Frames are appended; a question is read on top and rolled back. Attention is causal, so appending piece by
piece equals one pass over all of it. When the context is full, the memory is rebuilt from kept features: eviction from
the cache itself would leave traces of the evicted tokens in the remaining ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import block_extent, text_positions
from arr_stream.vlm.qwen3_vl.encoding import Block
from arr_stream.vlm.qwen3_vl.entries import Entry, FrameEntry, TextEntry
from arr_stream.vlm.qwen3_vl.prompt import Media, Prompt

PREFILL_CHUNK_TOKENS = 4096
"""Most tokens in one pass of the language model, so that a rebuild does not need memory for all at once."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Tokens to append: ids, `[3, N]` positions, and blocks with the offset of their first cell."""

    ids: list[int]
    positions: Tensor
    blocks: tuple[tuple[int, Block], ...] = ()


class Memory:
    """Conversation in a KV cache; see `SeenMemory`. `places` are the offsets of each frame's first cell in it."""

    def __init__(self, adapter: Adapter, prompt: Prompt, instruction: str = "") -> None:
        self.adapter = adapter
        self.prompt = prompt
        self._opening = prompt.opening(instruction)
        self.restart()

    def restart(self) -> None:
        self.frames: list[FrameEntry] = []
        self.places: list[int] = []
        self.position = 0.0
        self._cache = self.adapter.new_cache()
        self._bias = torch.zeros(0)
        self._started = False

    @property
    def tokens(self) -> int:
        return self.adapter.cached_tokens(self._cache)

    @property
    def opening_tokens(self) -> int:
        return len(self._opening)

    @property
    def visual_tokens(self) -> int:
        return sum(len(seen.block) for seen in self.frames)

    @property
    def cache_bytes(self) -> int:
        return self.adapter.cache_bytes(self._cache)

    def frame_tokens(self, cells: int, grid: Grid, seconds: float, media: Media) -> int:
        return len(self.prompt.before_cells(media, seconds)) + cells + len(self.prompt.after_cells)

    def cost(self, entries: Sequence[Entry]) -> int:
        """Return the tokens that entries would add, including the opening if it is not in yet."""
        opening = 0 if self._started else len(self._opening)
        return opening + sum(len(self._stretch(entry, 0.0).ids) for entry in entries)

    @torch.inference_mode()
    def append(self, entries: Sequence[Entry]) -> Tensor:
        """Append frames and text, in order, in as few passes as fit; return the last hidden state, `[D]`."""
        stretches = [] if self._started else [self._text(self._opening, self.position)]
        position = stretches[-1].positions[0, -1].item() + 1 if stretches else self.position
        places = []
        offset = self.tokens + sum(len(stretch.ids) for stretch in stretches)
        for entry in entries:
            stretch = self._stretch(entry, position)
            places += [offset + start for start, _ in stretch.blocks]
            position = stretch.positions[0, -1].item() + 1
            offset += len(stretch.ids)
            stretches.append(stretch)
        with self.kept(on_success=False):
            hidden = self._run(stretches)
        self._started = True
        self.frames += [entry for entry in entries if isinstance(entry, FrameEntry)]
        self.places += places
        self.position = position
        return hidden

    @torch.inference_mode()
    def read(self, ids: Sequence[int], position: float) -> Tensor:
        """Read text on top of the memory, within `kept`; return the hidden state of its last token, `[D]`."""
        return self._run([self._text(list(ids), position)])

    @contextmanager
    def kept(self, *, on_success: bool = True) -> Iterator[None]:
        """Undo everything that is read within the context; if not `on_success`, only after an error or Ctrl-C."""
        marks, bias, undo = self.adapter.mark(self._cache), self._bias, True
        try:
            yield
            undo = on_success
        finally:
            if undo:
                self.adapter.rewind(self._cache, marks)
                self._bias = bias

    def keys(self, layer: int) -> Tensor:
        """Return the keys of one layer, `[heads, tokens, d]`."""
        return self.adapter.keys(self._cache, layer)

    def bias(self) -> Tensor | None:
        """Return the bias `[tokens]` added to the attention to each token; None without any."""
        return self._bias if bool(self._bias.any()) else None

    def _stretch(self, entry: Entry, position: float) -> _Stretch:
        if isinstance(entry, TextEntry):
            return self._text(list(entry.ids), position)
        block, media = entry.block, entry.media
        assert isinstance(block, Block)
        before = self.prompt.before_cells(media, entry.seconds)
        after = self.prompt.after_cells
        start = position + len(before)
        ids = [*before, *[self.prompt.cell(media)] * len(block), *after]
        positions = [
            text_positions(len(before), position),
            block.positions(start),
            text_positions(len(after), start + block_extent(block.cells.grid_hw)),
        ]
        return _Stretch(ids, torch.cat(positions, dim=1), ((len(before), block),))

    def _text(self, ids: list[int], position: float) -> _Stretch:
        return _Stretch(ids, text_positions(len(ids), position))

    def _run(self, stretches: Sequence[_Stretch]) -> Tensor:
        """Run one or more passes over consecutive stretches; return the last hidden state."""
        whole = _joined(stretches)
        embeddings = self.adapter.embed(whole.ids)
        visual = torch.zeros(len(whole.ids), dtype=torch.bool)
        bias = torch.zeros(len(whole.ids))
        for offset, block in whole.blocks:
            cells = slice(offset, offset + len(block))
            visual[cells] = True
            embeddings[cells] = block.tokens.features.to(embeddings)
            if block.bias is not None:
                bias[cells] = block.bias
        deepstack = [
            torch.cat(level) for level in zip(*(block.tokens.deepstack for _, block in whole.blocks), strict=True)
        ]
        hidden = embeddings
        for start in range(0, len(whole.ids), PREFILL_CHUNK_TOKENS):
            part = slice(start, min(start + PREFILL_CHUNK_TOKENS, len(whole.ids)))
            self._bias = torch.cat([self._bias, bias[part]])
            shown = slice(int(visual[:start].sum()), int(visual[: part.stop].sum()))
            hidden = self.adapter.extend(
                self._cache,
                embeddings[part],
                whole.positions[:, part],
                visual[part],
                [level[shown] for level in deepstack],
                self.bias(),
            )
        return hidden[-1]


def _joined(stretches: Sequence[_Stretch]) -> _Stretch:
    offset, ids, blocks = 0, [], []
    for stretch in stretches:
        blocks += [(offset + at, block) for at, block in stretch.blocks]
        ids += stretch.ids
        offset += len(stretch.ids)
    return _Stretch(ids, torch.cat([stretch.positions for stretch in stretches], dim=1), tuple(blocks))
