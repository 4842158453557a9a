"""What every consumer promises, over all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from arr_stream.consumer import BackgroundConsumer, Consumer, Outcome
from arr_stream.draw.annotate import AnnotatedVideo
from arr_stream.draw.report import Report
from arr_stream.errors import OutputExists
from arr_stream.records.json_lines import Records
from tests.choices import PlainSource, choose, frames_of, header, without_cells
from tests.media import moving_frames

SIZE = (96, 64)
FRAMES = frames_of(moving_frames(5, SIZE))


def _video(folder: Path, force: bool = False) -> Consumer:
    return AnnotatedVideo(folder / "out.mp4", size_wh=SIZE, source=PlainSource(), force=force)


def _records(folder: Path, force: bool = False) -> Consumer:
    return Records(folder / "out.jsonl", header(SIZE), force)


def _report(folder: Path, force: bool = False) -> Consumer:
    return Report(folder / "report", force)


def _in_background(folder: Path, force: bool = False) -> Consumer:
    return BackgroundConsumer(_records(folder, force))


MAKERS: dict[str, Callable[..., Consumer]] = {
    "video": _video,
    "records": _records,
    "report": _report,
    "in the background": _in_background,
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Consumer]:
    return MAKERS[request.param]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_making_one_touches_nothing(make: Callable[..., Consumer], tmp_path: Path) -> None:
    consumer = make(tmp_path)
    assert list(tmp_path.iterdir()) == []
    consumer.close()


@pytest.mark.parametrize("failed", [False, True])
def test_closing_without_a_frame_leaves_nothing(make: Callable[..., Consumer], tmp_path: Path, failed: bool) -> None:
    make(tmp_path).close(failed=failed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failed", [False, True])
def test_output_is_whole_after_closing(make: Callable[..., Consumer], tmp_path: Path, failed: bool) -> None:
    consumer = make(tmp_path)
    for frame in FRAMES:
        consumer.consume(frame, choose(frame))
    consumer.close(failed=failed, outcome=Outcome("interrupted" if failed else "finished"))
    files = _files(tmp_path)
    assert files
    assert all(files.values())
    assert not [name for name in files if "partial" in name]


def test_closing_again_changes_nothing(make: Callable[..., Consumer], tmp_path: Path) -> None:
    consumer = make(tmp_path)
    consumer.consume(FRAMES[0], choose(FRAMES[0]))
    consumer.close()
    before = _files(tmp_path)
    consumer.close()
    consumer.close(failed=True)
    assert _files(tmp_path) == before


def test_frames_after_closing_are_refused(make: Callable[..., Consumer], tmp_path: Path) -> None:
    consumer = make(tmp_path)
    consumer.close()
    with pytest.raises(ValueError, match="closed"):
        consumer.consume(FRAMES[0], choose(FRAMES[0]))


def test_nothing_is_overwritten_without_force(make: Callable[..., Consumer], tmp_path: Path) -> None:
    consumer = make(tmp_path)
    consumer.consume(FRAMES[0], choose(FRAMES[0]))
    consumer.close()
    before = _files(tmp_path)
    with pytest.raises(OutputExists, match="--force"):
        make(tmp_path)
    make(tmp_path, force=True).close(failed=True)
    assert _files(tmp_path) == before, "kept until there is something to replace it with"
    again = make(tmp_path, force=True)
    for frame in FRAMES:
        again.consume(frame, choose(frame))
    again.close()
    assert _files(tmp_path).keys() == before.keys()


def test_frames_and_patch_sets_stay_as_they_are(make: Callable[..., Consumer], tmp_path: Path) -> None:
    consumer = make(tmp_path)
    frame = FRAMES[0]
    patches = choose(frame)
    frame.rgb.setflags(write=False)
    before = patches.score.copy(), patches.relevance.copy()
    consumer.consume(frame, patches)
    consumer.close()
    np.testing.assert_array_equal(patches.score, before[0])
    np.testing.assert_array_equal(patches.relevance, before[1])


def test_an_empty_choice_is_a_choice(make: Callable[..., Consumer], tmp_path: Path) -> None:
    consumer = make(tmp_path)
    for frame in FRAMES:
        consumer.consume(frame, without_cells(frame))
    consumer.close()
    assert _files(tmp_path)
