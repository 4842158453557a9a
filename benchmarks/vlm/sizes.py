"""Compute what released sizes of Qwen3.5 take, from their dimensions alone: memory, and operations to the first token.

    python -m benchmarks.vlm.sizes

Nothing is timed. An operation is a multiplication or an addition of a matrix product; what else a pass does is left
out. Memory is for bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.cli.console import out
from benchmarks.vlm.model import RELEASED, Shape

CELLS = 1024
SHARES = (0.25, 0.5, 1.0)
_TEXT_TOKENS = 24
"""Tokens of the markers and a short question."""
_BLOCKS = 30
"""Pairs of 60 frames."""
_TABLE = 2304
"""Positions in the tower's table."""
_HEAD, _LINEAR_HEAD, _KEY_HEADS, _KERNEL, _CHUNK, _BYTES = 256, 128, 16, 4, 64, 2


@dataclass(frozen=True, slots=True)
class Parts:
    """Parameters of a Qwen3.5 that are in matrix products, and of its tables.

    Args:
        full, linear: Of one layer with attention, and of one with a state, both with their feed-forward part.
        block, merger: Of one block of the tower, and of what makes four patches one token.
        words: Of the embeddings, once.
    """

    full: int
    linear: int
    block: int
    merger: int
    words: int

    @classmethod
    def of(cls, shape: Shape) -> Parts:
        assert shape.text_heads and shape.text_key_heads and shape.text_inner and shape.vision_inner
        assert shape.linear_heads and shape.vocabulary
        width, tower, keys = shape.text_width, shape.vision_width, _KEY_HEADS * _LINEAR_HEAD
        values, queries = shape.linear_heads * _LINEAR_HEAD, shape.text_heads * _HEAD
        inner = 3 * width * shape.text_inner
        return cls(
            # Queries come with a gate as wide as they are.
            full=width * (3 * queries + 2 * shape.text_key_heads * _HEAD) + inner,
            linear=width * (2 * keys + 3 * values + 2 * shape.linear_heads) + _KERNEL * (2 * keys + values) + inner,
            block=4 * tower**2 + 2 * tower * shape.vision_inner,
            merger=16 * tower**2 + 4 * tower * width,
            words=shape.vocabulary * width,
        )


def _layers(shape: Shape) -> tuple[int, int]:
    full = shape.text_layers // 4
    return full, shape.text_layers - full


def weight_bytes(shape: Shape) -> int:
    """Return the size of all matrices and tables; norms and biases, a thousandth of that, are left out."""
    parts, (full, linear) = Parts.of(shape), _layers(shape)
    text = full * parts.full + linear * parts.linear + parts.words * (1 if shape.tied else 2)
    tower = shape.vision_layers * parts.block + parts.merger + (1536 + _TABLE) * shape.vision_width
    return _BYTES * (text + tower)


def stream_bytes(shape: Shape, tokens: int) -> int:
    """Return the size of keys, values and kept features of so many tokens, and of two copies of the states."""
    assert shape.text_key_heads and shape.linear_heads
    full, linear = _layers(shape)
    keys, values = _KEY_HEADS * _LINEAR_HEAD, shape.linear_heads * _LINEAR_HEAD
    states = 4 * values * _LINEAR_HEAD + _BYTES * _KERNEL * (2 * keys + values)
    per_token = _BYTES * (2 * full * shape.text_key_heads * _HEAD + shape.text_width)
    return per_token * tokens + 2 * linear * states


def operations(shape: Shape, cells: int) -> tuple[int, int]:
    """Return the operations of the vision tower, and of the language model up to the first token of an answer."""
    assert shape.text_heads and shape.linear_heads
    parts, (full, linear) = Parts.of(shape), _layers(shape)
    patches, tokens = 4 * cells, cells + _TEXT_TOKENS
    tower = 2 * patches * (shape.vision_layers * parts.block + 1536 * shape.vision_width) + 2 * cells * parts.merger
    tower += shape.vision_layers * 4 * patches**2 * shape.vision_width
    text = 2 * tokens * (full * parts.full + linear * parts.linear) + 2 * parts.words
    text += full * 4 * tokens**2 * shape.text_heads * _HEAD
    # In chunks: products within a chunk, and three of keys or queries with the state.
    text += linear * tokens * shape.linear_heads * _LINEAR_HEAD * (6 * _LINEAR_HEAD + 8 * _CHUNK)
    return tower, text


def main() -> None:
    """Print a row for each model and share of the cells."""
    out.print(f"Computed for bfloat16; frames of {CELLS} cells, a stream of {_BLOCKS} pairs of frames")
    out.print("model | share | weights GB | stream MB | vision, prefill TFLOP | whole / share: vision, prefill, both")
    for name, shape in RELEASED.items():
        if shape.linear_heads is None:
            continue
        whole = operations(shape, CELLS)
        for share in SHARES:
            cells = round(share * CELLS)
            tower, text = operations(shape, cells)
            ratios = whole[0] / tower, whole[1] / text, sum(whole) / (tower + text)
            out.print(
                f"{name} | {share:.0%} | {weight_bytes(shape) / 1e9:.1f} | "
                f"{stream_bytes(shape, cells * _BLOCKS) / 1e6:.0f} | {tower / 1e12:.2f}, {text / 1e12:.2f} | "
                + ", ".join(f"{ratio:.2f}" for ratio in ratios)
            )


if __name__ == "__main__":
    main()
