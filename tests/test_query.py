"""Reading queries: texts, regions, example pictures, and words in the scene."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arr_stream.errors import EmptyQuery, InvalidSetting, QueryUnreadable, RegionOutsideFrame
from arr_stream.relevance.membership import text_relevance
from arr_stream.relevance.query import (
    RegionQuery,
    load_example,
    make_queries,
    parse_region,
    parse_text,
)
from arr_stream.relevance.words import word_mask
from arr_stream.types import TextRegion

# ---- texts


@given(st.text(max_size=300))
def test_any_text_is_a_query_unless_blank(text: str) -> None:
    if not text.strip():
        with pytest.raises(EmptyQuery):
            parse_text(text)
        return
    query = parse_text(text)
    notice = query.notice()
    assert (notice is None) == (bool(query.terms) and not query.unknown_words)
    assert notice is None or "\n" not in notice
    assert "\n" not in query.label and len(query.label) <= 48
    for word in query.unknown_words:
        assert notice is not None and word in notice


def test_notice_names_every_unknown_word_once() -> None:
    query = parse_text("find the red SHED and a fence near the other shed")
    assert query.unknown_words == ("shed", "fence", "near", "other")
    notice = query.notice()
    assert notice is not None
    assert notice.count("'shed'") == 1
    assert "'fence'" in notice and "plain_words" in notice
    assert "nothing to search for" not in notice


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("find the red CAR on the left", "red car"),
        ("moving dark blue van", "dark blue van"),
        ("where is the dog near the bus?", "dog near the bus"),
        ('the sign that says "STOP"', "sign"),
        ("red", "red thing"),
        ("the red one on the left", "red thing"),
        ("left", ""),
        ("something", ""),
        ("zebra", "zebra"),
        ("собака", "собака"),
    ],
)
def test_the_phrase_is_what_the_thing_is_called(text: str, phrase: str) -> None:
    assert parse_text(text).phrase == phrase


def test_negation_is_unknown_rather_than_dropped() -> None:
    assert parse_text("not red").unknown_words == ("not",)
    assert parse_text("red without blue").unknown_words == ("without",)


@pytest.mark.parametrize(
    "text", ['"Exit A"', "“Exit A”", "„Exit A“", "‘Exit A’", "'Exit A'", "«Exit A»", 'the sign? no: "Exit   A"']
)
def test_quoted_words_in_every_kind_of_quote(text: str) -> None:
    query = parse_text(text)
    assert query.words == ("Exit A",)


def test_apostrophes_are_not_quotes() -> None:
    query = parse_text("the driver's fence isn't red")
    assert query.words == ()
    assert query.unknown_words == ("driver's", "fence", "isn't")


# ---- words in the scene


def _sign(text: str | None, x0: float = 0.25, y0: float = 0.5, x1: float = 0.75, y1: float = 0.75) -> TextRegion:
    return TextRegion(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), 0.9, text)


def test_word_mask_covers_the_sign_and_nothing_else() -> None:
    mask = word_mask([_sign("STOP"), _sign("EXIT", 0.0, 0.0, 0.2, 0.2)], "stop", (40, 80))
    assert mask.dtype == np.float32
    assert (mask[21:29, 21:59] == 1).all()
    mask[19:32, 19:62] = 0
    assert not mask.any()


def test_words_narrow_other_kinds_and_widen_each_other() -> None:
    rgb = np.zeros((40, 80, 3), np.uint8)
    rgb[:] = (229, 0, 0)
    signs = [_sign("STOP"), _sign("EXIT", 0.0, 0.0, 0.2, 0.2)]
    stop, exit_ = (word_mask(signs, word, (40, 80)) for word in ("stop", "exit"))
    both = text_relevance(parse_text('"stop" "exit" red'), rgb, words=[stop, exit_])
    assert both[25, 40] > 0.9 and both[3, 5] > 0.9 and both[3, 60] == 0
    assert not text_relevance(parse_text('"stop" blue'), rgb, words=[stop]).any()


# ---- regions


def test_region_from_text() -> None:
    region = parse_region(" 10, 20.5,30,40", 1.5)
    assert region == RegionQuery((10, 20.5, 30, 40), 1.5)
    assert region.label == "region 10,20.5,30,40 at 1.5 s"


@pytest.mark.parametrize(
    "text", ["", "1,2,3", "1,2,3,4,5", "a,b,c,d", "1;2;3;4", "nan,0,1,1", "0,0,inf,1", "0,0,0,5", "0,0,5,-1"]
)
def test_malformed_region(text: str) -> None:
    with pytest.raises(InvalidSetting, match="write x,y,w,h"):
        parse_region(text)


def test_region_of_a_command_line_may_name_a_time() -> None:
    assert make_queries([], "10,20,30,40") == [RegionQuery((10, 20, 30, 40))]
    assert make_queries([], "10,20,30,40@2.5") == [RegionQuery((10, 20, 30, 40), 2.5)]
    with pytest.raises(InvalidSetting, match="write x,y,w,h"):
        make_queries([], "10,20,30@2")
    with pytest.raises(InvalidSetting, match="0 or later"):
        make_queries([], "10,20,30,40@-1")


@pytest.mark.parametrize(
    "text", ["100,0,10,10", "-20,0,10,10", "0,0,102,10", "0,-2,10,10", "99,49,10,10", "-0.5,0,0.5,9"]
)
def test_region_outside_the_frame(text: str) -> None:
    with pytest.raises(RegionOutsideFrame, match="100x50") as caught:
        parse_region(text).checked((100, 50))
    assert text.replace(" ", "") in str(caught.value)


@given(
    st.tuples(*[st.floats(-300, 300)] * 2, *[st.floats(0.01, 300)] * 2),
    st.tuples(st.integers(1, 200), st.integers(1, 200)),
)
def test_a_checked_region_lies_in_the_frame(xywh: tuple[float, float, float, float], size_wh: tuple[int, int]) -> None:
    try:
        x, y, w, h = RegionQuery(xywh).checked(size_wh).xywh
    except RegionOutsideFrame:
        x, y, w, h = xywh
        assert x < 0 or y < 0 or x + w > size_wh[0] or y + h > size_wh[1]
        return
    assert x >= 0 and y >= 0 and w > 0 and h > 0
    assert x + w <= size_wh[0] + 1e-9 and y + h <= size_wh[1] + 1e-9


# ---- example pictures


def _picture(height: int = 6, width: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm"])
def test_example_is_read_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"crop.{suffix}"
    Image.fromarray(_picture()).save(path)
    example = load_example(path)
    np.testing.assert_array_equal(example.rgb, _picture().reshape(1, -1, 3))
    assert example.rgb.flags.c_contiguous
    assert example.label == f"example crop.{suffix}"


def test_grey_of_16_bits_keeps_its_brightness(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 100 << 8, np.uint16)).save(tmp_path / "grey.png")
    assert (load_example(tmp_path / "grey.png").rgb == 100).all()
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "floats.tiff")
    with pytest.raises(QueryUnreadable, match="floats"):
        load_example(tmp_path / "floats.tiff")


def test_transparent_pixels_do_not_count(tmp_path: Path) -> None:
    rgba = np.zeros((4, 4, 4), np.uint8)
    rgba[..., :3] = (0, 255, 0)
    rgba[1:3, 1:3] = (200, 40, 20, 255)
    Image.fromarray(rgba).save(tmp_path / "cut.png")
    assert (load_example(tmp_path / "cut.png").rgb == (200, 40, 20)).all()


def test_example_with_too_many_pixels(tmp_path: Path) -> None:
    Image.fromarray(_picture(20, 20)).save(tmp_path / "big.png")
    with pytest.raises(QueryUnreadable, match=r"20x20 pixels, the limit is 399"):
        load_example(tmp_path / "big.png", max_pixels=399)


def test_unreadable_examples(tmp_path: Path) -> None:
    with pytest.raises(QueryUnreadable, match="no such file"):
        load_example(tmp_path / "missing.png")
    (tmp_path / "words.png").write_text("not a picture")
    with pytest.raises(QueryUnreadable, match="cannot be read as a picture"):
        load_example(tmp_path / "words.png")
    with pytest.raises(QueryUnreadable):
        load_example(tmp_path)
    Image.fromarray(_picture(64, 64)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    with pytest.raises(QueryUnreadable):
        load_example(tmp_path / "cut.png")


def test_formats_that_run_other_programs_are_refused(tmp_path: Path) -> None:
    Image.fromarray(_picture()).save(tmp_path / "crop.eps")
    with pytest.raises(QueryUnreadable):
        load_example(tmp_path / "crop.eps")


def test_secrets_in_urls_are_neither_words_nor_shown() -> None:
    query = parse_text("a sign that says rtsp://me:hush@host/x")
    assert "hush" not in query.unknown_words and {"sign", "host"} <= set(query.unknown_words)
    assert "hush" not in query.label and "***" in query.label
