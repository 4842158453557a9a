"""Darknet networks (YOLOv3-tiny and those with the same layers) as ONNX models.

A network is a text file of sections (`*.cfg`) and a file of weights (`*.weights`): three version numbers, a count of
pictures seen, and then, for each convolution in order, its biases, the scales, means and variances of its batch
normalisation, and its kernels, all float32 (Redmon, "Darknet: Open Source Neural Networks in C", 2013-2016).

The ONNX model is written without the package onnx: as the few messages of its protocol buffers that a network needs.
Field numbers are those of `onnx.proto` (ONNX 1.16). https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arr_stream.errors import WeightsInvalid
from arr_stream.types import FloatArray

ANCHORS = "anchors"
"""Key of the model's metadata: for each output, the widths and heights of its anchors in pixels, as JSON."""

_OPSET, _IR = 13, 8
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}
_FLOAT, _INT, _STRING, _INTS = 1, 2, 3, 7
"""Kinds of attribute."""

Attribute = float | int | str | Sequence[int]

_EPSILON = 1e-5
_LEAKY_SLOPE = 0.1


def to_onnx(cfg: Path, weights: Path) -> bytes:
    """Return a Darknet network as a serialised ONNX model.

    Its input is `[1, 3, h, w]` in [0, 1], red first, with sides that are multiples of 32; its outputs are those of the
    `yolo` sections, `[1, anchors * (5 + classes), h/stride, w/stride]`.

    Raises:
        WeightsInvalid: The files are damaged, do not match, or hold an unsupported section.
    """
    try:
        return _Builder(weights.read_bytes()).model(_sections(cfg))
    except (KeyError, IndexError, ValueError, OSError) as exc:
        raise WeightsInvalid(
            f"{weights}: not the weights of the Darknet network {cfg.name}: {exc}",
            remedy="give a .weights file with the .cfg of the same network beside it",
        ) from exc


def _sections(cfg: Path) -> list[tuple[str, dict[str, str]]]:
    sections: list[tuple[str, dict[str, str]]] = []
    for raw in cfg.read_text(encoding="utf-8").splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("["):
            sections.append((line.strip("[]"), {}))
        elif line:
            key, _, value = line.partition("=")
            sections[-1][1][key.strip()] = value.strip()
    return sections


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


class _Builder:
    """Builder that adds one section after the other to a graph."""

    def __init__(self, weights: bytes) -> None:
        major, minor = np.frombuffer(weights, np.int32, 2)
        # The count of pictures became a 64-bit number in version 0.2.
        start = 20 if major * 10 + minor >= 2 else 16
        self._left = np.frombuffer(weights, np.float32, offset=start)
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []
        self._layers: list[tuple[str, int]] = []
        """Output and channels of each section."""
        self._heads: list[tuple[str, list[list[float]]]] = []

    def model(self, sections: list[tuple[str, dict[str, str]]]) -> bytes:
        add: dict[str, Callable[[dict[str, str], str, int, str], tuple[str, int]]] = {
            "convolutional": self._convolution,
            "maxpool": self._maximum,
            "upsample": self._enlargement,
            "route": self._route,
            "yolo": self._head,
        }
        _, net = sections[0]
        last, channels = "images", int(net["channels"])
        for index, (kind, values) in enumerate(sections[1:]):
            if kind not in add:
                raise ValueError(f"section [{kind}] is not supported")
            last, channels = add[kind](values, last, channels, f"layer{index}")
            self._layers.append((last, channels))
        if len(self._left):
            raise ValueError(f"{len(self._left)} numbers too many")
        if not self._heads:
            raise ValueError("no [yolo] section")
        metadata = {ANCHORS: json.dumps([anchors for _, anchors in self._heads])}
        shape = 1, int(net["channels"]), "height", "width"
        return model(self._nodes, self._constants, {"images": shape}, [name for name, _ in self._heads], metadata)

    def _take(self, count: int) -> FloatArray:
        if count > len(self._left):
            raise ValueError(f"{count - len(self._left)} numbers too few")
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: Attribute) -> str:
        self._nodes.append(node(operator, inputs, [output], **attributes))
        return output

    def _constant(self, values: FloatArray, name: str) -> str:
        self._constants.append(constant(values.astype(np.float32), name))
        return name

    def _convolution(self, values: dict[str, str], last: str, channels: int, name: str) -> tuple[str, int]:
        filters, side = int(values["filters"]), int(values["size"])
        normalised = int(values.get("batch_normalize", 0))
        biases = self._take(filters)
        statistics = self._take(3 * filters if normalised else 0).reshape(3, -1)
        kernels = self._take(filters * channels * side * side).reshape(filters, channels, side, side)
        if normalised:
            # A normalisation with fixed statistics is a scale and an offset.
            scales, means, variances = statistics
            factor = scales / np.sqrt(variances + np.float32(_EPSILON))
            kernels, biases = kernels * factor[:, None, None, None], biases - means * factor
        inputs = [last, self._constant(kernels, f"{name}.weight"), self._constant(biases, f"{name}.bias")]
        padding = side // 2 if int(values.get("pad", 0)) else int(values.get("padding", 0))
        stride = int(values.get("stride", 1))
        output = self._add(
            "Conv", inputs, f"{name}.sum", kernel_shape=[side] * 2, strides=[stride] * 2, pads=[padding] * 4
        )
        return self._activated(values, output, name), filters

    def _activated(self, values: dict[str, str], output: str, name: str) -> str:
        activation = values.get("activation", "linear")
        if activation == "linear":
            return output
        if activation == "leaky":
            return self._add("LeakyRelu", [output], name, alpha=_LEAKY_SLOPE)
        raise ValueError(f"activation {activation} is not supported")

    def _maximum(self, values: dict[str, str], last: str, channels: int, name: str) -> tuple[str, int]:
        side, stride = int(values["size"]), int(values["stride"])
        # An odd remainder of the padding goes to the lower right.
        extra = side - 1 if stride == 1 else 0
        pads = [extra // 2] * 2 + [extra - extra // 2] * 2
        self._add("MaxPool", [last], name, kernel_shape=[side] * 2, strides=[stride] * 2, pads=pads)
        return name, channels

    def _enlargement(self, values: dict[str, str], last: str, channels: int, name: str) -> tuple[str, int]:
        scale = float(values["stride"])
        scales = self._constant(np.array([1, 1, scale, scale], np.float32), f"{name}.scales")
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self._add("Resize", [last, "", scales], name, **how), channels

    def _route(self, values: dict[str, str], last: str, channels: int, name: str) -> tuple[str, int]:
        picked = [self._layers[at] for at in _numbers(values["layers"])]
        total = sum(count for _, count in picked)
        output = picked[0][0] if len(picked) == 1 else self._add("Concat", [each for each, _ in picked], name, axis=1)
        return output, total

    def _head(self, values: dict[str, str], last: str, channels: int, name: str) -> tuple[str, int]:
        numbers = [float(part) for part in values["anchors"].split(",")]
        anchors = [[numbers[2 * at], numbers[2 * at + 1]] for at in _numbers(values["mask"])]
        if channels != len(anchors) * (5 + int(values["classes"])):
            raise ValueError(f"{channels} channels for {len(anchors)} anchors and {values['classes']} classes")
        self._heads.append((last, anchors))
        return last, channels


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
