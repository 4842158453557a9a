"""A number drawn into a picture so that it survives what becomes of the picture on its way: compressed, dimmed, framed.

Two rows of blocks across the middle: twenty bits, and below each its opposite. A bit is read by comparing the two, so
no brightness matters. Sixteen bits hold the number, four a sum that betrays a misread one.
"""

from __future__ import annotations

import numpy as np

from arr_stream.types import ByteArray

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
    """Not 0 for the number 0, so that a picture without a counter does not read as one."""
    return (number ^ number >> 4 ^ number >> 8 ^ number >> 12 ^ 9) & 15
