"""Phrases about the things of a batch, and which of them are true of what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.scenes.shapes import Thing
from tiny_clip.words import BACKGROUND, GENERIC, NOUNS, OTHER_WORDS, SYNONYMS, TEMPLATES


@dataclass
class Phrases:
    """Texts and, for each, which things it is true of and what it says of the background.

    Args:
        true_of: `[P, things + 1]`: 1 true, 0 false, -1 not asked; the last column is the background.
    """

    texts: list[str]
    true_of: torch.Tensor


def said(np_text: str, rng: np.random.Generator) -> str:
    template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    text = template.format(np_text)
    return text.replace("a o", "an o").replace("a a", "an a") if rng.random() < 0.5 else text


def draw_phrases(things: Sequence[Thing], rng: np.random.Generator, count: int) -> Phrases:
    """Half of all phrases are about the shape alone; the rest mix attributes, or speak of everything or nothing."""
    shape = np.array([t.shape for t in things])
    colour = np.array([t.colour for t in things])
    texture = np.array([t.texture for t in things])
    size = np.array([t.size_word for t in things])
    texts: list[str] = []
    rows: list[np.ndarray[Any, Any]] = []

    def add(text: str, holds: np.ndarray[Any, Any] | float, background: float) -> None:
        row = np.empty(len(things) + 1, np.float32)
        row[:-1], row[-1] = holds, background
        texts.append(text)
        rows.append(row)

    for word in NOUNS:
        add(said(word if rng.random() < 0.9 else SYNONYMS.get(word, word), rng), shape == word, 0)
    while len(texts) < count:
        thing = things[int(rng.integers(len(things)))]
        kind = rng.random()
        if kind < 0.5:
            # An attribute of another thing now and then: hard negatives such as a red circle beside a red square.
            other = things[int(rng.integers(len(things)))] if rng.random() < 0.3 else thing
            holds = (shape == thing.shape) & (colour == other.colour)
            words = [other.colour, thing.shape if rng.random() < 0.92 else SYNONYMS.get(thing.shape, thing.shape)]
            if rng.random() < 0.2:
                words.insert(0, thing.texture)
                holds = holds & (texture == thing.texture)
            if rng.random() < 0.15:
                words.insert(0, thing.size_word)
                holds = holds & (size == thing.size_word)
            add(said(" ".join(words), rng), holds, 0)
        elif kind < 0.65:
            noun = ("", "thing", "object", "shape", "one")[int(rng.integers(5))]
            add(said(f"{thing.colour} {noun}".strip(), rng), colour == thing.colour, 0 if noun else -1)
        elif kind < 0.75:
            noun = ("", "thing", "object", thing.shape)[int(rng.integers(4))]
            holds = (texture == thing.texture) & ((shape == thing.shape) | (noun != thing.shape))
            add(said(f"{thing.texture} {noun}".strip(), rng), holds, 0 if noun else -1)
        elif kind < 0.81:
            noun = ("thing", "object", thing.shape)[int(rng.integers(3))]
            holds = (size == thing.size_word) & ((shape == thing.shape) | (noun != thing.shape))
            add(said(f"{thing.size_word} {noun}", rng), holds, 0)
        elif kind < 0.87:
            add(GENERIC[int(rng.integers(len(GENERIC)))], 1, 0)
        elif kind < 0.93:
            add(BACKGROUND[int(rng.integers(len(BACKGROUND)))], 0, 1)
        else:
            add(said(OTHER_WORDS[int(rng.integers(len(OTHER_WORDS)))], rng), 0, 0)
    return Phrases(texts, torch.from_numpy(np.stack(rows)))
