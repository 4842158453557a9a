"""A scene as a stack of flat layers, each moved by one affine map a frame.

Because every visible pixel belongs to one layer, and every layer's motion is an exact affine map, masks and optical
flow follow from the maps without being estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.scenes.truth import SceneTruth, TruthWord

Floats = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
Motion = Callable[[float], "Matrix | None"]
"""Seconds to the 3x3 map from texture to frame pixels (pixel centres on whole numbers); None while absent."""

BACKGROUND = ""


@dataclass(frozen=True, eq=False)
class Layer:
    """One flat thing.

    Args:
        name: Unique in its scene.
        texture: `[h, w, 4]` float32 in [0, 1], colour multiplied by alpha.
        motion: Where it is at a time.
        thing: Name of the object that it is a part of; empty for the background.
        effect: A shadow or a glow: seen, but neither an object nor a surface that has a motion of its own.
        words: What is written on it, with four corners `[4, 2]` each in texture pixels.
    """

    name: str
    texture: Floats
    motion: Motion
    thing: str = BACKGROUND
    effect: bool = False
    words: tuple[tuple[str, Matrix], ...] = ()


@dataclass(frozen=True, eq=False)
class Scene:
    """Layers from back to front, in a frame of `size_wh` pixels."""

    name: str
    layers: tuple[Layer, ...]
    frames: int
    size_wh: tuple[int, int] = (640, 360)
    fps: int = 30
    audio: bool = False
    _scaled: float = field(default=1.0)

    def resized(self, scale: float) -> Scene:
        """The same scene in a smaller or larger frame."""
        width, height = (2 * round(side * scale / 2) for side in self.size_wh)
        return replace(self, size_wh=(width, height), _scaled=self._scaled * scale)

    def without_effects(self) -> Scene:
        """The same scene without shadows and glows, whose brightness moves over surfaces that do not."""
        return replace(self, layers=tuple(layer for layer in self.layers if not layer.effect))

    @property
    def surfaces(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if not layer.effect)

    @property
    def things(self) -> tuple[str, ...]:
        """Names of the objects in order of their first layer; object `i + 1` is `things[i]`."""
        return tuple(dict.fromkeys(layer.thing for layer in self.layers if layer.thing))

    def matrix(self, layer: Layer, frame: int) -> Matrix | None:
        """3x3 map from the layer's texture to pixels of a frame."""
        placed = layer.motion(frame / self.fps)
        if placed is None:
            return None
        shift = (self._scaled - 1) / 2
        grow = np.array([[self._scaled, 0, shift], [0, self._scaled, shift], [0, 0, 1]])
        return np.asarray(grow @ placed, np.float64)


def paint(scene: Scene, frame: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """One frame `[H, W, 3]` uint8 and, for each pixel, 1 + the index of the foremost surface that covers half of it."""
    width, height = scene.size_wh
    canvas = np.zeros((height, width, 3), np.float32)
    labels = np.zeros((height, width), np.uint8)
    surfaces = {id(layer): index for index, layer in enumerate(scene.surfaces)}
    for layer in scene.layers:
        matrix = scene.matrix(layer, frame)
        if matrix is None:
            continue
        box = _covered(layer.texture, matrix, scene.size_wh)
        if box is None:
            continue
        patch = _warp(layer.texture, matrix, box)
        x0, y0, x1, y1 = box
        alpha = patch[..., 3:]
        canvas[y0:y1, x0:x1] = canvas[y0:y1, x0:x1] * (1 - alpha) + patch[..., :3]
        if not layer.effect:
            labels[y0:y1, x0:x1][alpha[..., 0] >= 0.5] = 1 + surfaces[id(layer)]
    if not labels.all():
        raise ValueError(f"{scene.name}, frame {frame}: the background leaves {int((labels == 0).sum())} pixels bare")
    return np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8), labels


def render(scene: Scene) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]:
    """Frames with their surface labels, in order."""
    return (paint(scene, frame) for frame in range(scene.frames))


def truth_of(scene: Scene, labels: npt.NDArray[np.uint8]) -> SceneTruth:
    """Return the ground truth of a rendered scene; `labels` is `[T, H, W]` as `paint` gives it."""
    surfaces = scene.surfaces
    affines = np.full((scene.frames, len(surfaces), 2, 3), np.nan)
    for frame in range(scene.frames):
        for index, layer in enumerate(surfaces):
            matrix = scene.matrix(layer, frame)
            if matrix is not None:
                affines[frame, index] = matrix[:2]
    things = scene.things
    words = tuple(
        TruthWord(text, index, np.asarray(corners, np.float64))
        for index, layer in enumerate(surfaces)
        for text, corners in layer.words
    )
    return SceneTruth(
        fps=float(scene.fps),
        labels=labels,
        affines=affines,
        layer_names=tuple(layer.name for layer in surfaces),
        layer_objects=tuple(things.index(layer.thing) + 1 if layer.thing else 0 for layer in surfaces),
        object_names=things,
        words=words,
    )


def _covered(texture: Floats, matrix: Matrix, size_wh: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """The part of the frame that a layer can touch, as x0, y0, x1, y1."""
    height, width = texture.shape[:2]
    corners = np.array([[-1, width, width, -1], [-1, -1, height, height], [1, 1, 1, 1]], np.float64)
    x, y = (matrix @ corners)[:2]
    x0, y0 = max(0, int(np.floor(x.min()))), max(0, int(np.floor(y.min())))
    x1, y1 = min(size_wh[0], int(np.ceil(x.max())) + 1), min(size_wh[1], int(np.ceil(y.max())) + 1)
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None


def _warp(texture: Floats, matrix: Matrix, box: tuple[int, int, int, int]) -> Floats:
    x0, y0, x1, y1 = box
    moved = np.array([[1, 0, -x0], [0, 1, -y0], [0, 0, 1]], np.float64) @ matrix
    warped = cv2.warpAffine(
        texture, moved[:2], (x1 - x0, y1 - y0), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT
    )
    return np.asarray(warped, np.float32)


Track = Callable[[float], float]


def shift(x: float, y: float) -> Matrix:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)


def scale(x: float, y: float | None = None) -> Matrix:
    return np.diag([x, x if y is None else y, 1.0])


def turn(degrees: float) -> Matrix:
    """Clockwise on the screen."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]], np.float64)


def about(x: float, y: float, matrix: Matrix) -> Matrix:
    """The map applied with (x, y) of the texture as its origin, which it brings to the frame's origin."""
    return matrix @ shift(-x, -y)


def fixed(matrix: Matrix) -> Motion:
    return lambda _: matrix


def during(start: float, end: float, motion: Motion) -> Motion:
    """Absent outside [start, end) seconds."""
    return lambda t: motion(t) if start <= t < end else None


def before(camera: Motion, world: Motion) -> Motion:
    """A thing that moves in a world which a camera looks at."""

    def seen(t: float) -> Matrix | None:
        view, place = camera(t), world(t)
        return None if view is None or place is None else view @ place

    return seen


def wave(middle: float, swing: float, period: float, phase: float = 0.0) -> Track:
    return lambda t: middle + swing * float(np.sin(2 * np.pi * (t / period + phase)))


def ease(start: float, end: float, seconds: float) -> Track:
    """Move smoothly from one value to another, then rest."""

    def track(t: float) -> float:
        s = min(max(t / seconds, 0.0), 1.0)
        return start + (end - start) * s * s * (3 - 2 * s)

    return track
