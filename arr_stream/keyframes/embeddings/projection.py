"""Projection of high-dimensional features to 16 channels that preserve the queries exactly.

A place's feature x, of unit length, is centred and halved, which brings its length to at most 1, and written as
z = R (x - mean) / 2 with 16 orthonormal rows R. The first rows span the active queries, so a query's product with x -
mean can be computed from z exactly. The rest are chosen so that the product of any *other* direction q can be estimated
from z as well as possible: with S the covariance of the features, the best linear estimate from z has the coordinates
(R S Rᵀ)⁻¹ R S q, and the rows with the least error over all directions, given the queries' rows, are the leading
eigenvectors of the rest of S. Without a query, this is PCA.

Later queries are not arbitrary directions, though: they are directions of *text*. If samples of those are given, the
error is weighted by their covariance too (a reduced-rank regression; Izenman, "Reduced-rank regression for the
multivariate linear model", 1975).

The products and factorisations run in torch on one thread. NumPy's own threads wait for each other: with two cores
shared by other work they made a 0.5 ms factorisation take 35 ms on average, and this one 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arr_stream.keyframes.embeddings.pca import CHANNELS, Pca
from arr_stream.threads import one_torch_thread
from arr_stream.types import FloatArray

MAX_QUERY_ROWS = 8
"""Most rows for queries; of more queries, the span of their 8 principal directions is kept exactly."""

TEXT_WEIGHT = 0.5
"""Share of the error that is weighted by the given texts; the rest is weighted evenly."""

_RANK_TOLERANCE = 1e-5
"""Singular values below this share of the largest are rounding errors; such queries add no direction."""

_LEAST_VARIANCE = 1e-6
"""Share of the mean variance added to every direction, so that the covariance can be inverted."""


def centred(values: FloatArray, mean: FloatArray) -> FloatArray:
    """Return features `[D, ...]` minus their mean `[D]`, halved; features of unit length stay at most of unit length.

    They are not scaled to unit length, since the distance from the mean measures the content of a place. With equal
    lengths, the noise of empty places would dominate.
    """
    offsets = values.reshape(len(mean), -1) - mean[:, None]
    offsets *= np.float32(0.5)
    return offsets.reshape(values.shape)


def product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return `left [M, K] @ right [K, ...]` as `[M, ...]` float32, on one thread."""
    with one_torch_thread():
        flat = torch.from_numpy(left) @ torch.from_numpy(right.reshape(right.shape[0], -1))
    values: FloatArray = flat.numpy().reshape(left.shape[0], *right.shape[1:])
    return values


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Projection of centred features to sixteen rows, and the readout of a direction from them.

    Args:
        rows: `[16, D]` float32, orthonormal.
        mean: `[D]` float32, mean of the features.
        query_rows: Number of first rows that span the queries.
        readout: `[16, D]` float32: the coordinates of a direction are `readout @ direction`.
    """

    space: str
    rows: FloatArray
    mean: FloatArray
    query_rows: int
    readout: FloatArray

    def project(self, directions: FloatArray) -> FloatArray:
        """Return `[16, ...]` float32 in [-1, 1] of `centred` features, `[D, ...]`."""
        channels = product(self.rows, directions)
        return np.clip(channels, -1.0, 1.0, out=channels)

    def coordinates(self, directions: FloatArray) -> FloatArray:
        """Return `[Q, 16]` float32 of directions `[Q, D]`; their product with channels equals that with features.

        Exact for directions in the span of the queries, the best linear estimate for others.
        """
        return product(np.ascontiguousarray(directions, np.float32), np.ascontiguousarray(self.readout.T))


def make_projection(
    queries: FloatArray, pca: Pca, texts: FloatArray | None = None, like: FloatArray | None = None
) -> Projection:
    """Return the projection that preserves the queries exactly, and other directions as well as possible.

    Args:
        queries: `[Q, D]` directions of any length, in any order; zero and parallel ones cost no row. Of more than 8,
            the span of the 8 principal directions is preserved.
        pca: Mean and covariance of the features, with at least 16 directions.
        texts: `[M, D]` directions of typical queries; None if all directions are equally likely.
        like: `[16, D]` previous rows: the rows without a query are rotated among themselves towards the last of these,
            so that the channels' meaning changes as little as possible.

    Raises:
        ValueError: Shapes that do not fit, or fewer than 16 directions.
    """
    if queries.ndim != 2 or queries.shape[1] != pca.dimensions:
        raise ValueError(f"queries are [Q, {pca.dimensions}], got {list(queries.shape)}")
    if pca.components < CHANNELS:
        raise ValueError(f"a PCA of {pca.components} directions, needed are at least {CHANNELS}")
    with one_torch_thread():
        asked = _span(_doubles(queries), MAX_QUERY_ROWS)
        basis, variance = _joint_basis(asked, pca)
        # From here on, vectors are in the joint basis, in which the covariance is diagonal.
        kept = asked @ basis.T
        matrix = torch.diag(variance)
        if texts is not None:
            matrix = _weighted(variance.sqrt(), _doubles(texts) @ basis.T)
        rest = _unexplained(kept * variance.sqrt(), matrix, CHANNELS - len(kept)) / variance.sqrt()
        rows = _orthonormal(torch.cat([kept, rest]))
        if like is not None:
            rest = rows[len(kept) :]
            rows = torch.cat([kept, _turn(rest, _doubles(like[len(kept) :]) @ basis.T) @ rest])
        readout = torch.linalg.solve((rows * variance) @ rows.T, rows * variance)
        return Projection(
            space=pca.space,
            rows=(rows @ basis).float().numpy(),
            mean=pca.mean,
            query_rows=len(kept),
            readout=(readout @ basis).float().numpy(),
        )


def _doubles(values: FloatArray) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))


def _span(directions: Tensor, most: int) -> Tensor:
    """Return orthonormal rows `[R, D]`, R at most `most`, that span directions `[N, D]`, each with equal weight.

    If `most` rows are too few, they are the principal ones.
    """
    lengths = directions.norm(dim=1, keepdim=True)
    unit = (directions / lengths)[lengths[:, 0] > 1e-6]
    if not len(unit):
        return torch.zeros(0, directions.shape[1], dtype=torch.float64)
    _, strength, rows = torch.linalg.svd(unit, full_matrices=False)
    rank = int((strength > _RANK_TOLERANCE * strength[0]).sum())
    kept: Tensor = rows[: min(most, rank)]
    return kept


def _joint_basis(asked: Tensor, pca: Pca) -> tuple[Tensor, Tensor]:
    """Return orthonormal rows `[K', D]` that span principal directions and queries, and the variance along each.

    The variance outside the PCA is assumed to be even over the directions outside the PCA.
    """
    basis = _doubles(pca.basis)
    outside = asked - (asked @ basis.T) @ basis
    outside -= (outside @ basis.T) @ basis
    _, strength, rows = torch.linalg.svd(outside, full_matrices=False)
    rows = rows[strength > _RANK_TOLERANCE]
    left = max(0.0, pca.total_variance - float(pca.variance.sum())) / max(1, pca.dimensions - pca.components)
    least = _LEAST_VARIANCE * pca.total_variance / pca.dimensions + 1e-12
    variance = torch.cat([_doubles(pca.variance), torch.full((len(rows),), left, dtype=torch.float64)])
    return torch.cat([basis, rows]), variance.clamp(min=least)


def _weighted(deviation: Tensor, texts: Tensor) -> Tensor:
    """Return `[K', K']`: weight of whitened directions for directions like the texts `[M, K']`, and for any."""
    size = len(deviation)
    covariance = texts.T @ texts / texts.square().sum().clamp(min=1e-12)
    mixed = TEXT_WEIGHT * covariance + (1 - TEXT_WEIGHT) / size * torch.eye(size, dtype=torch.float64)
    return deviation[:, None] * mixed * deviation


def _unexplained(known: Tensor, matrix: Tensor, count: int) -> Tensor:
    """Return `[count, K']`: leading eigenvectors of `matrix` in the orthogonal complement of the rows `known`."""
    identity = torch.eye(len(matrix), dtype=torch.float64)
    complement = torch.linalg.qr(torch.cat([_orthonormal(known), identity]).T)[0].T[len(known) :]
    _, columns = torch.linalg.eigh(complement @ matrix @ complement.T)
    leading: Tensor = columns.flip(1).T[:count] @ complement
    return leading


def _turn(rows: Tensor, like: Tensor) -> Tensor:
    """Return the orthogonal matrix that brings `rows` nearest to `like` (Schönemann's Procrustes problem, 1966)."""
    left, _, right = torch.linalg.svd(like @ rows.T)
    turn: Tensor = left @ right
    return turn


def _orthonormal(rows: Tensor) -> Tensor:
    """Return the rows made orthonormal one after the other, so that the first few keep their span."""
    columns, triangle = torch.linalg.qr(rows.T)
    signed: Tensor = columns * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return signed.T
