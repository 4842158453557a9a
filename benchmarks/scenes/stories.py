"""Drawn pictures and clips that questions can be asked of: shapes and signs, of which some move, come in or leave.

A story is what a camera at rest sees, with the place of every thing on every frame; a picture is a story of one frame.
Backgrounds are drawn, or photographs that scikit-image carries: others for training, for tuning and for reporting
(`SCENERIES`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.draw import typeface
from arr_stream.types import CELL_PX, ByteArray, FloatArray
from benchmarks.scenes.drawing import photograph
from benchmarks.scenes.shapes import (
    COLOURS,
    LARGE_ABOVE_PX,
    SMALL_BELOW_PX,
    Plan,
    Scene,
    named,
    painted,
    random_background,
    random_plan,
)

Purpose = Literal["training", "tuning", "reporting"]
Way = Literal["left", "right", "up", "down"]

SCENERIES: dict[Purpose, tuple[str, ...]] = {
    "training": ("coffee", "rocket", "gravel", "brick", "camera", "coins", "moon", "motorcycle_left"),
    "tuning": ("hubble_deep_field", "page"),
    "reporting": ("astronaut", "chelsea", "grass"),
}
"""Photographs of `skimage.data` behind the things."""

SIGN = "sign"
SIGN_COLOURS = ("yellow", "white", "green", "blue", "red", "black")
SIGN_WORDS = (
    *("EXIT", "OPEN", "CAFE", "PIZZA", "STOP", "TAXI", "BUS", "SHOP", "BANK", "HOTEL"),
    *("PARK", "FIRE", "SALE", "MILK", "BREAD", "FISH", "ZOO", "TOUR", "WEST", "EAST"),
)

_WAYS: dict[Way, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
_MARGIN_PX = 6


@dataclass(frozen=True, slots=True, eq=False)
class Actor:
    """A thing of a story.

    Args:
        colour: A key of `COLOURS`.
        shape: One of `benchmarks.scenes.shapes.SHAPES`, or `sign`.
        text: What a sign says; empty for shapes.
        diameter_px: Of shapes; the height of signs.
        moves: Which way it goes all the time; None for one that stays.
        frames: `[first, end)`, the frames on which it is there.
        middle_xy: `[T, 2]` pixels; off the frame while it slides in or out.
        area_px: How many pixels it covers when it is seen whole.
        letters_px: How far the middle of each letter of its text is to the right of its own.
        texture: One of `benchmarks.scenes.shapes.TEXTURES`.
    """

    colour: str
    shape: str
    text: str
    diameter_px: float
    moves: Way | None
    frames: tuple[int, int]
    middle_xy: npt.NDArray[np.float64]
    area_px: int
    letters_px: tuple[float, ...] = ()
    texture: str = "plain"

    @property
    def size(self) -> str | None:
        """`small` or `large`; None for what lies between, and for signs."""
        if self.shape == SIGN or SMALL_BELOW_PX * 0.9 < self.diameter_px < LARGE_ABOVE_PX * 1.1:
            return None
        return "small" if self.diameter_px < LARGE_ABOVE_PX else "large"

    @property
    def phrase(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """Frames, and what is on them.

    Args:
        frames: `[T, H, W, 3]` uint8.
        labels: `[T, H, W]` uint8, 1 + the number of the actor that a pixel shows; 0 for the background.
        actors: What is in it.
    """

    frames: ByteArray
    labels: ByteArray
    actors: tuple[Actor, ...]

    @property
    def size_wh(self) -> tuple[int, int]:
        return self.frames.shape[2], self.frames.shape[1]

    @property
    def scene(self) -> Scene:
        """The first frame as a scene."""
        things = []
        for number, one in enumerate(self.actors, start=1):
            x, y = one.middle_xy[0]
            mask = self.labels[0] == number
            things.append(named(one.colour, one.shape, one.texture, one.diameter_px, (x, y), mask))
        return Scene(self.frames[0], tuple(things))

    def there(self, actor: Actor, frame: int) -> bool:
        return actor.frames[0] <= frame < actor.frames[1]


def cell_shares(labels: ByteArray, actors: int) -> FloatArray:
    """`[actors, gh, gw]`: the share of each cell that shows each of them.

    Args:
        labels: `[32 gh, 32 gw]`, those of one frame.
        actors: How many there are.
    """
    height, width = labels.shape
    tiles = labels.reshape(height // CELL_PX, CELL_PX, width // CELL_PX, CELL_PX)
    shares = [(tiles == number).mean(axis=(1, 3), dtype=np.float32) for number in range(1, actors + 1)]
    return np.asarray(shares, np.float32).reshape(actors, height // CELL_PX, width // CELL_PX)


@dataclass(frozen=True, slots=True, eq=False)
class _Panel:
    """A sign as it is painted: `[h, w, 3]`, and where its letters are, as `Actor.letters_px`."""

    rgb: ByteArray
    letters_px: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Cast:
    """An actor and how to paint it."""

    actor: Actor
    look: Plan | _Panel

    @property
    def half_wh(self) -> tuple[float, float]:
        if isinstance(self.look, _Panel):
            height, width = self.look.rgb.shape[:2]
            return width / 2, height / 2
        return self.look.radius_px, self.look.radius_px


def picture_story(
    rng: np.random.Generator,
    size_wh: tuple[int, int],
    things: tuple[int, int] = (1, 6),
    *,
    purpose: Purpose = "reporting",
    diameter_px: tuple[float, float] = (36.0, 140.0),
    signs: float = 0.3,
) -> Story:
    """One frame with so many things; fewer where there is no room."""
    return _told(rng, size_wh, 1, int(rng.integers(things[0], things[1] + 1)), 0, 0, purpose, diameter_px, signs=signs)


def clip_story(
    rng: np.random.Generator,
    size_wh: tuple[int, int],
    frames: int,
    things: tuple[int, int] = (2, 5),
    *,
    purpose: Purpose = "reporting",
    diameter_px: tuple[float, float] = (36.0, 110.0),
    each: int = 1,
    events: bool = False,
    signs: float = 0.3,
) -> Story:
    """Frames of a clip, in which one thing moves, or some come in and some leave.

    Args:
        rng: Source of all randomness.
        size_wh: Of the frames.
        frames: How many.
        things: Fewest and most.
        purpose: What the clip is for.
        diameter_px: Smallest and largest.
        each: Frames of a half second; a visit of a thing takes at least a second.
        events: Something comes in or leaves for certain.
        signs: Share of the things that are signs.
    """
    count = int(rng.integers(things[0], things[1] + 1))
    if not events and rng.random() < 0.4:
        return _told(rng, size_wh, frames, count, 1, 0, purpose, diameter_px, each, signs=signs)
    changing = int(rng.integers(1, max(2, count)))
    return _told(rng, size_wh, frames, count, 0, changing, purpose, diameter_px, each, signs=signs)


def _told(
    rng: np.random.Generator,
    size_wh: tuple[int, int],
    frames: int,
    count: int,
    moving: int,
    changing: int,
    purpose: Purpose,
    diameter_px: tuple[float, float],
    each: int = 1,
    *,
    signs: float,
) -> Story:
    background = _behind(rng, size_wh, purpose)
    cast: list[_Cast] = []
    for number in range(count):
        for _ in range(12):
            look, colour, shape, text = _look(rng, background, size_wh, diameter_px, signs)
            placed = _placed(
                rng,
                look,
                (colour, shape, text),
                size_wh,
                frames,
                each,
                moves=number < moving,
                changes=moving <= number < moving + changing,
            )
            if all(_apart(placed, other) for other in cast) and _stands_out(background, placed):
                cast.append(placed)
                break
    noise = float(rng.uniform(0, 5))
    pictures = [_painted_frame(rng, background, cast, frame, noise) for frame in range(frames)]
    return Story(
        np.stack([rgb for rgb, _ in pictures]),
        np.stack([labels for _, labels in pictures]),
        tuple(one.actor for one in cast),
    )


def _look(
    rng: np.random.Generator,
    background: ByteArray,
    size_wh: tuple[int, int],
    diameter_px: tuple[float, float],
    signs: float,
) -> tuple[Plan | _Panel, str, str, str]:
    """Draw an actor's appearance, with its colour, shape and text."""
    if rng.random() < signs and size_wh[0] >= 192:
        text = str(rng.integers(100)) if rng.random() < 0.5 else str(rng.choice(SIGN_WORDS))
        colour = str(rng.choice(SIGN_COLOURS))
        return _panel(rng, text, colour, size_wh[0]), colour, SIGN, text
    largest = min(diameter_px[1], 0.6 * min(size_wh))
    smallest = min(diameter_px[0], largest)
    radius = (smallest + (largest - smallest) * float(rng.random()) ** 1.3) / 2
    middle = float(rng.uniform(radius, size_wh[0] - radius)), float(rng.uniform(radius, size_wh[1] - radius))
    plan = random_plan(rng, background, middle, radius, False)
    return plan, plan.colour, plan.shape, ""


def _panel(rng: np.random.Generator, text: str, colour: str, room_px: int) -> _Panel:
    """Text on a plate with a border."""
    size_px = int(rng.integers(20, 45))
    while (width := typeface.width_px(text, size_px, bold=True) + size_px) > 0.45 * room_px and size_px > 16:
        size_px -= 2
    face = np.clip(np.array(COLOURS[colour]) + rng.uniform(-10, 10, 3), 0, 255)
    dark = 0.3 * face[0] + 0.6 * face[1] + 0.1 * face[2] < 140
    ink = (250, 250, 250) if dark else (16, 16, 16)
    height = round(1.6 * size_px)
    panel = np.full((height, width, 3), face, np.uint8)
    cv2.rectangle(panel, (2, 2), (width - 3, height - 3), ink, 1)
    ascent, _ = typeface.font(size_px, bold=True).getmetrics()
    baseline = (height + math.ceil(0.73 * size_px)) // 2
    typeface.draw(panel, text, (size_px // 2, baseline - ascent), size_px, ink, bold=True)
    ends = [size_px // 2 + typeface.width_px(text[:n], size_px, bold=True) for n in range(len(text) + 1)]
    letters = tuple((begin + end - width) / 2 for begin, end in itertools.pairwise(ends))
    return _Panel(panel, letters)


def _placed(
    rng: np.random.Generator,
    look: Plan | _Panel,
    names: tuple[str, str, str],
    size_wh: tuple[int, int],
    frames: int,
    each: int,
    *,
    moves: bool,
    changes: bool,
) -> _Cast:
    """Somewhere in the frame, on its way through it, or there for a part of the time."""
    half = np.array(_Cast(_NOBODY, look).half_wh)
    room = np.maximum(np.array(size_wh) - 2 * half - 2 * _MARGIN_PX, 1.0)
    start = half + _MARGIN_PX + rng.random(2) * room
    middle = np.tile(start, (frames, 1))
    way: Way | None = None
    first, end = 0, frames
    if moves and frames > 1:
        way = tuple(_WAYS)[int(rng.integers(4))]
        axis, sign = (0, _WAYS[way][0]) if _WAYS[way][0] else (1, _WAYS[way][1])
        reach = room[axis] * rng.uniform(0.4, 0.95)
        begin = half[axis] + _MARGIN_PX + rng.random() * (room[axis] - reach)
        line = np.linspace(begin, begin + reach, frames)
        middle[:, axis] = line if sign > 0 else line[::-1]
    elif changes and frames >= 4 * each:
        kind = rng.integers(3)
        if kind != 1:
            first = int(rng.integers(each, frames - 3 * each + 1))
        if kind != 0:
            end = int(rng.integers(first + 2 * each, frames - each + 1))
        if rng.random() < 0.5:
            middle = _slid(middle, first, end, 2 * each, size_wh, half)
    area = round(math.prod(2 * half)) if isinstance(look, _Panel) else _plan_area(look)
    diameter = 2 * float(half[1])
    letters, texture = (look.letters_px, "plain") if isinstance(look, _Panel) else ((), look.texture)
    return _Cast(Actor(*names, diameter, way, (first, end), middle, area, letters, texture), look)


_NOBODY = Actor("", "", "", 0.0, None, (0, 0), np.zeros((0, 2)), 0)


def _slid(
    middle: npt.NDArray[np.float64],
    first: int,
    end: int,
    steps: int,
    size_wh: tuple[int, int],
    half: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The same place, reached from the nearer side and left over it, where it is not there from first to last."""
    slid, frames = middle.copy(), len(middle)
    x = middle[0, 0]
    outside = -half[0] if x < size_wh[0] / 2 else size_wh[0] + half[0]
    for step in range(steps):
        share = (step + 1) / (steps + 1)
        if first > 0 and first + step < end - 1:
            slid[first + step, 0] = outside + share * (x - outside)
        if end < frames and end - 1 - step > first:
            slid[end - 1 - step, 0] = outside + share * (x - outside)
    return slid


def _plan_area(plan: Plan) -> int:
    reach = math.ceil(1.2 * plan.radius_px)
    found = painted(replace(plan, centre_xy=(reach, reach)), (2 * reach, 2 * reach))
    return int((found[1] >= 0.5).sum()) if found is not None else 0


def _apart(one: _Cast, other: _Cast) -> bool:
    """Never on each other, whenever they are there."""
    reach = np.add(one.half_wh, other.half_wh) + 4
    distance = np.abs(one.actor.middle_xy - other.actor.middle_xy)
    return bool((distance > reach).any(axis=1).all())


def _stands_out(background: ByteArray, cast: _Cast) -> bool:
    """Return whether most of the pixels behind an actor have another colour."""
    rgb = np.array(COLOURS[cast.actor.colour], np.float32) if isinstance(cast.look, _Panel) else cast.look.rgb
    (hw, hh), (x, y) = cast.half_wh, cast.actor.middle_xy[len(cast.actor.middle_xy) // 2]
    around = background[max(0, int(y - hh)) : int(y + hh), max(0, int(x - hw)) : int(x + hw)].reshape(-1, 3)
    behind = around[:: max(1, len(around) // 200)].astype(np.float32)
    return len(behind) > 0 and float(np.mean(np.abs(behind - rgb).sum(axis=1) < 90)) < 0.25


def _painted_frame(
    rng: np.random.Generator, background: ByteArray, cast: Sequence[_Cast], frame: int, noise: float
) -> tuple[ByteArray, ByteArray]:
    height, width = background.shape[:2]
    canvas = background.astype(np.float32)
    labels = np.zeros((height, width), np.uint8)
    for number, one in enumerate(cast, start=1):
        if not one.actor.frames[0] <= frame < one.actor.frames[1]:
            continue
        x, y = one.actor.middle_xy[frame]
        if isinstance(one.look, _Panel):
            h, w = one.look.rgb.shape[:2]
            left, top = round(x - w / 2), round(y - h / 2)
            x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + w, width), min(top + h, height)
            if x1 > x0 and y1 > y0:
                canvas[y0:y1, x0:x1] = one.look.rgb[y0 - top : y1 - top, x0 - left : x1 - left]
                labels[y0:y1, x0:x1] = number
            continue
        found = painted(replace(one.look, centre_xy=(float(x), float(y))), (width, height))
        if found is not None:
            (x0, y0, x1, y1), alpha, rgb = found
            canvas[y0:y1, x0:x1] += alpha[..., None] * (rgb - canvas[y0:y1, x0:x1])
            labels[y0:y1, x0:x1][alpha >= 0.5] = number
    if noise > 0:
        grain = np.empty((height, width), np.float32)
        cv2.setRNGSeed(int(rng.integers(2**31 - 1)))
        cv2.randn(grain, 0, noise)
        canvas += grain[..., None]
    return np.clip(canvas, 0, 255).astype(np.uint8), labels


def _behind(rng: np.random.Generator, size_wh: tuple[int, int], purpose: Purpose) -> ByteArray:
    """A drawn background, or a piece of a photograph with less contrast than it had."""
    if rng.random() < 0.55:
        return random_background(rng, size_wh, False)
    picture = _scenery(str(rng.choice(SCENERIES[purpose])))
    height, width = picture.shape[:2]
    aspect = size_wh[0] / size_wh[1]
    most = min(width, height * aspect)
    w = float(rng.uniform(0.45, 1.0)) * most
    h = w / aspect
    x, y = int(rng.random() * (width - w)), int(rng.random() * (height - h))
    cut = picture[y : y + int(h), x : x + int(w)]
    if rng.random() < 0.5:
        cut = cut[:, ::-1]
    scaled = cv2.resize(np.ascontiguousarray(cut), size_wh, interpolation=cv2.INTER_AREA).astype(np.float32)
    mean = scaled.mean(axis=(0, 1))
    faded = mean + (scaled - mean) * float(rng.uniform(0.35, 1.0)) + float(rng.uniform(-25, 25))
    behind: ByteArray = np.clip(faded, 0, 255).astype(np.uint8)
    return behind


@lru_cache(maxsize=16)
def _scenery(name: str) -> ByteArray:
    if name == "motorcycle_left":
        from skimage import data

        picture = data.stereo_motorcycle()[0]  # type: ignore[no-untyped-call]
    else:
        picture = photograph(name)
    return np.repeat(picture[..., None], 3, axis=2) if picture.ndim == 2 else np.ascontiguousarray(picture[..., :3])
