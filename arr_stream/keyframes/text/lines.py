"""What recognition of either kind starts from: a region of the frame as an upright line of text."""

from __future__ import annotations

import cv2
import numpy as np

from arr_stream.types import ByteArray, FloatArray, TextRegion

TALL = 1.5
"""From this height, in widths, a region is taken for a line that runs down the picture."""


def straightened(rgb: ByteArray, region: TextRegion) -> ByteArray:
    """`[h, w, 3]`: the region's quadrilateral as an upright line; tall ones are turned by a quarter."""
    corners = (np.array(region.polygon_xy) * (rgb.shape[1], rgb.shape[0])).astype(np.float32)
    width = max(1, round(max(_distance(corners, 0, 1), _distance(corners, 3, 2))))
    height = max(1, round(max(_distance(corners, 0, 3), _distance(corners, 1, 2))))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    warp = cv2.getPerspectiveTransform(corners, target)
    line = cv2.warpPerspective(rgb, warp, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    upright = np.rot90(line) if height >= TALL * width else line
    return np.ascontiguousarray(upright, dtype=np.uint8)


def detect_wh(size_wh: tuple[int, int], side_px: float, stride_px: int = 32) -> tuple[int, int]:
    """The size at which a detector sees a frame: the long side about `side_px`, both sides multiples of the stride."""
    scale = side_px / max(size_wh)
    width, height = (max(stride_px, round(side * scale / stride_px) * stride_px) for side in size_wh)
    return width, height


def _distance(corners: FloatArray, a: int, b: int) -> float:
    return float(np.linalg.norm(corners[a] - corners[b]))
