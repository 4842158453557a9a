"""Scenes as batches, with what each token shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.scenes.shapes import COLOURS, TEXTURES, Scene, Thing, caption, make_scene
from benchmarks.scenes.stories import Purpose, picture_story
from tiny_clip.model import FRAME_WH, PATCH_PX, to_pixels
from tiny_clip.words import NOUNS

SIZES_WH = ((128, 128), (160, 160), (224, 224), (256, 192), (192, 256), (320, 160), (448, 256))
NEAR_TOKENS = 7
SILHOUETTE = 10
FINE = 4


@dataclass
class Truth:
    """Ground truth of each token of a batch; -1 stands for the background. All `[B, T]` but `offset`.

    Args:
        thing: Index into all things of the batch.
        shape, colour, texture: Indices into the lists of words.
        weight: 0 where a token is torn between thing and background; else such that things count alike, large or small.
        offset: `[B, T, 3]`, where the thing's centre lies from the token, and its size, in units of 4 tokens.
        near: `[B, T, NEAR_TOKENS^2]`, 1 where a token around belongs to the same thing.
        fine: `[B, T, (3 * FINE)^2]`, share that things cover of small squares (FINE by FINE a token) in and around it.
        silhouettes: `[things, SILHOUETTE^2]`, share that each thing covers of the squares around its middle.
    """

    thing: torch.Tensor
    shape: torch.Tensor
    colour: torch.Tensor
    texture: torch.Tensor
    weight: torch.Tensor
    offset: torch.Tensor
    near: torch.Tensor
    fine: torch.Tensor
    silhouettes: torch.Tensor


@dataclass
class Batch:
    pixels: torch.Tensor
    things: list[Thing]
    captions: list[str]
    truth: Truth
    window: tuple[int, int, int, int] | None


@dataclass(frozen=True)
class Lesson:
    """Difficulty of the scenes at a point of the training.

    Shapes are learned from silhouettes within minutes, silhouettes from arbitrary colours on arbitrary backgrounds are
    not. So the first pictures have dark backgrounds and light things, and harder ones are mixed in.

    Args:
        full: Share of scenes as they are.
        most: The others are drawn between 0 (light things on black) and this.
        plain: Share of the other scenes with even backgrounds and plain things.
        signs: Share of scenes with signs and photographs.
    """

    full: float
    most: float
    plain: float
    signs: float

    @classmethod
    def at(cls, spent: float) -> Lesson:
        """The lesson when a share `spent` of the training is over."""
        return cls(
            full=min(0.9, 1.8 * spent),
            most=min(1.0, 0.15 + 2 * spent),
            plain=max(0.1, 0.7 - 1.5 * spent),
            signs=min(0.5, 0.1 + 1.5 * spent),
        )


def draw_batch(rng: np.random.Generator, size: tuple[int, int], lesson: Lesson, tokens: int) -> Batch:
    rows, columns = size[1] // PATCH_PX, size[0] // PATCH_PX
    count = max(2, tokens // (rows * columns))
    most = max(2, round(rows * columns / 30))
    scenes = []
    for _ in range(count):
        diameters = (float(rng.uniform(30, 48)), float(rng.uniform(60, 150)))
        if rng.random() < lesson.signs:
            scene = scene_with_signs(rng, size, (1, most), diameters)
        else:
            scene = make_scene(rng, size, (1, most), diameter_px=diameters, plain=bool(rng.random() < lesson.plain))
        if rng.random() > lesson.full:
            scene = eased(scene, float(rng.uniform(0, lesson.most)))
        scenes.append(scene)
    # The picture is a part of a frame; now and then of a larger one, whose positions lie closer together.
    zoom = float(rng.uniform(1, 2)) if rng.random() < 0.5 else 1.0
    all_rows, all_columns = (round(zoom * side / PATCH_PX) for side in (FRAME_WH[1], FRAME_WH[0]))
    row, column = int(rng.integers(all_rows - rows + 1)), int(rng.integers(all_columns - columns + 1))
    return as_batch(scenes, rng, (all_rows, all_columns, row, column))


def scene_with_signs(
    rng: np.random.Generator,
    size_wh: tuple[int, int],
    things: tuple[int, int],
    diameter_px: tuple[float, float] = (36.0, 140.0),
    purpose: Purpose = "training",
) -> Scene:
    """Things of which some are signs, before drawn backgrounds or photographs; there is at least one."""
    while not (scene := picture_story(rng, size_wh, things, purpose=purpose, diameter_px=diameter_px).scene).things:
        pass
    return scene


def eased(scene: Scene, hardness: float) -> Scene:
    """The scene with a darker background and lighter things; 1 leaves it as it is."""
    things = np.any([thing.mask for thing in scene.things], axis=0)[..., None]
    rgb = scene.rgb.astype(np.float32)
    eased_rgb = np.where(things, 255 - (255 - rgb) * (0.5 + 0.5 * hardness), rgb * hardness)
    return Scene(eased_rgb.astype(np.uint8), scene.things)


def as_batch(scenes: Sequence[Scene], rng: np.random.Generator, window: tuple[int, int, int, int] | None) -> Batch:
    things = [thing for scene in scenes for thing in scene.things]
    height, width = scenes[0].rgb.shape[:2]
    rows, columns = height // PATCH_PX, width // PATCH_PX
    owner = np.full((len(scenes), rows * columns), -1)
    weight = np.zeros((len(scenes), rows * columns), np.float32)
    offset = np.zeros((len(scenes), rows * columns, 3), np.float32)
    r, c = np.divmod(np.arange(rows * columns), columns)
    first = 0
    for b, scene in enumerate(scenes):
        shares = np.stack([token_shares(thing.mask, rows, columns) for thing in scene.things])
        most, covered = shares.argmax(axis=0), shares.max(axis=0)
        owner[b] = np.where(covered >= 0.3, first + most, -1)
        weight[b, shares.sum(axis=0) < 0.05] = 0.06
        for i, thing in enumerate(scene.things):
            mine = owner[b] == first + i
            weight[b, mine] = 4.0 / (4.0 + mine.sum())
            x0, y0, x1, y1 = thing.box_xyxy
            offset[b, mine, 0] = ((x0 + x1) / 2 / PATCH_PX - 0.5 - c[mine]) / 4
            offset[b, mine, 1] = ((y0 + y1) / 2 / PATCH_PX - 0.5 - r[mine]) / 4
            offset[b, mine, 2] = math.sqrt((x1 - x0) * (y1 - y0)) / PATCH_PX / 4
        first += len(scene.things)
    words = np.array([[NOUNS.index(t.shape), list(COLOURS).index(t.colour), TEXTURES.index(t.texture)] for t in things])
    named = np.concatenate([words, [[-1, -1, -1]]])[owner]
    truth = Truth(
        torch.from_numpy(owner),
        *(torch.from_numpy(np.ascontiguousarray(named[..., k])) for k in range(3)),
        torch.from_numpy(weight),
        torch.from_numpy(offset),
        same_near(torch.from_numpy(owner).reshape(-1, rows, columns)),
        covered_near(scenes, rows, columns),
        torch.from_numpy(np.stack([silhouette(thing) for thing in things])),
    )
    pixels = to_pixels(np.stack([scene.rgb for scene in scenes]))
    return Batch(pixels, things, [caption(scene, rng) for scene in scenes], truth, window)


def token_shares(mask: np.ndarray[Any, Any], rows: int, columns: int) -> np.ndarray[Any, Any]:
    """`[rows * columns]`: share of each token's square that the mask covers."""
    shares = cv2.resize(mask.astype(np.float32), (columns, rows), interpolation=cv2.INTER_AREA)
    return np.asarray(shares).reshape(-1)


def same_near(owner: torch.Tensor) -> torch.Tensor:
    """`[B, T, NEAR_TOKENS^2]` from `[B, rows, columns]`."""
    batch, rows, columns = owner.shape
    reach = NEAR_TOKENS // 2
    padded = F.pad(owner, (reach, reach, reach, reach), value=-2)
    around = padded.unfold(1, NEAR_TOKENS, 1).unfold(2, NEAR_TOKENS, 1).reshape(batch, rows * columns, -1)
    return (around == owner.reshape(batch, -1, 1)).float()


def covered_near(scenes: Sequence[Scene], rows: int, columns: int) -> torch.Tensor:
    """`[B, T, (3 * FINE)^2]` in [0, 1]: how far any thing covers small squares in and around each token."""
    size_wh = (columns * FINE, rows * FINE)
    masks = (np.any([thing.mask for thing in scene.things], axis=0).astype(np.float32) for scene in scenes)
    shares = torch.from_numpy(np.stack([cv2.resize(m, size_wh, interpolation=cv2.INTER_AREA) for m in masks]))
    around = F.pad(shares, (FINE, FINE, FINE, FINE)).unfold(1, 3 * FINE, FINE).unfold(2, 3 * FINE, FINE)
    return around.reshape(len(scenes), rows * columns, -1)


def silhouette(thing: Thing) -> np.ndarray[Any, Any]:
    """`[SILHOUETTE^2]` in [0, 1]: the thing's mask in a square around its box, coarsely."""
    x0, y0, x1, y1 = thing.box_xyxy
    side = 1.1 * max(x1 - x0, y1 - y0)
    left, top = (x0 + x1 - side) / 2, (y0 + y1 - side) / 2
    fine = 3 * SILHOUETTE
    at = (np.arange(fine) + 0.5) * side / fine
    rows, columns = np.floor(top + at).astype(int), np.floor(left + at).astype(int)
    height, width = thing.mask.shape
    inside = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))
    picked = thing.mask[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)] & inside
    shares = picked.reshape(SILHOUETTE, 3, SILHOUETTE, 3).mean(axis=(1, 3))
    return shares.reshape(-1).astype(np.float32)
