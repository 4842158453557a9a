"""Objects that a question asks about, as texts for queries, without the words that only form the question.

    sought("Is the red circle left or right of the blue star?")   # ("red circle", "blue star")
    sought("What does the sign say?")                             # ("sign", "text")

Each text is a query of its own, as `parse_text` takes it. The options of a choice ("left or right", "small or large")
give no query. A side counts if it identifies the object ("the car on the left").
"""

from __future__ import annotations

import re

from arr_stream.relevance.lexicon import ANYTHING_WRITTEN, MOTION, PLACES, STOP_WORDS

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[,;]")
_ASIDE = re.compile(r"(?i)[.?!]?\s*\b(?:please\s+)?(?:answer|reply|respond)\b.*$", re.DOTALL)
"""Instruction on how to answer, up to the end of the question."""
_NUMBER_SHOWN = re.compile(r"\bnumbers? (?:is |are )?(?:on|at|in)\b")
_QUOTED = re.compile(r"[\"“”„«»]")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ANSWERS = _words(
    """
    left right top bottom above below over under up down inside outside front behind near far before after first last
    small large big little short long tall high low more fewer less wide narrow thick thin round flat open closed full
    empty new old on off yes no not
    """
)
"""Words that a question may offer as answers."""
_LINKS = _words("to the on at in of it is a an one side more or")
"""Words that may appear between two sides."""
_GENERIC = _words(
    """
    colour colours color colors shape shapes size sizes kind kinds type types sort side sides way ways number numbers
    count position place places direction many much time times something anything someone anyone somebody anybody
    everything everyone thing things object objects happen happens happened happening do does doing go goes going went
    picture image video clip frame scene photo describe summarise summarize explain name list tell see seen
    come comes came enter enters entered leave leaves appear appears appeared disappear disappears disappeared gone
    what's where's who's it's isn't aren't doesn't don't who whose whom while turn turns move be being
    above below under over behind beside between near inside outside front next left right up down out in back there
    here if also just only new most else same different small large big both still now than then
    wear wears wearing hold holds holding
    """
)
_WRITING = ANYTHING_WRITTEN | _words("say says said saying read reads reading word words written write writes wrote")
_WHO = _words("what who which that thing just has have anything anyone something someone")


def sought(question: str) -> tuple[str, ...]:
    """Return texts for queries, each once, in order; an empty tuple if the question names nothing.

    Args:
        question: In words. A phrase in quotation marks makes it one text, unchanged.
    """
    if _QUOTED.search(question):
        return (question,)
    words = [word.casefold() for word in _WORD.findall(_ASIDE.sub("", question))]
    words = _without_answers(words)
    found: dict[str, None] = {}
    run: list[str] = []
    for at, word in enumerate(words):
        if word in PLACES and _tells_apart(words, at) and (run or found):
            # A side belongs to the object named last.
            if not run:
                run = list(found)[-1].split()
                del found[" ".join(run)]
            run.append(word)
        elif word in STOP_WORDS or word in _GENERIC or word in _WRITING or word in ",;":
            _close(run, found)
        else:
            run.append(word)
    _close(run, found)
    if any(word in _WRITING for word in words) or _NUMBER_SHOWN.search(" ".join(words)):
        found["text"] = None
    if not found and any(word in MOTION or word == "move" for word in words):
        found["moving"] = None
    return tuple(found)


def _close(run: list[str], found: dict[str, None]) -> None:
    """Add the run of words as a text, unless it is a lone verb."""
    lone_verb = len(run) == 1 and run[0].endswith("ing") and run[0] not in MOTION and len(run[0]) > 5
    while len(run) > 1 and (run[-1] in MOTION or run[-1] == "move"):
        run.pop()
    if run and not lone_verb and not all(word in MOTION for word in run):
        found[" ".join([*run[:-1], _singular(run[-1])])] = None
    run.clear()


def _singular(word: str) -> str:
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    # "buses", and neither "houses" nor "causes".
    if len(word) > 4 and word.endswith("uses") and word[-5] not in "ao":
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _tells_apart(words: list[str], at: int) -> bool:
    """Return whether a side identifies the object: `on the left`, and neither `left of` nor `what left`."""
    before = words[at - 1] if at else ""
    after = words[at + 1] if at + 1 < len(words) else ""
    return after != "of" and before not in _WHO and before in ("the", "on", "at", "in")


def _without_answers(words: list[str]) -> list[str]:
    """Return the words without choices between answers, such as `on the left or on the right`."""
    kept = list(words)
    for at in [k for k, word in enumerate(words) if word == "or"]:
        first, last = at - 1, at + 1
        while first >= 0 and words[first] in _LINKS:
            first -= 1
        while last < len(words) and words[last] in _LINKS:
            last += 1
        if first >= 0 and last < len(words) and words[first] in _ANSWERS and words[last] in _ANSWERS:
            kept[first : last + 1] = [","] * (last + 1 - first)
    return kept
