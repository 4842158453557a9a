"""A clip from its pixels to an answer: perception and chosen cells, against the stock model given whole frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable, Timing, Value, fields_of, short
from arr_stream.keyframes.generate import InStepKeyframes, KeyframeGenerator, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.stream import make_device
from arr_stream.types import Frame
from arr_stream.vlm.qwen3_vl.session import QwenSession
from benchmarks.scenes.clips import FPS, panning
from benchmarks.vlm.model import Timed
from benchmarks.vlm.passes import QUESTION
from benchmarks.vlm.stock import StockModel

ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EndToEndReport:
    """One clip and one question; times in milliseconds for all of it.

    Args:
        frames: Frames of the clip; perception sees each.
        keyframes: How many of them were keyframes.
        shown: Frames that both models are given.
        sent, held: Cells that ours was given, and chosen ones that it had already.
        stock_tokens, capped_tokens: Visual tokens of the stock model, with whole frames and with its processor's own
            limit of 768 a pair.
        answer_tokens: Tokens of every answer.
        parts: `perception`, `vision`, `prefill`, what the viewer does `beside them`, `question` (until its first
            token) and `decode` of ours; `processor` and `generate` of the stock model.
        ours, stock, capped: Everything.
        first_token: Of each, from the question to the first token of its answer. Ours has taken the frames in as they
            came; the stock model takes them in with the question.
    """

    frames: int
    keyframes: int
    shown: int
    sent: int
    held: int
    stock_tokens: int
    capped_tokens: int
    answer_tokens: int
    parts: dict[str, Timing]
    ours: Timing
    stock: Timing
    capped: Timing
    first_token: dict[str, Timing]

    @property
    def frames_a_second(self) -> float:
        """Return the frames a second that ours processes, with showing them to the model."""
        beforehand = sum(self.parts[name].median for name in _TAKING_IN)
        return self.frames * 1e3 / beforehand

    @property
    def ratios(self) -> dict[str, float]:
        return {
            "whole frames / ours": self.stock.median / self.ours.median,
            "frames of 768 tokens a pair / ours": self.capped.median / self.ours.median,
            "first token, whole frames / ours": self.first_token["stock"].median / self.first_token["ours"].median,
        }

    def table(self, size: str) -> ResultTable:
        """Return the table for frames of that size."""
        rows: list[tuple[Value, ...]] = [
            (name, short(each.median), None, None, None, None) for name, each in self.parts.items()
        ]
        ours = self.first_token["ours"].median
        for name, timing, first, tokens in (
            ("ours, all of it", self.ours, "ours", f"{self.sent}, and {self.held} held"),
            ("stock, whole frames", self.stock, "stock", self.stock_tokens),
            ("stock, at most 768 tokens a pair", self.capped, "capped", self.capped_tokens),
        ):
            waited = self.first_token[first].median
            times = timing.median / self.ours.median
            rows.append((name, short(timing.median), times, short(waited), waited / ours, tokens))
        title = f"{self.frames} frames of {size} ({self.keyframes} keyframes), {self.shown} of them shown"
        note = (
            f"One question, and {self.answer_tokens} tokens of an answer. Decoding the video is in neither. First "
            f"token: from the question on; ours has taken the frames in by then, {self.frames_a_second:.0f} a second."
        )
        columns = ("what", "median ms", "times ours", "first token, ms", "times ours", "visual tokens")
        return ResultTable(title, columns, tuple(rows), note, digits=2)

    def facts(self) -> Mapping[str, Any]:
        """Return the figures, times under names with their unit."""
        found = {
            f"{name}_ms" if name in ("parts", "ours", "stock", "capped", "first_token") else name: v
            for name, v in fields_of(self)
        }
        return {**found, "ratios": self.ratios}


@dataclass(slots=True)
class _Round:
    """Times and counts of one round of ours."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    keyframes: int = 0
    sent: int = 0
    held: int = 0
    answer_tokens: int = 0

    def add(self, part: str, milliseconds: float) -> None:
        self.milliseconds[part] = self.milliseconds.get(part, 0.0) + milliseconds


def bench_end_to_end(
    model: Timed,
    settings: Settings,
    *,
    size_wh: tuple[int, int],
    tokens: int,
    seconds: float,
    runs: int,
    progress: Callable[[str], None],
) -> EndToEndReport:
    """Time a made-up clip.

    Args:
        model: What to time.
        settings: Of perception and of the viewer; a new stream and a new memory in every round.
        size_wh: Size of the frames.
        tokens: Budget of a frame.
        seconds: Length of the clip, at 30 frames a second.
        runs: Rounds; one more before them warms up.
        progress: Told what comes next.
    """
    settings = settings.with_values({"selection.budget": str(tokens), "vlm.answer_tokens": ANSWER_TOKENS})
    clip = list(panning(size_wh, max(1, round(seconds * FPS))))
    step = max(1, round(FPS / settings.vlm.fps))
    shown = clip[::step]
    ours, stock = _Ours(model, settings, clip, step), _Stock(model, shown, FPS / step)
    rounds: list[_Round] = []
    for run in range(runs + 1):
        progress(f"end to end, round {run} of {runs}")
        rounds.append(ours.round())
        for capped in (False, True):
            stock.round(rounds[-1].answer_tokens, capped=capped)
    del rounds[0]
    parts = {name: Timing.of([each.milliseconds[name] for each in rounds]) for name in rounds[0].milliseconds}
    parts |= {name: Timing.of(times[1:]) for name, times in stock.milliseconds.items() if name in _STOCK_PARTS}
    last = rounds[-1]
    return EndToEndReport(
        frames=len(clip),
        keyframes=last.keyframes,
        shown=len(shown),
        sent=last.sent,
        held=last.held,
        stock_tokens=stock.tokens[False],
        capped_tokens=stock.tokens[True],
        answer_tokens=last.answer_tokens,
        parts=parts,
        ours=Timing.of([sum(each.milliseconds.values()) for each in rounds]),
        stock=Timing.of(stock.milliseconds["whole"][1:]),
        capped=Timing.of(stock.milliseconds["capped"][1:]),
        first_token={"ours": parts["question"]} | {name: Timing.of(times[1:]) for name, times in stock.first.items()},
    )


_TAKING_IN = ("perception", "vision", "prefill", "beside them")
_STOCK_PARTS = ("processor", "generate")


class _Ours:
    """Perception on every frame, the viewer on some, then the question."""

    def __init__(self, model: Timed, settings: Settings, clip: Sequence[Frame], step: int) -> None:
        self._model = model
        self._settings = settings
        self._clip = clip
        self._step = step
        # Once a run, as models are loaded once.
        self._generator: KeyframeGenerator = make_generator(settings)

    def round(self) -> _Round:
        pipeline = Pipeline(self._settings, InStepKeyframes(self._generator), device=make_device(self._settings))
        session = QwenSession(self._model.loaded, self._settings)
        made = _Round()
        for frame in self._clip:
            took: list[float] = []
            with self._model.clock(took):
                patches = pipeline.step(frame)
            made.add("perception", took.pop())
            made.keyframes += patches.keyframe
            if frame.index % self._step == 0:
                with self._model.clock(took):
                    feeding = session.see(frame, patches)
                made.add("vision", feeding.vision_ms)
                made.add("prefill", feeding.prefill_ms)
                made.add("beside them", took[0] - feeding.vision_ms - feeding.prefill_ms)
                made.sent += feeding.sent
                made.held += feeding.held
        took = []
        with self._model.clock(took):
            answer = session.ask(QUESTION)
        made.add("question", took[0] - answer.decode_ms)
        made.add("decode", answer.decode_ms)
        made.answer_tokens = answer.answer_tokens
        session.close()
        return made


class _Stock:
    """Processor and `generate` on the same frames."""

    def __init__(self, model: Timed, shown: Sequence[Frame], fps: float) -> None:
        self._model = model
        self._stock = StockModel(model)
        self._shown = shown
        self._fps = fps
        self.tokens = {False: 0, True: 0}
        self.first: dict[str, list[float]] = {"stock": [], "capped": []}
        self.milliseconds: dict[str, list[float]] = {
            name: [] for name in ("whole", "capped", *_STOCK_PARTS, "capped processor", "capped generate")
        }

    def round(self, answer_tokens: int, *, capped: bool) -> None:
        """Exactly as many tokens of an answer as ours had."""
        prefix = "capped " if capped else ""
        before, after = self.milliseconds[f"{prefix}processor"], self.milliseconds[f"{prefix}generate"]
        with self._model.clock(before):
            inputs = self._stock.video_inputs(self._shown, self._fps, QUESTION, capped=capped)
        with self._model.clock(after):
            self._stock.answer(inputs, max(1, answer_tokens))
        first: list[float] = []
        with self._model.clock(first):
            self._stock.answer(inputs, 1)
        self.first["capped" if capped else "stock"].append(before[-1] + first[-1])
        self.tokens[capped] = self._stock.visual_tokens(inputs)
        self.milliseconds["capped" if capped else "whole"].append(before[-1] + after[-1])
