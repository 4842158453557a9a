"""Gaze of a viewer: samples of an eye tracker or a pointer, read from a CSV file.

    pts_seconds,x,y
    0.000,0.512,0.430
    0.008,0.515,0.431

Columns may have any order; other columns are ignored. A sample takes 24 bytes, so an hour at 1000 Hz takes 86 MB.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arr_stream.errors import QueryUnreadable
from arr_stream.types import FloatArray

COLUMNS = ("pts_seconds", "x", "y")
_HEADER_REMEDY = "the first line must name the columns pts_seconds, x and y, separated by commas"
_ROW_REMEDY = "give seconds in order, and x and y in [0, 1]; leave out samples without a gaze, such as blinks"


class GazeSource(Protocol):
    """Source of gaze positions."""

    def between(self, after_seconds: float, until_seconds: float) -> FloatArray:
        """Return `[N, 2]` points, normalised to [0, 1], that belong to a frame; see `GazeTrack.between`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GazeTrack:
    """Samples in order of time.

    Args:
        pts_seconds: `[N]`, float64, never decreasing.
        points_xy: `[N, 2]`, float32, normalised to [0, 1], (0, 0) top left.
    """

    pts_seconds: npt.NDArray[np.float64]
    points_xy: FloatArray

    def between(self, after_seconds: float, until_seconds: float) -> FloatArray:
        """Return `[N, 2]` points with `after < pts_seconds <= until`; every sample belongs to exactly one frame.

        For a first frame, `after` is minus infinity.
        """
        first, last = np.searchsorted(self.pts_seconds, [after_seconds, until_seconds], side="right")
        return self.points_xy[first:last]


def load_gaze(path: str | Path) -> GazeTrack:
    """Read a CSV file with a header that names `pts_seconds`, `x` and `y`.

    Raises:
        QueryUnreadable: Missing, not text, a column is missing, a row is malformed, not finite or out of range, times
            run backwards, or there is no sample. Names the line.
    """
    path, samples = Path(path), array("d")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, skipinitialspace=True)
            rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
            missing = [name for name in COLUMNS if name not in rows.fieldnames]
            if missing:
                raise QueryUnreadable(f"{path}, line 1: no column {', '.join(missing)}", remedy=_HEADER_REMEDY)
            for row in rows:
                try:
                    samples.extend(_sample(row, samples[-3] if samples else -math.inf))
                except ValueError as exc:
                    raise QueryUnreadable(f"{path}, line {rows.line_num}: {exc}", remedy=_ROW_REMEDY) from exc
    except OSError as exc:
        raise QueryUnreadable(f"{path}: {exc.strerror or exc}", remedy="give a CSV file") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise QueryUnreadable(f"{path}: not a CSV text file: {exc}", remedy=_HEADER_REMEDY) from exc
    if not samples:
        raise QueryUnreadable(f"{path} holds no sample", remedy="give a row of pts_seconds,x,y for each sample")
    table = np.asarray(samples).reshape(-1, 3)
    return GazeTrack(table[:, 0], table[:, 1:].astype(np.float32))


def _sample(row: Mapping[str, str | None], earliest_seconds: float) -> tuple[float, float, float]:
    """Return time, x and y of a row.

    Raises:
        ValueError: They are missing, no numbers, or outside their ranges.
    """
    seconds, x, y = (float(row[name] or "") for name in COLUMNS)
    if not math.isfinite(seconds):
        raise ValueError(f"pts_seconds is {seconds:g}")
    if not (0.0 <= x <= 1.0 and 0.0 <= y <= 1.0):
        raise ValueError(f"({x:g}, {y:g}) is outside [0, 1]")
    if seconds < earliest_seconds:
        raise ValueError(f"time goes back from {earliest_seconds:g} to {seconds:g} s")
    return seconds, x, y


def splat(points_xy: FloatArray, hw: tuple[int, int], sigma: float = 0.04) -> FloatArray:
    """Return `[h, w]` float32 in [0, 1]: a Gaussian of height 1 at each point; where they overlap, the maximum.

    Args:
        points_xy: `[N, 2]`, normalised to [0, 1]; without any, the map is 0.
        hw: Size of the map.
        sigma: Spread as a share of the map's diagonal; Gaussians end at three sigma.
    """
    height, width = hw
    bump = np.zeros(hw, np.float32)
    spread_px = sigma * math.hypot(height, width)
    reach = math.ceil(3 * spread_px)
    for x, y in points_xy * np.asarray([width, height], np.float32) - 0.5:
        x0, x1 = max(math.floor(x) - reach, 0), min(math.ceil(x) + reach + 1, width)
        y0, y1 = max(math.floor(y) - reach, 0), min(math.ceil(y) + reach + 1, height)
        across = np.exp(-0.5 * ((np.arange(x0, x1, dtype=np.float32) - x) / spread_px) ** 2)
        down = np.exp(-0.5 * ((np.arange(y0, y1, dtype=np.float32) - y) / spread_px) ** 2)
        window = bump[y0:y1, x0:x1]
        np.maximum(window, down[:, None] * across[None, :], out=window)
    return bump
