"""Footage with masks: what is read, and what is said of folders that do not fit."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.footage import load_footage, tight_box
from tests.media import write_video


def write_sequence(folder: Path, name: str, masks: list[np.ndarray]) -> None:
    """A sequence in the layout of DAVIS, its pictures white where the object is."""
    pictures, truth = folder / "frames" / name, folder / "masks" / name
    pictures.mkdir(parents=True)
    truth.mkdir(parents=True)
    for index, mask in enumerate(masks):
        cv2.imwrite(
            str(pictures / f"{index:05}.jpg"), np.where(mask[..., None], 255, 40).repeat(3, axis=2).astype(np.uint8)
        )
        cv2.imwrite(str(truth / f"{index:05}.png"), mask.astype(np.uint8) * 255)


def squares(count: int, *, step_px: int = 2) -> list[np.ndarray]:
    """A 24-px square that goes right in a 96x64 frame."""
    masks = np.zeros((count, 64, 96), bool)
    for index in range(count):
        masks[index, 20:44, 8 + step_px * index : 32 + step_px * index] = True
    return list(masks)


def test_a_folder_in_the_layout_of_davis(tmp_path: Path) -> None:
    write_sequence(tmp_path, "b", squares(3))
    write_sequence(tmp_path, "a", squares(2))
    first, second = load_footage(tmp_path)
    assert (first.name, second.name) == ("a", "b")
    frames, masks = second.frames(), second.masks()
    assert [frame.index for frame in frames] == [0, 1, 2]
    assert all(np.array_equal(mask, true) for mask, true in zip(masks, squares(3), strict=True))
    assert frames[1].rgb[masks[1]].mean() > 240 > 60 > frames[1].rgb[~masks[1]].mean()


def test_clips_with_boxes(tmp_path: Path) -> None:
    write_video(tmp_path / "walk.mp4", [np.zeros((64, 96, 3), np.uint8)] * 3)
    (tmp_path / "walk.boxes.json").write_text('{"0": [1.4, 2, 3, 4], "2": [90, 60, 20, 20]}')
    (clip,) = load_footage(tmp_path)
    first, second, third = clip.masks()
    assert clip.name == "walk" and len(clip.frames()) == 3
    assert first.sum() == 12 and first[2:6, 1:4].all() and not second.any()
    assert third.shape == (64, 96) and third.sum() == 6 * 4 and third[60:, 90:].all()


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"0": [1, 2, 3]}', '{"first": [1, 2, 3, 4]}', '{"0": [1, 2, 0, 4]}', '{"0": [1, 2, NaN, 4]}', "{"],
)
def test_files_that_are_no_boxes_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.boxes.json").write_text(text)
    with pytest.raises(EvaluationDataError, match=r"a\.boxes\.json.*boxes are"):
        load_footage(tmp_path)


@pytest.mark.parametrize("spoil", ["nothing", "no masks", "too few masks", "no clip"])
def test_a_folder_that_does_not_fit_is_refused_with_what_was_expected(tmp_path: Path, spoil: str) -> None:
    if spoil in ("no masks", "too few masks"):
        write_sequence(tmp_path, "a", squares(3))
        for path in sorted((tmp_path / "masks" / "a").iterdir())[: 3 if spoil == "no masks" else 1]:
            path.unlink()
    if spoil == "no clip":
        (tmp_path / "a.boxes.json").write_text('{"0": [1, 2, 3, 4]}')
    with pytest.raises(EvaluationDataError, match="expected frames/SEQ"):
        load_footage(tmp_path)


@given(st.integers(0, 30), st.integers(0, 20), st.integers(1, 10), st.integers(1, 10))
def test_the_tight_box_holds_the_mask_and_no_more(x: int, y: int, w: int, h: int) -> None:
    mask = np.zeros((32, 44), bool)
    mask[y : y + h, x : x + w] = True
    assert tight_box(mask) == (x, y, w, h)
