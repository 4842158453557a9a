"""Footage made of photographs, each scene under a still, a panning and a shaking camera.

`generated_footage`: photographs that scikit-image carries. Three things stand on each, and one moves over it. In half
of the scenes they are generated shapes, in the other half pieces of the other photographs.
`text_footage`: photographs with outlined words.

So the same scene exists with every camera, and what differs between two results is the camera alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import EvaluationDataError
from arr_stream.types import BoolArray, ByteArray
from benchmarks.scenes.camera import CAMERAS, Camera, GeneratedSource, camera_path, look, with_grain
from benchmarks.scenes.cameras import camera_footage, track_footage
from benchmarks.scenes.drawing import photograph
from benchmarks.scenes.footage import CAMERA_KINDS, KINDS, Footage, FootageKind, Truth, davis_footage, sample_footage
from benchmarks.scenes.shapes import make_scene
from benchmarks.text import TextPicture, load_pictures

SCENERIES = ("coffee", "astronaut", "rocket", "chelsea", "hubble_deep_field", "gravel")
"""Photographs of `skimage.data`."""
SIZE_WH = (640, 352)
FRAMES = 60
SPEED_PX = (1.5, 3.5)
"""How far the moving thing goes a frame, in the scene."""
STANDING = 3
_ROOM_WH = (160, 64)
_THING_PX = 192


@dataclass(frozen=True, slots=True, eq=False)
class _Cutout:
    """A thing by itself: `[s, s, 3]` colours, `[s, s]` float coverage, and its name in words where it has one."""

    rgb: ByteArray
    alpha: npt.NDArray[np.float32]
    words: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Scene:
    """A wide picture and a thing that moves over it on `[T, 2]` places (its middle, in the picture's pixels)."""

    picture: ByteArray
    thing: _Cutout
    path_xy: npt.NDArray[np.float64]
    corner_xy: npt.NDArray[np.float64]


def generated_footage(
    max_frames: int | None = None, *, sceneries: tuple[str, ...] = SCENERIES, size_wh: tuple[int, int] = SIZE_WH
) -> list[Footage]:
    """Every scene with every camera; the object that is asked for is the thing that moves."""
    frames = min(FRAMES, max_frames or FRAMES)
    return [
        _generated(number, name, camera, frames, size_wh) for number, name in enumerate(sceneries) for camera in CAMERAS
    ]


def _generated(number: int, scenery: str, camera: Camera, frames: int, size_wh: tuple[int, int]) -> Footage:
    """Return a scene as footage; it is made when its frames are first read."""
    name = f"{scenery}, {camera}"

    @lru_cache(maxsize=1)
    def scene() -> _Scene:
        return _make_scene(number, scenery, camera, frames, size_wh)

    def pictures() -> Iterator[ByteArray]:
        for index in range(frames):
            yield with_grain(_seen(scene(), index, size_wh)[0], 1000 * number + index)

    def truths() -> Iterator[Truth]:
        for index in range(frames):
            mask = _seen(scene(), index, size_wh)[1]
            yield Truth(mask, (mask,), moving=mask)

    return Footage(
        name, "generated", camera, _thing(number).words, lambda: GeneratedSource(name, pictures, frames), truths
    )


def _make_scene(number: int, scenery: str, camera: Camera, frames: int, size_wh: tuple[int, int]) -> _Scene:
    """All but the camera's path is the same for every camera."""
    wide_wh = (size_wh[0] + _ROOM_WH[0], size_wh[1] + _ROOM_WH[1])
    picture = _photograph(scenery, wide_wh)
    rng = np.random.default_rng((number, 1))
    for place in range(STANDING):
        x = wide_wh[0] * (place + rng.uniform(0.3, 0.7)) / STANDING
        y = wide_wh[1] * rng.uniform(0.25, 0.75)
        picture, _ = _painted(picture, _thing(number, place + 1), np.array([x, y]))
    speed, heading = rng.uniform(*SPEED_PX), rng.uniform(0, 2 * math.pi)
    way = speed * (frames - 1) * np.array([math.cos(heading), 0.4 * math.sin(heading)])
    steps = np.linspace(-0.5, 0.5, frames)[:, None]
    middle = np.array(wide_wh) / 2 + rng.uniform(-0.08, 0.08, 2) * size_wh
    corners = camera_path(camera, frames, _ROOM_WH, np.random.default_rng((number, 2)))
    return _Scene(picture, _thing(number), middle + steps * way, corners)


@lru_cache(maxsize=64)
def _thing(number: int, which: int = 0) -> _Cutout:
    """A thing by itself; those that stand look different from the one that moves (0)."""
    if number % 2:
        return _piece(SCENERIES[(number + 1 + which) % len(SCENERIES)], np.random.default_rng((number, which, 5)))
    moving = "" if which == 0 else _thing(number).words
    for attempt in range(100):
        rng = np.random.default_rng((number, which, attempt, 3))
        scene = make_scene(rng, (_THING_PX, _THING_PX), (1, 1), diameter_px=(90.0, 130.0))
        words = scene.things[0].phrase()
        if words != moving:
            break
    mask = scene.things[0].mask
    return _Cutout(scene.rgb, mask.astype(np.float32), words)


def _piece(scenery: str, rng: np.random.Generator) -> _Cutout:
    """An oval cut from a photograph."""
    picture = _photograph(scenery, (_THING_PX * 3, _THING_PX * 2))
    x, y = (int(rng.integers(0, side - _THING_PX + 1)) for side in picture.shape[1::-1])
    alpha = np.zeros((_THING_PX, _THING_PX), np.float32)
    axes = (int(rng.uniform(45, 65)), int(rng.uniform(45, 65)))
    cv2.ellipse(alpha, (_THING_PX // 2, _THING_PX // 2), axes, float(rng.uniform(0, 180)), 0, 360, 1.0, -1)
    return _Cutout(np.ascontiguousarray(picture[y : y + _THING_PX, x : x + _THING_PX]), alpha, None)


def _photograph(name: str, size_wh: tuple[int, int]) -> ByteArray:
    """A photograph that fills the size, its middle where it is longer."""
    rgb = photograph(name)
    rgb = np.repeat(rgb[:, :, None], 3, axis=2) if rgb.ndim == 2 else rgb[:, :, :3]
    scale = max(size_wh[0] / rgb.shape[1], size_wh[1] / rgb.shape[0])
    width, height = (max(s, round(scale * o)) for s, o in zip(size_wh, rgb.shape[1::-1], strict=True))
    enlarged = cv2.resize(rgb, (width, height), interpolation=cv2.INTER_CUBIC)
    left, top = (width - size_wh[0]) // 2, (height - size_wh[1]) // 2
    return np.ascontiguousarray(enlarged[top : top + size_wh[1], left : left + size_wh[0]], np.uint8)


def _seen(scene: _Scene, index: int, size_wh: tuple[int, int]) -> tuple[ByteArray, BoolArray]:
    """Return the camera's picture of a frame, and the mask of the moving thing."""
    corner = scene.corner_xy[index]
    return _painted(look(scene.picture, corner, size_wh), scene.thing, scene.path_xy[index] - corner)


def _painted(picture: ByteArray, thing: _Cutout, middle_xy: npt.NDArray[np.float64]) -> tuple[ByteArray, BoolArray]:
    """A picture with a thing on it, and the mask of the thing."""
    x, y = middle_xy - _THING_PX / 2
    shift = np.array([[1, 0, x], [0, 1, y]], np.float64)
    size_wh = picture.shape[1::-1]
    alpha = cv2.warpAffine(thing.alpha, shift, size_wh, flags=cv2.INTER_LINEAR)
    rgb = cv2.warpAffine(thing.rgb, shift, size_wh, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    mixed = picture + alpha[..., None] * (rgb.astype(np.float32) - picture)
    return np.clip(np.rint(mixed), 0, 255).astype(np.uint8), np.asarray(alpha >= 0.5)


def text_footage(
    folder: Path, max_frames: int | None = None, *, size_wh: tuple[int, int] = (832, 480)
) -> list[Footage]:
    """Photographs with legible words, seen through a window that keeps their middle in sight.

    Raises:
        EvaluationDataError: There are none.
    """
    frames = min(FRAMES, max_frames or FRAMES)
    pictures = [picture for picture in load_pictures(folder) if any(word.legible for word in picture.words)]
    if not pictures:
        raise EvaluationDataError(
            f"{folder}: no pictures with legible words", remedy="see `python -m benchmarks text --help`"
        )
    return [_text(number, p, camera, frames, size_wh) for number, p in enumerate(pictures) for camera in CAMERAS]


def _text(number: int, picture: TextPicture, camera: Camera, frames: int, size_wh: tuple[int, int]) -> Footage:
    @lru_cache(maxsize=1)
    def scene() -> tuple[ByteArray, BoolArray, npt.NDArray[np.float64]]:
        rgb = picture.input().frame.rgb
        text = np.logical_or.reduce([word.mask(rgb.shape[:2]) for word in picture.words if word.legible])
        return rgb, text, _window_path(number, text, camera, frames, size_wh)

    def pictures() -> Iterator[ByteArray]:
        rgb, _, corners = scene()
        for index in range(frames):
            yield with_grain(look(rgb, corners[index], size_wh), 1000 * number + index)

    def truths() -> Iterator[Truth]:
        _, text, corners = scene()
        for index in range(frames):
            yield Truth(text=look(text.view(np.uint8) * 255, corners[index], size_wh) >= 128)

    name = f"{picture.path.stem}, {camera}"
    return Footage(name, "photos", camera, None, lambda: GeneratedSource(name, pictures, frames), truths)


def _window_path(
    number: int, text: BoolArray, camera: Camera, frames: int, size_wh: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """The camera's path, moved so that the words are in its middle as far as the photograph reaches."""
    rows, columns = np.nonzero(text)
    room = np.maximum(0, np.array(text.shape[::-1]) - size_wh)
    within = np.minimum(room, (160, 64))
    path = camera_path(camera, frames, (float(within[0]), float(within[1])), np.random.default_rng((number, 4)))
    wanted = np.array([columns.mean(), rows.mean()]) - np.array(size_wh) / 2 - within / 2
    return np.asarray(path + np.clip(wanted, 0, room - within))


def all_footage(
    data: Path | None,
    wanted: Sequence[FootageKind] | None,
    samples: Path,
    max_frames: int | None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Footage]:
    """The kinds that were asked for; without a wish, all that is at hand.

    Args:
        data: Folder with `davis/`, `text/icdar2015/` or `cameras/`, or one of the first two itself.
        wanted: Kinds; each must be at hand.
        samples: Folder of clips with truth files.
        max_frames: Most frames of a clip.
        say: Told what is left out.

    Raises:
        EvaluationDataError: Something wanted is not at hand, or there is nothing known in `data`.
    """
    places: dict[FootageKind, Path | None] = {
        "davis": _place(data, "davis", "frames"),
        "samples": samples if samples.is_dir() else None,
        "generated": Path(),
        "photos": _place(data, "text/icdar2015", "imgs"),
        **{kind: _inside(data, f"cameras/{kind}") for kind in CAMERA_KINDS},
        "tracks": _inside(data, "cameras/fixed"),
    }
    makers: dict[FootageKind, Callable[[Path], list[Footage]]] = {
        "davis": lambda folder: davis_footage(folder, max_frames),
        "samples": lambda folder: sample_footage(folder, max_frames),
        "generated": lambda _: generated_footage(max_frames),
        "photos": lambda folder: text_footage(folder, max_frames),
        **{kind: partial(camera_footage, kind=kind, max_frames=max_frames) for kind in CAMERA_KINDS},
        "tracks": lambda folder: track_footage(folder, max_frames),
    }
    if data is not None and all(places[kind] is None for kind in _REMEDIES if kind != "samples"):
        raise EvaluationDataError(
            f"{data}: no footage that is known here",
            remedy="give a folder with davis/, text/icdar2015/ or cameras/, or one of the first two",
        )
    for kind in wanted or KINDS:
        place = places[kind]
        if place is not None:
            yield from makers[kind](place)
        elif wanted:
            raise EvaluationDataError(f"--kind {kind}: no footage of it", remedy=_REMEDIES[kind])
        else:
            say(f"{kind}: left out; {_REMEDIES[kind]}")


_REMEDIES: dict[FootageKind, str] = {
    "davis": "give a folder with davis/frames/SEQ and davis/masks/SEQ",
    "samples": "name the folder of the sample clips with --samples",
    "photos": "give a folder with text/icdar2015/textdet_*.json and imgs/",
    **{kind: f"give a folder with cameras/{kind}/NAME" for kind in CAMERA_KINDS},
    "tracks": "give a folder with cameras/fixed/NAME/boxes.csv",
}


def _place(data: Path | None, inside: str, mark: str) -> Path | None:
    """The folder itself if it holds `mark`, or what lies `inside` of it; None for neither."""
    if data is None:
        return None
    return data if (data / mark).is_dir() else _inside(data, inside)


def _inside(data: Path | None, inside: str) -> Path | None:
    return data / inside if data is not None and (data / inside).is_dir() else None
