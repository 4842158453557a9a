"""EasyOCR: what is its own. The promises of every text finder are kept in contracts/test_text_finders."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.keyframes.base import TextFinding
from arr_stream.keyframes.text import make_text_finder
from arr_stream.keyframes.text.easy import EasyOcrFinder
from arr_stream.types import ByteArray
from tests.keyframe_fakes import seen
from tests.weight_files import PickleBomb

models = pytest.importorskip("easyocr_en_models")
pytest.importorskip("easyocr")


def look(finder: EasyOcrFinder, rgb: ByteArray) -> TextFinding:
    return finder.find(seen(rgb))


def board(*words: tuple[str, int, int], ink: int = 20) -> ByteArray:
    rgb = np.full((180, 320, 3), (235, 235, 230), np.uint8)
    for text, x, y in words:
        cv2.putText(rgb, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (ink, ink, ink), 3, cv2.LINE_AA)
    return rgb


@pytest.fixture(scope="module")
def finder() -> EasyOcrFinder:
    return EasyOcrFinder(threads=1, device="cpu", detect_side_px=320)


def test_words_of_one_line_are_one_region(finder: EasyOcrFinder) -> None:
    finding = look(finder, board(("OPEN", 30, 60), ("DAILY", 118, 60), ("CLOSED", 60, 150)))
    assert sorted(region.text or "" for region in finding.regions) == ["CLOSED", "OPEN DAILY"]
    assert all(region.confidence > 0.8 for region in finding.regions)
    height = finding.mask.shape[0]
    assert finding.mask[: height // 2].max() > 0.7 and finding.mask[height * 5 // 9 : height * 6 // 9].max() == 0


def test_slanted_words_keep_their_slant(finder: EasyOcrFinder) -> None:
    turn = cv2.getRotationMatrix2D((160, 90), 20, 1.0)
    turned = cv2.warpAffine(board(("BAKERY", 80, 100)), turn, (320, 180), borderMode=cv2.BORDER_REPLICATE)
    (region,) = look(finder, np.ascontiguousarray(turned, dtype=np.uint8)).regions
    corners = np.array(region.polygon_xy) * (320, 180)
    rise = np.degrees(np.arctan2(corners[0, 1] - corners[1, 1], corners[1, 0] - corners[0, 0]))
    assert rise == pytest.approx(20, abs=4)
    assert region.text == "BAKERY"


@pytest.mark.parametrize("package", ["easyocr.craft", "easyocr_en_models"])
def test_missing_packages_are_an_error_with_a_remedy(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'arr-stream\[easyocr\]'"):
        make_text_finder(Settings().with_values({"keyframes.text": "easyocr"}))


@pytest.mark.parametrize(
    ("written", "error", "says"),
    [
        (lambda path: None, BackendUnavailable, r"no craft_mlt_25k\.pth in .*pip install"),
        (
            lambda path: path.write_bytes(pickle.dumps({"weight": PickleBomb(path.parent / "made")}, protocol=2)),
            WeightsInvalid,
            r"craft_mlt_25k\.pth",
        ),
        (
            lambda path: torch.save({"module.weight": torch.zeros(3)}, path),
            WeightsInvalid,
            "not the weights of easyocr's CRAFT",
        ),
    ],
    ids=["missing", "code", "another network"],
)
def test_weights_that_will_not_do(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    written: Callable[[Path], object],
    error: type[Exception],
    says: str,
) -> None:
    written(tmp_path / "craft_mlt_25k.pth")
    monkeypatch.setattr(models, "model_dir", lambda: str(tmp_path))
    with pytest.raises(error, match=says):
        EasyOcrFinder()
    assert not (tmp_path / "made").exists()
