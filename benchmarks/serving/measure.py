"""`python -m benchmarks serving`: one engine, four servers, the same clips: time, throughput and right answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.errors import ServerFailed
from arr_stream.evaluation.answers import wilson
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.relevance.question import sought
from arr_stream.types import ByteArray, Grid
from arr_stream.vlm.qwen3_vl.adapter import use_transformers
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.server.carrying import CarryingSession
from arr_stream.vlm.server.chat import ChatServer, Endpoint
from arr_stream.weights.catalogue import shipped_folder
from benchmarks.answers.table import CLIP_SECONDS, CLIP_SIZE, drawn, is_same
from benchmarks.answers.watching import watched
from benchmarks.scenes.camera import FPS
from benchmarks.scenes.stories import clip_story
from benchmarks.serving.pruning_on_cpu import found_by_vllm
from benchmarks.serving.server import PLUGIN, VllmServer, vllm_server
from benchmarks.serving.showing import VIDEO_FLAGS, Parts, cells, scaled_down, whole
from benchmarks.vlm.model import Shape, processor_of, random_model

SHARE = 0.25
STREAMS = (1, 4, 16)
_MARKED = "<|vision_start|><|video_pad|><|vision_end|>"
_SEED = 20_260_103
_GRAIN_PX = 8
_CACHE = {"VLLM_CPU_KVCACHE_SPACE": "2"}
"""GB: enough for the prefixes of all streams, whole frames' too."""
_EACH = int(FPS) // 2


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames that a stream shows before each of its questions."""

    frames: int
    size_wh: tuple[int, int]
    turns: int

    def __str__(self) -> str:
        return f"{self.frames} frames of {self.size_wh[0]}x{self.size_wh[1]}"


SMALL, LARGE = Clip(4, (320, 320), 4), Clip(2, (1280, 704), 2)
OURS, STOCK, SMALLER, BESIDE = "chosen cells, plugin", "whole, stock", "scaled down, stock", "whole, plugin"
SERVERS: Mapping[str, tuple[str, ...]] = {
    "stock": (),
    "plugin": PLUGIN,
    "evs": ("--video-pruning-rate", str(1 - SHARE), "--video-pruning-method", "evs"),
    "vidcom2": ("--video-pruning-rate", str(1 - SHARE), "--video-pruning-method", "vidcom2"),
}
WAYS: Mapping[str, str] = {
    STOCK: "stock",
    SMALLER: "stock",
    "Efficient Video Sampling": "evs",
    "VidCom2": "vidcom2",
    BESIDE: "plugin",
    OURS: "plugin",
}
"""Each way, and the server that it needs."""
_BASE = {OURS: BESIDE}
"""What a way is compared with, where that is not `STOCK`: whole frames in the same minutes, of the same server."""


@dataclass(frozen=True, slots=True)
class Call:
    """One question to one server.

    Args:
        what: Shown: `picture`, `clip`, a `Clip` of a stream or `question` about a drawn clip.
        way: How.
        streams: Of how many at once.
        ms: From sending to the answer.
        prompt_tokens, cached_tokens, answer_tokens: As the server counts them.
        right: Of a question, whether it was answered right.
        lost: No answer came.
    """

    what: str
    way: str
    streams: int
    ms: float
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int = 0
    right: bool | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ServingReport(Report):
    """All calls, and how long the streams of each way took in all."""

    shape: str
    calls: tuple[Call, ...]
    took_seconds: Mapping[tuple[str, str, int], float]

    def facts(self) -> Mapping[str, Any]:
        return {"model": self.shape, "share": SHARE, "calls": len(self.calls)}

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        return tuple(table for table in (self._times(), self._streams(), self._answers()) if table.rows)

    def _of(self, what: str, way: str, streams: int = 1) -> list[Call]:
        return [each for each in self.calls if (each.what, each.way, each.streams) == (what, way, streams)]

    def _times(self) -> ResultTable:
        rows: list[tuple[Value, ...]] = []
        for what in ("picture", "clip"):
            for way in WAYS:
                if calls := self._of(what, way):
                    ms, whole_ms = _median(calls), _median(self._of(what, _BASE.get(way, STOCK)))
                    rows.append((what, way, calls[0].prompt_tokens, round(ms), ms and whole_ms / ms))
        columns = ("shown", "way", "tokens of the prompt", "ms to the first token", "times sooner than whole")
        return ResultTable("Time to the first token", columns, tuple(rows), digits=2)

    def _streams(self) -> ResultTable:
        rows: list[tuple[Value, ...]] = []
        rates: dict[tuple[str, int, str], float] = {}
        for shown, way, count in sorted(self.took_seconds, key=self._place):
            calls = self._of(shown, way, count)
            took = self.took_seconds[shown, way, count]
            lost, said = sum(call.lost for call in calls), sum(call.answer_tokens for call in calls) / took
            rate = (len(calls) - lost) / took
            rates[shown, count, way] = rate
            whole_rate = rates.get((shown, count, _BASE.get(way, STOCK)))
            times = None if whole_rate is None else rate / whole_rate
            ms = [call.ms for call in calls]
            prompted = sum(call.prompt_tokens for call in calls)
            cached = sum(call.cached_tokens for call in calls) / max(1, prompted)
            waited = float(np.median(ms)), float(np.percentile(ms, 95))
            rows.append((shown, count, way, rate, times, said, *waited, cached, lost))
        columns = ("answers a second", "of whole", "tokens a second", "median ms", "p95 ms", "cached share", "lost")
        return ResultTable("Streams that ask", ("shown", "streams", "way", *columns), tuple(rows), digits=2)

    @staticmethod
    def _place(streamed: tuple[str, str, int]) -> tuple[bool, int, int]:
        shown, way, count = streamed
        return shown == str(LARGE), count, list(WAYS).index(way)

    def _answers(self) -> ResultTable:
        rows: list[tuple[Value, ...]] = []
        for way in WAYS:
            if calls := self._of("question", way):
                right = float(np.mean([bool(call.right) for call in calls]))
                low, high = wilson(right, len(calls))
                tokens = float(np.mean([call.prompt_tokens for call in calls]))
                rows.append((way, len(calls), right, low, high, round(tokens), round(_median(calls))))
        columns = ("way", "questions", "right", "from", "to", "tokens of the prompt", "ms")
        return ResultTable("Right answers about drawn clips", columns, tuple(rows))


def measure(
    executable: str,
    *,
    times: bool = True,
    clips: int = 20,
    runs: int = 5,
    streams: Sequence[int] = STREAMS,
    shape: Shape | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ServingReport:
    """Start each server once for each model, and ask.

    Args:
        executable: `vllm` of an environment that has the plugin.
        times: With a model of middle size and random weights: time to the first token, and streams.
        clips: With the tiny model: drawn clips that are asked about; 0 for none.
        runs: Of which medians are taken.
        streams: That ask at once; large frames are shown by the most of them alone.
        shape: Of the model with random weights.
        progress: Told how far it is.

    Raises:
        ServerFailed: vLLM did not come up, or refuses.
    """
    shape = shape or Shape()
    calls: list[Call] = []
    took: dict[tuple[str, str, int], float] = {}
    streamed = [*((SMALL, count) for count in streams), (LARGE, max(streams))]
    with TemporaryDirectory() as folder, found_by_vllm() as mended:
        middle = _saved(shape, Path(folder) / "middle") if times else None
        for name, arguments in SERVERS.items():
            ways = [way for way, needed in WAYS.items() if needed == name]
            environment = mended if name in ("evs", "vidcom2") else {}
            if middle is not None:
                progress(f"{name}, {shape}")
                with _server(executable, middle, Path(folder) / f"{name}.log", arguments, environment) as server:
                    calls += _first_tokens(server, ways, runs)
                    for clip, count in streamed:
                        for way in ways:
                            progress(f"{name}, {way}, {count} streams, {clip}")
                            asked, took[str(clip), way, count] = _streams(server, way, clip, count)
                            calls += asked
            if clips:
                progress(f"{name}, tiny")
                tiny, log = shipped_folder("tiny-qwen3-vl"), Path(folder) / f"{name}-tiny.log"
                with _server(executable, tiny, log, arguments, environment) as server:
                    for way in ways:
                        if way != BESIDE:
                            calls += _questions(server, way, clips, progress)
    return ServingReport(str(shape), tuple(calls), took)


@contextmanager
def _server(
    executable: str, model: Path, log: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[VllmServer]:
    limits = ["--max-model-len", "4096", "--limit-mm-per-prompt", '{"image": 64, "video": 16}', *VIDEO_FLAGS]
    template = log.with_suffix(".jinja")
    # vLLM puts the markers of a video's frames inside a second pair, which no Qwen3-VL was trained on and which pruning
    # breaks off at.
    template.write_text((model / "chat_template.jinja").read_text().replace(_MARKED, "<|video_pad|>"))
    limits += ["--chat-template", str(template)]
    try:
        with vllm_server(executable, model, log, *limits, *arguments, environment={**_CACHE, **environment}) as server:
            yield server
    except RuntimeError as exc:
        raise ServerFailed(str(exc), remedy="scripts/test --vllm makes an environment that works") from None


def _saved(shape: Shape, folder: Path) -> Path:
    use_transformers()  # Silences its output.
    made = random_model(shape, Settings())
    made.loaded.model.save_pretrained(folder)
    processor_of(made.loaded.tokenizer).save_pretrained(folder)
    return folder


def _parts(way: str, frames: Sequence[ByteArray], seed: int) -> Parts:
    """Frames as a way shows them; of cells which ones changes no time, so that they are drawn by lot."""
    if way != OURS:
        grid = Grid.for_size((frames[0].shape[1], frames[0].shape[0]))
        return scaled_down(frames, int(grid.cells * SHARE)) if way == SMALLER else whole(frames)
    rng = np.random.default_rng(seed)
    everything = Cells.whole((frames[0].shape[0] // 32, frames[0].shape[1] // 32))
    count = int(len(everything) * SHARE)
    pairs = max(1, len(frames) // 2)
    lots = [np.sort(rng.permutation(len(everything))[:count]).astype(np.int32) for _ in range(pairs)]
    return cells(frames, [everything.select(lot) for lot in lots])


def _first_tokens(server: VllmServer, ways: Sequence[str], runs: int) -> Iterator[Call]:
    shown = {"picture": (1, 1024), "clip": (4, 512)}
    for what, (count, side) in shown.items():
        for run in range(-1, runs):
            for way in ways:
                if what == "picture" and WAYS[way] not in ("stock", "plugin"):
                    continue
                made = _parts(way, _noise(run, count, (side, side)), run + 1)
                call = _asked(server, what, way, [_message([*made, _text("?")])], tokens=1)
                if run >= 0:
                    yield call


def _streams(server: VllmServer, way: str, clip: Clip, count: int) -> tuple[list[Call], float]:
    """Run `count` conversations at once, each with a clip and a question in every turn."""

    def follow(number: int) -> list[Call]:
        content: Parts = []
        calls = []
        for turn in range(clip.turns):
            content += _parts(way, _noise(1000 * count + 10 * number + turn, clip.frames, clip.size_wh), turn)
            message = _message([*content, _text("?")])
            calls.append(_asked(server, str(clip), way, [message], tokens=4, streams=count))
        return calls

    started = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        calls = [call for each in pool.map(follow, range(count)) for call in each]
    return calls, time.perf_counter() - started


def _questions(server: VllmServer, way: str, clips: int, progress: Callable[[str], None]) -> Iterator[Call]:
    """Ask each question in a conversation of its own."""
    for number in range(clips):
        progress(f"{way}, clip {number + 1} of {clips}")
        rng = np.random.default_rng([_SEED, number])
        size_wh = CLIP_SIZE[0] * 32, CLIP_SIZE[1] * 32
        story = clip_story(rng, size_wh, 2 * CLIP_SECONDS * _EACH, (2, 4), purpose="reporting", each=_EACH)
        for one in drawn(story, rng, 6):
            if way == OURS:
                yield _watched(server, story, one.question, one.answer)
                continue
            shown = [story.frames[k] for k in range(0, len(story.frames), _EACH)]
            small = int(CLIP_SIZE[0] * CLIP_SIZE[1] * SHARE)
            made = scaled_down(shown, small) if way == SMALLER else whole(shown)
            message = _message([*made, _text(one.question)])
            yield _asked(server, "question", way, [message], tokens=6, truth=one.answer)


def _watched(server: VllmServer, story: Any, question: str, truth: str) -> Call:
    tokens = int(CLIP_SIZE[0] * CLIP_SIZE[1] * SHARE)
    settings = Settings().with_values(
        {"vlm.endpoint": server.address, "vlm.model": "tiny", "selection.budget": str(tokens), "vlm.answer_tokens": 6}
    )
    chat = ChatServer(Endpoint.parse(server.address, "OPENAI_API_KEY"), "tiny", timeout_seconds=60)
    session = CarryingSession(chat, settings)
    try:
        asked = {len(story.frames) - 1: [question]}
        seen = watched(story, asked, settings, session, queries=sought(question))
    finally:
        chat.close()
    right = is_same(seen.answers[0], truth)
    return Call("question", OURS, 1, seen.answering_ms, seen.prompt_tokens, 0, right=right)


def _asked(
    server: VllmServer,
    what: str,
    way: str,
    messages: list[dict[str, Any]],
    *,
    tokens: int,
    streams: int | None = None,
    truth: str | None = None,
) -> Call:
    started = time.perf_counter()
    status, answer = server.post(messages, max_tokens=tokens)
    ms = (time.perf_counter() - started) * 1e3
    if status != 200:
        if streams is None:
            raise ServerFailed(f"{way}: {status}: {answer}")
        return Call(what, way, streams, ms, 0, 0, lost=True)
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    text = answer["choices"][0]["message"]["content"] or ""
    right = None if truth is None else is_same(text, truth)
    return Call(what, way, streams or 1, ms, usage["prompt_tokens"], cached, usage["completion_tokens"], right)


def _noise(seed: int, count: int, size_wh: tuple[int, int]) -> list[ByteArray]:
    """Pictures of coarse noise that no cache has seen; they are compressed about as well as drawn ones."""
    rng = np.random.default_rng([_SEED, seed + 1])
    width, height = size_wh
    coarse = rng.integers(0, 256, (count, height // _GRAIN_PX, width // _GRAIN_PX, 3), np.uint8)
    return list(coarse.repeat(_GRAIN_PX, axis=1).repeat(_GRAIN_PX, axis=2))


def _message(content: Parts) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _median(calls: Sequence[Call]) -> float:
    return float(np.median([call.ms for call in calls])) if calls else 0.0
