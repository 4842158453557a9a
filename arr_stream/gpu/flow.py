"""Flow as tensors, and how well it explains the picture; `motion/flow.py` on a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.gpu.warp import inside, resize_offsets, sample, source_map
from arr_stream.motion.flow import CONTRAST_SHARE, FLOOR, NOISE, Flow
from arr_stream.motion.torch_flow import flow_px


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFlow:
    """Displacement from the present frame to an earlier one, with confidence; the tensors of `motion.flow.Flow`.

    Values are not looked at here, since that would wait for the device; `to_numpy` checks them.

    Args:
        offset_px: `[h, w, 2]` float32 `(dx, dy)` in pixels of this raster.
        confidence: `[h, w]` float32 in [0, 1].
        residual: `[h, w]` float32 in [0, 1].
        span_frames: How many frames lie between the two; 0 is the identity.

    Raises:
        ValueError: A wrong shape or dtype.
    """

    offset_px: Tensor
    confidence: Tensor
    residual: Tensor
    span_frames: int

    def __post_init__(self) -> None:
        if self.offset_px.dim() != 3 or self.offset_px.shape[2] != 2 or self.offset_px.numel() == 0:
            raise ValueError(f"offset_px must be [h, w, 2] and not empty, got {list(self.offset_px.shape)}")
        if self.span_frames < 0:
            raise ValueError(f"span_frames must be at least 0, got {self.span_frames}")
        for name in ("confidence", "residual"):
            if getattr(self, name).shape != self.offset_px.shape[:2]:
                raise ValueError(
                    f"{name} must be {list(self.offset_px.shape[:2])}, got {list(getattr(self, name).shape)}"
                )
        for name in ("offset_px", "confidence", "residual"):
            if getattr(self, name).dtype != torch.float32:
                raise ValueError(f"{name} must be float32, got {getattr(self, name).dtype}")

    @classmethod
    def still(cls, hw: tuple[int, int], device: torch.device | str) -> DeviceFlow:
        """The identity on a raster of `(h, w)`: nothing moved, sure of it, no frames between."""
        zeros = torch.zeros(hw, device=device)
        return cls(torch.zeros((*hw, 2), device=device), torch.ones_like(zeros), zeros, 0)

    @classmethod
    def from_numpy(cls, flow: Flow, device: torch.device | str) -> DeviceFlow:
        """The same flow on a device."""
        offset_px, confidence, residual = (
            torch.from_numpy(plane).to(device) for plane in (flow.offset_px, flow.confidence, flow.residual)
        )
        return cls(offset_px, confidence, residual, flow.span_frames)

    @property
    def hw(self) -> tuple[int, int]:
        """Rows and columns of the raster."""
        return self.offset_px.shape[0], self.offset_px.shape[1]

    def resized(self, hw: tuple[int, int]) -> DeviceFlow:
        """The same flow on a raster of `(h, w)`, offsets scaled to its pixels; itself where the raster is the same."""
        if hw == self.hw:
            return self
        planes = torch.stack([self.confidence, self.residual])[None]
        confidence, residual = F.interpolate(planes, hw, mode="bilinear", align_corners=False)[0].clamp(0, 1)
        return DeviceFlow(resize_offsets(self.offset_px, hw), confidence, residual, self.span_frames)

    def to_numpy(self) -> Flow:
        """A checked copy on the host; waits for the device.

        Raises:
            ValueError: A value that is not finite, or a confidence or residual outside [0, 1].
        """
        offset_px, confidence, residual = (
            plane.detach().contiguous().cpu().numpy() for plane in (self.offset_px, self.confidence, self.residual)
        )
        return Flow(offset_px, confidence, residual, self.span_frames)


def estimate(previous: Tensor, present: Tensor, hw: tuple[int, int], preset: str = "ultrafast") -> DeviceFlow:
    """Backward flow between two frames, with photometric confidence.

    Args:
        previous, present: `[h, w]` float32 lightness in [0, 255].
        hw: Raster of the result; whole fractions of the pictures' size are averaged exactly.
        preset: A key of `motion.torch_flow.PRESETS`.
    """
    offset_px = flow_px(previous, present, preset, hw)
    confidence, residual = photometric_check(to_raster(previous, hw), to_raster(present, hw), offset_px)
    return DeviceFlow(offset_px, confidence, residual, span_frames=1)


def to_raster(picture: Tensor, hw: tuple[int, int]) -> Tensor:
    """`[h, w]` averaged down to a raster; exactly the mean of what each pixel covers where factors are whole."""
    if picture.shape == hw:
        return picture
    return F.interpolate(picture[None, None], hw, mode="area")[0, 0]


def photometric_check(previous: Tensor, present: Tensor, offset_px: Tensor) -> tuple[Tensor, Tensor]:
    """How well a flow explains the picture; see `motion.flow.photometric_check`, which rounds to whole grey levels.

    Args:
        previous, present: `[h, w]` float32 in [0, 255] on the flow's raster.
        offset_px: `[h, w, 2]` backward flow.

    Returns:
        Confidence and residual, `[h, w]` float32 in [0, 1] each. Confidence is `1 - residual`, and 0 where the flow
        points outside the picture.
    """
    map_px = source_map(offset_px)
    earlier, now = _blurred(torch.stack([previous, present])[:, None])
    difference = _mean3((sample(earlier, map_px) - now).abs()[None])[0, 0]
    extremes = F.max_pool2d(torch.stack([present, -present])[None], 3, stride=1, padding=1)[0]
    contrast = extremes[0] + extremes[1]
    residual = ((difference - NOISE) / (contrast * CONTRAST_SHARE + FLOOR)).clamp(0, 1)
    return torch.where(inside(map_px), 1 - residual, 0.0), residual


def _blurred(planes: Tensor) -> Tensor:
    """`[n, 1, h, w]` by the binomial kernel of 3x3, borders continued."""
    return F.conv2d(F.pad(planes, (1, 1, 1, 1), mode="replicate"), _binomial(planes.device))


def _mean3(planes: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(planes, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


@lru_cache(maxsize=4)
def _binomial(device: torch.device) -> Tensor:
    row = torch.tensor([0.25, 0.5, 0.25], device=device)
    return (row[:, None] * row)[None, None]
