"""Vision tower and language model on one frame: the stock model's passes and ours, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable, Timing, Value, fields_of, short
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.types import ByteArray, Frame, Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, texture_picture
from arr_stream.vlm.qwen3_vl.encoding import Block, Feeder, Mode
from arr_stream.vlm.qwen3_vl.entries import FrameEntry, TextEntry
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from benchmarks.scenes.clips import panning
from benchmarks.vlm.model import Timed
from benchmarks.vlm.stock import StockModel

QUESTION = "What is happening here?"
SHARES = (0.10, 0.25, 0.50, 1.0)
_DECODED = 8

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PassesReport:
    """One frame and one question; times in milliseconds.

    Args:
        tokens, cells: Visual tokens that we and the stock model give to the language model.
        prompt_tokens, stock_prompt_tokens: Tokens of both prompts, cells included.
        vision, stock_vision: From pixels to features; ours with cutting the cells out of the frame, the stock
            model's without its processor.
        prefill, stock_prefill: From features to the scores of the answer's first token, in one pass over frame and
            question.
        question: The same for us where the frame is in the memory already, as it is when a stream is asked.
        operations: `vision` and `prefill`: multiplications of the stock model for each of ours, counted. What the
            times come to where nothing else costs any.
    """

    tokens: int
    cells: int
    prompt_tokens: int
    stock_prompt_tokens: int
    vision: Timing
    stock_vision: Timing
    prefill: Timing
    stock_prefill: Timing
    question: Timing
    operations: dict[str, float]

    @property
    def ratios(self) -> dict[str, float]:
        stock, ours = self.stock_vision.median + self.stock_prefill.median, self.vision.median + self.prefill.median
        return {
            "vision, stock / ours": self.stock_vision.median / self.vision.median,
            "prefill, stock / ours": self.stock_prefill.median / self.prefill.median,
            "both, stock / ours": stock / ours,
        }

    def table(self, size: str, about: str) -> ResultTable:
        """Return the table for frames of that size, with a note on the timed model."""
        pairs = (("vision", self.stock_vision, self.vision), ("prefill", self.stock_prefill, self.prefill))
        rows: list[tuple[Value, ...]] = [
            (part, short(stock.median), short(ours.median), stock.median / ours.median, self.operations.get(part))
            for part, stock, ours in pairs
        ]
        rows.append(("a question about a frame in memory", None, short(self.question.median), None, None))
        return ResultTable(
            f"One frame of {size}, {self.tokens} of {self.cells} cells; median ms",
            ("what", "stock", "ours", "times", "counted"),
            tuple(rows),
            f"Counted: by counted multiplications. Prompts of {self.stock_prompt_tokens} and {self.prompt_tokens} "
            f"tokens; {about}.",
            digits=2,
        )

    def facts(self) -> Mapping[str, Any]:
        """Times under names that tell their unit."""
        found = {f"{name}_ms" if isinstance(v, Timing) else name: v for name, v in fields_of(self)}
        return {**found, "ratios": self.ratios}


@dataclass(frozen=True, slots=True)
class ModeCost:
    """Cost of one mode at one share of a frame's cells; medians.

    Args:
        mode: `stock`, or one of the four.
        chosen: Number of chosen cells.
        kept: Number of cells that the language model gets.
        vision_ms, prefill_ms: As in `PassesReport`.
        decode_ms: For each token of the answer.
        cache_mb: Key-value cache with the question in it, in millions of bytes.
    """

    mode: str
    chosen: int
    kept: int
    vision_ms: float
    prefill_ms: float
    decode_ms: float
    cache_mb: float


def modes_table(modes: Sequence[ModeCost], size: str) -> ResultTable:
    """A line each, for frames of that size."""
    rows = tuple(
        (row.mode, row.chosen, row.kept, row.vision_ms, row.prefill_ms, row.cache_mb, row.decode_ms) for row in modes
    )
    headings = ("mode", "chosen", "kept", "vision ms", "prefill ms", "cache MB", "ms a token of the answer")
    return ResultTable(f"One frame of {size}; medians", headings, rows, digits=1)


def bench_passes(
    model: Timed, settings: Settings, *, size_wh: tuple[int, int], tokens: int, runs: int, progress: Progress
) -> PassesReport:
    """Time both on one frame.

    Args:
        model: What to time.
        settings: How cells are chosen.
        size_wh: Size of the frame.
        tokens: Cells to choose.
        runs: Rounds; one more before them warms up.
        progress: Told what comes next.
    """
    bench = _Bench(model, settings, size_wh)
    cells = chosen_cells(settings, bench.frame, tokens)
    feeder = bench.feeder("sparse")
    progress("warming up and counting")
    counted, stock_counted = _Times(counting=True), _Times(counting=True)
    bench.stock_round(stock_counted)
    bench.round(feeder, cells, counted)
    stock, ours = _Times(), _Times()
    for run in range(1, runs + 1):
        progress(f"passes over one frame, round {run} of {runs}")
        bench.stock_round(stock)
        bench.round(feeder, cells, ours)
    return PassesReport(
        tokens=ours.kept,
        cells=stock.kept,
        prompt_tokens=ours.prompt_tokens,
        stock_prompt_tokens=stock.prompt_tokens,
        vision=Timing.of(ours.vision),
        stock_vision=Timing.of(stock.vision),
        prefill=Timing.of(ours.prefill),
        stock_prefill=Timing.of(stock.prefill),
        question=Timing.of(ours.question),
        operations={
            "vision": stock_counted.vision[0] / counted.vision[0],
            "prefill": stock_counted.prefill[0] / counted.prefill[0],
        },
    )


def bench_modes(
    model: Timed, settings: Settings, *, size_wh: tuple[int, int], runs: int, progress: Progress
) -> tuple[ModeCost, ...]:
    """The modes at four shares of the frame's cells, and the stock model; arguments as of `bench_passes`.

    `weight` encodes and reads every cell whatever was chosen, and has one row.
    """
    bench = _Bench(model, settings, size_wh)
    shares = [chosen_cells(settings, bench.frame, max(1, round(share * bench.grid.cells))) for share in SHARES]
    wanted: list[tuple[Mode, Cells]] = [(mode, cells) for mode in _CHOOSING for cells in shares]
    if not bench.recurrent:
        wanted.append(("weight", shares[-1]))
    times = [_Times() for _ in wanted]
    stock = _Times()
    progress("warming up")
    bench.stock_round(_Times())
    bench.round(bench.feeder("sparse"), shares[-1], _Times())
    for run in range(1, runs + 1):
        progress(f"modes, round {run} of {runs}")
        bench.stock_round(stock)
        for (mode, cells), each in zip(wanted, times, strict=True):
            bench.round(bench.feeder(mode), cells, each)
    rows = [stock.cost("stock", bench.grid.cells)]
    rows += [each.cost(mode, len(cells)) for (mode, cells), each in zip(wanted, times, strict=True)]
    return tuple(rows)


def chosen_cells(settings: Settings, frame: Frame, tokens: int) -> Cells:
    """The cells that perception chooses on a first frame, coarse ones among them; every one where all are wanted."""
    grid = Grid.for_size(frame.size_wh, max_pixels=settings.grid.max_pixels)
    if tokens >= grid.cells:
        return Cells.whole((grid.rows, grid.columns))
    quick = settings.with_values({"selection.budget": str(tokens), "keyframes.text": "none"})
    patches = Pipeline(quick, InStepKeyframes(make_generator(quick))).step(frame)
    return Cells.chosen(patches)


_CHOOSING: tuple[Mode, ...] = ("sparse", "prune")


class _Times:
    """Milliseconds of the rounds of one candidate; or, `counting`, its operations."""

    def __init__(self, *, counting: bool = False) -> None:
        self.counting = counting
        self.vision: list[float] = []
        self.prefill: list[float] = []
        self.question: list[float] = []
        self.decode: list[float] = []
        self.kept = self.prompt_tokens = self.cache_bytes = 0

    def cost(self, mode: str, chosen: int) -> ModeCost:
        vision, prefill, decode = (statistics.median(each) for each in (self.vision, self.prefill, self.decode))
        return ModeCost(mode, chosen, self.kept, vision, prefill, decode / _DECODED, self.cache_bytes / 1e6)


class _Bench:
    """One frame and one question, for both."""

    def __init__(self, model: Timed, settings: Settings, size_wh: tuple[int, int]) -> None:
        self._model = model
        self._adapter = Adapter(model.loaded.model)
        self._prompt = Prompt(model.loaded.tokenizer, model.loaded.model.config)
        self._stock = StockModel(model)
        (self.frame,) = panning(size_wh, 1)
        self.grid = Grid.for_size(self.frame.size_wh, max_pixels=settings.grid.max_pixels)
        self._picture: ByteArray = texture_picture(self.frame.rgb, self.grid.texture_wh)
        self._inputs = self._stock.picture_inputs(self.frame.rgb, QUESTION)

    @property
    def recurrent(self) -> bool:
        return self._adapter.family.recurrent

    def feeder(self, mode: Mode) -> Feeder:
        return Feeder(self._adapter, self._model.loaded.normalisation, mode)

    @contextmanager
    def _measured(self, times: _Times, into: list[float]) -> Iterator[None]:
        if not times.counting:
            with self._model.clock(into):
                yield
            return
        # Of attention's kernels the plain one alone is counted by every version, with shared key-value heads too.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            yield
        into.append(float(counter.get_total_flops()))

    def stock_round(self, times: _Times) -> None:
        """The stock model over the whole frame."""
        with self._measured(times, times.vision):
            encoded = self._stock.encode(self._inputs)
        with self._measured(times, times.prefill):
            scores, cache = self._stock.prefill(self._inputs, encoded)
            token = int(scores.argmax())
        times.kept, times.prompt_tokens = self._stock.visual_tokens(self._inputs), self._adapter.cached_tokens(cache)
        times.cache_bytes = self._adapter.cache_bytes(cache)
        with self._measured(times, times.decode):
            for _ in range(_DECODED):
                token = int(self._stock.decode(cache, token).argmax())

    @torch.inference_mode()
    def round(self, feeder: Feeder, cells: Cells, times: _Times) -> None:
        """Ours over chosen cells: frame and question in one pass, and the question alone after the frame."""
        memory = Memory(self._adapter, self._prompt)
        question = self._prompt.question(QUESTION)
        with self._measured(times, times.vision):
            block: Block = feeder.feed(self._picture, self._picture, cells)
        seen = FrameEntry(block, self.grid, 0, 0.0, "image")
        with self._measured(times, times.prefill):
            token = int(self._adapter.logits(memory.append([seen, TextEntry(tuple(question))])).argmax())
        times.kept, times.prompt_tokens = len(block), memory.tokens
        times.cache_bytes = memory.cache_bytes
        with self._measured(times, times.decode):
            for number in range(_DECODED):
                token = int(self._adapter.logits(memory.read([token], memory.position + number)).argmax())
        watched = Memory(self._adapter, self._prompt)
        watched.append([seen])
        with self._measured(times, times.question):
            int(self._adapter.logits(watched.read(question, watched.position)).argmax())
