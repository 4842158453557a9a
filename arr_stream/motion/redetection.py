"""Re-identification of an object that left, was occluded or was lost, by its appearance while it was tracked.

A template holds the object's mean appearance: lightness, two colours and the strength of edges in
four directions, relative to the scene's mean appearance (whitened by its covariance, as in Hariharan, Malik and
Ramanan, "Discriminative decorrelation for clustering and classification", ECCV 2012). The similarity of a place is the
cosine under the mask. An object that deforms keeps its colours, so these count as much: the object's colours on the
place, and not around it (Bertinetto et al., "Staple: complementary learners for real-time tracking", CVPR 2016).

The similarity of other places is learned while the object is visible; a detection must exceed it.
Tracking continues in parallel, and is trusted as far as its place looks like the object (Kalal, Mikolajczyk
and Matas, "Tracking-learning-detection", PAMI 2012). The template learns only where both agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.motion.appearance import ColourModel
from arr_stream.types import ByteArray, FloatArray

Slices = tuple[slice, slice]
"""Rows and columns."""

_SIDE = 8
_LEAST_SIDE = 4
_SURROUNDINGS = 0.5
"""Weight of the colours around a place against those on it."""
_RATE = 0.1
"""Learning rate of the mean appearance of the object and the ground."""
_FOUND = 0.06
"""Least margin of similarity over the best other place for a detection, and for full trust in the tracked place."""
_LEARNED = 0.1
"""Least margin for learning."""
_SURE = 0.14
"""Least margin of a detection that needs no second sighting."""
_BETTER = 0.1
"""Least margin of another place over the tracked one."""
_IN_DOUBT = 0.15
"""Largest confidence of the tracked place after a loss."""
_STRANGE = 0.4
"""Similarity, as a share of the object's usual one, that an unknown object may reach."""
_EVERYWHERE = 5
"""Interval, in calls of `search`, of searches over the whole picture while the object is tracked."""
_GROWN = (0.5, 1.6)
_SPILT = 2.0
"""Growth of a mask's area that counts as leakage into the ground; the mask is then reset to the object."""
_FORGOTTEN = 0.98
_REGULARISED = 0.01
_LEAST_ENERGY = 0.3
_PRESENT = 0.3
_DIRECTIONS = tuple(np.float32(turn * np.pi / 2) for turn in range(4))


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """Confidence in [0, 1] that the tracked or detected place is the object; its mask if it is detected elsewhere."""

    confidence: float
    mask: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """Appearance of the object: `[h, w, 8]` features times the mask, and the mask `[h, w]` in [0, 1]."""

    masked: FloatArray
    mask: FloatArray

    @property
    def norm(self) -> float:
        """Length of the features under the mask."""
        return float(np.sqrt((self.masked**2 / np.maximum(self.mask, 1e-3)[..., None]).sum()))

    def mixed(self, other: _Template, share: float) -> _Template:
        masked, mask = self.masked, self.mask
        return _Template(masked + share * (other.masked - masked), mask + share * (other.mask - mask))


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of the raster."""

    likeness: float
    row: int = 0
    column: int = 0

    @classmethod
    def likest(cls, likeness: FloatArray) -> _Place:
        """Return the place of the maximum of `[h, w]`."""
        row, column = np.unravel_index(int(likeness.argmax()), likeness.shape)
        return cls(float(likeness[row, column]), int(row), int(column))

    def near(self, other: _Place) -> bool:
        return max(abs(self.row - other.row), abs(self.column - other.column)) <= _SIDE


class Redetector:
    """Re-identification of one object.

    Pictures are `[h, w, 3]` uint8 and masks `[h, w]` in [0, 1], all of one size.

    Args:
        rgb: The picture that the object was given on.
        mask: The object on it.

    Raises:
        ValueError: The mask holds less than a pixel.
    """

    def __init__(self, rgb: ByteArray, mask: FloatArray) -> None:
        self._shape, self._area_px = mask.shape, float(mask.sum())
        if self._area_px < 1:
            raise ValueError(f"the mask holds {self._area_px:g} pixels, at least one is needed")
        scale = min(1.0, _SIDE / float(np.sqrt(self._area_px)))
        height, width = (max(_LEAST_SIDE, round(side * scale)) for side in mask.shape)
        self._raster_hw = height, width
        usual = _features(rgb, self._raster_hw).reshape(height * width, -1)
        self._mean = usual.mean(axis=0)
        self._whitening = _whitening(usual)
        self._colours = ColourModel(prior=0.5)
        self._colours.learn(rgb, mask, 1 - mask)
        small = self._reduced(mask)
        self._extent_hw = tuple(part.stop - part.start for part in _extent(small))
        self._template = self._seen(self._whitened(rgb), small, *_middle(small))
        self._usual_likeness = self._likest_other = 0.0
        self._lost, self._looks = False, 0
        self._candidate: _Place | None = None
        self.search(rgb, mask)

    @property
    def lost(self) -> bool:
        """True if the last look did not find the object."""
        return self._lost

    def search(self, rgb: ByteArray, mask: FloatArray) -> Finding:
        """Compare a picture with the object's model, and update the model; the tracked `mask` on it may be empty."""
        features, small = self._whitened(rgb), self._reduced(mask)
        around = self._around(*_middle(small)) if float(mask.sum()) >= 1 else None
        everywhere = around is None or self._lost or self._looks % _EVERYWHERE == 0
        self._looks += 1
        if everywhere:
            self._colours.learn(rgb, 0.0, 1.0 if self._lost else 1 - mask, rate=_RATE)
        searched = np.s_[:, :] if everywhere or around is None else _widened(around, self._extent_hw)
        likeness = np.full(self._raster_hw, -1, np.float32)
        likeness[searched] = self._likeness(features[searched], self._reduced(self._colours.posterior(rgb))[searched])
        here, elsewhere = _split(likeness, around)
        candidate, self._candidate = self._candidate, None
        margin = self._margin(here, elsewhere)
        if not self._lost and margin >= _FOUND:
            if margin >= _LEARNED:
                self._learn(features, mask, here, elsewhere)
            return Finding(1.0, self._mask_at(here) if float(mask.sum()) > _SPILT * self._area_px else None)
        best = elsewhere if elsewhere.likeness > here.likeness + _BETTER else here
        if self._lost or best is elsewhere:
            found = self._margin(best, _split(likeness, self._around(best.row, best.column))[1])
            if found >= _SURE or (found >= _FOUND and candidate is not None and best.near(candidate)):
                self._lost = False
                return Finding(1.0, self._mask_at(best))
            self._candidate = best if found >= _FOUND else None
        confidence = min(1.0, max(0.0, margin / _FOUND))
        self._lost = self._lost or confidence < 0.5
        return Finding(min(confidence, _IN_DOUBT) if self._lost else confidence)

    def _margin(self, place: _Place, other: _Place) -> float:
        """Return the margin of a place's similarity over other places, learned ones, and unknown objects."""
        return place.likeness - max(other.likeness, self._likest_other, _STRANGE * self._usual_likeness)

    def _learn(self, features: FloatArray, mask: FloatArray, here: _Place, elsewhere: _Place) -> None:
        """Learn the appearance of the object and of other places, where tracking and appearance agree."""
        small = self._reduced(mask)
        off = (abs(at - middle) for at, middle in zip((here.row, here.column), _middle(small), strict=True))
        if any(by > max(1, side / 3) for by, side in zip(off, self._extent_hw, strict=True)):
            return
        self._likest_other = max(self._likest_other * _FORGOTTEN, elsewhere.likeness)
        self._usual_likeness += (_RATE if self._usual_likeness else 1.0) * (here.likeness - self._usual_likeness)
        if _GROWN[0] < float(mask.sum()) / self._area_px < _GROWN[1]:
            self._template = self._template.mixed(self._seen(features, small, here.row, here.column), _RATE)

    def _seen(self, features: FloatArray, small: FloatArray, row: int, column: int) -> _Template:
        """Return the template under a mask around a place."""
        height, width = self._extent_hw
        top, left = row - height // 2, column - width // 2

        def cut(image: FloatArray) -> FloatArray:
            padded = cv2.copyMakeBorder(image, height, height, width, width, cv2.BORDER_CONSTANT)
            return np.ascontiguousarray(padded[height + top :, width + left :][:height, :width])

        part = cut(small)
        return _Template(cut(features) * part[..., None], part)

    def _around(self, row: int, column: int) -> Slices:
        """Return the places whose templates overlap that of a place by half."""
        down, across = (side // 2 + 1 for side in self._extent_hw)
        return slice(max(0, row - down), row + down + 1), slice(max(0, column - across), column + across + 1)

    def _likeness(self, features: FloatArray, colours: FloatArray) -> FloatArray:
        """Return `[h, w]`, at most 1: similarity of the object centred at each place."""
        mask, (height, width) = self._template.mask, self._extent_hw
        kernel = cv2.copyMakeBorder(1 - mask, *_sides(height, width), cv2.BORDER_CONSTANT, value=1.0)
        kernel *= np.float32(-_SURROUNDINGS / kernel.sum())
        kernel[height // 2 :, width // 2 :][:height, :width] += mask / mask.sum()
        padded = cv2.copyMakeBorder(colours, *_sides(*kernel.shape), cv2.BORDER_CONSTANT)
        likeness = self._cosine(features) + cv2.matchTemplate(padded, kernel, cv2.TM_CCORR)
        return np.asarray(likeness / 2, np.float32)

    def _cosine(self, features: FloatArray) -> FloatArray:
        """Return the cosine `[h, w]` in [-1, 1] of the features around each place with the template."""
        template, norm = self._template, self._template.norm
        padded = cv2.copyMakeBorder(features, *_sides(*self._extent_hw), cv2.BORDER_CONSTANT)
        energy = cv2.matchTemplate((padded**2).sum(2), template.mask, cv2.TM_CCORR)
        # A place that is half outside, or nearly uniform, must not match by its few features.
        length = np.sqrt(np.maximum(energy, _LEAST_ENERGY * norm**2)) * max(norm, 1e-6)
        product = _product(padded, template.masked)
        return np.asarray(product / length, np.float32).reshape(features.shape[:2])

    def _mask_at(self, place: _Place) -> FloatArray:
        """Return the object's mask, centred at a place."""
        mask, (rows, columns) = self._template.mask, self._raster_hw
        height, width = mask.shape
        padded = np.zeros((rows + height, columns + width), np.float32)
        padded[place.row : place.row + height, place.column : place.column + width] = mask
        small = padded[height // 2 : height // 2 + rows, width // 2 : width // 2 + columns]
        return np.asarray(cv2.resize(small, self._shape[::-1], interpolation=cv2.INTER_LINEAR)).reshape(self._shape)

    def _reduced(self, mask: FloatArray) -> FloatArray:
        """Reduce a mask to the raster."""
        small: FloatArray = cv2.resize(mask, self._raster_hw[::-1], interpolation=cv2.INTER_AREA)
        return small.reshape(self._raster_hw)

    def _whitened(self, rgb: ByteArray) -> FloatArray:
        """Return whitened features `[h, w, 8]`, the last one empty."""
        whitened = (_features(rgb, self._raster_hw) - self._mean) @ self._whitening
        return np.concatenate([whitened, np.zeros((*self._raster_hw, 1), np.float32)], axis=2, dtype=np.float32)


def _middle(small: FloatArray) -> tuple[int, int]:
    """Return row and column of a mask's centre of mass."""
    mass = max(float(small.sum()), 1e-6)
    return int(small.sum(1) @ np.arange(small.shape[0]) / mass), int(small.sum(0) @ np.arange(small.shape[1]) / mass)


def _sides(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the padding above, below, left and right that gives a template a match at each place of a picture."""
    return height // 2, height - 1 - height // 2, width // 2, width - 1 - width // 2


def _product(features: FloatArray, template: FloatArray) -> FloatArray:
    """Return the inner product of a template at each place; OpenCV takes at most four channels at a time."""
    first, second = (
        cv2.matchTemplate(
            np.ascontiguousarray(features[..., four]), np.ascontiguousarray(template[..., four]), cv2.TM_CCORR
        )
        for four in (np.s_[:4], np.s_[4:])
    )
    return np.asarray(first + second)


def _split(likeness: FloatArray, around: Slices | None) -> tuple[_Place, _Place]:
    """Return the most similar place of `[h, w]` around the tracked one, and elsewhere."""
    if around is None:
        return _Place(-1.0), _Place.likest(likeness)
    near = np.zeros(likeness.shape, bool)
    near[around] = True
    return _Place.likest(np.where(near, likeness, -1)), _Place.likest(np.where(near, -1, likeness))


def _widened(around: Slices, by_hw: tuple[int, ...]) -> Slices:
    rows, columns = (slice(max(0, part.start - by), part.stop + by) for part, by in zip(around, by_hw, strict=True))
    return rows, columns


def _extent(small: FloatArray) -> Slices:
    """Return rows and columns of a mask's support on the raster; of a weak mask, those of its maximum."""
    x, y, width, height = cv2.boundingRect((small >= min(_PRESENT, float(small.max()))).astype(np.uint8))
    return slice(y, y + height), slice(x, x + width)


def _whitening(usual: FloatArray) -> FloatArray:
    """Return the matrix `[7, 7]` that brings features `[n, 7]` to unit covariance."""
    covariance = np.cov(usual, rowvar=False)
    values, vectors = np.linalg.eigh(covariance + np.eye(len(covariance)) * (_REGULARISED * covariance.trace() + 1e-6))
    whitening: FloatArray = ((vectors / np.sqrt(values)) @ vectors.T).astype(np.float32)
    return whitening


def _features(rgb: ByteArray, raster_hw: tuple[int, int]) -> FloatArray:
    """Return `[h, w, 7]`: lightness, two colours, and edges in four directions by the root of their strength."""
    # Twice the raster's resolution suffices for edges.
    if rgb.shape[0] > 3 * raster_hw[0]:
        rgb = cv2.resize(rgb, (2 * raster_hw[1], 2 * raster_hw[0]), interpolation=cv2.INTER_AREA)
    lab = cv2.resize(rgb, raster_hw[::-1], interpolation=cv2.INTER_AREA)
    lab = cv2.cvtColor(lab.reshape(*raster_hw, 3), cv2.COLOR_RGB2LAB)
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0, scale=1 / 8), cv2.Sobel(grey, cv2.CV_32F, 0, 1, scale=1 / 8)
    strength, angle = cv2.cartToPolar(across, down)
    # Twice the angle, so that dark on bright and bright on dark are one direction.
    turned, root = 2 * angle, cv2.sqrt(strength)
    edges = np.stack([root * np.maximum(np.cos(turned - turn), 0) for turn in _DIRECTIONS], axis=2)
    reduced = cv2.resize(edges, raster_hw[::-1], interpolation=cv2.INTER_AREA)
    return np.concatenate([lab.reshape(*raster_hw, 3), reduced.reshape(*raster_hw, 4)], axis=2, dtype=np.float32)
