"""Cars, a van and a bus seen from the side, each a body and two wheels that turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.scenes.drawing import Canvas, Floats, path, spline
from benchmarks.scenes.layers import Layer, Matrix, Motion, Track, about, scale, shift, turn

GLASS = ("#cfe6f4", "#4d6b82")
TYRE, RIM = "#17181b", ("#eef1f4", "#8d949c")


@dataclass(frozen=True)
class Paint:
    """Three tones of a body: lit, middle and in shade."""

    light: str
    main: str
    dark: str


RED = Paint("#ff6a57", "#dc1f1f", "#8a0d12")
BLUE = Paint("#6fb2ff", "#1d63c9", "#0f3575")
YELLOW = Paint("#ffe27a", "#f7b500", "#b07800")
GREEN = Paint("#7fdc9c", "#1f9a55", "#0d5a30")
WHITE = Paint("#ffffff", "#dfe4e8", "#9aa4ad")
PURPLE = Paint("#d39bff", "#8a3fd1", "#502080")


@dataclass(frozen=True, eq=False)
class Vehicle:
    """Texture of the body, and where its wheels (radius in px) turn; it faces right and stands on `ground_y`."""

    body: Floats
    wheels_xy: tuple[tuple[float, float], ...]
    radius: float
    ground_y: float
    words: tuple[tuple[str, Matrix], ...] = ()

    def layers(self, name: str, x: Track, ground: Track, size: float, *, view: Motion, facing: int = 1) -> list[Layer]:
        """Shadow, body and wheels of a vehicle whose middle is at `x(t)` and whose wheels stand at `ground(t)`."""
        width = self.body.shape[1]

        def place(t: float) -> Matrix | None:
            camera = view(t)
            if camera is None:
                return None
            return camera @ about(width / 2, self.ground_y, shift(x(t), ground(t)) @ scale(facing * size, size))

        def rolling(cx: float, cy: float) -> Motion:
            def motion(t: float) -> Matrix | None:
                body = place(t)
                rolled = np.degrees((x(t) - x(0)) / (self.radius * size)) * facing
                return (
                    None
                    if body is None
                    else body @ about(_WHEEL / 2, _WHEEL / 2, _wheel_turn(cx, cy, rolled, self.radius))
                )

            return motion

        shade = shadow(width, 22)

        def under(t: float) -> Matrix | None:
            body = place(t)
            return None if body is None else body @ shift(width / 2 - shade.shape[1] / 2, self.ground_y - 13)

        wheels = [
            Layer(f"{name} wheel {i + 1}", _wheel_texture(), rolling(cx, cy), name)
            for i, (cx, cy) in enumerate(self.wheels_xy)
        ]
        return [
            Layer(f"{name} shadow", shade, under, effect=True),
            Layer(name, self.body, place, name, words=self.words),
            *wheels,
        ]


def car(paint: Paint, *, taxi: bool = False) -> Vehicle:
    """A saloon, 196 x 84 px."""
    canvas = Canvas(196, 84)
    outline = spline(path("6,58 8,44 22,38 46,34 70,14 92,9 122,11 146,32 176,39 189,48 190,62 180,67 98,68 14,67"))
    cabin = spline([(56, 33), (72, 18), (92, 14), (119, 16), (137, 32), (98, 34)])
    canvas.polygon(outline, (paint.light, paint.dark))
    canvas.polygon([(0, 40), (196, 40), (196, 56), (0, 56)], (paint.light, paint.main), opacity=0.85, inside=outline)
    canvas.polygon([(0, 56), (196, 56), (196, 76), (0, 76)], (paint.main, paint.dark), inside=outline)
    canvas.polygon(cabin, GLASS)
    canvas.polygon([(78, 8), (92, 8), (76, 38), (62, 38)], "#ffffff", opacity=0.35, inside=cabin)
    canvas.polygon([(116, 8), (122, 8), (110, 38), (104, 38)], "#ffffff", opacity=0.3, inside=cabin)
    canvas.line([(97, 12), (98, 34), (97, 62)], 1.6, paint.dark)
    canvas.line([(58, 36), (57, 60)], 1.2, paint.dark, opacity=0.7)
    canvas.line([(140, 36), (142, 52)], 1.2, paint.dark, opacity=0.7)
    canvas.line(spline([(12, 45), (60, 41), (130, 40), (186, 48)], closed=False), 1.6, "#ffffff", opacity=0.45)
    canvas.box(104, 42, 114, 44.6, paint.dark, radius=1.2)
    canvas.box(66, 42, 76, 44.6, paint.dark, radius=1.2)
    canvas.ellipse(184, 48, 5, 4, ("#fffbe0", "#ffd75e"))
    canvas.box(6, 44, 12, 52, ("#ff7a6b", "#b3121a"), radius=2)
    canvas.box(2, 60, 20, 66, "#3a3d42", radius=2.5)
    canvas.box(176, 60, 194, 66, "#3a3d42", radius=2.5)
    words: tuple[tuple[str, Matrix], ...] = ()
    if taxi:
        canvas.box(88, 1, 116, 11, ("#fffef2", "#e8dca8"), radius=2)
        words = (("TAXI", canvas.text(102, 6, "TAXI", 8.5, "#26221a")),)
        for i in range(12):
            canvas.box(26 + 12 * i, 52 + 5 * (i % 2), 32 + 12 * i, 57 + 5 * (i % 2), "#1d1d1d", opacity=0.85)
    return _on_wheels(canvas, ((42, 65), (152, 65)), 15, words)


def van(paint: Paint, word: str | None = None) -> Vehicle:
    """A delivery van, 210 x 104 px, perhaps with a word on its side."""
    canvas = Canvas(210, 104)
    outline = spline(path("5,84 5,40 6,14 14,8 80,7 140,7 160,14 180,44 202,54 205,66 205,84 196,88 100,88 12,88"))
    canvas.polygon(outline, (paint.light, paint.main))
    canvas.polygon([(0, 66), (210, 66), (210, 96), (0, 96)], (paint.main, paint.dark), inside=outline)
    window = [(146, 18), (157, 19), (174, 46), (146, 46)]
    canvas.polygon(window, GLASS)
    canvas.polygon([(150, 14), (158, 14), (150, 48), (142, 48)], "#ffffff", opacity=0.35, inside=window)
    canvas.line([(140, 12), (140, 82)], 1.5, paint.dark)
    canvas.line([(12, 66), (200, 66)], 2.2, "#ffffff", opacity=0.6)
    canvas.box(146, 54, 156, 57, paint.dark, radius=1.4)
    canvas.ellipse(199, 64, 4.5, 5.5, ("#fffbe0", "#ffd75e"))
    canvas.box(4, 56, 9, 70, ("#ff7a6b", "#b3121a"), radius=2)
    canvas.box(2, 80, 22, 88, "#3a3d42", radius=2.5)
    canvas.box(188, 80, 208, 88, "#3a3d42", radius=2.5)
    words: tuple[tuple[str, Matrix], ...] = ()
    if word is not None:
        canvas.box(16, 20, 132, 60, "#fffaf0", radius=6)
        words = ((word, canvas.text(74, 40, word, 34, ("#e0402a", "#a81610"))),)
    return _on_wheels(canvas, ((44, 85), (164, 85)), 16, words)


def bus(paint: Paint) -> Vehicle:
    """A city bus, 300 x 124 px."""
    canvas = Canvas(300, 124)
    canvas.box(4, 6, 296, 106, (paint.light, paint.main), radius=12)
    canvas.box(4, 74, 296, 106, (paint.main, paint.dark), radius=8)
    canvas.box(4, 70, 296, 76, "#fff7dc")
    for i in range(6):
        canvas.box(16 + 42 * i, 22, 52 + 42 * i, 58, GLASS, radius=4)
        canvas.polygon(
            [(24 + 42 * i, 22), (34 + 42 * i, 22), (24 + 42 * i, 58), (16 + 42 * i, 58)], "#ffffff", opacity=0.3
        )
    canvas.box(268, 20, 294, 66, GLASS, radius=5)
    canvas.box(198, 24, 226, 102, ("#b9d3e2", "#39566a"), radius=3)
    canvas.line([(212, 24), (212, 102)], 2, "#26343d")
    canvas.ellipse(289, 88, 5, 5, ("#fffbe0", "#ffd75e"))
    canvas.box(4, 82, 9, 94, ("#ff7a6b", "#b3121a"), radius=2)
    return _on_wheels(canvas, ((62, 104), (246, 104)), 18, ())


def shadow(width: float, height: float) -> Floats:
    canvas = Canvas(round(width * 1.1), round(height + 10))
    canvas.ellipse(width * 0.55, height / 2 + 5, width * 0.46, height * 0.3, "#000000", opacity=0.6)
    return canvas.blurred(2.5)


_WHEEL = 40


def _wheel_texture() -> Floats:
    """A tyre of radius 18 px with a rim of five spokes."""
    canvas = Canvas(_WHEEL, _WHEEL)
    middle = _WHEEL / 2
    canvas.ellipse(middle, middle, 18, 18, TYRE)
    canvas.ellipse(middle, middle, 12, 12, RIM)
    canvas.ellipse(middle, middle, 10.4, 10.4, "#2b2e33")
    for i in range(5):
        angle = 2 * np.pi * i / 5
        canvas.line([(middle, middle), (middle + 11 * np.cos(angle), middle + 11 * np.sin(angle))], 4, "#cdd3d9")
    canvas.ellipse(middle, middle, 3.6, 3.6, RIM)
    return canvas.finished()


def _wheel_turn(cx: float, cy: float, degrees: float, radius: float) -> Matrix:
    return shift(cx, cy) @ turn(degrees) @ scale(radius / 18)


def _on_wheels(
    canvas: Canvas, wheels: tuple[tuple[float, float], ...], radius: float, words: tuple[tuple[str, Matrix], ...]
) -> Vehicle:
    for x, y in wheels:
        canvas.ellipse(x, y - 1, radius + 4, radius + 3, "#1b1416", opacity=0.9)
    floor = wheels[0][1] + radius
    body = canvas.finished()
    # A wheel house ends with the body's underside.
    body[round(wheels[0][1]) + 3 :] = 0
    return Vehicle(body, wheels, radius, floor, words)
