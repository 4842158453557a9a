"""Finds an object again that left, was covered, or was lost, by what it looked like while it was followed.

A few views of the object are kept: six places a side of lightness, two colours and the strength of edges in four
directions, less what is usual in the scene (whitened by its covariance, as in Hariharan, Malik and Ramanan,
"Discriminative decorrelation for clustering and classification", ECCV 2012). A place of a frame is as like the object
as its best view, by the cosine under the view's mask.

How alike other places get is learned while the object is in sight, and what counts as the object stands out of that.
Following goes on beside it, and is believed as far as the place that it is at looks like the object (Kalal, Mikolajczyk
and Matas, "Tracking-learning-detection", PAMI 2012).
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.types import ByteArray, FloatArray

Slices = tuple[slice, slice]
"""Rows and columns."""

VIEWS = 6
"""Most views that are kept of an object."""

_SIDE = 6
_LEAST_SIDE = 4
_FOUND = 0.3
"""Share of the way from the likest other place to perfect likeness, from which on a place is taken for the object, and
the one that is followed is believed in full."""
_SURE = 0.7
"""The same for a place that need not be seen twice."""
_LEAST_FOUND, _LEAST_LEARNED = 0.5, 0.6
"""Likeness below which nothing is taken for the object, and none of its views is kept."""
_KNOWN = 0.85
"""Likeness from which a view would add nothing."""
_BETTER = 0.1
"""By how much another place must be more alike than the one that is followed."""
_IN_DOUBT = 0.15
"""Most confidence in what is followed after it was lost."""
_EVERYWHERE = 5
"""What is followed is compared on every look, the rest of the picture on every fifth, until it is lost."""
_GROWN = (0.6, 1.6)
_FORGOTTEN = 0.98
_REGULARISED = 0.01
_LEAST_ENERGY = 0.3
_PRESENT = 0.3
_DIRECTIONS = tuple(np.float32(turn * np.pi / 2) for turn in range(4))


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """What a look at a picture told.

    Args:
        confidence: In [0, 1], that the object is where it is followed, or found.
        mask: `[h, w]` in [0, 1], where it is found elsewhere; None where it is not.
    """

    confidence: float
    mask: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What the object looked like once.

    Args:
        masked: `[h, w, 8]` features times the mask.
        mask: `[h, w]` in [0, 1].
        norm: Length of the features under the mask.
    """

    masked: FloatArray
    mask: FloatArray
    norm: float


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of the raster, and the view that it is like."""

    likeness: float
    view: int = 0
    row: int = 0
    column: int = 0

    @classmethod
    def likest(cls, likeness: FloatArray) -> _Place:
        """Of `[views, h, w]`."""
        view, row, column = np.unravel_index(int(likeness.argmax()), likeness.shape)
        return cls(float(likeness[view, row, column]), int(view), int(row), int(column))

    def near(self, other: _Place) -> bool:
        return max(abs(self.row - other.row), abs(self.column - other.column)) <= _SIDE


class Redetector:
    """What one object looked like, and where it is on a picture.

    Pictures are `[h, w, 3]` uint8 and masks `[h, w]` in [0, 1], all of one size.

    Args:
        rgb: The picture that the object was given on.
        mask: Where it is there.

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
        self._views = [self._view(self._whitened(rgb), mask)]
        self._likest_other, self._lost, self._looks, self._candidate = 0.0, False, 0, _Place(-1.0)
        self.look(rgb, mask)

    @property
    def views(self) -> int:
        """How many are kept."""
        return len(self._views)

    def look(self, rgb: ByteArray, mask: FloatArray) -> Finding:
        """Compare a picture with what is known of the object, and learn how it looks by now.

        Args:
            rgb: The picture.
            mask: What is followed there; may be empty.
        """
        features, small = self._whitened(rgb), self._reduced(mask)
        around = self._around(small)
        everywhere = around is None or self._lost or self._looks % _EVERYWHERE == 0
        self._looks += 1
        searched = np.s_[:, :] if everywhere or around is None else _widened(around, self._views[0].mask.shape)
        likeness = np.full((len(self._views), *self._raster_hw), -1, np.float32)
        for found, view in zip(likeness, self._views, strict=True):
            found[searched] = self._likeness(features[searched], view)
        here, elsewhere = _split(likeness, around)
        candidate, self._candidate = self._candidate, _Place(-1.0)
        standing = self._standing(here)
        if not self._lost and standing >= _FOUND and here.likeness > elsewhere.likeness:
            self._likest_other = max(self._likest_other * _FORGOTTEN, elsewhere.likeness)
            if _LEAST_LEARNED <= here.likeness < _KNOWN and self._whole(mask):
                self._learn(self._view(features, mask), mask)
            return Finding(1.0)
        best = elsewhere if elsewhere.likeness > here.likeness + _BETTER else here
        if (self._lost or best is elsewhere) and self._taken(best):
            if self._standing(best) >= _SURE or best.near(candidate):
                self._lost = False
                return Finding(1.0, self._mask_at(best))
            self._candidate = best
        confidence = min(1.0, max(0.0, standing / _FOUND))
        self._lost = self._lost or confidence < 0.5
        return Finding(min(confidence, _IN_DOUBT) if self._lost else confidence)

    def _standing(self, place: _Place) -> float:
        """0 for what is as like the object as other places are, 1 for what is just like it."""
        return (place.likeness - self._likest_other) / (1 - min(self._likest_other, 0.99))

    def _taken(self, place: _Place) -> bool:
        """It may be taken for the object."""
        return place.likeness >= _LEAST_FOUND and self._standing(place) >= _FOUND

    def _whole(self, mask: FloatArray) -> bool:
        """About as large as the object was, and not cut by the picture's border."""
        extent = zip(_extent(self._reduced(mask)), self._raster_hw, strict=True)
        inside = all(part.start > 0 and part.stop < side for part, side in extent)
        return inside and _GROWN[0] < float(mask.sum()) / self._area_px < _GROWN[1]

    def _learn(self, view: _View, mask: FloatArray) -> None:
        """Keep a view; of too many the oldest goes, but never the first."""
        self._views.append(view)
        self._area_px = float(mask.sum())
        if len(self._views) > VIEWS:
            del self._views[1]

    def _view(self, features: FloatArray, mask: FloatArray) -> _View:
        """How the object looks under a mask."""
        small = self._reduced(mask)
        rows, columns = _extent(small)
        within, seen = np.ascontiguousarray(small[rows, columns]), features[rows, columns]
        masked = seen * within[..., None]
        return _View(masked, within, float(np.sqrt((seen * masked).sum())))

    def _around(self, small: FloatArray) -> Slices | None:
        """Places that overlap a mask on the raster by half; None where it holds less than a pixel."""
        mass = float(small.sum())
        if mass * self._shape[0] * self._shape[1] < small.size:
            return None
        (height, width), (rows, columns) = small.shape, self._views[-1].mask.shape
        row, column = int(small.sum(1) @ np.arange(height) / mass), int(small.sum(0) @ np.arange(width) / mass)
        down, across = rows // 2 + 1, columns // 2 + 1
        return slice(max(0, row - down), row + down + 1), slice(max(0, column - across), column + across + 1)

    def _likeness(self, features: FloatArray, view: _View) -> FloatArray:
        """`[h, w]` in [-1, 1]: how alike a view is to what is around each place, which is its middle."""
        height, width = view.mask.shape
        sides = height // 2, height - 1 - height // 2, width // 2, width - 1 - width // 2
        padded = cv2.copyMakeBorder(features, *sides, cv2.BORDER_CONSTANT)
        energy = cv2.matchTemplate((padded**2).sum(2), view.mask, cv2.TM_CCORR)
        product = _product(padded, view.masked)
        # A place that is half outside, or nearly plain, must not be alike by the little that it shows.
        length = np.sqrt(np.maximum(energy, _LEAST_ENERGY * view.norm**2)) * max(view.norm, 1e-6)
        return np.asarray(product / length, np.float32).reshape(features.shape[:2])

    def _mask_at(self, place: _Place) -> FloatArray:
        """A view's mask where it is seen."""
        mask, (rows, columns) = self._views[place.view].mask, self._raster_hw
        height, width = mask.shape
        padded = np.zeros((rows + height, columns + width), np.float32)
        padded[place.row : place.row + height, place.column : place.column + width] = mask
        small = padded[height // 2 : height // 2 + rows, width // 2 : width // 2 + columns]
        return np.asarray(cv2.resize(small, self._shape[::-1], interpolation=cv2.INTER_LINEAR)).reshape(self._shape)

    def _reduced(self, mask: FloatArray) -> FloatArray:
        """A mask on the raster."""
        small: FloatArray = cv2.resize(mask, self._raster_hw[::-1], interpolation=cv2.INTER_AREA)
        return small.reshape(self._raster_hw)

    def _whitened(self, rgb: ByteArray) -> FloatArray:
        """`[h, w, 8]` features, the last one empty."""
        whitened = (_features(rgb, self._raster_hw) - self._mean) @ self._whitening
        return np.concatenate([whitened, np.zeros((*self._raster_hw, 1), np.float32)], axis=2, dtype=np.float32)


def _product(features: FloatArray, template: FloatArray) -> FloatArray:
    """Inner product of a template with what is at each place; OpenCV takes at most four channels at a time."""
    first, second = (
        cv2.matchTemplate(
            np.ascontiguousarray(features[..., four]), np.ascontiguousarray(template[..., four]), cv2.TM_CCORR
        )
        for four in (np.s_[:4], np.s_[4:])
    )
    return np.asarray(first + second)


def _split(likeness: FloatArray, around: Slices | None) -> tuple[_Place, _Place]:
    """The likest place of `[views, h, w]` around what is followed, and elsewhere."""
    if around is None:
        return _Place(-1.0), _Place.likest(likeness)
    near = np.zeros(likeness.shape[1:], bool)
    near[around] = True
    return _Place.likest(np.where(near, likeness, -1)), _Place.likest(np.where(near, -1, likeness))


def _widened(around: Slices, by_hw: tuple[int, ...]) -> Slices:
    rows, columns = (slice(max(0, part.start - by), part.stop + by) for part, by in zip(around, by_hw, strict=True))
    return rows, columns


def _extent(small: FloatArray) -> Slices:
    """Rows and columns where a mask on the raster has something; where it has little everywhere, its strongest."""
    x, y, width, height = cv2.boundingRect((small >= min(_PRESENT, float(small.max()))).astype(np.uint8))
    return slice(y, y + height), slice(x, x + width)


def _whitening(usual: FloatArray) -> FloatArray:
    """`[7, 7]`: brings features `[n, 7]` to unit covariance."""
    covariance = np.cov(usual, rowvar=False)
    values, vectors = np.linalg.eigh(covariance + np.eye(len(covariance)) * (_REGULARISED * covariance.trace() + 1e-6))
    whitening: FloatArray = ((vectors / np.sqrt(values)) @ vectors.T).astype(np.float32)
    return whitening


def _features(rgb: ByteArray, raster_hw: tuple[int, int]) -> FloatArray:
    """`[h, w, 7]`: lightness, two colours, and edges in four directions by the root of their strength."""
    # Twice the raster shows edges well enough; more would only cost time.
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
