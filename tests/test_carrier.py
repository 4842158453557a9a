"""Cells as a picture: what is read is what was written, and nothing else passes for cells."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_stream.vlm.qwen3_vl.carrier import MAGIC, MOST_CELLS, CarriedCells, CarrierInvalid, carried
from arr_stream.vlm.qwen3_vl.cells import Cells


def cells_of(grid_hw: tuple[int, int], count: int, frames: int = 1, seed: int = 0, **changes: Any) -> CarriedCells:
    """So many fine cells at random places, with random pixels."""
    rng = np.random.default_rng(seed)
    place = np.sort(rng.permutation(grid_hw[0] * grid_hw[1])[:count])
    rows, columns = (part.astype(np.int32) for part in np.divmod(place, grid_hw[1]))
    pictures = rng.integers(0, 256, (count, frames, 32, 32, 3), np.uint8)
    table = {"rows": rows, "columns": columns, "level": 0 * rows, "quarter": 0 * rows} | changes
    return CarriedCells(Cells.of_table(grid_hw, np.stack(list(table.values()), axis=1)), pictures)


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    share=st.floats(0, 1),
    frames=st.integers(1, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_what_is_written_is_read(rows: int, columns: int, share: float, frames: int, seed: int) -> None:
    written = cells_of((rows, columns), max(1, int(share * rows * columns)), frames, seed)
    for image in (opened(written.png()), np.asarray(opened(written.png()))):
        read = carried(image)
        assert read is not None and read.cells.grid_hw == written.cells.grid_hw
        np.testing.assert_array_equal(read.cells.table, written.cells.table)
        np.testing.assert_array_equal(read.pictures, written.pictures)


def test_pictures_like_any_other_carry_nothing() -> None:
    rng = np.random.default_rng(0)
    for size in ((1, 1), (32, 32), (640, 360), (31, 64)):
        assert carried(Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))) is None
    assert carried(Image.new("L", (64, 64))) is None and carried(None) is None
    assert carried(opened(cells_of((4, 4), 3).png()).convert("RGBA")) is None
    scaled = opened(cells_of((6, 8), 5).png()).resize((128, 128))
    assert carried(scaled) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": np.array([0, 6], np.int32)}, r"outside of the grid \(6, 8\)"),
        ({"columns": np.array([0, 8], np.int32)}, "outside of the grid"),
        ({"level": np.array([0, 3], np.int32)}, "level of detail"),
        ({"quarter": np.array([0, 1], np.int32)}, "quarter"),
        ({"rows": np.zeros(2, np.int32), "columns": np.zeros(2, np.int32)}, "given twice"),
    ],
)
def test_cells_that_cannot_be_are_refused_on_both_sides(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cells_of((6, 8), 2, **changes).png()
    table = {name: np.arange(2) for name in ("rows", "columns")} | dict.fromkeys(("level", "quarter"), np.zeros(2, int))
    with pytest.raises(CarrierInvalid, match=says):
        carried(forged((6, 8), np.stack(list((table | changes).values()), axis=1)))


def test_a_million_cells_are_refused_before_anything_is_made_of_them() -> None:
    head = struct.pack("<8sBBHHI", MAGIC, 1, 1, 1000, 1000, 1_000_000)
    with pytest.raises(CarrierInvalid, match=f"expected 1 to {MOST_CELLS}"):
        carried(painted(head, 2))


def test_other_versions_and_damage_are_told() -> None:
    png = np.asarray(opened(cells_of((6, 8), 5).png())).copy()
    newer = png.copy()
    newer.reshape(-1)[8] = 2
    with pytest.raises(CarrierInvalid, match="version 2, expected 1"):
        carried(newer)
    damaged = png.copy()
    damaged.reshape(-1)[20] ^= 1
    with pytest.raises(CarrierInvalid, match="damaged"):
        carried(damaged)
    with pytest.raises(CarrierInvalid, match="does not hold 5 cells"):
        carried(png[:-32])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_bytes_that_were_changed_at_random_are_cells_or_refused_or_a_picture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = np.asarray(opened(cells_of((6, 8), 5).png())).copy()
    for place in rng.integers(0, 64, rng.integers(1, 5)):
        pixels.reshape(-1)[place] = rng.integers(0, 256)
    if rng.random() < 0.5:
        mended = pixels.reshape(-1)
        mended[48:52] = np.frombuffer(struct.pack("<I", zlib.crc32(mended[:48].tobytes())), np.uint8)
    try:
        read = carried(pixels)
    except CarrierInvalid:
        return
    assert read is None or (read.cells.rows < read.cells.grid_hw[0]).all()


def forged(grid_hw: tuple[int, int], table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A picture that says what it likes, with a right checksum."""
    head = struct.pack("<8sBBHHI", MAGIC, 1, 1, *grid_hw, len(table))
    head += b"".join(struct.pack("<HHbB", *map(int, row)) for row in table)
    return painted(head + struct.pack("<I", zlib.crc32(head)), max(1, len(table)))


def painted(head: bytes, count: int) -> np.ndarray[Any, Any]:
    across = int(np.ceil(np.sqrt(count)))
    pixels = np.zeros((32 * (1 + -(-count // across)), 32 * across, 3), np.uint8)
    pixels.reshape(-1)[: len(head)] = np.frombuffer(head, np.uint8)
    return pixels


def test_a_server_needs_nothing_that_watches_cameras() -> None:
    """All that the plugin imports of arr-stream, without what is not beside every vLLM."""
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['cv2', 'av', 'kornia', 'rapidocr', 'onnxruntime', 'rich', 'typer', 'skimage'])\n"
        "import arr_stream.vlm.qwen3_vl.carrier, arr_stream.vlm.vllm_plugin\n"
        "print(*sorted(name for name in sys.modules if name.startswith('arr_stream.')))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == [
        "arr_stream.types",
        "arr_stream.vlm",
        "arr_stream.vlm.qwen3_vl",
        "arr_stream.vlm.qwen3_vl.carrier",
        "arr_stream.vlm.qwen3_vl.cells",
        "arr_stream.vlm.vllm_plugin",
    ]
