"""Matching of a query's words with the lines that were read on the frame."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from arr_stream.keyframes.text.regions import text_mask
from arr_stream.types import FloatArray, TextRegion

WORD_RATIO = 0.8
"""Least similarity at which a misread word still counts."""

CONFUSED = 0.25
"""Cost of confusing two characters that look alike. A word in which all characters are confused is another
word
("SOS", "505"): its similarity, 0.75, is below `WORD_RATIO`."""
EDIT = 1.0
"""Cost of any other wrong, missing or added letter: one in five is tolerated."""
DIGIT_EDIT = 4.0
"""Cost of a wrong, missing or added digit, which makes another number rather than a misread one."""

EXACT = 2
"""Longest word, in letters, that must match exactly, since too many words differ from it by one letter."""
INSIDE = 4
"""Shortest word, in letters, that may match inside a longer one."""
LOOSE = 8
"""Shortest word, in letters, that may match inside a longer one even if misread."""

_LOOK_ALIKE = ("0oq", "1lij", "2z", "5s", "6gb", "8b", "9gq", "uv", "ce")
_PAIRS = {"rn": "m", "nn": "m", "vv": "w", "cl": "d"}
_ALIKE = frozenset((a, b) for group in _LOOK_ALIKE for a in group for b in group if a != b)


def word_mask(regions: Iterable[TextRegion], word: str, hw: tuple[int, int]) -> FloatArray:
    """Return `[h, w]` float32: regions with the word, 1 for an exact match, down to `WORD_RATIO` for a close one.

    A region counts as a whole, even if the word is only a part of its line.
    """
    found = [replace(region, confidence=word_similarity(region.text or "", word)) for region in regions]
    return text_mask([region for region in found if region.confidence >= WORD_RATIO], hw)


@functools.lru_cache(maxsize=4096)
def word_similarity(line: str, word: str) -> float:
    """Return the similarity of a word (or several) to its best match in a line, in [0, 1]; 1 for a verbatim match in
    any case.

    Blanks do not count, since recognisers lose and add them. A word must begin where one begins in the line and end
    where one ends, or, from `INSIDE` letters on, be part of one; a number is never part of a longer number. The rest is
    an edit distance (Sellers 1980, which finds the best stretch of the line), in which confusing similar characters is
    cheap: 1 minus the cost of the edits as a share of the word's letters; 0 if the word has more than twice the letters
    of the line.
    """
    wanted, tokens = folded(word).replace(" ", ""), folded(line).split()
    found = "".join(tokens)
    if not wanted or 2 * len(found) < len(wanted):
        return 0.0
    if len(wanted) >= INSIDE and any(_holds(token, wanted) for token in tokens):
        return 1.0
    limits = set(itertools.accumulate(map(len, tokens), initial=0))
    if len(wanted) >= LOOSE:
        limits |= {at for at in range(1, len(found)) if not found[at - 1 : at + 1].isdigit()}
    cost = _least_cost(wanted, found, limits)
    if cost and len(wanted) <= EXACT:
        return 0.0
    return max(0.0, 1.0 - cost / len(wanted))


def folded(text: str) -> str:
    """Return lower case without accents and punctuation, with single blanks; decimals stay ("3.99" is "399")."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    kept = "".join(char for char in plain if not unicodedata.combining(char))
    kept = re.sub(r"(?<=\d)[.,](?=\d)", "", kept)
    return " ".join(re.findall(r"[^\W_]+", kept))


def _holds(token: str, wanted: str) -> bool:
    """Return whether the token includes the word without cutting a number in two."""
    before = r"(?<!\d)" if wanted[0].isdigit() else ""
    after = r"(?!\d)" if wanted[-1].isdigit() else ""
    return re.search(f"{before}{re.escape(wanted)}{after}", token) is not None


def _least_cost(wanted: str, found: str, limits: set[int]) -> float:
    """Return the least cost of turning any part of `found` that begins and ends at `limits` into `wanted`.

    Row i, column j is the least cost for the first i letters of `wanted` and a part that ends before letter j.
    """
    rows = [[0.0 if j in limits else float("inf") for j in range(len(found) + 1)]]
    for i, letter in enumerate(wanted):
        row = [rows[i][0] + _edit(letter)]
        for j, sign in enumerate(found):
            best = min(
                rows[i][j] + _exchange(letter, sign),
                rows[i][j + 1] + _edit(letter),
                row[j] + _edit(sign),
            )
            if j and _PAIRS.get(found[j - 1 : j + 1]) == letter:
                best = min(best, rows[i][j - 1] + CONFUSED)
            if i and _PAIRS.get(wanted[i - 1 : i + 1]) == sign:
                best = min(best, rows[i - 1][j] + CONFUSED)
            row.append(best)
        rows.append(row)
    return min(rows[-1][j] for j in limits)


def _exchange(letter: str, sign: str) -> float:
    if letter == sign:
        return 0.0
    if (letter, sign) in _ALIKE:
        return CONFUSED
    return DIGIT_EDIT if letter.isdigit() and sign.isdigit() else EDIT


def _edit(sign: str) -> float:
    return DIGIT_EDIT if sign.isdigit() else EDIT
