"""Region tracking: a region is carried along the flow and corrected by the object's appearance.

Chained warping drifts, and an appearance model gains more than a costlier flow. Where the region is known, a small
classifier learns object against surroundings; on each later frame, at every place,

    prior            = blur(warp(posterior of the frame before)), pulled towards ignorance where the flow fails
    logit posterior  = logit prior + clip(gain * g(cues)) + motion * m + first * f

with g the classifier's score; m, for loose regions only, motion evidence: how much faster than its surroundings a place
moves against the camera; and f, for exact masks only, the mask that was given, warped in one step, without chained
blurs, weighted by the flow's confidence. A guided filter then aligns the border of the posterior to colour edges. The
blur lets the border move by a pixel or two a frame; the prior excludes similar places elsewhere. The cues are colour,
mean colour of two neighbourhoods, texture, and the place relative to the object's centre and spread, so that a dark
part below differs from a dark part above.

The host computes in a box around the region, and classifies only places where the prior is unsure; elsewhere it
classifies a coarse lattice and interpolates the evidence. A device computes on the whole picture (`gpu/pixels.py`).

A loose region, such as a box, is first split into figure and ground by alternation: places outside are ground, and
inside both are mixed, so a classifier on colour and texture is learned from the present estimate and gives the next
one.

What each part is worth, on ten sequences of DAVIS (mean IoU of a mask carried over 10 and 30 frames, and coverage of
the object by the best 40 and 101 of 405 cells from the first frame's box):

                                     IoU 10   30    |  cells 40   101
    all parts                          0.79   0.75  |    0.79     0.98
    without the classifier             0.70   0.55  |    0.70     0.94
    ... place among the cues           0.78   0.71  |    0.79     0.98
    ... doubt where the flow fails     0.78   0.74  |    0.78     0.97
    ... half of the features           0.78   0.73  |    0.79     0.98
    ... the mask that was given        0.78   0.73  |
    ... the border at colours          0.78   0.73  |    0.77     0.97
    ... motion evidence                             |    0.74     0.96
    ... figure told from ground                     |    0.76     0.98
    ... either of these                             |    0.69     0.94
    ... the halo                                    |    0.79     0.98

`redetection` searches for an object that was occluded or left the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, singledispatch
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.motion.appearance import COLOUR_AND_TEXTURE, Box, PixelModel, Places, cue_rows
from arr_stream.motion.camera import camera_of, speed_px
from arr_stream.motion.flow import Flow, base_grid, compose
from arr_stream.texture.arrays import Array, at_least, at_most, constant, either, namespace, number, zeros
from arr_stream.texture.pixels import averaged, box_means, exponential, gaussian, guided, line_sums, picture_hw, resized
from arr_stream.types import BoolArray, ByteArray, FloatArray

LEAST_MASS_PX = 1.0
NEGLIGIBLE = 0.015  # a prior
_LEAST_AGREEMENT = 0.5
_LATTICE = 5  # odd, so that a lattice point is in the middle of its square


# The weights of the tracker's parts: one set for all footage; the optimum is broad.
GAIN = {True: 4.0, False: 2.0}
"""Logits per unit of the classifier's score (about -1 to 1), for exact masks and for loose regions."""
PLACE = {True: 0.35, False: 0.2}
"""Weight of the position relative to the object among the cues, which is less certain for loose regions."""
LIMIT = 4.0
"""Largest evidence of one frame, in logits."""
_HIDDEN, _RIDGE = 128, 3e-4
"""Random features of the classifier, and its regularisation, relative to the mean square of a feature."""
_RING_PX, _FAR = 21, 0.15
"""Ground within half of this around the object is learned with most of the weight; the share of the rest."""
_BLUR_PX = 5
"""Side of the prior's blur."""
_FLOOR, _CEILING = 0.003, 0.98
"""Bounds of the prior, so that a frame can overrule it."""
_DOUBT, _IGNORANCE = 0.5, 0.4
"""Share of the flow's residual that counts as failure, and the prior where the flow fails."""
_FIRST = 1.0
"""Logits of an exact mask carried from its own frame, where that flow is trusted."""
_BORDER_PX, _BORDER_VARIANCE = 5, 6.5
"""Side of the guided filter's windows, at half size, and the variance, in grey levels squared, of an edge."""
_UNSURE = 0.08, 0.92
"""Priors within these bounds are classified pixel by pixel."""
_ROWS_PX = 600
"""Most unsure pixels that are all classified; of more, every second row is, and the others are interpolated."""
_MOTION = 1.2
"""Logits per unit of motion evidence on loose regions."""
_FILL, _FIGURE_GAIN, _FIGURE_ROUNDS = 0.45, 4.0, 6
"""Separation of figure and ground in a loose region: assumed share of the figure, logits per unit of score, rounds."""
_HEDGE = 0.1
"""Weight of the surroundings in a loose region's relevance, for occlusions."""
_MEMORY = 0.5
"""Weight of the last known posterior after a cut."""


@dataclass(frozen=True, slots=True)
class ObjectFrame:
    """Centre and standard deviation of a soft mask, in pixels: the object's own coordinates.

    Numbers on the host, tensors without axes on a device.
    """

    mass: Any
    x: Any
    y: Any
    spread_x: Any
    spread_y: Any

    @classmethod
    def of(cls, mask: Array, box: Box) -> ObjectFrame:
        """Return the frame of a mask on a box; it is meaningless for a mass below `LEAST_MASS_PX`."""
        column, row = line_sums(mask)
        mass = number(column.sum())
        (x, spread_x), (y, spread_y) = _moments(column, mass), _moments(row, mass)
        return cls(mass, x + box[2], y + box[0], spread_x, spread_y)

    def axes(self, box: Box, beside: Array) -> tuple[Array, Array]:
        """Return coordinates of a box's columns and rows, clipped at 3 spreads, on the device of `beside`."""
        (y0, y1, x0, x1), clip = box, namespace(beside).clip
        across = (constant(beside, _steps, x1)[x0:] - self.x) * (1 / self.spread_x)
        down = (constant(beside, _steps, y1)[y0:] - self.y) * (1 / self.spread_y)
        return clip(across, -3, 3), clip(down, -3, 3)


def _moments(profile: Array, mass: Any) -> tuple[Any, Any]:
    steps, mass = constant(profile, _steps, profile.shape[0]), at_least(mass, 1e-6)
    mean = number(profile @ steps) / mass
    return mean, number(namespace(profile).sqrt(profile @ (steps - mean) ** 2 / mass + 1.0))


@lru_cache(maxsize=64)
def _steps(count: int) -> FloatArray:
    return np.arange(count, dtype=np.float32)


def posterior_of(prior: Array, evidence: Array) -> Array:
    """Combine a prior in (0, 1) and evidence in logits by Bayes' rule."""
    odds = exponential(evidence)
    odds *= prior
    return odds / (odds + (1 - prior))


def motion_evidence(flow: Flow, mask: Array) -> Array:
    """Return `[h, w]` in [-0.5, 1.5]: speed of each place relative to its surroundings, after camera compensation.

    The motion outside the mask sets the scale. The result is zero if the mask does not stand out, so that a still
    object is not lost.
    """
    (speed,) = box_means(speed_px(flow.offset_px - camera_of(flow)), side_px=3)
    small = averaged(mask, flow.hw)
    outside, mass = small < 0.3, small.sum()

    def relative() -> Array:
        middle, high = middle_and_high(speed, outside)
        evidence = namespace(mask).clip((speed - middle) / (high + 0.08), 0, 2) - 0.5
        strength = 4 * (evidence * small).sum() / at_least(mass, 1e-9)
        return evidence * at_most(at_least(strength, 0.0), 1.0)

    found = either(outside.any() & (mass > 0), relative, lambda: zeros(mask, flow.hw))
    return resized(found, (mask.shape[0], mask.shape[1]))


@singledispatch
def middle_and_high(values: Array, chosen: Array) -> tuple[Array, Array]:
    """Return the median and the 90th percentile of the chosen values `[h, w]`, of which there are some on the host."""
    ordered = np.sort(values[chosen])
    return ordered[len(ordered) // 2], ordered[int(0.9 * (len(ordered) - 1))]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A tracked region on one frame, at a quarter of the texture's size or thereabouts.

    Args:
        posterior: `[h, w]` in [0, 1], probability of the region at each place.
        known: The posterior on the last frame on which the region was tracked.
        area_px: `[]`, sum of the posterior on the first frame.
        model: Classifier of object against ground; None for a region without a pixel.
        exact: The region was given as the object's exact mask; otherwise as a box or another loose region around it.
        first: The given exact mask; None for a loose region, and after a cut or a loss.
        way: Backward flow to the frame of that mask; None on that frame.
    """

    posterior: Array
    known: Array
    area_px: Array
    model: PixelModel | None
    exact: bool
    first: Array | None = None
    way: Flow | None = None

    @classmethod
    def learned(cls, rgb: ByteArray, mask: FloatArray, *, exact: bool) -> Region:
        """Learn a region on the host, from a picture `[h, w, 3]` uint8 and a mask `[h, w]` in [0, 1].

        Raises:
            ValueError: The sizes differ.
        """
        if rgb.shape[:2] != mask.shape:
            raise ValueError(f"rgb is {list(rgb.shape[:2])}, mask is {list(mask.shape)}; they must agree")
        mask = np.ascontiguousarray(mask, dtype=np.float32)
        posterior = mask if exact else figure_in_region(rgb, mask)
        model = _learned(rgb, posterior, exact=exact)
        return cls(posterior, posterior, np.asarray(posterior.sum()), model, exact, posterior if exact else None)

    def on(self, put: Callable[[npt.NDArray[Any]], Array]) -> Region:
        """Return a region that was just learned or found, on the device to which `put` copies arrays."""
        posterior, model = put(self.posterior), self.model
        if model is not None:
            model = PixelModel(put(model.weights), put(model.beta))
        first = None if self.first is None else posterior
        return replace(self, posterior=posterior, known=posterior, area_px=put(self.area_px), model=model, first=first)

    def follow(self, rgb: Array, flow: Flow | None) -> Region:
        """Return the region on the next frame.

        Args:
            rgb: Its picture; see `texture.pixels`.
            flow: Backward flow to the frame before, on any raster. None after a cut: the region is kept only if its
                place still looks like it, and searched there again after every later cut.

        Raises:
            ValueError: The picture has another size than the region.
        """
        hw = self.posterior.shape[0], self.posterior.shape[1]
        if tuple(picture_hw(rgb)) != hw:
            raise ValueError(f"rgb is {list(picture_hw(rgb))}, the region {list(hw)}; learn it again")
        if flow is not None and (hw[0] % flow.hw[0] or hw[1] % flow.hw[1]):
            flow = flow.resized(hw)
        if flow is None:
            region, (known,) = replace(self, first=None, way=None), box_means(self.known, side_px=9)
            posterior, _ = region._agreed(rgb, known * _MEMORY, self.known)
            return replace(region, posterior=posterior)
        if self.first is None:
            return self._followed(rgb, flow)
        return replace(self, way=flow if self.way is None else compose(self.way, flow))._followed(rgb, flow)

    def resumed(self, rgb: ByteArray, mask: FloatArray) -> Region | None:
        """Return the region at a re-detected mask `[h, w]`, on the host; None if the picture disagrees."""
        # The given mask, carried to where the region was lost, is meaningless here.
        region = replace(self, first=None, way=None)
        posterior, found = region._agreed(rgb, np.minimum(mask, np.float32(_CEILING)), mask)
        return replace(region, posterior=posterior, known=posterior) if found else None

    def relevance(self) -> Array:
        """Return the posterior; loose regions get a faint halo, which ranks the surroundings during an occlusion."""
        posterior, hw = self.posterior, (self.posterior.shape[0], self.posterior.shape[1])
        if self.exact:
            return posterior
        close = gaussian(averaged(posterior, (-(-hw[0] // 8), -(-hw[1] // 8))), 13, 1.5, mirrored=False)
        halo = resized(close + 0.5 * gaussian(close, 33, 4.0, mirrored=False), hw)
        return at_most(posterior + _HEDGE * halo, 1.0)

    def _followed(self, rgb: Array, flow: Flow) -> Region:
        hw = self.posterior.shape[0], self.posterior.shape[1]
        nothing = zeros(self.posterior, hw)
        reach = reachable(self.posterior, flow)
        if reach is None:
            return replace(self, posterior=nothing)
        carried = gaussian(warped(self.posterior, flow, reach), _BLUR_PX, 0.0, mirrored=True)
        inner, held = support(carried)
        if inner is None:
            return replace(self, posterior=nothing)
        box = inner[0] + reach[0], inner[1] + reach[0], inner[2] + reach[2], inner[3] + reach[2]
        prior = carried[inner[0] : inner[1], inner[2] : inner[3]]
        place = ObjectFrame.of(prior if held is None else prior * held, box)

        def found() -> tuple[Array, Array]:
            judged, _ = self._judged(rgb, prior, enlarged_to(flow.residual, box, hw), place, box)
            posterior = _placed(judged, box, held, hw)
            if not self.exact:
                # Places that move with the region gain, still places around it lose.
                moving = motion_evidence(flow, posterior)[box[0] : box[1], box[2] : box[3]]
                near = namespace(judged).clip(judged, _FLOOR, 1 - _FLOOR)
                posterior = _placed(posterior_of(near, _MOTION * moving), box, held, hw)
            return self._bordered(posterior, rgb, box), self.posterior

        posterior, known = either(place.mass >= LEAST_MASS_PX, found, lambda: (nothing, self.known))
        return replace(self, posterior=posterior, known=known)

    def _agreed(self, rgb: Array, prior: Array, mask: Array) -> tuple[Array, Any]:
        """Return the posterior from a prior `[h, w]`, and whether the picture agrees; the posterior is 0 if not."""
        hw = prior.shape[0], prior.shape[1]
        nothing, (box, held) = zeros(prior, hw), support(prior)
        if box is None:
            return nothing, False
        place = ObjectFrame.of(mask, (0, hw[0], 0, hw[1]))
        near = prior[box[0] : box[1], box[2] : box[3]]
        judged, evidence = self._judged(rgb, near, zeros(near, (near.shape[0], near.shape[1])), place, box)
        if held is not None:
            judged = judged * held
        mass = number(judged.sum())
        likely = number((judged * (evidence > 0)).sum()) / at_least(mass, 1e-6)
        agreement = likely * at_most(4 * mass / at_least(number(self.area_px), 1e-6), 1.0)
        found = (agreement >= _LEAST_AGREEMENT) & (mass >= LEAST_MASS_PX) & (place.mass >= LEAST_MASS_PX)
        return either(found, lambda: _placed(judged, box, held, hw), lambda: nothing), found

    def _judged(self, rgb: Array, prior: Array, failure: Array, place: ObjectFrame, box: Box) -> tuple[Array, Array]:
        """Return the posterior on a box, and the classifier's evidence in logits."""
        near = prior + (_IGNORANCE - prior) * (failure * _DOUBT)
        near = namespace(near).clip(near, _FLOOR, _CEILING)
        if self.model is None:
            evidence = zeros(near, (near.shape[0], near.shape[1]))
        else:
            evidence = evidence_of(rgb, self.model, near, place, box, exact=self.exact)
        return posterior_of(near, evidence + self._given(box)), evidence

    def _given(self, box: Box) -> Array | float:
        """Return the given mask's evidence in logits on a box."""
        if self.first is None or self.way is None:
            return 0.0
        trust = enlarged_to(self.way.confidence, box, (self.first.shape[0], self.first.shape[1]))
        return _FIRST * trust * (2 * warped(self.first, self.way, box) - 1)

    def _bordered(self, posterior: Array, rgb: Array, box: Box) -> Array:
        """Align the posterior's border to colour edges, in place."""
        # Start at even places, as the filter halves its input.
        side = _BORDER_PX
        near = tuple(slice(max(0, a - side) & ~1, b + side + (b + side & 1)) for a, b in (box[:2], box[2:]))
        picture = rgb[near] if isinstance(rgb, np.ndarray) else rgb[(slice(None), *near)]
        found = guided(posterior[near], picture, side, _BORDER_VARIANCE)
        posterior[near] = found * (found > NEGLIGIBLE)
        return posterior


def _placed(part: Array, box: Box, held: Array | None, hw: tuple[int, int]) -> Array:
    """Return `[h, w]`: a part on a box, 0 elsewhere; on a device the part where it is held."""
    if held is not None:
        return part * held
    whole = zeros(part, hw)
    whole[box[0] : box[1], box[2] : box[3]] = part
    return whole


@singledispatch
def evidence_of(rgb: Array, model: PixelModel, prior: Array, place: ObjectFrame, box: Box, *, exact: bool) -> Array:
    """Return a classifier's evidence in logits on a box with that prior."""
    asked, halved = _worth_asking(prior)
    places = np.flatnonzero(asked > 0)
    score = model.score(_cues(rgb, place, box, places, PLACE[exact]))
    score *= np.float32(GAIN[exact])
    np.clip(score, -LIMIT, LIMIT, out=score)
    if len(places) == prior.size:
        return score.reshape(prior.shape)
    sparse = np.zeros(prior.size, np.float32)
    sparse[places] = score
    evidence = _from_lattice(sparse.reshape(prior.shape))
    evidence.ravel()[places] = score
    if halved:
        last = 2 * ((prior.shape[0] - 1) // 2)
        evidence[1:last:2] = (evidence[0 : last - 1 : 2] + evidence[2 : last + 1 : 2]) * np.float32(0.5)
    return evidence


def _cues(rgb: ByteArray, place: ObjectFrame, box: Box, places: Places, weight: float) -> FloatArray:
    """Return the cues of some places of a box, with their weighted position relative to the object last."""
    rows = cue_rows(rgb, box, places, extra=2)
    across, down = place.axes(box, rows)
    y = places // len(across)
    rows[:, -2] = (across * np.float32(weight)).take(places - y * len(across))
    rows[:, -1] = (down * np.float32(weight)).take(y)
    return rows


@singledispatch
def reachable(posterior: Array, flow: Flow) -> Box | None:
    """Return the box that the flow can carry a region to, or a larger one if that is cheaper; None for none."""
    (found, _), shape = support(posterior), posterior.shape
    if found is None:
        return None
    scale_y, scale_x = shape[0] // flow.hw[0], shape[1] // flow.hw[1]
    y0, y1, x0, x1 = found
    # Between two samples of the flow the map may reach a sample's step further.
    low = (x0 / scale_x - 1.5, y0 / scale_y - 1.5, 0.0, 0.0)
    high = (x1 / scale_x + 1.5, y1 / scale_y + 1.5, 0.0, 0.0)
    x, y, width, height = cv2.boundingRect(cv2.inRange(flow.map_px(flow.hw), low, high))
    if not width:
        return None
    top, bottom, left, right = (
        max(0, y - 2),
        min(flow.hw[0], y + height + 2),
        max(0, x - 2),
        min(flow.hw[1], x + width + 2),
    )
    return top * scale_y, bottom * scale_y, left * scale_x, right * scale_x


@singledispatch
def warped(mask: Array, flow: Flow, box: Box) -> Array:
    """Warp a mask of the earlier frame to a box of the present one; content from outside gets 0."""
    (height, width), (y0, y1, x0, x1) = mask.shape, box
    offset_px = enlarged_to(flow.offset_px, box, mask.shape)
    offset_px = cv2.multiply(offset_px, (width / flow.hw[1], height / flow.hw[0], 0.0, 0.0))
    map_px = cv2.add(base_grid((height, width))[y0:y1, x0:x1], offset_px.reshape(y1 - y0, x1 - x0, 2))
    warped = cv2.remap(mask, map_px, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(warped.reshape(y1 - y0, x1 - x0))


@singledispatch
def enlarged_to(plane: Array, box: Box, shape: tuple[int, ...]) -> Array:
    """Enlarge a plane of the flow's raster to a box of the region's raster `shape`, interpolated linearly."""
    (height, width), (y0, y1, x0, x1) = plane.shape[:2], box
    down, across = shape[0] // height, shape[1] // width
    # One sample more on each side, so that a cut border is interpolated like the rest.
    top, left = max(0, y0 // down - 1), max(0, x0 // across - 1)
    part = plane[top : -(-y1 // down) + 1, left : -(-x1 // across) + 1]
    size_wh = (part.shape[1] * across, part.shape[0] * down)
    large = cv2.resize(part, size_wh, interpolation=cv2.INTER_LINEAR).reshape(size_wh[1], size_wh[0], *plane.shape[2:])
    rows, columns = slice(y0 - top * down, y1 - top * down), slice(x0 - left * across, x1 - left * across)
    return np.ascontiguousarray(large[rows, columns])


@singledispatch
def support(prior: Array) -> tuple[Box | None, Array | None]:
    """Return the box where the prior is more than negligible, with a margin of two pixels; None if it is nowhere.

    A device cannot crop by values. It returns the whole picture, and the box as `[h, w]`, 1 inside and 0 outside.
    """
    x, y, width, height = cv2.boundingRect(cv2.inRange(prior, NEGLIGIBLE, 2.0))
    if not width:
        return None, None
    rows, columns = prior.shape
    return (max(0, y - 2), min(rows, y + height + 2), max(0, x - 2), min(columns, x + width + 2)), None


def _worth_asking(prior: FloatArray) -> tuple[ByteArray, bool]:
    """Return the places to classify (`[rows, columns]`, not 0), and whether unsure rows were halved."""
    if min(prior.shape) < 2 * _LATTICE:
        return np.ones(prior.shape, np.uint8), False
    asked: ByteArray = cv2.inRange(prior, *_UNSURE).reshape(prior.shape)
    halved = cv2.countNonZero(asked) > _ROWS_PX
    if halved:
        asked[1::2] = 0
    asked[_LATTICE // 2 :: _LATTICE, _LATTICE // 2 :: _LATTICE] = 255
    return asked, halved


def _from_lattice(sparse: FloatArray) -> FloatArray:
    """Interpolate values on the lattice to all places."""
    lattice = np.ascontiguousarray(sparse[_LATTICE // 2 :: _LATTICE, _LATTICE // 2 :: _LATTICE])
    height, width = lattice.shape
    full = cv2.resize(lattice, (width * _LATTICE, height * _LATTICE), interpolation=cv2.INTER_LINEAR)
    below, right = max(0, sparse.shape[0] - full.shape[0]), max(0, sparse.shape[1] - full.shape[1])
    if below or right:
        full = cv2.copyMakeBorder(full, 0, below, 0, right, cv2.BORDER_REPLICATE)
    return np.ascontiguousarray(full[: sparse.shape[0], : sparse.shape[1]])


def figure_in_region(rgb: ByteArray, region: FloatArray) -> FloatArray:
    """Return the foreground of a loose region: places that differ from the surroundings of the region.

    Args:
        rgb: `[h, w, 3]` uint8.
        region: `[h, w]` in [0, 1]; a region that covers all or nothing is returned as it is.

    Returns:
        `[h, w]` float32 in [0, 1], 0 outside the region.
    """
    height, width = region.shape
    inside, place = region > 0.5, ObjectFrame.of(region, (0, height, 0, width))
    if place.mass < LEAST_MASS_PX or not inside.any() or inside.all():
        return region
    y0, y1, x0, x1 = box = support(inside.astype(np.float32))[0] or (0, height, 0, width)
    prior = np.clip(_centred(region, place, _FILL), 0.02, 0.98)
    near = _dilated(region, _RING_PX) & ~inside
    sample = _sample(near | inside)
    sampled = cue_rows(rgb, (0, height, 0, width), sample)[:, COLOUR_AND_TEXTURE]
    every = cue_rows(rgb, box, np.arange((y1 - y0) * (x1 - x0)))[:, COLOUR_AND_TEXTURE]
    model = PixelModel.of(sampled, hidden=64)
    figure = np.where(inside, prior, 0).astype(np.float32)
    for _ in range(_FIGURE_ROUNDS):
        ground = _ground_weights(np.where(inside | near, 1 - figure, 0), ~inside & ~near, sample, 0.2)
        model.learn(sampled, figure.ravel()[sample], ground, ridge=1e-3)
        score = cv2.blur(model.score(every).reshape(y1 - y0, x1 - x0), (5, 5)).reshape(y1 - y0, x1 - x0)
        evidence = np.float32(_FIGURE_GAIN) * np.clip(score, -1.5, 1.5)
        figure[y0:y1, x0:x1] = posterior_of(prior[y0:y1, x0:x1], evidence) * inside[y0:y1, x0:x1]
    return figure


def _centred(region: FloatArray, place: ObjectFrame, fill: float) -> FloatArray:
    """Return a prior that falls from the region's centre to its corners, with a mean of about `fill` inside."""
    across, down = place.axes((0, region.shape[0], 0, region.shape[1]), region)
    # A uniform box has its sides at sqrt(3) standard deviations.
    radius_squared = (across**2 + (down**2)[:, None]) / 3
    bump = region / (1 + np.exp(1.5 * (radius_squared - 0.8)))
    return np.asarray(bump * (fill * region.sum() / max(float(bump.sum()), 1e-3)), dtype=np.float32)


def _dilated(mask: FloatArray, side_px: int) -> BoolArray:
    return np.asarray(cv2.blur((mask > 0.1).astype(np.float32), (side_px, side_px)) > 1e-6).reshape(mask.shape)


def _sample(near: BoolArray) -> npt.NDArray[np.intp]:
    """Return flat indices of about 3,000 pixels of interest, and every 36th of the others."""
    step = max(1, round(float(np.sqrt(near.sum() / 3000))))
    chosen = np.zeros_like(near)
    chosen[::step, ::step] = near[::step, ::step]
    chosen[::6, ::6] |= ~near[::6, ::6]
    return np.flatnonzero(chosen)


def _ground_weights(near: FloatArray, far: BoolArray, sample: npt.NDArray[np.intp], far_share: float) -> FloatArray:
    near_weight, far_weight = near.ravel()[sample], far.ravel()[sample].astype(np.float32)
    near_weight = near_weight * ((1 - far_share) / max(float(near_weight.sum()), 1e-6))
    return np.asarray(near_weight + far_weight * (far_share / max(float(far_weight.sum()), 1e-6)), dtype=np.float32)


def _learned(rgb: ByteArray, mask: FloatArray, *, exact: bool) -> PixelModel | None:
    whole = 0, mask.shape[0], 0, mask.shape[1]
    place = ObjectFrame.of(mask, whole)
    if place.mass < LEAST_MASS_PX:
        return None
    near = _dilated(mask, _RING_PX)
    sample = _sample(near)
    cues = _cues(rgb, place, whole, sample, PLACE[exact])
    ground = 1 - mask
    if exact:
        # Mixed pixels on the border would only add noise.
        towards, ground = (mask > 0.9).astype(np.float32), (mask < 0.1).astype(np.float32)
    else:
        towards = np.where(mask > 0.1, mask, 0)
    against = _ground_weights(ground * near, (ground > 0) & ~near, sample, _FAR)
    model = PixelModel.of(cues, hidden=_HIDDEN, scaled=2)
    model.learn(cues, towards.ravel()[sample], against, ridge=_RIDGE)
    return model
