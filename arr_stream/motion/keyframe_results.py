"""Results of keyframes: the parts in use, those that are requested, and the flows back to their frames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import cv2
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
from arr_stream.motion.flow import Flow, carried_points, carry
from arr_stream.motion.objects import ObjectTracks, carried_objects
from arr_stream.motion.planes import TEXT, CarriedPlane, region_planes
from arr_stream.texture.array import LazyPlane, Plane
from arr_stream.texture.arrays import Array, channels_first, to_numpy, zeros
from arr_stream.texture.layout import EMBEDDING
from arr_stream.texture.pixels import averaged, resized
from arr_stream.types import (
    EIGHTH_PER_CELL,
    BoolArray,
    ByteArray,
    Clusters,
    DetectedObject,
    Embedding,
    FloatArray,
    Frame,
    Grid,
    TextRegion,
)

V = TypeVar("V")

_KNOWN = 0.5
"""Least confidence at which data of an earlier frame are valid for this one."""
_LEAST_NEW = np.ones((3, 3), np.uint8)
"""Smallest block of new half cells; a smaller one is a lost edge, or a strip uncovered by a panning camera."""
_LEAST_CELLS = 3
"""Shortest side of a window, in cells: a model trained on whole pictures fails on smaller parts."""

_PLANES_AT_ONCE = 64
"""Planes per warp, since OpenCV cannot warp hundreds at once."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a frame in cells: rows `top` to `bottom` and columns `left` to `right`, the latter excluded."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def cells(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)

    def cut(self, frame: Frame, grid: Grid) -> tuple[Frame, Grid]:
        """Return the part as a separate frame, with its grid."""
        cell_w, cell_h = grid.cell_px
        rows = slice(round(self.top * cell_h), round(self.bottom * cell_h))
        columns = slice(round(self.left * cell_w), round(self.right * cell_w))
        part = replace(frame, rgb=np.ascontiguousarray(frame.rgb[rows, columns]))
        return part, Grid(part.size_wh, self.bottom - self.top, self.right - self.left)

    def on(self, hw: tuple[int, ...], grid: Grid) -> tuple[slice, slice]:
        """Return its rows and columns on a raster of the whole frame."""
        down, across = hw[0] / grid.rows, hw[1] / grid.columns
        return (
            slice(round(self.top * down), round(self.bottom * down)),
            slice(round(self.left * across), round(self.right * across)),
        )


def carried_to_cells(plane: Array, flow: Flow) -> Array:
    """Carry a plane `[h, w]` of an earlier frame, at an eighth of the texture's size; return cell means `[gh, gw]`."""
    moved, side = carry(plane, flow, outside=0.0), EIGHTH_PER_CELL
    return moved.reshape(moved.shape[0] // side, side, moved.shape[1] // side, side).mean((1, 3))


@dataclass(frozen=True, slots=True, eq=False)
class _WindowRequest:
    """Pending request for the embedding of a window of frame `index`, which joins a known one.

    `flow` leads back to the known embedding, on the host.
    """

    index: int
    window: Window
    known: KeyframePart
    flow: Flow


class KeyframeResults:
    """Results of the keyframes of one stream at one frame size.

    Each part of a keyframe is carried from the frame it was made from, so parts of different keyframes stand side by
    side until the late ones arrive.

    Args:
        grid: The cells.
        put: Copies an array to the device.

    Attributes:
        flows: Backward flows to the frames whose parts are in use or pending, by frame index.
    """

    def __init__(self, grid: Grid, put: Callable[[npt.NDArray[Any]], Array]) -> None:
        self.grid, self.put = grid, put
        self.flows: dict[int, Flow] = {}
        self._parts: dict[PartName, KeyframePart] = {}
        self._pending: dict[int, set[PartName]] = {}
        self._window: _WindowRequest | None = None
        self._joined_index: int | None = None
        self._embedding: Array | None = None
        self._text: Array | None = None
        self._small_text: Array | None = None
        self._labels: tuple[Clusters | LazyClusters, Array] | None = None
        self._tracks = ObjectTracks()
        self._like = put(np.zeros((1, 1, 1), np.float32))
        self._no_text = Plane(TEXT, self._like)
        self._no_embedding = Plane(EMBEDDING.start, zeros(self._like, (EMBEDDING.stop - EMBEDDING.start, 1, 1)))

    def reduced_hw(self, factor: int) -> tuple[int, int]:
        """Return rows and columns of the texture divided by `factor`."""
        width, height = self.grid.texture_wh
        return height // factor, width // factor

    def forget(self) -> None:
        """Drop all results and requests after a cut."""
        for held in (self._parts, self._pending, self.flows):
            held.clear()
        self._embedding = self._text = self._small_text = self._labels = None
        self._window = self._joined_index = None
        self._tracks.forget()

    def record_request(self, index: int, parts: Collection[PartName]) -> None:
        """Record a request for some parts on the present frame."""
        if "objects" in parts:
            self._tracks.looked(self.all_objects())
        self._pending[index] = set(parts)
        self.flows[index] = Flow.still(self.reduced_hw(8), self._like)

    def record_text_request(self, index: int, doubtful: Sequence[TextRegion], new: BoolArray) -> None:
        """Record a request for text on the present frame, at doubtful regions and new places `[h, w]`."""
        flow = self._host_flow("text")
        self._request_places(index, "text", flow, [new, *(_around(region, flow.hw) for region in doubtful)])

    def adopt(self, part: KeyframePart) -> bool:
        """Start to use a part, carried to the present frame; return False if it belongs to a past scene."""
        if part.part not in self._pending.get(part.index, ()):
            return False
        if self._window is not None and self._window.index == part.index:
            return self._join(self._window, part)
        if isinstance(part.value, ObjectFinding):
            part = replace(part, value=ObjectFinding(self._tracks.renewed(part.value.objects)))
        self._parts[part.part] = part
        self.drop_request(part.index, (part.part,))
        match part.value:
            case TextFinding(mask=mask, regions=regions):
                self._text = self.put(averaged(mask, self.reduced_hw(8))) if mask.any() else None
                self._small_text = self._put_small(regions)
            case Embedding():
                self._embedding = self._joined_index = None
            case ObjectFinding():
                pass
            case _:
                self._labels = None
        return True

    def drop_request(self, index: int, parts: Collection[PartName]) -> None:
        """Stop waiting for some parts of frame `index`."""
        waiting = self._pending.get(index, set())
        waiting.difference_update(parts)
        if self._window is not None and self._window.index == index:
            self._window = None
        if not waiting:
            self._pending.pop(index, None)
        in_use = {part.index for part in self._parts.values()} | {self._joined_index}
        self.flows = {at: flow for at, flow in self.flows.items() if at in self._pending or at in in_use}

    @property
    def new_places(self) -> BoolArray | None:
        """Return `[2*gh, 2*gw]`: places of the present frame that the embedding in use does not cover.

        None without an embedding, or while one is pending. Waits for a device.
        """
        flow = self.flow_to("embedding")
        if flow is None or self.pending("embedding"):
            return None
        confidence = averaged(flow.confidence, (2 * self.grid.rows, 2 * self.grid.columns))
        new: BoolArray = to_numpy(confidence) < _KNOWN
        return new

    def record_window_request(self, index: int, window: Window) -> None:
        """Record a request for the embedding of a window of the present frame, to join the one in use."""
        flow = self._host_flow("embedding")
        self._window = _WindowRequest(index, window, self._parts["embedding"], flow)
        self._request_places(index, "embedding", flow, [window.on(flow.hw, self.grid)])

    def _request_places(self, index: int, part: PartName, flow: Flow, places: Iterable[Any]) -> None:
        """Record a request for a part at some places of the present frame.

        `flow` leads to the part in use, on the host.

        Other places keep their confidence, and new ones stay due for processing.
        """
        self._pending[index] = {part}
        trust = flow.confidence.copy()
        for place in places:
            trust[place] = 1
        self.flows[index] = replace(Flow.still(flow.hw, self._like), confidence=self.put(trust))

    def _join(self, request: _WindowRequest, part: KeyframePart) -> bool:
        """Join a window's result with the embedding before it; return False if that is no longer in use."""
        known, seen = request.known.value, part.value
        current = self._parts.get("embedding") is request.known
        if current and isinstance(known, Embedding) and isinstance(seen, Embedding):
            values = joined(known.values, request.flow, seen.values, request.window, self.grid)
            backend = f"{part.backend}, new places of frame {part.index}"
            self._parts["embedding"] = replace(request.known, value=replace(known, values=values), backend=backend)
            self._joined_index, self._embedding = part.index, None
        self.drop_request(part.index, (part.part,))
        return current

    @property
    def embedding_joined(self) -> bool:
        """True if the embedding in use includes windows of later frames."""
        return self._joined_index is not None

    def pending(self, part: PartName) -> bool:
        """Return whether a part is requested and has not arrived."""
        return any(part in waiting for waiting in self._pending.values())

    @property
    def origins(self) -> dict[str, tuple[int, str]]:
        """Return the source frame and the backend of each part in use."""
        return {name: (self._parts[name].index, self._parts[name].backend) for name in PARTS if name in self._parts}

    @property
    def newest_index(self) -> int | None:
        """Index of the newest frame of which a part is in use.

        Text and objects, which are also searched between keyframes, count only if no other part exists.
        """
        lasting = [part.index for name, part in self._parts.items() if name not in ("text", "objects")]
        return max(lasting, default=self.origin("text"))

    @property
    def newest_position(self) -> int | None:
        """Index, among `flows`, of the backward flow to that frame."""
        index = self.newest_index
        return None if index is None else list(self.flows).index(index)

    @property
    def trust(self) -> Array | float:
        """Return the mean trust in data carried from the newest keyframe; 0 before the first one."""
        index = self.newest_index
        return 0.0 if index is None else self.flows[index].trust

    @property
    def embedding(self) -> Embedding | None:
        """The embedding in use."""
        return self._value("embedding", Embedding)

    @property
    def text(self) -> TextFinding | None:
        """The text finding in use."""
        return self._value("text", TextFinding)

    @property
    def objects(self) -> ObjectFinding | None:
        """The object finding in use."""
        return self._value("objects", ObjectFinding)

    def _value(self, part: PartName, kind: type[V]) -> V | None:
        held = self._parts.get(part)
        return held.value if held is not None and isinstance(held.value, kind) else None

    def _host_flow(self, part: PartName) -> Flow:
        """Return the backward flow to a part in use, on the host; waits for a device."""
        flow = self.flow_to(part)
        assert flow is not None
        return flow.to_numpy()

    def present_objects(self, objects: Sequence[DetectedObject]) -> tuple[DetectedObject, ...]:
        """Return objects of the finding in use at their places on the present frame; waits for a device."""
        return () if self.objects is None else carried_objects(objects, self._host_flow("objects"))

    def all_objects(self) -> tuple[DetectedObject, ...]:
        """Return all objects of that finding, like `present_objects`."""
        return () if self.objects is None else self.present_objects(self.objects.objects)

    def text_before(self, rgb: ByteArray) -> TextBefore | None:
        """Return the prior knowledge of the text on the present frame `[H, W, 3]`; None without a text finding.

        Waits for a device.
        """
        text = self.text
        if text is None:
            return None
        flow = self._host_flow("text")
        known: list[TextRegion] = []
        doubtful: list[TextRegion] = []
        for region in text.regions:
            corners, trust = carried_points(np.array(region.polygon_xy, np.float32), flow)
            corners = corners.clip(0, 1)
            if (corners.min(0) == corners.max(0)).any():
                continue
            moved = placed(region, corners)
            there, likeness = settled(rgb, moved)
            if trust.min() >= _KNOWN and likeness >= LEAST_LIKENESS:
                known.append(there)
            else:
                doubtful.append(moved)
        likely = carry(np.minimum(text.mask, TEXT_READ), flow, outside=0.0)
        return TextBefore(tuple(known), tuple(doubtful), flow.confidence < _KNOWN, likely)

    def _put_small(self, regions: Sequence[TextRegion]) -> Array | None:
        if not (self.grid.has_finer and (small := small_regions(regions, self.grid.texture_wh))):
            return None
        return self.put(text_mask([replace(region, confidence=1.0) for region in small], self.reduced_hw(8)))

    @property
    def small_text(self) -> tuple[Array, Flow] | None:
        """Return text too small for the texture, `[h, w]` at an eighth of its size, and the flow back to it.

        None without such text, or if the source has no more pixels than the texture.
        """
        flow = self.flow_to("text")
        return None if self._small_text is None or flow is None else (self._small_text, flow)

    def flow_to(self, part: PartName) -> Flow | None:
        """Return the backward flow to the keyframe of a part in use."""
        index = self._joined_index if part == "embedding" and self._joined_index is not None else self.origin(part)
        return None if index is None else self.flows[index]

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
        """Return channels 13 to 33 of the present frame, carried on first access."""
        regions = self._region_planes()
        planes: dict[int, Plane | LazyPlane] = {**regions, TEXT: self._no_text, EMBEDDING.start: self._no_embedding}
        text, embedding = self.flow_to("text"), self.flow_to("embedding")
        if self._text is not None and text is not None:
            planes[TEXT] = CarriedPlane(TEXT, self._text[None], text, outside=0.0)
        if self._embedding is not None and embedding is not None:
            planes[EMBEDDING.start] = CarriedPlane(EMBEDDING.start, self._embedding, embedding)
        return planes

    def _region_planes(self) -> dict[int, LazyPlane]:
        held, hw = self._parts.get("clusters"), self.reduced_hw(4)
        if held is None or not isinstance(held.value, Clusters | LazyClusters):
            # One region before the first keyframe.
            still = Flow.still(hw, self._like)
            return region_planes(lambda: self.put(np.zeros(hw, np.int32)), still, self._objects_now())
        clusters = held.value
        return region_planes(lambda: self._put_labels(clusters), self.flows[held.index], self._objects_now())

    def _objects_now(self) -> Callable[[], Sequence[DetectedObject]]:
        """Return a function that carries all objects to this frame, which may be called after later frames."""
        found, flow = self.objects, self.flow_to("objects")
        if found is None or flow is None:
            return tuple
        return lambda: carried_objects(found.objects, flow.to_numpy())

    def _put_labels(self, clusters: Clusters | LazyClusters) -> Array:
        if self._labels is None or self._labels[0] is not clusters:
            self._labels = clusters, self.put(clusters.labels)
        return self._labels[1]


def _around(region: TextRegion, hw: tuple[int, ...]) -> tuple[slice, slice]:
    """Return rows and columns of a raster around a region, with a margin of the region's height."""
    corners = np.array(region.polygon_xy) * (hw[1], hw[0])
    margin = float(np.ptp(corners[:, 1]))
    (left, top), (right, bottom) = np.floor(corners.min(0) - margin), np.ceil(corners.max(0) + margin)
    return slice(max(0, int(top)), max(0, int(bottom))), slice(max(0, int(left)), max(0, int(right)))


def window_around(new: BoolArray, grid: Grid) -> Window | None:
    """Return the window around the largest of the new places `[2*gh, 2*gw]`; None if nothing is new."""
    opened = cv2.morphologyEx(new.astype(np.uint8), cv2.MORPH_OPEN, _LEAST_NEW, borderValue=0)
    count, _, boxes, _ = cv2.connectedComponentsWithStats(opened)
    if count == 1:
        return None
    x, y, w, h, _ = max(boxes[1:].tolist(), key=lambda box: box[cv2.CC_STAT_AREA])
    top, bottom = _side(y, h, grid.rows)
    left, right = _side(x, w, grid.columns)
    return Window(top, left, bottom, right)


def inner_places(new: BoolArray) -> BoolArray:
    """Return the new places `[h, w]` that do not reach the edge of the picture."""
    outside = np.ones((new.shape[0] + 2, new.shape[1] + 2), np.uint8)
    outside[1:-1, 1:-1] = new
    cv2.floodFill(outside, None, (0, 0), 2)
    return np.asarray(outside[1:-1, 1:-1] == 1)


def _side(start: int, length: int, cells: int) -> tuple[int, int]:
    """Return the first cell and the end, along a side of `cells`, around `length` half cells from `start`."""
    first, end, least = start // 2, (start + length + 1) // 2, min(cells, _LEAST_CELLS)
    if end - first < least:
        first = min(max(0, round(start / 2 + length / 4 - least / 2)), cells - least)
        end = first + least
    return first, end


def joined(known: FloatArray, flow: Flow, found: FloatArray, window: Window, grid: Grid) -> FloatArray:
    """Join the embedding `[D, h, w]` of an earlier frame with that of a window of a later one, on the later frame.

    All are of unit length; `found` `[D, h', w']` is in the window alone, and `flow` leads to the earlier frame.
    """
    whole = np.empty_like(known)
    for first in range(0, len(known), _PLANES_AT_ONCE):
        some = slice(first, first + _PLANES_AT_ONCE)
        whole[some] = carry(known[some], flow)
    rows, columns = window.on(known.shape[1:], grid)
    part = whole[:, rows, columns]
    if found.shape != part.shape:
        found = np.stack([resized(plane, part.shape[1:]) for plane in found])
    part[:] = found
    # A blend of two directions is shorter than either.
    whole /= np.maximum(np.sqrt(np.einsum("dhw,dhw->hw", whole, whole)), 1e-6)
    return whole
