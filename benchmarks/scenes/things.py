"""Things in the scenes besides vehicles: an aeroplane, a saucer, a planet, a butterfly, signs, trees."""

from __future__ import annotations

import cv2
import numpy as np

from benchmarks.scenes.drawing import Canvas, Floats, Points, enlarged, path, spline, tiled, tinted
from benchmarks.scenes.layers import Matrix


def plane() -> Floats:
    """A blue aeroplane from above, 200 x 190 px, flying to the right."""
    canvas = Canvas(200, 190)
    front = "90,90 82,50 76,14 82,6 96,5 105,12 116,50 130,90"
    wing = spline(path(f"{front} 130,100 116,140 105,178 96,185 82,184 76,176 82,140 90,100"))
    canvas.polygon(wing, ("#4aa3ff", "#1559b8"))
    canvas.polygon([(60, 12), (112, 12), (116, 34), (60, 34)], "#ffffff", opacity=0.92, inside=wing)
    canvas.polygon([(60, 156), (116, 156), (112, 178), (60, 178)], "#e8eef6", opacity=0.92, inside=wing)
    tail = spline(path("22,92 12,60 18,55 30,58 44,92 44,98 30,132 18,135 12,130 22,98"))
    canvas.polygon(tail, ("#3d94f0", "#124c9e"))
    body = spline(path("8,95 24,88 70,82 130,80 166,84 178,95 166,106 130,110 70,108 24,102"))
    canvas.polygon(body, ("#8cc8ff", "#1d66c4"))
    canvas.line([(14, 95), (96, 95)], 3, "#ffffff", opacity=0.75)
    canvas.polygon(spline([(112, 95), (118, 86), (138, 86), (148, 95), (138, 104), (118, 104)]), ("#f2fbff", "#3a5e7c"))
    canvas.line([(120, 90), (138, 90)], 2, "#ffffff", opacity=0.7)
    canvas.ellipse(176, 95, 8, 9, ("#ffd98a", "#e08a1a"))
    return canvas.finished()


def blade() -> Floats:
    """A propeller seen a little from behind, 26 x 84 px."""
    canvas = Canvas(26, 84)
    canvas.polygon(
        spline([(13, 2), (17, 14), (15, 40), (15, 44), (17, 70), (13, 82), (9, 70), (11, 44), (11, 40), (9, 14)]),
        "#2c2f36",
    )
    canvas.ellipse(13, 42, 6, 6, ("#ffd98a", "#c96f12"))
    return canvas.finished()


def silhouette(texture: Floats, sigma: float, opacity: float) -> Floats:
    """The soft shadow that a thing casts."""
    edge = int(np.ceil(3 * sigma))
    alpha = np.pad(texture[..., 3], edge)
    soft = cv2.GaussianBlur(alpha, (0, 0), sigma) * opacity
    return np.dstack([np.zeros((*soft.shape, 3), np.float32), soft]).astype(np.float32)


def saucer() -> Floats:
    """A flying saucer, 170 x 92 px."""
    canvas = Canvas(170, 92)
    canvas.polygon(spline([(48, 42), (56, 16), (85, 5), (114, 16), (122, 42), (85, 48)]), ("#d8fff2", "#3fae9a"))
    canvas.polygon(spline([(62, 34), (66, 18), (82, 11), (76, 24), (72, 36)]), "#ffffff", opacity=0.5)
    canvas.ellipse(85, 54, 80, 22, ("#f4f0ff", "#6c5aa8"))
    canvas.ellipse(85, 50, 64, 13, ("#8f7fcb", "#cfc5f5"))
    canvas.ellipse(85, 70, 36, 13, ("#5a4a94", "#2c2358"))
    for i, x in enumerate((20, 46, 85, 124, 150)):
        y = 60 + 6 * np.cos((x - 85) / 50)
        canvas.ellipse(x, y, 6, 5, ("#fff6b0", "#ff9a2e") if i % 2 else ("#c6ffd9", "#22c46b"))
    return canvas.finished()


def planet() -> tuple[Floats, tuple[Floats, Floats]]:
    """A banded globe (200 x 200 px) and the halves of its ring behind and before it (330 x 110 px)."""
    globe = Canvas(200, 200)
    disc = spline([(100 + 92 * np.cos(a), 100 + 92 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 40, endpoint=False)])
    globe.polygon(disc, ("#ffd9a0", "#b5542c"))
    bands = ((30, 12, "#fff0cf"), (58, 9, "#c9703c"), (84, 16, "#ffe3b5"), (118, 10, "#a84b25"), (140, 18, "#e79a5a"))
    for y, height, colour in bands:
        ripple = [(x, y + 3 * np.sin(x / 17 + y)) for x in range(0, 201, 8)]
        below = [(x, y + height + 4 * np.sin(x / 23 + y)) for x in range(200, -1, -8)]
        globe.polygon(ripple + below, colour, opacity=0.6, inside=disc)
    globe.ellipse(136, 128, 15, 9, ("#b5482a", "#d97a4c"), opacity=0.85)
    lit = globe.finished()
    y, x = np.mgrid[0:200, 0:200].astype(np.float32)
    # Light from the upper left: darker with distance from there.
    shade = np.clip(1.12 - 0.0052 * np.maximum(0, np.hypot(x - 60, y - 55) - 30), 0.18, 1)[..., None]
    lit[..., :3] *= shade.astype(np.float32)
    return lit, (_ring(np.pi, 2 * np.pi), _ring(0, np.pi))


def _ring(start: float, end: float) -> Floats:
    canvas = Canvas(330, 110)
    angle = np.linspace(start, end, 80)
    for outer, inner, colour in ((162, 147, "#e9d3a8"), (144, 126, "#c9a877"), (123, 113, "#f5e6c4")):
        there = [(165 + outer * np.cos(a), 55 + outer * 0.3 * np.sin(a)) for a in angle]
        back = [(165 + inner * np.cos(a), 55 + inner * 0.3 * np.sin(a)) for a in angle[::-1]]
        canvas.polygon(there + back, colour)
    return canvas.finished()


def ball() -> Floats:
    """A ball of red yarn, 90 x 90 px."""
    canvas = Canvas(90, 90)
    disc: Points = [(45 + 41 * np.cos(a), 45 + 41 * np.sin(a)) for a in np.linspace(0, 2 * np.pi, 60, endpoint=False)]
    canvas.polygon(disc, ("#ff6f61", "#a3121c"))
    for turn_by, colour in ((0.4, "#ffa79c"), (1.5, "#7f0d16"), (2.6, "#ff8d80")):
        c, s = np.cos(turn_by), np.sin(turn_by)
        for offset in (-28, -18, -8, 2, 12, 22, 32):
            arc = [(u, offset + 9 * np.cos(u / 24)) for u in range(-44, 45, 4)]
            thread = [(45 + c * u - s * v, 45 + s * u + c * v) for u, v in arc if np.hypot(u, v) < 39]
            if len(thread) > 2:
                canvas.line(thread, 1.8, colour, opacity=0.6)
    canvas.ellipse(32, 28, 13, 9, "#ffffff", opacity=0.16)
    return canvas.finished()


def wing() -> Floats:
    """The right wing of a butterfly, 70 x 110 px, hinged at its left edge."""
    canvas = Canvas(70, 110)
    upper = spline([(1, 52), (14, 20), (46, 3), (66, 12), (62, 38), (38, 56), (4, 58)])
    lower = spline([(1, 56), (30, 56), (56, 70), (52, 96), (32, 106), (10, 84)])
    for outline, tones in ((lower, ("#3fa7ff", "#1b3fb0")), (upper, ("#7fd4ff", "#1f63d8"))):
        canvas.polygon(outline, "#141a3a")
        middle = np.mean(outline, axis=0)
        inner = [(float(x), float(y)) for x, y in middle + (np.asarray(outline) - middle) * 0.84]
        canvas.polygon(inner, tones)
    for x, y, r in ((52, 14, 3.2), (58, 24, 2.4), (46, 90, 3), (50, 80, 2.2)):
        canvas.ellipse(x, y, r, r, "#fff4c2")
    canvas.line([(4, 52), (28, 30), (50, 18)], 1.3, "#141a3a", opacity=0.6)
    canvas.line([(4, 56), (30, 66), (46, 84)], 1.3, "#141a3a", opacity=0.6)
    return canvas.finished()


def insect() -> Floats:
    """A butterfly's body, 30 x 110 px."""
    canvas = Canvas(30, 110)
    canvas.line(spline([(14, 34), (10, 18), (4, 8)], closed=False), 1.4, "#15131f")
    canvas.line(spline([(16, 34), (20, 18), (26, 8)], closed=False), 1.4, "#15131f")
    canvas.ellipse(15, 66, 4.6, 30, ("#3b3552", "#15131f"))
    canvas.ellipse(15, 40, 5.4, 7, ("#544c75", "#1c1930"))
    return canvas.finished()


def sign(kind: str) -> tuple[Floats, tuple[tuple[str, Matrix], ...]]:
    """A sign with its words: `exit` (230 x 104 px), `open` (290 x 150 px) or `cafe` (210 x 140 px)."""
    if kind == "exit":
        canvas = Canvas(230, 104)
        canvas.box(2, 2, 228, 102, ("#0f5c36", "#0a4527"), radius=10)
        canvas.box(6, 6, 224, 98, ("#1fae63", "#128048"), radius=8)
        words = (("EXIT", canvas.text(94, 54, "EXIT", 62, "#ffffff")),)
        canvas.polygon([(188, 30), (216, 52), (188, 74), (188, 60), (178, 60), (178, 44), (188, 44)], "#ffffff")
        return canvas.finished(), words
    if kind == "open":
        canvas = Canvas(290, 150)
        canvas.box(2, 2, 288, 148, ("#20202e", "#101018"), radius=16)
        canvas.box(9, 9, 281, 141, "#ff4f9a", radius=12)
        canvas.box(12.5, 12.5, 277.5, 137.5, ("#1c1c2a", "#12121c"), radius=10)
        first = canvas.text(145, 50, "OPEN", 58, "#fff3fb", glow="#ff4f9a")
        second = canvas.text(145, 106, "24H", 50, "#f0feff", glow="#28b4ff")
        return canvas.finished(), (("OPEN", first), ("24H", second))
    if kind == "cafe":
        canvas = Canvas(210, 140)
        canvas.line([(38, 36), (105, 2), (172, 36)], 3, "#2b2320")
        canvas.ellipse(105, 4, 4.5, 4.5, "#2b2320")
        canvas.box(4, 32, 206, 136, ("#4b2e1c", "#33200f"), radius=12)
        canvas.box(10, 38, 200, 130, ("#fff3da", "#eed6a8"), radius=9)
        words = (("CAFE", canvas.text(105, 84, "CAFE", 58, ("#7a3b16", "#4a2410"))),)
        return canvas.finished(), words
    raise ValueError(f"no sign {kind!r}: allowed are exit, open, cafe")


def lamp_post() -> Floats:
    """A street lamp, 90 x 330 px."""
    canvas = Canvas(90, 330)
    canvas.box(38, 40, 48, 330, ("#4a5560", "#20272e"), radius=3)
    canvas.box(32, 296, 54, 330, ("#3c4650", "#171c21"), radius=4)
    canvas.line(spline([(43, 46), (46, 22), (64, 14)], closed=False), 6, "#39434d")
    canvas.box(54, 9, 86, 21, ("#39434d", "#1d242a"), radius=5)
    canvas.box(57, 19, 83, 25, ("#fff4c4", "#ffd873"), radius=3)
    return canvas.finished()


def tree(grass: Floats, seed: int) -> Floats:
    """A round tree whose leaves are a photograph of grass, 210 x 340 px."""
    canvas = Canvas(210, 340)
    canvas.polygon(
        spline([(94, 340), (98, 240), (92, 150), (118, 150), (114, 240), (122, 340)]), ("#7a5636", "#3d2817")
    )
    rng = np.random.default_rng(seed)
    crown = Canvas(210, 340)
    crown.ellipse(105, 102, 72, 66, "#ffffff")
    for _ in range(26):
        angle, reach = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 1) ** 0.5
        x, y = 105 + 62 * reach * np.cos(angle), 102 + 62 * reach * np.sin(angle)
        crown.ellipse(x, y, rng.uniform(24, 38), rng.uniform(22, 34), "#ffffff")
    alpha = crown.finished()[..., 3:]
    leaves = tiled(enlarged(grass, 300), 210, 340)
    y, x = np.mgrid[0:340, 0:210].astype(np.float32)
    light = np.clip(1.25 - 0.006 * np.hypot(x - 70, y - 50), 0.4, 1.2)[..., None]
    trunk = canvas.finished()
    colour = np.clip(leaves * light, 0, 1).astype(np.float32)
    return np.dstack([colour * alpha + trunk[..., :3] * (1 - alpha), alpha + trunk[..., 3:] * (1 - alpha)]).astype(
        np.float32
    )


def hedge(grass: Floats, width: int, height: int, seed: int) -> Floats:
    """A strip of greenery with an uneven top."""
    rng = np.random.default_rng(seed)
    canvas = Canvas(width, height)
    for x in range(-20, width + 20, 16):
        canvas.ellipse(
            x + rng.uniform(-5, 5), height * 0.62, rng.uniform(16, 26), height * rng.uniform(0.36, 0.58), "#ffffff"
        )
    canvas.box(0, height * 0.5, width, height, "#ffffff")
    alpha = canvas.finished()[..., 3:]
    leaves = tiled(enlarged(grass, 420), width, height)
    light = np.linspace(1.25, 0.5, height, dtype=np.float32)[:, None, None]
    return np.dstack([np.clip(leaves * light, 0, 1) * alpha, alpha]).astype(np.float32)


def greenery(photo: Floats) -> Floats:
    """A grey photograph of grass as leaves, `[H, W, 3]`."""
    return tinted(np.clip((photo - 0.15) * 1.25, 0, 1).astype(np.float32), "#0d2413", "#9fce63")
