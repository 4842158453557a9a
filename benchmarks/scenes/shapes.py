"""Generated scenes whose every word can be checked: coloured, textured shapes on busy backgrounds, with exact masks.

A scene is made of a background and a few things. Each thing has a colour, a shape, a texture, a size and a place, and
the mask of what is seen of it. Backgrounds use the same colours as the things do, so that a colour alone does not tell
a thing from what lies behind it, and a thing's colour is only required to differ from what is right around it.

The same drawing serves still scenes (`make_scene`) and clips (`moving_scene`), where things drift, turn and grow and
the camera pans, all by fractions of a pixel.

Coordinates are continuous pixels: the first pixel spans 0 to 1, its centre is at 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.types import BoolArray, ByteArray, FloatArray

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 34, 38),
    "orange": (244, 134, 22),
    "yellow": (242, 220, 40),
    "green": (34, 156, 58),
    "cyan": (44, 206, 214),
    "blue": (32, 72, 212),
    "purple": (126, 42, 160),
    "pink": (244, 140, 190),
    "white": (244, 244, 244),
    "black": (18, 18, 20),
}
"""Colour words and the RGB that each varies around."""

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "arrow")
TEXTURES = ("plain", "striped", "dotted", "checked")

SMALL_BELOW_PX = 64
LARGE_ABOVE_PX = 100
"""Diameters, in pixels, below and above which a thing is called small and large."""

MOST_TILT = 0.35
"""Radians (20 degrees) by which things stand aslant at most: squares are no diamonds, and arrows point right."""

_SUPERSAMPLING = 3
_FIXED_POINT_BITS = 4
_PLACES = {
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
    "centre": "in the centre",
}


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """A thing in a scene.

    Args:
        colour: A key of `COLOURS`.
        shape: One of `SHAPES`.
        texture: One of `TEXTURES`.
        size_word: `small`, `medium` or `large`, see `SMALL_BELOW_PX` and `LARGE_ABOVE_PX`.
        place_word: `left`, `right`, `top`, `bottom` or `centre`.
        mask: `[H, W]`, where it is seen (at least half of the pixel is its own); empty when hidden or out of frame.
        box_xyxy: Box around the mask in pixels; zeros when the mask is empty.
    """

    colour: str
    shape: str
    texture: str
    size_word: str
    place_word: str
    mask: BoolArray
    box_xyxy: tuple[int, int, int, int]

    def phrase(
        self,
        *,
        size: bool = False,
        texture: bool = False,
        colour: bool = True,
        shape: bool = True,
        place: bool = False,
    ) -> str:
        """Words for the thing, without an article: `red circle`, `small striped red circle on the left`, `red thing`.

        A plain texture is said only where `texture` is asked for, as "plain".
        """
        words = [
            self.size_word if size else "",
            self.texture if texture else "",
            self.colour if colour else "",
            self.shape if shape else "thing",
            _PLACES[self.place_word] if place else "",
        ]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A picture and what is in it.

    Args:
        rgb: `[H, W, 3]` uint8.
        things: In the order in which they were painted; a later one hides an earlier one where they meet.
    """

    rgb: ByteArray
    things: tuple[Thing, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Appearance and place of a thing, independent of the camera."""

    colour: str
    shape: str
    texture: str
    rgb: FloatArray
    second_rgb: FloatArray
    outline: tuple[FloatArray, ...]
    centre_xy: tuple[float, float]
    radius_px: float
    angle: float
    period_px: float
    texture_angle: float
    slope_xy: tuple[float, float]


def make_scene(
    rng: np.random.Generator,
    size_wh: tuple[int, int] = (448, 256),
    things: tuple[int, int] = (2, 6),
    *,
    diameter_px: tuple[float, float] = (40.0, 140.0),
    plain: bool = False,
) -> Scene:
    """A random scene.

    Args:
        rng: Source of all randomness; the same state gives the same scene.
        size_wh: Size of the picture.
        things: Fewest and most things; fewer are drawn where there is no room left.
        diameter_px: Smallest and largest diameter of a thing; at most 0.9 of the shorter side.
        plain: An even background and plain textures.

    Returns:
        The scene; at least 0.6 of every thing is seen, and there is at least one.
    """
    background = random_background(rng, size_wh, plain)
    plans = _plans(rng, background, size_wh, things, diameter_px, plain)
    return _draw(background, plans, noise=float(rng.uniform(0, 6)), rng=rng)


def moving_scene(
    rng: np.random.Generator,
    size_wh: tuple[int, int] = (448, 256),
    frames: int = 60,
    things: tuple[int, int] = (2, 6),
) -> Iterator[Scene]:
    """Frames of a clip: the same things in every frame, each drifting, turning and growing; the camera pans.

    Speeds are up to about 3 px a frame for things and 2 px for the camera. A thing may be hidden by another for a
    while; it then stays in `things` with a smaller or empty mask.
    """
    margin = 48
    width, height = size_wh
    wide = random_background(rng, (width + 2 * margin, height + 2 * margin), plain=False)
    inner = np.ascontiguousarray(wide[margin:-margin, margin:-margin])
    plans = _plans(rng, inner, size_wh, things, (40.0, 140.0), plain=False)
    sways = [_Sway.random(rng, reach_px=45.0) for _ in plans]
    camera = _Sway.random(rng, reach_px=margin * 0.6)
    noise = float(rng.uniform(0, 5))
    for frame in range(frames):
        pan = camera.offset(frame)
        shift = np.array([[1, 0, -margin - pan[0]], [0, 1, -margin - pan[1]]], dtype=np.float64)
        background = cv2.warpAffine(wide, shift, size_wh, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        moved = [sway.moved(plan, frame, pan) for plan, sway in zip(plans, sways, strict=True)]
        yield _draw(np.asarray(background, dtype=np.uint8), moved, noise=noise, rng=rng)


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """A thing that comes in from the left or the right, and is whole in view from a frame on."""

    plan: Plan
    whole_at: int
    speed_px: float

    @classmethod
    def random(
        cls, rng: np.random.Generator, background: ByteArray, level: float, whole_at: int, named: set[tuple[str, str]]
    ) -> _Newcomer:
        """One of a colour and shape that is not among those `named`."""
        radius, side = float(rng.uniform(30, 50)), float(rng.integers(2) * background.shape[1])
        plan = random_plan(rng, background, (side, level), radius, plain=False)
        while (plan.colour, plan.shape) in named:
            plan = random_plan(rng, background, (side, level), radius, plain=False)
        return cls(plan, whole_at, float(rng.uniform(4, 8)))

    def moved(self, frame: int, width: int) -> Plan:
        x, y = self.plan.centre_xy
        inside_px = 1.05 * self.plan.radius_px + self.speed_px * (frame - self.whole_at)
        return replace(self.plan, centre_xy=(inside_px if x == 0 else width - inside_px, y))


def caption(scene: Scene, rng: np.random.Generator, *, most: int = 4) -> str:
    """A sentence about at most `most` things of the scene, in any order, each with some of its attributes."""
    order = rng.permutation(len(scene.things))[:most]
    parts = []
    for i in order:
        said = rng.random(4)
        phrase = scene.things[i].phrase(
            size=said[0] < 0.25,
            texture=said[1] < 0.35 and scene.things[i].texture != "plain",
            place=said[2] < 0.15 and len(order) < 3,
        )
        article = "an" if phrase[0] in "aeiou" else "a"
        parts.append(f"{article if said[3] < 0.8 else 'the'} {phrase}")
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


@dataclass(frozen=True, slots=True)
class _Sway:
    """A smooth path around a starting place, where it is on frame 0."""

    reach_xy: tuple[float, float]
    rate_xy: tuple[float, float]
    phase_xy: tuple[float, float]
    tilt: float
    growth: float

    @classmethod
    def random(cls, rng: np.random.Generator, reach_px: float) -> _Sway:
        reach = rng.uniform(0.3, 1.0, 2) * reach_px
        rate = rng.uniform(0.02, 0.06, 2)
        phase = rng.uniform(0, 2 * math.pi, 2)
        tilt = rng.uniform(-MOST_TILT, MOST_TILT)
        return cls(_pair(reach), _pair(rate), _pair(phase), float(tilt), float(rng.uniform(0, 0.12)))

    def offset(self, frame: int) -> tuple[float, float]:
        x, y = (
            reach * (math.sin(rate * frame + phase) - math.sin(phase))
            for reach, rate, phase in zip(self.reach_xy, self.rate_xy, self.phase_xy, strict=True)
        )
        return x / 2, y / 2

    def moved(self, plan: Plan, frame: int, pan_xy: tuple[float, float]) -> Plan:
        x, y = self.offset(frame)
        return replace(
            plan,
            centre_xy=(plan.centre_xy[0] + x - pan_xy[0], plan.centre_xy[1] + y - pan_xy[1]),
            angle=plan.angle + self.tilt * math.sin(self.rate_xy[1] * frame),
            radius_px=plan.radius_px * (1 + self.growth * math.sin(self.rate_xy[0] * frame)),
        )


def _plans(
    rng: np.random.Generator,
    background: ByteArray,
    size_wh: tuple[int, int],
    things: tuple[int, int],
    diameter_px: tuple[float, float],
    plain: bool,
) -> list[Plan]:
    """Things with room between them; each try that finds no room is made smaller."""
    width, height = size_wh
    largest = min(diameter_px[1], 0.9 * min(size_wh)) / 2
    smallest = min(diameter_px[0] / 2, largest)
    wanted = int(rng.integers(things[0], things[1] + 1))
    plans: list[Plan] = []
    for _ in range(wanted):
        radius = smallest + (largest - smallest) * float(rng.random()) ** 1.3
        for attempt in range(20):
            inset = 0.75 * radius
            centre = (float(rng.uniform(inset, width - inset)), float(rng.uniform(inset, height - inset)))
            if all(math.dist(centre, p.centre_xy) > 0.9 * (radius + p.radius_px) for p in plans):
                plans.append(random_plan(rng, background, centre, radius, plain))
                break
            if attempt % 4 == 3:
                radius = max(smallest, 0.8 * radius)
    return plans


def random_plan(
    rng: np.random.Generator, background: ByteArray, centre_xy: tuple[float, float], radius_px: float, plain: bool
) -> Plan:
    x, y = (int(c) for c in centre_xy)
    reach = int(radius_px)
    around = background[max(0, y - reach) : y + reach, max(0, x - reach) : x + reach].reshape(-1, 3)
    behind = around[:: max(1, len(around) // 200)].astype(np.float32)
    names = list(COLOURS)
    for _ in range(12):
        colour = names[int(rng.integers(len(names)))]
        rgb = _varied(rng, COLOURS[colour])
        # What lies behind must differ for most of its pixels, or the outline could not be seen.
        if float(np.mean(np.abs(behind - rgb).sum(axis=1) < 90)) < 0.1:
            break
    texture = "plain" if plain or rng.random() < 0.4 else TEXTURES[int(rng.integers(1, len(TEXTURES)))]
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    return Plan(
        colour=colour,
        shape=shape,
        texture=texture,
        rgb=rgb,
        second_rgb=_second(rng, rgb),
        outline=_outline(rng, shape),
        centre_xy=centre_xy,
        radius_px=radius_px,
        angle=float(rng.uniform(-MOST_TILT, MOST_TILT)),
        period_px=float(rng.uniform(9, 16)),
        texture_angle=float(rng.uniform(0, math.pi)),
        slope_xy=_pair(rng.uniform(-0.12, 0.12, 2)),
    )


def _varied(rng: np.random.Generator, rgb: tuple[int, int, int]) -> FloatArray:
    gain = rng.uniform(0.88, 1.08)
    return np.clip(np.array(rgb, np.float32) * gain + rng.uniform(-12, 12, 3), 0, 255).astype(np.float32)


def _second(rng: np.random.Generator, rgb: FloatArray) -> FloatArray:
    """The texture's other colour: the same, much lighter or much darker, whichever there is room for."""
    light = float(rgb.mean())
    towards = 255.0 if light < 70 or (light < 190 and rng.random() < 0.5) else 0.0
    share = float(rng.uniform(0.45, 0.65))
    return ((1 - share) * rgb + share * towards).astype(np.float32)


def _outline(rng: np.random.Generator, shape: str) -> tuple[FloatArray, ...]:
    """Closed polygons `[N, 2]` in a circle of radius 1, filled by the even-odd rule."""
    wobble = float(rng.uniform(-1, 1))
    if shape == "circle":
        outlines = [_regular(40, 0.92)]
    elif shape == "square":
        outlines = [_regular(4, 1.0)]
    elif shape == "triangle":
        outlines = [_regular(3, 1.05)]
    elif shape == "star":
        star = _regular(10, 1.05)
        star[1::2] *= 0.44 + 0.05 * wobble
        outlines = [star]
    elif shape == "cross":
        arm = 0.3 + 0.05 * wobble
        corner = np.array([[1, -arm], [1, arm], [arm, arm]])
        outlines = [np.concatenate([corner @ _rotation(k * math.pi / 2) for k in range(4)])]
    elif shape == "ring":
        outlines = [_regular(40, 0.95), _regular(32, 0.55 + 0.05 * wobble)]
    elif shape == "heart":
        t = np.linspace(0, 2 * math.pi, 40, endpoint=False)
        x = 16 * np.sin(t) ** 3
        y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
        outlines = [np.stack([x, -y - 2], axis=1) / 16.5]
    else:
        head, shaft = 0.1 + 0.1 * wobble, 0.26 + 0.04 * wobble
        half = np.array([[-1, -shaft], [-head, -shaft], [-head, -0.72], [1, 0]])
        outlines = [np.concatenate([half, half[-2::-1] * [1, -1]])]
    squeeze = np.array([1.0, rng.uniform(0.88, 1.0)])
    return tuple((outline * squeeze).astype(np.float32) for outline in outlines)


def _regular(corners: int, radius: float) -> npt.NDArray[np.float64]:
    turn = 2 * math.pi * np.arange(corners) / corners
    return radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _rotation(angle: float) -> npt.NDArray[np.float64]:
    """Matrix that turns row vectors by `angle`: `points @ _rotation(angle)`."""
    return np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


def _draw(background: ByteArray, plans: list[Plan], *, noise: float, rng: np.random.Generator) -> Scene:
    height, width = background.shape[:2]
    canvas = background.astype(np.float32)
    masks: list[BoolArray] = []
    for plan in plans:
        mask = np.zeros((height, width), bool)
        found = painted(plan, (width, height))
        if found is not None:
            (x0, y0, x1, y1), alpha, rgb = found
            canvas[y0:y1, x0:x1] += alpha[..., None] * (rgb - canvas[y0:y1, x0:x1])
            covered = alpha >= 0.5
            for below in masks:
                below[y0:y1, x0:x1] &= ~covered
            mask[y0:y1, x0:x1] = covered
        masks.append(mask)
    if noise > 0:
        grain = np.empty((height, width), np.float32)
        cv2.setRNGSeed(int(rng.integers(2**31 - 1)))
        cv2.randn(grain, 0, noise)
        canvas += grain[..., None]
    rgb_bytes = np.clip(canvas, 0, 255).astype(np.uint8)
    things = tuple(
        named(plan.colour, plan.shape, plan.texture, 2 * plan.radius_px, plan.centre_xy, mask)
        for plan, mask in zip(plans, masks, strict=True)
    )
    return Scene(rgb_bytes, things)


def painted(plan: Plan, size_wh: tuple[int, int]) -> tuple[tuple[int, int, int, int], FloatArray, FloatArray] | None:
    """Draw a thing: its box in the frame (x0, y0, x1, y1), and there its coverage `[h, w]` in [0, 1] and colours."""
    reach = 1.15 * plan.radius_px
    cx, cy = plan.centre_xy
    x0, y0 = max(0, math.floor(cx - reach)), max(0, math.floor(cy - reach))
    x1, y1 = min(size_wh[0], math.ceil(cx + reach)), min(size_wh[1], math.ceil(cy + reach))
    if x1 <= x0 or y1 <= y0:
        return None
    fine = np.zeros(((y1 - y0) * _SUPERSAMPLING, (x1 - x0) * _SUPERSAMPLING), np.uint8)
    turn = _rotation(plan.angle) * plan.radius_px
    polygons = []
    for outline in plan.outline:
        points = outline @ turn + [cx - x0, cy - y0]
        # fillPoly counts from pixel centres.
        polygons.append(np.round((points * _SUPERSAMPLING - 0.5) * 2**_FIXED_POINT_BITS).astype(np.int32))
    cv2.fillPoly(fine, polygons, 255, shift=_FIXED_POINT_BITS)
    coverage = cv2.resize(fine, (x1 - x0, y1 - y0), interpolation=cv2.INTER_AREA)
    alpha = (np.asarray(coverage) / 255).astype(np.float32)
    dx = np.arange(x0, x1, dtype=np.float32) + np.float32(0.5 - cx)
    dy = np.arange(y0, y1, dtype=np.float32) + np.float32(0.5 - cy)
    second_share = _texture(plan, dx[None, :], dy[:, None])
    rgb = plan.rgb + second_share[..., None] * (plan.second_rgb - plan.rgb)
    slope = (plan.slope_xy[0] * dx[None, :] + plan.slope_xy[1] * dy[:, None]) / plan.radius_px
    return (x0, y0, x1, y1), alpha, (rgb * (1 + slope[..., None])).astype(np.float32)


def _texture(plan: Plan, dx: FloatArray, dy: FloatArray) -> FloatArray:
    """`[h, w]` in [0, 1]: share of the second colour at each place, soft over about a pixel."""
    turn = plan.angle + plan.texture_angle
    rate = 2 * math.pi / plan.period_px
    u = rate * (math.cos(turn) * dx + math.sin(turn) * dy)
    v = rate * (math.cos(turn) * dy - math.sin(turn) * dx)
    if plan.texture == "striped":
        wave = np.sin(u)
    elif plan.texture == "dotted":
        wave = np.cos(u) + np.cos(v) - 0.75
    elif plan.texture == "checked":
        wave = 2 * np.sin(0.7 * u) * np.sin(0.7 * v)
    else:
        return np.zeros(np.broadcast_shapes(dx.shape, dy.shape), np.float32)
    return np.clip(0.5 + 1.5 * wave, 0, 1).astype(np.float32)


def named(
    colour: str, shape: str, texture: str, diameter_px: float, centre_xy: tuple[float, float], mask: BoolArray
) -> Thing:
    """A thing with the words for its size and place."""
    height, width = mask.shape
    x0, y0, w, h = cv2.boundingRect(mask.view(np.uint8))
    x = min(max(centre_xy[0] / width, 0.0), 1.0) - 0.5
    y = min(max(centre_xy[1] / height, 0.0), 1.0) - 0.5
    if max(abs(x), abs(y)) < 1 / 6:
        place = "centre"
    elif abs(x) >= abs(y):
        place = "left" if x < 0 else "right"
    else:
        place = "top" if y < 0 else "bottom"
    size = "small" if diameter_px < SMALL_BELOW_PX else "large" if diameter_px > LARGE_ABOVE_PX else "medium"
    return Thing(colour, shape, texture, size, place, mask, (x0, y0, x0 + w, y0 + h))


def random_background(rng: np.random.Generator, size_wh: tuple[int, int], plain: bool) -> ByteArray:
    """`[H, W, 3]` uint8: even, a gradient, clouds, blotches or broad stripes."""
    kind = "even" if plain else ("even", "gradient", "clouds", "blotches", "stripes")[int(rng.integers(5))]
    palette = np.stack([_background_rgb(rng) for _ in range(4)])
    width, height = size_wh
    if kind == "even":
        return np.full((height, width, 3), palette[0], np.uint8)
    if kind == "gradient":
        return _spread(palette.reshape(2, 2, 3), size_wh, cv2.INTER_LINEAR)
    coarse = max(3, round(width / float(rng.uniform(30, 120)))), max(3, round(height / float(rng.uniform(30, 120))))
    field = rng.random((coarse[1], coarse[0], 1), dtype=np.float32)
    if kind == "clouds":
        return _spread(palette[0] + (palette[1] - palette[0]) * field, size_wh, cv2.INTER_CUBIC)
    if kind == "blotches":
        level = np.asarray(cv2.resize(field, size_wh, interpolation=cv2.INTER_CUBIC), np.float32)
        soft = np.clip(0.5 + (level - 0.5) * float(rng.uniform(4, 20)), 0, 1)[..., None]
        mixed: ByteArray = np.clip(palette[0] + (palette[1] - palette[0]) * soft, 0, 255).astype(np.uint8)
        return mixed
    period, angle = float(rng.uniform(14, 90)), float(rng.uniform(0, math.pi))
    x = np.arange(width, dtype=np.float32)[None, :] * np.float32(2 * math.pi * math.cos(angle) / period)
    y = np.arange(height, dtype=np.float32)[:, None] * np.float32(2 * math.pi * math.sin(angle) / period)
    wave = np.clip(0.5 + float(rng.uniform(0.5, 4)) * np.sin(x + y), 0, 1)[..., None]
    striped: ByteArray = np.clip(palette[0] + (palette[1] - palette[0]) * wave, 0, 255).astype(np.uint8)
    return striped


def _background_rgb(rng: np.random.Generator) -> FloatArray:
    """Half of all backgrounds are muted, half use the colours of the things."""
    if rng.random() < 0.5:
        grey = rng.uniform(30, 225)
        return np.clip(grey + rng.uniform(-35, 35, 3), 0, 255).astype(np.float32)
    names = list(COLOURS)
    return _varied(rng, COLOURS[names[int(rng.integers(len(names)))]])


def _spread(small: npt.NDArray[np.float32], size_wh: tuple[int, int], method: int) -> ByteArray:
    big = cv2.resize(small.astype(np.float32), size_wh, interpolation=method)
    spread: ByteArray = np.clip(np.asarray(big), 0, 255).astype(np.uint8)
    return spread


def _pair(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    return float(values[0]), float(values[1])
