"""Carrier of chosen cells: an ordinary PNG, for a server that gives cells their true positions
(`arr_stream.vlm.vllm_plugin`).

The first rows of the picture are a header with the grid and the list of cells. The cells follow, 32x32 pixels each,
side by side, those of a second frame after those of the first. Caches identify a picture by its bytes or pixels, so
cells at other positions make another picture, and equal cells the same one. A server without the plugin takes the
carrier for a small picture.

| bytes | |
|---|---|
| 8 | `ARRCELLS` |
| 1, 1 | version, frames (1 or 2) |
| 2, 2, 4 | rows and columns of the grid, number of cells K |
| 6 K | row, column (2 bytes each), level of detail and quarter (1 byte each), as in `Cells` |
| 4 | CRC-32 of all bytes before |

Numbers are little-endian. The module needs only NumPy, torch and Pillow.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from arr_stream.types import CELL_PX, COARSEST, FINER, FINER_TOKENS, ByteArray
from arr_stream.vlm.qwen3_vl.cells import Cells, GridHW

MAGIC = b"ARRCELLS"
VERSION = 1
MOST_CELLS = 16_384
MOST_ROWS = 1_024
"""Most rows, and most columns, of a grid."""

_HEAD = struct.Struct("<8sBBHHI")
_CELL = np.dtype([("row", "<u2"), ("column", "<u2"), ("level", "i1"), ("quarter", "u1")])
_CHECKSUM = struct.Struct("<I")


class CarrierInvalid(ValueError):
    """Error for a picture with the carrier's header whose cells are invalid."""


@dataclass(frozen=True, eq=False)
class CarriedCells:
    """Cells of one frame, or of a pair, with their `pictures`, `[K, F, 32, 32, 3]` uint8, F = 1 frame or 2."""

    cells: Cells
    pictures: ByteArray

    def __len__(self) -> int:
        return len(self.cells)

    def png(self) -> bytes:
        """Return the picture as PNG."""
        _check(self.cells)
        count, frames = self.pictures.shape[:2]
        table = np.zeros(count, _CELL)
        for name, values in zip(_CELL.names or (), self.cells.table.T, strict=True):
            table[name] = values
        head = _HEAD.pack(MAGIC, VERSION, frames, *self.cells.grid_hw, count) + table.tobytes()
        head += _CHECKSUM.pack(zlib.crc32(head))
        across = math.ceil(math.sqrt(count * frames))
        head_rows = _rows_of_bytes(len(head), across)
        canvas = np.zeros((head_rows + math.ceil(count * frames / across), CELL_PX, across, CELL_PX, 3), np.uint8)
        canvas[:head_rows].reshape(-1)[: len(head)] = np.frombuffer(head, np.uint8)
        place = np.arange(count * frames)
        # Store each cell's pixels next to each other, which compresses moving cells well.
        tiles = self.pictures.swapaxes(0, 1).reshape(-1, CELL_PX, CELL_PX, 3)
        canvas[head_rows:].swapaxes(1, 2)[place // across, place % across] = tiles
        picture = io.BytesIO()
        flat = canvas.reshape(-1, across * CELL_PX, 3)
        Image.fromarray(flat).save(picture, "PNG", compress_level=1)
        return picture.getvalue()


def carried(image: object) -> CarriedCells | None:
    """Return the cells that a Pillow image or `[H, W, 3]` bytes carry; None for an ordinary picture.

    Raises:
        CarrierInvalid: It has the carrier's magic bytes and contradicts its header.
    """
    if isinstance(image, Image.Image):
        if image.mode != "RGB" or image.width % CELL_PX or image.crop((0, 0, 3, 1)).tobytes()[: len(MAGIC)] != MAGIC:
            return None
        pixels = np.asarray(image)
    elif isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8 and image.shape[2] == 3:
        pixels = image
    else:
        return None
    data = np.ascontiguousarray(pixels).reshape(-1)
    if data[: len(MAGIC)].tobytes() != MAGIC:
        return None
    return _read(data, pixels.shape[0], pixels.shape[1])


def carried_grid(image: object) -> GridHW | None:
    """Return rows and columns of the grid in a carrier's header; None for an ordinary picture."""
    if not isinstance(image, Image.Image) or image.mode != "RGB" or image.width % CELL_PX:
        found = carried(image)
        return None if found is None else found.cells.grid_hw
    begin = image.crop((0, 0, 11, 1)).tobytes()
    return _HEAD.unpack(begin[: _HEAD.size])[3:5] if begin.startswith(MAGIC) else None


def _read(data: ByteArray, height: int, width: int) -> CarriedCells:
    if height % CELL_PX or width % CELL_PX or len(data) < _HEAD.size:
        raise CarrierInvalid(f"a picture of cells is a whole number of {CELL_PX} pixels wide and high")
    _, version, frames, grid_rows, grid_columns, count = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if version != VERSION:
        raise CarrierInvalid(f"cells are carried in version {version}, expected {VERSION}: update one of the two sides")
    if not (0 < grid_rows <= MOST_ROWS and 0 < grid_columns <= MOST_ROWS):
        raise CarrierInvalid(f"a grid of {grid_rows}x{grid_columns} cells, expected 1 to {MOST_ROWS} each way")
    if frames not in (1, 2) or not 0 < count <= MOST_CELLS:
        raise CarrierInvalid(f"{count} cells of {frames} frames, expected 1 to {MOST_CELLS} cells of 1 or 2 frames")
    end = _HEAD.size + count * _CELL.itemsize
    across = width // CELL_PX
    head_rows = _rows_of_bytes(end + _CHECKSUM.size, across)
    if height // CELL_PX != head_rows + math.ceil(count * frames / across):
        raise CarrierInvalid(f"a picture of {width}x{height} pixels does not hold {count} cells of {frames} frames")
    [checksum] = _CHECKSUM.unpack(data[end : end + _CHECKSUM.size].tobytes())
    if checksum != zlib.crc32(data[:end].tobytes()):
        raise CarrierInvalid("the list of cells is damaged: send the picture as it is, without loss")
    table = np.frombuffer(data[_HEAD.size : end].tobytes(), _CELL)
    try:
        cells = Cells.of_table((grid_rows, grid_columns), np.stack([table[name] for name in _CELL.names or ()], axis=1))
    except ValueError as exc:
        raise CarrierInvalid(str(exc)) from exc
    _check(cells)
    tiles = data.reshape(-1, CELL_PX, across, CELL_PX, 3)[head_rows:].swapaxes(1, 2)
    place = np.arange(count * frames)
    pictures = tiles[place // across, place % across].reshape(frames, count, CELL_PX, CELL_PX, 3).swapaxes(0, 1)
    return CarriedCells(cells, pictures)


def _rows_of_bytes(count: int, across: int) -> int:
    return math.ceil(count / (across * CELL_PX * CELL_PX * 3))


def _check(cells: Cells) -> None:
    if not 0 < len(cells) <= MOST_CELLS:
        raise CarrierInvalid(f"{len(cells)} cells, expected 1 to {MOST_CELLS}")
    if (cells.level > COARSEST).any():
        raise CarrierInvalid(f"a cell of a level of detail that is not from {FINER} to {COARSEST}")
    if ((cells.quarter < 0) | (cells.quarter >= np.where(cells.level == FINER, FINER_TOKENS, 1))).any():
        raise CarrierInvalid("a quarter that its cell does not have")
    if len(np.unique(cells.table, axis=0)) < len(cells):
        raise CarrierInvalid("a cell is given twice")
