"""Quoted words against what was read: small misreadings are forgiven, other words and other numbers are not."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.relevance.words import WORD_RATIO, word_similarity

letters = st.text(string.ascii_lowercase, min_size=1, max_size=12)
words = st.lists(letters, min_size=1, max_size=4)
ALIKE = {"o": "0", "l": "1", "i": "1", "s": "5", "b": "8", "z": "2", "g": "6"}


def found(line: str, word: str) -> bool:
    return word_similarity(line, word) >= WORD_RATIO


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ST0P", "stop"),
        ("EX1T", "exit"),
        ("8US", "bus"),
        ("5ALE", "sale"),
        ("Modem Kitchen", "modern"),
        ("rnodern", "modem"),
        ("VVELCOME", "welcome"),
        ("No P ARK ING", "no parking"),
        ("Multiplled Cen", "MultipliedCpn"),
        ("STORE MGR TOM MILAZZO", "mgr"),
        ("$3.99 B", "3.99"),
        ("$3 99", "3.99"),
        ("12/30/2016 FRI", "2016"),
        ("REFRIG/FROZEN", "frozen"),
        ("SUPERMARKET", "market"),
        ("Straße", "STRASSE"),
        ("CAFÉ", "cafe"),
        ("Main St.", "main st"),
        ("go up now", "up"),
    ],
)
def test_misread_words_are_found(line: str, word: str) -> None:
    assert found(line, word)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("SHOP", "stop"),
        ("505", "sos"),
        ("LA BEEF", "ja"),
        ("THANK YOU", "hank yo"),
        ("$13.99", "3.99"),
        ("$14.99", "13.99"),
        ("$3.99", "99"),
        ("19:19", "19:49"),
        ("(714) 879-3574", "(714) 879-3575"),
        ("12/30/2016", "12/31/2016"),
        ("cargo upper", "go up"),
        ("supper", "up"),
        ("", "stop"),
    ],
)
def test_other_words_and_other_numbers_are_not(line: str, word: str) -> None:
    assert not found(line, word)


@given(st.text(max_size=40), st.text(max_size=20))
def test_similarity_is_a_share(line: str, word: str) -> None:
    assert 0.0 <= word_similarity(line, word) <= 1.0


@settings(max_examples=40)
@given(words, st.data())
def test_every_word_of_a_line_is_found_verbatim(line: list[str], data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(line))
    assert word_similarity(" ".join(line).upper(), word) == 1.0
    joined, spaced = "".join(line), " ".join(line)
    assert word_similarity(joined, joined) == word_similarity(spaced, joined) == word_similarity(joined, spaced) == 1.0


@settings(max_examples=40)
@given(letters.filter(lambda word: len(word) >= 5), st.data())
def test_one_wrong_letter_in_five_is_forgiven(word: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(word) - 1))
    other = data.draw(st.sampled_from(string.ascii_lowercase))
    assert found(word[:at] + other + word[at + 1 :], word)
    assert found(word[:at] + word[at + 1 :], word)


@settings(max_examples=40)
@given(letters.filter(lambda word: len(word) >= 3), st.data())
def test_one_sign_that_looks_alike_is_forgiven_from_three_letters_on(word: str, data: st.DataObject) -> None:
    places = [at for at, letter in enumerate(word) if letter in ALIKE]
    if places:
        at = data.draw(st.sampled_from(places))
        assert found(word[:at] + ALIKE[word[at]] + word[at + 1 :], word)


@settings(max_examples=40)
@given(st.text("0123456789", min_size=1, max_size=12), st.data())
def test_a_wrong_digit_is_another_number(number: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(number) - 1))
    digit = data.draw(st.sampled_from([d for d in string.digits if d != number[at]]))
    assert not found(number[:at] + digit + number[at + 1 :], number)
    assert not found(number + digit, number)
