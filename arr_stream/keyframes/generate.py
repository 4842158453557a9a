"""One keyframe's full generation, and how a pipeline asks for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from arr_stream.config import KeyframeSettings
from arr_stream.errors import KeyframeFailed
from arr_stream.keyframes.base import Clusterer, Embedder, KeyframeInput, TextFinder
from arr_stream.keyframes.clusters import make_clusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.text import make_text_finder
from arr_stream.types import FloatArray, Frame, Grid, IntArray, KeyframeResult

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, eq=False)
class KeyframeRequest:
    """Asks for full generation on a frame.

    Args:
        frame: The frame.
        grid: Its grid.
        read_text: Text is also read, because a query needs words.
    """

    frame: Frame
    grid: Grid
    read_text: bool = False


@dataclass(frozen=True, slots=True)
class KeyframeFailure:
    """Generation that came to nothing.

    Args:
        index: Index of the frame that was asked for.
        message: One line: what failed and why.
        details: Traceback or last words of the worker, empty where there are none.
    """

    index: int
    message: str
    details: str = ""


class KeyframeGenerator(Protocol):
    """Makes everything that a keyframe renews."""

    def generate(self, request: KeyframeRequest) -> KeyframeResult:
        """Clusters, embedding and text of one frame.

        Raises:
            KeyframeFailed: A part raised or gave values that are not numbers.
        """
        ...


class KeyframeProvider(Protocol):
    """Where a pipeline gets keyframes from; whether they are made at once or beside it is the provider's business."""

    def submit(self, request: KeyframeRequest) -> bool:
        """Ask for a keyframe; False when another is still being made, and then nothing happens."""
        ...

    def collect(self) -> list[KeyframeResult | KeyframeFailure]:
        """What has arrived since the last call, oldest first; never waits."""
        ...

    def close(self) -> None:
        """Give up what is under way and free everything; may be called twice."""
        ...


class StandardGenerator:
    """Clusters, embedding and text, one after the other.

    Args:
        clusterer, embedder, text_finder: The three parts.
    """

    def __init__(self, clusterer: Clusterer, embedder: Embedder, text_finder: TextFinder) -> None:
        self.clusterer = clusterer
        self.embedder = embedder
        self.text_finder = text_finder

    def generate(self, request: KeyframeRequest) -> KeyframeResult:
        picture = KeyframeInput(request.frame, request.grid)
        seconds: dict[str, float] = {}

        def timed(part: str, make: Callable[[], Part]) -> Part:
            started = time.perf_counter()
            try:
                return make()
            except Exception as exc:
                raise KeyframeFailed(f"{part}: {type(exc).__name__}: {exc}") from exc
            finally:
                seconds[part] = time.perf_counter() - started

        clusters = timed("clusters", lambda: self.clusterer.cluster(picture))
        embedding = timed("embedding", lambda: self.embedder.embed(picture))
        text = timed("text", lambda: self.text_finder.find(picture, read=request.read_text))
        result = KeyframeResult(
            index=request.frame.index,
            clusters=clusters,
            embedding=embedding,
            text_mask=text.mask,
            text_regions=text.regions,
            seconds=seconds,
            backends={
                "clusters": clusters.method,
                "embedding": self.embedder.name,
                "text": self.text_finder.name,
            },
        )
        check_result(result)
        return result


def make_generator(settings: KeyframeSettings, threads: int | None = None) -> StandardGenerator:
    """The three parts that the settings name.

    Args:
        settings: Names of the parts.
        threads: Threads for the parts that have pools of their own; None for half of the cores, since such pools
            wait by spinning, at the cost of whatever else is running.

    Raises:
        BackendUnavailable: A package or weights are missing.
        InvalidSetting: A name that does not exist.
    """
    return StandardGenerator(
        make_clusterer(settings.clusters, settings.cluster_count),
        make_embedder(settings.embeddings),
        make_text_finder(settings.text, threads or max(1, (os.cpu_count() or 1) // 2)),
    )


def check_result(result: KeyframeResult) -> None:
    """Refuse values that would spread through every carried channel.

    Raises:
        KeyframeFailed: NaN, infinity or a value out of range; names the part.
    """
    clusters = result.clusters
    _check_range("clusters: areas", clusters.areas, 0.0, 1.0)
    _check_range("clusters: centroids", clusters.centroids_xy, 0.0, 1.0)
    _check_range("clusters: labels", clusters.labels, 0, clusters.count - 1)
    _check_range("embedding", result.embedding, -1.0, 1.0)
    _check_range("text", result.text_mask, 0.0, 1.0)


def _check_range(what: str, values: FloatArray | IntArray, low: float, high: float) -> None:
    if values.size == 0:
        raise KeyframeFailed(f"{what}: no values")
    least, most = float(values.min()), float(values.max())
    # A comparison with NaN is false, so this also refuses what is not a number.
    if not (low - 1e-5 <= least and most <= high + 1e-5):
        raise KeyframeFailed(f"{what}: values from {least} to {most}, allowed are {low} to {high}")


class InStepKeyframes:
    """Keyframes made at once, inside `submit`: the same input always gives the same output.

    Args:
        generator: Makes them.
    """

    def __init__(self, generator: KeyframeGenerator) -> None:
        self.generator = generator
        self._arrived: list[KeyframeResult | KeyframeFailure] = []

    def submit(self, request: KeyframeRequest) -> bool:
        """Always True.

        Raises:
            KeyframeFailed: Generation failed.
        """
        try:
            self._arrived.append(generate_checked(self.generator, request))
        except KeyframeFailed as exc:
            raise KeyframeFailed(f"frame {request.frame.index}: {exc.message}", remedy=exc.remedy) from exc
        return True

    def collect(self) -> list[KeyframeResult | KeyframeFailure]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        self._arrived = []


def generate_checked(generator: KeyframeGenerator, request: KeyframeRequest) -> KeyframeResult:
    """A generator's result, checked, with every exception turned into one of our kind.

    Raises:
        KeyframeFailed: It raised, or its values are not usable.
    """
    try:
        result = generator.generate(request)
    except KeyframeFailed:
        raise
    except Exception as exc:
        raise KeyframeFailed(f"generation: {type(exc).__name__}: {exc}") from exc
    check_result(result)
    return result
