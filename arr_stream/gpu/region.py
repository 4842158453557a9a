"""Region tracking on tensors, where it differs from `motion.region`: on the whole picture, every place classified.

The host's boxes, lattice and halved rows save work there and would only cost time here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.gpu.pixels import lightness, rounded_means, window_means
from arr_stream.motion import region
from arr_stream.motion.appearance import BLURS_PX, Box, PixelModel
from arr_stream.motion.flow import Flow, resize_offsets, source_map
from arr_stream.motion.region import GAIN, LIMIT, NEGLIGIBLE, PLACE, ObjectFrame
from arr_stream.texture.pixels import remap, resized


@region.reachable.register(Tensor)
def reachable(posterior: Tensor, flow: Flow) -> Box:
    return 0, posterior.shape[0], 0, posterior.shape[1]


@region.warped.register(Tensor)
def warped(mask: Tensor, flow: Flow, box: Box) -> Tensor:
    map_px = source_map(resize_offsets(flow.offset_px, (mask.shape[0], mask.shape[1])))
    # A border of zeros fades content that is half outside; the sampler would continue the border.
    moved: Tensor = remap(F.pad(mask[None], (1, 1, 1, 1)), map_px + 1)
    return moved[0]


@region.enlarged_to.register(Tensor)
def enlarged_to(plane: Tensor, box: Box, shape: tuple[int, int]) -> Tensor:
    enlarged: Tensor = resized(plane, shape)
    return enlarged


@region.support.register(Tensor)
def support(prior: Tensor) -> tuple[Box, Tensor]:
    held = (prior >= NEGLIGIBLE).float()
    rows, columns = (_filled(held.amax(axis)) for axis in (1, 0))
    return (0, prior.shape[0], 0, prior.shape[1]), rows[:, None] * columns


def _filled(held: Tensor) -> Tensor:
    """Return `[n]`, 0 or 1: 1 from two before the first 1 to two after the last."""
    before, after = held.cumsum(0), held.flip(0).cumsum(0).flip(0)
    between = ((before > 0) & (after > 0)).float()
    return F.max_pool1d(between[None], 5, stride=1, padding=2)[0]


@region.middle_and_high.register(Tensor)
def middle_and_high(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    ranked = torch.where(chosen, values, torch.inf).flatten().sort().values
    count = chosen.sum()
    # Places are gathered, since a tensor as a plain index is brought to the host.
    places = torch.stack([(count // 2).clamp(max=ranked.shape[0] - 1), (0.9 * (count - 1).clamp(min=0)).long()])
    middle, high = ranked.gather(0, places).unbind(0)
    return middle, high


@region.evidence_of.register(Tensor)
def evidence_of(rgb: Tensor, model: PixelModel, prior: Tensor, place: ObjectFrame, box: Box, *, exact: bool) -> Tensor:
    height, width = prior.shape
    across, down = place.axes(box, rgb)
    axes = torch.stack([across.expand(height, width), down[:, None].expand(height, width)])
    cues = torch.cat([cue_planes(rgb), axes * PLACE[exact]]).flatten(1)
    hidden = torch.addmm(model.weights[-1], cues.T, model.weights[:-1]).relu_()
    score = torch.addmv(model.beta[-1:], hidden, model.beta[:-1])
    return (score * GAIN[exact]).clamp(-LIMIT, LIMIT).view(height, width)


def cue_planes(rgb: Tensor) -> Tensor:
    """Return `[10, h, w]`: colour, mean colour of two neighbourhoods and texture; see `motion.appearance.cue_rows`."""
    grey = lightness(rgb)[None]
    detail = (grey - rounded_means(grey, 3)).abs()
    texture = window_means(detail, 5) * 25
    return torch.cat([rgb, *(rounded_means(rgb, side) for side in BLURS_PX), texture])
