"""YOLOv3-tiny, trained on COCO in Darknet, as an ONNX model (Redmon and Farhadi, "YOLOv3", 2018).

A Darknet file of weights has a header of 20 bytes and then, for each convolution in order, its biases, the scales,
means and variances of its batch normalisation, and its kernels, all float32.

The ONNX model is written without the package onnx: as the few messages of its protocol buffers that the network needs.
Field numbers are those of `onnx.proto` (ONNX 1.16). https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from arr_stream.types import FloatArray
from arr_stream.weights import check_sha256

# The weights were trained with anchors 1 to 3 at the finer output; the network's own file says 0 to 2.
ANCHORS = (((81, 82), (135, 169), (344, 319)), ((23, 27), (37, 58), (81, 82)))
"""Widths and heights in pixels of each output's anchors."""

_SHA256 = "dccea06f59b781ec1234ddf8d1e94b9519a97f4245748a7d4db75d5b7080a42c"
_HEADER_BYTES = 20
_EPSILON = 1e-5
_LEAKY_SLOPE = 0.1
_OPSET, _IR = 13, 8
_TYPE_FLOAT = 1
_FLOAT, _INT, _STRING, _INTS = 1, 2, 3, 7
"""Kinds of attribute."""

Attribute = float | int | str | Sequence[int]


def to_onnx(weights: Path) -> bytes:
    """Return the network as a serialised ONNX model.

    Its input is `[1, 3, h, w]` in [0, 1], red first, with sides that are multiples of 32; its outputs are
    `[1, 3 * (5 + 80), h/s, w/s]` for the strides s of 32 and 16.

    Raises:
        WeightsInvalid: It is another file than the published one.
    """
    check_sha256(weights, _SHA256)
    return onnx_of(np.frombuffer(weights.read_bytes(), np.float32, offset=_HEADER_BYTES))


def onnx_of(numbers: FloatArray) -> bytes:
    """Return the network with these weights; see `to_onnx`."""
    add = _Layers(numbers)
    last, channels = "images", 3
    for filters in (16, 32, 64, 128, 256):
        fine = add.convolution(last, channels, filters, 3)
        last, channels = add.pooling(fine, stride=2), filters
    last = add.pooling(add.convolution(last, 256, 512, 3), stride=1)
    middle = add.convolution(add.convolution(last, 512, 1024, 3), 1024, 256, 1)
    coarse = add.convolution(add.convolution(middle, 256, 512, 3), 512, 255, 1, is_output=True)
    joined = add.joined(add.enlarged(add.convolution(middle, 256, 128, 1)), fine)
    finer = add.convolution(add.convolution(joined, 384, 256, 3), 256, 255, 1, is_output=True)
    return model(add.nodes, add.constants, {"images": (1, 3, "height", "width")}, [coarse, finer])


class _Layers:
    """Builder that adds one layer after the other; each method takes its input's name and returns its output's."""

    def __init__(self, numbers: FloatArray) -> None:
        self.nodes: list[bytes] = []
        self.constants: list[bytes] = []
        self._left = numbers

    def convolution(self, last: str, channels: int, filters: int, side: int, *, is_output: bool = False) -> str:
        biases = self._take(filters)
        statistics = None if is_output else self._take(3 * filters).reshape(3, filters)
        kernels = self._take(filters * channels * side * side).reshape(filters, channels, side, side)
        if statistics is not None:
            # A normalisation with fixed statistics is a scale and an offset.
            scales, means, variances = statistics
            factor = scales / np.sqrt(variances + np.float32(_EPSILON))
            kernels, biases = kernels * factor[:, None, None, None], biases - means * factor
        inputs = [last, self._constant(kernels), self._constant(biases)]
        sums = self._add("Conv", inputs, kernel_shape=[side] * 2, pads=[side // 2] * 4)
        return sums if is_output else self._add("LeakyRelu", [sums], alpha=_LEAKY_SLOPE)

    def pooling(self, last: str, *, stride: int) -> str:
        pads = [0, 0, 2 - stride, 2 - stride]
        return self._add("MaxPool", [last], kernel_shape=[2] * 2, strides=[stride] * 2, pads=pads)

    def enlarged(self, last: str) -> str:
        scales = self._constant(np.array([1, 1, 2, 2], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self._add("Resize", [last, "", scales], **how)

    def joined(self, first: str, second: str) -> str:
        return self._add("Concat", [first, second], axis=1)

    def _take(self, count: int) -> FloatArray:
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def _add(self, operator: str, inputs: list[str], **attributes: Attribute) -> str:
        output = f"layer{len(self.nodes)}"
        self.nodes.append(node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, values: FloatArray) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(constant(values, name))
        return name


def node(operator: str, inputs: Iterable[str], outputs: Sequence[str], **attributes: Attribute) -> bytes:
    """Return a `NodeProto`; its name is that of its first output."""
    fields = [*(_bytes(1, name) for name in inputs), *(_bytes(2, name) for name in outputs)]
    fields += [_bytes(3, outputs[0]), _bytes(4, operator)]
    return b"".join([*fields, *(_bytes(5, _attribute(name, value)) for name, value in attributes.items())])


def constant(values: FloatArray, name: str) -> bytes:
    """Return a `TensorProto` of float32."""
    dims = b"".join(_varint(1, size) for size in values.shape)
    return dims + _varint(2, _TYPE_FLOAT) + _bytes(8, name) + _bytes(9, values.astype(np.float32).tobytes())


def model(
    nodes: Iterable[bytes],
    constants: Iterable[bytes],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Iterable[str],
) -> bytes:
    """Return a serialised `ModelProto`.

    Args:
        nodes: In the order in which they run.
        constants: Tensors that they read.
        inputs: The shape of each input by its name; free sides are names. All are float32.
        outputs: Names of the outputs.
    """
    fields = [*(_bytes(1, each) for each in nodes), _bytes(2, "graph"), *(_bytes(5, each) for each in constants)]
    fields += [_bytes(11, _value(name, shape)) for name, shape in inputs.items()]
    fields += [_bytes(12, _value(name)) for name in outputs]
    return _varint(1, _IR) + _bytes(7, b"".join(fields)) + _bytes(8, _varint(2, _OPSET))


def _value(name: str, shape: Sequence[int | str] | None = None) -> bytes:
    tensor = _varint(1, _TYPE_FLOAT)
    if shape is not None:
        sides = (_bytes(2, side) if isinstance(side, str) else _varint(1, side) for side in shape)
        tensor += _bytes(2, b"".join(_bytes(1, side) for side in sides))
    return _bytes(1, name) + _bytes(2, _bytes(1, tensor))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, str):
        content, kind = _bytes(4, value), _STRING
    elif isinstance(value, float):
        content, kind = b"\x15" + np.float32(value).tobytes(), _FLOAT
    elif isinstance(value, int):
        content, kind = _varint(3, value), _INT
    else:
        content, kind = b"".join(_varint(8, each) for each in value), _INTS
    return _bytes(1, name) + content + _varint(20, kind)


def _bytes(field: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return _number(field << 3 | 2) + _number(len(content)) + content


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _number(value: int) -> bytes:
    """Return a base-128 number, the low bits first."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
