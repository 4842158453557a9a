"""Background model: each pixel's appearance without moving objects, and the difference of the current frame from it.

Optical flow smears an object of 20x60 px into its surroundings. With a still camera, pixel differences are more
precise. The evidence of change is the sum of two:

- against the *previous frame*: outlines and texture of moving objects;
- against a *running mean and variance* of each pixel (Wren, Azarbayejani, Darrell and Pentland, "Pfinder: Real-Time
  Tracking of the Human Body", 1997): whole moving objects, and objects that have stopped. Sensor noise, flicker and
  leaves raise the variance of their pixels and count for less.

Only pixels that match the background update it. A pixel that shows other content for as long as the background was
visible there, at most `ABSORB_SECONDS`, takes that content as its background: a car that parks is foreground for half a
minute; ground uncovered by a car that leaves in the first seconds of a stream is soon background.

On a moving camera the model is warped by the camera's fitted motion, and edges, which interpolation blurs, count for
less. Whether the camera moved is decided by a vote of the pixels, since the fit itself is misled by large objects: the
motion must explain clearly more pixels than standing still does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from arr_stream.motion.camera import camera_of, motion_between, motion_since, visible_structure
from arr_stream.motion.flow import Flow, resize_offsets, source_map
from arr_stream.texture.arrays import Array, as_float, at_least, at_most, either, namespace, zeros
from arr_stream.texture.pixels import averaged, blotted, box_means, inside, local_contrast, mean_of, remap, widened

ADAPT_SECONDS = 5.0
"""Time constant of mean and variance."""
KNOWN_SECONDS = 3.0
"""Time after which the background of a still camera is known."""
ABSORB_SECONDS = 30.0
"""Longest time for which a still object remains foreground."""
DEVIATIONS = 3.5
"""Standard deviations at which a pixel is foreground with probability one half."""
LEAST_VARIANCE = 20.0
NEW_VARIANCE = 60.0
MOST_VARIANCE = 2500.0
"""Squared grey levels: of a noiseless pixel, of one just taken over, and the largest deviation that is learned from."""
NOISE = 12.0
"""Difference to the previous frame, in grey levels, that counts half."""
FOREGROUND = 0.25
"""Evidence from which a pixel no longer updates the background."""
BLURRED_SHARE = 0.5
"""Share of the local contrast that warping may leave as a difference."""
WEAK, SURE = 0.1, 0.5
"""Evidence around a place below which foreground is unlikely, and above which it is certain."""
LOST = 0.35
"""Mean evidence of a frame above which the model is taken to be wrong: so much of a picture rarely moves."""
LOST_FRAMES = 3
"""Consecutive such frames after which the model restarts."""
VOTE_LEVELS = 20.0
"""Upper limit of a pixel's vote, in grey levels."""
VOTE_RATIO, VOTE_LEAST = 1.15, 0.02
"""Least ratio of better to worse explained grey levels, and least gain per pixel, for a vote that the camera moved."""
SURELY_STILL = 0.95
UPDATE_SECONDS = 0.2
"""Least time between two updates of mean and variance, which change slowly."""
STILLNESS_MEMORY = 0.8
"""Share of the camera's stillness that remains from one frame to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Background:
    """State of the model between two frames; planes are `[h, w]` float32 at a quarter of the texture's size.

    Args:
        before: `[H/8, W/8]` lightness of the frame before.
        previous: Lightness of the frame before, or of the last that the model accounts for.
        mean, variance: Of each pixel's background, in grey levels and their squares.
        support: Seconds for which the background was seen, less those for which something still covered it.
        stillness: `[1, 1]` in [0, 1], confidence that the camera is still; 0 on the first frame.
        seconds: `[1, 1]`, time since the model started.
        lost: `[1, 1]`, frames in a row on which most of the picture departed from it.
    """

    before: Array
    previous: Array
    mean: Array
    variance: Array
    support: Array
    stillness: Array
    seconds: Array
    lost: Array

    @property
    def known(self) -> Array:
        """Confidence, `[1, 1]` in [0, 1], that the camera is still and the background is known."""
        return self.stillness * at_most(self.seconds / KNOWN_SECONDS, 1.0)

    @classmethod
    def of(cls, quarter: Array, eighth: Array) -> Background:
        """Return the model after a first frame, of its lightness at a quarter and an eighth of the texture's size."""
        now = as_float(quarter)
        none, zero = zeros(now, (now.shape[0], now.shape[1])), zeros(now, (1, 1))
        return cls(eighth, now, now, none + NEW_VARIANCE, none, stillness=zero, seconds=zero, lost=zero)


def motion_evidence(
    background: Background,
    greys: tuple[Array, Array],
    flow: Flow,
    flow_to_keyframe: Flow | None,
    elapsed_seconds: Array | None,
) -> tuple[Background, Array, Array]:
    """Update the background with a frame, and blend background change with motion from flow.

    Args:
        background: Of the frames before.
        greys: Lightness of this frame at a quarter and an eighth of the texture's size.
        flow: To the frame before.
        flow_to_keyframe: To the keyframe in use; None before there is one.
        elapsed_seconds: `[1, 1]` since the last update of mean and variance; None to compare alone.

    Returns:
        The updated background, the change `[H/8, W/8]` as `see_change` returns it, and channel 10: the change before a
        known background, the motion against the camera where that moves or was just switched on, a blend between.
    """
    background, change = see_change(background, greys, flow, elapsed_seconds)
    # The model cannot separate an object that was present from the start until that object moves away.
    known = background.known
    motion = either(
        known >= SURELY_STILL,
        lambda: change,
        lambda: _with_flow(change, 1 - known, flow, flow_to_keyframe, visible_structure(greys[1])),
    )
    return background, change, motion


def _with_flow(change: Array, unknown: Array, flow: Flow, flow_to_keyframe: Flow | None, structure: Array) -> Array:
    """Return channel 10 where the background alone is not enough."""
    xp, moving = namespace(change), motion_between(flow, structure)
    if flow_to_keyframe is not None:
        moving = xp.maximum(moving, motion_since(flow_to_keyframe, structure))
    return xp.maximum(change * (1 - unknown), unknown * moving)


def see_change(
    background: Background, greys: tuple[Array, Array], flow: Flow, elapsed_seconds: Array | None
) -> tuple[Background, Array]:
    """Compare a frame with the background, and update the background by it.

    For the arguments see `motion_evidence`. Return the updated background, and `[H/8, W/8]` in [0, 1]: evidence that
    something moves, or has just stopped, there.
    """
    (quarter, eighth), camera_px = greys, camera_of(flow)
    now = as_float(quarter)
    # Flow to a frame outside of the model is no evidence of camera motion.
    moves = camera_moved(background.before, eighth, camera_px) & (background.lost == 0)
    warped, blurred = either(moves, lambda: _warped(background, now, camera_px), lambda: (background, 0.0))
    moving = now - warped.previous
    moving *= moving
    moving /= moving + (blurred + NOISE**2)
    apart = now - warped.mean
    squared = apart * apart
    # Tiny squares are denormal numbers, which are slow.
    squared += 1e-3
    ordinary = at_least(warped.variance, LEAST_VARIANCE)
    ordinary *= DEVIATIONS**2
    ordinary += blurred
    ordinary += squared
    departed = squared / ordinary
    departed *= departed
    evidence = averaged(at_most(departed + moving, 1.0), (now.shape[0] // 2, now.shape[1] // 2))
    believed = as_float(zeros(now, (1, 1)) + mean_of(evidence) < LOST)
    # A frame that the model mostly cannot explain, such as noise, does not update it.
    lost = (background.lost + 1) * (1 - believed)
    model, previous = either(believed > 0, lambda: (warped, now), lambda: (background, background.previous))
    seen = replace(
        model,
        before=eighth,
        previous=previous,
        stillness=model.stillness + (1 - STILLNESS_MEMORY) * (as_float(~moves) - model.stillness),
        lost=lost,
    )
    if elapsed_seconds is not None:
        known = as_float(departed < FOREGROUND)
        seen = _updated(seen, apart, squared, moving, known, elapsed_seconds * believed)
    seen = either(lost >= LOST_FRAMES, lambda: Background.of(quarter, eighth), lambda: seen)
    # Where an object looks like the background, use the evidence of its neighbours.
    (around,) = box_means(evidence, side_px=3)
    evidence = (evidence + around) * (believed / 2)
    # Leaves and noise stay weak, the inside of an object counts as much as its outline.
    sure = at_most(at_least((evidence - WEAK) * (1 / (SURE - WEAK)), 0.0), 1.0)
    change = (evidence + sure * sure * (3 - 2 * sure)) * 0.5
    # An object extends a little beyond its evidence.
    return seen, (change + widened(change)) * 0.5


def _updated(
    model: Background, apart: Array, squared: Array, moving: Array, known: Array, elapsed_seconds: Array
) -> Background:
    """Update the model by the differences of `see_change`; `known` `[h, w]` is 1 where the background shows, else 0."""
    # Visible for longer, or covered by a still object; passing objects count for neither.
    support = moving - 1
    support *= 1 - known
    support += known
    support *= elapsed_seconds
    support += model.support
    settled = support >= 0
    seconds = model.seconds + elapsed_seconds
    rate = known * at_most(elapsed_seconds / at_most(at_least(seconds, 1e-6), ADAPT_SECONDS), 1.0)
    variance = at_most(squared, MOST_VARIANCE)
    variance -= model.variance
    variance *= rate
    variance += model.variance
    rate *= apart
    rate += model.mean
    # Pixels covered for too long take this frame's content as background.
    return replace(
        model,
        mean=blotted(rate, settled, model.previous),
        variance=blotted(variance, settled, NEW_VARIANCE),
        support=blotted(at_most(support, ABSORB_SECONDS), settled, 0.0),
        seconds=seconds,
    )


def camera_moved(before: Array, now: Array, camera_px: Array) -> Array:
    """Return `[1, 1]`: the fitted camera motion explains clearly more of the lightness `[h, w]` than standing still."""
    before, now = as_float(before), as_float(now)
    gain = abs(now - before)
    gain -= abs(now - remap(before, source_map(camera_px)))
    gain = at_most(at_least(gain, -VOTE_LEVELS), VOTE_LEVELS)
    difference, total = mean_of(gain), mean_of(abs(gain))
    better, worse = (total + difference) / 2, (total - difference) / 2
    return zeros(now, (1, 1)) + (better - VOTE_RATIO * worse) > VOTE_LEAST


def _warped(model: Background, now: Array, camera_px: Array) -> tuple[Background, Array]:
    """Warp the model to a moved camera's present frame; also return the `[h, w]` variance that this leaves at edges.

    Newly visible places become new background.
    """
    hw = now.shape[0], now.shape[1]
    map_px = source_map(resize_offsets(camera_px, hw))
    within = inside(map_px)
    planes = namespace(now).stack([model.previous, model.mean, model.variance, model.support])
    previous, mean, variance, support = remap(planes, map_px)
    outside = ~within
    blurred = (BLURRED_SHARE * local_contrast(now, 1)) ** 2
    warped = replace(
        model,
        previous=previous + (now - previous) * outside,
        mean=mean + (now - mean) * outside,
        variance=blotted(variance, within, NEW_VARIANCE),
        support=support * within,
    )
    return warped, blurred
