"""Carried masks: the sums are right, and carrying follows what moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arr_stream.evaluation.footage import load_footage
from arr_stream.types import BoolArray, Frame
from benchmarks.carry import ChainedDis, Still, evaluate_carry, intersection_over_union
from benchmarks.scenes.truth import load_truth
from tests.test_evaluate_davis import squares, write_sequence

SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"


class Perfect:
    """Knows where the square is."""

    def start(self, frame: Frame, mask: BoolArray) -> None:
        pass

    def step(self, frame: Frame) -> BoolArray:
        return np.asarray(squares(9, step_px=4)[frame.index])


def test_sums(tmp_path: Path) -> None:
    masks = squares(9, step_px=4)
    masks[6][:] = False
    write_sequence(tmp_path, "a", masks)
    report = evaluate_carry(load_footage(tmp_path), [4], {"perfect": Perfect})
    rows = {row.tracker: row for row in report.rows}
    assert rows["perfect"].iou == 1.0
    # Keyframes at 0, 4 and 8; a square of 24 px moved by 4, 8 and 12 px; frame 6, aged 2, is empty.
    still = [(24 - 4 * age) / (24 + 4 * age) for age in (1, 2, 3)]
    assert rows["not moved"].by_age == pytest.approx(still)
    assert rows["not moved"].iou == pytest.approx(np.mean([*still, still[0], still[2]]))
    assert rows["not moved"].by_sequence == {"a": pytest.approx(rows["not moved"].iou)}
    values = report.as_json()
    assert {row["tracker"] for row in values["rows"]} == {
        "perfect",
        "not moved",
        "DIS alone",
        "arr-stream, mask",
        "arr-stream, box",
    }
    assert all(row["times_the_flow"] >= 0 for row in values["rows"])


def test_following_beats_staying() -> None:
    """On a generated clip with exact masks, a frame that the flow has chained over stays on its object."""
    (clip,) = [footage for footage in load_footage(SAMPLES) if footage.name == "pan_zoom"]
    frames, masks = clip.frames(), load_truth(SAMPLES / "pan_zoom.truth.npz").masks(1)
    still, chained = Still(), ChainedDis()
    for tracker in (still, chained):
        tracker.start(frames[10], masks[10])
    for frame in frames[11:20]:
        staying, following = still.step(frame), chained.step(frame)
    assert intersection_over_union(staying, masks[19]) < 0.4
    assert intersection_over_union(following, masks[19]) > 0.7
    assert len(chained.flow_seconds) == 9
