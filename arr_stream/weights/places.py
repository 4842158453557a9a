"""Locations of weights on disk, and the notes that identify them.

    FOLDER/NAME/FILE          the weights, with characters in NAME replaced that file systems dislike FOLDER/NAME/NOTE
    their origin, and the size and hash that it stated

A file that the user put there by hand counts as much as a downloaded one; it has no note.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from arr_stream.errors import WeightsInvalid
from arr_stream.files import expanded
from arr_stream.weights.catalogue import CATALOGUE, HUB, PCA_NAME, HubFile, KnownWeights, ShippedFile, WebFile

NOTE_FILE = "arr-stream-weights.json"
_WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class Note:
    """Note beside a downloaded file.

    Args:
        name: Name of the weights.
        file_name: The file.
        origin: URL of the download.
        size_bytes: Its size.
        sha256: Its hash, in hexadecimal.
        hash_source: Source of the hash: `catalogue`, `hub` (the origin stated it before the download), or `download`
            (no
            statement: the hash of the received file, which only shows later damage).
        date: Time of the download, UTC, ISO 8601.
    """

    name: str
    file_name: str
    origin: str
    size_bytes: int
    sha256: str
    hash_source: str
    date: str


_NOTE = TypeAdapter(Note)


def folder(setting: str = "auto") -> Path:
    """Return the folder of all weights: `models.folder`, else ARR_STREAM_MODELS, else one in the user's cache."""
    chosen = setting if setting != "auto" else os.environ.get("ARR_STREAM_MODELS", "")
    if chosen:
        return expanded(chosen)
    return _user_cache() / "arr-stream" / "models"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths be ignored.
    return Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"


def place(weights: KnownWeights, models_folder: Path) -> Path:
    """Return the folder of one model's weights; it may not exist yet."""
    if isinstance(weights.origin, ShippedFile):
        return weights.origin.path.parent
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", weights.name.replace(":", "--"))
    return models_folder / re.sub(r"^[.]*$|^[.]+", "_", safe)


def on_disk(weights: KnownWeights, models_folder: Path) -> Path | None:
    """Return the weights' file if it exists: under its own name, or else the only weights file in the folder."""
    here = place(weights, models_folder)
    expected = here / weights.file_name
    if expected.is_file():
        return expected
    if isinstance(weights.origin, ShippedFile) or not here.is_dir():
        return None
    files = [path for path in here.iterdir() if path.suffix in _WEIGHTS_SUFFIXES and path.is_file()]
    others = [path for path in files if path.name != PCA_NAME]
    return others[0] if len(others) == 1 else None


def check_size(weights: KnownWeights, path: Path) -> None:
    """Check the size, a cheap test for truncated files; `verify` checks the hash.

    Raises:
        WeightsInvalid: The size differs from the catalogue's or the note's.
    """
    note = read_note(path)
    expected = note.size_bytes if note else weights.size_bytes if path.name == weights.file_name else None
    size = path.stat().st_size
    if expected is not None and size != expected:
        raise WeightsInvalid(
            f"{path}: {size} bytes, expected {expected}",
            remedy=f"fetch it again with `arr-stream models fetch {weights.name} --force`",
        )


def noted(models_folder: Path) -> list[KnownWeights]:
    """Return the weights outside the catalogue that were downloaded into the folder, according to their notes."""
    notes = [_parse(note_file) for note_file in sorted(models_folder.glob(f"*/{NOTE_FILE}"))]
    return [
        KnownWeights(note.name, "clip", _origin(note), "unknown")
        for note in notes
        if note and note.name not in CATALOGUE
    ]


def _origin(note: Note) -> HubFile | WebFile:
    if note.origin.startswith(HUB):
        return HubFile(note.origin.removeprefix(HUB), note.file_name)
    return WebFile(note.origin)


def read_note(path: Path) -> Note | None:
    """Return the note of a file; None without one."""
    note = _parse(path.parent / NOTE_FILE)
    return note if note is not None and note.file_name == path.name else None


def _parse(note_file: Path) -> Note | None:
    try:
        return _NOTE.validate_json(note_file.read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def write_note(path: Path, note: Note) -> None:
    """Write the note beside the file."""
    (path.parent / NOTE_FILE).write_text(json.dumps(asdict(note), indent=1) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Return the hash of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file with a hash in hexadecimal.

    Raises:
        WeightsInvalid: They differ.
    """
    found = sha256_of(path)
    if found != expected.lower():
        raise WeightsInvalid(
            f"{path}: SHA-256 is {found}, expected {expected.lower()}",
            remedy="the file is damaged or another one; get it again, with `arr-stream models fetch NAME --force` "
            "where `arr-stream models list` names it",
        )
