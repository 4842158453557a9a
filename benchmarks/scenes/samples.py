"""The four scenes. Positions are pixels of a 640x360 frame, times are seconds."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from benchmarks.scenes import things
from benchmarks.scenes.drawing import Canvas, Floats, enlarged, opaque, photograph, rgb, tiled, tinted, unit
from benchmarks.scenes.layers import (
    Layer,
    Matrix,
    Motion,
    Scene,
    about,
    before,
    during,
    ease,
    fixed,
    scale,
    shift,
    turn,
    wave,
)
from benchmarks.scenes.vehicles import BLUE, GREEN, RED, WHITE, YELLOW, bus, car, van

FPS = 30


def street(frames: int = 120) -> Scene:
    """Traffic at dusk under the launch towers, behind trees and a lamp post; the camera drifts."""
    drift = ease(0, -46, 4.0)

    def depth(nearness: float, x: float, y: float, size: float = 1.0) -> Motion:
        return lambda t: shift(drift(t) * nearness, 0) @ shift(x, y) @ scale(size)

    view = depth(1.0, 0, 0)
    grass = things.greenery(unit(photograph("grass")))
    vehicles = [
        *bus(GREEN).layers("green bus", lambda t: 470 - 62 * t, lambda t: 222.0, 0.8, view=view, facing=-1),
        *van(BLUE).layers("blue van", lambda t: 690 - 98 * t, lambda t: 248.0, 0.9, view=view, facing=-1),
        *car(YELLOW, taxi=True).layers("yellow taxi", lambda t: 50 + 74 * t, lambda t: 282.0, 1.0, view=view),
        *car(RED).layers("red car", lambda t: 140 + 88 * t + 6 * t * t, lambda t: 322.0, 1.2, view=view),
    ]
    near = [
        Layer("tree", things.tree(grass, 5), depth(1.5, 455, 8, 1.05)),
        Layer("lamp post", things.lamp_post(), depth(1.5, 196, 14, 1.02)),
        Layer("hedge", things.hedge(grass, 800, 54, 7), depth(1.5, -20, 316)),
    ]
    return Scene(
        "street",
        (
            Layer("dusk", _dusk(), depth(0.3, -12, -150)),
            Layer("road", _road(800), depth(1.0, -20, 190)),
            *vehicles,
            *near,
        ),
        frames,
        fps=FPS,
        audio=True,
    )


def pan_zoom(frames: int = 120) -> Scene:
    """The camera moves over a table while a model aeroplane flies the other way."""
    table = enlarged(photograph("coffee"), 1100)
    across, down, zoom = ease(522, 700, 4.0), ease(372, 260, 4.0), ease(0.62, 0.95, 4.0)

    def camera(t: float) -> Matrix:
        return shift(319.5, 179.5) @ scale(zoom(t)) @ shift(-across(t), -down(t))

    left, sway, heading = ease(566, 84, 4.4), wave(168, 34, 3.6, 0.2), wave(187, 10, 3.6, 0.45)

    def aloft(t: float) -> Matrix:
        return shift(left(t), sway(t)) @ turn(heading(t)) @ scale(1.15 * zoom(t))

    def below(t: float) -> Matrix:
        return shift(26 * zoom(t), 66 * zoom(t)) @ aloft(t)

    def spun(t: float) -> Matrix:
        # The blades turn in a plane seen from its edge, so only their apparent length changes.
        return aloft(t) @ shift(86, 0) @ scale(1, 0.3 + 0.65 * abs(float(np.cos(37 * t)))) @ shift(-13, -42)

    craft = things.plane()
    shadow = things.silhouette(craft, 5, 0.5)
    edge = (shadow.shape[1] - craft.shape[1]) / 2
    layers = (
        Layer("table", opaque(table), camera),
        Layer("shadow", shadow, lambda t: below(t) @ shift(-100 - edge, -95 - edge), effect=True),
        Layer("propeller", things.blade(), spun, "blue aeroplane"),
        Layer("aeroplane", craft, lambda t: aloft(t) @ shift(-100, -95), "blue aeroplane"),
    )
    return Scene("pan_zoom", layers, frames, fps=FPS)


def cut(frames: int = 120) -> Scene:
    """Deep space, then, from the middle frame on, a cat with a ball of yarn and a butterfly."""
    middle = frames / 2 / FPS
    return Scene("cut", (*_space(middle), *_cat(middle, frames / FPS)), frames, fps=FPS)


def signs(frames: int = 120) -> Scene:
    """Signs with words swing, slide and pass before a brick wall."""
    wall = _wall(900, 560)
    push = ease(1.0, 1.12, 4.0)

    def camera(t: float) -> Matrix:
        return shift(320, 180) @ scale(push(t)) @ shift(-320 - 10 * t, -180)

    def hung(x: float, y: float, hinge: tuple[float, float], degrees: float, period: float, phase: float) -> Motion:
        swing = wave(0, degrees, period, phase)
        return before(camera, lambda t: shift(x, y) @ turn(swing(t)) @ shift(-hinge[0], -hinge[1]))

    exit_texture, exit_words = things.sign("exit")
    open_texture, open_words = things.sign("open")
    cafe_texture, cafe_words = things.sign("cafe")
    slide, rise = ease(30, 330, 4.0), wave(26, 7, 3.1)

    def sliding(t: float) -> Matrix:
        return camera(t) @ shift(slide(t), rise(t)) @ scale(0.9)

    bracket = Canvas(270, 14)
    bracket.box(0, 3, 270, 9, ("#5a6570", "#242b31"), radius=3)
    pizza = van(WHITE, "PIZZA").layers("pizza van", lambda t: -130 + 155 * t, lambda t: 336.0, 1.25, view=camera)
    layers = (
        Layer("wall", opaque(wall), before(camera, fixed(shift(-60, -90)))),
        Layer("pavement", _pavement(900), before(camera, fixed(shift(-60, 316)))),
        Layer("bracket", bracket.finished(), before(camera, fixed(shift(52, 119)))),
        Layer("cafe sign", cafe_texture, hung(186, 128, (105, 0), 9, 2.3, 0.1), "cafe sign", words=cafe_words),
        Layer("open sign", open_texture, hung(474, 118, (145, 0), 4, 3.1, 0.4), "open sign", words=open_words),
        Layer(
            "exit shadow", things.silhouette(exit_texture, 4, 0.45), lambda t: sliding(t) @ shift(-5, -3), effect=True
        ),
        Layer("exit sign", exit_texture, sliding, "exit sign", words=exit_words),
        *pizza,
    )
    return Scene("signs", layers, frames, fps=FPS)


SCENES: dict[str, Callable[..., Scene]] = {"street": street, "pan_zoom": pan_zoom, "cut": cut, "signs": signs}


def _space(until: float) -> list[Layer]:
    stars = enlarged(photograph("hubble_deep_field")[60:700, 40:960], 900)
    globe, (far_ring, near_ring) = things.planet()
    slip = ease(0, -40, until)

    def sky(t: float) -> Matrix:
        return shift(-90 + slip(t), -110) @ scale(1.0)

    def orb(t: float) -> Matrix:
        return shift(376 + 2.2 * slip(t), 96) @ turn(-14) @ scale(1.0)

    def craft(t: float) -> Matrix:
        return shift(104 + 185 * t, 168 + 26 * np.sin(3.2 * t)) @ turn(7 * float(np.cos(3.2 * t))) @ scale(1.05)

    saucer = things.saucer()
    layers = [
        Layer("stars", opaque(stars), sky),
        Layer("far ring", far_ring, lambda t: orb(t) @ shift(-65, 45), "planet"),
        Layer("globe", globe, orb, "planet"),
        Layer("saucer", saucer, lambda t: craft(t) @ shift(-85, -46), "flying saucer"),
        Layer("near ring", near_ring, lambda t: orb(t) @ shift(-65, 45), "planet"),
    ]
    return [Layer(one.name, one.texture, during(0, until, one.motion), one.thing) for one in layers]


def _cat(start: float, end: float) -> list[Layer]:
    photo = opaque(enlarged(photograph("chelsea"), 760))
    lean = ease(0, 1, end - start)

    def room(t: float) -> Matrix:
        return about(380, 252, shift(322 - 12 * lean(t - start), 186) @ scale(1.0 + 0.06 * lean(t - start)))

    def bounce(t: float) -> Matrix:
        phase = ((t - start) * 1.35 + 0.25) % 1.0
        height = 150 * 4 * phase * (1 - phase)
        return shift(70 + 150 * (t - start), 300 - height) @ turn(210 * (t - start)) @ scale(1.05) @ shift(-45, -45)

    def flutter(t: float) -> Matrix:
        s = t - start
        return shift(560 - 120 * s, 92 + 34 * np.sin(2.7 * s)) @ turn(-24 + 10 * float(np.sin(2.1 * s))) @ scale(0.92)

    def flap(side: int) -> Motion:
        return lambda t: flutter(t) @ scale(side * (0.62 + 0.36 * float(np.sin(11 * t))), 1) @ shift(-1, -55)

    layers = [
        Layer("cat", photo, room),
        Layer("yarn", things.ball(), bounce, "red ball"),
        Layer("left wing", things.wing(), flap(-1), "blue butterfly"),
        Layer("right wing", things.wing(), flap(1), "blue butterfly"),
        Layer("insect", things.insect(), lambda t: flutter(t) @ shift(-15, -58), "blue butterfly"),
    ]
    return [Layer(one.name, one.texture, during(start, np.inf, one.motion), one.thing, one.effect) for one in layers]


def _dusk() -> Floats:
    photo = enlarged(photograph("rocket"), 720)
    return opaque(np.clip(photo * 1.12 + 0.03, 0, 1))


def _road(width: int) -> Floats:
    """Pavement of brick, kerb and three lanes of asphalt, 210 px high."""
    gravel = enlarged(unit(photograph("gravel"))[..., None].repeat(3, axis=2), 300)
    asphalt = tiled(gravel, width, 210)
    asphalt = rgb("#3d4149") * (0.75 + 0.5 * asphalt)
    bricks = enlarged(unit(photograph("brick"))[..., None].repeat(3, axis=2), 220)
    paving = tiled(bricks, width, 22) * rgb("#c9a58c") * 1.35
    road = asphalt.copy()
    road[:22] = np.clip(paving, 0, 1)
    road[22:27] = rgb("#b9bcc0")
    road[27:30] = rgb("#2a2d33")
    for x in range(10, width, 90):
        road[80:83, x : x + 46] = rgb("#e9e4cf")
    lines = cv2.GaussianBlur(road, (0, 0), 0.6)
    shade = np.linspace(0.92, 1.08, 210, dtype=np.float32)[:, None, None]
    return opaque(np.clip(np.asarray(lines, np.float32) * shade, 0, 1))


def _wall(width: int, height: int) -> Floats:
    bricks = cv2.rotate(photograph("brick"), cv2.ROTATE_90_CLOCKWISE)
    grey = enlarged(unit(bricks)[..., None].repeat(3, axis=2), 620)
    value = np.clip((tiled(grey, width, height)[..., 0] - 0.22) * 1.9, 0, 1)
    wall = tinted(value.astype(np.float32), "#5b2a20", "#e7cdb6")
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    light = np.clip(1.15 - 0.0011 * np.hypot(x - width * 0.5, y - height * 0.3), 0.5, 1.15)[..., None]
    return np.asarray(np.clip(wall * light, 0, 1), np.float32)


def _pavement(width: int) -> Floats:
    gravel = enlarged(unit(photograph("gravel"))[..., None].repeat(3, axis=2), 300)
    slab = rgb("#7d8088") * (0.6 + 0.7 * tiled(gravel, width, 120))
    slab[:4] = rgb("#c3c5c9")
    return opaque(np.clip(slab, 0, 1).astype(np.float32))
