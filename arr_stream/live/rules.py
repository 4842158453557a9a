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

The parser is our own: a grammar library would still need each refusal, with its place and remedy, written by hand.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from arr_stream.consumer import total_ms
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet

LONGEST_TEXT = 4096
"""Only so many characters of an answer are looked at: the time that an expression takes may grow fast with them."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
"""Messages are shown in terminals, and answers come from elsewhere."""

_LONGEST_RULE = 1000
_DEEPEST = 20
_LONGEST_SECONDS = 86_400
_MOVES = 0.1
"""From this value of the motion channel on a place counts as moving. With a still camera, noise alone (standard
deviation of 8 levels at 640x360) stays below it everywhere, and a square of 3.5% of the picture is found to be 2% of it
at 4 pixels a frame and 5% at 8."""
_SHOWN = 200
_GAP_SECONDS = 2.0
_GAP_STEPS = 4.0

Read = Callable[[PatchSet], float | None]
"""Takes a number from a patch set; None where there is none, which fits no comparison."""


@dataclass(frozen=True, slots=True)
class Field:
    """A number that a frame has, from 0 to `high`; a comparison with anything else is a mistake."""

    read: Read
    high: float = 1


def _motion(patches: PatchSet) -> float:
    return float((patches.texture.plane("motion") >= _MOVES).mean())


def _covered(patches: PatchSet) -> float:
    chosen = np.zeros((patches.grid.rows, patches.grid.columns), dtype=bool)
    for row, column, span in zip(patches.rows.tolist(), patches.columns.tolist(), patches.span.tolist(), strict=True):
        chosen[row : row + span, column : column + span] = True
    return float(chosen.mean())


FIELDS: dict[str, Field] = {
    "relevance": Field(lambda patches: max(patches.query_scores, default=0.0)),
    "tokens": Field(lambda patches: patches.tokens, high=math.inf),
    "covered": Field(_covered),
    # Of nothing before the first keyframe, which no comparison is true of.
    "confidence": Field(lambda patches: math.nan if patches.keyframe_index is None else patches.confidence),
    "motion": Field(_motion),
    "cut": Field(lambda patches: patches.refresh_reason == "cut"),
    "keyframe": Field(lambda patches: patches.keyframe),
    "latency_ms": Field(lambda patches: total_ms(patches.latency_ms), high=math.inf),
}
"""What may be compared, see docs/live.md; beside these, `relevance[K]` is the score of query K, the first being 0."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(slots=True)
class Sight:
    """One frame as the terms of a rule see it.

    Args:
        held: Since when each term with a `for` has been true, by its number; kept from frame to frame.
        seen: What was found true, for the message.
    """

    patches: PatchSet
    held: dict[int, float]
    seen: list[str] = field(default_factory=list)


Term = Callable[[Sight], bool]
"""Whether a part of a rule is true of a frame; every part is asked on every frame, since some remember."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on frames, made by `parse_rule`.

    Args:
        text: As it was written.
        term: Its meaning.
        needs_answers: Whether it speaks of a model's answers.
        needs_relevance: Whether it cannot hold while the relevance to every query is 0.
    """

    text: str
    term: Term
    needs_answers: bool
    needs_relevance: bool


class RuleWatch:
    """A rule over the frames of one stream: fires once when it becomes true, and again only after it was false.

    At least `cooldown_seconds` of the stream's time lie between two alerts; what became true meanwhile, and still is,
    fires then.
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
        if not self.rule.term(sight):
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
    parser = _Parser(text)
    term = parser.rule()
    return Rule(" ".join(text.split()), term, parser.answers > 0, parser.relevant and not parser.alternatives)


def _compared(name: str, read: Read, sign: str, number: float) -> Term:
    def holds(sight: Sight) -> bool:
        value = read(sight.patches)
        true = value is not None and _OPERATORS[sign](value, number)
        if true:
            sight.seen.append(f"{name} {value:.3g}")
        return true

    return holds


def _answered(pattern: re.Pattern[str]) -> Term:
    """An answer that came with the frame fits a pattern; true on that frame alone."""

    def holds(sight: Sight) -> bool:
        for answer in sight.patches.answers:
            if answer.finish in ("stop", "length") and pattern.search(answer.text[:LONGEST_TEXT]):
                text = " ".join(CONTROL.sub(" ", answer.text[:LONGEST_TEXT]).split())
                sight.seen.append(f"answer: {text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}")
                return True
        return False

    return holds


def _lasting(term: Term, seconds: float, number: int) -> Term:
    """A term that has been true on every frame for so long, in the stream's time."""

    def holds(sight: Sight) -> bool:
        if not term(sight):
            sight.held.pop(number, None)
            return False
        now = sight.patches.pts_seconds
        # Sums of frame times miss round numbers by a rounding error.
        return now - sight.held.setdefault(number, now) >= seconds - 1e-6

    return holds


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
      | (?P<mark>[()\[\]])
      | (?P<odd>.)""",
    re.VERBOSE | re.DOTALL,
)


class _Parser:
    """Reads a rule from left to right; each method takes what its name says, or refuses.

    Attributes:
        answers: How many conditions about answers were read.
        relevant: Whether a comparison that was read is false of a relevance of 0.
        alternatives: Whether an `or` was read.
    """

    def __init__(self, text: str) -> None:
        self.answers = 0
        self.relevant = self.alternatives = False
        self._text = text
        if len(text) > _LONGEST_RULE:
            self._refuse(_LONGEST_RULE, f"longer than {_LONGEST_RULE} characters", "write several shorter rules")
        found = [_Token(str(match.lastgroup), match.group(), match.start()) for match in _TOKENS.finditer(text)]
        for token in found:
            if token.kind == "odd":
                lacks = f"needs an end with `{token.text}`" if token.text in "\"'/" else "has no meaning here"
                self._refuse(token.place, f"{token.text!r} {lacks}")
        self._tokens = [*(token for token in found if token.kind != "space"), _Token("end", "", len(text))]
        self._at = 0
        self._depth = 0
        self._durations = 0

    def rule(self) -> Term:
        term = self._either()
        self._take("end", "`and`, `or`, `for` or the end")
        return term

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, kind: str, expected: str) -> _Token:
        """The next token, which must be of this kind."""
        token = self._next
        if token.kind != kind:
            self._expected(expected)
        self._at += kind != "end"
        return token

    def _skip(self, word: str) -> bool:
        """Take a word or a mark, if it comes next."""
        found = self._next.kind in ("word", "mark") and self._next.text.lower() == word
        self._at += found
        return found

    def _either(self) -> Term:
        return self._joined("or", any, lambda: self._joined("and", all, self._condition))

    def _joined(self, word: str, joined: Callable[[list[bool]], bool], part: Callable[[], Term]) -> Term:
        terms = [part()]
        while self._skip(word):
            self.alternatives |= word == "or"
            terms.append(part())
        return terms[0] if len(terms) == 1 else lambda sight: joined([term(sight) for term in terms])

    def _condition(self) -> Term:
        answers, place = self.answers, self._next.place
        if self._skip("("):
            term = self._bracketed(place)
        elif self._skip("answer"):
            term = _answered(self._pattern())
        else:
            term = self._comparison()
        duration_place = self._next.place
        if not self._skip("for"):
            return term
        seconds = self._duration()
        if self.answers > answers:
            self._refuse(duration_place, "an answer comes in one moment and lasts for none", "leave out `for`")
        self._durations += 1
        return _lasting(term, seconds, self._durations)

    def _bracketed(self, place: int) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(place, f"more than {_DEEPEST} parentheses in each other", "write a simpler rule")
        term = self._either()
        if not self._skip(")"):
            self._expected("`)`")
        self._depth -= 1
        return term

    def _pattern(self) -> re.Pattern[str]:
        """What an answer has to fit."""
        self.answers += 1
        if self._skip("contains"):
            text = self._take("string", 'a text in quotes, such as "a dog"').text[1:-1]
            return re.compile(re.escape(re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)), re.IGNORECASE)
        if not self._skip("matches"):
            self._expected('`matches /REGEX/` or `contains "TEXT"`')
        token = self._take("regex", "an expression between slashes, such as /dogs?/i")
        body, _, flags = token.text[1:].rpartition("/")
        if flags not in ("", "i"):
            self._refuse(token.place, f"{flags!r} is no flag", "write `i` after the slash to ignore case, or nothing")
        try:
            return re.compile(body.replace(r"\/", "/"), re.IGNORECASE if flags else 0)
        except (re.error, OverflowError, RecursionError) as exc:
            self._refuse(token.place, f"not a regular expression: {exc}", "escape special characters with a backslash")

    def _comparison(self) -> Term:
        if self._next.text.lower() in ("and", "or", "for"):
            self._expected("a field, `answer` or `(`")
        token = self._take("word", "a field, `answer` or `(`")
        name = token.text
        if name not in FIELDS:
            near = difflib.get_close_matches(name.lower(), [*FIELDS, "answer"], n=1, cutoff=0.0)[0]
            remedy = f"did you mean {near!r}? fields: {', '.join(FIELDS)}"
            self._refuse(token.place, f"there is no field {name!r}", remedy)
        compared, read = FIELDS[name], FIELDS[name].read
        if name == "relevance" and self._skip("["):
            query = self._query_number()
            name, read = f"relevance[{query}]", _score_of(query)
        example = f"{name} > {0 if compared.high > 1 else 0.5}"
        sign = self._take("sign", f"one of {' '.join(_OPERATORS)}, such as `{example}`").text.replace("==", "=")
        place, number = self._next.place, self._number("a number")
        if not 0 <= number <= compared.high:
            bounds = f"0 to {compared.high:g}" if math.isfinite(compared.high) else "0 or more"
            self._refuse(place, f"{name} is never {number:g}", f"it is {bounds}")
        self.relevant |= name.startswith("relevance") and not _OPERATORS[sign](0.0, number)
        return _compared(name, read, sign, number)

    def _query_number(self) -> int:
        expected = "the number of a query, the first being 0"
        if not self._next.text.isdecimal():
            self._expected(expected)
        number = int(self._take("number", expected).text)
        if not self._skip("]"):
            self._expected("`]`")
        return number

    def _number(self, expected: str) -> float:
        token = self._take("number", expected)
        if not math.isfinite(float(token.text)):
            self._refuse(token.place, f"{token.text} is too large")
        return float(token.text)

    def _duration(self) -> float:
        place, number = self._next.place, self._number("a duration, such as 2s")
        expected = f"a unit of time ({', '.join(_UNITS)}), such as 2s"
        if self._next.text not in _UNITS:
            self._expected(expected)
        unit = self._take("word", expected).text
        seconds = number * _UNITS[unit]
        if not 0 < seconds <= _LONGEST_SECONDS:
            self._refuse(place, f"{number:g}{unit} is not a duration", "write more than nothing and at most 24h")
        return seconds

    def _expected(self, what: str) -> NoReturn:
        token = self._next
        found = "the rule ends here" if token.kind == "end" else f"{token.text!r} stands here"
        self._refuse(token.place, f"{found}, expected {what}")

    def _refuse(self, place: int, what: str, remedy: str = "write such as `relevance > 0.6 for 2s`") -> NoReturn:
        shown = self._text if len(self._text) <= _SHOWN else f"{self._text[:_SHOWN]}..."
        raise InvalidSetting(f"rule {shown!r}, character {place + 1}: {what}", remedy=remedy)


def _score_of(query: int) -> Read:
    return lambda patches: patches.query_scores[query] if query < len(patches.query_scores) else None
