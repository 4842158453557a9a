"""Model weights on disk: a catalogue, their folders, their download, and safe loading.

find(name, settings.models) -> Path          a known weight's file, downloaded first if allowed
load_state_dict(path) -> dict[str, Tensor]   its tensors, and nothing but tensors
pick_device(settings.models.device)          the device for them
"""

from __future__ import annotations

from arr_stream.weights.catalogue import CATALOGUE, PCA_NAME, KnownWeights, known, tiny_clip_folder
from arr_stream.weights.fetching import fetch, find
from arr_stream.weights.loading import load_state_dict, pick_device, verify
from arr_stream.weights.places import check_sha256, folder, noted, on_disk, sha256_of

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
    "noted",
    "on_disk",
    "pick_device",
    "sha256_of",
    "tiny_clip_folder",
    "verify",
]
