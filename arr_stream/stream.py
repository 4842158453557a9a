"""Stream of patch sets from a source and a pipeline: iterate to get one a frame.

for patches in arr_stream.open("street.mp4", query="red"):
    print(patches.pts_seconds, patches.cells_xyxy)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from arr_stream import weights
from arr_stream.budget import DEFAULT_TOKENS
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting, SourceDamaged
from arr_stream.extras import needed_by
from arr_stream.keyframes.base import TextEncoder
from arr_stream.keyframes.beside import make_provider
from arr_stream.keyframes.embeddings import find_pca, make_text_encoder
from arr_stream.keyframes.generate import (
    KeyframeGenerator,
    KeyframeProvider,
    make_generator,
    needed_weights,
)
from arr_stream.motion.device import Device
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.gaze import GazeSource, load_gaze
from arr_stream.relevance.query import (
    ExampleQuery,
    Query,
    RegionQuery,
    TextQuery,
    load_example,
    parse_text,
)
from arr_stream.sources import open_source
from arr_stream.sources.base import Source
from arr_stream.types import FloatArray, Frame, Grid

if TYPE_CHECKING:
    from arr_stream.keyframes.embeddings.pca import Pca

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Models:
    """Models that a stream loads before its first frame; offline streams of the same settings may share them in turn.

    They keep no state of frames, so that a stream's results do not depend on earlier streams.
    """

    generator: KeyframeGenerator
    encoder: TextEncoder | None
    pca: Pca | None

    @classmethod
    def load(cls, settings: Settings, threads: int | None = None) -> Models:
        """Load the models, on at most `threads` threads; see `make_generator` for both and for errors."""
        fetch_weights(settings)
        encoder = make_text_encoder(settings)
        return cls(make_generator(settings, threads), encoder, find_pca(settings, encoder))


class Stream:
    """Frames of a source with the cells chosen on each; `LiveStream` is the one for live sources.

    Every frame is processed, and keyframe results arrive at fixed frames: the same input gives the same output.

    Args:
        source: Source of the frames; closed with the stream.
        settings: All settings.
        queries: The queries.
        gaze_csv: Gaze samples for channel 39.
        gaze: Other source of gaze samples, such as a pointer.
        start_seconds, end_seconds: Range of the source that is read, for the outputs.
        models: Loaded models for these settings.

    Attributes:
        frame: The frame of the last patch set.
        realtime: Frames are dropped when processing is too slow.
        dropped: Number of these frames.
        last: True on the last frame; known only if `look_ahead` was set before iterating, which makes every frame wait
            for the next one to be read.
    """

    realtime = False

    def __init__(
        self,
        source: Source,
        settings: Settings,
        queries: Sequence[Query] = (),
        *,
        gaze_csv: str | Path | None = None,
        gaze: GazeSource | None = None,
        start_seconds: float = 0.0,
        end_seconds: float | None = None,
        models: Models | None = None,
    ) -> None:
        self.gaze_csv = gaze_csv
        self._models = models
        self.source = source
        self.start_seconds = start_seconds
        self.end_seconds = end_seconds
        self.settings = settings
        self.queries = tuple(queries)
        self.frame: Frame | None = None
        self.dropped = 0
        self.look_ahead = False
        self.last = False
        self._provider: KeyframeProvider | None = None
        try:
            self._check_queries()
            self._gaze = load_gaze(gaze_csv) if gaze_csv is not None else gaze
            # First: a live stream's workers load their models while this process loads the text encoder.
            self._provider = self._make_provider(settings)
            self.pipeline = self._make_pipeline(settings, self._provider)
        except BaseException:
            self.close()
            raise

    @property
    def grid(self) -> Grid:
        """Cells of the source's frames."""
        return Grid.for_size(self.source.info.size_wh, max_pixels=self.settings.grid.max_pixels)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user before the first frame, one line each."""
        cells = self.grid.cells
        notices = list(self.source.info.notices)
        if self.settings.selection.budget == "auto" and cells <= DEFAULT_TOKENS:
            notices.append(
                f"all {cells} cells of each frame are chosen: the budget `auto` is {DEFAULT_TOKENS}; try 10%"
            )
        if left_out := self.source.info.left_out:
            named = ", ".join(left_out[:_MOST_NAMED]) + (", ..." if len(left_out) > _MOST_NAMED else "")
            notices.append(f"not read, since they are no single pictures ({len(left_out)}): {named}")
        return tuple(notices)

    @property
    def query_notices(self) -> dict[Query, str]:
        """One line for each query with words that neither the lexicon nor a detector or a model understands."""
        return {query: notice for query, own in self._texts.items() if (notice := own.notice())}

    @property
    def query_faults(self) -> dict[str, str]:
        """Faults of queries by their texts, without the remedies of the command line."""
        return {own.text: fault for own in self._texts.values() if (fault := own.fault()) is not None}

    @property
    def unknown_words(self) -> tuple[str, ...]:
        """Words of the queries that nothing understands, each once."""
        return tuple(dict.fromkeys(word for own in self._texts.values() for word in own.unknown_words))

    @property
    def asked(self) -> str | None:
        """Queries in one line, for pictures."""
        return ", ".join(query.label for query in self.queries) or None

    @property
    def _texts(self) -> dict[Query, TextQuery]:
        """Text queries that no model reads unchanged, as the detector in use understands them."""
        texts = [query for query in self.queries if isinstance(query, TextQuery)]
        labels, phrases = self.pipeline.labels, self.pipeline.phrases
        return {query: query.detected(labels) for query in texts if query.phrase not in phrases}

    def ask(self, *queries: Query | str) -> None:
        """Replace the queries from the next frame on; plain strings are text queries."""
        self.queries = tuple(parse_text(query) if isinstance(query, str) else query for query in queries)
        self._check_queries()
        self.pipeline.ask(self.queries)

    def attend(self, attention: FloatArray, index: int | None = None) -> bool:
        """Raise the scores of the cells that a model attended to, from the next frame on.

        `attention` is `[gh, gw]` in [0, 1], a value a cell. See `Pipeline.attend`.
        """
        return self.pipeline.attend(attention, index)

    def __iter__(self) -> Iterator[PatchSet]:
        try:
            source = self.source.frames()
            frames = _with_last(source) if self.look_ahead else zip(source, repeat(False))
            for self.frame, self.last in frames:
                yield self.pipeline.step(self.frame)
            self.pipeline.keyframes.require_all()
        finally:
            self.close()

    def close(self) -> None:
        """End threads, processes and files; safe to call again."""
        if self._provider is not None:
            self._provider.close()
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_queries(self) -> None:
        for query in self.queries:
            if isinstance(query, RegionQuery):
                query.checked(self.source.info.size_wh)
                at, end = query.at_seconds, math.inf if self.end_seconds is None else self.end_seconds
                if at >= end or 0 < at < self.start_seconds:
                    part = f"{self.start_seconds:g} s" + (f" to {end:g} s" if end < math.inf else " on")
                    raise InvalidSetting(
                        f"{query.label}: its time is not in the part that is read", remedy=f"give one from {part}"
                    )

    def _make_provider(self, settings: Settings) -> KeyframeProvider:
        if self._models is None:
            fetch_weights(settings)
        generator = self._models.generator if self._models is not None else make_generator(settings)
        # Pictures in a folder need not show one scene.
        return make_provider(generator, settings.keyframes, follow=self.source.info.kind != "images")

    def _make_pipeline(self, settings: Settings, provider: KeyframeProvider) -> Pipeline:
        encoder = self._models.encoder if self._models is not None else make_text_encoder(settings)
        return Pipeline(
            settings,
            provider,
            self.queries,
            gaze=self._gaze,
            encoder=encoder,
            pca=self._models.pca if self._models is not None else find_pca(settings, encoder),
            device=make_device(settings),
        )


def make_device(settings: Settings) -> Device:
    """Return the device that frames are processed on: the CPU, or the one that `loop.device` names.

    Raises:
        BackendUnavailable: There is no such device.
    """
    if settings.loop.device == "cpu":
        return Device()
    with needed_by(f"loop.device={settings.loop.device}"):
        from arr_stream.gpu.device import TorchDevice

    return TorchDevice(settings.loop.device)


def fetch_weights(settings: Settings) -> None:
    """Download missing weights if the settings allow it: here, once, since workers would each fetch the same file.

    Raises:
        FetchFailed: A file could not be downloaded.
    """
    if settings.models.download:
        for name in needed_weights(settings):
            weights.find(name, settings.models)


def _with_last(frames: Iterator[Frame]) -> Iterator[tuple[Frame, bool]]:
    """Yield each frame, and True with the last one; a source that breaks off has a last frame too."""
    held: Frame | None = None
    broken: SourceDamaged | None = None
    try:
        for frame in frames:
            if held is not None:
                yield held, False
            held = frame
    except SourceDamaged as exc:
        broken = exc
    if held is not None:
        yield held, True
    if broken is not None:
        raise broken


def open(
    source: str | Path | Source | int,
    query: str | Sequence[str] | None = None,
    *,
    region: tuple[float, float, float, float] | None = None,
    region_at_seconds: float = 0.0,
    example: str | Path | ExampleQuery | None = None,
    queries: Sequence[Query] = (),
    budget: int | str | None = None,
    budget_per_second: float | None = None,
    settings: Settings | None = None,
    gaze_csv: str | Path | None = None,
    video_stream: int | None = None,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    stride: int | None = None,
    max_frames: int | None = None,
    models: Models | None = None,
) -> Stream:
    """Open a video, a folder or glob of pictures, or an animation, and choose cells on every frame.

    Args:
        source: Path, glob, or an open source. Cameras and addresses are refused: see
            `arr_stream.live.live_stream.LiveStream`.
        query: Text query; several are scored separately and combined.
        region: Box `x, y, w, h` in pixels of the first frame, tracked from `region_at_seconds` on.
        example: Picture of the object to look for.
        queries: Further queries as objects.
        budget: Tokens a frame, or a share of the grid such as `"10%"`; overrides the settings.
        budget_per_second: Tokens a second, spent on frames with change; `budget` is then the most of a frame.
        settings: All other settings; `Settings.load(preset)` reads a preset.
        gaze_csv: Gaze samples (`pts_seconds,x,y`).
        video_stream, start_seconds, end_seconds, stride, max_frames: Range of frames to read; `stride` overrides the
            settings.
        models: Loaded models, by `Models.load(settings)`; for many sources one after the other.

    Returns:
        A `Stream`; iterate over it. It closes itself at the end, or use it as a context manager.

    Warns:
        UserWarning: A word of `query` is not understood.

    Raises:
        SourceError, QueryError, SettingsError, BackendUnavailable: See `arr_stream.errors`.

    Example:
        >>> for patches in open("street.mp4", query="red", budget=40):
        ...     print(len(patches), patches.cells_xyxy[0])
    """
    given = {"selection.budget": budget, "selection.per_second": budget_per_second}
    settings = (settings or Settings()).with_values({key: each for key, each in given.items() if each is not None})
    asked: list[Query] = [parse_text(text) for text in ([query] if isinstance(query, str) else query or ())]
    if region is not None:
        asked.append(RegionQuery(region, region_at_seconds))
    if example is not None:
        asked.append(example if isinstance(example, ExampleQuery) else load_example(example))
    stride = settings.source.stride if stride is None else stride
    # OpenCV's habit; the resulting error explains how to read cameras.
    source = f"camera:{source}" if isinstance(source, int) else source
    if isinstance(source, str | Path):
        source = open_source(
            source,
            video_stream=video_stream,
            start_seconds=start_seconds,
            end_seconds=end_seconds,
            stride=stride,
            max_frames=max_frames,
            max_pixels=settings.source.max_pixels,
            untagged_matrix=settings.source.untagged_matrix,
            stop_at_damage=settings.source.stop_at_damage,
        )
    stream = Stream(
        source,
        settings,
        [*asked, *queries],
        gaze_csv=gaze_csv,
        start_seconds=start_seconds or 0.0,
        end_seconds=end_seconds,
        models=models,
    )
    try:
        for each, notice in stream.query_notices.items():
            if each in asked:
                warnings.warn(notice, stacklevel=2)
    except UserWarning:
        # Warnings may be turned into errors.
        stream.close()
        raise
    return stream
