"""Claims about the texture: its memory, making its 40 channels, mip levels, and reading places."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from arr_stream.consumer import total_ms
from arr_stream.evaluation.tables import ResultTable
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.texture.array import CELL_LEVEL, Plane, Texture
from arr_stream.texture.layout import CHANNELS
from benchmarks.claims.base import Claim, ClaimsPlan, median_ms
from benchmarks.query import CROPS

_claim = partial(Claim, "texture")
MIB = 1 << 20
POOLED_LEVELS = 3
_EQUAL = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What making all channels takes, medians in milliseconds.

    Args:
        first_ms, between_ms: What the loop makes of a first picture and of a frame between, relevance and choice left
            out.
        first_unread_ms, between_unread_ms: Beside that, the channels that nobody has read by then, which the loop
            would not make.
        texture: Of the last frame, with all planes made.
    """

    first_ms: float
    between_ms: float
    first_unread_ms: float
    between_unread_ms: float
    texture: Texture

    @property
    def all_first_ms(self) -> float:
        return self.first_ms + self.first_unread_ms

    @property
    def all_between_ms(self) -> float:
        return self.between_ms + self.between_unread_ms

    def amortised_ms(self, interval: int) -> float:
        """A frame with all of its channels, and its share of the keyframe."""
        return (self.all_first_ms + (interval - 1) * self.all_between_ms) / interval


def texture_claims(plan: ClaimsPlan) -> tuple[list[Claim], list[ResultTable]]:
    """Memory and time, with the plan's settings as they are."""
    plan.progress("texture: keyframes and frames between")
    made = stepped(plan)
    texture, interval = made.texture, plan.settings.keyframes.interval
    amortised_ms = made.amortised_ms(interval)
    channels = f"channels 18 to 33 hold `{plan.settings.keyframes.embeddings}`"
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
        _claim(
            "memory of 40 dense channels",
            160 * scale,
            dense.nbytes / MIB,
            "MiB",
            f"the tensor's bytes; {compact}",
            by_construction=True,
        ),
        _claim(
            "memory of 40 dense channels with mip levels",
            213.4 * scale,
            pyramid_bytes / MIB,
            "MiB",
            f"bytes of levels 0 to {CELL_LEVEL}; {compact}",
            by_construction=True,
        ),
        _claim(
            "memory of the texture as the frame loop keeps it",
            160 * scale,
            compact_bytes / MIB,
            "MiB",
            "bytes of all planes, each at the resolution at which it is known",
        ),
        _claim(
            "all 40 channels of an image, dense",
            4,
            made.all_first_ms + dense_ms,
            "ms",
            f"a first picture, {made.first_ms:.1f} ms, channels that nobody read on it, {made.first_unread_ms:.1f} ms, "
            f"and the dense tensor, {dense_ms:.1f} ms, which the loop never builds; {channels}",
            other_machine=True,
        ),
        _claim(
            "all 40 channels of video, dense, amortised",
            2.8,
            amortised_ms + dense_ms,
            "ms",
            f"(keyframe + {interval - 1} between) / {interval}, each with the channels that nobody read, and the "
            f"dense tensor; {channels}",
            other_machine=True,
        ),
        _claim(
            "all 40 channels of video, as the loop keeps them",
            2.8,
            amortised_ms,
            "ms",
            f"(keyframe {made.all_first_ms:.1f} ms + {interval - 1} x {made.all_between_ms:.2f} ms) / {interval}, "
            f"{made.first_unread_ms:.1f} and {made.between_unread_ms:.2f} ms of them for channels that nobody read, "
            f"which the loop does not make; {channels}",
            other_machine=True,
        ),
        _claim(
            f"{CROPS} places of all 40 channels read",
            0.27,
            median_ms(lambda: texture.sample(points), plan.rounds * 4),
            "ms",
            "Texture.sample at level 0",
            other_machine=True,
        ),
        _claim(
            f"{POOLED_LEVELS} mip levels of 40 dense channels",
            0.5,
            median_ms(lambda: _pooled(dense, POOLED_LEVELS), plan.rounds),
            "ms",
            "average pooling by halves",
            other_machine=True,
        ),
        _claim(
            "the mip level that the loop reads, from the planes",
            0.5,
            _cell_level_ms(texture, plan.rounds),
            "ms",
            f"level {CELL_LEVEL} of all 40 channels, one value a cell, nothing kept from before",
            other_machine=True,
        ),
        _claim(
            "mip levels equal means of the dense channels",
            _EQUAL,
            mip_difference(texture, dense),
            "of the range",
            "largest difference from average pooling on levels 1 to 3, channels that are averaged",
            own_limit=True,
        ),
    ]
    return claims, []


def stepped(plan: ClaimsPlan) -> Made:
    """Run the plan's clip in rounds, and make every channel of every frame."""
    keyframes = InStepKeyframes(make_generator(plan.settings, plan.threads))
    firsts: list[tuple[float, float]] = []
    between: list[tuple[float, float]] = []
    for _ in range(plan.rounds + 1):
        pipeline = Pipeline(
            plan.settings.with_values({"keyframes.min_confidence": 0.0, "keyframes.cut_threshold": 1.0}),
            keyframes,
            clock=time.perf_counter,
        )
        for index, frame in enumerate(plan.frames):
            patches = pipeline.step(frame)
            started = time.perf_counter()
            patches.texture.all_planes()
            unread_ms = (time.perf_counter() - started) * 1e3
            (between if index else firsts).append((_making_ms(patches), unread_ms))
    # The first round warms everything up.
    first_ms, first_unread_ms = np.median(firsts[1:], axis=0).tolist()
    between_ms, between_unread_ms = np.median(between[len(plan.frames) - 1 :], axis=0).tolist()
    return Made(first_ms, between_ms, first_unread_ms, between_unread_ms, patches.texture)


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
