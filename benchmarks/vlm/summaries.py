"""Do tokens that sum up what was not chosen tell a model more than as many more chosen cells?

In `prune` the vision tower has seen every cell, and `vlm.region_tokens` spends some of a frame's tokens on means of
what it made of those that were not chosen. What a model then makes of a question is compared with what it makes of it
when it has every cell. All measures are 0 for the whole frame:

- *state*: squared distance of the last hidden state, from which the first token of the answer is predicted, from
  that with every cell, as a share of that with no cell at all;
- *divergence*: of the probabilities of that token from those with every cell (Kullback-Leibler, in nats);
- *features*: squared distance of every cell's features from those of the token that is nearest to them, as a share
  of their variance;
- *meaning*: squared distance of every cell's embedding from the mean of those that its token shows, likewise; of a
  cell that no token shows, from the mean of the frame. With `keyframes.embeddings=clip` these were learned.

Weights that were never trained can tell of fidelity to the whole frame, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from arr_stream.config import Settings
from arr_stream.evaluation.davis import Sequence as Footage
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.keyframes.embeddings import make_text_encoder
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.selection.atlas import AtlasTokens
from arr_stream.texture.arrays import to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import ByteArray, Frame, IntArray
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, texture_picture
from arr_stream.vlm.qwen3_vl.encoding import Block, Feeder
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.loading import LoadedModel
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from arr_stream.vlm.qwen3_vl.regions import Summaries, summarised
from arr_stream.vlm.qwen3_vl.sent_cells import TokenMap
from benchmarks.atlas import detail_kept
from benchmarks.vlm.passes import QUESTION

SHARES = (0.1, 0.25, 0.5)
"""Of a frame's cells, the tokens that the model is given."""

PARTS = (0.125, 0.25, 0.5)
"""Of those tokens, the ones that are not chosen cells."""

_CLUSTER = CHANNEL_INDEX["cluster"]
_EMBEDDING = [index for name, index in CHANNEL_INDEX.items() if name.startswith("embedding")]

Way = tuple[str, float, float]
"""Name, share of the cells that are tokens, part of the tokens that are not chosen cells."""

Measures = tuple[float, float, float, float]
"""State, divergence, features and meaning."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One way to spend a frame's tokens, means over frames and models; the measures of the module's text.

    Args:
        way: How.
        tokens: Share of the frame's cells.
        part: Part of the tokens that are not chosen cells.
        state, divergence, features, meaning: How far it is from the whole frame.
        nearer: Share of the frames on which *state* is nearer than with plain choice.
    """

    way: str
    tokens: float
    part: float
    state: float
    divergence: float
    features: float
    meaning: float
    nearer: float


@dataclass(frozen=True, slots=True)
class SummaryReport(Report):
    """All rows; `frames` counts every frame once for each model."""

    rows: tuple[SummaryRow, ...]
    frames: int

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        """One for each number of tokens."""
        headings = ("besides chosen cells", "part", "state", "divergence", "features", "meaning", "nearer than chosen")
        found = []
        for tokens in dict.fromkeys(row.tokens for row in self.rows):
            rows = [
                (row.way, f"{row.part:.1%}", row.state, row.divergence, row.features, row.meaning, row.nearer)
                for row in self.rows
                if row.tokens == tokens
            ]
            title = f"Summaries of what was not chosen, {tokens:.0%} of the cells as tokens"
            note = f"Means over {self.frames} looks at a frame; less is better, but for the last column."
            found.append(ResultTable(title, headings, tuple(rows), note))
        return tuple(found)


def spread_frames(footage: Footage, count: int) -> list[Frame]:
    """So many of its frames, evenly apart and none at an end."""
    frames = footage.frames()
    return [frames[len(frames) * (2 * number + 1) // (2 * count)] for number in range(count)]


def evaluate_summaries(
    settings: Settings,
    models: Sequence[LoadedModel],
    frames: Sequence[Frame],
    progress: Callable[[str], None] = lambda _: None,
) -> SummaryReport:
    """Every way on every frame, by every model; perception looks at each frame as at a first one."""
    found: dict[Way, list[Measures]] = {}
    perception = _Perception(settings)
    for number, frame in enumerate(frames, 1):
        seen = _Perceived(perception, frame)
        for model in models:
            progress(f"frame {number} of {len(frames)}, {model.name}")
            reader = _Reader(model, seen)
            for way, measured in _measured(seen, reader):
                found.setdefault(way, []).append(measured)
    rows = []
    for way, values in found.items():
        plain = np.array(found["chosen", way[1], 0.0])
        nearer = float((np.array(values)[:, 0] < plain[:, 0]).mean())
        state, divergence, features, meaning = np.mean(values, axis=0).tolist()
        rows.append(SummaryRow(*way, state, divergence, features, meaning, nearer))
    return SummaryReport(tuple(rows), len(frames) * len(models))


class _Perception:
    """Looks at each frame as at the first of a stream."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._encoder = settings, make_text_encoder(settings)
        self._generator = make_generator(settings)

    def choose(self, frame: Frame, *, tokens: int, context_share: float) -> PatchSet:
        settings = self._settings.with_values(
            {"selection.budget": str(tokens), "selection.context_share": context_share}
        )
        return Pipeline(settings, InStepKeyframes(self._generator), encoder=self._encoder).step(frame)


class _Perceived:
    """What perception makes of one frame."""

    def __init__(self, perception: _Perception, frame: Frame) -> None:
        self._perception, self._frame = perception, frame
        patches = perception.choose(frame, tokens=1, context_share=0.0)
        self.grid, self.score = patches.grid, patches.relevance
        self.hw = (patches.grid.rows, patches.grid.columns)
        self.picture: ByteArray = texture_picture(frame.rgb, patches.grid.texture_wh)
        self.embedding = to_numpy(patches.texture.cells(_EMBEDDING))
        clusters = to_numpy(patches.texture.cells([_CLUSTER])[0]).astype(np.int32)
        self.divisions: dict[str, IntArray] = {"clusters": clusters, "even places": np.zeros(self.hw, np.int32)}

    def best(self, count: int) -> Cells:
        """So many fine cells, those with the highest scores."""
        return Cells.whole(self.hw, self.score).best(count)

    def with_coarse(self, tokens: int) -> Cells:
        """So many cells, coarse ones among them where that is worth it."""
        return Cells.chosen(self._perception.choose(self._frame, tokens=tokens, context_share=0.1))


class _Reader:
    """One model that is asked about one frame."""

    def __init__(self, model: LoadedModel, seen: _Perceived) -> None:
        self._adapter = Adapter(model.model)
        self._feeder = Feeder(self._adapter, model.normalisation, "prune")
        self._prompt = Prompt(model.tokenizer, self._adapter.config)
        self._seen = seen
        self.every = self.block(Cells.whole(seen.hw))
        self._state = self._last_state(self.every)
        self._blind = float(((self._last_state(None) - self._state) ** 2).sum())
        self._scores = self._adapter.logits(self._state).log_softmax(-1)
        self._features = self.every.tokens.features.float()
        self._variance = float(((self._features - self._features.mean(0)) ** 2).sum())

    def block(self, cells: Cells, summaries: Summaries | None = None) -> Block:
        """Chosen cells as the product feeds them."""
        return self._feeder.feed(self._seen.picture, self._seen.picture, cells, summaries=summaries)

    def measure(self, block: Block) -> Measures:
        """How far the model is with these tokens from what it is with all."""
        state = self._last_state(block)
        scores = self._adapter.logits(state).log_softmax(-1)
        shown = TokenMap.of([self._entry(block)], self._seen.grid, 0)
        nearest = torch.cdist(self._features, block.tokens.features.float()).amin(1)
        return (
            float(((state - self._state) ** 2).sum()) / self._blind,
            float((self._scores.exp() * (self._scores - scores)).sum()),
            float((nearest**2).sum()) / self._variance,
            1 - detail_kept(self._seen.embedding, shown.cell),
        )

    def _last_state(self, block: Block | None) -> Tensor:
        memory = Memory(self._adapter, self._prompt)
        memory.append([] if block is None else [self._entry(block)])
        return memory.read(self._prompt.question(QUESTION), memory.position).float()

    def _entry(self, block: Block) -> FrameEntry:
        return FrameEntry(block, self._seen.grid, 0, 0.0, "image")


@torch.inference_mode()
def _measured(seen: _Perceived, reader: _Reader) -> Iterator[tuple[Way, Measures]]:
    """Every way to spend the tokens on one frame, and what comes of it."""
    cells = seen.grid.cells
    for share in SHARES:
        tokens = max(2, round(share * cells))
        plain = reader.block(seen.best(tokens))
        yield ("chosen", share, 0.0), reader.measure(plain)
        by_size = replace(plain, bias=torch.full((tokens,), float(np.log(cells / tokens))))
        yield ("chosen, by size", share, 0.0), reader.measure(by_size)
        yield ("chosen, coarse ones too", share, 0.0), reader.measure(reader.block(seen.with_coarse(tokens)))
        for part, (regions, labels) in product(PARTS, seen.divisions.items()):
            count = max(1, round(part * tokens))
            chosen = seen.best(tokens - count)
            summaries = summarised(labels, seen.score, ~chosen.covered(), count)
            means = reader.block(chosen, summaries)
            yield (f"means by size, {regions}", share, part), reader.measure(means)
            yield (f"means, {regions}", share, part), reader.measure(replace(means, bias=None))
            yield (f"one cell by size, {regions}", share, part), reader.measure(_one_cell_each(means, reader.every))


def _one_cell_each(means: Block, every: Block) -> Block:
    """For each summary the cell in its middle instead, at its own place and as heavy as the summary."""
    assert means.summaries is not None and means.bias is not None
    middles = AtlasTokens(means.summaries.of_cell, np.arange(len(means.summaries), dtype=np.int32)).cells
    own = Block(means.cells, means.tokens.take(slice(len(means.cells))))
    alone = np.full(means.summaries.of_cell.size, -1, np.int32)
    alone[middles] = np.arange(len(middles), dtype=np.int32)
    summaries = Summaries(alone.reshape(means.cells.grid_hw), means.summaries.score)
    tokens = own.tokens.beside(every.tokens.take(torch.from_numpy(middles).long()))
    return Block(means.cells, tokens, means.bias, summaries)
