"""Model weights on disk: a catalogue, their folders, their download, and safe loading.

find(name, settings.models) -> Path          a known weight's file, downloaded first if allowed
load_state_dict(path) -> dict[str, Tensor]   its tensors, and nothing but tensors
pick_device(settings.models.device)          the device for them
"""

from __future__ import annotations

from arr_stream.weights.catalogue import CATALOGUE, PCA_NAME, KnownWeights, folder, known, on_disk, shipped_folder
from arr_stream.weights.fetching import fetch, find
from arr_stream.weights.loading import check_sha256, load_state_dict, pick_device, sha256_of, verify

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
