"""Principal directions of a feature space, and the projection of its features to 16 channels.

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
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor

from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.keyframes.base import EMBEDDING_CHANNELS as CHANNELS
from arr_stream.threads import one_torch_thread
from arr_stream.types import FloatArray

_FORMAT = "arr-stream pca 1"
_TENSORS = ("mean", "basis", "variance")
_BLOCK_VECTORS = 4096
_LARGEST_FILE_BYTES = 256 << 20

MAX_QUERY_ROWS = 8
"""Most rows for queries; of more queries, the span of their 8 principal directions is kept exactly."""

TEXT_WEIGHT = 0.5
"""Share of the error that is weighted by the given texts; the rest is weighted evenly."""

_RANK_TOLERANCE = 1e-5
"""Singular values below this share of the largest are rounding errors; such queries add no direction."""

_LEAST_VARIANCE = 1e-6
"""Share of the mean variance added to every direction, so that the covariance can be inverted."""


@dataclass(frozen=True, slots=True, eq=False)
class Pca:
    """Mean and principal directions of the features of a space.

    Args:
        space: As `Embedding.space`.
        mean: `[D]` float32.
        basis: `[K, D]` float32, orthonormal rows, by falling variance.
        variance: `[K]` float32, variance along each row.
        total_variance: Sum of the variances along all D directions.
        count: Number of vectors that it was computed from.

    Raises:
        ValueError: Shapes that do not fit, values that are not finite, rows that are not orthonormal, or variances
            that are negative, do not fall, or sum to more than the total.
    """

    space: str
    mean: FloatArray
    basis: FloatArray
    variance: FloatArray
    total_variance: float
    count: int

    def __post_init__(self) -> None:
        rows, dimensions = self.basis.shape
        if self.mean.shape != (dimensions,) or self.variance.shape != (rows,) or rows > dimensions:
            raise ValueError(
                f"mean {list(self.mean.shape)} and variance {list(self.variance.shape)} do not fit a basis of "
                f"{rows} rows of {dimensions} numbers"
            )
        values = (self.mean, self.basis, self.variance, np.float32(self.total_variance))
        if not all(np.isfinite(part).all() for part in values):
            raise ValueError("values that are not finite numbers")
        with one_torch_thread():
            products = torch.tensor(self.basis) @ torch.tensor(self.basis).T
        if (products - torch.eye(rows)).abs().max() > 1e-3:
            raise ValueError("rows of the basis that are not orthonormal")
        slack = 1e-4 * max(self.total_variance, 0.0) + 1e-12
        falls = (np.diff(self.variance) <= slack).all() and (self.variance >= 0).all()
        if not falls or float(self.variance.sum()) > self.total_variance + slack:
            raise ValueError("variances that are negative, do not fall, or sum to more than the total")

    @property
    def dimensions(self) -> int:
        return int(self.basis.shape[1])

    @property
    def components(self) -> int:
        return int(self.basis.shape[0])

    def variance_kept(self, components: int) -> float:
        """Return the share of variance, in [0, 1], along the first `components` directions; 1 if nothing varies."""
        if self.total_variance <= 0:
            return 1.0
        return min(1.0, float(self.variance[:components].sum()) / self.total_variance)

    def save(self, path: Path) -> None:
        """Write a safetensors file with everything in it."""
        tensors = {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in _TENSORS}
        total, count = repr(float(self.total_variance)), str(self.count)
        metadata = {"space": self.space, "count": count, "total_variance": total}
        path.write_bytes(save(tensors, {"format": _FORMAT, **metadata}))


def load_pca(path: Path, space: str | None = None) -> Pca:
    """Read a file of `Pca.save`; check its space if one is given.

    Raises:
        BackendUnavailable: The file is missing.
        WeightsInvalid: It is damaged, something else, of another space, or has too few directions.
    """
    remedy = "make one with `arr-stream train-pca`, or --set clip.pca=auto"
    if not path.is_file():
        raise BackendUnavailable(f"{path}: no such PCA file", remedy=remedy)
    if path.stat().st_size > _LARGEST_FILE_BYTES:
        raise WeightsInvalid(f"{path}: too large for a PCA file, {path.stat().st_size} bytes", remedy=remedy)
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError("written by something else")
            mean, basis, variance = (file.get_tensor(name) for name in _TENSORS)
        if any(values.dtype != np.float32 for values in (mean, basis, variance)) or basis.ndim != 2:
            raise ValueError("tensors of another kind")
        total_variance, count = float(metadata["total_variance"]), int(metadata["count"])
        pca = Pca(metadata["space"], mean, basis, variance, total_variance, count)
    except Exception as exc:  # a damaged file can make the reader raise anything
        raise WeightsInvalid(f"{path}: not a usable PCA file: {exc}", remedy=remedy) from exc
    if space is not None and pca.space != space:
        raise WeightsInvalid(f"{path}: PCA of the space {pca.space!r}, needed is {space!r}", remedy=remedy)
    if pca.components < CHANNELS:
        raise WeightsInvalid(f"{path}: {pca.components} directions, needed are at least {CHANNELS}", remedy=remedy)
    return pca


class StreamingPca:
    """Exact mean and covariance of any number of vectors of D numbers, in one pass and the memory of D x D.

    Means and scatter matrices of blocks are merged pairwise (Chan, Golub and LeVeque, "Updating formulae and a pairwise
    algorithm for computing sample variances", 1979).
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.count = 0
        self._mean = np.zeros(dimensions)
        self._scatter = np.zeros((dimensions, dimensions))

    def add(self, vectors: npt.NDArray[np.floating]) -> None:
        """Add `[N, D]` finite vectors."""
        for start in range(0, len(vectors), _BLOCK_VECTORS):
            block = vectors[start : start + _BLOCK_VECTORS].astype(np.float64)
            size, mean = len(block), block.mean(axis=0)
            block -= mean
            step = mean - self._mean
            count = self.count + size
            self._scatter += block.T @ block
            self._scatter += np.outer(step, step * (self.count * size / count))
            self._mean += step * (size / count)
            self.count = count

    def result(self, space: str, components: int) -> Pca:
        """Return the PCA of all vectors so far, at least one, with at most D directions."""
        values, columns = np.linalg.eigh(self._scatter / self.count)
        variance, basis = np.maximum(values[::-1], 0.0), columns[:, ::-1].T
        # The sign of a direction is arbitrary; it is fixed so that equal input gives equal output.
        largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=1)[:, None], axis=1)
        basis *= np.where(largest < 0, -1.0, 1.0)
        return Pca(
            space=space,
            mean=self._mean.astype(np.float32),
            basis=basis[:components].astype(np.float32),
            variance=variance[:components].astype(np.float32),
            total_variance=float(variance.sum()),
            count=self.count,
        )


def unknown(space: str, mean: FloatArray, components: int) -> Pca:
    """Return a PCA with the mean `[D]` and arbitrary directions, to be `adapted`."""
    size = len(mean), min(components, len(mean))
    with one_torch_thread():
        start = torch.from_numpy(np.random.default_rng(0).standard_normal(size))
        rows = torch.linalg.qr(start)[0].T.float().contiguous()
    return Pca(space, mean, rows.numpy(), np.zeros(size[1], np.float32), 0.0, 0)


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
        space=pca.space,
        mean=pca.mean,
        basis=rows.numpy(),
        variance=variance.flip(0).clamp(min=0).float().numpy(),
        total_variance=float(np.einsum("dn,dn->", directions, directions)) / count,
        count=count,
    )


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
    """
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
            rows=(rows @ basis).float().numpy(),
            mean=pca.mean,
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
