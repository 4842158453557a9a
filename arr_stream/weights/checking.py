"""Are these still the weights that they should be?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arr_stream.errors import ArrStreamError, WeightsInvalid
from arr_stream.weights.catalogue import KnownWeights
from arr_stream.weights.loading import load_state_dict
from arr_stream.weights.places import check_size, on_disk, read_note

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found.

    Args:
        name: The weights.
        state: `ok`; `readable` (nothing to compare with, but it holds sound tensors); `missing`; `failed`.
        detail: What it was compared with, or what is wrong.
        path: The file, where there is one.
    """

    name: str
    state: Literal["ok", "readable", "missing", "failed"]
    detail: str
    path: Path | None = None


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hash of a file in hexadecimal; `progress` hears how many bytes each block had."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if progress is not None:
                progress(len(block))
    return digest.hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file with a hash in hexadecimal.

    Raises:
        WeightsInvalid: They differ.
    """
    found = sha256_of(path)
    if found != expected.lower():
        raise WeightsInvalid(
            f"{path}: SHA-256 is {found}, expected {expected.lower()}",
            remedy="it is damaged or another file; fetch it again with `arr-stream models fetch NAME --force`",
        )


def verify(weights: KnownWeights, models_folder: Path) -> Verdict:
    """Compare weights on disk with the catalogue's hash, else with the one noted when they were fetched.

    Where there is neither, see whether they hold sound tensors.
    """
    path = on_disk(weights, models_folder)
    if path is None:
        return Verdict(weights.name, "missing", f"not in {models_folder}; fetch it, or put {weights.file_name} there")
    note = read_note(path)
    # The catalogue speaks of one file only; another one in its place can still be sound.
    published = weights.sha256 if path.name == weights.file_name else None
    try:
        check_size(weights, path)
        if published is not None:
            check_sha256(path, published)
            return Verdict(weights.name, "ok", "SHA-256 as in the catalogue", path)
        if note is not None:
            check_sha256(path, note.sha256)
            said = "as the hub stated it" if note.hash_source == "hub" else "of the download, which nobody vouched for"
            return Verdict(weights.name, "ok", f"SHA-256 {said}, noted {note.date}", path)
        tensors = len(load_state_dict(path))
        return Verdict(weights.name, "readable", f"no hash to compare with; {tensors} sound tensors", path)
    except ArrStreamError as error:
        return Verdict(weights.name, "failed", error.message, path)
