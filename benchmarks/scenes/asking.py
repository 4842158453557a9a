"""Questions about stories, with the answers that their truth gives.

The model in the package was trained with other wordings. What is asked about is the only one of its description among
all things that are or were there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.scenes.shapes import COLOURS, SHAPES
from benchmarks.scenes.stories import SIGN, SIGN_WORDS, Actor, Story

WORDINGS: dict[str, tuple[str, str]] = {
    "colour": ("What is the colour of the {0}?", "Which colour is the {0}?"),
    "shape": ("What is the shape of the {0}?", "Which shape is the {0}?"),
    "side": ("Tell me the side of the {0}, left or right.", "Which side is the {0} on, left or right?"),
    "height": (
        "Tell me where the {0} is, at the top or at the bottom.",
        "Do you see the {0} at the top or at the bottom?",
    ),
    "beside": ("Where is the {0}, left or right of the {1}?", "Which side of the {1} is the {0} on, left or right?"),
    "above": ("Tell me, is the {0} above or below the {1}?", "The {0}, is it above or below the {1}?"),
    "presence": ("Is there a {0} in the picture?", "Can you see a {0} in the picture?"),
    "count": ("How many {0}s are in the picture?", "How many {0}s can you see?"),
    "total": ("How many things are in the picture?", "How many things can you see?"),
    "number": ("Which number is on the {0}?", "Tell me the number on the {0}."),
    "word": ("Which word is on the {0}?", "Tell me the word on the {0}."),
    "size": ("Tell me the size of the {0}, small or large.", "What size is the {0}, small or large?"),
    "moves": ("Which thing is moving?", "Tell me what is moving."),
    "way": ("Which way is the {0} moving?", "Tell me which way the {0} moves."),
    "came": ("Tell me what came in.", "Tell me which thing is new."),
    "left": ("Tell me what left.", "Tell me which thing is gone."),
    "gone colour": ("Tell me the colour of the {0} that is gone.", "Which colour was the {0}?"),
    "gone sign": ("What did the {0} that left say?", "What was on the {0}?"),
    "still": ("Can you still see the {0}?", "The {0}, is it still there?"),
}
PICTURE_KINDS = tuple(WORDINGS)[:12]
CLIP_KINDS = tuple(WORDINGS)[12:]
MOST_COUNTED = 8


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


def _spelt(text: str) -> str:
    """An apple, and two crosses."""
    return re.sub(r"\b([aA]) (?=[aeiou])", r"\1n ", text.replace("crosss", "crosses"))


def questions(story: Story, rng: np.random.Generator) -> list[Asked]:
    """Return every question that the story has one answer to, each with one wording, which `rng` chooses."""
    return list(_Asker(story, rng).all())


class _Asker:
    def __init__(self, story: Story, rng: np.random.Generator) -> None:
        self._rng = rng
        self._last = len(story.frames) - 1
        self._story = story
        self._all = dict(enumerate(story.actors))
        self._now = {n: actor for n, actor in self._all.items() if story.there(actor, self._last)}
        self._gone = {n: actor for n, actor in self._all.items() if n not in self._now}

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
        for shape in dict.fromkeys(actor.shape for actor in self._now.values()):
            same = tuple(n for n, actor in self._now.items() if actor.shape == shape)
            yield self._made("count", str(len(same)), same, numbers[:4], shape)
        for colour in dict.fromkeys(actor.colour for actor in self._now.values()):
            same = tuple(n for n, actor in self._now.items() if actor.colour == colour)
            yield self._made("count", str(len(same)), same, numbers[:4], f"{colour} thing")
        if 0 < len(self._now) <= MOST_COUNTED:
            yield self._made("total", str(len(self._now)), tuple(self._now), numbers, query="thing")

    def _changes(self) -> Iterator[Asked]:
        frames = self._last + 1
        phrases = tuple(f"{c} {s}" for c, s in zip(self._rng.permutation(list(COLOURS)), [*SHAPES, SIGN], strict=False))
        movers = [(n, a) for n, a in self._all.items() if a.moves]
        came = [(n, a) for n, a in self._all.items() if a.frames[0] > 0 and a.frames[1] == frames]
        left = [(n, a) for n, a in self._all.items() if a.frames[1] < frames]
        for kind, found in (("moves", movers), ("came", came), ("left", left)):
            if len(found) == 1:
                n, actor = found[0]
                yield self._made(kind, actor.phrase, (n,), phrases, query="thing")
        for n, actor in movers:
            if actor.moves and (name := self._name(actor)):
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
        question = _spelt(wordings[int(self._rng.integers(len(wordings)))].format(*names))
        rest = [other for other in dict.fromkeys(others) if other != answer]
        drawn = [rest[int(k)] for k in self._rng.permutation(len(rest))[:3]]
        options = [answer, *drawn]
        shuffled = tuple(options[int(k)] for k in self._rng.permutation(len(options)))
        return Asked(kind, question, answer, query or ", ".join(names), actors, shuffled)
