"""Rules: what has to be seen for an alert, in one line.

    rule       = condition { "and" condition } [ "for" DURATION ]
    condition  = FIELD OP NUMBER  |  "answer" "contains" "TEXT"

OP is one of < <= > >= = !=, a duration is a number with ms, s, min or h. Several rules stand for "or".

    relevance > 0.6 for 2s
    relevance[0] > 0.5 and motion > 0.02 for 1.5s
    answer contains "a dog" and tokens > 50
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from arr_stream.consumer import total_ms
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet

LONGEST_TEXT = 4096
"""Characters of an answer that a rule looks at."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
"""Control characters, which messages must not bring from an answer into a terminal."""

_LONGEST_RULE = 1000
_LONGEST_SECONDS = 86_400
_MOVES = 0.1
"""Value of the motion channel from which a place counts as moving. With a still camera, noise alone (standard deviation
of 8 levels at 640x360) stays below it everywhere, and a square of 3.5% of the picture counts as 2% of it at 4 pixels a
frame and as 5% at 8."""
_SHOWN = 200
_GAP_SECONDS = 2.0
_GAP_STEPS = 4.0

Read = Callable[[PatchSet], float | None]


@dataclass(frozen=True, slots=True)
class Field:
    """A number of a frame, in `[0, high]`; `read` returns None where the frame has none."""

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
    # NaN before the first keyframe: no comparison with it is true.
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
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(
    rf"""answer\s+contains\s+(?P<quote>["'])(?P<text>(?:(?!(?P=quote)).)+)(?P=quote)
      | (?P<field>[a-z_]+) (?:\[(?P<query>\d+)\])? \s* (?P<sign><=|>=|!=|==?|<|>) \s* (?P<number>{_NUMBER})""",
    re.VERBOSE | re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d]+")
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_FOR = re.compile(rf"\s+for\s+({_NUMBER})\s*({'|'.join(_UNITS)})\s*$", re.IGNORECASE)

Condition = Callable[[PatchSet], str | None]
"""Returns what it saw, such as `relevance 0.8`, where it is true of a frame; else None."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Conditions that must all hold on every frame for some time, made by `parse_rule`.

    Args:
        text: As it was written.
        conditions: All must be true.
        seconds: How long, in the stream's time.
        needs_answers: A condition is about a model's answers.
        needs_relevance: It cannot hold while the relevance to every query is 0.
    """

    text: str
    conditions: tuple[Condition, ...]
    seconds: float
    needs_answers: bool
    needs_relevance: bool


class RuleWatch:
    """A rule over the frames of one stream: fires once when it becomes true, and again only after it was false.

    At least `cooldown_seconds` of the stream's time lie between two alerts. A rule that became true meanwhile and still
    is fires then.
    """

    def __init__(self, rule: Rule, cooldown_seconds: float = 10.0) -> None:
        self.rule = rule
        self._cooldown_seconds = cooldown_seconds
        self._since: float | None = None
        self._armed = True
        self._fired_seconds = -math.inf
        self._last_seconds: float | None = None
        self._step_seconds = math.inf

    def look(self, patches: PatchSet) -> str | None:
        """Take the next frame; return what was seen, in one line, where the rule fires, else None."""
        now = patches.pts_seconds
        self._restart_after_gap(now)
        seen = [condition(patches) for condition in self.rule.conditions]
        if None in seen:
            self._since = None
        elif self._since is None:
            self._since = now
        # Sums of frame times miss round numbers by a rounding error.
        if self._since is None or now - self._since < self.rule.seconds - 1e-6:
            self._armed = True
            return None
        if not self._armed or 0 <= now - self._fired_seconds < self._cooldown_seconds:
            return None
        self._armed, self._fired_seconds = False, now
        return ", ".join(dict.fromkeys(filter(None, seen)))

    def _restart_after_gap(self, now: float) -> None:
        """Start the duration anew where no frame came for unusually long: nobody knows what was true."""
        if self._last_seconds is not None:
            step = now - self._last_seconds
            if step < 0 or step > max(_GAP_SECONDS, _GAP_STEPS * self._step_seconds):
                self._since = None
            self._step_seconds = max(step, 0.0)
        self._last_seconds = now


def parse_rule(text: str) -> Rule:
    """Return the rule that a line of text means; see the module's text for the grammar.

    Raises:
        InvalidSetting: Not a rule; names the place, what was expected there, and what may have been meant.
    """
    if len(text) > _LONGEST_RULE:
        _refuse(text, _LONGEST_RULE, f"longer than {_LONGEST_RULE} characters", "write several shorter rules")
    conditions: list[Condition] = []
    needs_answers = needs_relevance = False
    at = len(text) - len(text.lstrip())
    while True:
        found = _CONDITION.match(text, at)
        if found is None:
            _refuse_condition(text, at)
        if found["text"] is not None:
            conditions.append(_answered(found["text"]))
            needs_answers = True
        else:
            conditions.append(_comparison(text, found))
            zero = _OPERATORS[found["sign"].replace("==", "=")](0.0, float(found["number"]))
            needs_relevance |= found["field"].lower() == "relevance" and not zero
        at = found.end()
        joined = _AND.match(text, at)
        if joined is None:
            break
        at = joined.end()
    seconds = _duration(text, at)
    if seconds and needs_answers:
        _refuse(text, at, "an answer comes on one frame and lasts for none", "leave out `for`")
    return Rule(" ".join(text.split()), tuple(conditions), seconds, needs_answers, needs_relevance)


def _comparison(text: str, found: re.Match[str]) -> Condition:
    name, query, number = found["field"].lower(), found["query"], float(found["number"])
    if name not in FIELDS:
        _refuse_field(text, found.start(), name)
    if query is not None and name != "relevance":
        _refuse(text, found.end("field"), f"{name} has no number", "only relevance[K] has, the first query being 0")
    high = FIELDS[name].high
    if not 0 <= number <= high or not math.isfinite(number):
        bounds = f"0 to {high:g}" if math.isfinite(high) else "0 or more"
        _refuse(text, found.start("number"), f"{name} is never {number:g}", f"it is {bounds}")
    read = FIELDS[name].read if query is None else _score_of(int(query))
    label = name if query is None else f"{name}[{query}]"
    compare = _OPERATORS[found["sign"].replace("==", "=")]

    def holds(patches: PatchSet) -> str | None:
        value = read(patches)
        return f"{label} {value:.3g}" if value is not None and compare(value, number) else None

    return holds


def _score_of(query: int) -> Read:
    return lambda patches: patches.query_scores[query] if query < len(patches.query_scores) else None


def _answered(wanted: str) -> Condition:
    """Return the condition that an answer which came with the frame contains a text, in any case of letters."""

    def holds(patches: PatchSet) -> str | None:
        for answer in patches.answers:
            text = answer.text[:LONGEST_TEXT]
            if answer.finish in ("stop", "length") and wanted.casefold() in text.casefold():
                line = " ".join(CONTROL.sub(" ", text).split())
                return f"answer: {line[:_SHOWN]}{'...' if len(line) > _SHOWN else ''}"
        return None

    return holds


def _duration(text: str, at: int) -> float:
    """Return the seconds of the `for` at the end of a rule, 0 without one."""
    if not text[at:].strip():
        return 0.0
    found = _FOR.match(text, at)
    if found is None:
        _refuse(text, at, "expected `and`, a duration such as `for 2s`, or the end", "give several rules for `or`")
    seconds = float(found[1]) * _UNITS[found[2].lower()]
    if not 0 < seconds <= _LONGEST_SECONDS:
        _refuse(text, found.start(1), f"{found[1]}{found[2]} is not a duration", "write more than 0 and at most 24h")
    return seconds


def _refuse_condition(text: str, at: int) -> NoReturn:
    word = _WORD.match(text, at)
    if word is not None and word[0].lower() not in (*FIELDS, "answer"):
        _refuse_field(text, at, word[0])
    _refuse(text, at, 'expected such as `relevance > 0.6` or `answer contains "a dog"`')


def _refuse_field(text: str, at: int, name: str) -> NoReturn:
    near = difflib.get_close_matches(name.lower(), [*FIELDS, "answer"], n=1, cutoff=0.0)[0]
    _refuse(text, at, f"there is no field {name!r}", f"did you mean {near!r}? fields: {', '.join(FIELDS)}")


def _refuse(text: str, at: int, what: str, remedy: str = "write such as `relevance > 0.6 for 2s`") -> NoReturn:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    raise InvalidSetting(f"rule {shown!r}, character {at + 1}: {what}", remedy=remedy)
