"""Steps of a frame as CUDA graphs, captured once for each form of their input and then replayed.

A step is a pure function: it reads only its arguments and constants, and returns all of its results. A graph reads and
writes fixed memory; arguments are copied in and results out in one launch each, so that callers hold ordinary tensors
that the next replay does not overwrite. Constants are made at first use and cached without a limit (`functools.cache`):
a graph reads them where they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_MOST_GRAPHS = 8
"""Graphs of one step; the least recently used one, such as that of an earlier frame size, is evicted first."""
_WARM_UPS = 2
"""Runs before a capture: libraries choose their algorithms, and constants are made, at first use."""

Form = tuple[Any, ...]
"""Structure of a value without its tensors; values of equal forms can share a graph.

`(kind, what, parts)`: its type, or None for a constant; a tensor's shape, dtype and device, the constant itself, or a
mapping's keys; and the forms of its members. Plain tuples, since forms are compared several times a frame.
"""


def flatten(value: Any, tensors: list[Tensor]) -> Form:
    """Return the form of a value; append its tensors in order.

    Args:
        value: Tensors in any nesting of tuples, mappings and dataclasses without equality. Anything else, including
            dataclasses with equality, is a constant: it must be hashable, and a change of it changes the form.
        tensors: List that receives the tensors.

    Raises:
        TypeError: A constant that cannot be hashed.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return (Tensor, (value.shape, value.dtype, value.device), ())
    kind: Any = type(value)
    if kind is tuple:
        return (tuple, None, tuple([flatten(part, tensors) for part in value]))
    if isinstance(value, Mapping):
        return (dict, tuple(value), tuple([flatten(part, tensors) for part in value.values()]))
    names = _parts_of(kind)
    if names:
        return (kind, None, tuple([flatten(getattr(value, name), tensors) for name in names]))
    hash(value)
    return (None, value, ())


def unflatten(form: Form, tensors: Iterable[Any]) -> Any:
    """Return the value of a form with these tensors; the inverse of `flatten`."""
    left = iter(tensors)
    kind, what, inside = form
    if kind is Tensor:
        return next(left)
    if kind is None:
        return what
    parts = [unflatten(part, left) for part in inside]
    if kind is tuple:
        return tuple(parts)
    if kind is dict:
        return dict(zip(what, parts, strict=True))
    return kind(*parts)


@cache
def _parts_of(kind: type) -> tuple[str, ...]:
    """Return the field names of a dataclass without equality; empty for other types."""
    if not is_dataclass(kind) or kind.__eq__ is not object.__eq__:
        return ()
    return tuple(each.name for each in fields(kind) if each.init)


@dataclass(slots=True, eq=False)
class _Graph:
    """One capture: the CUDA graph, its fixed memory, and the form of its result."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    form: Form

    def replay(self, tensors: Sequence[Tensor]) -> Any:
        copy_all(self.inputs, tensors)
        self.graph.replay()
        fresh = [torch.empty_like(output) for output in self.outputs]
        copy_all(fresh, self.outputs)
        return unflatten(self.form, fresh)


class Captured(Generic[P, R]):
    """A pure function on tensors that becomes a CUDA graph when it is called with the same form a second time.

    On a CPU, or with graphs off, it is called directly.

    Args:
        function: Reads nothing but its arguments and constants, never waits for the device, and gives tensors in any
            nesting of tuples, mappings and dataclasses.
        device: Device of the tensors.
        enabled: Whether to capture.
    """

    def __init__(self, function: Callable[P, R], device: torch.device, *, enabled: bool = True) -> None:
        self._function = function
        self._enabled = enabled and device.type == "cuda"
        self._graphs: OrderedDict[Form, _Graph | None] = OrderedDict()

    @property
    def captures(self) -> int:
        """Number of cached graphs."""
        return sum(graph is not None for graph in self._graphs.values())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._enabled:
            return self._function(*args, **kwargs)
        tensors: list[Tensor] = []
        form = flatten((args, kwargs), tensors)
        if form not in self._graphs:
            # Most rare forms, such as that of a frame with a new keyframe, do not recur soon.
            self._graphs[form] = None
            if len(self._graphs) > _MOST_GRAPHS:
                self._graphs.popitem(last=False)
            return self._function(*args, **kwargs)
        self._graphs.move_to_end(form)
        graph = self._graphs[form]
        if graph is None:
            graph = self._graphs[form] = self._capture(form, tensors)
        result: R = graph.replay(tensors)
        return result

    def _capture(self, form: Form, tensors: Sequence[Tensor]) -> _Graph:
        inputs = [tensor.clone() for tensor in tensors]

        def step() -> tuple[Form, list[Tensor]]:
            args, kwargs = unflatten(form, inputs)
            outputs: list[Tensor] = []
            return flatten(self._function(*args, **kwargs), outputs), outputs

        beside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result, outputs = step()
        return _Graph(graph, inputs, outputs, result)


def copy_all(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy many tensors, one launch for each dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, value in zip(into, values, strict=True):
        targets, sources = by_dtype.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(value)
    for targets, sources in by_dtype.values():
        torch._foreach_copy_(targets, sources)
