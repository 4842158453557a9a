"""What is remembered from one frame to the next: the keyframe in use and channels 34 to 39, carried along the flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from arr_stream.keyframes.base import KeyframePart, LazyClusters, PartName, TextFinding
from arr_stream.motion.carry import carry, compose
from arr_stream.motion.flow import Flow
from arr_stream.motion.keyframe_parts import KeyframeParts
from arr_stream.types import Clusters, Embedding, FloatArray

HISTORY_CHANNELS = ("previous_relevance", "previous_saliency", "fixation", "attention", "attention_history", "gaze")
"""Channels 34 to 39, in order; kept as one `[h, w, 6]` array at an eighth of the texture's size."""

FIXATION_DECAY = 0.9
GAZE_HALF_LIFE_SECONDS = 0.5


Value = TypeVar("Value", Clusters | LazyClusters, Embedding, TextFinding)


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


@dataclass(eq=False)
class TemporalCache(KeyframeParts[Flow]):
    """State of one stream at one frame size: the keyframes' parts with the flow back to each, and the history.

    Args:
        grid: The cells; a changed size needs a new cache.
    """

    history: FloatArray = field(init=False)
    embedding_channels: FloatArray | None = None
    """`[16, 2*gh, 2*gw]`, channels 18 to 33 on the frame of the embedding in use."""

    def __post_init__(self) -> None:
        height, width = self.reduced_hw(8)
        self.history = np.zeros((height, width, len(HISTORY_CHANNELS)), np.float32)

    def _still(self) -> Flow:
        return Flow.still(self.reduced_hw(8))

    def advance(self, flow: Flow) -> None:
        """Move everything to the present frame: `flow` goes from it to the frame before."""
        for index, since in self._ways.items():
            self._ways[index] = compose(since, flow)
        for index, since in self._followed.items():
            self._followed[index] = compose(since, flow)
        self.history = carry(self.history, flow, outside=0.0)

    def forget(self) -> None:
        super().forget()
        self.embedding_channels = None
        self.history[:] = 0

    def adopt(self, part: KeyframePart) -> bool:
        if not super().adopt(part):
            return False
        if part.part == "embedding":
            self.embedding_channels = None
        return True

    @property
    def clusters(self) -> InUse[Clusters | LazyClusters] | None:
        return self._in_use("clusters", (Clusters, LazyClusters))

    @property
    def embedding(self) -> InUse[Embedding] | None:
        return self._in_use("embedding", Embedding)

    @property
    def text(self) -> InUse[TextFinding] | None:
        return self._in_use("text", TextFinding)

    def _in_use(self, part: PartName, kind: type[Value] | tuple[type[Value], ...]) -> InUse[Value] | None:
        held = self._parts.get(part)
        if held is None or not isinstance(held.value, kind):
            return None
        return InUse(held.value, held.index, self._ways[held.index])

    @property
    def confidence(self) -> FloatArray:
        """`[H/8, W/8]` trust in what is carried from the newest keyframe; 0 before the first one."""
        flow = self.keyframe_way
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
