"""Rules of alerts: what they mean, when they fire, and what is said of those that are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.errors import InvalidSetting
from arr_stream.live.rules import FIELDS, LONGEST_TEXT, RuleWatch, parse_rule
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.texture.array import Plane, Texture
from arr_stream.types import Frame
from tests.choices import choose

BLACK = np.zeros((64, 96, 3), np.uint8)


def seen(index: int = 0, *, fps: float = 10.0, **changes) -> PatchSet:
    return choose(Frame(index, index / fps, BLACK), **changes)


def says(*texts: str, finish: str = "stop") -> tuple[Answer, ...]:
    return tuple(Answer("What?", text, 0, 0.0, "model", finish=finish) for text in texts)


def fired(rule: str, scores: list[float | None], *, fps: float = 10.0, cooldown: float = 0.0) -> list[int]:
    """Frames on which a rule fires, given the relevance on each; None stands for a frame that never came."""
    watch = RuleWatch(parse_rule(rule), cooldown)
    sets = [seen(i, fps=fps, query_scores=(score,)) for i, score in enumerate(scores) if score is not None]
    return [patches.index for patches in sets if watch.look(patches) is not None]


def look(rule: str, **changes) -> str | None:
    return RuleWatch(parse_rule(rule)).look(seen(**changes))


RISING = [0.1, 0.7, 0.9, 0.6, 0.8, 0.8]
HELD = [0.0] + [0.9] * 30
AGAIN = [0.9, 0.1, 0.9, 0.1]


@pytest.mark.parametrize(
    ("rule", "scores", "more", "expected"),
    [
        pytest.param("relevance > 0.6", RISING, {}, [1, 4], id="once on the rising edge, and again after it was false"),
        pytest.param("relevance > 0.6 for 2s", HELD, {}, [21], id="`for` counts the time of the stream"),
        pytest.param("relevance > 0.6 for 2s", HELD, {"fps": 20.0}, [], id="at any frame rate"),
        pytest.param("relevance > 0.6 for 500ms", HELD, {}, [6], id="in other units"),
        pytest.param("relevance > 0.6 for 1s", [0.9] * 8 + HELD[:21], {}, [19], id="one false frame starts it anew"),
        pytest.param("relevance > 0.6 for 1s", [0.9] * 5 + [None] * 40 + [0.9] * 15, {}, [55], id="so does a silence"),
        pytest.param("relevance > 0.6 for 10s", [0.9] * 8, {"fps": 0.2}, [2], id="steady slow frames are no silence"),
        pytest.param(
            "relevance > 0.6", AGAIN + [0.9] * 30, {"cooldown": 1.0}, [0, 10], id="what is still true is told"
        ),
        pytest.param("relevance > 0.6", AGAIN + [0.1] * 21, {"cooldown": 1.0}, [0], id="what is over is not"),
    ],
)
def test_when_a_rule_fires(rule: str, scores: list[float | None], more: dict[str, float], expected: list[int]) -> None:
    assert fired(rule, scores, **more) == expected


def test_all_conditions_must_last_together() -> None:
    watch = RuleWatch(parse_rule("confidence > 0.5 and relevance > 0.5 for 1s"))
    quiet = [watch.look(seen(i, query_scores=(0.9,), confidence=0.1)) for i in range(15)]
    assert quiet == [None] * 15
    found = [watch.look(seen(i, query_scores=(0.9,), confidence=0.9)) for i in range(15, 30)]
    assert found == [*[None] * 10, "confidence 0.9, relevance 0.9", *[None] * 4]


@pytest.mark.parametrize(
    ("rule", "changes", "expected"),
    [
        ("relevance >= 0.8", {"query_scores": (0.2, 0.8)}, True),
        ("relevance > 0", {"query_scores": ()}, False),
        ("relevance[0] > 0.5", {"query_scores": (0.2, 0.8)}, False),
        ("relevance[1] > 0.5", {"query_scores": (0.2, 0.8)}, True),
        ("relevance[2] < 0.5", {"query_scores": (0.2, 0.8)}, False),
        ("relevance[2] != 0.5", {"query_scores": (0.2, 0.8)}, False),
        ("confidence < 0.5", {"confidence": 0.4}, True),
        ("cut = 1", {"keyframe": True, "refresh_reason": "cut"}, True),
        ("cut == 1", {"keyframe": True, "refresh_reason": "interval"}, False),
        ("keyframe != 0", {"keyframe": True, "refresh_reason": "interval"}, True),
        ("latency_ms > 40", {"latency_ms": {"flow": 30.0, "relevance": 11.0}}, True),
        ("latency_ms > 40", {"latency_ms": {"flow": 30.0, "total": 31.0}}, False),
    ],
)
def test_fields(rule: str, changes: dict, expected: bool) -> None:
    assert (look(rule, **changes) is not None) is expected


def test_tokens_and_the_share_that_they_cover() -> None:
    patches = seen()
    chosen = np.zeros((patches.grid.rows, patches.grid.columns), bool)
    for x0, y0, x1, y1 in patches.cells_xyxy:
        chosen[int(y0) // 32 : int(y1) // 32, int(x0) // 32 : int(x1) // 32] = True
    least, most = chosen.mean() - 1e-6, min(1.0, chosen.mean() + 1e-6)
    assert look(f"tokens = {patches.tokens} and covered >= {least:f} and covered <= {most:f}")


def test_motion_is_the_share_that_moves() -> None:
    plane = torch.full((3, 4, 10), 0.09)
    plane[1, 0, :6] = 0.9
    texture = Texture((320, 128), {9: Plane(9, plane)})
    assert look("motion > 0.14 and motion < 0.16", texture=texture) == "motion 0.15"


@pytest.mark.parametrize(
    ("rule", "texts", "expected"),
    [
        ('answer contains "a dog"', ("There is A DOG.",), True),
        ("answer contains \"say 'no'\"", ("They say 'no' to it",), True),
        ('answer contains "dogs and cats"', ("Dogs and cats.",), True),
        ('answer contains "d.g"', ("a dog",), False),
        ('answer contains "dog" and relevance > 0.4', ("no", "a dog"), True),
        ('answer contains "yes"', (), False),
    ],
)
def test_answers(rule: str, texts: tuple[str, ...], expected: bool) -> None:
    assert (look(rule, answers=says(*texts)) is not None) is expected


def test_an_answer_that_failed_says_nothing() -> None:
    assert look('answer contains "yes"', answers=says("yes", finish="failed")) is None
    assert look('answer contains "yes"', answers=says("yes", finish="length")) is not None


def test_only_the_beginning_of_a_long_answer_is_looked_at() -> None:
    assert look('answer contains "end"', answers=says("x" * LONGEST_TEXT + "end")) is None
    message = look('answer contains "x"', answers=says("x\n" * 5000))
    assert message is not None and len(message) < 300 and "\n" not in message


@pytest.mark.parametrize(
    ("rule", "place", "about"),
    [
        ("", 1, "expected such as"),
        ("relevence > 0.6", 1, "did you mean 'relevance'"),
        ("anser contains 'x'", 1, "did you mean 'answer'"),
        ("relevance", 1, "expected such as"),
        ("relevance > high", 1, "expected such as"),
        ("relevance > 60", 13, "relevance is never 60; it is 0 to 1"),
        ("tokens > -1", 10, "it is 0 or more"),
        ("relevance > 1e999", 13, "never inf"),
        ("relevance > 0.6 for 2", 16, "a duration such as"),
        ("relevance > 0.6 for 2 days", 16, "a duration such as"),
        ("relevance > 0.6 for 0s", 21, "not a duration"),
        ("relevance > 0.6 relevance", 16, "expected `and`"),
        ("relevance > 0.6 or cut = 1", 16, "several rules for `or`"),
        ("relevance > 0.6 and", 16, "expected `and`"),
        ("relevance > 0.6 and x", 21, "there is no field 'x'"),
        ("(relevance > 0.6", 1, "expected such as"),
        ("motion[1] > 0.6", 7, "only relevance[K]"),
        ("answer is 'x'", 1, "answer contains"),
        ('answer contains "x', 1, "answer contains"),
        ("answer contains 'x' for 2s", 20, "lasts for none"),
        ("x" * 1001, 1001, "longer than 1000"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_place(rule: str, place: int, about: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_rule(rule)
    assert f"character {place}:" in str(caught.value)
    assert about in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


PIECES = [*"[]<>=!'\" .0259-", " and ", " for ", "2s", "relevance", "answer ", "contains"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_text_is_a_rule_or_is_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidSetting:
        return
    RuleWatch(rule).look(seen())


COMPARISONS = st.builds(
    "{} {} {}".format,
    st.sampled_from(["confidence", "relevance"]),
    st.sampled_from(["<", ">="]),
    st.sampled_from([0.2, 0.5, 0.8]),
)
JOINED = st.lists(COMPARISONS, min_size=1, max_size=6).map(" and ".join)


@given(JOINED, st.floats(0, 1, width=16), st.floats(0, 1, width=16))
def test_means_what_python_means(text: str, confidence: float, relevance: float) -> None:
    expected = eval(text, {"confidence": confidence, "relevance": relevance})
    assert (look(text, confidence=confidence, query_scores=(relevance,)) is not None) is expected


def test_looking_changes_no_patch_set() -> None:
    patches = seen()
    before = replace(patches)
    for name in FIELDS:
        RuleWatch(parse_rule(f"{name} >= 0")).look(patches)
    assert np.array_equal(before.score, patches.score) and before.latency_ms == patches.latency_ms


def test_an_answer_does_not_steer_the_terminal_that_shows_it() -> None:
    message = look('answer contains "dog"', answers=says("a \x1b[2Jdog\x9b31m\x07 ü"))
    assert message == "answer: a [2Jdog 31m ü"
