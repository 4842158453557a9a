"""Rules: what has to be seen for an alert, in one line.

    rule       = all { "or" all }
    all        = condition { "and" condition }
    condition  = FIELD OP NUMBER [ "for" DURATION ]  |  "(" rule ")" [ "for" DURATION ]
               | "answer" "matches" /REGEX/[i]  |  "answer" "contains" "TEXT"

OP is one of < <= > >= = !=, a duration a number with ms, s, min or h. `for` belongs to the condition before it: to a
whole rule only in parentheses. `contains` takes capital and small letters for the same, `matches` only with the `i`.

    relevance > 0.6 for 2s
    (relevance[0] > 0.5 and motion > 0.02) for 1.5s or cut = 1
    answer contains "a dog" and tokens > 50
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from arr_stream.consumer import total_ms
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet

LONGEST_TEXT = 4096
"""Only so many characters of an answer are looked at: the time that an expression takes may grow fast with them."""

_LONGEST_RULE = 1000
_DEEPEST = 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
"""Messages are shown in terminals, and answers come from elsewhere."""
_MOVES = 0.1
"""From this value of the motion channel on a place counts as moving. With a still camera, noise alone (standard
deviation of 8 levels at 640x360) stays below it everywhere, and a square of 3.5% of the picture is found to be 2% of it
at 4 pixels a frame and 5% at 8."""
_SHOWN = 200
_GAP_SECONDS = 2.0
_GAP_STEPS = 4.0

Condition = Callable[["Sight"], bool]


@dataclass(frozen=True, slots=True)
class Field:
    """A number that a frame has.

    Args:
        read: Takes it from a patch set; None where there is none, which fits no comparison.
        low, high: Between which it always lies; a comparison with anything else is a mistake.
        meaning: One line.
    """

    read: Callable[[PatchSet], float | None]
    low: float
    high: float
    meaning: str


def _relevance(patches: PatchSet) -> float:
    return max(patches.query_scores, default=0.0)


def _motion(patches: PatchSet) -> float:
    return float((patches.texture.plane("motion") >= _MOVES).mean())


def _covered(patches: PatchSet) -> float:
    chosen = np.zeros((patches.grid.rows, patches.grid.columns), dtype=bool)
    for row, column, span in zip(patches.rows.tolist(), patches.columns.tolist(), patches.span.tolist(), strict=True):
        chosen[row : row + span, column : column + span] = True
    return float(chosen.mean())


FIELDS: dict[str, Field] = {
    "relevance": Field(_relevance, 0, 1, "highest score of any query; 0 without one"),
    "tokens": Field(len, 0, math.inf, "cells chosen"),
    "covered": Field(_covered, 0, 1, "share of the frame's cells that were chosen"),
    "confidence": Field(lambda patches: patches.confidence, 0, 1, "mean trust in what is carried between keyframes"),
    "motion": Field(_motion, 0, 1, "share of the picture that moves against the camera"),
    "cut": Field(lambda patches: patches.refresh_reason == "cut", 0, 1, "1 on the refresh after a cut, otherwise 0"),
    "keyframe": Field(lambda patches: patches.keyframe, 0, 1, "1 where a refresh was asked for, otherwise 0"),
    "latency_ms": Field(lambda patches: total_ms(patches.latency_ms), 0, math.inf, "milliseconds that the frame took"),
}
"""What may be compared; beside these, `relevance[K]` is the score of one query, the first being 0."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


class Sight:
    """One frame as the conditions of a rule see it.

    Args:
        patches: The frame's cells and answers.
        held: How long each condition with a `for` has been true, by its number: the time since which; kept from
            frame to frame, and changed here.

    Attributes:
        seen: What was found true, for the message.
    """

    def __init__(self, patches: PatchSet, held: dict[int, float]) -> None:
        self.patches = patches
        self.held = held
        self.seen: list[str] = []


class Term(Protocol):
    """A part of a rule."""

    def holds(self, sight: Sight) -> bool:
        """Whether it is true of this frame; every part is asked on every frame, since some remember."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field against a number."""

    name: str
    read: Callable[[PatchSet], float | None]
    sign: str
    number: float

    def holds(self, sight: Sight) -> bool:
        value = self.read(sight.patches)
        true = value is not None and _OPERATORS[self.sign](value, self.number)
        if true:
            sight.seen.append(f"{self.name} {value:.3g}")
        return true


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that came with the frame fits a pattern; true on that frame alone."""

    pattern: re.Pattern[str]

    def holds(self, sight: Sight) -> bool:
        for answer in sight.patches.answers:
            if answer.finish in ("stop", "length") and self.pattern.search(answer.text[:LONGEST_TEXT]):
                text = " ".join(_CONTROL.sub(" ", answer.text[:LONGEST_TEXT]).split())
                sight.seen.append(f"answer: {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}")
                return True
        return False


@dataclass(frozen=True, slots=True)
class Together:
    """Several terms joined by `and` or by `or`."""

    joined: Callable[[list[bool]], bool]
    terms: tuple[Term, ...]

    def holds(self, sight: Sight) -> bool:
        return self.joined([term.holds(sight) for term in self.terms])


@dataclass(frozen=True, slots=True)
class Lasting:
    """A term that has been true on every frame for so long, in the stream's time."""

    term: Term
    seconds: float
    number: int

    def holds(self, sight: Sight) -> bool:
        if not self.term.holds(sight):
            sight.held.pop(self.number, None)
            return False
        now = sight.patches.pts_seconds
        # Sums of frame times miss round numbers by a rounding error.
        return now - sight.held.setdefault(self.number, now) >= self.seconds - 1e-6


@dataclass(frozen=True, slots=True)
class Rule:
    """What has to be seen; made by `parse_rule`.

    Args:
        text: As it was written.
        term: Its meaning.
    """

    text: str
    term: Term


class RuleWatch:
    """A rule over the frames of one stream: fires once when it becomes true, and again only after it was false.

    Args:
        rule: What has to be seen.
        cooldown_seconds: At least so much of the stream's time lies between two alerts; a rule that became true
            meanwhile, and still is, fires when it is over.
    """

    def __init__(self, rule: Rule, cooldown_seconds: float = 10.0) -> None:
        self.rule = rule
        self._cooldown_seconds = cooldown_seconds
        self._held: dict[int, float] = {}
        self._armed = True
        self._fired_seconds = -math.inf
        self._last_seconds: float | None = None
        self._step_seconds = math.inf

    def look(self, patches: PatchSet) -> str | None:
        """Take the next frame; what was seen, in one line, where the rule fires, and None where it does not."""
        now = patches.pts_seconds
        self._bridge(now)
        sight = Sight(patches, self._held)
        if not self.rule.term.holds(sight):
            self._armed = True
            return None
        if not self._armed or 0 <= now - self._fired_seconds < self._cooldown_seconds:
            return None
        self._armed, self._fired_seconds = False, now
        return ", ".join(dict.fromkeys(sight.seen))

    def _bridge(self, now: float) -> None:
        """Nobody knows what was true while nothing came for unusually long: durations start anew."""
        if self._last_seconds is not None:
            step = now - self._last_seconds
            if step < 0 or step > max(_GAP_SECONDS, _GAP_STEPS * self._step_seconds):
                self._held.clear()
            self._step_seconds = max(step, 0.0)
        self._last_seconds = now


def parse_rule(text: str) -> Rule:
    """The rule that a line of text means; see the module's text for the grammar.

    Raises:
        InvalidSetting: Not a rule; names the place, what was expected there, and what may have been meant.
    """
    return Rule(" ".join(text.split()), _Parser(text).rule())


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: int


_TOKENS = re.compile(
    r"""(?P<space>\s+)
      | (?P<regex>/(?:[^/\\]|\\.)*/[a-zA-Z]*)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<sign><=|>=|!=|==|<|>|=)
      | (?P<mark>[()\[\]])""",
    re.VERBOSE | re.DOTALL,
)


class _Parser:
    """Reads a rule from left to right; each method takes what its name says, or refuses."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _LONGEST_RULE:
            self._refuse(_LONGEST_RULE, f"longer than {_LONGEST_RULE} characters", "write several shorter rules")
        self._tokens = [*self._split(), _Token("end", "", len(text))]
        self._at = 0
        self._depth = 0
        self._durations = 0
        self._answers = 0

    def rule(self) -> Term:
        """All of it."""
        term = self._any()
        if self._next.kind != "end":
            self._expected("`and`, `or`, `for` or the end")
        return term

    def _split(self) -> Iterator[_Token]:
        place = 0
        while place < len(self._text):
            match = _TOKENS.match(self._text, place)
            if match is None:
                what = self._text[place]
                open_end = {'"': 'an end with `"`', "'": "an end with `'`", "/": "an end with `/`"}.get(what)
                self._refuse(
                    place, f"{what!r} has no meaning here" if open_end is None else f"{what!r} needs {open_end}"
                )
            if match.lastgroup != "space":
                yield _Token(str(match.lastgroup), match.group(), place)
            place = match.end()

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _word(self, *words: str) -> bool:
        """Take one of some words, if it comes next."""
        found = self._next.kind in ("word", "mark") and self._next.text.lower() in words
        if found:
            self._at += 1
        return found

    def _any(self) -> Term:
        terms = [self._all()]
        while self._word("or"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else Together(any, tuple(terms))

    def _all(self) -> Term:
        terms = [self._condition()]
        while self._word("and"):
            terms.append(self._condition())
        return terms[0] if len(terms) == 1 else Together(all, tuple(terms))

    def _condition(self) -> Term:
        answers, place = self._answers, self._next.place
        if self._word("("):
            term = self._bracketed(place)
        elif self._word("answer"):
            term = self._answer()
        else:
            term = self._comparison()
        duration_place = self._next.place
        if not self._word("for"):
            return term
        seconds = self._duration()
        if self._answers > answers:
            self._refuse(duration_place, "an answer comes in one moment and lasts for none", "leave out `for`")
        self._durations += 1
        return Lasting(term, seconds, self._durations)

    def _bracketed(self, place: int) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(place, f"more than {_DEEPEST} parentheses in each other", "write a simpler rule")
        term = self._any()
        if not self._word(")"):
            self._expected("`)`")
        self._depth -= 1
        return term

    def _answer(self) -> Term:
        self._answers += 1
        if self._word("matches"):
            return Answered(self._regex())
        if self._word("contains"):
            if self._next.kind != "string":
                self._expected('a text in quotes, such as "a dog"')
            text = re.sub(r"\\(.)", r"\1", self._take().text[1:-1], flags=re.DOTALL)
            return Answered(re.compile(re.escape(text), re.IGNORECASE))
        self._expected('`matches /REGEX/` or `contains "TEXT"`')

    def _regex(self) -> re.Pattern[str]:
        if self._next.kind != "regex":
            self._expected("an expression between slashes, such as /dogs?/i")
        token = self._take()
        body, _, flags = token.text[1:].rpartition("/")
        if flags not in ("", "i"):
            self._refuse(token.place, f"{flags!r} is no flag", "write `i` after the slash to ignore case, or nothing")
        try:
            return re.compile(body.replace(r"\/", "/"), re.IGNORECASE if flags else 0)
        except (re.error, OverflowError, RecursionError) as exc:
            self._refuse(token.place, f"not a regular expression: {exc}", "escape special characters with a backslash")

    def _comparison(self) -> Term:
        token = self._next
        if token.kind != "word" or token.text.lower() in ("and", "or", "for"):
            self._expected("a field, `answer` or `(`")
        name = self._take().text
        if name not in FIELDS:
            near = difflib.get_close_matches(name.lower(), [*FIELDS, "answer"], n=1, cutoff=0.0)[0]
            self._refuse(
                token.place, f"there is no field {name!r}", f"did you mean {near!r}? fields: {', '.join(FIELDS)}"
            )
        field, read, shown = FIELDS[name], FIELDS[name].read, name
        if name == "relevance" and self._word("["):
            query = self._query_number()
            read, shown = _score_of(query), f"relevance[{query}]"
        if self._next.kind != "sign":
            self._expected(f"one of {' '.join(_OPERATORS)}, such as `{shown} > {0 if field.high > 1 else 0.5}`")
        sign = self._take().text.replace("==", "=")
        place = self._next.place
        number = self._number("a number")
        if not field.low <= number <= field.high:
            bounds = f"{field.low:g} to {field.high:g}" if math.isfinite(field.high) else f"{field.low:g} or more"
            self._refuse(place, f"{shown} is never {number:g}", f"it is {bounds}")
        return Comparison(shown, read, sign, number)

    def _query_number(self) -> int:
        token = self._next
        if token.kind != "number" or not token.text.isdecimal():
            self._expected("the number of a query, the first being 0")
        self._at += 1
        if not self._word("]"):
            self._expected("`]`")
        return int(token.text)

    def _number(self, what: str) -> float:
        if self._next.kind != "number":
            self._expected(what)
        token = self._take()
        if not math.isfinite(float(token.text)):
            self._refuse(token.place, f"{token.text} is too large")
        return float(token.text)

    def _duration(self) -> float:
        place = self._next.place
        number = self._number("a duration, such as 2s")
        unit = self._next
        if unit.kind != "word" or unit.text not in _UNITS:
            self._expected(f"a unit of time ({', '.join(_UNITS)}), such as 2s")
        self._at += 1
        seconds = number * _UNITS[unit.text]
        if not 0 < seconds <= 86_400:
            self._refuse(place, f"{number:g}{unit.text} is not a duration", "write more than nothing and at most 24h")
        return seconds

    def _expected(self, what: str) -> NoReturn:
        token = self._next
        found = "the rule ends here" if token.kind == "end" else f"{token.text!r} stands here"
        self._refuse(token.place, f"{found}, expected {what}")

    def _refuse(self, place: int, what: str, remedy: str = "write such as `relevance > 0.6 for 2s`") -> NoReturn:
        shown = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}..."
        raise InvalidSetting(f"rule {shown!r}, character {place + 1}: {what}", remedy=remedy)


def _score_of(query: int) -> Callable[[PatchSet], float | None]:
    """Reads the score of one query, which may not be there."""
    return lambda patches: patches.query_scores[query] if query < len(patches.query_scores) else None
