"""Full generation of a keyframe, and the interface through which the pipeline requests it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from arr_stream.config import TINY, Settings
from arr_stream.errors import ArrStreamError, KeyframeFailed
from arr_stream.files import expanded
from arr_stream.keyframes.base import (
    PARTS,
    Clusterer,
    Embedder,
    KeyframeInput,
    KeyframePart,
    ObjectFinder,
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
from arr_stream.types import Embedding, FloatArray, Frame, Grid


@dataclass(frozen=True, slots=True, eq=False)
class KeyframeRequest:
    """Request for full generation on a frame.

    Args:
        parts: Parts to make.
        awaited: Parts that a query needs.
        new_scene: The frame starts a new scene, so earlier requests are obsolete.
        asked: There are queries; parts that are not awaited only affect the leftover budget and may arrive late.
        text_before: See `KeyframeInput`.
        window: A request between keyframes, often for a crop of a frame, whose result is due within a few frames.
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
        parts: Parts that failed.
    """

    index: int
    message: str
    parts: tuple[PartName, ...] = PARTS


Outcome = KeyframePart | KeyframeFailure

Job = Callable[[], tuple[PartValue, str]]
"""Function that makes one part: returns its value and the name of its backend."""


class KeyframeGenerator(Protocol):
    """Protocol of a generator of a keyframe's parts."""

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        """Return a job for each requested part; jobs may run in any order and on different threads."""
        ...


class KeyframeProvider(Protocol):
    """Source of a pipeline's keyframes; it generates synchronously or in the background."""

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        """Request a keyframe; return the accepted parts. The others are busy with an earlier frame."""
        ...

    def collect(self) -> list[Outcome]:
        """Return the outcomes since the last call, oldest first, without waiting."""
        ...

    def close(self) -> None:
        """Cancel pending work and free all resources; may be called twice."""
        ...


class StandardGenerator:
    """Generator that makes each part for which it has a backend."""

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
    """Shared embedder that embeds the same picture only once."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._last: tuple[KeyframeInput, Embedding] | None = None

    @property
    def name(self) -> str:
        return self._embedder.name

    def embed(self, picture: KeyframeInput) -> Embedding:
        if self._last is None or self._last[0] is not picture:
            self._last = picture, self._embedder.embed(picture)
        return self._last[1]


def make_generator(
    settings: Settings, threads: int | None = None, parts: Sequence[PartName] = PARTS
) -> StandardGenerator:
    """Return the generator that the settings describe; loads only the models of `parts`.

    Args:
        settings: Methods of the parts and their options.
        threads: Threads of the parts with their own thread pools; None for half of the cores, since such pools
            spin while they wait and slow other work.
        parts: Parts to make.

    Raises:
        BackendUnavailable: A package or weights are missing.
        WeightsInvalid: Weights are damaged or belong to another model.
        InvalidSetting: A name does not exist.
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
    """Return the names of the catalogue's weights that the settings need, without files that they name by path."""
    needed = []
    if settings.keyframes.clusters == "sam" and settings.sam.checkpoint == "auto":
        needed.append(settings.sam.model)
    model = settings.clip.model
    if settings.keyframes.embeddings == "clip" and model != TINY and not expanded(model).is_dir():
        needed.append(model)
    return tuple(needed)


def make_part(index: int, part: PartName, job: Job) -> Outcome:
    """Run one job and check its value; any exception becomes a failure of that part alone."""
    started = time.perf_counter()
    try:
        value, backend = job()
        check_value(value)
    # A library that calls `sys.exit` on a failure would end the program with success.
    except (Exception, SystemExit) as exc:
        if isinstance(exc, KeyframeFailed):
            message = str(exc)
        elif isinstance(exc, ArrStreamError):
            message = f"{part}: {exc}"
        else:
            message = ": ".join(filter(None, (part, type(exc).__name__, " ".join(str(exc).split()))))
        return KeyframeFailure(index, message, (part,))
    return KeyframePart(index, part, value, backend, time.perf_counter() - started)


def check_value(value: PartValue) -> None:
    """Reject values of a model that would spread through every carried channel.

    Raises:
        KeyframeFailed: NaN, infinity, a value out of range or a wrong shape.
    """
    if isinstance(value, Embedding):
        _check("embedding", value.values, "[D, h, w]", -1.0)
    elif isinstance(value, TextFinding):
        _check("text: mask", value.mask, "[h, w]", 0.0)


def _check(what: str, values: FloatArray, shape: str, low: float) -> None:
    if values.ndim != shape.count(",") + 1 or values.size == 0:
        raise KeyframeFailed(f"{what}: {list(values.shape)}, expected {shape}")
    least, most = float(values.min()), float(values.max())
    # A comparison with NaN is false, so this also rejects NaN.
    if not (low - 1e-5 <= least and most <= 1 + 1e-5):
        raise KeyframeFailed(f"{what}: values from {least} to {most}, allowed are {low} to 1.0")


class InStepKeyframes:
    """Provider that makes keyframes synchronously in `submit`, one part after the other; deterministic."""

    def __init__(self, generator: KeyframeGenerator) -> None:
        self.generator = generator
        self._arrived: list[Outcome] = []

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        """Make every part. `collect` returns failures, as long as one part succeeds.

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
    """Raise if all parts of a keyframe failed.

    Raises:
        KeyframeFailed: Every part failed.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, KeyframeFailure)]
    if failures and len(failures) == len(outcomes):
        raise KeyframeFailed(f"frame {failures[0].index}: {'; '.join(failure.message for failure in failures)}")


class CountedKeyframes:
    """Provider that counts another provider's outcomes.

    Attributes:
        failures: For each part, the number of keyframes that lack it.
    """

    def __init__(self, provider: KeyframeProvider) -> None:
        self._provider = provider
        self.failures: Counter[PartName] = Counter()
        self._made: set[PartName] = set()
        self._last: dict[PartName, str] = {}

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        return self._provider.submit(request)

    def collect(self) -> list[Outcome]:
        arrived = self._provider.collect()
        for outcome in arrived:
            if isinstance(outcome, KeyframePart):
                self._made.add(outcome.part)
            else:
                self.failures.update(outcome.parts)
                self._last.update(dict.fromkeys(outcome.parts, outcome.message))
        return arrived

    def close(self) -> None:
        self._provider.close()

    def require_all(self) -> None:
        """Raise if a part is missing from the whole run, so that nobody takes the results for complete.

        Raises:
            KeyframeFailed: A part failed on every request; names the first such part, and its last failure.
        """
        for part in PARTS:
            if self.failures[part] and part not in self._made:
                times = "the only keyframe" if self.failures[part] == 1 else f"all {self.failures[part]} keyframes"
                raise KeyframeFailed(
                    f"{part} failed on {times}; the last time: {self._last[part]}",
                    remedy="the results are written, without this part",
                )
