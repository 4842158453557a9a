"""Objects that leave and come back: the clips, and what is told of them."""

from __future__ import annotations

import numpy as np
import pytest

from arr_stream.config import Settings
from benchmarks.returns import LongRow, ReturnReport, ReturnRow, cutaway, pasted, score_return, to_and_fro
from benchmarks.scenes.footage import Footage
from benchmarks.scenes.photographs import SHOWN, WAY, circling_footage, generated_footage, returning_footage

SMALL = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "10%"})


def areas(clip: Footage) -> list[int]:
    return [int(truth.object.sum()) for truth in clip.truths() if truth.object is not None]


@pytest.fixture(scope="module")
def clips() -> list[Footage]:
    return generated_footage(8, sceneries=("coffee", "gravel"))[::3]


def test_a_thing_is_shown_then_gone_then_shown_elsewhere() -> None:
    ((clip, gone),) = returning_footage([12], sceneries=("coffee",))
    seen = areas(clip)
    away = slice(SHOWN + WAY, SHOWN + WAY + gone)
    assert len(seen) == 2 * SHOWN + 2 * WAY + gone
    assert not any(seen[away]) and min(seen[:SHOWN] + seen[-SHOWN:]) > 0.9 * max(seen)
    first, *_, last = (np.argwhere(truth.object).mean(axis=0) for truth in clip.truths() if truth.object.any())
    assert np.abs(first - last).max() > 20


def test_a_thing_that_circles_never_leaves() -> None:
    (clip,) = circling_footage(60, sceneries=("coffee",))
    seen = areas(clip)
    assert len(seen) == 60 and min(seen) > 0.9 * max(seen)


def test_sequences_are_pasted_cut_away_from_and_turned_round(clips: list[Footage]) -> None:
    one, other = clips
    over, away = areas(pasted(one, other, 5)), areas(cutaway(one, other, 5))
    assert not any(over[SHOWN + WAY : SHOWN + WAY + 5]) and over[0] and over[-1]
    assert not any(away[SHOWN : SHOWN + 5]) and away[SHOWN - 1] and away[SHOWN + 5]
    turned = [frame.rgb for frame in to_and_fro(one, 20).frames()]
    assert len(turned) == 20 and np.array_equal(turned[6], turned[8]) and np.array_equal(turned[0], turned[14])


def test_a_thing_that_comes_back_is_found() -> None:
    ((clip, gone),) = returning_footage([15], sceneries=("coffee",))
    row = score_return(clip, "generated", gone, SMALL)
    assert row.found and row.kept > 0.8 and row.false_finds == 0


def test_tables_tell_means_and_false_finds_a_minute() -> None:
    rows = [ReturnRow("a", "generated", 10, True, 1.0, 1, 20.0), ReturnRow("b", "generated", 10, False, 0.5, 0, 10.0)]
    returns, longs = ReturnReport(tuple(rows), (LongRow("c", "davis", 0.8, 0.6),)).tables
    assert returns.rows == (("generated", 10, 2, 0.5, 0.75, 2.0), ("all", None, 2, 0.5, 0.75, 2.0))
    assert longs.rows[0][:4] == ("davis", 1, 0.8, 0.6) and longs.rows[0][4] == pytest.approx(0.75)
    assert ReturnReport((), ()).tables == ()
