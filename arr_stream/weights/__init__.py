"""Model weights on disk: a catalogue, their folders, their download, and safe loading.

find(name, settings.models) -> Path          a known weight's file, downloaded first if allowed
load_state_dict(path) -> dict[str, Tensor]   its tensors, and nothing but tensors
pick_device(settings.models.device)          the device for them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.weights.catalogue import CATALOGUE, PCA_NAME, KnownWeights, folder, known, on_disk, shipped_folder
from arr_stream.weights.loading import check_sha256, load_state_dict, pick_device, sha256_of, verify

if TYPE_CHECKING:
    from arr_stream.weights.fetching import fetch, find

__all__ = [
    "CATALOGUE",
    "PCA_NAME",
    "KnownWeights",
    "check_sha256",
    "fetch",
    "find",
    "folder",
    "known",
    "load_state_dict",
    "on_disk",
    "pick_device",
    "sha256_of",
    "shipped_folder",
    "verify",
]


def __getattr__(name: str) -> object:
    # The network's modules take 50 ms to import, and most runs need no download.
    if name not in ("fetch", "find"):
        raise AttributeError(f"module 'arr_stream.weights' has no attribute {name!r}")
    from arr_stream.weights import fetching

    return getattr(fetching, name)
