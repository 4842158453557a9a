"""Rules of alerts: what they mean, when they fire, and what is said of those that are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.errors import InvalidSetting
from arr_stream.live.alerts import RuleWatch, parse_rule
from arr_stream.patch_set import PatchSet
from arr_stream.texture.array import Plane, Texture
from arr_stream.types import Frame
from tests.choices import choose

BLACK = np.zeros((64, 96, 3), np.uint8)


def seen(index: int = 0, *, fps: float = 10.0, **changes) -> PatchSet:
    return choose(Frame(index, index / fps, BLACK), **changes)


def fired(rule: str, scores: list[float | None], *, fps: float = 10.0, cooldown: float = 0.0) -> list[int]:
    """Frames on which a rule fires, given the relevance on each; None stands for a frame that never came."""
    watch = RuleWatch(parse_rule(rule), cooldown)
    sets = [seen(i, fps=fps, query_scores=(score,)) for i, score in enumerate(scores) if score is not None]
    return [patches.index for patches in sets if watch.update(patches) is not None]


def update(rule: str, **changes) -> str | None:
    return RuleWatch(parse_rule(rule)).update(seen(**changes))


RISING = [0.1, 0.7, 0.9, 0.6, 0.8, 0.8]
HELD = [0.0] + [0.9] * 30
AGAIN = [0.9, 0.1, 0.9, 0.1]


@pytest.mark.parametrize(
    ("rule", "scores", "more", "expected"),
    [
        pytest.param("relevance > 0.6", RISING, {}, [1, 4], id="once on the rising edge, and again after it was false"),
        pytest.param("relevance > 0.6 for 2s", HELD, {}, [21], id="`for` counts the time of the stream"),
        pytest.param("relevance > 0.6 for 2s", HELD, {"fps": 20.0}, [], id="at any frame rate"),
        pytest.param("relevance > 0.6 for 0.5s", HELD, {}, [6], id="in fractions of a second"),
        pytest.param("relevance > 0.6 for 1s", [0.9] * 8 + HELD[:21], {}, [19], id="one false frame starts it anew"),
        pytest.param("relevance > 0.6 for 1s", [0.9] * 5 + [None] * 120 + [0.9] * 15, {}, [135], id="so does a gap"),
        pytest.param("relevance > 0.6 for 10s", [0.9] * 8, {"fps": 0.2}, [2], id="slow frames are no gap"),
        pytest.param(
            "relevance > 0.6", AGAIN + [0.9] * 30, {"cooldown": 1.0}, [0, 10], id="what is still true is told"
        ),
        pytest.param("relevance > 0.6", AGAIN + [0.1] * 21, {"cooldown": 1.0}, [0], id="what is over is not"),
    ],
)
def test_when_a_rule_fires(rule: str, scores: list[float | None], more: dict[str, float], expected: list[int]) -> None:
    assert fired(rule, scores, **more) == expected


@pytest.mark.parametrize(
    ("rule", "changes", "expected"),
    [
        ("relevance > 0.7", {"query_scores": (0.2, 0.8)}, True),
        ("relevance > 0", {"query_scores": ()}, False),
        ("relevance < 0.5", {"query_scores": ()}, True),
        ("relevance[0] > 0.5", {"query_scores": (0.2, 0.8)}, False),
        ("relevance[1] > 0.5", {"query_scores": (0.2, 0.8)}, True),
        ("Relevance[1]>.5", {"query_scores": (0.2, 0.8)}, True),
        ("relevance[2] < 0.5", {"query_scores": (0.2, 0.8)}, False),
    ],
)
def test_fields(rule: str, changes: dict, expected: bool) -> None:
    assert (update(rule, **changes) is not None) is expected


def test_motion_is_the_share_that_moves() -> None:
    plane = torch.full((3, 4, 10), 0.09)
    plane[1, 0, :6] = 0.9
    texture = Texture((320, 128), {9: Plane(9, plane)})
    assert update("motion > 0.14", texture=texture) == "motion 0.15"


@pytest.mark.parametrize(
    ("rule", "about"),
    [
        *((rule, "is not valid") for rule in (
            "", "relevence > 0.6", "relevance", "relevance > high", "relevance >= 0.6", "relevance > -1",
            "relevance > 0.6 for 2", "relevance > 0.6 for 2 days", "relevance > 0.6 and motion > 0.2",
            "(relevance > 0.6", "motion[1] > 0.6", "tokens > 5", "answer contains 'x'",
            "relevance > 1e999", "x" * 1001,
        )),
        ("relevance > 60", "relevance is from 0 to 1"),
        ("motion > 1", "motion is from 0 to 1"),
        ("relevance < 0", "relevance is from 0 to 1"),
        ("relevance > 0.6 for 90000s", "too long"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused(rule: str, about: str) -> None:
    with pytest.raises(InvalidSetting, match=about) as caught:
        parse_rule(rule)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


PIECES = [*"[]<> .0259-", " for ", "2s", "relevance", "motion"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_text_is_a_rule_or_is_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidSetting:
        return
    RuleWatch(rule).update(seen())
