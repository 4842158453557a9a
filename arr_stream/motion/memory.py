"""Temporal cache: the keyframe parts in use and channels 34 to 39, carried along the flow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import (
    PARTS,
    TEXT_READ,
    KeyframePart,
    LazyClusters,
    ObjectFinding,
    PartName,
    TextBefore,
    TextFinding,
)
from arr_stream.keyframes.text.regions import LEAST_LIKENESS, placed, settled, small_regions, text_mask
from arr_stream.motion.carry import carried_points, carry, compose
from arr_stream.motion.flow import Flow
from arr_stream.motion.objects import ObjectTracks, carried_objects
from arr_stream.motion.planes import HISTORY, TEXT, CarriedPlane, PreviousPlane, RegionPlanes
from arr_stream.motion.window import Window, joined
from arr_stream.texture.array import LazyPlane, Plane
from arr_stream.texture.arrays import Array, channels_first, enlarged, namespace, replaced, to_numpy, zeros
from arr_stream.texture.layout import EMBEDDING
from arr_stream.texture.pixels import averaged
from arr_stream.types import BoolArray, ByteArray, Clusters, DetectedObject, Embedding, FloatArray, Grid, TextRegion

HISTORY_CHANNELS = ("previous_relevance", "previous_saliency", "fixation", "attention", "attention_history", "gaze")
"""Channels 34 to 39, in order."""

KEPT = ("fixation", "attention", "attention_history", "gaze")
"""Channels carried on every frame; the other two belong to the previous frame and are carried on access."""

FIXATION = HISTORY + HISTORY_CHANNELS.index("fixation")
FIXATION_DECAY = 0.9
_EIGHTH_PER_CELL = 4
GAZE_HALF_LIFE_SECONDS = 0.5
_SPENT = 1e-6
"""Level below which faded values become 0, to avoid slow denormal numbers."""
_KNOWN = 0.5
"""Least trust at which data of an earlier frame hold for this one."""


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """State that is warped with the picture.

    Args:
        history: `[1, h, w]` or `[4, h, w]` at an eighth of the texture's size: fixation alone, or all of `KEPT` after
            the first attention or gaze.
        ways: Flows back to earlier frames.
    """

    history: Array
    ways: tuple[Flow, ...]


def carried(before: Carried, flow: Flow) -> Carried:
    """Warp everything to the present frame along `flow`, the backward flow to the previous frame."""
    ways = tuple(compose(way, flow) for way in before.ways)
    return Carried(carry(before.history, flow, outside=0.0), ways)


def remembered(history: Array, chosen: Array) -> Array:
    """Return the history for the next frame.

    Args:
        history: History of the present frame.
        chosen: `[gh, gw]`, 1 where a cell was chosen.
    """
    looked = enlarged(chosen, _EIGHTH_PER_CELL)
    return replaced(history, {0: FIXATION_DECAY * history[0] + (1 - FIXATION_DECAY) * looked})


def carried_to_cells(plane: Array, way: Flow) -> Array:
    """Carry a plane `[h, w]` of an earlier frame, at an eighth of the texture's size; return cell means `[gh, gw]`."""
    moved, side = carry(plane, way, outside=0.0), _EIGHTH_PER_CELL
    return moved.reshape(moved.shape[0] // side, side, moved.shape[1] // side, side).mean((1, 3))


def _as_it_is(values: npt.NDArray[Any]) -> Array:
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """Pending request for the embedding of a window.

    Args:
        index: Index of the frame.
        window: Window on it.
        known: Embedding that the result joins.
        way: Backward flow from the frame to that embedding, on the host.
    """

    index: int
    window: Window
    known: KeyframePart
    way: Flow


@dataclass(eq=False)
class TemporalCache:
    """State of one stream at one frame size.

    Each part of a keyframe is carried from the frame it was made from, so parts of different keyframes stand side by
    side until the late ones arrive.

    Args:
        grid: The cells; a changed size needs a new cache.
        put: Copies an array to the device.
    """

    grid: Grid
    put: Callable[[npt.NDArray[Any]], Array] = _as_it_is
    history: Array = field(init=False)
    _before: tuple[Array, Array] | None = field(init=False, default=None)
    _flow: Flow | None = field(init=False, default=None)
    _parts: dict[PartName, KeyframePart] = field(init=False, default_factory=dict)
    _pending: dict[int, set[PartName]] = field(init=False, default_factory=dict)
    _ways: dict[int, Flow] = field(init=False, default_factory=dict)
    _followed: dict[int, Flow] = field(init=False, default_factory=dict)
    _left: dict[str, float] = field(init=False, default_factory=dict)
    _no_text: Plane = field(init=False)
    _nothing_before: Plane = field(init=False)
    _nothing_given: Plane = field(init=False)
    _look: _Look | None = field(init=False, default=None)
    _looked_index: int | None = field(init=False, default=None)
    _embedding: Array | None = field(init=False, default=None)
    _text: Array | None = field(init=False, default=None)
    _small_text: Array | None = field(init=False, default=None)
    _labels: tuple[Clusters | LazyClusters, Array] | None = field(init=False, default=None)
    _tracks: ObjectTracks = field(init=False, default_factory=ObjectTracks)

    def __post_init__(self) -> None:
        self.history = self.put(np.zeros((1, *self.reduced_hw(8)), np.float32))
        nothing = zeros(self.history, (1, 1, 1))
        self._no_text = Plane(TEXT, nothing)
        self._nothing_before = Plane(HISTORY, zeros(self.history, (len(HISTORY_CHANNELS) - len(KEPT), 1, 1)))
        self._nothing_given = Plane(FIXATION + 1, zeros(self.history, (len(KEPT) - 1, 1, 1)))

    def reduced_hw(self, factor: int) -> tuple[int, int]:
        """Return rows and columns of the texture divided by `factor`."""
        width, height = self.grid.texture_wh
        return height // factor, width // factor

    @property
    def moving(self) -> Carried:
        """Return the state to move to the next frame."""
        return Carried(self.history, (*self._ways.values(), *self._followed.values()))

    def move(self, moved: Carried, flow: Flow) -> None:
        """Store the result of `carried` on `moving`, along the same flow."""
        ways = iter(moved.ways)
        self.history, self._flow = moved.history, flow
        self._ways = {index: next(ways) for index in self._ways}
        self._followed = {index: next(ways) for index in self._followed}

    def forget(self) -> None:
        """Drop all carried state after a cut."""
        for held in (self._parts, self._pending, self._ways, self._followed, self._left):
            held.clear()
        self._embedding = self._text = self._small_text = self._labels = self._before = None
        self._look = self._looked_index = None
        self._tracks.forget()
        self.history = namespace(self.history).zeros_like(self.history)

    def requested(self, index: int, parts: Collection[PartName]) -> None:
        """Record a request for some parts on the present frame."""
        if "objects" in parts:
            known = self.present_objects(self.objects.objects) if self.objects is not None else ()
            self._tracks.looked(index, known)
        self._pending[index] = set(parts)
        self._ways[index] = Flow.still(self.reduced_hw(8), self.history)

    def requested_text(self, index: int, doubtful: Sequence[TextRegion], new: BoolArray) -> None:
        """Record a request for text on the present frame, at doubtful regions and new places `[h, w]`."""
        way = self.way("text")
        assert way is not None
        self._looked_at(index, "text", way.to_numpy(), [new, *(_around(region, way.hw) for region in doubtful)])

    def adopt(self, part: KeyframePart) -> bool:
        """Start to use a part, carried to the present frame; return False if it belongs to a past scene."""
        if part.part not in self._pending.get(part.index, ()):
            return False
        if self._look is not None and self._look.index == part.index:
            return self._join(self._look, part)
        if isinstance(part.value, ObjectFinding):
            part = replace(part, value=ObjectFinding(self._tracks.renewed(part.index, part.value.objects)))
        self._parts[part.part] = part
        self.dropped(part.index, (part.part,))
        match part.value:
            case TextFinding(mask=mask, regions=regions):
                self._text = self.put(averaged(mask, self.reduced_hw(8))) if mask.any() else None
                self._small_text = self._put_small(regions)
            case Embedding():
                self._embedding = self._looked_index = None
            case ObjectFinding():
                pass
            case _:
                self._labels = None
        return True

    def dropped(self, index: int, parts: Collection[PartName]) -> None:
        """Stop waiting for some parts of frame `index`."""
        waiting = self._pending.get(index, set())
        waiting.difference_update(parts)
        if self._look is not None and self._look.index == index:
            self._look = None
        if not waiting:
            self._pending.pop(index, None)
        in_use = {part.index for part in self._parts.values()} | {self._looked_index}
        self._ways = {at: way for at, way in self._ways.items() if at in self._pending or at in in_use}

    @property
    def new_places(self) -> BoolArray | None:
        """Return `[2*gh, 2*gw]`: places of the present frame that the embedding in use does not cover.

        None without an embedding, or while one is pending. Waits for a device.
        """
        way = self.way("embedding")
        if way is None or self.pending("embedding"):
            return None
        confidence = averaged(way.confidence, (2 * self.grid.rows, 2 * self.grid.columns))
        new: BoolArray = to_numpy(confidence) < _KNOWN
        return new

    def requested_window(self, index: int, window: Window) -> None:
        """Record a request for the embedding of a window of the present frame, to join the one in use."""
        way = self.way("embedding")
        assert way is not None
        way = way.to_numpy()
        self._look = _Look(index, window, self._parts["embedding"], way)
        self._looked_at(index, "embedding", way, [window.on(way.hw, self.grid)])

    def _looked_at(self, index: int, part: PartName, way: Flow, places: Iterable[Any]) -> None:
        """Record a request for a part at some places of the present frame; `way` leads to the part in use, on the host.

        Other places keep their trust and stay due for a look if they are new.
        """
        self._pending[index] = {part}
        trust = way.confidence.copy()
        for place in places:
            trust[place] = 1
        self._ways[index] = replace(Flow.still(way.hw, self.history), confidence=self.put(trust))

    def _join(self, look: _Look, part: KeyframePart) -> bool:
        """Join a window's result with the embedding before it; return False if that is no longer in use."""
        known, seen = look.known.value, part.value
        current = self._parts.get("embedding") is look.known
        if current and isinstance(known, Embedding) and isinstance(seen, Embedding):
            values = joined(known.values, look.way, seen.values, look.window, self.grid)
            backend = f"{part.backend}, new places of frame {part.index}"
            self._parts["embedding"] = replace(look.known, value=replace(known, values=values), backend=backend)
            self._looked_index, self._embedding = part.index, None
        self.dropped(part.index, (part.part,))
        return current

    @property
    def embedding_joined(self) -> bool:
        """True if the embedding in use includes windows of later frames."""
        return self._looked_index is not None

    def pending(self, part: PartName) -> bool:
        """Return whether a part is requested and has not arrived."""
        return any(part in waiting for waiting in self._pending.values())

    @property
    def origins(self) -> dict[str, tuple[int, str]]:
        """Return the source frame and the backend of each part in use."""
        return {name: (self._parts[name].index, self._parts[name].backend) for name in PARTS if name in self._parts}

    @property
    def keyframe_index(self) -> int | None:
        """Index of the newest frame of which a part is in use.

        Text and objects, which are looked for between keyframes too, count only while there is nothing else.
        """
        lasting = [part.index for name, part in self._parts.items() if name not in ("text", "objects")]
        return max(lasting, default=self.origin("text"))

    @property
    def keyframe_way(self) -> Flow | None:
        """Backward flow to that frame."""
        index = self.keyframe_index
        return None if index is None else self._ways[index]

    @property
    def keyframe_position(self) -> int | None:
        """Index of that flow among the ways of `moving`."""
        index = self.keyframe_index
        return None if index is None else list(self._ways).index(index)

    @property
    def trust(self) -> Array | float:
        """Return the mean trust in data carried from the newest keyframe; 0 before the first one."""
        way = self.keyframe_way
        return 0.0 if way is None else way.trust

    @property
    def anchors(self) -> frozenset[int]:
        """Return the frames whose parts are in use or pending."""
        return frozenset(self._ways)

    @property
    def embedding(self) -> Embedding | None:
        """The embedding in use."""
        held = self._parts.get("embedding")
        return held.value if held is not None and isinstance(held.value, Embedding) else None

    @property
    def text(self) -> TextFinding | None:
        """The text finding in use."""
        held = self._parts.get("text")
        return held.value if held is not None and isinstance(held.value, TextFinding) else None

    @property
    def objects(self) -> ObjectFinding | None:
        """The object finding in use."""
        held = self._parts.get("objects")
        return held.value if held is not None and isinstance(held.value, ObjectFinding) else None

    def present_objects(self, objects: Sequence[DetectedObject]) -> tuple[DetectedObject, ...]:
        """Return objects of the finding in use where they are on the present frame; a device is waited for."""
        way = self.way("objects")
        return () if way is None else carried_objects(objects, way.to_numpy())

    def text_before(self, rgb: ByteArray) -> TextBefore | None:
        """Return the prior knowledge of the text on the present frame `[H, W, 3]`; None without a text finding.

        Waits for a device.
        """
        text, way = self.text, self.way("text")
        if text is None or way is None:
            return None
        way = way.to_numpy()
        known: list[TextRegion] = []
        doubtful: list[TextRegion] = []
        for region in text.regions:
            corners, trust = carried_points(np.array(region.polygon_xy, np.float32), way)
            corners = corners.clip(0, 1)
            if (corners.min(0) == corners.max(0)).any():
                continue
            moved = placed(region, corners)
            there, likeness = settled(rgb, moved)
            if trust.min() >= _KNOWN and likeness >= LEAST_LIKENESS:
                known.append(there)
            else:
                doubtful.append(moved)
        likely = carry(np.minimum(text.mask, TEXT_READ), way, outside=0.0)
        return TextBefore(tuple(known), tuple(doubtful), way.confidence < _KNOWN, likely)

    def _put_small(self, regions: Sequence[TextRegion]) -> Array | None:
        if not (self.grid.has_finer and (small := small_regions(regions, self.grid.texture_wh))):
            return None
        return self.put(text_mask([replace(region, confidence=1.0) for region in small], self.reduced_hw(8)))

    @property
    def small_text(self) -> tuple[Array, Flow] | None:
        """Return text too small for the texture, `[h, w]` at an eighth of its size, and the flow back to it.

        None without such text, or if the source has no more pixels than the texture.
        """
        way = self.way("text")
        return None if self._small_text is None or way is None else (self._small_text, way)

    def way(self, part: PartName) -> Flow | None:
        """Return the backward flow to the keyframe of a part in use."""
        index = self._looked_index if part == "embedding" and self._looked_index is not None else self.origin(part)
        return None if index is None else self._ways[index]

    def origin(self, part: PartName) -> int | None:
        """Return the index of the keyframe of a part in use."""
        held = self._parts.get(part)
        return None if held is None else held.index

    @property
    def has_embedding_channels(self) -> bool:
        """True if the embedding in use has been projected to channels 18 to 33."""
        return self._embedding is not None

    def set_embedding_channels(self, values: FloatArray) -> None:
        """Set channels 18 to 33, `[16, 2*gh, 2*gw]`, on the frame of the embedding in use."""
        self._embedding = channels_first(self.put(np.ascontiguousarray(values.transpose(1, 2, 0))))

    @property
    def planes(self) -> dict[int, Plane | LazyPlane]:
        """Return channels 13 to 39 of the present frame; those of keyframes are carried on first access."""
        return {**self._region_planes(), TEXT: self.text_plane, **self._embedding_plane(), **self._history_planes()}

    @property
    def text_plane(self) -> Plane | CarriedPlane:
        """Return channel 16."""
        way = self.way("text")
        if self._text is None or way is None:
            return self._no_text
        return CarriedPlane(TEXT, self._text[None], way, outside=0.0)

    def _history_planes(self) -> dict[int, Plane | LazyPlane]:
        """Return channels 34 to 39; no frame modifies the planes of an earlier one."""
        before: Plane | LazyPlane = self._nothing_before
        if self._before is not None and self._flow is not None:
            before = PreviousPlane(*self._before, self._flow)
        planes: dict[int, Plane | LazyPlane] = {HISTORY: before, FIXATION: Plane(FIXATION, self.history)}
        if len(self.history) < len(KEPT):
            planes[FIXATION + 1] = self._nothing_given
        return planes

    def _region_planes(self) -> dict[int, Plane | LazyPlane]:
        held, hw = self._parts.get("clusters"), self.reduced_hw(4)
        if held is None or not isinstance(held.value, Clusters | LazyClusters):
            # One region before the first keyframe.
            return RegionPlanes(lambda: self.put(np.zeros(hw, np.int32)), Flow.still(hw, self.history)).planes
        clusters = held.value
        return RegionPlanes(lambda: self._put_labels(clusters), self._ways[held.index]).planes

    def _put_labels(self, clusters: Clusters | LazyClusters) -> Array:
        if self._labels is None or self._labels[0] is not clusters:
            self._labels = clusters, self.put(clusters.labels)
        return self._labels[1]

    def _embedding_plane(self) -> dict[int, Plane | LazyPlane]:
        way, first = self.way("embedding"), EMBEDDING.start
        if self._embedding is None or way is None:
            shape = (EMBEDDING.stop - first, self.grid.rows * 2, self.grid.columns * 2)
            return {first: Plane(first, zeros(self.history, shape))}
        return {first: CarriedPlane(first, self._embedding, way)}

    def follow(self, index: int) -> None:
        """Keep the flow back to the present frame, for attention that arrives later; one frame at a time."""
        self._followed = {index: Flow.still(self.reduced_hw(8), self.history)}

    def leave(self, history: Array, relevance: Array, saliency: Array) -> None:
        """Store this frame's state for the next frame.

        Args:
            history: Result of `remembered`.
            relevance: `[gh, gw]` in [0, 1] of its cells.
            saliency: `[h, w]` in [0, 1].
        """
        self.history, self._before = history, (relevance, saliency)

    def remember(self, name: str, value: Array) -> None:
        """Set one of `KEPT` on the present frame; `value` is `[h, w]` at an eighth of the texture's size."""
        if name != KEPT[0] and len(self.history) < len(KEPT):
            # Channels last in memory, as the host's operators want them.
            all_kept = channels_first(zeros(self.history, (*self.reduced_hw(8), len(KEPT))))
            self.history = replaced(all_kept, {0: self.history[0]})
        self.history = replaced(self.history, {KEPT.index(name): value})

    def recall(self, name: str) -> Array:
        """Return one of `KEPT` carried to the present frame."""
        index = KEPT.index(name)
        return self.history[index] if index < len(self.history) else zeros(self.history, self.reduced_hw(8))

    def attend(self, attention: FloatArray) -> None:
        """Add a model's attention (`[h, w]` in [0, 1]) to channels 37 and 38."""
        self._attended(self.put(attention))

    def _attended(self, attention: Array) -> None:
        self.remember("attention", attention)
        self._add("attention_history", attention)

    def forget_attention(self) -> None:
        """Reset channel 37; channel 38 keeps fading."""
        if len(self.history) == len(KEPT):
            self.remember("attention", namespace(self.history).zeros_like(self.recall("attention")))

    def attend_late(self, attention: FloatArray, index: int) -> bool:
        """Add attention to a followed frame, carried to the present; return False if its scene has ended."""
        flow = self._followed.pop(index, None)
        if flow is None:
            return False
        self._attended(carry(self.put(attention), flow, outside=0.0))
        return True

    def hand_over(self, asked: FloatArray) -> None:
        """Add the relevance of an ended query (`[h, w]` in [0, 1]) to channel 38."""
        self._add("attention_history", self.put(asked))

    def look(self, gaze: FloatArray) -> None:
        """Add new gaze (`[h, w]` in [0, 1]) to channel 39."""
        self._add("gaze", self.put(gaze))

    def fade(self, elapsed_seconds: float, history_half_life_seconds: float) -> None:
        """Fade channels 38 and 39 by the elapsed time."""
        half_lives = {"attention_history": history_half_life_seconds, "gaze": GAZE_HALF_LIFE_SECONDS}
        faded = {}
        for name, left in list(self._left.items()):
            factor = 0.5 ** (max(0.0, elapsed_seconds) / half_lives[name])
            self._left[name] = left * factor
            if self._left[name] < _SPENT:
                del self._left[name]
                factor = 0.0
            faded[KEPT.index(name)] = self.recall(name) * factor
        if faded:
            self.history = replaced(self.history, faded)

    def _add(self, name: str, value: Array) -> None:
        before = self.recall(name)
        self.remember(name, namespace(before).maximum(before, value))
        self._left[name] = 1.0


def _around(region: TextRegion, hw: tuple[int, ...]) -> tuple[slice, slice]:
    """Return rows and columns of a raster around a region, with a margin of the region's height."""
    corners = np.array(region.polygon_xy) * (hw[1], hw[0])
    margin = float(np.ptp(corners[:, 1]))
    (left, top), (right, bottom) = np.floor(corners.min(0) - margin), np.ceil(corners.max(0) + margin)
    return slice(max(0, int(top)), max(0, int(bottom))), slice(max(0, int(left)), max(0, int(right)))
