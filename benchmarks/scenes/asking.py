"""Questions about stories, with the answers that their truth gives.

Every kind of question has several wordings; the last of them are kept for reporting (`HELD_OUT`). What is asked about
is the only one of its description among all things that are or were there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.scenes.shapes import COLOURS, SHAPES
from benchmarks.scenes.stories import SIGN, SIGN_WORDS, Actor, Story

HELD_OUT = 2
"""Wordings of each kind that are not trained on: the last ones. All of their words are in others that are."""

WORDINGS: dict[str, tuple[str, ...]] = {
    "colour": (
        "What colour is the {0}?",
        "Which colour does the {0} have?",
        "What color is the {0}?",
        "The {0} is of what colour?",
        "Tell me the colour of the {0}.",
        "What is the colour of the {0}?",
        "Which colour is the {0}?",
    ),
    "shape": (
        "What shape is the {0}?",
        "Which shape does the {0} have?",
        "Tell me the shape of the {0}.",
        "The {0} is of what shape?",
        "What is the shape of the {0}?",
        "Which shape is the {0}?",
    ),
    "side": (
        "Is the {0} on the left or on the right?",
        "On which side is the {0}, left or right?",
        "Where is the {0}, on the left or on the right?",
        "On which side do you see the {0}, left or right?",
        "Tell me the side of the {0}, left or right.",
        "Which side is the {0} on, left or right?",
    ),
    "height": (
        "Is the {0} at the top or at the bottom?",
        "Where is the {0}, at the top or at the bottom?",
        "Is the {0} in the top or in the bottom half?",
        "Tell me where the {0} is, at the top or at the bottom.",
        "Do you see the {0} at the top or at the bottom?",
    ),
    "beside": (
        "Is the {0} left or right of the {1}?",
        "Is the {0} to the left or to the right of the {1}?",
        "On which side of the {1} is the {0}, left or right?",
        "On which side of the {1} do you see the {0}, left or right?",
        "Which side of the {1} do you see the {0} on, left or right?",
        "Where is the {0}, left or right of the {1}?",
        "Which side of the {1} is the {0} on, left or right?",
    ),
    "above": (
        "Is the {0} above or below the {1}?",
        "Where is the {0}, above or below the {1}?",
        "Do you see the {0} above or below the {1}?",
        "Tell me, is the {0} above or below the {1}?",
        "The {0}, is it above or below the {1}?",
    ),
    "presence": (
        "Is there a {0}?",
        "Do you see a {0}?",
        "Is a {0} in the picture?",
        "Can you see a {0}?",
        "Is there a {0} in the picture?",
        "Can you see a {0} in the picture?",
    ),
    "count": (
        "How many {0}s are there?",
        "How many {0}s do you see?",
        "Count the {0}s.",
        "What is the number of {0}s?",
        "How many {0}s are in the picture?",
        "How many {0}s can you see?",
    ),
    "total": (
        "How many things are there?",
        "How many things do you see?",
        "Count the things.",
        "What is the number of things?",
        "How many things are in the picture?",
        "How many things can you see?",
    ),
    "number": (
        "What number is on the {0}?",
        "Which number does the {0} say?",
        "What does the {0} say?",
        "Read the {0}.",
        "What is written on the {0}?",
        "Which number is on the {0}?",
        "Tell me the number on the {0}.",
    ),
    "word": (
        "What word is on the {0}?",
        "Which word does the {0} say?",
        "What does the {0} say?",
        "Read the {0}.",
        "What is written on the {0}?",
        "Which word is on the {0}?",
        "Tell me the word on the {0}.",
    ),
    "size": (
        "Is the {0} small or large?",
        "Which size is the {0}, small or large?",
        "The {0}, is it small or large?",
        "Tell me the size of the {0}, small or large.",
        "What size is the {0}, small or large?",
    ),
    "moves": (
        "Which thing moves?",
        "What moves?",
        "What is moving?",
        "Tell me what moves.",
        "Which thing is moving?",
        "Tell me what is moving.",
    ),
    "way": (
        "Which way does the {0} move?",
        "Where does the {0} move?",
        "Where is the {0} moving?",
        "Tell me where the {0} moves.",
        "Which way is the {0} moving?",
        "Tell me which way the {0} moves.",
    ),
    "came": (
        "What came in?",
        "Which thing came in?",
        "Which thing is new?",
        "What is new?",
        "Tell me what came in.",
        "Tell me which thing is new.",
    ),
    "left": (
        "What left?",
        "Which thing left?",
        "Which thing is gone?",
        "What is gone?",
        "Tell me what left.",
        "Tell me which thing is gone.",
    ),
    "gone colour": (
        "What colour was the {0} that is gone?",
        "What colour was the {0}?",
        "What colour was the {0} that left?",
        "Which colour did the {0} have?",
        "Tell me the colour of the {0} that is gone.",
        "Which colour was the {0}?",
    ),
    "gone sign": (
        "What did the {0} say?",
        "What was on the {0} that is gone?",
        "What was written on the {0}?",
        "Tell me what the {0} said.",
        "What did the {0} that left say?",
        "What was on the {0}?",
    ),
    "still": (
        "Is the {0} still there?",
        "Is the {0} still in the picture?",
        "Do you still see the {0}?",
        "Can you still see the {0}?",
        "The {0}, is it still there?",
    ),
}
PICTURE_KINDS = tuple(WORDINGS)[:12]
CLIP_KINDS = tuple(WORDINGS)[12:]
MOST_COUNTED = 8

ONE_OF = "Answer with one of these and nothing else: {0}."
ONE_WORD = "Answer with one word."
"""What may follow a question."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a story.

    Args:
        kind: A key of `WORDINGS`.
        question: In words.
        answer: In lower case words, a number, or what a sign says.
        query: What a selector may look for: the things' own descriptions, without the answer.
        actors: Numbers of the actors that must be seen; none where the answer is that there is no such thing.
        options: Answers that might have been, the right one among them.
    """

    kind: str
    question: str
    answer: str
    query: str
    actors: tuple[int, ...]
    options: tuple[str, ...]


def texts() -> list[str]:
    """All that can be asked or answered, for a tokenizer to learn its words from."""
    names = (*SHAPES, SIGN, "thing")
    forms = [wording for wordings in WORDINGS.values() for wording in wordings]
    found = [form.format(f"red {name}", f"green {name}") for form in forms for name in names]
    words = [*COLOURS, *SHAPES, SIGN, *SIGN_WORDS, *_ANSWERS]
    found += [form.format(word) for word in words for form in ("{0}", "the {0}", "is there a {0}", "{0}, {0}.")]
    found += [f"{colour} things" for colour in COLOURS] + [ONE_OF, ONE_WORD, "1 seconds"]
    return [_spelt(text) for text in found] + [text[0].lower() + text[1:] for text in forms]


def _spelt(text: str) -> str:
    """An apple, and two crosses."""
    return re.sub(r"\b([aA]) (?=[aeiou])", r"\1n ", text.replace("crosss", "crosses"))


_ANSWERS = ("yes", "no", "left", "right", "top", "bottom", "above", "below", "small", "large", "up", "down")


def questions(
    story: Story, rng: np.random.Generator, *, seen: Sequence[bool | None] | None = None, held_out: bool = False
) -> list[Asked]:
    """Every question that the story has one answer to, each with one wording.

    Args:
        story: What is asked about.
        rng: Chooses wordings and what is not there.
        seen: Of each actor, whether it is visible in what is shown: True, False (it counts as not there), or None for
            one that can be told only in part (nothing is asked that depends on it). All are where this is not given.
        held_out: Ask in the wordings that are kept for reporting, not in those of training.
    """
    return list(_Asker(story, rng, seen, held_out).all())


class _Asker:
    def __init__(
        self, story: Story, rng: np.random.Generator, seen: Sequence[bool | None] | None, held_out: bool
    ) -> None:
        self._rng = rng
        self._held_out = held_out
        self._last = len(story.frames) - 1
        self._story = story
        known = [True] * len(story.actors) if seen is None else list(seen)
        self._all = {n: actor for n, actor in enumerate(story.actors) if known[n] is not False}
        self._known = {n: actor for n, actor in self._all.items() if known[n]}
        self._now = {n: actor for n, actor in self._known.items() if story.there(actor, self._last)}
        self._gone = {n: actor for n, actor in self._known.items() if n not in self._now}
        self._whole = len(self._known) == len(self._all)

    def all(self) -> Iterator[Asked]:
        for n, actor in self._now.items():
            yield from self._attributes(n, actor)
            yield from self._places(n, actor)
        yield from self._presence()
        yield from self._counts()
        if self._last:
            yield from self._changes()

    def _attributes(self, n: int, actor: Actor) -> Iterator[Asked]:
        if self._only(shape=actor.shape):
            yield self._made("colour", actor.colour, (n,), tuple(COLOURS), actor.shape)
        if actor.shape != SIGN and self._only(colour=actor.colour):
            yield self._made("shape", actor.shape, (n,), SHAPES, f"{actor.colour} thing")
        name = self._name(actor)
        if name is None:
            return
        if actor.text:
            kind = "number" if actor.text.isdigit() else "word"
            others = [str(k) for k in self._rng.integers(0, 100, 6)] if kind == "number" else list(SIGN_WORDS)
            yield self._made(kind, actor.text, (n,), tuple(others), name)
        if actor.size:
            yield self._made("size", actor.size, (n,), ("small", "large"), name)

    def _places(self, n: int, actor: Actor) -> Iterator[Asked]:
        name = self._name(actor)
        if name is None or actor.moves:
            return
        x, y = self._place(actor)
        if abs(x - 0.5) > 0.06:
            yield self._made("side", "left" if x < 0.5 else "right", (n,), ("left", "right"), name)
        if abs(y - 0.5) > 0.08:
            yield self._made("height", "top" if y < 0.5 else "bottom", (n,), ("top", "bottom"), name)
        for m, other in self._now.items():
            name_of_other = self._name(other)
            if m == n or name_of_other is None or other.moves:
                continue
            dx, dy = np.subtract(self._place(actor), self._place(other))
            if abs(dx) > 0.1:
                answer = "left" if dx < 0 else "right"
                yield self._made("beside", answer, (n, m), ("left", "right"), name, name_of_other)
            if abs(dy) > 0.15:
                answer = "above" if dy < 0 else "below"
                yield self._made("above", answer, (n, m), ("above", "below"), name, name_of_other)

    def _presence(self) -> Iterator[Asked]:
        for n, actor in self._now.items():
            said = str(self._rng.choice((actor.phrase, actor.shape)))
            yield self._made("presence", "yes", (n,), ("yes", "no"), said)
        if not self._whole:
            return
        everything = list(self._all.values())
        for _ in range(max(1, len(self._now))):
            colours = [a.colour for a in everything] if everything and self._rng.random() < 0.5 else list(COLOURS)
            shapes = [a.shape for a in everything] if everything and self._rng.random() < 0.5 else list(SHAPES)
            colour, shape = str(self._rng.choice(colours)), str(self._rng.choice(shapes))
            if not any(a.shape == shape and a.colour == colour for a in everything):
                yield self._made("presence", "no", (), ("yes", "no"), f"{colour} {shape}")
            if not any(a.shape == shape for a in everything):
                yield self._made("presence", "no", (), ("yes", "no"), shape)

    def _counts(self) -> Iterator[Asked]:
        numbers = tuple(str(k) for k in range(1, MOST_COUNTED + 1))
        unsure = [actor for n, actor in self._all.items() if n not in self._known]
        for shape in dict.fromkeys(actor.shape for actor in self._now.values()):
            if not any(actor.shape == shape for actor in unsure):
                same = tuple(n for n, actor in self._now.items() if actor.shape == shape)
                yield self._made("count", str(len(same)), same, numbers[:4], shape)
        for colour in dict.fromkeys(actor.colour for actor in self._now.values()):
            if not any(actor.colour == colour for actor in unsure):
                same = tuple(n for n, actor in self._now.items() if actor.colour == colour)
                yield self._made("count", str(len(same)), same, numbers[:4], f"{colour} thing")
        if 0 < len(self._now) <= MOST_COUNTED and self._whole:
            yield self._made("total", str(len(self._now)), tuple(self._now), numbers, query="thing")

    def _changes(self) -> Iterator[Asked]:
        frames = self._last + 1
        phrases = tuple(f"{c} {s}" for c, s in zip(self._rng.permutation(list(COLOURS)), [*SHAPES, SIGN], strict=False))
        movers = [(n, a) for n, a in self._all.items() if a.moves]
        came = [(n, a) for n, a in self._all.items() if a.frames[0] > 0 and a.frames[1] == frames]
        left = [(n, a) for n, a in self._all.items() if a.frames[1] < frames]
        for kind, found in (("moves", movers), ("came", came), ("left", left)):
            if len(found) == 1 and found[0][0] in self._known:
                n, actor = found[0]
                yield self._made(kind, actor.phrase, (n,), phrases, query="thing")
        for n, actor in movers:
            if n in self._known and actor.moves and (name := self._name(actor)):
                yield self._made("way", actor.moves, (n,), ("left", "right", "up", "down"), name)
        for n, actor in self._gone.items():
            if self._only(shape=actor.shape):
                yield self._made("gone colour", actor.colour, (n,), tuple(COLOURS), actor.shape)
                if actor.text:
                    yield self._made("gone sign", actor.text, (n,), SIGN_WORDS, SIGN)
            if name := self._name(actor):
                yield self._made("still", "no", (n,), ("yes", "no"), name)
        if self._gone:
            for n, actor in self._now.items():
                if name := self._name(actor):
                    yield self._made("still", "yes", (n,), ("yes", "no"), name)

    def _only(self, *, shape: str | None = None, colour: str | None = None) -> bool:
        same = [a for a in self._all.values() if shape in (None, a.shape) and colour in (None, a.colour)]
        return len(same) == 1

    def _name(self, actor: Actor) -> str | None:
        """Words that mean this one alone."""
        names = [actor.phrase] if self._only(shape=actor.shape, colour=actor.colour) else []
        names += [actor.shape] if self._only(shape=actor.shape) else []
        names += [f"{actor.colour} thing"] if self._only(colour=actor.colour) else []
        return names[int(self._rng.integers(len(names)))] if names else None

    def _place(self, actor: Actor) -> tuple[float, float]:
        x, y = actor.middle_xy[min(self._last, len(actor.middle_xy) - 1)] / self._story.size_wh
        return float(x), float(y)

    def _made(
        self, kind: str, answer: str, actors: tuple[int, ...], others: Sequence[str], *names: str, query: str = ""
    ) -> Asked:
        wordings = WORDINGS[kind]
        wordings = wordings[-HELD_OUT:] if self._held_out else wordings[:-HELD_OUT]
        question = _spelt(wordings[int(self._rng.integers(len(wordings)))].format(*names))
        rest = [other for other in dict.fromkeys(others) if other != answer]
        drawn = [rest[int(k)] for k in self._rng.permutation(len(rest))[:3]]
        options = [answer, *drawn]
        shuffled = tuple(options[int(k)] for k in self._rng.permutation(len(options)))
        return Asked(kind, question, answer, query or ", ".join(names), actors, shuffled)
