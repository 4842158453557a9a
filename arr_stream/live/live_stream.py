"""A stream of live frames that takes commands while it runs."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.generate import InStepKeyframes, KeyframeProvider, StandardGenerator
from arr_stream.keyframes.worker import KeyframeWorkers, WorkerPool, maker_values
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.processes import usable_cores
from arr_stream.relevance.query import Query, RegionQuery, parse_text, resized_queries
from arr_stream.sources.base import Source
from arr_stream.stream import Stream, fetch_weights, make_device
from arr_stream.types import FloatArray, Frame, Grid

_MOST_POINTS = 256
_JOIN_SECONDS = 2.0

WINDOW_SECONDS = 1.0
"""Length of the windows in which load is measured."""

_OVERLOADED = 0.92
_RELAXED = 0.6
_MOST_DROPPED = 0.08
_LOWER_AFTER_WINDOWS = 2
_RAISE_AFTER_WINDOWS = 30
"""Long, since a raise may bring the overload back."""

_TURNS = threading.BoundedSemaphore(max(1, usable_cores() // 2))
"""Limit on the frames of all live streams that the process works on at once.

Each frame leaves the interpreter for OpenCV many times; with more threads than this, they wait for the interpreter lock
more than they work. The other cores decode, draw, encode and make keyframes.
"""


@dataclass(frozen=True, slots=True)
class Quality:
    """Savings of one step: factors on the interval of keyframes, and by which pictures for optical flow are smaller."""

    interval_factor: int = 1
    flow_reduction: int = 1


STEPS = (Quality(), Quality(2), Quality(4), Quality(4, 2), Quality(4, 4))
"""Steps from full quality down; `PatchSet.quality` is an index into these."""


class Governor:
    """Controller of the quality step: two overloaded windows in a row lower quality, thirty relaxed ones raise it.

    Attributes:
        step: Index into `STEPS`.
    """

    def __init__(self) -> None:
        self.step = 0
        self._window_start: float | None = None
        self._busy_seconds = 0.0
        self._frames = self._dropped = self._overloaded = self._relaxed = 0

    @property
    def quality(self) -> Quality:
        return STEPS[self.step]

    def note(self, now_seconds: float, busy_seconds: float, dropped: int = 0) -> bool:
        """Record one frame; return True if the quality has changed.

        Args:
            now_seconds: Time at which the frame was done; any monotonic clock.
            busy_seconds: Work on it, without the wait for the frame.
            dropped: Frames dropped just before it.
        """
        if self._window_start is None:
            self._window_start = now_seconds - busy_seconds
        self._busy_seconds += busy_seconds
        self._frames += 1
        self._dropped += dropped
        elapsed = now_seconds - self._window_start
        if elapsed < WINDOW_SECONDS:
            return False
        load = self._busy_seconds / elapsed
        overloaded = load > _OVERLOADED or self._dropped / (self._frames + self._dropped) > _MOST_DROPPED
        self._window_start, self._busy_seconds, self._frames, self._dropped = now_seconds, 0.0, 0, 0
        self._overloaded = self._overloaded + 1 if overloaded else 0
        self._relaxed = self._relaxed + 1 if load < _RELAXED and not overloaded else 0
        before = self.step
        if self._overloaded >= _LOWER_AFTER_WINDOWS:
            self.step = min(self.step + 1, len(STEPS) - 1)
        elif self._relaxed >= _RAISE_AFTER_WINDOWS:
            self.step = max(self.step - 1, 0)
        if self.step != before:
            self._overloaded = self._relaxed = 0
        return self.step != before


class PointerGaze:
    """`GazeSource` for points from any thread; each point belongs to the next frame."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_MOST_POINTS)
        self._lock = threading.Lock()

    def set_gaze(self, x: float, y: float) -> None:
        """Add a gaze point, normalised to [0, 1].

        Raises:
            InvalidSetting: Outside [0, 1].
        """
        if not (0 <= x <= 1 and 0 <= y <= 1):
            raise InvalidSetting(f"gaze ({x:g}, {y:g}) is outside the frame", remedy="give x and y in [0, 1]")
        with self._lock:
            self._points.append((x, y))

    def between(self, after_seconds: float, until_seconds: float) -> FloatArray:
        """Return every point since the previous frame, regardless of its time, `[N, 2]`."""
        with self._lock:
            points = np.array(self._points, np.float32).reshape(-1, 2)
            self._points.clear()
        return points


class LiveReader:
    """Reader that takes frames from a source in a thread.

    Iterating waits for the next frame; if the buffer is full, the oldest frame is dropped and counted. An error of the
    source is raised in the iteration, after the frames before it.

    Args:
        frames: The source's frames.
        room: Size of the buffer; with 1 only the newest frame is kept.

    Attributes:
        dropped: Number of dropped frames.
    """

    def __init__(self, frames: Iterator[Frame], room: int = 1) -> None:
        self.dropped = 0
        self._frames = frames
        self._waiting: deque[Frame] = deque()
        self._room = room
        self._done = False
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="arr-stream-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Frame]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._done)
                frame = self._waiting.popleft() if self._waiting else None
            if frame is None:
                if self._error is not None:
                    raise self._error
                return
            yield frame

    def close(self) -> None:
        """Stop reading and end the thread."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)
        with self._changed:
            self._done = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Frames in the buffer."""
        return len(self._waiting)

    def _read(self) -> None:
        try:
            for frame in self._frames:
                if self._stop.is_set():
                    return
                self._offer(frame)
        except BaseException as exc:
            self._error = exc
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _offer(self, frame: Frame) -> None:
        with self._changed:
            if len(self._waiting) >= self._room:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(frame)
            self._changed.notify_all()


class LiveStream(Stream):
    """Stream of live frames: only the newest one, or every one while the buffer has space (`live.policy`).

    Frames do not wait for the keyframe models: until those are loaded, frames are processed without a keyframe.
    `ask` and `configure` may be called from any thread and take effect with the next frame.

    Args:
        source, settings, queries: See `Stream`.
        pool: Lends keyframe workers that other streams share; None for own workers.
        max_frames: The stream ends after so many frames; None for no end.
    """

    realtime = True

    def __init__(
        self,
        source: Source,
        settings: Settings,
        queries: Sequence[Query] = (),
        *,
        pool: WorkerPool | None = None,
        max_frames: int | None = None,
    ) -> None:
        self.pointer = PointerGaze()
        self.paused = False
        self._governor = Governor()
        self._untold: list[str] = []
        self._pool = pool or WorkerPool()
        self._reader: LiveReader | None = None
        self._models_ready = False
        self._max_frames = max_frames
        self._closing = threading.Event()
        self._turn = threading.Lock()
        super().__init__(source, settings, queries, gaze=self.pointer)

    @property
    def grid(self) -> Grid:
        """The cells of the newest frame."""
        return Grid.for_size(self._size_wh, max_pixels=self.settings.grid.max_pixels)

    @property
    def quality(self) -> int:
        """Step by which quality is lowered, 0 for full quality; an index into `STEPS`."""
        return self._governor.step

    def ask(self, *queries: Query | str) -> None:
        """Replace the queries from the next frame on; plain strings are text queries.

        Raises:
            QueryError: Empty, or a region outside the frame.
        """
        asked = tuple(parse_text(query) if isinstance(query, str) else query for query in queries)
        asked = tuple(query.checked(self._size_wh) if isinstance(query, RegionQuery) else query for query in asked)
        with self._turn:
            self.queries = asked
            self.pipeline.ask(asked)

    def configure(self, settings: Settings) -> None:
        """Change the settings from the next frame on; wait here, while the stream runs, for keyframe models they need.

        Raises:
            ArrStreamError: The keyframe models cannot be loaded; the settings stay as they are.
        """
        if maker_values(settings) != maker_values(self.settings):
            self._load(settings)
            return
        with self._turn:
            self.settings = settings
            self.pipeline.configure(settings)
            self._adapt()

    def __iter__(self) -> Iterator[PatchSet]:
        noted = 0
        try:
            for frame in itertools.islice(self._frames(), self._max_frames):
                started = time.monotonic()
                # In this order, so that a stream that waits for `ask` or `close` takes no turn from the others.
                with self._turn, _TURNS:
                    if frame.size_wh != self._size_wh:
                        # The pipeline does the same with its own queries.
                        self.queries = resized_queries(self.queries, self._size_wh, frame.size_wh)
                    self.frame = frame
                    patches = self.pipeline.step(frame)
                notices, self._untold = (*self._untold, *patches.notices), []
                yield replace(patches, quality=self._governor.step, notices=notices)
                if self.settings.live.adapt:
                    now = time.monotonic()
                    self._govern(now, now - started, self.dropped - noted)
                noted = self.dropped
        finally:
            self.close()

    def close(self) -> None:
        """End threads, processes and connections; safe to call again, from any thread."""
        self._closing.set()
        # Close the source first: it wakes a reader that waits for a frame.
        self.source.close()
        if self._reader is not None:
            self._reader.close()
        super().close()

    @property
    def _size_wh(self) -> tuple[int, int]:
        return self.frame.size_wh if self.frame is not None else self.source.info.size_wh

    def _frames(self) -> Iterator[Frame]:
        self._warm_up()
        room = self.settings.live.buffer_frames if self.settings.live.policy == "every" else 1
        self._reader = LiveReader(self.source.frames(), room)
        for frame in self._reader:
            self.dropped = self._reader.dropped
            if not self._models_ready and isinstance(self._provider, KeyframeWorkers):
                # Raises the error of a model that could not be loaded.
                self._models_ready = self._provider.wait_ready(0.0)
            if not self.paused:
                yield frame

    def _warm_up(self) -> None:
        """Process two synthetic frames: libraries load and allocate at first use, which must not delay a live frame."""
        width, height = self.source.info.size_wh
        noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        without = InStepKeyframes(StandardGenerator())
        pipeline = Pipeline(self.settings, without, self.queries, device=make_device(self.settings))
        for index in range(2):
            pipeline.step(Frame(index, float(index), noise))

    def _make_provider(self, settings: Settings) -> KeyframeWorkers:
        fetch_weights(settings)
        return self._pool.lease(settings)

    def _govern(self, now_seconds: float, busy_seconds: float, dropped: int) -> None:
        before = self._governor.step
        if not self._governor.note(now_seconds, busy_seconds, dropped):
            return
        self._adapt()
        step, quality = self._governor.step, self._governor.quality
        why = "lowered to hold the frame rate" if step > before else "restored by a step"
        interval = self.settings.keyframes.interval * quality.interval_factor
        size = f", flow at 1/{quality.flow_reduction} of its size" if quality.flow_reduction > 1 else ""
        self._untold.append(f"quality {why}, now step {step} of {len(STEPS) - 1}: keyframes every {interval}{size}")

    def _adapt(self) -> None:
        quality = self._governor.quality
        self.pipeline.adapt(interval_factor=quality.interval_factor, flow_reduction=quality.flow_reduction)

    def _load(self, settings: Settings) -> None:
        """Load the keyframe models of these settings, then switch over between two frames."""
        provider = self._make_provider(settings)
        unused: KeyframeProvider = provider
        try:
            pipeline = self._make_pipeline(settings, provider)
            while not provider.wait_ready(0.2):
                if self._closing.is_set():
                    return
            with self._turn:
                if not self._closing.is_set():
                    assert self._provider is not None
                    unused, self._provider = self._provider, provider
                    self.pipeline, self.settings = pipeline, settings
                    pipeline.ask(self.queries)
                    self._adapt()
        finally:
            unused.close()
            if self._closing.is_set():
                # `close` may have met the former provider.
                provider.close()
