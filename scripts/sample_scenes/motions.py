"""Where layers are at a time: 3x3 maps, composed with `@`, and functions of seconds that give them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sample_scenes.model import Matrix, Motion

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
    """From one value to another, smoothly, then on at rest."""

    def track(t: float) -> float:
        s = min(max(t / seconds, 0.0), 1.0)
        return start + (end - start) * s * s * (3 - 2 * s)

    return track
