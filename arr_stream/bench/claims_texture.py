"""Claims about the texture: its memory, making its 40 channels, mip levels, and reading places."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.nn import functional

from arr_stream.bench.claims_base import Claim, ClaimsPlan, median_ms
from arr_stream.bench.relevance import CROPS
from arr_stream.bench.tables import ResultTable
from arr_stream.consumers.base import total_ms
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.texture.array import CELL_LEVEL, Plane, Texture
from arr_stream.texture.layout import CHANNELS
from arr_stream.types import PatchSet

MIB = 1 << 20
POOLED_LEVELS = 3
_EQUAL = 1e-4


def texture_claims(plan: ClaimsPlan) -> tuple[list[Claim], list[ResultTable]]:
    """Memory and time, with the plan's settings as they are."""
    plan.progress("texture: keyframes and frames between")
    keyframe_ms, between_ms, texture = _stepped(plan)
    interval = plan.settings.keyframes.interval
    amortised_ms = (keyframe_ms + (interval - 1) * between_ms) / interval
    plan.progress("texture: memory and mip levels")
    dense = texture.dense()
    dense_ms = median_ms(texture.dense, plan.rounds)
    pyramid_bytes = sum(texture.mip(level).nbytes for level in range(CELL_LEVEL + 1))
    compact_bytes = held_bytes(texture)
    points = torch.rand(CROPS, 2) * torch.tensor(texture.texture_wh)
    # The claims speak of 1024x1024 pixels; other sizes are held to as much a pixel.
    scale = texture.texture_wh[0] * texture.texture_wh[1] / 1024**2
    compact = f"{compact_bytes / MIB:.1f} MiB as it is kept, {dense.nbytes / compact_bytes:.0f} times less"
    claims = [
        Claim(
            "texture",
            "memory of 40 dense channels",
            160 * scale,
            dense.nbytes / MIB,
            "MiB",
            f"the tensor's bytes; {compact}",
        ),
        Claim(
            "texture",
            "memory of 40 dense channels with mip levels",
            213.4 * scale,
            pyramid_bytes / MIB,
            "MiB",
            f"bytes of levels 0 to {CELL_LEVEL}; {compact}",
        ),
        Claim(
            "texture",
            "memory of the texture as the frame loop keeps it",
            160 * scale,
            compact_bytes / MIB,
            "MiB",
            "bytes of all planes, each at the resolution at which it is known",
        ),
        Claim(
            "texture",
            "all 40 channels of an image, dense",
            4,
            keyframe_ms + dense_ms,
            "ms",
            f"a first picture, {keyframe_ms:.1f} ms, and the dense tensor, {dense_ms:.1f} ms, which the loop never "
            "builds",
            other_machine=True,
        ),
        Claim(
            "texture",
            "all 40 channels of video, dense, amortised",
            2.8,
            amortised_ms + dense_ms,
            "ms",
            f"(keyframe + {interval - 1} between) / {interval}, and the dense tensor",
            other_machine=True,
        ),
        Claim(
            "texture",
            "all 40 channels of video, as the loop keeps them",
            2.8,
            amortised_ms,
            "ms",
            f"(keyframe {keyframe_ms:.1f} ms + {interval - 1} x {between_ms:.2f} ms) / {interval}",
            other_machine=True,
        ),
        Claim(
            "texture",
            f"{CROPS} places of all 40 channels read",
            0.27,
            median_ms(lambda: texture.sample(points), plan.rounds * 4),
            "ms",
            "Texture.sample at level 0",
            other_machine=True,
        ),
        Claim(
            "texture",
            f"{POOLED_LEVELS} mip levels of 40 dense channels",
            0.5,
            median_ms(lambda: _pooled(dense, POOLED_LEVELS), plan.rounds),
            "ms",
            "average pooling by halves",
            other_machine=True,
        ),
        Claim(
            "texture",
            "the mip level that the loop reads, from the planes",
            0.5,
            _cell_level_ms(texture, plan.rounds),
            "ms",
            f"level {CELL_LEVEL} of all 40 channels, one value a cell, nothing kept from before",
            other_machine=True,
        ),
        Claim(
            "texture",
            "mip levels equal means of the dense channels",
            _EQUAL,
            mip_difference(texture, dense),
            "of the range",
            "largest difference from average pooling on levels 1 to 3, channels that are averaged",
        ),
    ]
    return claims, []


def _stepped(plan: ClaimsPlan) -> tuple[float, float, Texture]:
    """Median milliseconds of a first picture and of a frame between, without relevance and choice; and a texture."""
    keyframes = InStepKeyframes(make_generator(plan.settings, plan.threads))
    firsts: list[float] = []
    between: list[float] = []
    for _ in range(plan.rounds + 1):
        pipeline = Pipeline(
            plan.settings.with_values({"keyframes.min_confidence": 0.0, "keyframes.cut_threshold": 1.0}),
            keyframes,
            clock=time.perf_counter,
        )
        for index, frame in enumerate(plan.frames):
            patches = pipeline.step(frame)
            if index == 0:
                firsts.append(_making_ms(patches))
            else:
                between.append(_making_ms(patches))
    # The first round warms everything up.
    return float(np.median(firsts[1:])), float(np.median(between[len(plan.frames) - 1 :])), patches.texture


def _making_ms(patches: PatchSet) -> float:
    chosen = ("relevance", "selection")
    return total_ms({stage: ms for stage, ms in patches.latency_ms.items() if stage not in chosen})


def held_bytes(texture: Texture) -> int:
    """Bytes of all planes, with those that are made when first read."""
    return sum(plane.data.nbytes for _, plane in texture.all_planes())


def _pooled(dense: torch.Tensor, levels: int) -> list[torch.Tensor]:
    pooled = [dense[None]]
    for _ in range(levels):
        pooled.append(functional.avg_pool2d(pooled[-1], 2))
    return [level[0] for level in pooled[1:]]


def _cell_level_ms(texture: Texture, rounds: int) -> float:
    """Reading one value a cell, with the planes as a new frame has them: no level made yet."""

    def read() -> None:
        bare = {first: Plane(plane.first, plane.data, plane.scale) for first, plane in texture.all_planes()}
        Texture(texture.texture_wh, dict(bare)).mip(CELL_LEVEL)

    return median_ms(read, rounds)


def mip_difference(texture: Texture, dense: torch.Tensor) -> float:
    """Largest difference of levels 1 to 3 from average pooling, over the channels that are averaged."""
    averaged = [index for index, channel in enumerate(CHANNELS) if channel.interpolation != "nearest"]
    pooled = _pooled(dense[averaged], POOLED_LEVELS)
    return max(float((texture.mip(level, averaged) - means).abs().max()) for level, means in enumerate(pooled, start=1))
