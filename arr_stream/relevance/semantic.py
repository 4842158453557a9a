"""Semantic space of a stream: its queries as directions of a joint image-text space, and the relevance of each place.

Image and text features of one model lie in different places of their common space (Liang et al., "Mind the gap", 2022),
so each is centred by its own mean: places by the mean of the features, queries by the mean of generic texts. A query's
centred feature is the direction that distinguishes it from generic texts. Its product with a place is compared with the
products of the generic texts on this stream: relevance measures how far it exceeds them. Relevance is not normalised by
the frame, so a query without a match stays low everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arr_stream.errors import WeightsInvalid
from arr_stream.keyframes.base import EMBEDDING_CHANNELS, TextEncoder
from arr_stream.keyframes.embeddings.pca import Pca, Projection, adapted, centred, make_projection, product, unknown
from arr_stream.types import Embedding, FloatArray

GENERIC = (
    *("an object", "a thing", "something", "stuff", "an item", "a shape", "a part", "a detail", "things"),
    *("the background", "a surface", "a texture", "a pattern", "a picture", "a photo", "an image", "a scene", "a view"),
    *("a person", "a face", "a hand", "an animal", "a dog", "a bird", "a tree", "a plant", "a flower", "grass"),
    *("the sky", "water", "the ground", "a wall", "a floor", "a window", "a building", "a house", "a street", "a road"),
    *("a car", "a bicycle", "a boat", "a chair", "a table", "a bottle", "food", "clothes", "a book", "a sign"),
)
"""Generic texts, unrelated to any stream: they give the mean of text features and the scores of chance matches."""

ATTRIBUTES = (
    *("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "grey", "dark"),
    *("bright", "round", "square", "long", "small", "large", "striped", "dotted", "checked", "plain", "shiny"),
    *("wooden", "metal", "a circle", "a triangle", "a star", "a cross", "a ring", "a heart", "an arrow", "a line"),
    *("a spot", "a corner"),
)
"""Common queries, with the generic texts, whose directions the 16 channels preserve first."""

Z_HALF = 2.5
"""Standard deviations above the generic texts' scores at which relevance is one half."""

Z_WIDTH = 0.4
"""Deviations over which relevance rises from one half to 0.73."""

KEYFRAMES_TO_LEARN = 3
"""Number of keyframes from which the mean is learned without a PCA."""

_COMPONENTS = 64
_PLACES = 1024
_LEAST_OFFSET = 0.01
"""Distance from the generic mean below which a text's direction fades to zero."""

_LEAST_SPREAD = 0.05
"""Least assumed distance of places from the mean, halved; smaller ones are rounding errors, which must not score
high."""

_ROUNDS, _FIRST_ROUNDS = 2, 4


class SemanticSpace:
    """Queries and places of one stream in a joint image-text space.

    Args:
        encoder: Encodes texts; the constructor encodes the generic ones at once.
        pca: Mean and principal directions of the model's features; None to learn the mean on the first keyframes.

    Raises:
        WeightsInvalid: The PCA has other dimensions than the encoder, or the encoder gives no usable numbers.
    """

    def __init__(self, encoder: TextEncoder, pca: Pca | None = None) -> None:
        self._encoder = encoder
        generic = encoder.encode(GENERIC)
        if pca is not None and len(pca.mean) != generic.shape[1]:
            raise WeightsInvalid(
                f"principal directions of {len(pca.mean)} numbers beside {encoder.space!r} with {generic.shape[1]}",
                remedy="delete the file of principal directions beside the weights",
            )
        self._text_mean = generic.mean(axis=0)
        self._generic = self._directions(generic)
        self._sample = np.concatenate([self._generic, self._directions(encoder.encode(ATTRIBUTES))])
        self._texts: dict[str, FloatArray] = {}
        self._queries = np.zeros((0, generic.shape[1]), np.float32)
        self._pca = pca
        self._means_to_learn = KEYFRAMES_TO_LEARN if pca is None else 0
        self._null = Null(generic.shape[1])
        self._projection: Projection | None = None
        self._coordinates = np.zeros((0, EMBEDDING_CHANNELS), np.float32)
        self._last: tuple[Embedding, FloatArray, FloatArray] | None = None
        self.version = 0
        """Version number; it grows when earlier channels are no longer comparable with new ones."""
        self._renew()

    @property
    def projection(self) -> Projection | None:
        """Projection in use; None before there is a PCA."""
        return self._projection

    def ask(self, texts: Sequence[str]) -> None:
        """Replace the queries; texts that were asked before are not encoded again.

        Raises:
            WeightsInvalid: The encoder gives values that are not numbers.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        known = self._texts | (dict(zip(new, self._encoder.encode(new), strict=True)) if new else {})
        self._texts = {text: known[text] for text in texts}
        features = np.array([known[text] for text in texts], np.float32).reshape(-1, self._queries.shape[1])
        self._queries = self._directions(features)
        self._renew()

    def learn(self, embedding: Embedding) -> None:
        """Update the statistics by a new keyframe: the variance of its places, the scores of chance matches and, early
        on, the mean.

        Raises:
            ValueError: Features of another space than the texts.
        """
        self._check(embedding)
        first = self._pca is None
        if self._means_to_learn:
            self._learn_mean(embedding)
        assert self._pca is not None
        places = _sampled(self._centred(embedding), _PLACES)
        self._pca = adapted(self._pca, places, _FIRST_ROUNDS if first else _ROUNDS)
        self._null.add(product(self._generic, places))
        self._renew()

    def _learn_mean(self, embedding: Embedding) -> None:
        mean = embedding.values.reshape(len(self._text_mean), -1).mean(axis=1, dtype=np.float64).astype(np.float32)
        if self._pca is None:
            self._pca = unknown(mean, _COMPONENTS)
        else:
            learned = KEYFRAMES_TO_LEARN - self._means_to_learn
            self._pca = replace(self._pca, mean=self._pca.mean + (mean - self._pca.mean) / np.float32(learned + 1))
        self._means_to_learn -= 1
        # Scores relative to another mean do not apply to this one.
        self._null = Null(len(mean))

    def project(self, embedding: Embedding) -> FloatArray:
        """Project `[D, h, w]` features to the texture's channels, `[16, h, w]` float32 in [-1, 1].

        Raises:
            ValueError: Features of another space than the texts, or no PCA yet.
        """
        self._check(embedding)
        return self._rows().project(self._centred(embedding))

    def relevance(self, channels: FloatArray) -> FloatArray:
        """Return `[Q, ...]` float32 in [0, 1] from the 16 channels `[16, ...]`, which may be propagated ones.

        Raises:
            ValueError: No keyframe yet.
        """
        return self._null.relevance(np.einsum("qc,c...->q...", self._coordinates, channels))

    def _rows(self) -> Projection:
        if self._projection is None:
            raise ValueError("no keyframe was learned yet")
        return self._projection

    def _renew(self) -> None:
        """Compute the projection for new queries or a new PCA."""
        if self._pca is None:
            return
        like = self._projection.rows if self._projection is not None else None
        self._projection = make_projection(self._queries, self._pca, self._sample, like)
        self._coordinates = self._projection.coordinates(self._queries)
        self.version += 1

    def _directions(self, features: FloatArray) -> FloatArray:
        """Return text features `[N, D]` minus the mean of the generic ones, at unit length (zero at that mean)."""
        offsets = features - self._text_mean
        lengths = np.linalg.norm(offsets, axis=1, keepdims=True)
        return np.asarray(offsets / np.maximum(lengths, _LEAST_OFFSET), np.float32)

    def _centred(self, embedding: Embedding) -> FloatArray:
        """Return the centred features of an embedding; the last result is cached, since its queries may change."""
        assert self._pca is not None
        last = self._last
        if last is None or last[0] is not embedding or last[1] is not self._pca.mean:
            self._last = last = (embedding, self._pca.mean, centred(embedding.values, self._pca.mean))
        return last[2]

    def _check(self, embedding: Embedding) -> None:
        expected = self._encoder.space, len(self._text_mean)
        if (embedding.space, embedding.values.shape[0]) != expected:
            raise ValueError(
                f"features of {embedding.space!r} with {embedding.values.shape[0]} numbers, texts of {expected[0]!r} "
                f"with {expected[1]}"
            )


class Null:
    """Running mean and deviation of the generic texts' scores on the places of a stream.

    Args:
        dimensions: Dimensions of the space, which set the scores of unrelated directions.
    """

    def __init__(self, dimensions: int) -> None:
        self.count = 0
        self._mean = self._squares = 0.0
        self._least = _LEAST_SPREAD / float(np.sqrt(dimensions))

    def add(self, products: FloatArray) -> None:
        """Add products of any shape."""
        count = self.count + products.size
        if count == 0:
            return
        mean = float(products.mean(dtype=np.float64))
        step = mean - self._mean
        squares = float(np.square(products - mean, dtype=np.float64).sum())
        self._squares += squares + step**2 * self.count * products.size / count
        self._mean += step * products.size / count
        self.count = count

    def relevance(self, products: FloatArray) -> FloatArray:
        """Return relevance in (0, 1) from how many standard deviations products exceed the mean.

        Raises:
            ValueError: No scores were added yet.
        """
        if self.count == 0:
            raise ValueError("no keyframe was learned yet")
        deviation = max(self._least, float(np.sqrt(self._squares / self.count)))
        deviations = np.asarray((products - np.float32(self._mean)) / np.float32(deviation), np.float32)
        return np.asarray(1.0 / (1.0 + np.exp((Z_HALF - deviations) / Z_WIDTH)), np.float32)


def _sampled(values: FloatArray, most: int) -> FloatArray:
    """Return `[D, n]`: at most `most` of the places of `[D, h, w]`, spread evenly in reading order."""
    flat = values.reshape(values.shape[0], -1)
    if flat.shape[1] <= most:
        return flat
    chosen = (np.arange(most) + 0.5) * (flat.shape[1] / most)
    return flat[:, chosen.astype(int)]
