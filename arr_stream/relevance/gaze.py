"""Gaze of a viewer: samples of an eye tracker or a pointer, read from a CSV file.

    pts_seconds,x,y
    0.000,0.512,0.430
    0.008,0.515,0.431

Columns may have any order; other columns are ignored. A sample takes 16 bytes, so an hour at 1000 Hz takes 58 MB; files
of more than `MAX_SAMPLES` are refused instead of filling the memory.
"""

from __future__ import annotations

import csv
import math
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arr_stream.errors import QueryUnreadable
from arr_stream.types import FloatArray

COLUMNS = ("pts_seconds", "x", "y")
MAX_SAMPLES = 10_000_000
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

    def __post_init__(self) -> None:
        if self.points_xy.shape != (len(self.pts_seconds), 2):
            raise ValueError(f"points_xy is {list(self.points_xy.shape)} for {len(self.pts_seconds)} times")

    def __len__(self) -> int:
        return len(self.pts_seconds)

    def between(self, after_seconds: float, until_seconds: float) -> FloatArray:
        """Return `[N, 2]` points with `after < pts_seconds <= until`; every sample belongs to exactly one frame.

        For a first frame, `after` is minus infinity.
        """
        first, last = np.searchsorted(self.pts_seconds, [after_seconds, until_seconds], side="right")
        return self.points_xy[first:last]


def load_gaze(path: str | Path, *, max_samples: int = MAX_SAMPLES) -> GazeTrack:
    """Read a CSV file with a header that names `pts_seconds`, `x` and `y`.

    Raises:
        QueryUnreadable: Missing, not text, a column is missing, a row is malformed, not finite or out of range, times
            run backwards, there is no sample, or there are more than `max_samples`. Names the line.
    """
    path = Path(path)
    times, points = array("d"), array("f")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, skipinitialspace=True)
            header = [name.strip().lower() for name in next(rows, [])]
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise QueryUnreadable(f"{path}, line 1: no column {', '.join(missing)}", remedy=_HEADER_REMEDY)
            for row in rows:
                if not any(cell.strip() for cell in row):
                    continue
                fault = _take(row, [header.index(name) for name in COLUMNS], times, points)
                if fault is not None:
                    raise QueryUnreadable(f"{path}, line {rows.line_num}: {fault}", remedy=_ROW_REMEDY)
                if len(times) > max_samples:
                    raise QueryUnreadable(
                        f"{path} has more than {max_samples} samples", remedy="reduce its sampling rate or cut the file"
                    )
    except OSError as exc:
        raise QueryUnreadable(f"{path}: {exc.strerror or exc}", remedy="give a CSV file") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise QueryUnreadable(f"{path}: not a CSV text file: {exc}", remedy=_HEADER_REMEDY) from exc
    if not times:
        raise QueryUnreadable(f"{path} holds no sample", remedy="give a row of pts_seconds,x,y for each sample")
    return GazeTrack(np.asarray(times, np.float64), np.asarray(points, np.float32).reshape(-1, 2))


def _take(row: list[str], places: list[int], times: array[float], points: array[float]) -> str | None:
    """Append a row's sample; return its fault if it has one."""
    try:
        seconds, x, y = (float(row[place]) for place in places)
    except (ValueError, IndexError):
        return f"{','.join(row)!r} is not three numbers"
    if not math.isfinite(seconds):
        return f"pts_seconds is {seconds:g}"
    if not (0.0 <= x <= 1.0 and 0.0 <= y <= 1.0):
        return f"({x:g}, {y:g}) is outside [0, 1]"
    if times and seconds < times[-1]:
        return f"time goes back from {times[-1]:g} to {seconds:g} s"
    times.append(seconds)
    points.extend((x, y))
    return None


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
