"""What is remembered from one frame to the next, on a device; `motion/memory.py` with tensors.

Which keyframe is in use and what is still awaited is bookkeeping and stays on the host. What is sampled, the ways back
and the history, is on the device and moves there (`advanced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from arr_stream.gpu.figure import Figure
from arr_stream.gpu.flow import DeviceFlow
from arr_stream.gpu.warp import compose, warp
from arr_stream.keyframes.base import KeyframePart, LazyClusters, PartName, TextFinding
from arr_stream.motion.keyframe_parts import KeyframeParts
from arr_stream.motion.memory import FIXATION_DECAY, GAZE_HALF_LIFE_SECONDS, HISTORY_CHANNELS
from arr_stream.types import Clusters, Embedding, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """The way back from the present frame to an earlier one, at an eighth of the texture's size.

    Args:
        offset_px: `[h, w, 2]`.
        confidence: `[h, w]` in [0, 1].
    """

    offset_px: Tensor
    confidence: Tensor

    @classmethod
    def still(cls, hw: tuple[int, int], device: torch.device) -> Trail:
        """To the present frame itself."""
        return cls(torch.zeros((*hw, 2), device=device), torch.ones(hw, device=device))

    def flow(self) -> DeviceFlow:
        """As a flow, for those who carry along it; its residual and its span say nothing."""
        return DeviceFlow(self.offset_px, self.confidence, torch.zeros_like(self.confidence), 1)


@dataclass(frozen=True, slots=True, eq=False)
class Moving:
    """What moves with the picture.

    Args:
        history: `[6, h, w]`, channels 34 to 39.
        figure: What is known of what moves; only its motion has a place in the picture.
        trails: Ways back.
    """

    history: Tensor
    figure: Figure
    trails: tuple[Trail, ...]


def advanced(moving: Moving, flow: DeviceFlow) -> Moving:
    """Everything moved to the present frame: `flow` goes from it to the frame before."""
    trails = []
    for trail in moving.trails:
        longer = compose(trail.flow(), flow)
        trails.append(Trail(longer.offset_px, longer.confidence))
    planes = warp(torch.cat([moving.history, moving.figure.motion[None]]), flow, outside=0.0)
    return Moving(planes[:-1], replace(moving.figure, motion=planes[-1]), tuple(trails))


def remembered(history: Tensor, changes: Mapping[str, Tensor]) -> Tensor:
    """`[6, h, w]` with some channels of the history replaced."""
    return torch.stack([changes.get(name, plane) for name, plane in zip(HISTORY_CHANNELS, history, strict=True)])


def recalled(history: Tensor, name: str) -> Tensor:
    """`[h, w]`: one channel of the history."""
    return history[HISTORY_CHANNELS.index(name)]


def fixated(history: Tensor, chosen: Tensor) -> Tensor:
    """`[h, w]`: the fixation channel with what was selected now (0 or 1)."""
    return FIXATION_DECAY * recalled(history, "fixation") + (1 - FIXATION_DECAY) * chosen


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """The values of a keyframe's parts where they are read; None for a part that is not in use.

    Args:
        labels: `[h, w]` int32 cluster ids.
        embedding: `[16, 2*gh, 2*gw]` channels 18 to 33.
        text: `[h, w]` how surely something is written.
        clusters_trail, embedding_trail, text_trail: Ways back to the frames that they were made from.
    """

    labels: Tensor | None = None
    clusters_trail: Trail | None = None
    embedding: Tensor | None = None
    embedding_trail: Trail | None = None
    text: Tensor | None = None
    text_trail: Trail | None = None


@dataclass(eq=False)
class DeviceMemory(KeyframeParts[Trail]):
    """State of one stream at one frame size; see `motion.memory.TemporalCache`, whose words mean the same here.

    Args:
        grid: The cells; a changed size needs a new memory.
        device: Where the tensors are.
    """

    device: torch.device
    history: Tensor = field(init=False)
    figure: Figure = field(init=False)
    mean_confidence: float = 0.0
    """Mean trust in what is carried from the newest keyframe, as the last frame's report said."""
    _channels: tuple[FloatArray, Tensor] | None = None
    _labels: Tensor | None = None
    _text: Tensor | None = None

    def __post_init__(self) -> None:
        self.history = torch.zeros((len(HISTORY_CHANNELS), *self.reduced_hw(8)), device=self.device)
        self.figure = Figure.nothing(self.reduced_hw(8), self.device)

    @property
    def embedding_channels(self) -> FloatArray | None:
        """`[16, 2*gh, 2*gw]`, channels 18 to 33 on the frame of the embedding in use, as they came from the host."""
        return None if self._channels is None else self._channels[0]

    @embedding_channels.setter
    def embedding_channels(self, values: FloatArray | None) -> None:
        self._channels = None if values is None else (values, self._uploaded(values))

    @property
    def confidence(self) -> np.float32:
        """The mean as a number without axes: the map itself stays on the device."""
        return np.float32(self.mean_confidence)

    def _uploaded(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self.device)

    def _still(self) -> Trail:
        return Trail.still(self.reduced_hw(8), self.device)

    @property
    def moving(self) -> Moving:
        """What has to be moved to the next frame."""
        return Moving(self.history, self.figure, (*self._ways.values(), *self._followed.values()))

    def move(self, moved: Moving) -> None:
        """Take what `advanced` made of `moving`, and what was seen of the figure since."""
        self.history, self.figure = moved.history, moved.figure
        trails = iter(moved.trails)
        self._ways = {index: next(trails) for index in self._ways}
        self._followed = {index: next(trails) for index in self._followed}

    def forget(self) -> None:
        super().forget()
        self._channels = self._labels = self._text = None
        self.history = torch.zeros_like(self.history)
        self.figure = Figure.nothing(self.reduced_hw(8), self.device)
        self.mean_confidence = 0.0

    def adopt(self, part: KeyframePart) -> bool:
        if not super().adopt(part):
            return False
        match part.value:
            case Clusters() | LazyClusters():
                self._labels = self._uploaded(part.value.labels)
            case Embedding():
                self._channels = None
            case TextFinding():
                self._text = self._uploaded(part.value.mask)
        return True

    @property
    def embedding(self) -> KeyframePart | None:
        """The embedding in use."""
        return self._parts.get("embedding")

    @property
    def text(self) -> TextFinding | None:
        """The text finding in use."""
        held = self._parts.get("text")
        return held.value if held is not None and isinstance(held.value, TextFinding) else None

    def origin(self, part: PartName) -> int | None:
        """The keyframe that a part in use came from."""
        held = self._parts.get(part)
        return None if held is None else held.index

    @property
    def on_device(self) -> OnDevice:
        """What the texture is assembled from, beside the history."""
        trails = {part: self._ways[held.index] for part, held in self._parts.items()}
        channels = None if self._channels is None else self._channels[1]
        return OnDevice(
            labels=self._labels,
            clusters_trail=trails.get("clusters"),
            embedding=channels,
            embedding_trail=trails.get("embedding") if channels is not None else None,
            text=self._text,
            text_trail=trails.get("text"),
        )

    def remember(self, name: str, value: Tensor) -> None:
        """Set a history channel on the present frame; `value` is `[h, w]` at an eighth of the texture's size."""
        self.history = remembered(self.history, {name: value})

    def attend(self, attention: FloatArray | Tensor) -> None:
        """Take a consumer model's attention (`[h, w]` in [0, 1]) for channels 37 and 38."""
        attention = attention if isinstance(attention, Tensor) else self._uploaded(attention)
        faded = recalled(self.history, "attention_history") * FIXATION_DECAY
        changes = {"attention": attention, "attention_history": torch.maximum(faded, attention)}
        self.history = remembered(self.history, changes)

    def forget_attention(self) -> None:
        """Channel 37 starts anew; what adds up in channel 38 stays."""
        self.remember("attention", torch.zeros(self.reduced_hw(8), device=self.device))

    def attend_late(self, attention: FloatArray, index: int) -> bool:
        """Take attention to a frame that was followed, carried to the present; False when its scene is gone."""
        trail = self._followed.pop(index, None)
        if trail is None:
            return False
        self.attend(warp(self._uploaded(attention), trail.flow(), outside=0.0))
        return True

    def look(self, gaze: FloatArray | None, elapsed_seconds: float) -> None:
        """Let the gaze history fade by the time that passed, then add new gaze (`[h, w]` in [0, 1])."""
        faded = recalled(self.history, "gaze") * 0.5 ** (max(0.0, elapsed_seconds) / GAZE_HALF_LIFE_SECONDS)
        self.remember("gaze", faded if gaze is None else torch.maximum(faded, self._uploaded(gaze)))
