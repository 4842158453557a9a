"""Questions about pictures that code can draw, with short answers that nobody would dispute.

Three sets of pictures, all of one size: generated scenes of coloured shapes, words on signs of several sizes, and the
photographs that scikit-image brings along. For each question it is known where the answer is to be seen, so that one
can tell a choice of cells that missed it from a model that did not understand.

What is asked about is unique in its picture: where something similar (a ring beside a circle, orange beside red) could
be taken for it, another question is asked. The query that goes to the selector never says the answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from arr_stream.draw import typeface
from arr_stream.errors import EvaluationDataError
from arr_stream.types import ByteArray
from benchmarks.scenes.shapes import COLOURS, SHAPES, Scene, Thing, make_scene

SIZE_WH = (1024, 768)
"""Size of every picture: 32x24 cells."""

SCENES = 24
SCENE_KINDS = ("colour", "shape", "side", "count", "presence", "place")
EACH_KIND = 8
SIGN_SIZES_PX = ((20,), (26,), (34,), (44,), (24, 24), (32, 32), (48, 48), (72, 72))
"""Font sizes of the signs of each picture with words; capitals are 0.73 of it high."""

NUMBERS = ("1", "2", "3", "4")
CORNERS = ("top left", "top right", "bottom left", "bottom right")

_AKIN_COLOURS = (
    "red orange",
    "red pink",
    "red purple",
    "orange yellow",
    "orange pink",
    "green cyan",
    "cyan blue",
    "cyan white",
    "blue purple",
    "purple pink",
    "purple black",
    "pink white",
)
_AKIN = {frozenset(pair.split()) for pair in (*_AKIN_COLOURS, "circle ring", "star cross", "heart triangle")}
"""Pairs that might be taken for each other."""

_WORDS = (
    ("BREAD", "CHAIR", "HORSE", "MUSIC"),
    ("LAKE", "FORK", "WIND", "ROSE"),
    ("PAPER", "TOWER", "CLOUD", "STING"),
    ("GARDEN", "BUTTER", "PLANET", "WINDOW"),
    ("EAST", "HOPE", "MILK", "JUMP"),
    ("SALT", "BIRD", "NOON", "KEYS"),
    ("TRAIN", "OLIVE", "SHELF", "CANDY"),
    ("QUIET", "FROST", "MANGO", "BLADE"),
)
_SIGN_COLOURS = ("yellow", "white", "green", "blue", "red", "black")
_SYNONYMS = {
    "1": ("one", "a single one"),
    "2": ("two", "a pair"),
    "3": ("three",),
    "4": ("four",),
    "left": ("to the left", "on the left"),
    "right": ("to the right", "on the right"),
    "top left": ("upper left", "top left corner", "upper left corner"),
    "top right": ("upper right", "top right corner", "upper right corner"),
    "bottom left": ("lower left", "bottom left corner", "lower left corner"),
    "bottom right": ("lower right", "bottom right corner", "lower right corner"),
    "rocket": ("a rocket", "space shuttle", "a space shuttle"),
    "cat": ("a cat",),
    "coffee": ("espresso",),
    "spoon": ("a spoon", "teaspoon"),
}


@dataclass(frozen=True, slots=True, eq=False)
class PictureQuestion:
    """A question about a picture.

    Args:
        picture: Name of the picture; questions of one picture share it, and the same array.
        rgb: `[H, W, 3]` uint8.
        kind: What is asked for, such as `colour` or `word`.
        question: In words.
        options: All answers that are offered, in the order in which they are.
        answer: The right one of them.
        queries: What the selector is told to look for; it does not name the answer.
        regions: `[H, W]` uint8, what must be seen: 1, 2 and so on for each thing, 0 elsewhere; all 0 where there is
            nothing to be seen (the answer is "no").
    """

    picture: str
    rgb: ByteArray
    kind: str
    question: str
    options: tuple[str, ...]
    answer: str
    queries: tuple[str, ...]
    regions: ByteArray

    def __post_init__(self) -> None:
        if self.answer not in self.options or len(set(self.options)) != len(self.options):
            raise ValueError(f"options {self.options} must be distinct and hold the answer {self.answer!r}")
        if self.regions.shape != self.rgb.shape[:2]:
            raise ValueError(f"regions are {list(self.regions.shape)} for a picture of {list(self.rgb.shape)}")

    @property
    def accepted(self) -> tuple[str, ...]:
        """The answer and its synonyms."""
        return (self.answer, *_SYNONYMS.get(self.answer, ()))

    @property
    def things(self) -> int:
        """How many things must be seen."""
        return int(self.regions.max())


def picture_questions(seed: int = 0, *, photographs: bool = True) -> tuple[PictureQuestion, ...]:
    """The whole set: about 60 questions over 37 pictures.

    Args:
        seed: Another gives other scenes and signs.
        photographs: With those of scikit-image.

    Raises:
        EvaluationDataError: This scikit-image comes without its photographs.
    """
    return (*_drawn_questions(seed), *(_photograph_questions() if photographs else ()))


@lru_cache(maxsize=1)
def _drawn_questions(seed: int) -> tuple[PictureQuestion, ...]:
    scenes, signs = (np.random.default_rng(seed + more) for more in (0, 1))
    return (*scene_questions(scenes), *_sign_questions(signs))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    kind: str
    question: str
    options: tuple[str, ...]
    answer: str
    queries: tuple[str, ...]
    seen: tuple[Thing, ...]


def scene_questions(rng: np.random.Generator) -> Iterator[PictureQuestion]:
    """Two questions of different kinds a scene, so that kinds and their answers come about equally often."""
    left = Counter(dict.fromkeys(SCENE_KINDS, EACH_KIND))
    answers: Counter[tuple[str, str]] = Counter()
    number = 0
    for _ in range(50 * SCENES):
        if not left.total():
            return
        scene = make_scene(rng, SIZE_WH, (5, 9), diameter_px=(80.0, 230.0))
        if not all(_stands_out(scene, thing) for thing in scene.things):
            continue
        pools = {kind: list(ask(scene, rng)) for kind, ask in _ASKERS.items() if left[kind]}
        kinds = sorted((kind for kind, pool in pools.items() if pool), key=lambda kind: -left[kind])[:2]
        if len(kinds) < min(2, len([kind for kind in left if left[kind]])):
            continue
        name = f"scene {number:02d}"
        number += 1
        for kind in kinds:
            pool = [pools[kind][i] for i in rng.permutation(len(pools[kind]))]
            chosen = min(pool, key=lambda candidate: answers[kind, candidate.answer])
            answers[kind, chosen.answer] += 1
            left[kind] -= 1
            regions = _regions([thing.mask.view(np.uint8) for thing in chosen.seen])
            yield PictureQuestion(
                name, scene.rgb, kind, chosen.question, chosen.options, chosen.answer, chosen.queries, regions
            )
    raise ValueError(f"scenes gave no more questions of the kinds {[kind for kind in left if left[kind]]}")


def _ask_colour(scene: Scene, rng: np.random.Generator) -> Iterator[_Candidate]:
    for thing in _clear(scene):
        if _like(scene, shape=thing.shape) == [thing]:
            options = _options(rng, thing.colour, [other.colour for other in scene.things], list(COLOURS))
            question = f"What colour is the {thing.shape}?"
            yield _Candidate("colour", question, options, thing.colour, (thing.shape,), (thing,))


def _ask_shape(scene: Scene, rng: np.random.Generator) -> Iterator[_Candidate]:
    for thing in _clear(scene):
        if _like(scene, colour=thing.colour) == [thing] and not _behind(scene, thing.colour):
            options = _options(rng, thing.shape, [other.shape for other in scene.things], SHAPES)
            question = f"Which shape is the {thing.colour} figure?"
            yield _Candidate("shape", question, options, thing.shape, (thing.colour,), (thing,))


def _ask_side(scene: Scene, rng: np.random.Generator) -> Iterator[_Candidate]:
    clear = [thing for thing in _clear(scene) if _only(scene, thing)]
    for one in clear:
        for other in clear:
            apart = (_middle(one)[0] - _middle(other)[0]) / SIZE_WH[0]
            if abs(apart) > 0.2:
                names = one.phrase(), other.phrase()
                question = f"Is the {names[0]} to the left or to the right of the {names[1]}?"
                answer = "left" if apart < 0 else "right"
                yield _Candidate("side", question, ("left", "right"), answer, names, (one, other))


def _ask_count(scene: Scene, rng: np.random.Generator) -> Iterator[_Candidate]:
    for shape in SHAPES:
        same = _like(scene, shape=shape)
        if 1 <= len(same) <= len(NUMBERS) and all(thing.shape == shape and _whole(thing) for thing in same):
            question = f"How many {shape if shape != 'cross' else 'crosse'}s are there in the picture?"
            yield _Candidate("count", question, NUMBERS, str(len(same)), (shape,), tuple(same))
    for colour in COLOURS:
        same = _like(scene, colour=colour)
        alone = all(thing.colour == colour and thing.texture == "plain" and _whole(thing) for thing in same)
        if 1 <= len(same) <= len(NUMBERS) and alone and not _behind(scene, colour):
            question = f"How many {colour} figures are there in the picture?"
            yield _Candidate("count", question, NUMBERS, str(len(same)), (colour,), tuple(same))


def _ask_presence(scene: Scene, rng: np.random.Generator) -> Iterator[_Candidate]:
    for thing in _clear(scene):
        if _only(scene, thing):
            yield _presence(thing.colour, thing.shape, (thing,))
        # Its colour and its shape are both there, though not on one thing.
        for other in scene.things:
            if not _like(scene, colour=thing.colour, shape=other.shape):
                yield _presence(thing.colour, other.shape, ())


def _presence(colour: str, shape: str, seen: tuple[Thing, ...]) -> _Candidate:
    article = "an" if colour[0] in "aeiou" else "a"
    question = f"Is there {article} {colour} {shape} in the picture?"
    return _Candidate("presence", question, ("yes", "no"), "yes" if seen else "no", (f"{colour} {shape}",), seen)


def _ask_place(scene: Scene, rng: np.random.Generator) -> Iterator[_Candidate]:
    for thing in _clear(scene):
        x, y = (place / side - 0.5 for place, side in zip(_middle(thing), SIZE_WH, strict=True))
        if _only(scene, thing) and min(abs(x), abs(y)) > 0.14:
            answer = f"{'top' if y < 0 else 'bottom'} {'left' if x < 0 else 'right'}"
            question = f"In which corner of the picture is the {thing.phrase()}?"
            yield _Candidate("place", question, CORNERS, answer, (thing.phrase(),), (thing,))


_ASKERS: dict[str, Callable[[Scene, np.random.Generator], Iterator[_Candidate]]] = {
    "colour": _ask_colour,
    "shape": _ask_shape,
    "side": _ask_side,
    "count": _ask_count,
    "presence": _ask_presence,
    "place": _ask_place,
}


def _akin(one: str, other: str) -> bool:
    return one == other or frozenset((one, other)) in _AKIN


def _like(scene: Scene, *, colour: str | None = None, shape: str | None = None) -> list[Thing]:
    """Things that might be taken for one of that colour and shape."""
    return [
        thing
        for thing in scene.things
        if (colour is None or _akin(thing.colour, colour)) and (shape is None or _akin(thing.shape, shape))
    ]


def _only(scene: Scene, thing: Thing) -> bool:
    return _like(scene, colour=thing.colour, shape=thing.shape) == [thing]


def _clear(scene: Scene) -> list[Thing]:
    """Things of one colour that are seen whole."""
    return [thing for thing in scene.things if thing.texture == "plain" and _whole(thing)]


def _whole(thing: Thing) -> bool:
    x0, y0, x1, y1 = thing.box_xyxy
    return x0 > 2 and y0 > 2 and x1 < SIZE_WH[0] - 2 and y1 < SIZE_WH[1] - 2


def _middle(thing: Thing) -> tuple[float, float]:
    x0, y0, x1, y1 = thing.box_xyxy
    return (x0 + x1) / 2, (y0 + y1) / 2


def _behind(scene: Scene, colour: str) -> bool:
    """The background has places of that colour."""
    far = np.abs(scene.rgb[::4, ::4].astype(int) - COLOURS[colour]).sum(axis=2)
    things = np.logical_or.reduce([thing.mask[::4, ::4] for thing in scene.things])
    return bool(np.mean((far < 110)[~things]) > 0.01)


def _stands_out(scene: Scene, thing: Thing) -> bool:
    """Most of what is right around it has another colour than its middle tone."""
    things = np.logical_or.reduce([other.mask for other in scene.things])
    grown = np.asarray(cv2.dilate(thing.mask.view(np.uint8), np.ones((25, 25), np.uint8))) > 0
    around = scene.rgb[grown & ~things].astype(int)
    tone = np.median(scene.rgb[thing.mask], axis=0)
    return len(around) == 0 or bool(np.mean(np.abs(around - tone).sum(axis=1) < 90) < 0.3)


def _options(rng: np.random.Generator, answer: str, near: Sequence[str], every: Sequence[str]) -> tuple[str, ...]:
    """The answer and three others in random order, none akin; first those that are in the picture as well."""
    options = [answer]
    for other in (*dict.fromkeys(near), *rng.permutation(list(every)).tolist()):
        if len(options) < 4 and not any(_akin(other, option) for option in options):
            options.append(other)
    return tuple(rng.permutation(options).tolist())


def _regions(masks: Sequence[ByteArray]) -> ByteArray:
    regions = np.zeros(SIZE_WH[::-1], np.uint8)
    for number, mask in enumerate(masks, start=1):
        regions[mask > 0] = number
    return regions


def _sign_questions(rng: np.random.Generator) -> Iterator[PictureQuestion]:
    """One or two signs a picture, each with a word of its own."""
    for number, (sizes, words) in enumerate(zip(SIGN_SIZES_PX, _WORDS, strict=True)):
        scene = make_scene(rng, SIZE_WH, (2, 4), diameter_px=(80.0, 200.0))
        rgb = scene.rgb.copy()
        taken = [thing.box_xyxy for thing in scene.things]
        colours = _options(rng, str(rng.choice(_SIGN_COLOURS)), _SIGN_COLOURS, _SIGN_COLOURS)
        options = tuple(rng.permutation(words).tolist())
        boxes = []
        for size_px, word, colour in zip(sizes, words, colours, strict=False):
            box = _free_box(rng, _sign_wh(word, size_px), taken)
            taken.append(box)
            boxes.append(_draw_sign(rgb, box, word, size_px, colour))
        for (x0, y0, x1, y1), word, colour in zip(boxes, words, colours, strict=False):
            seen = np.zeros(SIZE_WH[::-1], np.uint8)
            seen[y0:y1, x0:x1] = 1
            sign = f"on the {colour} sign" if len(sizes) > 1 else "on the sign"
            query = f"{colour} text" if len(sizes) > 1 else "text"
            question = f"Which word is written {sign}?"
            yield PictureQuestion(f"sign {number:02d}", rgb, "word", question, options, word, (query,), seen)


def _sign_wh(word: str, size_px: int) -> tuple[int, int]:
    return typeface.width_px(word, size_px, bold=True) + 2 * size_px, 2 * size_px


def _free_box(
    rng: np.random.Generator, box_wh: tuple[int, int], taken: Sequence[tuple[int, int, int, int]]
) -> tuple[int, int, int, int]:
    margin = 12
    for _ in range(2000):
        x = int(rng.integers(margin, SIZE_WH[0] - margin - box_wh[0]))
        y = int(rng.integers(margin, SIZE_WH[1] - margin - box_wh[1]))
        x1, y1 = x + box_wh[0], y + box_wh[1]
        if all(x1 + margin < a or c + margin < x or y1 + margin < b or d + margin < y for a, b, c, d in taken):
            return x, y, x1, y1
    raise ValueError(f"no room for a sign of {box_wh[0]}x{box_wh[1]} px")


def _draw_sign(
    rgb: ByteArray, box_xyxy: tuple[int, int, int, int], word: str, size_px: int, colour: str
) -> tuple[int, int, int, int]:
    """Draws a sign into the picture; gives the box of its word."""
    x0, y0, x1, y1 = box_xyxy
    panel = COLOURS[colour]
    dark = 0.3 * panel[0] + 0.6 * panel[1] + 0.1 * panel[2] < 140
    ink = (250, 250, 250) if dark else (16, 16, 16)
    cv2.rectangle(rgb, (x0, y0), (x1 - 1, y1 - 1), panel, cv2.FILLED)
    inset = max(2, size_px // 8)
    cv2.rectangle(rgb, (x0 + inset, y0 + inset), (x1 - 1 - inset, y1 - 1 - inset), ink, max(1, size_px // 20))
    ascent, _ = typeface.font(size_px, bold=True).getmetrics()
    capital_px = math.ceil(0.73 * size_px)
    baseline = (y0 + y1 + capital_px) // 2
    left = (x0 + x1 - typeface.width_px(word, size_px, bold=True)) // 2
    right = typeface.draw(rgb, word, (left, baseline - ascent), size_px, ink, bold=True)
    return left, baseline - capital_px, right, baseline


@dataclass(frozen=True, slots=True)
class _Photograph:
    """A question about a photograph.

    Args:
        name: In `skimage.data`.
        left_top: Share of what 4:3 leaves over that is cut off on the left and at the top.
        options: Words, in the order in which they are offered.
        outlines: Of what must be seen, in hundredths of the cut picture.
    """

    name: str
    left_top: float
    question: str
    options: str
    answer: str
    query: str
    outlines: tuple[tuple[tuple[int, int], ...], ...]


_SUIT = ((22, 54), (26, 66), (36, 74), (50, 76), (58, 62), (68, 72), (70, 100), (4, 100), (10, 64))
_SHUTTLE = ((77, 0), (86, 0), (89, 12), (89, 72), (71, 74), (69, 57), (74, 45), (74, 12))
_EYES = (
    ((27, 30), (37, 28), (45, 38), (42, 48), (33, 49), (27, 41)),
    ((68, 40), (74, 36), (79, 41), (77, 52), (70, 53), (67, 47)),
)
_NOSE = ((51, 76), (59, 75), (67, 78), (59, 88))
_COFFEE = ((33, 38), (36, 30), (44, 26), (55, 26), (62, 32), (64, 38), (58, 46), (47, 49), (37, 45))
_SPOON = ((56, 68), (60, 62), (68, 62), (71, 70), (67, 80), (60, 81), (56, 76))
_ROCKET = ((48, 37), (50, 30), (52, 37), (52, 95), (48, 95))
_PHOTOGRAPHS = (
    _Photograph(
        "astronaut", 0.0, "What colour is the woman's suit?", "blue orange white green", "orange", "suit", (_SUIT,)
    ),
    _Photograph(
        "astronaut",
        0.0,
        "What stands behind the woman, on the right?",
        "tree piano rocket bicycle",
        "rocket",
        "right",
        (_SHUTTLE,),
    ),
    _Photograph("chelsea", 0.5, "Which animal is this?", "dog horse rabbit cat", "cat", "animal", (*_EYES, _NOSE)),
    _Photograph("chelsea", 0.5, "What colour are its eyes?", "green blue red black", "green", "eyes", _EYES),
    _Photograph("coffee", 0.4, "What is in the cup?", "milk water coffee flowers", "coffee", "cup", (_COFFEE,)),
    _Photograph(
        "coffee",
        0.4,
        "What lies on the saucer, beside the cup?",
        "fork spoon knife pencil",
        "spoon",
        "saucer",
        (_SPOON,),
    ),
    _Photograph(
        "rocket",
        0.5,
        "What stands in the middle of the picture?",
        "rocket tree church windmill",
        "rocket",
        "middle",
        (_ROCKET,),
    ),
)


def _photograph_questions() -> Iterator[PictureQuestion]:
    pictures: dict[str, ByteArray] = {}
    for asked in _PHOTOGRAPHS:
        if asked.name not in pictures:
            pictures[asked.name] = _photograph(asked.name, asked.left_top)
        masks = []
        for outline in asked.outlines:
            mask = np.zeros(SIZE_WH[::-1], np.uint8)
            corners = np.array(outline, np.float64) / 100 * SIZE_WH
            masks.append(np.asarray(cv2.fillPoly(mask, [corners.round().astype(np.int32)], 1), np.uint8))
        rgb, regions = pictures[asked.name], _regions(masks)
        options = tuple(asked.options.split())
        yield PictureQuestion(
            asked.name, rgb, "photograph", asked.question, options, asked.answer, (asked.query,), regions
        )


def _photograph(name: str, left_top: float) -> ByteArray:
    """`[768, 1024, 3]` uint8, cut to 4:3."""
    from skimage import data

    try:
        rgb = np.asarray(getattr(data, name)())[..., :3]
    except Exception as exc:  # Without its file skimage asks for a package that would download it.
        raise EvaluationDataError(
            f"skimage.data.{name}: not there", remedy="install scikit-image's wheel, or leave the photographs out"
        ) from exc
    height, width = rgb.shape[:2]
    kept_w, kept_h = min(width, round(height * 4 / 3)), min(height, round(width * 3 / 4))
    x, y = round((width - kept_w) * left_top), round((height - kept_h) * left_top)
    cut = np.ascontiguousarray(rgb[y : y + kept_h, x : x + kept_w])
    scaled: ByteArray = np.asarray(cv2.resize(cut, SIZE_WH, interpolation=cv2.INTER_CUBIC), np.uint8)
    return scaled
