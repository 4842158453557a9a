"""Array operations that NumPy (on the host) and torch (on a device) spell differently.

Code for both is written once against `namespace`. Torch is loaded only if a tensor already exists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Any
"""`numpy.ndarray` or `torch.Tensor`; all arrays of one call are of one kind and on one device."""


_ON_HOST = (np.ndarray, np.generic)


def namespace(array: Array) -> Any:
    """Return the package whose functions take the array: `numpy` or `torch`."""
    if isinstance(array, _ON_HOST):
        return np
    import torch

    return torch


def zeros(like: Array, shape: tuple[int, ...]) -> Array:
    """Return float32 zeros on the device of an array."""
    return (
        np.zeros(shape, np.float32)
        if isinstance(like, np.ndarray)
        else namespace(like).zeros(shape, device=like.device)
    )


def constant(like: Array, make: Callable[..., npt.NDArray[Any]], *args: Hashable) -> Array:
    """Return the result of `make` for these arguments on the device of an array; it is made and sent once."""
    return make(*args) if isinstance(like, np.ndarray) else _made(make, args, like.device)


@cache
def _made(make: Callable[..., npt.NDArray[Any]], args: tuple[Hashable, ...], device: torch.device) -> Array:
    return sent(np.array(make(*args)), device)


def sent(values: npt.NDArray[Any], device: torch.device | None) -> Array:
    """Move values to a device; return them unchanged if it is None."""
    if device is None:
        return values
    import torch

    return torch.from_numpy(values).to(device)


def is_bytes(values: Array) -> bool:
    """Return whether values are uint8."""
    return bool(values.dtype == (np.uint8 if isinstance(values, np.ndarray) else namespace(values).uint8))


def as_float(values: Array) -> Array:
    """Return the array in float32."""
    return values.astype(np.float32) if isinstance(values, np.ndarray) else values.float()


def as_double(values: Array) -> Array:
    """Return the array in float64."""
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def as_bytes(values: Array) -> Array:
    """Return the array in uint8."""
    return values.astype(np.uint8, copy=False) if isinstance(values, np.ndarray) else values.byte()


def as_index(values: Array) -> Array:
    """Return ids as indices: torch takes 64 bits only."""
    return values if isinstance(values, np.ndarray) else values.long()


def as_tensor(values: Array) -> torch.Tensor:
    """Return a tensor that shares the array's memory."""
    import torch

    tensor: torch.Tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return tensor


def to_numpy(values: Array) -> npt.NDArray[Any]:
    """Move values to the host; waits for a device."""
    array: npt.NDArray[Any] = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return array


def channels_first(values: Array) -> Array:
    """Return a view `[C, h, w]` of `[h, w, C]`; `[h, w]` is unchanged."""
    if values.ndim == 2:
        return values
    return values.transpose(2, 0, 1) if isinstance(values, np.ndarray) else values.permute(2, 0, 1)


def channels_last(values: Array) -> Array:
    """Return a view `[h, w, C]` of `[C, h, w]`; `[h, w]` is unchanged."""
    if values.ndim == 2:
        return values
    return values.transpose(1, 2, 0) if isinstance(values, np.ndarray) else values.permute(1, 2, 0)


def number(value: Array) -> Any:
    """Return a value without axes as a number; a device keeps its tensor, since reading it would wait."""
    return float(value) if isinstance(value, _ON_HOST) else value


def at_most(values: Array, most: float) -> Array:
    """Clip values or a number from above; takes a third of the time of `clip` for small arrays."""
    if type(values) is float:
        return min(values, most)
    return np.minimum(values, most) if isinstance(values, _ON_HOST) else values.clamp(max=most)


def at_least(values: Array, least: float) -> Array:
    """Clip values or a number from below."""
    if type(values) is float:
        return max(values, least)
    return np.maximum(values, least) if isinstance(values, _ON_HOST) else values.clamp(min=least)


def either(condition: Array, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Return the result of `first` where `condition` (one value) is true, else that of `second`.

    The host computes one of the two; a device, which cannot branch without waiting, computes both and selects. Results
    are arrays, numbers, tuples or dataclasses of them.
    """
    if isinstance(condition, (bool, *_ON_HOST)):
        return first() if np.all(condition) else second()
    return _selected(condition, first(), second())


def _selected(condition: Array, first: Any, second: Any) -> Any:
    if isinstance(first, tuple):
        return tuple(_selected(condition, *each) for each in zip(first, second, strict=True))
    if is_dataclass(first):
        values = {each.name: getattr(first, each.name) for each in fields(first)}
        changes = {name: _selected(condition, value, getattr(second, name)) for name, value in values.items()}
        return replace(first, **changes)  # type: ignore[type-var]
    return namespace(condition).where(condition, first, second)


def take(table: Array, places: Array) -> Array:
    """Return entries of a table `[n]` at indices of any shape."""
    return table.take(places) if isinstance(table, np.ndarray) else table[places]


def enlarged(values: Array, factor: int) -> Array:
    """Enlarge `[h, w]` to `[h * factor, w * factor]`, each value repeated."""
    if isinstance(values, np.ndarray):
        return values.repeat(factor, 0).repeat(factor, 1)
    height, width = values.shape
    return values[:, None, :, None].expand(height, factor, width, factor).reshape(height * factor, width * factor)


def sums_by(ids: Array, values: Array | None, count: int) -> Array:
    """Return `[count]` float64: the sums of values `[n]` (1 if None) by id `[n]`."""
    if isinstance(ids, np.ndarray):
        return np.bincount(ids, values, count).astype(np.float64)
    weights = namespace(ids).ones_like(ids, dtype=namespace(ids).float64) if values is None else values.double()
    return weights.new_zeros(count).index_add_(0, ids.long(), weights)


def replaced(planes: Array, changes: dict[int, Array]) -> Array:
    """Return a copy of `[C, h, w]` planes with some of them replaced."""
    made = planes.copy(order="K") if isinstance(planes, np.ndarray) else planes.clone()
    for index, plane in changes.items():
        made[index] = plane
    return made
