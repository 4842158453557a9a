"""Appearance models of an object against its ground: pixel cues, a classifier on them, and a lighter colour model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.texture.arrays import Array
from arr_stream.texture.pixels import packed_colours
from arr_stream.threads import one_blas_thread
from arr_stream.types import ByteArray, FloatArray

Box = tuple[int, int, int, int]
"""First row, end row, first column, end column."""
Places = npt.NDArray[np.intp]
"""Flat indices of pixels within a box."""

BLURS_PX = 3, 9
"""Sides of the two neighbourhoods whose mean colour is a cue."""
_PLAIN_CUES = 10
COLOUR_AND_TEXTURE = (0, 1, 2, 9)
"""Cues without the neighbourhood's colour."""

# Over five seeds the accuracy of propagated masks stayed within 0.01, so any seed works.
_SEED = 2
_LEAST_SPREAD = 0.25
# Products of blocks this small stay on one thread of the linear algebra library. Waking others costs more than it
# gains, and milliseconds where cores are shared.
_BLOCK = 128


def cue_rows(rgb: ByteArray, box: Box, places: Places, *, extra: int = 0) -> FloatArray:
    """Return colour, mean colour of two neighbourhoods and texture of pixels in a box of a picture `[h, w, 3]` uint8.

    `[n, 10 + extra]` float32, in grey levels; the last `extra` columns are left free.
    """
    y0, y1, x0, x1 = box
    height, width = rgb.shape[:2]
    margin = max(BLURS_PX) // 2 + 1
    top, left = max(0, y0 - margin), max(0, x0 - margin)
    crop = np.ascontiguousarray(rgb[top : min(height, y1 + margin), left : min(width, x1 + margin)])
    grey = _shaped(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), crop.shape[:2])
    detail = _shaped(cv2.absdiff(grey, cv2.blur(grey, (3, 3))), grey.shape)
    texture = cv2.boxFilter(detail, cv2.CV_32F, (5, 5), normalize=False)
    rows = np.empty((len(places), _PLAIN_CUES + extra), np.float32)
    # Both rasters are counted row by row; a row of the crop is longer.
    skipped = crop.shape[1] - (x1 - x0)
    in_crop = places + (places // (x1 - x0)) * skipped + ((y0 - top) * crop.shape[1] + x0 - left)
    rows[:, 0:3] = crop.reshape(-1, 3).take(in_crop, axis=0)
    for first, side in zip((3, 6), BLURS_PX, strict=True):
        rows[:, first : first + 3] = cv2.blur(crop, (side, side)).reshape(-1, 3).take(in_crop, axis=0)
    rows[:, 9] = texture.ravel().take(in_crop)
    return rows


def _shaped(array: ByteArray, shape: tuple[int, ...]) -> ByteArray:
    """Restore sides of length one, which OpenCV drops."""
    return array.reshape(shape)


@dataclass(slots=True, eq=False)
class PixelModel:
    """Classifier of object against ground: ridge regression on fixed random rectified features.

    Score: `g(x) = beta . max(0, W x + b)`, beta from the closed form that brings g to +1 on the object and -1 on the
    ground ("extreme learning machine", Huang, Zhu and Siew, Neurocomputing 2006).

    Args:
        weights: `[c + 1, hidden]`, W and b, the latter for a constant cue.
        beta: `[hidden + 1]`, the last for a constant feature.
    """

    weights: Array
    beta: Array
    _cues: FloatArray = field(init=False, repr=False)
    _features: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count, hidden = self.weights.shape
        self._cues, self._features = (np.empty((0, _BLOCK, side), np.float32) for side in (count, hidden))

    @classmethod
    def of(cls, cues: FloatArray, *, hidden: int, scaled: int = 0) -> PixelModel:
        """Return a model that has yet to learn, for the scale of the cues `[n, c]`; the last `scaled` keep theirs."""
        mean, spread = cues.mean(axis=0), cues.std(axis=0)
        # A cue that hardly varies in the sample must not be scaled up elsewhere.
        spread += np.float32(_LEAST_SPREAD)
        if scaled:
            mean[-scaled:], spread[-scaled:] = 0, 1
        weights, offsets = _random_features(cues.shape[1], hidden)
        weights = weights / spread[:, None]
        return cls(np.vstack([weights, offsets - mean @ weights]), np.zeros(hidden + 1, np.float32))

    def learn(self, cues: FloatArray, towards: FloatArray, against: FloatArray, *, ridge: float) -> None:
        """Fit to weights `[n]` that each pixel has as object and as ground; both sides count the same in sum.

        `ridge` is the regularisation, relative to the mean square of a feature.
        """
        towards = towards / max(float(towards.sum()), 1e-6)
        against = against / max(float(against.sum()), 1e-6)
        weight = (towards + against).astype(np.float32)
        features = np.ones((len(cues), len(self.beta) + 1), np.float32)
        features[:, :-2] = self._rectified(cues)[: len(cues)]
        features[:, -1] = (towards - against) / np.maximum(weight, np.float32(1e-12))
        weighted = np.ascontiguousarray((features[:, :-1] * weight[:, None]).T)
        with one_blas_thread():
            product = (weighted @ features).astype(np.float64)
            normal, target = product[:, :-1], product[:, -1]
            least = ridge * float(normal.trace()) / len(normal) + 1e-9
            self.beta = np.linalg.solve(normal + least * np.eye(len(normal)), target).astype(np.float32)

    def score(self, cues: FloatArray) -> FloatArray:
        """`[n]`, about -1 (ground) to 1 (object)."""
        blocks = self._rectified(cues).reshape(-1, _BLOCK // 2, self.weights.shape[1])
        score: FloatArray = np.matmul(blocks, self.beta[:-1]).reshape(-1)[: len(cues)]
        score += self.beta[-1]
        return score

    def _rectified(self, cues: FloatArray) -> FloatArray:
        """`[n, hidden]`, filled up to whole blocks; valid until the next call."""
        blocks, (count, hidden) = -(-len(cues) // _BLOCK), self.weights.shape
        if len(self._features) < blocks:
            self._cues = np.ones((blocks, _BLOCK, count), np.float32)
            self._features = np.empty((blocks, _BLOCK, hidden), np.float32)
        self._cues.reshape(-1, count)[: len(cues), :-1] = cues
        np.matmul(self._cues[:blocks], self.weights, out=self._features[:blocks])
        flat: FloatArray = self._features[:blocks].reshape(-1, hidden)
        # Seven times as fast as NumPy's maximum.
        cv2.threshold(flat, 0, 0, cv2.THRESH_TOZERO, dst=flat)
        return flat


@lru_cache(maxsize=8)
def _random_features(cues: int, hidden: int) -> tuple[FloatArray, FloatArray]:
    generator = np.random.default_rng(_SEED)
    weights = generator.normal(size=(cues, hidden)) / np.sqrt(cues)
    return weights.astype(np.float32), generator.uniform(-1.5, 1.5, hidden).astype(np.float32)


class ColourModel:
    """Colour model of an object against its ground, by the log-likelihood ratio `log (f + e) / (g + e)`.

    f and g are normalised histograms of 32 levels a channel, smoothed against changes of light and noise; e is a floor
    that makes unseen colours neutral.

    Args:
        prior: Expected share of the picture that the object covers.

    Attributes:
        table: `[32768]`, the posterior of every colour, indexed as by `packed_colours` with 5 bits of green.
    """

    _BITS = 5
    _FLOOR = 1e-4
    _LIMIT = 5.0

    def __init__(self, *, prior: float = 0.1) -> None:
        size = 1 << (3 * self._BITS)
        self._figure, self._ground = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._prior_logit = float(np.log(prior / (1 - prior)))
        self.table = np.full(size, prior, np.float32)

    def learn(
        self, rgb: ByteArray, towards: FloatArray | float, against: FloatArray | float, *, rate: float = 1.0
    ) -> None:
        """Learn from a picture with weights of each pixel as object and as ground.

        Args:
            rgb: `[h, w, 3]` uint8.
            towards, against: `[h, w]`, or one for all pixels; at least 0. A side with weights of 0 is not changed.
            rate: Weight of the new picture; 1 forgets the earlier ones.
        """
        if np.any(towards):
            self._figure += np.float32(rate) * (self._histogram(rgb, towards) - self._figure)
        if np.any(against):
            self._ground += np.float32(rate) * (self._histogram(rgb, against) - self._ground)
        ratio = np.log((self._figure + self._FLOOR) / (self._ground + self._FLOOR))
        logit = np.clip(ratio, -self._LIMIT, self._LIMIT).astype(np.float32) + self._prior_logit
        self.table = (1 / (1 + np.exp(-logit))).astype(np.float32)

    def posterior(self, rgb: ByteArray) -> FloatArray:
        """Return `[h, w]` in [0, 1]: probability of the object at each pixel of `[h, w, 3]`, by colour alone."""
        return np.asarray(self.table.take(packed_colours(rgb, self._BITS)))

    def _histogram(self, rgb: ByteArray, weight: FloatArray | float) -> FloatArray:
        side = 1 << self._BITS
        weights = np.broadcast_to(weight, rgb.shape[:2]).ravel()
        counts = np.bincount(packed_colours(rgb, self._BITS).ravel(), weights, side**3)
        smooth = (counts / max(float(counts.sum()), 1e-6)).astype(np.float32).reshape(side, side, side)
        for _ in range(3):
            rows = smooth.reshape(-1, side)
            for _ in range(2):
                rows = cv2.GaussianBlur(rows, (5, 1), 0.7, borderType=cv2.BORDER_REPLICATE)
            smooth = np.ascontiguousarray(np.moveaxis(rows.reshape(side, side, side), 2, 0))
        return smooth.ravel()
