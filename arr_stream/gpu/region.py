"""Region tracking on a device: `motion/anchor.py` on tensors.

The host learns the classifier once, on the frame where the region is given, with the same code. The device then
tracks the region and classifies every place: the host's windows, lattices and halved rows, which
save work there, would only cost time here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.gpu.pixels import lightness, reflected, window_means
from arr_stream.motion.anchor import LEAST_MASS_PX, NEGLIGIBLE, Anchoring, RegionTracker
from arr_stream.motion.camera import camera_of, speed_px
from arr_stream.motion.carry import compose
from arr_stream.motion.flow import Flow, resize_offsets, source_map
from arr_stream.motion.guided import guided
from arr_stream.texture.pixels import averaged, remap, resized

_LEAST_AGREEMENT = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRegion:
    """Current state of a region, at a quarter of the texture's size.

    Args:
        posterior: `[h, w]` in [0, 1].
        known: `[h, w]`, the posterior on the last frame on which the region was tracked.
        area_px: `[]`, sum of the posterior on the first frame.
        weights: `[13, hidden]`, the classifier's random features over twelve cues and a constant.
        beta: `[hidden + 1]`, its learned coefficients.
        settings: Weights of the tracker's parts.
        exact: True if the region was given as an exact mask.
        first: `[h, w]`, the given exact mask; None for other regions, and after a cut.
        way: Backward flow to the frame of that mask; None on that frame.
    """

    posterior: Tensor
    known: Tensor
    area_px: Tensor
    weights: Tensor
    beta: Tensor
    settings: Anchoring
    exact: bool = False
    first: Tensor | None = None
    way: Flow | None = None

    @classmethod
    def learned(cls, tracker: RegionTracker, device: torch.device) -> DeviceRegion:
        """Return the region of a tracker that has just learned it on the host."""
        model, settings = tracker.model, tracker.settings
        weights = np.zeros((13, settings.hidden), np.float32) if model is None else model.weights
        beta = np.zeros(settings.hidden + 1, np.float32) if model is None else model.beta
        posterior, weighed, learned = (
            torch.from_numpy(np.array(values, np.float32)).to(device) for values in (tracker.posterior, weights, beta)
        )
        area_px = posterior.new_full((), tracker.area_px)
        first = posterior if tracker.remembers_first else None
        return cls(posterior, posterior, area_px, weighed, learned, settings, tracker.exact, first)

    def follow(self, rgb: Tensor, flow: Flow | None) -> DeviceRegion:
        """Return the region on the next frame.

        Args:
            rgb: `[3, h, w]` float32 in [0, 255].
            flow: Backward flow to the frame before, on any raster; None after a cut.
        """
        if flow is None:
            return replace(self, first=None, way=None)._sought(rgb)
        if self.first is None:
            return self._moved(rgb, flow)
        return replace(self, way=flow if self.way is None else compose(self.way, flow))._moved(rgb, flow)

    def relevance(self) -> Tensor:
        """Return the posterior `[h, w]` in [0, 1] with a faint halo, which ranks surroundings during an occlusion."""
        posterior, hedge = self.posterior, self.settings.hedge
        if self.exact or not hedge:
            return posterior
        height, width = posterior.shape
        small = averaged(posterior[None], (-(-height // 8), -(-width // 8)))
        close = _gaussian(small, 1.5)
        halo = F.interpolate((close + 0.5 * _gaussian(close, 4.0))[None], (height, width), mode="bilinear")[0, 0]
        return (posterior + hedge * halo).clamp(max=1)

    def _moved(self, rgb: Tensor, flow: Flow) -> DeviceRegion:
        prior = _carried(self, flow)
        box = _support(prior)
        place = _Place.of(prior * box)
        judged, _ = _judged(self, rgb, prior, resized(flow.residual, (prior.shape[0], prior.shape[1])), place, box)
        if self.settings.motion and not self.exact:
            judged = _moved(self.settings, judged, flow, box)
        judged = _bordered(self.settings, judged, rgb)
        there = place.mass >= LEAST_MASS_PX
        posterior = torch.where(there, judged, 0.0)
        return replace(self, posterior=posterior, known=torch.where(there, self.posterior, self.known))

    def _sought(self, rgb: Tensor) -> DeviceRegion:
        """Return the last known region after a cut, if its place looks the same (a flash, or back from a cutaway)."""
        prior = window_means(self.known[None], 9)[0] * self.settings.memory
        place, box = _Place.of(self.known), _support(prior)
        posterior, agreement = _judged(self, rgb, prior, torch.zeros_like(prior), place, box)
        found = (agreement >= _LEAST_AGREEMENT) & (place.mass >= LEAST_MASS_PX)
        return replace(self, posterior=torch.where(found, posterior, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Centre and spread of a soft mask in pixels, as tensors without axes: the object's own coordinates."""

    mass: Tensor
    x: Tensor
    y: Tensor
    spread_x: Tensor
    spread_y: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> _Place:
        mass = mask.sum()
        x, spread_x = _moments(mask.sum(0), mass)
        y, spread_y = _moments(mask.sum(1), mass)
        return cls(mass, x, y, spread_x, spread_y)

    def axes(self, hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return coordinates of columns and rows, clipped at 3 spreads."""
        across = (_steps(hw[1], device) - self.x) / self.spread_x
        down = (_steps(hw[0], device) - self.y) / self.spread_y
        return across.clamp(-3, 3), down.clamp(-3, 3)


def _moments(profile: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    steps, mass = _steps(profile.shape[0], profile.device), mass.clamp(min=1e-6)
    mean = (profile * steps).sum() / mass
    return mean, ((profile * (steps - mean).square()).sum() / mass + 1).sqrt()


@lru_cache(maxsize=32)
def _steps(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.float32, device=device)


def _carried(region: DeviceRegion, flow: Flow) -> Tensor:
    """Return the prior `[h, w]`."""
    around, side = _warped(region.posterior, flow)[None], region.settings.blur_px
    if side < 3:
        return around[0]
    reach = side // 2
    kernel = _kernel(side, 0.0, around.device)
    down = F.conv2d(reflected(around, reach)[None], kernel[None, None, :, None])
    return F.conv2d(down, kernel[None, None, None, :])[0, 0]


def _warped(mask: Tensor, flow: Flow) -> Tensor:
    """Warp a mask `[h, w]` of the earlier frame to the present one; content from outside gets 0."""
    map_px = source_map(resize_offsets(flow.offset_px, (mask.shape[0], mask.shape[1])))
    # A border of zeros fades content that is half outside; the sampler would continue the border.
    moved: Tensor = remap(F.pad(mask[None], (1, 1, 1, 1)), map_px + 1)
    return moved[0]


def _given(region: DeviceRegion) -> Tensor | float:
    """Return the given mask's evidence in logits, `[h, w]`."""
    first, way = region.first, region.way
    if first is None or way is None:
        return 0.0
    trust = resized(way.confidence, (first.shape[0], first.shape[1]))
    logits: Tensor = region.settings.first * trust * (2 * _warped(first, way) - 1)
    return logits


def _bordered(settings: Anchoring, posterior: Tensor, rgb: Tensor) -> Tensor:
    """Return the posterior with its border aligned to colour edges."""
    if settings.border_px < 2:
        return posterior
    found = guided(posterior, rgb, settings.border_px, settings.border_variance)
    return torch.where(found < NEGLIGIBLE, 0.0, found)


def _support(prior: Tensor) -> Tensor:
    """Return `[h, w]` float32: 1 in rows and columns where the prior is more than negligible, and two pixels around."""
    held = (prior >= NEGLIGIBLE).float()
    rows, columns = (_filled(held.amax(axis)) for axis in (1, 0))
    return rows[:, None] * columns


def _filled(held: Tensor) -> Tensor:
    """Return `[n]`, 0 or 1: 1 from two before the first 1 to two after the last."""
    before, after = held.cumsum(0), held.flip(0).cumsum(0).flip(0)
    between = ((before > 0) & (after > 0)).float()
    return F.max_pool1d(between[None], 5, stride=1, padding=2)[0]


def _judged(
    region: DeviceRegion, rgb: Tensor, prior: Tensor, failure: Tensor, place: _Place, box: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the posterior `[h, w]`, 0 outside the box, and the picture's agreement, `[]` in [0, 1]."""
    settings = region.settings
    near = prior + (settings.ignorance - prior) * (failure * settings.doubt)
    near = near.clamp(settings.floor, settings.ceiling)
    evidence = _evidence(region, rgb, place)
    posterior = _posterior_of(near, evidence + _given(region)) * box
    mass = posterior.sum()
    likely = (posterior * (evidence > 0)).sum() / mass.clamp(min=1e-6)
    agreement = (likely * (4 * mass / region.area_px.clamp(min=1e-6)).clamp(max=1)).clamp(max=1)
    return posterior, torch.where(mass < LEAST_MASS_PX, 0.0, agreement)


def _posterior_of(prior: Tensor, evidence: Tensor) -> Tensor:
    odds = evidence.exp() * prior
    return odds / (odds + (1 - prior))


def _evidence(region: DeviceRegion, rgb: Tensor, place: _Place) -> Tensor:
    """Return the classifier's evidence in logits, `[h, w]`."""
    settings, (_, height, width) = region.settings, rgb.shape
    gain, weight = settings.speaking(exact=region.exact)
    if not gain:
        return rgb.new_zeros((height, width))
    across, down = place.axes((height, width), rgb.device)
    axes = torch.stack([across.expand(height, width), down[:, None].expand(height, width)])
    cues = torch.cat([cue_planes(rgb, settings.blurs_px), axes * weight]).flatten(1)
    hidden = torch.addmm(region.weights[-1], cues.T, region.weights[:-1]).relu_()
    score = torch.addmv(region.beta[-1:], hidden, region.beta[:-1])
    return (score * gain).clamp(-settings.limit, settings.limit).view(height, width)


def cue_planes(rgb: Tensor, blurs_px: tuple[int, int]) -> Tensor:
    """Return colour, mean colour of two neighbourhoods and texture; see `motion.appearance.cue_rows`.

    Args:
        rgb: `[3, h, w]` float32, whole numbers in [0, 255].
        blurs_px: Sides of the neighbourhoods.

    Returns:
        `[10, h, w]` float32, in grey levels.
    """
    grey = lightness(rgb)[None]
    detail = (grey - _mean(grey, 3)).abs()
    blurred = [_mean(rgb, side) for side in blurs_px]
    texture = window_means(detail, 5) * 25
    return torch.cat([rgb, *blurred, texture])


def _mean(planes: Tensor, side: int) -> Tensor:
    """Return the mean of a neighbourhood, `[C, h, w]`, in whole numbers."""
    return window_means(planes, side).round()


def _moved(settings: Anchoring, posterior: Tensor, flow: Flow, box: Tensor) -> Tensor:
    """Raise the posterior of places that move with the region; lower it at still places around."""
    evidence = motion_evidence(flow, posterior)
    near = posterior.clamp(settings.floor, 1 - settings.floor)
    return _posterior_of(near, settings.motion * evidence) * box


def motion_evidence(flow: Flow, mask: Tensor) -> Tensor:
    """Return `[h, w]` in [-0.5, 1.5]: speed of each place relative to its surroundings, after camera compensation.

    See `motion.anchor.motion_evidence`.
    """
    own = flow.offset_px - camera_of(flow)
    speed = window_means(speed_px(own)[None], 3)[0]
    small = averaged(mask, flow.hw)
    outside = small < 0.3
    ranked = torch.where(outside, speed, torch.inf).flatten().sort().values
    count = outside.sum()
    # Places are gathered, since a tensor as a plain index is brought to the host.
    places = torch.stack([(count // 2).clamp(max=ranked.shape[0] - 1), (0.9 * (count - 1).clamp(min=0)).long()])
    middle, high = ranked.gather(0, places).unbind(0)
    evidence = ((speed - middle) / (high + 0.08)).clamp(0, 2) - 0.5
    strength = (4 * (evidence * small).sum() / small.sum().clamp(min=1e-9)).clamp(0, 1)
    usable = (count > 0) & (small.sum() > 0)
    found: Tensor = resized(torch.where(usable, evidence * strength, 0.0), (mask.shape[0], mask.shape[1]))
    return found


def _gaussian(plane: Tensor, sigma: float) -> Tensor:
    """Blur a plane with zero padding; return `[1, h, w]`."""
    side = round(sigma * 8 + 1) | 1
    kernel = _kernel(side, sigma, plane.device)
    across = F.conv2d(plane[None], kernel[None, None, None, :], padding=(0, side // 2))
    return F.conv2d(across, kernel[None, None, :, None], padding=(side // 2, 0))[0]


@lru_cache(maxsize=16)
def _kernel(side: int, sigma: float, device: torch.device) -> Tensor:
    """Return OpenCV's kernel; a sigma of 0 derives it from the side."""
    return torch.from_numpy(cv2.getGaussianKernel(side, sigma, cv2.CV_32F).ravel()).to(device)
