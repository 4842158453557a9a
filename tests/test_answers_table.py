"""The table of right answers: every method within the same budget."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")


from arr_stream.budget import budget_tokens
from arr_stream.config import Settings
from benchmarks.answers.pictures import scaled_wh
from benchmarks.answers.table import PICTURE_SIZES, measure

QUICK = ["keyframes.text=none", "keyframes.clusters=grid"]


@pytest.fixture(scope="module")
def settings(tiny_qwen: Path) -> Settings:
    return Settings.load(None, [f"vlm.model={tiny_qwen}", *QUICK])


@pytest.mark.slow
def test_every_method_answers_within_the_budget(settings: Settings) -> None:
    report = measure({"ours": settings}, pictures=1, clips=1, shares=("100%", "25%"), each=2)
    columns, rows = PICTURE_SIZES[0]
    budget = budget_tokens("25%", columns * rows)
    pictures = [outcome for outcome in report.outcomes if outcome.media == "pictures"]
    assert {outcome.method for outcome in pictures if outcome.share == "25%"} >= {
        "ours",
        "cells of all things",
        "uniform",
        "random",
        "scaled down",
        "VidCom2",
    }
    assert all(outcome.tokens <= budget for outcome in pictures if outcome.share == "25%")
    assert {outcome.tokens for outcome in pictures if outcome.share == "100%"} == {columns * rows}
    clips = {outcome.method for outcome in report.outcomes if outcome.media == "clips"}
    assert {"ours", "Efficient Video Sampling", "VidCom2", "frame difference", "all cells"} <= clips
    titles = [table.title for table in report.tables]
    assert titles[0] == "Right answers, pictures" and "clips, 25% of the tokens, by kind" in titles
    assert report.tables[0].columns[2:4] == ("100%", "25%")


@pytest.mark.parametrize("tokens", [1, 3, 11, 22, 55, 220])
def test_a_picture_is_scaled_to_at_most_the_budget(tokens: int) -> None:
    width, height = scaled_wh((640, 352), tokens)
    assert width % 32 == height % 32 == 0 and 0.5 * tokens <= width * height / 1024 <= tokens
