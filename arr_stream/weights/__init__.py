"""Weights on disk: which ones there are, where they lie, how they get there, and how they are read without trust.

find(name, settings.models) -> Path          a known weight's file, fetched first where that is allowed
load_state_dict(path) -> dict[str, Tensor]   its tensors, and nothing but tensors
pick_device(settings.models.device)          where they go
"""

from __future__ import annotations

from arr_stream.weights.catalogue import CATALOGUE, PCA_NAME, KnownWeights, known, tiny_clip_folder
from arr_stream.weights.checking import check_sha256, sha256_of, verify
from arr_stream.weights.device import pick_device
from arr_stream.weights.fetching import fetch
from arr_stream.weights.loading import load_state_dict
from arr_stream.weights.places import find, folder, noted, on_disk

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
