"""Evaluation of text detection and recognition, quality and cost, on pictures with outlined words and on blank ones.

    FOLDER/icdar2015/textdet_*.json, imgs/*.jpg    photos as mmocr lays them out: polygons, illegible ones `ignore`
    FOLDER/receipts/data.txt, *.jpeg               mmocr's key information: a JSON line a picture, boxes with their text

Either folder may be given by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.tables import ResultTable, Value, plain, timed
from arr_stream.keyframes.base import TEXT_READ, KeyframeInput, TextFinder
from arr_stream.keyframes.text.regions import text_mask
from arr_stream.relevance.words import WORD_RATIO, folded, word_similarity
from arr_stream.types import BoolArray, ByteArray, Frame, Grid, TextRegion

FOUND_SHARE = 0.5
"""Share of a word that the mask must cover for the word to count as found."""

_LAYOUT = "expected icdar2015/textdet_*.json with imgs/, or receipts/data.txt with its pictures"


@dataclass(frozen=True, slots=True)
class TruthWord:
    """Word, or a line without blanks, that a person outlined.

    Args:
        polygon_xy: Corners, normalised to [0, 1].
        text: The word; None if the data lack it.
        legible: False if the person could not read it; such places count neither for nor against a finder.
    """

    polygon_xy: tuple[tuple[float, float], ...]
    text: str | None
    legible: bool

    def mask(self, size_hw: tuple[int, int]) -> BoolArray:
        return np.asarray(text_mask([TextRegion(self.polygon_xy, 1.0)], size_hw) > 0)


@dataclass(frozen=True, slots=True)
class TextPicture:
    """Picture with all its words.

    Args:
        folder: Name of its folder; scores are per folder.
        path: Path of the picture.
        words: Its words; empty for a picture known to be without text.
    """

    folder: str
    path: Path
    words: tuple[TruthWord, ...]

    def input(self) -> KeyframeInput:
        """Return the picture as the input of a finder.

        Raises:
            EvaluationDataError: It cannot be read.
        """
        rgb = _read_rgb(self.path)
        return KeyframeInput(Frame(0, 0.0, rgb), Grid.for_size((rgb.shape[1], rgb.shape[0])))


@dataclass(frozen=True, slots=True)
class TextScore:
    """Score of one finder on some pictures.

    Args:
        folder, finder: Names of the folder and the finder.
        pictures: Number of pictures.
        something_found: Number of pictures on which any text was found.
        pixels_hit, pixels_found, pixels_true: Pixels at a quarter of the texture, illegible words left out: of the mask
            on words, of the mask, of words.
        words_found, words: Words covered by at least `FOUND_SHARE`, and all.
        verbatim, matched, readable: Words read without error (except for case, accents, punctuation and blanks), words
            that a quoted query finds, and all whose text is known.
        milliseconds: Median processor time of a picture.
    """

    folder: str
    finder: str
    pictures: int
    something_found: int
    pixels_hit: int
    pixels_found: int
    pixels_true: int
    words_found: int
    words: int
    verbatim: int
    matched: int
    readable: int
    milliseconds: float

    @property
    def recall(self) -> float | None:
        """Share of the words' pixels that the mask covers; None without words."""
        return self.pixels_hit / self.pixels_true if self.pixels_true else None

    @property
    def precision(self) -> float | None:
        """Share of the mask that is on words; None for an empty mask."""
        return self.pixels_hit / self.pixels_found if self.pixels_found else None

    def as_json(self) -> dict[str, Any]:
        return {**plain(self), "recall": self.recall, "precision": self.precision}


def text_tables(scores: Sequence[TextScore]) -> list[ResultTable]:
    """Return the tables of pictures with words, and of those without."""
    lines: list[tuple[Value, ...]] = [
        (
            *(score.folder, score.finder, f"{score.something_found}/{score.pictures}", score.recall, score.precision),
            f"{score.words_found}/{score.words}",
            f"{score.verbatim}/{score.readable}" if score.readable else None,
            f"{score.matched}/{score.readable}" if score.readable else None,
            round(score.milliseconds),
        )
        for score in scores
        if score.words
    ]
    blank: list[tuple[Value, ...]] = [
        (score.folder, score.finder, f"{score.something_found}/{score.pictures}", score.milliseconds)
        for score in scores
        if not score.words
    ]
    tables = [
        ResultTable(
            "Pictures with text; ms are processor time of one thread, median of the pictures",
            (
                *("pictures", "finder", "seen on", "recall", "precision"),
                *("found", "read", "matched", "ms"),
            ),
            tuple(lines),
            "Finders take turns: compare their times with each other only.",
            digits=2,
        ),
        ResultTable("Pictures without any text", ("pictures", "finder", "text seen on", "ms"), tuple(blank), digits=0),
    ]
    return [table for table in tables if table.rows]


def load_pictures(folder: Path) -> list[TextPicture]:
    """Load all pictures of a folder with ground truth, or of its folders.

    Raises:
        EvaluationDataError: There are none, or the ground truth is damaged.
    """
    pictures: list[TextPicture] = []
    for path in [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]:
        for truth, load in (("textdet_*.json", _photos), ("data.txt", _receipts)):
            for file in sorted(path.glob(truth)):
                try:
                    pictures += load(file)
                except (KeyError, TypeError, ValueError) as exc:
                    raise EvaluationDataError(
                        f"{file}: not the expected ground truth: {exc!r}", remedy=_LAYOUT
                    ) from exc
    if not pictures:
        raise EvaluationDataError(f"{folder}: no pictures with text", remedy=_LAYOUT)
    return pictures


def load_blank(folder: Path, every: int = 1) -> list[TextPicture]:
    """Load each `every`th picture in a folder and below, as pictures known to be without text.

    Raises:
        EvaluationDataError: There are none.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise EvaluationDataError(f"{folder}: no pictures", remedy="give a folder with .jpg or .png files")
    return [TextPicture("without text", path, ()) for path in paths[::every]]


def evaluate_text(
    pictures: Sequence[TextPicture],
    finders: Mapping[str, Callable[[], TextFinder]],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[TextScore]:
    """Return one score for every folder and finder.

    Finders take turns picture by picture, and their time is processor time, so that a busy machine favours none.

    Args:
        pictures: The pictures.
        finders: Factories by name.
        progress: Called with the name of each picture.

    Raises:
        EvaluationDataError: A picture cannot be read.
        BackendUnavailable: A finder cannot be created.
    """
    made = {name: make() for name, make in finders.items()}
    for finder in made.values():
        # Load the models before the timed pictures.
        finder.find(pictures[0].input())
    looks: dict[tuple[str, str], list[TextScore]] = {}
    for picture in pictures:
        progress(picture.path.name)
        seen = picture.input()
        for name, finder in made.items():
            looks.setdefault((picture.folder, name), []).append(_look(picture, seen, name, finder))
    return [_sum(several) for several in looks.values()]


def _look(picture: TextPicture, seen: KeyframeInput, name: str, finder: TextFinder) -> TextScore:
    spent: list[float] = []
    with timed(spent, clock=time.process_time):
        finding = finder.find(seen)
    known = [word for word in picture.words if word.legible and folded(word.text or "")]
    similarities = np.array([_best_reading(word, finding.regions) for word in known])
    found = np.asarray(finding.mask > TEXT_READ)
    masks = [word.mask(found.shape) for word in picture.words if word.legible]
    true = _union(masks, found.shape)
    illegible = _union([word.mask(found.shape) for word in picture.words if not word.legible], found.shape)
    judged = found & (true | ~illegible)
    return TextScore(
        folder=picture.folder,
        finder=name,
        pictures=1,
        something_found=int(bool(finding.regions)),
        pixels_hit=int((judged & true).sum()),
        pixels_found=int(judged.sum()),
        pixels_true=int(true.sum()),
        words_found=sum(bool(mask.any()) and bool(found[mask].mean() >= FOUND_SHARE) for mask in masks),
        words=len(masks),
        verbatim=int((similarities == 1).sum()),
        matched=int((similarities >= WORD_RATIO).sum()),
        readable=len(similarities),
        milliseconds=spent[0],
    )


def _union(masks: Sequence[BoolArray], size_hw: tuple[int, ...]) -> BoolArray:
    return np.asarray(np.logical_or.reduce([np.zeros(size_hw, bool), *masks]))


def _best_reading(word: TruthWord, regions: Sequence[TextRegion]) -> float:
    """Return the best similarity among the regions whose upright boxes touch the word's."""
    low, high = _box(word.polygon_xy)
    best = 0.0
    for region in regions:
        region_low, region_high = _box(region.polygon_xy)
        if region.text and (region_low < high).all() and (low < region_high).all():
            best = max(best, word_similarity(region.text, word.text or ""))
    return best


def _box(polygon_xy: Sequence[tuple[float, float]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    corners = np.asarray(polygon_xy)
    return corners.min(axis=0), corners.max(axis=0)


def _sum(looks: Sequence[TextScore]) -> TextScore:
    """Sum the counts, and take the median of the times."""
    counts = {
        each.name: sum(getattr(look, each.name) for look in looks) for each in fields(TextScore) if each.type == "int"
    }
    return replace(
        looks[0],
        **counts,
        milliseconds=float(np.median([look.milliseconds for look in looks])),
    )


def _photos(file: Path) -> list[TextPicture]:
    """Read mmocr's detection format; the pictures' own folders are ignored, as they differ from copy to copy."""
    pictures = []
    for entry in json.loads(file.read_text(encoding="utf-8"))["data_list"]:
        size_wh = (entry["width"], entry["height"])
        words = tuple(
            TruthWord(_unit(instance["polygon"], size_wh), instance.get("text"), not instance["ignore"])
            for instance in entry["instances"]
        )
        pictures.append(TextPicture(file.parent.name, file.parent / "imgs" / Path(entry["img_path"]).name, words))
    return pictures


def _receipts(file: Path) -> list[TextPicture]:
    """Read mmocr's format for key information; boxes without a text are of class 0, to be ignored."""
    pictures = []
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        size_wh = (entry["width"], entry["height"])
        words = tuple(
            TruthWord(_unit(note["box"], size_wh), note["text"], bool(note["text"])) for note in entry["annotations"]
        )
        pictures.append(TextPicture(file.parent.name, file.parent / Path(entry["file_name"]).name, words))
    return pictures


def _unit(polygon_px: Sequence[float], size_wh: tuple[int, int]) -> tuple[tuple[float, float], ...]:
    corners = np.asarray(polygon_px, np.float64).reshape(-1, 2) / size_wh
    return tuple((float(x), float(y)) for x, y in corners)


def _read_rgb(path: Path) -> ByteArray:
    import cv2

    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise EvaluationDataError(f"{path}: not a readable picture", remedy=_LAYOUT)
    return np.ascontiguousarray(bgr[:, :, ::-1], dtype=np.uint8)
