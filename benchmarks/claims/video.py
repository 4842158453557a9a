"""Claims about what perception costs, against encoding 273 crops and against a dense pass on every frame.

The candidates take turns: in each round one batch of crops (scaled up to 273), one dense pass of the same encoder,
the whole of perception on a first picture, on a keyframe, and on frames between; all of them with the same threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.tables import ResultTable, Value
from arr_stream.evaluation.timing import timed
from arr_stream.keyframes.base import KeyframeInput, KeyframePart
from arr_stream.keyframes.embeddings import find_pca, make_text_encoder
from arr_stream.keyframes.generate import InStepKeyframes, KeyframeFailure, StandardGenerator, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.threads import torch_threads
from arr_stream.types import Frame, Grid
from benchmarks.claims.base import Claim, ClaimsPlan
from benchmarks.query import CROPS, CropEncoder, RelevanceReport, bench_relevance, with_weights

_claim = partial(Claim, "video")
QUERY = "a red circle"
CROPS_A_BATCH = 13
_TIMED = ("crops", "dense", "image", "keyframe", "between")
_UNREAD = "channels that nobody reads are not made"
_LOOKING = {
    "keyframes.embeddings": "clip",
    "relevance.language": "clip",
    # Keyframes come once a round and at no other time.
    "keyframes.cut_threshold": 1.0,
    "keyframes.min_confidence": 0.0,
}


@dataclass(frozen=True, slots=True)
class PerceptionCost:
    """Medians in milliseconds, of one model.

    Args:
        model: As `clip.model`.
        size_wh: Size of the frames in pixels.
        interval: Frames from keyframe to keyframe.
        crops_ms: Encoding 273 crops of a frame.
        dense_ms: One dense pass over a frame.
        image_ms: All of perception on the first picture of a stream.
        keyframe_ms, between_ms: The same on a keyframe of a running stream, and on a frame between.
        parts_ms: What a keyframe makes, by part.
        stages_ms: Stages of a frame between, by name.
    """

    model: str
    size_wh: tuple[int, int]
    interval: int
    crops_ms: float
    dense_ms: float
    image_ms: float
    keyframe_ms: float
    between_ms: float
    parts_ms: dict[str, float]
    stages_ms: dict[str, float]

    @property
    def amortised_ms(self) -> float:
        """A frame with its share of the keyframe."""
        return (self.keyframe_ms + (self.interval - 1) * self.between_ms) / self.interval

    def shares(self) -> list[tuple[str, float]]:
        """Milliseconds of the amortised frame, by where they go, largest first."""
        between = (self.interval - 1) / self.interval
        spent = {f"{stage}, every frame": ms * between for stage, ms in self.stages_ms.items()}
        spent |= {f"{part}, on keyframes": ms / self.interval for part, ms in self.parts_ms.items()}
        spent["the rest of a keyframe"] = max(0.0, self.keyframe_ms - sum(self.parts_ms.values())) / self.interval
        return sorted(spent.items(), key=lambda item: -item[1])


class _Noting(InStepKeyframes):
    """Keyframes in step that remember how long each part took."""

    def __init__(self, generator: StandardGenerator) -> None:
        super().__init__(generator)
        self.seconds: dict[str, list[float]] = {}

    def collect(self) -> list[KeyframePart | KeyframeFailure]:
        arrived = super().collect()
        for outcome in arrived:
            if isinstance(outcome, KeyframeFailure):
                raise MeasurementFailed(outcome.message, remedy="a keyframe without all of its parts is no measure")
            self.seconds.setdefault(outcome.part, []).append(outcome.seconds)
        return arrived


def measure_perception(model: str, size_wh: tuple[int, int], plan: ClaimsPlan) -> PerceptionCost:
    """Time one model at one size.

    Raises:
        InvalidSetting: No such architecture.
        MeasurementFailed: A part of a keyframe failed.
    """
    wanted = plan.settings.with_values({**_LOOKING, "clip.model": model})
    with with_weights(wanted, plan.progress) as settings, torch_threads(plan.threads):
        candidates = _Candidates(settings, plan.clip(size_wh), plan.threads)
        candidates.take_turns(0)
        # The first round only warmed everything up.
        candidates.forget()
        for round_ in range(1, plan.rounds + 1):
            plan.progress(f"{_named(model, size_wh)}: round {round_} of {plan.rounds}")
            candidates.take_turns(round_)
    return PerceptionCost(
        model=model,
        size_wh=size_wh,
        interval=plan.settings.keyframes.interval,
        **{f"{name}_ms": float(np.median(spent)) for name, spent in candidates.times_ms.items()},
        parts_ms={part: float(np.median(took)) * 1e3 for part, took in candidates.keyframes.seconds.items()},
        stages_ms={stage: float(np.median(spent)) for stage, spent in candidates.stages_ms.items()},
    )


class _Candidates:
    """Everything that is compared, on the same clip.

    Args:
        settings: With weights on disk.
        frames: One round of the stream; its first frame is a keyframe.
        threads: Of the models.
    """

    def __init__(self, settings: Settings, frames: Sequence[Frame], threads: int) -> None:
        generator = make_generator(settings, threads)
        assert generator.embedder is not None
        self._crops = CropEncoder(settings)
        self._embedder = generator.embedder
        self._encoder = make_text_encoder(settings)
        self._pca = find_pca(settings, self._encoder)
        self._settings = settings.with_values({"keyframes.interval": len(frames)})
        self._frames = frames
        self._grid = Grid.for_size(frames[0].size_wh)
        self.keyframes = _Noting(generator)
        self._stream = self._pipeline()
        self.times_ms: dict[str, list[float]] = {name: [] for name in _TIMED}
        self.stages_ms: dict[str, list[float]] = {}

    def _pipeline(self) -> Pipeline:
        return Pipeline(
            self._settings,
            self.keyframes,
            [parse_text(QUERY)],
            encoder=self._encoder,
            pca=self._pca,
            clock=time.perf_counter,
        )

    def forget(self) -> None:
        """Begin to measure."""
        self.keyframes.seconds.clear()
        self.stages_ms.clear()
        for spent in self.times_ms.values():
            spent.clear()

    def take_turns(self, round_: int) -> None:
        """Crops, a dense pass, a first picture, and the next stretch of the stream."""
        picture = self._frames[round_ % len(self._frames)]
        with timed(self.times_ms["crops"], CROPS / CROPS_A_BATCH):
            self._crops.encode(picture, self._grid, CROPS_A_BATCH)
        with timed(self.times_ms["dense"]):
            self._embedder.embed(KeyframeInput(picture, self._grid))
        self.times_ms["image"].append(total_ms(self._pipeline().step(picture).latency_ms))
        for index, frame in enumerate(self._frames, start=round_ * len(self._frames)):
            patches = self._stream.step(Frame(index, index / 30, frame.rgb))
            patches.texture.planes.clear()
            self.times_ms["keyframe" if patches.keyframe else "between"].append(total_ms(patches.latency_ms))
            if not patches.keyframe:
                for stage, milliseconds in patches.latency_ms.items():
                    self.stages_ms.setdefault(stage, []).append(milliseconds)


def video_claims(plan: ClaimsPlan) -> tuple[list[Claim], list[ResultTable]]:
    """Images and video against crops and against dense passes, for every model and size; and where the time goes."""
    claims: list[Claim] = []
    tables: list[ResultTable] = []
    for model, size_wh in product(plan.models, plan.video_sizes_wh):
        cost = measure_perception(model, size_wh, plan)
        claims += claims_of(cost)
        plan.progress(f"{model}: relevance alone")
        values = {"clip.model": model, "keyframes.embeddings": "clip"}
        with torch_threads(plan.threads):
            report = bench_relevance(plan.settings.with_values(values), size_wh=size_wh, repeats=plan.rounds)
        claims += relevance_claims(report)
        tables.append(cost_table(cost))
    return claims, tables


def claims_of(cost: PerceptionCost) -> list[Claim]:
    """All of perception as the loop runs it: regions, embedding, text, relevance, choice, and what these read."""
    model, amortised = _named(cost.model, cost.size_wh), cost.amortised_ms
    by_crops = f"crops {cost.crops_ms:.0f} ms over "
    video = (
        f"{by_crops}all of perception, (keyframe + {cost.interval - 1} between) / {cost.interval} = "
        f"{amortised:.2f} ms; {_UNREAD}"
    )
    return [
        _claim(
            f"{model}: an image, against encoding {CROPS} crops",
            14,
            cost.crops_ms / cost.image_ms,
            "x",
            f"{by_crops}all of perception on a first picture, {cost.image_ms:.0f} ms; {_UNREAD}",
            at_least=True,
        ),
        _claim(f"{model}: video, against {CROPS} crops", 174, cost.crops_ms / amortised, "x", video, at_least=True),
        _claim(
            f"{model}: video, against {CROPS} crops, the larger claim",
            280,
            cost.crops_ms / amortised,
            "x",
            video,
            at_least=True,
        ),
        _claim(
            f"{model}: video, against a dense pass on every frame",
            15,
            cost.dense_ms / amortised,
            "x",
            f"dense pass {cost.dense_ms:.1f} ms over all of perception amortised, {amortised:.2f} ms; {_UNREAD}",
            at_least=True,
        ),
        _claim(
            f"{model}: all of a frame of video",
            0.8,
            amortised,
            "ms",
            f"keyframe {cost.keyframe_ms:.1f} ms, between {cost.between_ms:.2f} ms; {_UNREAD}",
            other_machine=True,
        ),
    ]


def _named(model: str, size_wh: tuple[int, int]) -> str:
    return f"{model}, {size_wh[0]}x{size_wh[1]}"


def relevance_claims(report: RelevanceReport) -> list[Claim]:
    """Relevance alone, as `bench query` measures it."""
    model = _named(report.model, report.size_wh)
    relevance = f"relevance {report.relevance_ms:.2f} ms"
    amortised = f"{relevance} and 1/{report.interval} of the dense pass, {report.dense_ms:.1f} ms"
    return [
        _claim(
            f"{model}: relevance of a frame, against {CROPS} crops",
            107,
            report.crops_ms / report.relevance_ms,
            "x",
            f"bench query: crops {report.crops_ms:.0f} ms over {relevance} between keyframes",
            at_least=True,
        ),
        _claim(
            f"{model}: relevance alone, amortised, against {CROPS} crops",
            280,
            report.crops_ms / report.amortised_ms,
            "x",
            f"bench query: crops {report.crops_ms:.0f} ms over {amortised}",
            at_least=True,
        ),
        _claim(
            f"{model}: relevance alone, amortised, against a dense pass on every frame",
            15,
            (report.dense_ms + report.relevance_ms) / report.amortised_ms,
            "x",
            f"bench query: {amortised}",
            at_least=True,
        ),
        _claim(
            f"{model}: relevance from 16 channels at {CROPS} places",
            1.3,
            report.sample_ms,
            "ms",
            "bench query: reading the places of a texture and comparing them with the query",
            other_machine=True,
        ),
    ]


def cost_table(cost: PerceptionCost) -> ResultTable:
    """Where an amortised frame's time goes."""
    amortised = cost.amortised_ms
    rows: list[tuple[Value, ...]] = [(where, ms, f"{ms / amortised:.1%}") for where, ms in cost.shares()]
    return ResultTable(
        f"{_named(cost.model, cost.size_wh)}: where the time of an amortised frame goes",
        ("what", "ms a frame", "share"),
        tuple(rows),
        note=f"A keyframe every {cost.interval} frames; medians, so that the rows add up to {amortised:.2f} ms nearly.",
    )
