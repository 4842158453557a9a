"""Turning decoded pictures and their motion vectors upright, as the display matrix of the stream says."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.types import ByteArray


@dataclass(frozen=True, slots=True)
class Orientation:
    """One of the eight ways a picture can lie: first x and y change places, then either axis is mirrored.

    Args:
        transposed: Columns become rows.
        mirror_x: Then left and right change places.
        mirror_y: Then top and bottom change places.
    """

    transposed: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    @classmethod
    def from_display_matrix(cls, matrix: bytes) -> Orientation:
        """From FFmpeg's 3x3 matrix of 32-bit integers, which maps decoded (x, y) to (ax + cy, bx + dy).

        Angles between the quarter turns are taken to the nearest one; a matrix of zeros turns nothing.
        """
        a, b, _, c, d = struct.unpack_from("=5i", matrix)
        if abs(b) + abs(c) > abs(a) + abs(d):
            return cls(True, c < 0, b < 0)
        return cls(False, a < 0, d < 0)

    @property
    def rotation_degrees(self) -> int:
        """Clockwise turn: 0, 90, 180 or 270; of a mirrored picture, the turn that follows the mirroring of x."""
        turns = {
            (False, False, False): 0,
            (True, True, False): 90,
            (False, True, True): 180,
            (True, False, True): 270,
            (False, True, False): 0,
            (True, False, False): 270,
            (False, False, True): 180,
            (True, True, True): 90,
        }
        return turns[self.transposed, self.mirror_x, self.mirror_y]

    def turn(self, rgb: ByteArray) -> ByteArray:
        """The upright picture `[H, W, 3]`, C-contiguous; the same array where nothing is to be done."""
        upright: Any = cv2.transpose(rgb) if self.transposed else rgb
        if self.mirror_x or self.mirror_y:
            upright = cv2.flip(upright, -1 if self.mirror_x and self.mirror_y else int(self.mirror_x))
        return np.ascontiguousarray(upright)

    def turn_vectors(self, vectors: npt.NDArray[Any], upright_wh: tuple[int, int]) -> npt.NDArray[Any]:
        """FFmpeg's motion vectors in coordinates of the upright frame of the given size.

        Positions are centres of blocks measured from the corner, so that x mirrored is W - x.
        """
        if self == Orientation():
            return vectors
        turned = vectors.copy()
        if self.transposed:
            for one, other in (("w", "h"), ("src_x", "src_y"), ("dst_x", "dst_y"), ("motion_x", "motion_y")):
                turned[one], turned[other] = vectors[other], vectors[one]
        for mirrored, axis, side in ((self.mirror_x, "x", upright_wh[0]), (self.mirror_y, "y", upright_wh[1])):
            if mirrored:
                for end in ("src", "dst"):
                    turned[f"{end}_{axis}"] = side - turned[f"{end}_{axis}"]
                turned[f"motion_{axis}"] *= -1
        return turned
