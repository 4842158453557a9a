"""Text with ground truth: the sums are right, and what people could not read counts neither way."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import typer
from typer.testing import CliRunner

from arr_stream.keyframes.base import KeyframeInput, TextFinding
from arr_stream.keyframes.text.regions import text_mask
from arr_stream.types import TextRegion
from benchmarks.commands.quality import text
from benchmarks.text import TextScore, evaluate_text, load_pictures

SIZE_WH = (320, 192)


class Fixed:
    """Finds the same boxes on every picture, given in pixels, and reads what it is told to."""

    name = "fixed"

    def __init__(self, *boxes: tuple[tuple[int, int, int, int], str | None]) -> None:
        self.regions = tuple(TextRegion(_unit(box), 0.9, words) for box, words in boxes)

    def find(self, picture: KeyframeInput) -> TextFinding:
        return TextFinding(text_mask(self.regions, picture.quarter_hw), self.regions)


def _unit(box: tuple[int, int, int, int]) -> tuple[tuple[float, float], ...]:
    x0, y0, x1, y1 = (value / side for value, side in zip(box, SIZE_WH * 2, strict=True))
    return (x0, y0), (x1, y0), (x1, y1), (x0, y1)


def _corners(box: tuple[int, int, int, int]) -> list[int]:
    x0, y0, x1, y1 = box
    return [x0, y0, x1, y0, x1, y1, x0, y1]


def picture(path: Path, word: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rgb = np.full((SIZE_WH[1], SIZE_WH[0], 3), 230, np.uint8)
    cv2.putText(rgb, word, (36, 84), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (20, 20, 20), 4, cv2.LINE_AA)
    assert cv2.imwrite(str(path), rgb)


WORD, OTHER, BLURRED = (32, 40, 160, 96), (192, 40, 288, 96), (32, 120, 160, 176)


def photos(folder: Path) -> Path:
    """One photo with two words and one that nobody can read."""
    picture(folder / "imgs" / "a.png")
    instances = [
        {"polygon": _corners(box), "ignore": box == BLURRED, "bbox_label": 0} for box in (WORD, OTHER, BLURRED)
    ]
    entry = {"img_path": "elsewhere/a.png", "width": SIZE_WH[0], "height": SIZE_WH[1], "instances": instances}
    (folder / "textdet_test.json").write_text(json.dumps({"metainfo": {}, "data_list": [entry]}))
    return folder


def receipts(folder: Path, word: str = "TOTAL") -> Path:
    """One receipt with a word, and a box to ignore."""
    picture(folder / "r.png", word)
    notes = [{"box": _corners(WORD), "text": "TOTAL", "label": 1}, {"box": _corners(BLURRED), "text": "", "label": 0}]
    entry = {"file_name": "x/r.png", "width": SIZE_WH[0], "height": SIZE_WH[1], "annotations": notes}
    (folder / "data.txt").write_text(json.dumps(entry) + "\n")
    return folder


def score(folder: Path, *boxes: tuple[tuple[int, int, int, int], str | None]) -> TextScore:
    (only,) = evaluate_text(load_pictures(folder), {"fixed": lambda: Fixed(*boxes)})
    return only


def test_exactly_the_words(tmp_path: Path) -> None:
    result = score(photos(tmp_path), (WORD, None), (OTHER, None))
    assert result.recall == result.precision == 1.0
    assert (result.words_found, result.words, result.something_found, result.pictures) == (2, 2, 1, 1)
    assert (result.verbatim, result.readable) == (0, 0)


def test_illegible_words_count_neither_way(tmp_path: Path) -> None:
    with_it = score(photos(tmp_path), (WORD, None), (BLURRED, None))
    without = score(tmp_path, (WORD, None))
    assert with_it.precision == without.precision == 1.0
    assert with_it.recall == without.recall
    assert with_it.words == 2


def test_command_line(tmp_path: Path) -> None:
    receipts(tmp_path / "receipts")
    picture(tmp_path / "walls" / "w.png")
    app = typer.Typer()
    app.command()(text)
    asked = [str(tmp_path), "--backend", "rapidocr", "--backend", "none", "--blank", str(tmp_path / "walls"), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    scores = {(s["folder"], s["finder"]): s for s in json.loads(done.output)}
    assert scores["receipts", "rapidocr"]["verbatim"] == 1 and scores["receipts", "none"]["verbatim"] == 0
    assert scores["receipts", "rapidocr"]["recall"] > 0.5
    assert scores["without text", "rapidocr"]["something_found"] == 0
    table = CliRunner().invoke(app, [str(tmp_path), "--backend", "none"])
    assert table.exit_code == 0
    assert "receipts" in table.output and "…" not in table.output
