"""What is remembered from one frame to the next: the keyframe in use and channels 34 to 39, carried along the flow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from arr_stream.keyframes.base import PARTS, KeyframePart, PartName, TextFinding
from arr_stream.motion.carry import carry, compose
from arr_stream.motion.flow import Flow
from arr_stream.types import Clusters, Embedding, FloatArray, Grid

HISTORY_CHANNELS = ("previous_relevance", "previous_saliency", "fixation", "attention", "attention_history", "gaze")
"""Channels 34 to 39, in order; kept as one `[h, w, 6]` array at an eighth of the texture's size."""

FIXATION_DECAY = 0.9
GAZE_HALF_LIFE_SECONDS = 0.5


Value = TypeVar("Value", Clusters, Embedding, TextFinding)


@dataclass(frozen=True, slots=True)
class InUse(Generic[Value]):
    """A part of a keyframe and the way back to it.

    Args:
        value: What generation found on frame `index`.
        index: That frame.
        flow: From the present frame back to that frame, at an eighth of the texture's size.
    """

    value: Value
    index: int
    flow: Flow


@dataclass(slots=True)
class TemporalCache:
    """State of one stream at one frame size.

    Each part of a keyframe is carried from the frame it was made from, so parts of different keyframes stand side by
    side until the late ones arrive.

    Args:
        grid: The cells; a changed size needs a new cache.
    """

    grid: Grid
    history: FloatArray = field(init=False)
    embedding_channels: FloatArray | None = None
    """`[16, 2*gh, 2*gw]`, channels 18 to 33 on the frame of the embedding in use."""
    _parts: dict[PartName, KeyframePart] = field(default_factory=dict)
    _pending: dict[int, set[PartName]] = field(default_factory=dict)
    _flows: dict[int, Flow] = field(default_factory=dict)
    _followed: dict[int, Flow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        height, width = self.reduced_hw(8)
        self.history = np.zeros((height, width, len(HISTORY_CHANNELS)), np.float32)

    def reduced_hw(self, factor: int) -> tuple[int, int]:
        width, height = self.grid.texture_wh
        return height // factor, width // factor

    def advance(self, flow: Flow) -> None:
        """Move everything to the present frame: `flow` goes from it to the frame before."""
        for index, since in self._flows.items():
            self._flows[index] = compose(since, flow)
        for index, since in self._followed.items():
            self._followed[index] = compose(since, flow)
        self.history = carry(self.history, flow, outside=0.0)

    def forget(self) -> None:
        """After a cut nothing that was carried holds any more."""
        self._parts.clear()
        self._pending.clear()
        self._flows.clear()
        self._followed.clear()
        self.embedding_channels = None
        self.history[:] = 0

    def requested(self, index: int, parts: Collection[PartName]) -> None:
        """Generation of some parts was asked for on the present frame."""
        self._pending[index] = set(parts)
        self._flows[index] = Flow.still(self.reduced_hw(8))

    def adopt(self, part: KeyframePart) -> bool:
        """Use a part from now on, carried to the present; False when it belongs to a scene that is gone."""
        if part.part not in self._pending.get(part.index, ()):
            return False
        self._parts[part.part] = part
        if part.part == "embedding":
            self.embedding_channels = None
        self.dropped(part.index, (part.part,))
        return True

    def dropped(self, index: int, parts: Collection[PartName]) -> None:
        """There is nothing to wait for any more of some parts of frame `index`."""
        waiting = self._pending.get(index, set())
        waiting.difference_update(parts)
        if not waiting:
            self._pending.pop(index, None)
        in_use = {part.index for part in self._parts.values()}
        self._flows = {at: flow for at, flow in self._flows.items() if at in self._pending or at in in_use}

    def pending(self, part: PartName) -> bool:
        """A part has been asked for and has not arrived."""
        return any(part in waiting for waiting in self._pending.values())

    @property
    def clusters(self) -> InUse[Clusters] | None:
        return self._in_use("clusters", Clusters)

    @property
    def embedding(self) -> InUse[Embedding] | None:
        return self._in_use("embedding", Embedding)

    @property
    def text(self) -> InUse[TextFinding] | None:
        return self._in_use("text", TextFinding)

    def _in_use(self, part: PartName, kind: type[Value]) -> InUse[Value] | None:
        held = self._parts.get(part)
        if held is None or not isinstance(held.value, kind):
            return None
        return InUse(held.value, held.index, self._flows[held.index])

    @property
    def origins(self) -> dict[str, tuple[int, str]]:
        """For each part in use, the keyframe it came from and what made it."""
        return {name: (self._parts[name].index, self._parts[name].backend) for name in PARTS if name in self._parts}

    @property
    def keyframe_index(self) -> int | None:
        """The newest frame of which a part is in use."""
        return max((part.index for part in self._parts.values()), default=None)

    @property
    def keyframe_flow(self) -> Flow | None:
        """The way back to that frame."""
        index = self.keyframe_index
        return None if index is None else self._flows[index]

    @property
    def anchors(self) -> frozenset[int]:
        """Frames that generation was asked for and whose parts are, or may come, into use."""
        return frozenset(self._flows)

    @property
    def confidence(self) -> FloatArray:
        """`[H/8, W/8]` trust in what is carried from the newest keyframe; 0 before the first one."""
        flow = self.keyframe_flow
        return np.zeros(self.reduced_hw(8), np.float32) if flow is None else flow.confidence

    def remember(self, name: str, value: FloatArray) -> None:
        """Set a history channel on the present frame; `value` is `[h, w]` at an eighth of the texture's size."""
        self.history[:, :, HISTORY_CHANNELS.index(name)] = value

    def recall(self, name: str) -> FloatArray:
        """A history channel as carried to the present frame."""
        return self.history[:, :, HISTORY_CHANNELS.index(name)]

    def fixate(self, chosen: FloatArray) -> None:
        """Add what was selected on this frame (`[h, w]`, 0 or 1) to the fixation history."""
        self.remember("fixation", FIXATION_DECAY * self.recall("fixation") + (1 - FIXATION_DECAY) * chosen)

    def attend(self, attention: FloatArray) -> None:
        """Take a consumer model's attention (`[h, w]` in [0, 1]) for channels 37 and 38."""
        self.remember("attention", attention)
        self.remember("attention_history", np.maximum(self.recall("attention_history") * FIXATION_DECAY, attention))

    def forget_attention(self) -> None:
        """Channel 37 starts anew; what adds up in channel 38 stays."""
        self.remember("attention", np.zeros(self.reduced_hw(8), np.float32))

    def follow(self, index: int) -> None:
        """Keep the way back to the present frame, for attention to it that comes later; one frame at a time."""
        self._followed = {index: Flow.still(self.reduced_hw(8))}

    def attend_late(self, attention: FloatArray, index: int) -> bool:
        """Take attention to a frame that was followed, carried to the present; False when its scene is gone."""
        flow = self._followed.pop(index, None)
        if flow is None:
            return False
        self.attend(carry(attention, flow, outside=0.0))
        return True

    def look(self, gaze: FloatArray | None, elapsed_seconds: float) -> None:
        """Let the gaze history fade by the time that passed, then add new gaze (`[h, w]` in [0, 1])."""
        faded = self.recall("gaze") * np.float32(0.5 ** (max(0.0, elapsed_seconds) / GAZE_HALF_LIFE_SECONDS))
        self.remember("gaze", faded if gaze is None else np.maximum(faded, gaze))
