"""Program that uses the whole public interface and asserts every type.

mypy checks it against the installed package; `python api_program.py CLIP` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt

import arr_stream


def cells_seen(source: Path, query: str) -> list[int]:
    """Return the number of cells chosen on each frame."""
    settings = arr_stream.Settings.load("realtime", ["keyframes.text=none"])
    assert_type(settings, arr_stream.Settings)
    assert_type(settings.keyframes.interval, int)
    counts = []
    with arr_stream.open(source, query=query, budget="25%", settings=settings) as stream:
        assert_type(stream, arr_stream.Stream)
        for patches in stream:
            assert_type(patches, arr_stream.PatchSet)
            assert_type(patches.grid, arr_stream.Grid)
            assert_type(patches.cells_xyxy, npt.NDArray[np.float32])
            assert_type(patches.pts_seconds, float)
            counts.append(len(patches))
    return counts


def frame_of(rgb: npt.NDArray[np.uint8]) -> arr_stream.Frame:
    """Return a frame made by the program."""
    return arr_stream.Frame(index=0, pts_seconds=0.0, rgb=rgb)


def main() -> int:
    """Return the exit code of the package's error, if any."""
    try:
        counts = cells_seen(Path(sys.argv[1]), "red")
    except arr_stream.ArrStreamError as error:
        assert_type(error.exit_code, int)
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    assert_type(arr_stream.__version__, str)
    sys.stdout.write(f"{arr_stream.__version__}: {len(counts)} frames, {sum(counts)} cells\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
