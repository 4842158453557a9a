"""Text in two looks: the second only where the first saw something; what can be read there is believed."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.keyframes.base import TEXT_READ, KeyframeInput, TextBefore, TextFinding
from arr_stream.keyframes.network import Network
from arr_stream.keyframes.text.auto import AutoText, search, windows_around
from arr_stream.keyframes.text.rapid import LEAST_SCORE, RapidOcrFinder, boxes_of, text_probability
from arr_stream.types import ByteArray, FloatArray, TextRegion
from tests.keyframe_fakes import seen

Look = tuple[list[TextRegion], FloatArray]


@pytest.fixture(scope="module")
def finder() -> AutoText:
    return AutoText(threads=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Sizes of the pictures that detection is given, in order."""
    sizes: list[tuple[int, int]] = []
    detect = RapidOcrFinder.search

    def counted(self: RapidOcrFinder, rgb: ByteArray, *rest: float) -> Look:
        sizes.append((rgb.shape[1], rgb.shape[0]))
        return detect(self, rgb, *rest)

    monkeypatch.setattr(RapidOcrFinder, "search", counted)
    return sizes


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[TextRegion]:
    asked: list[TextRegion] = []
    read = RapidOcrFinder.read

    def counted(self: RapidOcrFinder, rgb: ByteArray, regions: Iterable[TextRegion]) -> list[TextRegion]:
        regions = list(regions)
        asked.extend(regions)
        return read(self, rgb, regions)

    monkeypatch.setattr(RapidOcrFinder, "read", counted)
    return asked


def look(finder: AutoText | RapidOcrFinder, rgb: ByteArray) -> TextFinding:
    return finder.find(seen(rgb))


def after(
    rgb: ByteArray, known: tuple[TextRegion, ...], *new: tuple[slice, slice], doubtful: tuple[TextRegion, ...] = ()
) -> KeyframeInput:
    """A picture that is new in places alone, given in 32nds of its sides."""
    places = np.zeros((32, 32), bool)
    for place in new:
        places[place] = True
    picture = seen(rgb)
    likely = np.zeros(picture.quarter_hw, np.float32)
    return dataclasses.replace(picture, text_before=TextBefore(known, doubtful, places, likely))


def wall(*words: tuple[str, int, int], scale: float = 1.2) -> ByteArray:
    """A wall of 1280x720, lighter towards the right, with words."""
    rgb = np.empty((720, 1280, 3), np.uint8)
    rgb[:] = np.linspace(70, 110, 1280, dtype=np.uint8)[None, :, None]
    for text, x, y in words:
        cv2.putText(rgb, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, (245, 245, 240), 2, cv2.LINE_AA)
    return rgb


def test_nothing_seen_nothing_done(finder: AutoText, looks: list[tuple[int, int]], reads: list[TextRegion]) -> None:
    look(finder, wall(("BAKERY", 100, 150)))
    looks.clear()
    reads.clear()
    finding = look(finder, wall())
    assert finding.regions == () and finding.mask.max() <= TEXT_READ and finding.mask.mean() < 0.02
    assert looks == [(1280, 720)]
    assert reads == []
    assert finder.name == "auto: rapidocr, nothing found cheaply"


unit = st.floats(0, 1, allow_nan=False, width=32)
boxes = st.lists(st.tuples(unit, unit, unit, unit), max_size=12)
sizes = st.tuples(st.integers(1, 2000), st.integers(1, 2000))


@settings(max_examples=50)
@given(boxes, sizes)
def test_windows_cover_every_hint_and_never_overlap(
    corners: list[tuple[float, float, float, float]], size_wh: tuple[int, int]
) -> None:
    hints = [np.array([[x0, y0], [x1, y1]]) for x0, y0, x1, y1 in corners]
    windows = windows_around(hints, size_wh, 12, 640)
    stride_px = max(size_wh) / 20
    for window in windows:
        assert 0 <= window.x0 < window.x1 <= size_wh[0] and 0 <= window.y0 < window.y1 <= size_wh[1]
        for side, whole in ((window.x1 - window.x0, size_wh[0]), (window.y1 - window.y0, size_wh[1])):
            # As many times 32 px in the detector's eyes as there is room for.
            assert side == whole or abs(side - round(side / stride_px) * stride_px) <= 0.51
    for one, other in itertools.combinations(windows, 2):
        assert not one.touches(other)
    for hint in hints:
        points = hint * size_wh
        assert any(
            (points >= (window.x0, window.y0)).all() and (points <= (window.x1, window.y1)).all() for window in windows
        )


def test_what_is_known_is_not_looked_for_again(finder: AutoText, looks: list[tuple[int, int]]) -> None:
    rgb = wall(("BAKERY", 100, 150))
    known = look(finder, rgb).regions
    looks.clear()
    assert finder.find(after(rgb, known)).regions == known
    assert looks == []
    assert finder.name == "auto: rapidocr, 1 known, nothing found cheaply"


def test_a_word_of_which_more_comes_into_sight_is_read_anew(finder: AutoText) -> None:
    (part,) = look(finder, wall(("BAKE", 100, 150))).regions
    right = round(part.polygon_xy[1][0] * 32)
    (whole,) = finder.find(after(wall(("BAKERY", 100, 150)), (part,), np.s_[4:8, right : right + 3])).regions
    assert whole.text == "BAKERY"


def test_doubtful_text_is_found_again_near_its_place(finder: AutoText) -> None:
    (known,) = look(finder, wall(("BAKERY", 100, 150))).regions
    (again,) = finder.find(after(wall(("BAKERY", 130, 180)), (), doubtful=(known,))).regions
    assert again.text == "BAKERY" and again.confidence > 0.7 * known.confidence
    moved = np.mean(again.polygon_xy, axis=0) - np.mean(known.polygon_xy, axis=0)
    assert moved * (1280, 720) == pytest.approx((30, 30), abs=5)


def test_text_that_is_not_found_again_is_forgotten_by_and_by(finder: AutoText) -> None:
    (known,) = look(finder, wall(("BAKERY", 100, 150))).regions
    sure = [known.confidence]
    while regions := finder.find(after(wall(), (), doubtful=(known,))).regions:
        (known,) = regions
        assert known.text == "BAKERY"
        sure.append(known.confidence)
    assert 3 <= len(sure) <= 6
    assert sure == sorted(sure, reverse=True)


def test_of_two_equal_words_the_missed_one_is_forgotten_by_and_by(finder: AutoText) -> None:
    both = look(finder, wall(("EXIT", 100, 150), ("EXIT", 800, 550))).regions
    regions = finder.find(after(wall(("EXIT", 100, 150)), (), doubtful=both)).regions
    assert [region.text for region in regions] == ["EXIT", "EXIT"]
    assert sorted(region.confidence for region in regions)[0] < 0.8 * min(region.confidence for region in both)


@settings(max_examples=50)
@given(boxes, boxes, sizes)
def test_every_new_place_is_looked_at_and_no_text_is_lost(
    new: list[tuple[float, float, float, float]],
    known: list[tuple[float, float, float, float]],
    size_wh: tuple[int, int],
) -> None:
    regions = tuple(TextRegion(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), 0.5) for x0, y0, x1, y1 in known)
    places = np.zeros((16, 24), bool)
    for x0, y0, x1, y1 in new:
        places[round(min(y0, y1) * 15) : round(max(y0, y1) * 15), round(min(x0, x1) * 23) : round(max(x0, x1) * 23)] = (
            True
        )
    before = TextBefore(regions[::2], regions[1::2], places, np.zeros((1, 1), np.float32))
    windows, still, doubtful = search(before, size_wh)
    assert sorted(map(id, (*still, *doubtful))) == sorted(map(id, regions))
    looked = np.zeros((size_wh[1], size_wh[0]), bool)
    for window in windows:
        looked[window.y0 : window.y1, window.x0 : window.x1] = True
    for row, column in np.argwhere(places):
        middle = int((row + 0.5) / 16 * size_wh[1]), int((column + 0.5) / 24 * size_wh[0])
        assert looked[middle]


@pytest.mark.slow
def test_boxes_are_those_of_rapidocr() -> None:
    rapidocr = pytest.importorskip("rapidocr")
    model = next((Path(rapidocr.__file__).parent / "models").glob("*_det_*.onnx"))
    limits = {"Global.max_side_len": 1 << 20, "Det.limit_type": "max", "Det.limit_side_len": 1 << 20}
    settings = {"Global.log_level": "critical", "Det.model_path": str(model), **limits}
    rgb = wall(("BAKERY", 100, 150), ("OPEN", 800, 160), ("exit to the left", 300, 500))[:704]
    theirs = rapidocr.RapidOCR(params=settings)(
        rgb[:, :, ::-1].copy(), use_det=True, use_cls=False, use_rec=False, box_thresh=LEAST_SCORE
    )
    ours = boxes_of(text_probability(Network(model), rgb), LEAST_SCORE)
    assert len(ours) == len(theirs.boxes) >= 3
    # Theirs are rounded on their way, by up to three pixels; their scores stay in the order before sorting.
    assert np.abs(np.array([corners for corners, _ in ours]) - theirs.boxes).max() <= 3
    assert sorted(score for _, score in ours) == pytest.approx(sorted(theirs.scores), abs=1e-4)


def test_arithmetic_stays_exact_where_text_is_looked_for() -> None:
    code = (
        "import numpy as np\n"
        "from arr_stream.keyframes.text.rapid import RapidOcrFinder\n"
        "RapidOcrFinder(threads=1).search(np.zeros((64, 64, 3), np.uint8), 64)\n"
        "print(np.float32(1e-39) * np.float32(0.5))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(said.stdout) > 0
