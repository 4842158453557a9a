"""What a question asks to look at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.relevance.lexicon import PlaceTerm, WordTerm
from arr_stream.relevance.query import parse_text
from arr_stream.relevance.question import sought


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        ("What colour is the square?", ("square",)),
        ("Is the red circle left or right of the blue star?", ("red circle", "blue star")),
        ("Is the heart on the left or on the right?", ("heart",)),
        ("The green ring, is it small or large?", ("green ring",)),
        ("How many crosses are there?", ("cross",)),
        ("How many people do you see?", ("people",)),
        ("What does the sign say?", ("sign", "text")),
        ("Which number is on the yellow sign?", ("yellow sign", "text")),
        ("What is the man in the red shirt holding?", ("man", "red shirt")),
        ("Where is the dog? Answer with one of these and nothing else: left, right.", ("dog",)),
        ("Which thing moves?", ("moving",)),
        ("Which way does the star move?", ("star",)),
        ("What came in?", ()),
        ("What left?", ()),
        ("Describe the scene.", ()),
    ],
)
def test_things_are_sought_and_answers_are_not(question: str, texts: tuple[str, ...]) -> None:
    assert sought(question) == texts


def test_a_side_counts_where_it_says_which_thing_is_meant() -> None:
    [text] = sought("What colour is the car on the left?")
    assert PlaceTerm("left", "left") in parse_text(text).terms
    [text] = sought("What is left of the car?")
    assert not any(isinstance(term, PlaceTerm) for term in parse_text(text).terms)


def test_what_stands_in_quotation_marks_is_looked_for_as_it_is() -> None:
    [text] = sought('Where does it say "NO EXIT"?')
    assert WordTerm("NO EXIT") in parse_text(text).terms


@given(st.text(max_size=60))
def test_any_text_gives_queries_that_can_be_asked(question: str) -> None:
    for text in sought(question):
        assert parse_text(text).text == text
