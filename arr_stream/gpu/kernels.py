"""Steps of flow and of the camera as single GPU kernels, in Triton.

Each equals many small operations of `motion.torch_flow` and `motion.camera`. On rasters of a few thousand places,
kernel launches dominate a GPU's time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from arr_stream.motion import torch_flow
from arr_stream.motion.camera import RIDGE, ROUNDS, TOLERANCE_PX, every_nth
from arr_stream.motion.flow import CONTRAST_SHARE, FLOOR, NOISE

_BLOCK = 128
_on_rasters: Any = triton.jit(do_not_specialize=["height", "width", "columns", "count", "first_row", "first_column"])
"""Decorator of kernels that are compiled once for all sizes."""


def _launch(kernel: Any, blocks: tuple[int, ...], *values: Any, BLOCK: int = _BLOCK, **constants: int) -> None:
    kernel[blocks](*values, BLOCK=BLOCK, enable_fp_fusion=True, **constants)


def flow_px(previous: Tensor, present: Tensor, hw: tuple[int, int]) -> Tensor:
    """Return the flow as `torch_flow.flow_px` does, with a dozen kernels a level."""
    levels = torch_flow.pyramid(torch.stack([previous, present])[:, None])
    flow = levels[-1].new_zeros((1, 2, *levels[-1].shape[2:]))
    for level in reversed(levels):
        height, width = level.shape[2:]
        flow = torch_flow.resize_flow(flow, (height, width)).contiguous()
        flow = searched(level, flow, torch_flow.COARSE_RADIUS_PX if level is levels[-1] else torch_flow.RADIUS_PX)
        flow = refined(level, flow)
    return torch_flow.resize_flow(flow, hw)[0].permute(1, 2, 0).contiguous()


def searched(level: Tensor, flow: Tensor, radius_px: int) -> Tensor:
    """Return a flow `[1, 2, h, w]` moved by the best whole displacements between the pictures `[2, 1, h, w]`."""
    height, width = level.shape[2:]
    side = 2 * radius_px + 1
    signs, cost = level.new_empty((2, 4, height, width)), level.new_empty((side * side, height, width))
    found = torch.empty_like(flow)
    blocks = triton.cdiv(height * width, _BLOCK)
    _launch(_signs, (blocks,), level, flow, signs, height, width, 1 / torch_flow.SOFT_SIGN)
    reach = torch_flow.WINDOW_PX // 2
    _launch(_cost, (blocks, side * side), signs, cost, height, width, RADIUS=radius_px, REACH=reach)
    _launch(
        _softmin,
        (blocks,),
        cost,
        flow,
        found,
        height,
        width,
        torch_flow.SHARPNESS / 4,
        torch_flow.SHARPNESS * torch_flow.DISTANCE_COST,
        RADIUS=radius_px,
    )
    return found


def refined(level: Tensor, flow: Tensor) -> Tensor:
    """Refine a flow `[1, 2, h, w]` towards constant brightness and smoothness, then apply a 3x3 median."""
    height, width = level.shape[2:]
    blocks = (triton.cdiv(height * width, _BLOCK),)
    line = level.new_empty((5, height, width))
    _launch(_line, blocks, level, flow, line, height, width, torch_flow.SMOOTHNESS, torch_flow.ROBUST_SQUARED)
    for _ in range(torch_flow.ROUNDS):
        smoother = torch.empty_like(flow)
        _launch(_round, blocks, flow, line, smoother, height, width, REACH=torch_flow.SMOOTH_WINDOW_PX // 2)
        flow = smoother
    median = torch.empty_like(flow)
    _launch(_median, (*blocks, 2), flow, median, height, width)
    return median


def checked(previous: Tensor, present: Tensor, offset_px: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence and the residual of a flow, `[h, w]` each, as `motion.flow.checked_flow` does."""
    height, width = present.shape
    blocks = (triton.cdiv(height * width, _BLOCK),)
    previous, present, offset_px = previous.contiguous(), present.contiguous(), offset_px.contiguous()
    difference, confidence, residual = (torch.empty_like(present) for _ in range(3))
    _launch(_difference, blocks, previous, present, offset_px, difference, height, width)
    _launch(
        _confidence,
        blocks,
        difference,
        present,
        offset_px,
        confidence,
        residual,
        height,
        width,
        NOISE,
        CONTRAST_SHARE,
        FLOOR,
    )
    return confidence, residual


def camera_parameters(offset_px: Tensor, weight: Tensor, step: int) -> Tensor:
    """Return `[3, 2]` as `motion.camera.camera_parameters` does, in one kernel."""
    height, width = weight.shape
    rows, columns = (range(side)[every_nth(step, side)] for side in (height, width))
    found = offset_px.new_empty((3, 2))
    count = len(rows) * len(columns)
    _launch(
        _camera,
        (1,),
        offset_px.contiguous(),
        weight.contiguous(),
        found,
        height,
        width,
        rows.start,
        columns.start,
        step,
        len(columns),
        count,
        TOLERANCE_PX**2,
        RIDGE,
        ROUNDS=ROUNDS,
        BLOCK=triton.next_power_of_2(count),
    )
    return found


@triton.jit
def _sampled(plane, x, y, height, width, within):
    """Sample a plane `[h, w]` linearly between its pixels, borders continued."""
    x = tl.minimum(tl.maximum(x, 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    left, above = tl.floor(x), tl.floor(y)
    right_share, below_share = x - left, y - above
    column, row = left.to(tl.int32), above.to(tl.int32)
    further, lower = tl.minimum(column + 1, width - 1), tl.minimum(row + 1, height - 1)
    top = tl.load(plane + row * width + column, within) * (1 - right_share)
    top += tl.load(plane + row * width + further, within) * right_share
    bottom = tl.load(plane + lower * width + column, within) * (1 - right_share)
    bottom += tl.load(plane + lower * width + further, within) * right_share
    return top * (1 - below_share) + bottom * below_share


@triton.jit
def _soft_sign(plane, middle, row, column, width, scale, within):
    other = tl.load(plane + row * width + column, within)
    return 2 * tl.sigmoid(2 * (other - middle) * scale) - 1


@triton.jit
def _signs_at(plane, row, column, height, width, scale, within):
    """Return soft signs of a place's neighbours above, left, right and below against itself."""
    middle = tl.load(plane + row * width + column, within)
    above = _soft_sign(plane, middle, tl.maximum(row - 1, 0), column, width, scale, within)
    left = _soft_sign(plane, middle, row, tl.maximum(column - 1, 0), width, scale, within)
    right = _soft_sign(plane, middle, row, tl.minimum(column + 1, width - 1), width, scale, within)
    below = _soft_sign(plane, middle, tl.minimum(row + 1, height - 1), column, width, scale, within)
    return above, left, right, below


@_on_rasters
def _signs(level, flow, signs, height, width, scale, BLOCK: tl.constexpr):
    """Compute the soft signs of the earlier picture, sampled along the flow, and of the present one."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    within = place < area
    row, column = place // width, place % width
    x = tl.minimum(tl.maximum(column + tl.load(flow + place, within), 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(row + tl.load(flow + area + place, within), 0.0), height - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    right_share, below_share = x - left, y - top
    c, r = left.to(tl.int32), top.to(tl.int32)
    further, lower = tl.minimum(c + 1, width - 1), tl.minimum(r + 1, height - 1)
    a0, a1, a2, a3 = _signs_at(level, r, c, height, width, scale, within)
    b0, b1, b2, b3 = _signs_at(level, r, further, height, width, scale, within)
    c0, c1, c2, c3 = _signs_at(level, lower, c, height, width, scale, within)
    d0, d1, d2, d3 = _signs_at(level, lower, further, height, width, scale, within)
    a, b = (1 - right_share) * (1 - below_share), right_share * (1 - below_share)
    e, f = (1 - right_share) * below_share, right_share * below_share
    tl.store(signs + place, a * a0 + b * b0 + e * c0 + f * d0, within)
    tl.store(signs + area + place, a * a1 + b * b1 + e * c1 + f * d1, within)
    tl.store(signs + 2 * area + place, a * a2 + b * b2 + e * c2 + f * d2, within)
    tl.store(signs + 3 * area + place, a * a3 + b * b3 + e * c3 + f * d3, within)
    n0, n1, n2, n3 = _signs_at(level + area, row, column, height, width, scale, within)
    tl.store(signs + 4 * area + place, n0, within)
    tl.store(signs + 5 * area + place, n1, within)
    tl.store(signs + 6 * area + place, n2, within)
    tl.store(signs + 7 * area + place, n3, within)


@_on_rasters
def _cost(signs, cost, height, width, RADIUS: tl.constexpr, REACH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the mean difference of the signs over a window, for each displacement at each place."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    displacement = tl.program_id(1)
    area = height * width
    within = place < area
    row, column = place // width, place % width
    down, across = displacement // (2 * RADIUS + 1) - RADIUS, displacement % (2 * RADIUS + 1) - RADIUS
    total = tl.zeros((BLOCK,), tl.float32)
    for near in range((2 * REACH + 1) * (2 * REACH + 1)):
        r, c = row + near // (2 * REACH + 1) - REACH, column + near % (2 * REACH + 1) - REACH
        inside = within & (r >= 0) & (r < height) & (c >= 0) & (c < width)
        there = tl.minimum(tl.maximum(r + down, 0), height - 1) * width
        there += tl.minimum(tl.maximum(c + across, 0), width - 1)
        for sign in tl.static_range(4):
            earlier = tl.load(signs + sign * area + there, inside, other=0.0)
            total += tl.abs(earlier - tl.load(signs + (4 + sign) * area + r * width + c, inside, other=0.0))
    tl.store(cost + displacement * area + place, total / _window_size(row, column, height, width, REACH), within)


@triton.jit
def _window_size(row, column, height, width, REACH: tl.constexpr):
    """Return the number of a window's places inside the picture."""
    high = tl.minimum(row + REACH, height - 1) - tl.maximum(row - REACH, 0) + 1
    return high * (tl.minimum(column + REACH, width - 1) - tl.maximum(column - REACH, 0) + 1)


@_on_rasters
def _softmin(cost, flow, found, height, width, sharpness, distance_cost, RADIUS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the mean displacement, by the softmin of the costs, to the flow."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    within = place < area
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    total, across, down = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for displacement in range((2 * RADIUS + 1) * (2 * RADIUS + 1)):
        dx = (displacement % (2 * RADIUS + 1) - RADIUS) * 1.0
        dy = (displacement // (2 * RADIUS + 1) - RADIUS) * 1.0
        here = tl.load(cost + displacement * area + place, within, other=0.0)
        logit = -distance_cost * tl.sqrt(dx * dx + dy * dy) - sharpness * here
        larger = tl.maximum(most, logit)
        kept, share = tl.exp(most - larger), tl.exp(logit - larger)
        total, across, down = total * kept + share, across * kept + share * dx, down * kept + share * dy
        most = larger
    tl.store(found + place, tl.load(flow + place, within) + across / total, within)
    tl.store(found + area + place, tl.load(flow + area + place, within) + down / total, within)


@triton.jit
def _blend(level, flow, row, column, height, width, within):
    """Return the mean and the difference of the present picture and the warped earlier one."""
    place = row * width + column
    area = height * width
    x, y = column + tl.load(flow + place, within), row + tl.load(flow + area + place, within)
    warped, present = _sampled(level, x, y, height, width, within), tl.load(level + area + place, within)
    return (warped + present) / 2, warped - present


@_on_rasters
def _line(level, flow, line, height, width, smoothness, robust, BLOCK: tl.constexpr):
    """Compute the line of constant brightness: gradient `[2]`, pull `[2]` and constant `[1]`."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    within = place < area
    row, column = place // width, place % width
    left, _ = _blend(level, flow, row, tl.maximum(column - 1, 0), height, width, within)
    right, _ = _blend(level, flow, row, tl.minimum(column + 1, width - 1), height, width, within)
    above, _ = _blend(level, flow, tl.maximum(row - 1, 0), column, height, width, within)
    below, _ = _blend(level, flow, tl.minimum(row + 1, height - 1), column, height, width, within)
    _, change = _blend(level, flow, row, column, height, width, within)
    gx, gy = (right - left) * 0.5, (below - above) * 0.5
    bound = -smoothness * tl.sqrt(change * change + robust) - (gx * gx + gy * gy)
    constant = gx * tl.load(flow + place, within) + gy * tl.load(flow + area + place, within) - change
    tl.store(line + place, gx, within)
    tl.store(line + area + place, gy, within)
    tl.store(line + 2 * area + place, gx / bound, within)
    tl.store(line + 3 * area + place, gy / bound, within)
    tl.store(line + 4 * area + place, constant, within)


@triton.jit
def _window_mean(plane, row, column, height, width, within, REACH: tl.constexpr, BLOCK: tl.constexpr):
    """Return the mean of a window; at the border, of the part inside."""
    total = tl.zeros((BLOCK,), tl.float32)
    for near in tl.static_range((2 * REACH + 1) * (2 * REACH + 1)):
        r, c = row + near // (2 * REACH + 1) - REACH, column + near % (2 * REACH + 1) - REACH
        inside = within & (r >= 0) & (r < height) & (c >= 0) & (c < width)
        total += tl.load(plane + r * width + c, inside, other=0.0)
    return total / _window_size(row, column, height, width, REACH)


@_on_rasters
def _round(flow, line, smoother, height, width, REACH: tl.constexpr, BLOCK: tl.constexpr):
    """Run one smoothing step towards the local mean and the line of constant brightness."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    within = place < area
    row, column = place // width, place % width
    dx = _window_mean(flow, row, column, height, width, within, REACH, BLOCK)
    dy = _window_mean(flow + area, row, column, height, width, within, REACH, BLOCK)
    gx, gy = tl.load(line + place, within), tl.load(line + area + place, within)
    off = gx * dx + gy * dy - tl.load(line + 4 * area + place, within)
    tl.store(smoother + place, dx + tl.load(line + 2 * area + place, within) * off, within)
    tl.store(smoother + area + place, dy + tl.load(line + 3 * area + place, within) * off, within)


@triton.jit
def _sorted3(a, b, c):
    low, high = tl.minimum(a, b), tl.maximum(a, b)
    return tl.minimum(low, c), tl.minimum(high, tl.maximum(low, c)), tl.maximum(high, c)


@triton.jit
def _column3(plane, above, row, below, column, width, within):
    return _sorted3(
        tl.load(plane + above * width + column, within),
        tl.load(plane + row * width + column, within),
        tl.load(plane + below * width + column, within),
    )


@_on_rasters
def _median(planes, median, height, width, BLOCK: tl.constexpr):
    """Compute the 3x3 median, borders continued; see `torch_flow.median3`."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    within = place < area
    plane = planes + tl.program_id(1) * area
    row, column = place // width, place % width
    above, below = tl.maximum(row - 1, 0), tl.minimum(row + 1, height - 1)
    l0, l1, l2 = _column3(plane, above, row, below, tl.maximum(column - 1, 0), width, within)
    m0, m1, m2 = _column3(plane, above, row, below, column, width, within)
    r0, r1, r2 = _column3(plane, above, row, below, tl.minimum(column + 1, width - 1), width, within)
    least, most = tl.maximum(tl.maximum(l0, m0), r0), tl.minimum(tl.minimum(l2, m2), r2)
    _, between, _ = _sorted3(l1, m1, r1)
    _, middle, _ = _sorted3(least, between, most)
    tl.store(median + tl.program_id(1) * area + place, middle, within)


@triton.jit
def _blurred(plane, row, column, height, width, within):
    """Blur by the 3x3 binomial kernel, borders continued."""
    above, below = tl.maximum(row - 1, 0), tl.minimum(row + 1, height - 1)
    left, right = tl.maximum(column - 1, 0), tl.minimum(column + 1, width - 1)
    upper = _blurred_row(plane + above * width, left, column, right, within)
    middle = _blurred_row(plane + row * width, left, column, right, within)
    lower = _blurred_row(plane + below * width, left, column, right, within)
    return (upper + 2 * middle + lower) * 0.0625


@triton.jit
def _blurred_row(line, left, column, right, within):
    return tl.load(line + left, within) + 2 * tl.load(line + column, within) + tl.load(line + right, within)


@_on_rasters
def _difference(previous, present, offset_px, difference, height, width, BLOCK: tl.constexpr):
    """Compute the difference of the blurred pictures, with the previous one sampled along the flow."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = place < height * width
    row, column = place // width, place % width
    x = tl.minimum(tl.maximum(column + tl.load(offset_px + 2 * place, within, other=0.0), 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(row + tl.load(offset_px + 2 * place + 1, within, other=0.0), 0.0), height - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    right_share, below_share = x - left, y - top
    c, r = left.to(tl.int32), top.to(tl.int32)
    further, lower = tl.minimum(c + 1, width - 1), tl.minimum(r + 1, height - 1)
    upper = _blurred(previous, r, c, height, width, within) * (1 - right_share)
    upper += _blurred(previous, r, further, height, width, within) * right_share
    under = _blurred(previous, lower, c, height, width, within) * (1 - right_share)
    under += _blurred(previous, lower, further, height, width, within) * right_share
    earlier = upper * (1 - below_share) + under * below_share
    tl.store(difference + place, tl.abs(earlier - _blurred(present, row, column, height, width, within)), within)


@_on_rasters
def _confidence(
    difference,
    present,
    offset_px,
    confidence,
    residual,
    height,
    width,
    noise,
    contrast_share,
    floor,
    BLOCK: tl.constexpr,
):
    """Compute confidence and residual from the difference, relative to the local contrast."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = place < height * width
    row, column = place // width, place % width
    total = tl.zeros((BLOCK,), tl.float32)
    most, least = tl.full((BLOCK,), -float("inf"), tl.float32), tl.full((BLOCK,), float("inf"), tl.float32)
    for near in tl.static_range(9):
        r = tl.minimum(tl.maximum(row + near // 3 - 1, 0), height - 1)
        c = tl.minimum(tl.maximum(column + near % 3 - 1, 0), width - 1)
        total += tl.load(difference + r * width + c, within)
        grey = tl.load(present + r * width + c, within)
        most, least = tl.maximum(most, grey), tl.minimum(least, grey)
    left = (total * (1.0 / 9) - noise) / ((most - least) * contrast_share + floor)
    left = tl.minimum(tl.maximum(left, 0.0), 1.0)
    x = column + tl.load(offset_px + 2 * place, within, other=0.0)
    y = row + tl.load(offset_px + 2 * place + 1, within, other=0.0)
    inside = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    tl.store(confidence + place, tl.where(inside, 1 - left, 0.0), within)
    tl.store(residual + place, left, within)


@triton.jit
def _middle(values, within, count):
    """Return the upper median, by a search over its bits from the highest."""
    bits = values.to(tl.int32, bitcast=True)
    # Whole numbers in the order of the floats.
    keys = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    found = tl.sum(tl.zeros_like(keys), dtype=tl.uint32)
    bit = found | 2147483648
    for _ in range(32):
        larger = found | bit
        below = tl.sum((within & (keys < larger)).to(tl.int32))
        found = tl.where(below <= count // 2, larger, found)
        bit = bit >> 1
    bits = tl.where(found >= 2147483648, found ^ 2147483648, ~found).to(tl.int32, bitcast=True)
    return bits.to(tl.float32, bitcast=True)


@_on_rasters
def _camera(
    offset_px,
    weight,
    found,
    height,
    width,
    first_row,
    first_column,
    step,
    columns,
    count,
    tolerance,
    ridge,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.arange(0, BLOCK)
    within = index < count
    row, column = first_row + index // columns * step, first_column + index % columns * step
    place = row * width + column
    dx, dy = tl.load(offset_px + 2 * place, within, other=0.0), tl.load(offset_px + 2 * place + 1, within, other=0.0)
    trust = tl.where(within, tl.load(weight + place, within, other=0.0) + 1e-3, 0.0)
    x = (column - (width - 1) * 0.5) / tl.maximum(width, 2) * 2
    y = (row - (height - 1) * 0.5) / tl.maximum(height, 2) * 2
    x, y = x.to(tl.float32), y.to(tl.float32)
    ax, ay = _middle(dx, within, count).to(tl.float64), _middle(dy, within, count).to(tl.float64)
    bx, cx, by, cy = ax * 0, ax * 0, ay * 0, ay * 0
    for _ in range(ROUNDS):
        off_x = dx - (ax.to(tl.float32) + bx.to(tl.float32) * x + cx.to(tl.float32) * y)
        off_y = dy - (ay.to(tl.float32) + by.to(tl.float32) * x + cy.to(tl.float32) * y)
        squared = off_x * off_x + off_y * off_y
        w = trust / (1 + squared / tl.maximum(_middle(squared, within, count), tolerance))
        wx, wy = w * x, w * y
        s0 = tl.sum(w).to(tl.float64) + ridge
        s1, s2, s12 = tl.sum(wx).to(tl.float64), tl.sum(wy).to(tl.float64), tl.sum(wx * y).to(tl.float64)
        s11, s22 = tl.sum(wx * x).to(tl.float64) + ridge, tl.sum(wy * y).to(tl.float64) + ridge
        # The symmetric matrix [[s0 s1 s2], [s1 s11 s12], [s2 s12 s22]] by cofactors.
        k00, k01, k02 = s11 * s22 - s12 * s12, s12 * s2 - s1 * s22, s1 * s12 - s11 * s2
        k11, k12, k22 = s0 * s22 - s2 * s2, s1 * s2 - s0 * s12, s0 * s11 - s1 * s1
        determinant = s0 * k00 + s1 * k01 + s2 * k02
        r0, r1, r2 = tl.sum(w * dx).to(tl.float64), tl.sum(wx * dx).to(tl.float64), tl.sum(wy * dx).to(tl.float64)
        ax = (k00 * r0 + k01 * r1 + k02 * r2) / determinant
        bx = (k01 * r0 + k11 * r1 + k12 * r2) / determinant
        cx = (k02 * r0 + k12 * r1 + k22 * r2) / determinant
        r0, r1, r2 = tl.sum(w * dy).to(tl.float64), tl.sum(wx * dy).to(tl.float64), tl.sum(wy * dy).to(tl.float64)
        ay = (k00 * r0 + k01 * r1 + k02 * r2) / determinant
        by = (k01 * r0 + k11 * r1 + k12 * r2) / determinant
        cy = (k02 * r0 + k12 * r1 + k22 * r2) / determinant
    tl.store(found, ax.to(tl.float32))
    tl.store(found + 1, ay.to(tl.float32))
    tl.store(found + 2, bx.to(tl.float32))
    tl.store(found + 3, by.to(tl.float32))
    tl.store(found + 4, cx.to(tl.float32))
    tl.store(found + 5, cy.to(tl.float32))
