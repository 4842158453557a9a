"""Principal directions of a feature space, computed in one pass and stored in a file.

Means and scatter matrices of blocks are merged pairwise (Chan, Golub and LeVeque, "Updating formulae and a pairwise
algorithm for computing sample variances", 1979), so that the memory for any number of vectors is one D x D matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from arr_stream.errors import ArrStreamError, BackendUnavailable, WeightsInvalid
from arr_stream.keyframes.base import EMBEDDING_CHANNELS
from arr_stream.threads import one_torch_thread
from arr_stream.types import FloatArray

DoubleArray = npt.NDArray[np.float64]

CHANNELS = EMBEDDING_CHANNELS
"""Least number of directions in a PCA."""

_FORMAT = "arr-stream pca 1"
_TENSORS = ("mean", "basis", "variance")
_BLOCK_VECTORS = 4096
_LARGEST_FILE_BYTES = 256 << 20


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
        return _share(self.variance[:components], self.total_variance)

    def save(self, path: Path) -> None:
        """Write a safetensors file with everything in it."""
        from safetensors.numpy import save

        tensors = {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in _TENSORS}
        total, count = repr(float(self.total_variance)), str(self.count)
        metadata = {"space": self.space, "count": count, "total_variance": total}
        path.write_bytes(save(tensors, {"format": _FORMAT, **metadata}))


def load_pca(path: Path, space: str | None = None) -> Pca:
    """Read a file of `Pca.save`; check its space if one is given.

    Raises:
        BackendUnavailable: The file, or the package safetensors, is missing.
        WeightsInvalid: It is damaged, something else, of another space, or has too few directions.
    """
    remedy = "make one with `arr-stream train-pca`, or --set clip.pca=auto"
    if not path.is_file():
        raise BackendUnavailable(f"{path}: no such PCA file", remedy=remedy)
    if path.stat().st_size > _LARGEST_FILE_BYTES:
        raise WeightsInvalid(f"{path}: too large for a PCA file, {path.stat().st_size} bytes", remedy=remedy)
    try:
        pca = _read(path)
    except ArrStreamError:
        raise
    except Exception as exc:  # a damaged file can make the reader raise anything
        raise WeightsInvalid(f"{path}: not a usable PCA file: {exc}", remedy=remedy) from exc
    if space is not None and pca.space != space:
        raise WeightsInvalid(f"{path}: PCA of the space {pca.space!r}, needed is {space!r}", remedy=remedy)
    if pca.components < CHANNELS:
        raise WeightsInvalid(f"{path}: {pca.components} directions, needed are at least {CHANNELS}", remedy=remedy)
    return pca


def _read(path: Path) -> Pca:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise ValueError("written by something else")
        mean, basis, variance = (file.get_tensor(name) for name in _TENSORS)
    if any(values.dtype != np.float32 for values in (mean, basis, variance)) or basis.ndim != 2:
        raise ValueError("tensors of another kind")
    total_variance, count = float(metadata["total_variance"]), int(metadata["count"])
    return Pca(metadata["space"], mean, basis, variance, total_variance, count)


class StreamingPca:
    """Exact mean and covariance of any number of vectors of D numbers, in one pass and the memory of D x D."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.count = 0
        self._mean = np.zeros(dimensions)
        self._scatter = np.zeros((dimensions, dimensions))
        self._solved: tuple[DoubleArray, DoubleArray] | None = None

    def add(self, vectors: npt.NDArray[np.floating]) -> None:
        """Add `[N, D]` vectors.

        Raises:
            ValueError: Another shape, or values that are not finite; nothing of the block is added.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise ValueError(f"vectors are [N, {self.dimensions}], got {list(vectors.shape)}")
        if not np.isfinite(vectors).all():
            raise ValueError("vectors with values that are not finite numbers")
        for start in range(0, len(vectors), _BLOCK_VECTORS):
            self._merge(vectors[start : start + _BLOCK_VECTORS].astype(np.float64))

    def _merge(self, block: DoubleArray) -> None:
        size, mean = len(block), block.mean(axis=0)
        block -= mean
        step = mean - self._mean
        count = self.count + size
        self._scatter += block.T @ block
        self._scatter += np.outer(step, step * (self.count * size / count))
        self._mean += step * (size / count)
        self.count, self._solved = count, None

    def variance_kept(self, components: int) -> float:
        """Return the share of variance, in [0, 1], along the best `components` directions; 1 if nothing varies."""
        variance, _ = self._principal()
        return _share(variance[:components], float(variance.sum()))

    def result(self, space: str, components: int) -> Pca:
        """Return the PCA of all vectors so far, with at most D directions.

        Raises:
            ValueError: No vector yet, or fewer than 1 component.
        """
        if self.count == 0 or components < 1:
            raise ValueError(f"{components} principal directions of {self.count} vectors")
        variance, basis = self._principal()
        return Pca(
            space=space,
            mean=self._mean.astype(np.float32),
            basis=basis[:components].astype(np.float32),
            variance=variance[:components].astype(np.float32),
            total_variance=float(variance.sum()),
            count=self.count,
        )

    def _principal(self) -> tuple[DoubleArray, DoubleArray]:
        """Return variances `[D]`, falling, and directions `[D, D]`."""
        if self._solved is None:
            values, columns = np.linalg.eigh(self._scatter / max(1, self.count))
            basis = columns[:, ::-1].T
            # The sign of a direction is arbitrary; it is fixed so that equal input gives equal output.
            largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=1)[:, None], axis=1)
            self._solved = np.maximum(values[::-1], 0.0), basis * np.where(largest < 0, -1.0, 1.0)
        return self._solved


def _share(variance: npt.NDArray[np.floating], total: float) -> float:
    return min(1.0, float(variance.sum()) / total) if total > 0 else 1.0


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
        directions: `[D, N]` float32, centred features of places, by `projection.centred`.
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
