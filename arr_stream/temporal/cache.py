"""What is remembered from one frame to the next: the keyframe in use and channels 34 to 39, carried along the flow."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from arr_stream.motion.carry import carry, compose
from arr_stream.motion.flow import Flow
from arr_stream.types import FloatArray, Grid, KeyframeResult

HISTORY_CHANNELS = ("previous_relevance", "previous_saliency", "fixation", "attention", "attention_history", "gaze")
"""Channels 34 to 39, in order; kept as one `[h, w, 6]` array at an eighth of the texture's size."""

FIXATION_DECAY = 0.9
GAZE_HALF_LIFE_SECONDS = 0.5


@dataclass(slots=True)
class KeyframeInUse:
    """A keyframe's result and the way back to it.

    Args:
        result: What generation found on frame `result.index`.
        flow: From the present frame back to that frame, at an eighth of the texture's size.
    """

    result: KeyframeResult
    flow: Flow


@dataclass(slots=True)
class TemporalCache:
    """State of one stream at one frame size.

    Args:
        grid: The cells; a changed size needs a new cache.
    """

    grid: Grid
    keyframe: KeyframeInUse | None = None
    history: FloatArray = field(init=False)
    _requests: dict[int, Flow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        height, width = self.reduced_hw(8)
        self.history = np.zeros((height, width, len(HISTORY_CHANNELS)), np.float32)

    def reduced_hw(self, factor: int) -> tuple[int, int]:
        width, height = self.grid.texture_wh
        return height // factor, width // factor

    def advance(self, flow: Flow) -> None:
        """Move everything to the present frame: `flow` goes from it to the frame before."""
        if self.keyframe is not None:
            self.keyframe.flow = compose(self.keyframe.flow, flow)
        for index, since in self._requests.items():
            self._requests[index] = compose(since, flow)
        self.history = carry(self.history, flow, outside=0.0)

    def forget(self) -> None:
        """After a cut nothing that was carried holds any more."""
        self.keyframe = None
        self._requests.clear()
        self.history[:] = 0

    def requested(self, index: int) -> None:
        """Generation was asked for on the present frame."""
        self._requests[index] = Flow.still(self.reduced_hw(8))

    def adopt(self, result: KeyframeResult) -> bool:
        """Use a result from now on, carried to the present; False when it belongs to a scene that is gone."""
        flow = self._requests.pop(result.index, None)
        if flow is None:
            return False
        self.keyframe = KeyframeInUse(result, flow)
        return True

    def dropped(self, index: int) -> None:
        """The request for frame `index` came to nothing."""
        self._requests.pop(index, None)

    @property
    def pending(self) -> bool:
        return bool(self._requests)

    @property
    def anchors(self) -> frozenset[int]:
        """Frames that generation was asked for and whose results are, or may come, into use."""
        in_use = () if self.keyframe is None else (self.keyframe.result.index,)
        return frozenset((*self._requests, *in_use))

    @property
    def confidence(self) -> FloatArray:
        """`[H/8, W/8]` trust in what is carried from the keyframe; 0 before the first one."""
        if self.keyframe is None:
            return np.zeros(self.reduced_hw(8), np.float32)
        return self.keyframe.flow.confidence

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

    def look(self, gaze: FloatArray | None, elapsed_seconds: float) -> None:
        """Let the gaze history fade by the time that passed, then add new gaze (`[h, w]` in [0, 1])."""
        faded = self.recall("gaze") * np.float32(0.5 ** (max(0.0, elapsed_seconds) / GAZE_HALF_LIFE_SECONDS))
        self.remember("gaze", faded if gaze is None else np.maximum(faded, gaze))
