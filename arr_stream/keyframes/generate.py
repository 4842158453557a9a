"""One keyframe's full generation, and how a pipeline asks for it."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, KeyframeFailed
from arr_stream.files import expanded
from arr_stream.keyframes.base import (
    EMBEDDING_CHANNELS,
    PARTS,
    Clusterer,
    Embedder,
    KeyframeInput,
    KeyframePart,
    LazyClusters,
    ObjectFinder,
    ObjectFinding,
    PartName,
    PartValue,
    TextBefore,
    TextFinder,
    TextFinding,
)
from arr_stream.keyframes.clusters import make_clusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.objects import make_object_finder
from arr_stream.keyframes.text import make_text_finder
from arr_stream.processes import usable_cores
from arr_stream.types import Clusters, Embedding, FloatArray, Frame, Grid, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class KeyframeRequest:
    """Request for full generation on a frame.

    Args:
        parts: Parts to make.
        awaited: Parts that a query needs for its answer.
        new_scene: The frame shares nothing with those before: requests for them are obsolete.
        asked: There are queries: parts that are not awaited only affect the leftover budget, and may arrive late.
        text_before: See `KeyframeInput`.
        window: A look between keyframes, often at a part cut out of a frame, whose result is due within a few frames.
    """

    frame: Frame
    grid: Grid
    parts: tuple[PartName, ...] = PARTS
    awaited: frozenset[PartName] = frozenset()
    new_scene: bool = False
    asked: bool = False
    text_before: TextBefore | None = None
    window: bool = False


@dataclass(frozen=True, slots=True)
class KeyframeFailure:
    """Failed generation.

    Args:
        index: Index of the requested frame.
        message: One line: what failed and why.
        details: Traceback or last words of the worker.
        parts: Parts that will not arrive.
    """

    index: int
    message: str
    details: str = ""
    parts: tuple[PartName, ...] = PARTS


Outcome = KeyframePart | KeyframeFailure

Job = Callable[[], tuple[PartValue, str]]
"""Function that makes one part: returns its value and the name of its maker."""


class KeyframeGenerator(Protocol):
    """Generator of a keyframe's parts."""

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        """One job for each part that the request wants; any order will do, and threads of their own."""
        ...


class KeyframeProvider(Protocol):
    """Source of a pipeline's keyframes; the provider decides whether they are made at once or in the background."""

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        """Ask for a keyframe; gives the parts that will be made. The others are still busy with an earlier frame."""
        ...

    def collect(self) -> list[Outcome]:
        """Return the outcomes since the last call, oldest first; never wait."""
        ...

    def close(self) -> None:
        """Cancel pending work and free all resources; may be called twice."""
        ...


class StandardGenerator:
    """Makes each part for which it is given a maker."""

    def __init__(
        self,
        clusterer: Clusterer | None = None,
        embedder: Embedder | None = None,
        text_finder: TextFinder | None = None,
        object_finder: ObjectFinder | None = None,
    ) -> None:
        self.clusterer = clusterer
        self.embedder = embedder
        self.text_finder = text_finder
        self.object_finder = object_finder

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        picture = KeyframeInput(request.frame, request.grid, request.text_before)
        jobs: dict[PartName, Job] = {}
        if (clusterer := self.clusterer) is not None:
            jobs["clusters"] = lambda: ((made := clusterer.cluster(picture)), made.method)
        if (embedder := self.embedder) is not None:
            jobs["embedding"] = lambda: (embedder.embed(picture), embedder.name)
        if (finder := self.text_finder) is not None:
            jobs["text"] = lambda: (finder.find(picture), finder.name)
        if (detector := self.object_finder) is not None:
            jobs["objects"] = lambda: (detector.find(picture), detector.name)
        return {part: job for part, job in jobs.items() if part in request.parts}


class OncePerPicture:
    """An embedder that others share: the same picture is embedded once, whoever asks first."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._lock = threading.Lock()
        self._last: tuple[KeyframeInput, Embedding] | None = None

    @property
    def name(self) -> str:
        return self._embedder.name

    def embed(self, picture: KeyframeInput) -> Embedding:
        with self._lock:
            if self._last is None or self._last[0] is not picture:
                self._last = picture, self._embedder.embed(picture)
            return self._last[1]


def make_generator(
    settings: Settings, threads: int | None = None, parts: Sequence[PartName] = PARTS
) -> StandardGenerator:
    """Return the generator of the parts that the settings name; models of other parts are not loaded.

    Args:
        settings: Names of the parts and how they work.
        threads: Threads for the parts that have pools of their own; None for half of the cores, since such pools wait
            by spinning, at the cost of other work.
        parts: Only these.

    Raises:
        BackendUnavailable: A package or weights are missing.
        WeightsInvalid: Weights that are damaged or of another model.
        InvalidSetting: A name that does not exist.
    """
    threads = threads or max(1, usable_cores() // 2)
    needs_embedder = "embedding" in parts or ("clusters" in parts and settings.keyframes.clusters == "features")
    embedder = OncePerPicture(make_embedder(settings, threads)) if needs_embedder else None
    return StandardGenerator(
        make_clusterer(settings, embedder) if "clusters" in parts else None,
        embedder if "embedding" in parts else None,
        make_text_finder(settings, threads) if "text" in parts else None,
        make_object_finder(settings, threads) if "objects" in parts else None,
    )


def needed_weights(settings: Settings) -> tuple[str, ...]:
    """Return the catalogue's weights that the settings need, without files that they name themselves."""
    needed = []
    if settings.keyframes.clusters == "sam" and settings.sam.checkpoint == "auto":
        needed.append(settings.sam.model)
    model, _, pretrained = settings.clip.model.partition(":")
    embeds = settings.keyframes.embeddings == "clip"
    own = (expanded(name).exists() for name in (pretrained, settings.clip.model))
    if embeds and pretrained and not any(own):
        needed.append(f"{model}:{pretrained}")
    return tuple(needed)


def make_part(index: int, part: PartName, job: Job) -> Outcome:
    """Run one job and check its value; any exception becomes a failure of that part alone."""
    started = time.perf_counter()
    try:
        value, backend = job()
        check_value(part, value)
    # A library that ends the program for a failure of its own would end it as a success.
    except (Exception, SystemExit) as exc:
        if isinstance(exc, KeyframeFailed):
            message = str(exc)
        elif isinstance(exc, ArrStreamError):
            message = f"{part}: {exc}"
        else:
            message = ": ".join(filter(None, (part, type(exc).__name__, " ".join(str(exc).split()))))
        return KeyframeFailure(index, message, traceback.format_exc(), (part,))
    return KeyframePart(index, part, value, backend, time.perf_counter() - started)


def check_value(part: PartName, value: PartValue) -> None:
    """Refuse values that would spread through every carried channel.

    Raises:
        KeyframeFailed: NaN, infinity, a value out of range, a wrong shape, or another part's value; names the part.
    """
    if part == "clusters" and isinstance(value, LazyClusters):
        return  # Made of our own, and only when read.
    if part == "clusters" and isinstance(value, Clusters):
        _check("clusters: labels", value.labels, "[h, w]", 0, value.count - 1)
        _check("clusters: areas", value.areas, "[n]", 0.0, 1.0)
        _check("clusters: centroids", value.centroids_xy, "[n, 2]", 0.0, 1.0)
        if value.centroids_xy.shape != (value.count, 2):
            found = list(value.centroids_xy.shape)
            raise KeyframeFailed(f"clusters: centroids are {found} for {value.count} regions")
    elif part == "embedding" and isinstance(value, Embedding):
        _check("embedding", value.values, "[D, h, w]", -1.0, 1.0)
        if not value.joint and len(value.values) != EMBEDDING_CHANNELS:
            raise KeyframeFailed(f"embedding: {len(value.values)} rows, channels 18 to 33 are 16")
    elif part == "text" and isinstance(value, TextFinding):
        _check("text: mask", value.mask, "[h, w]", 0.0, 1.0)
    elif part == "objects" and isinstance(value, ObjectFinding):
        for each in value.objects:
            _check("objects: box", np.array(each.box_xyxy, np.float32), "[4]", 0.0, 1.0)
    else:
        raise KeyframeFailed(f"{part}: got {type(value).__name__}")


def _check(what: str, values: FloatArray | IntArray, shape: str, low: float, high: float) -> None:
    if values.ndim != shape.count(",") + 1:
        raise KeyframeFailed(f"{what}: {list(values.shape)}, expected {shape}")
    if values.size == 0:
        raise KeyframeFailed(f"{what}: no values")
    least, most = float(values.min()), float(values.max())
    # A comparison with NaN is false, so this also refuses NaN.
    if not (low - 1e-5 <= least and most <= high + 1e-5):
        raise KeyframeFailed(f"{what}: values from {least} to {most}, allowed are {low} to {high}")


class InStepKeyframes:
    """Keyframes made at once, inside `submit`, one part after the other: the same input gives the same output."""

    def __init__(self, generator: KeyframeGenerator) -> None:
        self.generator = generator
        self._arrived: list[Outcome] = []

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        """Accept every part; `collect` reports a failed one, as long as another works.

        Raises:
            KeyframeFailed: Every part of a keyframe failed.
        """
        index = request.frame.index
        jobs = self.generator.jobs(request)
        outcomes = [make_part(index, part, job) for part, job in jobs.items()]
        if not request.window:
            require_one(outcomes)
        self._arrived += outcomes
        return tuple(jobs)

    def collect(self) -> list[Outcome]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        self._arrived = []


def require_one(outcomes: Sequence[Outcome]) -> None:
    """A keyframe of which nothing came is an error where frames can wait for it.

    Raises:
        KeyframeFailed: Every part failed.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, KeyframeFailure)]
    if failures and len(failures) == len(outcomes):
        raise KeyframeFailed(f"frame {failures[0].index}: {'; '.join(failure.message for failure in failures)}")


class KeyframeTally:
    """Outcomes of each part of generation over a run; `failures` counts the keyframes that lack it."""

    def __init__(self) -> None:
        self.failures: Counter[PartName] = Counter()
        self._made: set[PartName] = set()
        self._last: dict[PartName, str] = {}

    def add(self, outcome: Outcome) -> None:
        """Count the outcome of a request."""
        if isinstance(outcome, KeyframePart):
            self._made.add(outcome.part)
            return
        self.failures.update(outcome.parts)
        self._last.update(dict.fromkeys(outcome.parts, outcome.message))

    def require_all(self) -> None:
        """Require that no part failed on every keyframe, so that incomplete results do not pass for complete.

        Raises:
            KeyframeFailed: A part failed whenever it was asked for; names the first one, and its last failure.
        """
        for part in PARTS:
            if self.failures[part] and part not in self._made:
                times = "the only keyframe" if self.failures[part] == 1 else f"all {self.failures[part]} keyframes"
                raise KeyframeFailed(
                    f"{part} failed on {times}; the last time: {self._last[part]}",
                    remedy="the results are written, without what it would have added",
                )


class CountedKeyframes:
    """A provider whose outcomes are counted on their way."""

    def __init__(self, provider: KeyframeProvider, tally: KeyframeTally) -> None:
        self._provider = provider
        self._tally = tally

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        return self._provider.submit(request)

    def collect(self) -> list[Outcome]:
        arrived = self._provider.collect()
        for outcome in arrived:
            self._tally.add(outcome)
        return arrived

    def close(self) -> None:
        self._provider.close()
