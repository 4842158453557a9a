"""A live source whose pictures tell when they were taken: a moving scene with a counter in it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np

from arr_stream.sources.base import Source, SourceInfo
from arr_stream.types import ByteArray, Frame

MODULUS = 1 << 16
"""Numbers begin again from here."""

_BITS = 20
_HALF_SHARE = 0.04
"""Height of one row of blocks, as a share of the picture's; at 640x360 both lie within one row of cells."""

READ_SCRIPT = """
window.arrReadCounter = (canvas) => {
  const {width, height} = canvas;
  const half = Math.round(height * HALF_SHARE), middle = Math.floor(height / 2);
  const {data} = canvas.getContext("2d").getImageData(0, middle - half, width, 2 * half);
  const grey = (x, y) => {
    let sum = 0;
    for (const dx of [-3, 0, 3]) {
      const at = 4 * (y * width + x + dx);
      sum += data[at] + data[at + 1] + data[at + 2];
    }
    return sum;
  };
  let value = 0;
  for (let k = 0; k < BITS; k += 1) {
    const x = Math.floor(((k + 0.5) * width) / BITS);
    if (grey(x, half >> 1) > grey(x, half + (half >> 1))) value |= 1 << k;
  }
  const number = value & 0xffff;
  const sum = (number ^ (number >> 4) ^ (number >> 8) ^ (number >> 12) ^ 9) & 15;
  return sum === value >> 16 ? number : null;
};
window.arrPaintCounter = (context, number) => {
  const {width, height} = context.canvas;
  const half = Math.round(height * HALF_SHARE), middle = Math.floor(height / 2);
  const sum = (number ^ (number >> 4) ^ (number >> 8) ^ (number >> 12) ^ 9) & 15;
  const value = number | (sum << 16);
  for (let k = 0; k < BITS; k += 1) {
    const left = Math.floor((k * width) / BITS), right = Math.floor(((k + 1) * width) / BITS);
    const bit = (value >> k) & 1;
    context.fillStyle = bit ? "#fff" : "#000";
    context.fillRect(left, middle - half, right - left, half);
    context.fillStyle = bit ? "#000" : "#fff";
    context.fillRect(left, middle, right - left, half);
  }
};
""".replace("HALF_SHARE", str(_HALF_SHARE)).replace("BITS", str(_BITS))
"""The same for a canvas: `arrReadCounter(canvas)` gives the number or null, `arrPaintCounter(context, number)`."""


def paint(rgb: ByteArray, number: int) -> None:
    """Draw a number, taken modulo 65536, into a picture `[H, W, 3]`, in place."""
    height, width = rgb.shape[:2]
    half, middle = round(height * _HALF_SHARE), height // 2
    number %= MODULUS
    value = number | _sum(number) << 16
    for k in range(_BITS):
        columns = slice(k * width // _BITS, (k + 1) * width // _BITS)
        level = 255 * (value >> k & 1)
        rgb[middle - half : middle, columns] = level
        rgb[middle : middle + half, columns] = 255 - level


def read(rgb: ByteArray) -> int | None:
    """The number in a picture `[H, W, 3]`; None where there is none that can be trusted."""
    height, width = rgb.shape[:2]
    half, middle = round(height * _HALF_SHARE), height // 2
    upper, lower = middle - half + half // 2, middle + half // 2
    value = 0
    for k in range(_BITS):
        x = (2 * k + 1) * width // (2 * _BITS)
        columns = slice(max(0, x - 3), x + 4)
        if rgb[upper, columns].astype(np.int64).sum() > rgb[lower, columns].astype(np.int64).sum():
            value |= 1 << k
    number = value & 0xFFFF
    return number if _sum(number) == value >> 16 else None


def _sum(number: int) -> int:
    """Return the checksum of a number; never 0 for 0, so that a black picture has no valid counter."""
    return (number ^ number >> 4 ^ number >> 8 ^ number >> 12 ^ 9) & 15


OnCapture = Callable[[int, float], None]
"""Callback with a frame's index and its capture time in seconds since 1970."""

_MARGIN_PX = 96
_FALL = 1.4
"""Amplitude over frequency; at 1.4 the JPEG of a picture is about as large as that of a photograph."""

_DISCS = ((0.145, (224, 60, 48), 0.61), (0.105, (60, 176, 84), 0.93), (0.072, (70, 96, 224), 1.37))
"""Radius as a share of the height, colour, and speed of the things that move over the scene."""


class Scene:
    """A texture with as much detail at every scale as photographs have, in slow motion, with three discs over it.

    Args:
        size_wh: Size of the pictures.
        seed: Another scene for another seed.
    """

    def __init__(self, size_wh: tuple[int, int], seed: int = 0) -> None:
        self.size_wh = size_wh
        self._ground = _texture((size_wh[0] + 2 * _MARGIN_PX, size_wh[1] + 2 * _MARGIN_PX), seed)

    def picture(self, index: int, seconds: float) -> ByteArray:
        """`[H, W, 3]` uint8 at a time, with the index drawn into it."""
        width, height = self.size_wh
        x = round(_MARGIN_PX * (1 + np.sin(0.5 * seconds)))
        y = round(_MARGIN_PX * (1 + np.sin(0.37 * seconds + 1)))
        rgb = self._ground[y : y + height, x : x + width].copy()
        for radius, colour, speed in _DISCS:
            centre = (
                round(width * (0.5 + 0.42 * np.sin(speed * seconds))),
                round(height * (0.5 + 0.4 * np.cos(1.3 * speed * seconds))),
            )
            cv2.circle(rgb, centre, round(radius * height), colour, -1, cv2.LINE_AA)
        paint(rgb, index)
        return rgb


class CounterSource(Source):
    """Gives the scene's pictures at their time, as a camera does; one that nobody waited for is not made up later.

    Args:
        scene: What is seen.
        fps: Pictures a second.
        on_capture: Told of each.
    """

    def __init__(self, scene: Scene, fps: float, on_capture: OnCapture) -> None:
        super().__init__()
        self._scene, self._fps, self._on_capture = scene, fps, on_capture
        self._closing = threading.Event()
        self.info = SourceInfo(
            name=f"counter at {fps:g} fps",
            kind="test",
            size_wh=scene.size_wh,
            pixel_aspect=1.0,
            average_fps=fps,
            duration_seconds=None,
            num_frames=None,
            codec="rgb24",
            path=None,
            live=True,
        )
        made = self._frames()
        self._first, self._made = next(made), made

    def _release(self) -> None:
        self._closing.set()

    def _frames(self) -> Iterator[Frame]:
        started_seconds = time.monotonic()
        index = 0
        while True:
            # The clock starts before the picture is made: a camera, too, needs time after the light has fallen.
            captured_seconds, captured_unix = time.monotonic(), time.time()
            seconds = captured_seconds - started_seconds
            rgb = self._scene.picture(index, seconds)
            self._on_capture(index, captured_unix)
            yield Frame(index, seconds, rgb, captured_seconds=captured_seconds)
            index += 1
            now = time.monotonic() - started_seconds
            due = (math.floor(now * self._fps) + 1) / self._fps
            if self._closing.wait(due - now):
                return


def _texture(size_wh: tuple[int, int], seed: int) -> ByteArray:
    """Noise whose amplitude falls with frequency, in colour: `[H, W, 3]` uint8."""
    width, height = size_wh
    generator = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    fall = np.maximum(np.hypot(fx, fy), 1.0 / max(size_wh)) ** -_FALL
    planes = []
    for weight in (1.0, 0.35, 0.35):
        phase = np.exp(2j * np.pi * generator.random((height, width // 2 + 1)))
        plane = np.fft.irfft2(fall * phase, s=(height, width))
        planes.append(weight * plane / plane.std())
    light, warm, green = planes
    rgb = 128 + 46 * np.stack([light + warm, light + green, light - warm - green], axis=-1)
    return np.ascontiguousarray(np.clip(rgb, 0, 255).astype(np.uint8))
