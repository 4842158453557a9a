"""arr-stream: choice of the patches of each frame that a vision-language model should see.

    import arr_stream

    for patches in arr_stream.open("street.mp4", query="red"):
        print(patches.pts_seconds, patches.cells_xyxy)
        crops = patches.crops()  # [N, 32, 32, 3] uint8

Importing this package loads neither torch nor OpenCV; the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.errors import ArrStreamError
    from arr_stream.patch_set import PatchSet
    from arr_stream.pipeline import Pipeline
    from arr_stream.stream import Stream, open
    from arr_stream.types import Frame, Grid

__version__ = "0.1.0"

__all__ = ["ArrStreamError", "Frame", "Grid", "PatchSet", "Pipeline", "Settings", "Stream", "__version__", "open"]

_HOMES = {
    "ArrStreamError": "arr_stream.errors",
    "Frame": "arr_stream.types",
    "Grid": "arr_stream.types",
    "PatchSet": "arr_stream.patch_set",
    "Pipeline": "arr_stream.pipeline",
    "Settings": "arr_stream.config",
    "Stream": "arr_stream.stream",
    "open": "arr_stream.stream",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'arr_stream' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
