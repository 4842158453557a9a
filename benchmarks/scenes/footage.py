"""Footage of every kind with what is known of it: the object that is asked for, what moves, what is written.

`davis`      sequences with a mask a frame; what moves is measured (see `moved_truths`), not given
`samples`    the clips of sample_videos with their truth files: everything is given
`generated`  a thing moves over a photograph, each scene under a still, a panning and a shaking camera
`photos`     photographs with outlined words, made into footage by the same three cameras
`fixed`, `moving`, `webcam`   real cameras, see `benchmarks.scenes.cameras`
`tracks`     single objects before fixed cameras, each from its first frame on

Frames and masks are read anew on each pass, so that nothing holds a clip in memory.

What moves by itself is a thing whose motion is not the camera's. Where the footage gives the flow, that is used.
Where it does not, flow is searched far more dearly than the frame loop does (DIS medium at the frame's full size),
and the camera's share is the homography that places outside of the known masks follow. That is a measurement, with a
measurement's errors, and reports say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import cv2
import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.footage import load_footage
from arr_stream.sources import Source, open_source
from arr_stream.types import BoolArray, ByteArray, FloatArray, Frame
from benchmarks.scenes.camera import Camera, Homography, camera_homography, homography_flow
from benchmarks.scenes.truth import load_truth

FootageKind = Literal["davis", "samples", "generated", "photos", "fixed", "moving", "webcam", "tracks"]
KINDS: tuple[FootageKind, ...] = get_args(FootageKind)
CAMERA_KINDS: tuple[FootageKind, ...] = ("fixed", "moving", "webcam")
"""Kinds of real cameras, each with a folder of its own."""
Objects = Literal["one", "one of many", "several"]


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Ground truth of one frame; every mask is `[H, W]`.

    Args:
        object: Object of the query, None without a query.
        things: All things that may move by themselves, the object among them.
        moving: Things that do move; None where that has to be estimated from `flow_px` or the pictures.
        text: Legible text, None where it is not annotated.
        flow_px: True backward flow `[H, W, 2]`, NaN at places without a source; None if unknown.
    """

    object: BoolArray | None = None
    things: tuple[BoolArray, ...] = ()
    moving: BoolArray | None = None
    text: BoolArray | None = None
    flow_px: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Footage:
    """A clip and the truth about it.

    Args:
        name: Unique among its kind.
        kind: Where it comes from.
        camera: What its camera does, where that is known.
        words: What names the object in words, where anything does.
        open: Gives a source of its frames; may be called again.
        truths: One for each frame, in order; may be called again.
        learning_frames: First frames that are not counted.
        objects: Whether the truth is of one object, of one while others may be in view, or of several.
    """

    name: str
    kind: FootageKind
    camera: Camera | None
    words: str | None
    open: Callable[[], Source]
    truths: Callable[[], Iterator[Truth]]
    learning_frames: int = 1
    objects: Objects = "one"

    def frames(self) -> Iterator[Frame]:
        """All frames, one at a time."""
        with self.open() as source:
            yield from source.frames()


def davis_footage(folder: Path, max_frames: int | None = None) -> list[Footage]:
    """Sequences with a mask a frame, in either of the layouts that `evaluation.footage` reads.

    Raises:
        EvaluationDataError: No sequence there, or frames without as many masks.
    """
    return [
        Footage(
            name=sequence.name,
            kind="davis",
            camera=None,
            words=None,
            open=_opener(sequence.source, max_frames),
            truths=_masks(sequence.masks, max_frames),
        )
        for sequence in load_footage(folder)
    ]


def sample_footage(folder: Path, max_frames: int | None = None) -> list[Footage]:
    """The clips of a folder that have a truth file, asked for their first object by its name.

    Raises:
        EvaluationDataError: There are none, or a truth is not beside its clip.
    """
    truths = sorted(folder.glob("*.truth.npz"))
    if not truths:
        raise EvaluationDataError(f"{folder}: no clips with truth files", remedy="scripts/make_sample_videos.py makes")
    return [_sample(path, max_frames) for path in truths]


def _sample(path: Path, max_frames: int | None) -> Footage:
    name = path.name.removesuffix(".truth.npz")
    clip = path.with_name(f"{name}.mp4")
    if not clip.is_file():
        raise EvaluationDataError(f"{path}: no {clip.name} beside it", remedy="scripts/make_sample_videos.py makes it")
    words = load_truth(path).object_names[0]
    return Footage(name, "samples", None, words, _opener(clip, max_frames), _sample_truths(path, max_frames))


def _sample_truths(path: Path, max_frames: int | None) -> Callable[[], Iterator[Truth]]:
    def read() -> Iterator[Truth]:
        truth = load_truth(path)
        for index in range(min(truth.frames, max_frames or truth.frames)):
            objects = truth.object_map(index)
            things = tuple(np.asarray(objects == number) for number in range(1, len(truth.object_names) + 1))
            flow = truth.backward_flow(index)[0] if index else None
            text = written(truth.labels[index].shape, truth.word_polygons(index), things)
            yield Truth(things[0], things, None, text if truth.words else None, flow)

    return read


def written(shape_hw: tuple[int, ...], polygons_xy: Sequence[np.ndarray], seen: Sequence[BoolArray]) -> BoolArray:
    """`[H, W]`, where words stand: inside their outlines, as far as any of the things that carry them is seen there."""
    inside = np.zeros(shape_hw[:2], np.uint8)
    for polygon in polygons_xy:
        if np.isfinite(polygon).all():
            cv2.fillPoly(inside, [np.rint(polygon).astype(np.int32)], 1)
    return np.asarray((inside > 0) & np.logical_or.reduce(seen))


def _opener(path: Path, max_frames: int | None) -> Callable[[], Source]:
    return lambda: open_source(path, max_frames=max_frames)


def _masks(masks: Callable[[], Sequence[BoolArray]], max_frames: int | None) -> Callable[[], Iterator[Truth]]:
    return lambda: (Truth(mask, (mask,)) for mask in islice(masks(), max_frames))


MOVING_SHARE = 1 / 1000
"""Of the frame's diagonal, a frame: a thing moves if half of it or more goes so far against the camera."""


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """One frame's truth with its motion.

    Args:
        truth: As the footage gives it.
        moving: `[H, W]`, what moves against the camera; None on the first frame, and where there are no things.
        homography: The camera's motion since the frame before; None where nothing asked for it.
        grey: `[H, W]` lightness.
    """

    truth: Truth
    moving: BoolArray | None
    homography: Homography | None
    grey: ByteArray


def moved_truths(footage: Footage) -> Iterator[Moved]:
    """Truths of all frames with what moves; flow is searched only where it is neither given nor needless."""
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    before: ByteArray | None = None
    for frame, truth in zip(footage.frames(), footage.truths(), strict=True):
        grey = np.asarray(cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2GRAY), np.uint8)
        if before is None or (footage.camera is not None and (truth.moving is not None or not truth.things)):
            yield Moved(truth, truth.moving, None, grey)
        else:
            flow_px = truth.flow_px if truth.flow_px is not None else search.calc(grey, before, None)
            things = np.logical_or.reduce([np.zeros(grey.shape, bool), *truth.things])
            homography = camera_homography(flow_px, things)
            moving = moving_things(truth.things, flow_px, homography) if truth.moving is None else truth.moving
            yield Moved(truth, moving, homography, grey)
        before = grey


def moving_things(things: tuple[BoolArray, ...], flow_px: FloatArray, homography: Homography) -> BoolArray | None:
    """`[H, W]`, the things that move against the camera; None where there are no things.

    Args:
        things: `[H, W]` each.
        flow_px: `[H, W, 2]` backward flow; NaN where it is not known.
        homography: The camera's motion.
    """
    if not things:
        return None
    height, width = flow_px.shape[:2]
    against_px = np.linalg.norm(flow_px - homography_flow(homography, (width, height)), axis=2)
    least_px = MOVING_SHARE * np.hypot(width, height)
    moving = np.zeros((height, width), bool)
    for thing in things:
        ways_px = against_px[thing]
        ways_px = ways_px[np.isfinite(ways_px)]
        if len(ways_px) and np.median(ways_px) >= least_px:
            moving |= thing
    return moving
