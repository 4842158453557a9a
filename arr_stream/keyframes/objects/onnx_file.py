"""ONNX models written without the package onnx: the few messages of its protocol buffers that a network needs.

Field numbers are those of `onnx.proto` (ONNX 1.16). https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

_OPSET, _IR = 13, 8
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}
_FLOAT, _INT, _STRING, _INTS = 1, 2, 3, 7
"""Kinds of attribute."""

Attribute = float | int | str | Sequence[int]


def node(operator: str, inputs: Iterable[str], outputs: Iterable[str], **attributes: Attribute) -> bytes:
    """Return a `NodeProto`; its name is that of its first output."""
    outputs = list(outputs)
    fields = [_text(1, name) for name in inputs] + [_text(2, name) for name in outputs]
    fields += [_text(3, outputs[0]), _text(4, operator)]
    return b"".join([*fields, *(_bytes(5, _attribute(name, value)) for name, value in attributes.items())])


def constant(values: npt.NDArray[np.float32 | np.int64], name: str) -> bytes:
    """Return a `TensorProto`."""
    dims = b"".join(_varint(1, size) for size in values.shape)
    return dims + _varint(2, _TYPES[values.dtype]) + _text(8, name) + _bytes(9, np.ascontiguousarray(values).tobytes())


def model(
    nodes: Iterable[bytes],
    constants: Iterable[bytes],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Iterable[str],
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a serialised `ModelProto`.

    Args:
        nodes: In the order in which they run.
        constants: Tensors that they read.
        inputs: The shape of each input by its name; free sides are names. All are float32.
        outputs: Names of the outputs.
        metadata: The model's metadata.
    """
    graph = b"".join(
        [
            *(_bytes(1, each) for each in nodes),
            _text(2, "graph"),
            *(_bytes(5, each) for each in constants),
            *(_bytes(11, _value(name, shape)) for name, shape in inputs.items()),
            *(_bytes(12, _value(name)) for name in outputs),
        ]
    )
    told = (_bytes(14, _text(1, key) + _text(2, value)) for key, value in (metadata or {}).items())
    return _varint(1, _IR) + _bytes(7, graph) + _bytes(8, _varint(2, _OPSET)) + b"".join(told)


def _value(name: str, shape: Sequence[int | str] | None = None) -> bytes:
    tensor = _varint(1, _TYPES[np.dtype(np.float32)])
    if shape is not None:
        sides = (_text(2, side) if isinstance(side, str) else _varint(1, side) for side in shape)
        tensor += _bytes(2, b"".join(_bytes(1, side) for side in sides))
    return _text(1, name) + _bytes(2, _bytes(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, str):
        content, kind = _text(4, value), _STRING
    elif isinstance(value, float):
        content, kind = b"\x15" + np.float32(value).tobytes(), _FLOAT
    elif isinstance(value, int):
        content, kind = _varint(3, value), _INT
    else:
        content, kind = b"".join(_varint(8, each) for each in value), _INTS
    return _text(1, name) + content + _varint(20, kind)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _number(value: int) -> bytes:
    """Return a base-128 number, the low bits first."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
