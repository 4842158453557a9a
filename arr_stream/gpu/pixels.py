"""Torch versions of the operations of `texture.pixels`, `texture.visual` and `motion.region` that OpenCV does.

Every reduced picture holds whole numbers from 0 to 255, rounded as OpenCV rounds 8-bit pictures, so that later
thresholds (edges) give the same result on both paths. Kernels are made once a device: one that a filter builds on every
call is a copy that waits for the device. Regions are tracked on the whole picture, and every place is classified: the
host's boxes, lattice and halved rows save work there and would only cost time here.
"""

from __future__ import annotations

import math
from functools import cache

import cv2
import torch
import torch.nn.functional as F
from kornia.filters import filter2d, get_spatial_gradient_kernel2d
from torch import Tensor

from arr_stream.motion import region
from arr_stream.motion.appearance import BLURS_PX, Box, PixelModel
from arr_stream.motion.flow import Flow, resize_offsets, source_map
from arr_stream.motion.region import GAIN, LIMIT, NEGLIGIBLE, PLACE, ObjectFrame
from arr_stream.motion.torch_flow import area_means
from arr_stream.texture import pixels, visual
from arr_stream.texture.visual import DETAIL_GAIN, EDGE_THRESHOLD

LUMA = (9798 / 32768, 19235 / 32768, 3735 / 32768)
"""BT.601 weights in the fixed point of OpenCV; products with 8-bit values are exact in float32."""

_COLOURS = 512
_NOWHERE = 1e6
"""Coordinate of a missing edge; farther than any diagonal, and its square is still exact enough."""
_TRIALS = 1 << 24
"""Distances computed at a time: 64 MiB of temporary memory."""


@pixels.picture_planes.register(Tensor)
def picture_planes(picture: Tensor) -> Tensor:
    return picture.permute(2, 0, 1) if picture.shape[2] == 3 else picture


@pixels.picture_hw.register(Tensor)
def picture_hw(picture: Tensor) -> tuple[int, int]:
    return picture.shape[1], picture.shape[2]


@pixels.reduced.register(Tensor)
def reduced(picture: Tensor, size_wh: tuple[int, int]) -> Tensor:
    """Return `[3, H, W]` or `[H, W]` contiguous float32, whole numbers in [0, 255]; accepts pixels `[h, w, 3]` too."""
    if picture.dim() == 2:
        return _reduced(picture[None], size_wh)[0]
    return _reduced(picture_planes(picture), size_wh)


def _reduced(planes: Tensor, size_wh: tuple[int, int]) -> Tensor:
    height, width = planes.shape[1:]
    across, down = width / size_wh[0], height / size_wh[1]
    values = planes.to(torch.float32, memory_format=torch.contiguous_format)
    if across == down == 1.0:
        return values
    if pixels.halves_first((width, height), size_wh):
        return _reduced(halved(values), size_wh)
    if across == down == 2.0:
        return halved(values)
    if max(across, down) > 2.2:
        return _along(_along(values, 2, size_wh[0]), 1, size_wh[1]).round_()
    linear = F.interpolate(values[None], (size_wh[1], size_wh[0]), mode="bilinear", align_corners=False)[0]
    return linear.add_(0.5).floor_()


def halved(planes: Tensor) -> Tensor:
    """Reduce `[C, h, w]` to `[C, h / 2, w / 2]`: means of 2x2, rounded half up; both sides are even."""
    return F.avg_pool2d(planes, 2).add_(0.5).floor_()


def _along(planes: Tensor, axis: int, size: int) -> Tensor:
    """Average along an axis over the exact extent of each pixel, with fractional weights."""
    index, weight = _area_taps(planes.shape[axis], size, planes.device)
    shape = (-1, 1) if axis == 1 else (-1,)
    total = planes.index_select(axis, index[0]).mul_(weight[0].view(shape))
    for tap in range(1, len(index)):
        total.addcmul_(planes.index_select(axis, index[tap]), weight[tap].view(shape))
    return total


@cache
def _area_taps(samples: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the samples that each of `size` pixels covers, `[taps, size]`, and their shares, which sum to 1."""
    scale = samples / size
    start = torch.arange(size, dtype=torch.float64) * scale
    first = start.floor()
    taps = torch.arange(math.ceil(scale) + 1, dtype=torch.float64)[:, None] + first
    covered = (torch.minimum(taps + 1, start + scale) - torch.maximum(taps, start)).clamp(min=0)
    covered[taps >= samples] = 0
    weight = (covered / covered.sum(dim=0)).float()
    return taps.long().clamp(max=samples - 1).to(device), weight.to(device)


@pixels.lightness.register(Tensor)
def lightness(picture: Tensor) -> Tensor:
    red, green, blue = picture
    mixed: Tensor = red * LUMA[0]
    return mixed.add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).add_(0.5).floor_()


@pixels.packed_colours.register(Tensor)
def packed_colours(picture: Tensor, green_bits: int) -> Tensor:
    red, green, blue = picture.to(torch.int32)
    packed: Tensor = ((red >> 3) << (green_bits + 5)) + ((green >> (8 - green_bits)) << 5) + (blue >> 3)
    return packed


@pixels.colour_shares.register(Tensor)
def colour_shares(picture: Tensor) -> Tensor:
    red, green, blue = (picture / 32).floor().clamp(0, 7).long()
    places = ((red << 6) + (green << 3) + blue).flatten()
    share = torch.full(places.shape, 1 / places.shape[0], device=picture.device)
    return torch.zeros(_COLOURS, device=picture.device).scatter_add_(0, places, share)


@pixels.resized.register(Tensor)
def resized(planes: Tensor, hw: tuple[int, int]) -> Tensor:
    if planes.shape[-2:] == hw:
        return planes
    given = planes.reshape(1, -1, *planes.shape[-2:])
    made = F.interpolate(given, hw, mode="bilinear", align_corners=False)
    return made.reshape(*planes.shape[:-2], *hw)


@pixels.averaged.register(Tensor)
def averaged(planes: Tensor, hw: tuple[int, int]) -> Tensor:
    return area_means(planes.reshape(1, -1, *planes.shape[-2:]), hw).reshape(*planes.shape[:-2], *hw)


@pixels.cell_colours.register(Tensor)
def cell_colours(picture: Tensor, hw: tuple[int, int]) -> Tensor:
    return averaged(picture, hw).round_().flatten(1).T


@pixels.cell_bytes.register(Tensor)
def cell_bytes(plane: Tensor, hw: tuple[int, int]) -> Tensor:
    return averaged(plane, hw).round_()


@pixels.cell_difference.register(Tensor)
def cell_difference(first: Tensor, second: Tensor) -> Tensor:
    return F.avg_pool2d((first - second).abs()[None], 4)[0].round_()


@pixels.remap.register(Tensor)
def remap(planes: Tensor, map_px: Tensor, *, nearest: bool = False) -> Tensor:
    held = planes.reshape(-1, *planes.shape[-2:])
    moved = _sampled_nearest(held, map_px) if nearest else _sampled(held, map_px)
    return moved.reshape(*planes.shape[:-2], *map_px.shape[:2])


@pixels.blotted.register(Tensor)
def blotted(planes: Tensor, kept: Tensor, value: float | Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=planes.dtype, device=planes.device)
    return torch.where(kept, planes, value)


def _sampled(planes: Tensor, map_px: Tensor) -> Tensor:
    scale, shift = _normaliser((planes.shape[1], planes.shape[2]), map_px.device)
    # Exact for a side of one pixel too.
    places = torch.addcmul(shift, map_px, scale)
    return F.grid_sample(planes[None], places[None], "bilinear", "border", False)[0]


def _sampled_nearest(planes: Tensor, map_px: Tensor) -> Tensor:
    height, width = planes.shape[1:]
    x, y = map_px.round().to(torch.int64).unbind(2)
    index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return planes.flatten(1)[:, index]


@cache
def _normaliser(hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift from pixel positions `(x, y)` to coordinates of `grid_sample`."""
    size_wh = torch.tensor([hw[1], hw[0]], dtype=torch.float32, device=device)
    return 2 / size_wh, 1 / size_wh - 1


@pixels.inside.register(Tensor)
def inside(map_px: Tensor) -> Tensor:
    height, width = map_px.shape[:2]
    x, y = map_px.unbind(2)
    return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


@pixels.mean_of.register(Tensor)
def mean_of(plane: Tensor) -> Tensor:
    return plane.mean()


@pixels.middle_of.register(Tensor)
def middle_of(values: Tensor) -> Tensor:
    return values.kthvalue(len(values) // 2 + 1, dim=0).values


@pixels.affine.register(Tensor)
def affine(places: Tensor, slopes: Tensor, base: Tensor) -> Tensor:
    return places @ slopes + base


@pixels.solved.register(Tensor)
def solved(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve three equations by cofactors, without a check of the result, which would wait for the device."""
    if len(matrix) != 3:
        factor, _ = torch.linalg.cholesky_ex(matrix)
        return torch.cholesky_solve(right, factor)
    wide = matrix.double()
    cofactors = torch.linalg.cross(wide.roll(-1, 0), wide.roll(-2, 0))
    determinant = (wide[0] * cofactors[0]).sum()
    result: Tensor = cofactors.T @ right.double() / determinant
    return result.float()


@pixels.gaussian.register(Tensor)
def gaussian(plane: Tensor, side_px: int, sigma: float, *, mirrored: bool) -> Tensor:
    kernel, reach = _gaussian_kernel(side_px, sigma, plane.device), side_px // 2
    planes = reflected(plane[None], reach)[None] if mirrored else F.pad(plane[None, None], (reach,) * 4)
    return F.conv2d(F.conv2d(planes, kernel[None, None, :, None]), kernel[None, None, None, :])[0, 0]


@cache
def _gaussian_kernel(side_px: int, sigma: float, device: torch.device) -> Tensor:
    return torch.from_numpy(cv2.getGaussianKernel(side_px, sigma, cv2.CV_32F).ravel()).to(device)


@pixels.exponential.register(Tensor)
def exponential(plane: Tensor) -> Tensor:
    return plane.exp()


@pixels.line_sums.register(Tensor)
def line_sums(plane: Tensor) -> tuple[Tensor, Tensor]:
    return plane.sum(0), plane.sum(1)


@pixels.widened.register(Tensor)
def widened(plane: Tensor) -> Tensor:
    return F.max_pool2d(plane[None], 3, stride=1, padding=1)[0]


@pixels.box_means.register(Tensor)
def box_means(*planes: Tensor, side_px: int) -> tuple[Tensor, ...]:
    return window_means(torch.stack(planes), side_px).unbind(0)


def window_means(planes: Tensor, side_px: int) -> Tensor:
    """Return `[C, h, w]`: means of square windows of an odd side, the picture mirrored at its rim."""
    return F.avg_pool2d(reflected(planes, side_px // 2), side_px, stride=1)


def rounded_means(planes: Tensor, side_px: int) -> Tensor:
    """Return `window_means` in whole numbers, as OpenCV rounds those of 8-bit pictures."""
    return window_means(planes, side_px).round_()


def reflected(planes: Tensor, margin: int) -> Tensor:
    """Pad planes `[C, h, w]` by reflection, or by replication if they are too narrow for that."""
    mode = "reflect" if min(planes.shape[1:]) > margin else "replicate"
    return F.pad(planes[None], (margin, margin, margin, margin), mode=mode)[0]


@pixels.local_contrast.register(Tensor)
def local_contrast(grey: Tensor, side_px: int) -> Tensor:
    near = F.pad(grey[None, None], (1, 1, 1, 1), mode="replicate")
    contrast = F.max_pool2d(near, 3, 1) + F.max_pool2d(-near, 3, 1)
    reach = side_px // 2
    return F.avg_pool2d(F.pad(contrast, (reach,) * 4, mode="replicate"), side_px, 1)[0, 0]


@visual.high_pass.register(Tensor)
def high_pass(grey: Tensor) -> Tensor:
    halves = grey[None]
    detail = halved((halves - rounded_means(halves, 7)).abs_())[0]
    return detail.mul_(DETAIL_GAIN).clamp_(max=255)


@visual.polar_edges.register(Tensor)
def polar_edges(grey: Tensor) -> Tensor:
    gradient = filter2d(grey.expand(2, 1, *grey.shape), _sobel(grey.device), "reflect")[:, 0]
    signed = torch.stack([gradient.amax(dim=0), -gradient.amin(dim=0)])
    return signed.mul_(0.5).round_().clamp_(0, 255)


@visual.low_pass.register(Tensor)
def low_pass(grey: Tensor) -> Tensor:
    return rounded_means(grey[None], 5)[0]


@visual.edge_distance.register(Tensor)
def edge_distance(edges: Tensor) -> Tensor:
    """Return the Euclidean distance; the CPU's 3x3 chamfer distance differs by up to 5%."""
    spread = F.max_pool2d(edges.amax(dim=0)[None], 3, stride=2, padding=1)[0]
    distance = nearest_distance(spread > EDGE_THRESHOLD)
    return distance.mul_(255 / math.hypot(*distance.shape)).clamp_(max=255)


def nearest_distance(edges: Tensor) -> Tensor:
    """Return the Euclidean distance `[h, w]` in pixels to the nearest edge of `[h, w]` bool; huge without an edge.

    In two passes (columns, then rows; Felzenszwalb and Huttenlocher, "Distance transforms of sampled functions", 2012)
    that try every place of a line.
    """
    squared = torch.where(edges, 0.0, _NOWHERE**2)
    return _nearest_along(_nearest_along(squared.T).T).sqrt_()


def _nearest_along(squared: Tensor) -> Tensor:
    """Extend squared distances `[lines, n]` to edges at the same place to edges at any place of the line."""
    length = squared.shape[1]
    place = torch.arange(length, device=squared.device, dtype=torch.float32)
    ways = (place[:, None] - place) ** 2
    some = max(1, _TRIALS // (length * length))
    return torch.cat([(part[:, None] + ways).amin(dim=2) for part in torch.split(squared, some)])


@cache
def _sobel(device: torch.device) -> Tensor:
    """Return `[2, 3, 3]`: derivatives to the right and downwards."""
    return get_spatial_gradient_kernel2d("sobel", 1).to(device)


@region.reachable.register(Tensor)
def reachable(posterior: Tensor, flow: Flow) -> Box:
    return 0, posterior.shape[0], 0, posterior.shape[1]


@region.warped.register(Tensor)
def warped(mask: Tensor, flow: Flow, box: Box) -> Tensor:
    map_px = source_map(resize_offsets(flow.offset_px, (mask.shape[0], mask.shape[1])))
    # A border of zeros fades content that is half outside; the sampler would continue the border.
    moved = remap(F.pad(mask[None], (1, 1, 1, 1)), map_px + 1)
    return moved[0]


@region.enlarged_to.register(Tensor)
def enlarged_to(plane: Tensor, box: Box, shape: tuple[int, int]) -> Tensor:
    return resized(plane, shape)


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
