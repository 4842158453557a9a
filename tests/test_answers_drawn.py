"""Answers on the picture: the caption and the cells that the answer rested on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arr_stream.config import VideoSettings
from arr_stream.draw.annotate import AnnotatedVideo
from arr_stream.draw.overlay import ANSWERED, Caption, draw_answered, reading_seconds
from arr_stream.draw.typeface import band_px, font_px
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.types import ByteArray, Frame, Grid
from tests.choices import FED, PlainSource, answer_on, choose, frames_of
from tests.media import moving_frames

SIZE = (320, 256)
GREY = 120
QUESTION = "What is red?"


def plain(size_wh: tuple[int, int] = SIZE) -> ByteArray:
    return np.full((size_wh[1], size_wh[0], 3), GREY, np.uint8)


def patches_at(seconds: float, answers: tuple[Answer, ...] = (), size_wh: tuple[int, int] = SIZE, **more) -> PatchSet:
    return choose(Frame(7, seconds, plain(size_wh)), answers=answers, **more)


def said(text: str, **changes) -> Answer:
    return Answer(QUESTION, text, 7, 0.0, "tiny", **changes)


def rested_on(boxes: list[tuple[float, ...]]) -> Answer:
    cells = np.array(boxes, np.float32).reshape(-1, 5)
    return said("There.", cells=cells, cell_frames=np.full(len(cells), 7, np.int32))


def caption_of(answer: Answer, size_wh: tuple[int, int] = SIZE) -> ByteArray:
    """A plain picture with the caption of an answer that has just come."""
    picture, patches, caption = plain(size_wh), patches_at(0.0, (answer,), size_wh), Caption()
    caption.update(patches)
    caption.draw(picture)
    return picture


def changed(picture: ByteArray) -> np.ndarray:
    return (picture != GREY).any(axis=2)


class TestCaption:
    def test_it_stands_above_the_strip(self) -> None:
        picture = caption_of(said("A square."))
        rows = np.flatnonzero(changed(picture).any(axis=1))
        foot = SIZE[1] - band_px(font_px(*SIZE))
        assert len(rows) > 20
        assert rows[-1] < foot
        assert rows[0] > SIZE[1] * 0.55
        assert (picture[rows[len(rows) // 2]] == ANSWERED).all(axis=1).any(), "with a bar of the colour of the marks"

    def test_a_tall_picture_has_the_words(self) -> None:
        assert (caption_of(said("A square."), (360, 640)).min(axis=2) > 220).sum() > 50

    def test_it_stays_for_a_reading_time(self) -> None:
        answer, caption = said("A red square goes right over a background of soft colours, and back again."), Caption()
        seconds = reading_seconds(answer)
        assert 3 < seconds < 10
        for at, is_shown in ((0.0, True), (seconds - 0.1, True), (seconds + 0.01, False), (seconds + 5, False)):
            picture = plain()
            caption.update(patches_at(100 + at, (answer,) if at == 0 else ()))
            caption.draw(picture)
            assert changed(picture).any() == is_shown

    def test_secrets_are_blanked(self) -> None:
        secret, blank = "http://me:pw@host/?key=abc", "http://***@host/?key=***"
        np.testing.assert_array_equal(caption_of(said(secret)), caption_of(said(blank)))
        failed = [said("", finish="failed", error=text) for text in (secret, blank)]
        np.testing.assert_array_equal(caption_of(failed[0]), caption_of(failed[1]))
        asked = [dataclasses.replace(said("A."), question=text) for text in (secret, blank)]
        np.testing.assert_array_equal(caption_of(asked[0]), caption_of(asked[1]))

    @given(
        width=st.integers(1, 700),
        height=st.integers(1, 500),
        text=st.text(max_size=300) | st.text("iIlW .,红", min_size=50, max_size=3000),
        finish=st.sampled_from(["stop", "length", "cancelled", "failed"]),
    )
    @settings(max_examples=25)
    @example(width=160, height=160, text="0" * 60, finish="stop")
    def test_any_text_keeps_to_its_place_on_any_size(self, width: int, height: int, text: str, finish) -> None:
        picture = caption_of(said(text, finish=finish, error=text), (width, height))
        rows = np.flatnonzero(changed(picture).any(axis=1))
        small = font_px(width, height)
        if not small:
            assert len(rows) == 0, "too small to read"
        elif len(rows):
            assert len(rows) <= 0.4 * height
            assert rows[-1] < height - band_px(small)

    def test_endless_texts_are_drawn_too(self) -> None:
        endless = dataclasses.replace(said("w" * 10**6), question="What? " * 10**5)
        assert changed(caption_of(endless)).any()


class TestMarks:
    def test_cells_are_outlined_where_they_are(self) -> None:
        answer, picture, caption = rested_on([(32, 64, 64, 96, 0.6), (160, 64, 192, 96, 0.4)]), plain(), Caption()
        caption.update(patches_at(5.0, (answer,)))
        caption.draw_marks(picture, patches_at(6.0))
        seen = changed(picture)
        assert seen[64:96, 32].all() and seen[64:96, 63].all() and seen[64, 160:192].all()
        assert not seen[68:92, 36:60].any()
        seen[64:96, 32:64] = seen[64:96, 160:192] = False
        assert not seen.any()
        later = plain()
        caption.draw_marks(later, patches_at(6.5))
        assert not changed(later).any()

    @given(
        boxes=st.lists(
            st.tuples(st.floats(-50, 900), st.floats(-50, 900), st.floats(0, 900), st.floats(0, 900), st.floats(0, 1)),
            max_size=20,
        ),
        width=st.integers(1, 400),
        height=st.integers(1, 400),
    )
    @settings(max_examples=25)
    def test_any_rectangles_on_any_picture(self, boxes: list[tuple[float, ...]], width: int, height: int) -> None:
        corners = [(x, y, x + w, y + h, share) for x, y, w, h, share in boxes]
        draw_answered(plain((width, height)), rested_on(corners), Grid.for_size((width, height)))


class TestVideo:
    def test_an_answer_is_seen_in_the_file(self, tmp_path: Path) -> None:
        size_wh = (320, 240)
        frames = frames_of(moving_frames(20, size_wh), fps=4)
        video = AnnotatedVideo(
            tmp_path / "out.mp4", size_wh=size_wh, source=PlainSource(average_fps=4), settings=VideoSettings(crf=10)
        )
        for frame in frames:
            patches = choose(frame, feeding=FED)
            kept = frame.rgb.copy()
            answers = (answer_on(patches),) if frame.index == 4 else ()
            video.consume(frame, dataclasses.replace(patches, answers=answers))
            np.testing.assert_array_equal(frame.rgb, kept)
        video.close()
        with av.open(str(tmp_path / "out.mp4")) as container:
            pictures = [picture.to_ndarray(format="rgb24").astype(int) for picture in container.decode(video=0)]
        x = round(font_px(*size_wh) * 0.7)
        shown = [
            bool((abs(picture[170:210, x : x + 2] - ANSWERED).max(axis=(1, 2)) < 90).any()) for picture in pictures
        ]
        end = 4 + 4 * reading_seconds(answer_on(choose(frames[4])))
        assert 16 <= end < 19
        assert shown == [4 <= index < end for index in range(20)]

    def test_an_answer_to_the_whole_video_stays_until_it_is_read(self, tmp_path: Path) -> None:
        video = AnnotatedVideo(tmp_path / "out.mp4", size_wh=(320, 240), source=PlainSource())
        answer = said("A square that goes to the right.")
        for index, rgb in enumerate(moving_frames(5, (320, 240))):
            patches = choose(Frame(index, index * 0.1, rgb), answers=(answer,) if index == 4 else ())
            video.consume(Frame(index, index * 0.1, rgb), patches)
        video.close()
        with av.open(str(tmp_path / "out.mp4")) as container:
            assert container.duration / 1e6 == pytest.approx(0.4 + reading_seconds(answer), abs=0.2)

    def test_a_frame_of_another_size(self) -> None:
        video = AnnotatedVideo("unused.mp4", size_wh=(320, 320), source=PlainSource())
        wide = Frame(3, 0.0, np.zeros((160, 320, 3), np.uint8))
        patches = choose(wide)
        cells = np.float32([[0, 0, 32, 32, 1.0]])
        answer = Answer(QUESTION, "There.", 3, 0.0, "tiny", cells=cells, cell_frames=np.array([3], np.int32))
        picture = video.draw(wide, dataclasses.replace(patches, answers=(answer,)))
        assert tuple(picture[80, 0]) == ANSWERED, "below the black bar"
        assert not picture[:80].any()
