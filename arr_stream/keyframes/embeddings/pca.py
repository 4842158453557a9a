"""Principal directions of a feature space, and the projection of its features to 16 channels.

A place's feature x, of unit length, is centred and halved, which brings its length to at most 1, and written as
z = R (x - mean) / 2 with 16 orthonormal rows R. The first rows span the active queries, so a query's product with x -
mean can be computed from z exactly. The rest minimise the error of the best linear estimate of any *other* direction q:
with S the covariance of the features, that estimate has the coordinates (R S Rᵀ)⁻¹ R S q, and the best rows are the
leading eigenvectors of the rest of S. Later queries are directions of *text*, so half of the error is weighted by the
covariance of typical texts (a reduced-rank regression; Izenman, "Reduced-rank regression for the multivariate linear
model", 1975).

All products run in torch on one thread: NumPy's own threads wait for each other, which made a factorisation of 0.5 ms
take 35 ms on two shared cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from arr_stream.errors import WeightsInvalid
from arr_stream.keyframes.base import EMBEDDING_CHANNELS as CHANNELS
from arr_stream.threads import one_torch_thread
from arr_stream.types import FloatArray

MAX_QUERY_ROWS = 8
"""Most rows for queries; of more queries, the span of their 8 principal directions is kept exactly."""

TEXT_WEIGHT = 0.5
"""Share of the error that is weighted by typical texts; the rest is weighted evenly."""

_RANK_TOLERANCE = 1e-5
"""Singular values below this share of the largest are rounding errors; such queries add no direction."""

_LEAST_VARIANCE = 1e-6
"""Share of the mean variance added to every direction, so that the covariance can be inverted."""


@dataclass(frozen=True, slots=True, eq=False)
class Pca:
    """Mean and principal directions of the features of a space.

    Args:
        mean: `[D]` float32.
        basis: `[K, D]` float32, orthonormal rows, by falling variance.
        variance: `[K]` float32, variance along each row.
        total_variance: Sum of the variances along all D directions.
    """

    mean: FloatArray
    basis: FloatArray
    variance: FloatArray
    total_variance: float


def load_pca(path: Path) -> Pca:
    """Read the mean and the principal directions that lie beside a model's weights.

    Raises:
        WeightsInvalid: The file is damaged, something else, or has fewer than 16 directions.
    """
    try:
        with safe_open(path, framework="np") as file:
            mean, basis, variance = (file.get_tensor(name) for name in ("mean", "basis", "variance"))
            total_variance = float(file.metadata()["total_variance"])
        if basis.shape != (len(variance), len(mean)) or not CHANNELS <= len(variance) <= len(mean):
            raise ValueError(f"a basis of shape {list(basis.shape)} for {len(variance)} variances")
        if not all(np.isfinite(values).all() for values in (mean, basis, variance, total_variance)):
            raise ValueError("values that are not finite numbers")
        mean, basis, variance = (values.astype(np.float32) for values in (mean, basis, variance))
        return Pca(mean, basis, variance, total_variance)
    except Exception as exc:  # a damaged file can make the reader raise anything
        raise WeightsInvalid(
            f"{path}: not usable principal directions: {exc}",
            remedy="restore it, or delete it: they are then learned on the stream",
        ) from exc


def unknown(mean: FloatArray, components: int) -> Pca:
    """Return a PCA with the mean `[D]` and arbitrary directions, to be `adapted`."""
    size = len(mean), min(components, len(mean))
    with one_torch_thread():
        start = torch.from_numpy(np.random.default_rng(0).standard_normal(size))
        rows = torch.linalg.qr(start)[0].T.float().contiguous()
    return Pca(mean, rows.numpy(), np.zeros(size[1], np.float32), 0.0)


def adapted(pca: Pca, directions: FloatArray, rounds: int = 2) -> Pca:
    """Adapt the principal directions of a PCA to these places; the mean is unchanged.

    Subspace iteration (Halko, Martinsson and Tropp, "Finding structure with randomness", 2011) from a start near the
    solution; at D = 768 and 1024 places it costs a tenth of the full D x D problem.

    Args:
        pca: Start of the iteration.
        directions: `[D, N]` float32, centred features of places, by `centred`.
        rounds: Number of iterations; more of them improve the minor directions.
    """
    count = directions.shape[1]
    with one_torch_thread():
        places = torch.from_numpy(directions)
        rows = torch.from_numpy(pca.basis)
        for _ in range(rounds):
            # The old directions are added with a small weight, so that their number never shrinks.
            pulled = places @ (places.T @ rows.T) + 1e-6 * count * rows.T
            rows = torch.linalg.qr(pulled)[0].T
        seen = rows @ places
        variance, turn = torch.linalg.eigh((seen @ seen.T).double() / count)
        rows = turn.flip(1).T.float() @ rows
    return Pca(
        mean=pca.mean,
        basis=rows.numpy(),
        variance=variance.flip(0).clamp(min=0).float().numpy(),
        total_variance=float(np.einsum("dn,dn->", directions, directions)) / count,
    )


def centred(values: FloatArray, mean: FloatArray) -> FloatArray:
    """Return features `[D, ...]` minus their mean `[D]`, halved; features of unit length stay at most of unit length.

    They are not scaled to unit length: the noise of empty places would dominate.
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
        readout: `[16, D]` float32: the coordinates of a direction are `readout @ direction`.
    """

    rows: FloatArray
    mean: FloatArray
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


def make_projection(queries: FloatArray, pca: Pca, texts: FloatArray, like: FloatArray | None = None) -> Projection:
    """Return the projection that preserves the queries exactly, and other directions as well as possible.

    Args:
        queries: `[Q, D]` directions of any length, in any order; zero and parallel ones cost no row. Of more than 8,
            the span of the 8 principal directions is preserved.
        pca: Mean and covariance of the features, with at least 16 directions.
        texts: `[M, D]` directions of typical queries.
        like: `[16, D]` previous rows: the rows without a query are rotated among themselves towards the last of these
            (Schönemann's Procrustes problem, 1966), so that the channels' meaning changes as little as possible.
    """
    with one_torch_thread():
        asked = _span(_doubles(queries))
        basis, variance = _joint_basis(asked, pca)
        # From here on, vectors are in the joint basis, in which the covariance is diagonal.
        kept, deviation = asked @ basis.T, variance.sqrt()
        typical = _doubles(texts) @ basis.T
        weights = TEXT_WEIGHT * (typical.T @ typical / typical.square().sum().clamp(min=1e-12))
        weights += (1 - TEXT_WEIGHT) / len(variance) * torch.eye(len(variance), dtype=torch.float64)
        error = deviation[:, None] * weights * deviation
        rest = _unexplained(kept * deviation, error, CHANNELS - len(kept)) / deviation
        rows = _orthonormal(torch.cat([kept, rest]))
        if like is not None:
            rest = rows[len(kept) :]
            left, _, right = torch.linalg.svd(_doubles(like[len(kept) :]) @ basis.T @ rest.T)
            rows = torch.cat([kept, left @ right @ rest])
        readout = torch.linalg.solve((rows * variance) @ rows.T, rows * variance)
        return Projection((rows @ basis).float().numpy(), pca.mean, (readout @ basis).float().numpy())


def _doubles(values: FloatArray) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))


def _span(directions: Tensor) -> Tensor:
    """Return orthonormal rows `[R, D]` that span directions `[N, D]` of equal weight; the 8 principal ones of more."""
    lengths = directions.norm(dim=1, keepdim=True)
    unit = (directions / lengths)[lengths[:, 0] > 1e-6]
    if not len(unit):
        return torch.zeros(0, directions.shape[1], dtype=torch.float64)
    _, strength, rows = torch.linalg.svd(unit, full_matrices=False)
    rank = int((strength > _RANK_TOLERANCE * strength[0]).sum())
    kept: Tensor = rows[: min(MAX_QUERY_ROWS, rank)]
    return kept


def _joint_basis(asked: Tensor, pca: Pca) -> tuple[Tensor, Tensor]:
    """Return orthonormal rows `[K', D]` that span principal directions and queries, and the variance along each.

    The variance outside the PCA is assumed to be even over the directions outside the PCA.
    """
    basis = _doubles(pca.basis)
    components, dimensions = basis.shape
    outside = asked - (asked @ basis.T) @ basis
    outside -= (outside @ basis.T) @ basis
    _, strength, rows = torch.linalg.svd(outside, full_matrices=False)
    rows = rows[strength > _RANK_TOLERANCE]
    left = max(0.0, pca.total_variance - float(pca.variance.sum())) / max(1, dimensions - components)
    least = _LEAST_VARIANCE * pca.total_variance / dimensions + 1e-12
    variance = torch.cat([_doubles(pca.variance), torch.full((len(rows),), left, dtype=torch.float64)])
    return torch.cat([basis, rows]), variance.clamp(min=least)


def _unexplained(known: Tensor, matrix: Tensor, count: int) -> Tensor:
    """Return `[count, K']`: leading eigenvectors of `matrix` in the orthogonal complement of the rows `known`."""
    identity = torch.eye(len(matrix), dtype=torch.float64)
    complement = torch.linalg.qr(torch.cat([_orthonormal(known), identity]).T)[0].T[len(known) :]
    _, columns = torch.linalg.eigh(complement @ matrix @ complement.T)
    leading: Tensor = columns.flip(1).T[:count] @ complement
    return leading


def _orthonormal(rows: Tensor) -> Tensor:
    """Return the rows made orthonormal one after the other, so that the first few keep their span."""
    columns, triangle = torch.linalg.qr(rows.T)
    signed: Tensor = columns * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return signed.T
