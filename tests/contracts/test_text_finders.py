"""What every text finder promises, on real text drawn into real pictures."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import NoReturn

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.keyframes.base import TEXT_READ, TextFinder, TextFinding
from arr_stream.keyframes.text import TEXT_FINDERS, make_text_finder
from arr_stream.types import Grid
from tests.keyframe_fakes import seen

FINDERS: dict[str, TextFinder] = {}
# CRAFT takes seconds a picture; what is quick about it stands in test_text_easy.
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "easyocr" else name for name in TEXT_FINDERS]

every_finder = pytest.mark.parametrize("name", NAMES)
every_reader = pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])


def make(name: str) -> TextFinder:
    if name == "easyocr":
        pytest.importorskip("easyocr")
        pytest.importorskip("easyocr_en_models")
    return make_text_finder(Settings().with_values({"keyframes.text": name}), 1)


def find(name: str, rgb: npt.NDArray[np.uint8]) -> TextFinding:
    if name not in FINDERS:
        FINDERS[name] = make(name)
    return FINDERS[name].find(seen(rgb))


def sign(words: str = "BAKERY", size_wh: tuple[int, int] = (640, 360)) -> npt.NDArray[np.uint8]:
    """A white board with black words on a green wall; the board is at (160, 120) to (480, 220)."""
    rgb = np.full((360, 640, 3), (60, 110, 70), np.uint8)
    rgb += np.random.default_rng(0).integers(0, 20, rgb.shape, np.uint8)
    cv2.rectangle(rgb, (160, 120), (480, 220), (240, 240, 235), -1)
    cv2.putText(rgb, words, (180, 190), cv2.FONT_HERSHEY_SIMPLEX, 2.0, (20, 20, 20), 6, cv2.LINE_AA)
    return rgb if size_wh == (640, 360) else cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA)


@every_finder
def test_any_size_gives_a_mask_at_a_quarter_of_the_texture(name: str) -> None:
    for size_wh in ((1, 1), (900, 20)):
        rgb = np.random.default_rng(1).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
        finding = find(name, rgb)
        grid = Grid.for_size(size_wh)
        assert finding.mask.shape == (grid.rows * 8, grid.columns * 8)
        assert finding.mask.dtype == np.float32
        assert finding.mask.min() >= 0.0 and finding.mask.max() <= 1.0
    finding = find(name, np.full((240, 320, 3), 90, np.uint8))
    assert finding.regions == (), "nothing written"
    assert finding.mask.max() <= TEXT_READ and finding.mask.mean() < 0.02


@every_reader
@pytest.mark.parametrize("size_wh", [(320, 180), (1920, 1080)])
def test_a_sign_is_found_where_it_is(name: str, size_wh: tuple[int, int]) -> None:
    finding = find(name, sign(size_wh=size_wh))
    height, width = finding.mask.shape
    columns, rows = np.nonzero(finding.mask > TEXT_READ)[::-1]
    assert columns.min() / width > 155 / 640 and columns.max() / width < 485 / 640
    assert rows.min() / height > 115 / 360 and rows.max() / height < 225 / 360
    assert finding.mask[int(165 / 360 * height), int(300 / 640 * width)] > 0.8
    for region in finding.regions:
        assert len(region.polygon_xy) >= 4
        assert all(0.0 <= value <= 1.0 for corner in region.polygon_xy for value in corner)
        assert 0.0 <= region.confidence <= 1.0


@every_reader
def test_words_are_read(name: str) -> None:
    (region,) = find(name, sign("BAKERY")).regions
    assert region.text == "BAKERY"
    assert region.confidence > 0.7


@every_reader
def test_what_cannot_be_read_is_no_text(name: str) -> None:
    """Stripes are where a detector is easily wrong."""
    rgb = np.full((360, 640, 3), 60, np.uint8)
    for x in range(100, 500, 12):
        cv2.line(rgb, (x, 150), (x + 4, 190), (230, 230, 230), 3, cv2.LINE_AA)
    finding = find(name, rgb)
    assert finding.regions == () or all(len(region.text or "") > 1 for region in finding.regions)
    assert (finding.mask > TEXT_READ).any() == bool(finding.regions)


@every_reader
def test_nothing_is_downloaded_or_printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("tried the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    finder = make(name)
    assert finder.find(seen(sign())).regions
    finder.find(seen(np.zeros((360, 640, 3), np.uint8)))
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger().level != logging.CRITICAL


def test_missing_models_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import rapidocr

    monkeypatch.setattr(rapidocr.__spec__, "origin", str(tmp_path / "__init__.py"))
    with pytest.raises(BackendUnavailable, match=r"no det model.*force-reinstall"):
        make("rapidocr")
