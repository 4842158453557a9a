"""What a query costs: from the texture, by one dense pass a frame, and by encoding a crop for every cell.

All three use the same model. Random weights take the same time as trained ones, so a model of real size can be timed
where its weights are not at hand.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.tables import Report, ResultTable, plain, short
from arr_stream.evaluation.timing import timed
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.embeddings.clip import ClipEmbedder, ClipTextEncoder
from arr_stream.keyframes.embeddings.dense import make_tower
from arr_stream.keyframes.embeddings.openclip import load_clip
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator
from arr_stream.keyframes.text import NoText
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.types import ByteArray, FloatArray, Frame, Grid
from benchmarks.scenes.clips import panning

CROPS = 273
RANDOM = "random"
_QUERIES = ("the quick brown fox", "a lazy dog", "a small lighthouse", "an umbrella", "a paper boat")


@dataclass(frozen=True, slots=True)
class RelevanceReport(Report):
    """Medians in milliseconds.

    Args:
        model: What was timed.
        size_wh: Size of the frames in pixels.
        cells: Cells of a frame.
        crops_ms: Encoding `CROPS` crops of a frame.
        dense_ms: One dense pass over a frame.
        relevance_ms: Relevance of every cell on a frame between keyframes, from what the keyframe knew.
        sample_ms: Reading the 16 channels at `CROPS` places of a texture and comparing them with the query.
        text_ms: Encoding a new query.
        query_ms: What a new query costs beside that, on the frame it is first answered on.
        interval: Frames from keyframe to keyframe, for the amortised figures.
    """

    model: str
    size_wh: tuple[int, int]
    cells: int
    crops_ms: float
    dense_ms: float
    relevance_ms: float
    sample_ms: float
    text_ms: float
    query_ms: float
    interval: int

    @property
    def amortised_ms(self) -> float:
        """Relevance of a frame with its share of the keyframe's dense pass."""
        return self.relevance_ms + self.dense_ms / self.interval

    @property
    def ratios(self) -> dict[str, float]:
        return {
            f"{CROPS} crops / relevance from the texture": self.crops_ms / self.relevance_ms,
            f"{CROPS} crops / amortised with the keyframe": self.crops_ms / self.amortised_ms,
            "dense pass on every frame / amortised": (self.dense_ms + self.relevance_ms) / self.amortised_ms,
        }

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        width, height = self.size_wh
        rows = (
            (f"encoding {CROPS} crops (one batch timed, and scaled up)", self.crops_ms),
            ("one dense pass", self.dense_ms),
            ("relevance on a frame between keyframes", self.relevance_ms),
            (f"reading {CROPS} places of a texture", self.sample_ms),
            (f"relevance with its share of the keyframe, every {self.interval}th frame", self.amortised_ms),
            ("the text encoder, for a new query", self.text_ms),
            ("what a new query costs beside that", self.query_ms),
        )
        title = f"{self.model}, {width}x{height}, {self.cells} cells: medians"
        return (
            ResultTable(title, ("what", "ms"), tuple((what, short(ms)) for what, ms in rows), digits=2),
            ResultTable.of_ratios(self.ratios),
        )

    def facts(self) -> Mapping[str, Any]:
        return {**plain(self), "amortised_ms": self.amortised_ms, "ratios": self.ratios}


def bench_relevance(
    settings: Settings,
    *,
    size_wh: tuple[int, int] = (864, 480),
    repeats: int = 5,
    batch: int = 13,
    progress: Callable[[str], None] = lambda _: None,
) -> RelevanceReport:
    """Time one model on generated frames, the candidates in turns.

    Args:
        settings: `clip.model`, or an architecture with random weights, such as `ViT-B-16:random`.
        size_wh: Size of the frames.
        repeats: Rounds; medians are over them.
        batch: Crops in one forward. Of the crops, one batch is encoded each round, and the time is scaled up.
        progress: Told what comes next.

    Raises:
        InvalidSetting: No such architecture.
    """
    with with_weights(settings, progress) as ready:
        progress("loading")
        embedder = ClipEmbedder(ready.clip, ready.models)
        encoder = ClipTextEncoder(ready.clip, ready.models)
        crops = CropEncoder(ready)
        frames = list(panning(size_wh, 2 + repeats))
        grid = Grid.for_size(size_wh)
        pipeline = _pipeline(ready, embedder, encoder)
        pipeline.step(frames[0])
        pipeline.step(frames[1])
        times: dict[str, list[float]] = {
            name: [] for name in ("crops", "dense", "relevance", "sample", "text", "query")
        }
        for round_ in range(repeats):
            progress(f"round {round_ + 1} of {repeats}")
            frame = frames[2 + round_]
            with timed(times["crops"], CROPS / batch):
                crops.encode(frame, grid, batch)
            with timed(times["dense"]):
                embedder.embed(KeyframeInput(frame, grid))
            # A step after the large models have been through the caches is not what a running stream sees.
            pipeline.step(frame)
            patches = pipeline.step(frame)
            times["relevance"].append(patches.latency_ms["relevance"])
            points = torch.rand(CROPS, 2) * torch.tensor(grid.texture_wh)
            coordinates = torch.rand(16, 1)
            with timed(times["sample"]):
                torch.sigmoid(patches.texture.sample(points, 4, range(18, 34)) @ coordinates)
            before = patches.latency_ms["keyframe"] + patches.latency_ms["relevance"]
            query = parse_text(f"{_QUERIES[round_ % len(_QUERIES)]} {round_}")
            with timed(times["text"]):
                encoder.encode([query.phrase])
            # The encoder remembers it, so what is timed now is everything else.
            started = time.perf_counter()
            pipeline.ask([query])
            asking = (time.perf_counter() - started) * 1e3
            patches = pipeline.step(frame)
            times["query"].append(asking + patches.latency_ms["keyframe"] + patches.latency_ms["relevance"] - before)
    median = {f"{name}_ms": statistics.median(each) for name, each in times.items()}
    return RelevanceReport(
        model=settings.clip.model, size_wh=size_wh, cells=grid.cells, interval=settings.keyframes.interval, **median
    )


class _Once:
    """Keyframes of the first frame only, so that all later ones are frames between."""

    def __init__(self, generator: StandardGenerator) -> None:
        self._inner = InStepKeyframes(generator)
        self._done = False

    def submit(self, request: Any) -> Any:
        if self._done:
            return ()
        self._done = True
        return self._inner.submit(request)

    def collect(self) -> Any:
        return self._inner.collect()

    def close(self) -> None:
        self._inner.close()


def _pipeline(settings: Settings, embedder: ClipEmbedder, encoder: ClipTextEncoder) -> Pipeline:
    keyframes = _Once(StandardGenerator(GridClusterer(50), embedder, NoText()))
    settings = settings.with_values({"relevance.language": "clip", "keyframes.cut_threshold": 1.0})
    return Pipeline(settings, keyframes, [parse_text("a lighthouse")], encoder=encoder, clock=time.perf_counter)


class CropEncoder:
    """The plain way: every cell with its surroundings, cut out and encoded by itself."""

    def __init__(self, settings: Settings) -> None:
        from arr_stream.weights import pick_device

        loaded = load_clip(settings.clip, settings.models, towers="vision")
        assert loaded.visual is not None
        self._device = pick_device(settings.models.device)
        self._tower = make_tower(loaded.visual.to(self._device), loaded.space, settings.clip.method)
        self._method = settings.clip.method
        self._mean = torch.tensor(loaded.mean).view(3, 1, 1)
        self._std = torch.tensor(loaded.std).view(3, 1, 1)
        self._size_hw = loaded.image_size_hw

    def encode(self, frame: Frame, grid: Grid, count: int) -> FloatArray:
        """`[count, D]` of crops spread over the frame."""
        chosen = np.linspace(0, grid.cells - 1, count).astype(int)
        cell_w, cell_h = grid.cell_px
        crops = [
            self._crop(frame.rgb, (cell % grid.columns) * cell_w, (cell // grid.columns) * cell_h, cell_w, cell_h)
            for cell in chosen.tolist()
        ]
        pixels = torch.stack([torch.from_numpy(crop).permute(2, 0, 1) for crop in crops]).float() / 255
        with torch.inference_mode():
            places = self._tower.features(((pixels - self._mean) / self._std).to(self._device), self._method)
        return np.asarray(places.mean(dim=(2, 3)).float().cpu().numpy(), np.float32)

    def _crop(self, rgb: ByteArray, x: float, y: float, width: float, height: float) -> ByteArray:
        """A cell with one cell around it."""
        top, left = max(0, int(y - height)), max(0, int(x - width))
        crop = rgb[top : int(y + 2 * height), left : int(x + 2 * width)]
        return np.asarray(cv2.resize(crop, self._size_hw[::-1], interpolation=cv2.INTER_LINEAR), np.uint8)


@contextmanager
def with_weights(settings: Settings, progress: Callable[[str], None]) -> Iterator[Settings]:
    """The settings themselves, or with random weights written for them to a temporary folder."""
    name, _, weights = settings.clip.model.partition(":")
    if weights != RANDOM:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="arr-stream-bench-") as folder:
        progress(f"making random weights for {name}")
        write_random_model(name, Path(folder))
        yield settings.with_values({"clip.model": folder})


def write_random_model(name: str, folder: Path) -> None:
    """An open_clip architecture with random weights, on disk in the form that open_clip itself writes.

    Raises:
        InvalidSetting: open_clip knows no such architecture, or its texts need more than open_clip's own tokeniser.
    """
    import open_clip
    from safetensors.torch import save_model

    config = open_clip.get_model_config(name)
    if config is None:
        raise InvalidSetting(f"clip.model={name}:{RANDOM}: no such architecture", remedy="name one of open_clip's")
    if "hf_tokenizer_name" in config.get("text_cfg", {}):
        raise InvalidSetting(
            f"clip.model={name}:{RANDOM}: its texts need a tokeniser from elsewhere", remedy="name another, ViT-B-16"
        )
    torch.manual_seed(0)
    # open_clip warns that nothing was loaded, which is what is wanted.
    logging.disable(logging.WARNING)
    try:
        model = open_clip.create_model(name, pretrained=None)
    finally:
        logging.disable(logging.NOTSET)
    preprocess = {"mean": [0.5] * 3, "std": [0.25] * 3}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    save_model(model, str(folder / "open_clip_model.safetensors"))
