"""A joint space without weights: every word stands for a colour, and a place lies where its colour's word does."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import KeyframeInput
from arr_stream.types import Embedding

DIMENSIONS = 256
WORDS = {"dragon": (220, 30, 30), "lagoon": (30, 60, 220), "meadow": (40, 170, 60), "ashes": (90, 90, 90)}


def direction(word: str) -> npt.NDArray[np.float32]:
    """`[D]` of unit length, the same for a word on every machine."""
    vector = np.random.default_rng(zlib.crc32(word.encode())).normal(size=DIMENSIONS)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


class WordEncoder:
    """Texts by their words, from the end: what a phrase is about stands last."""

    space = "words"

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.encoded += texts
        return np.stack([direction((text.split() or [""])[-1]) for text in texts])


class ColourEmbedder:
    """Each place by the word whose colour is nearest, with a little noise."""

    name = "words"

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, picture: KeyframeInput) -> Embedding:
        self.calls += 1
        size_wh = (picture.grid.columns * 2, picture.grid.rows * 2)
        small = cv2.resize(picture.quarter_rgb, size_wh, interpolation=cv2.INTER_AREA).astype(np.float32)
        colours = np.array(list(WORDS.values()), np.float32)
        nearest = np.square(small[:, :, None] - colours).sum(axis=3).argmin(axis=2)
        vectors = np.stack([direction(word) for word in WORDS])[nearest]
        vectors = vectors + 0.02 * np.random.default_rng(0).normal(size=vectors.shape)
        vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
        return Embedding(np.ascontiguousarray(vectors.transpose(2, 0, 1), np.float32), "words", joint=True)
