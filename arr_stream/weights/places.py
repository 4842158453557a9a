"""Where weights lie on disk.

    FOLDER/NAME/FILE          the weights, NAME with what file systems dislike replaced
    FOLDER/NAME/NOTE          where they came from, their size and hash as the origin stated them

A file that someone put there by hand counts as much as one that was fetched; it merely has no note.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream.config import ModelSettings
from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.weights.catalogue import (
    CATALOGUE,
    HUB,
    PCA_NAME,
    HubFile,
    KnownWeights,
    ShippedFile,
    WebFile,
    known,
    tiny_clip_folder,
)

if TYPE_CHECKING:
    from arr_stream.weights.web import Progress

NOTE_FILE = "arr-stream-weights.json"
_WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class Note:
    """What is kept beside a fetched file.

    Args:
        name: Name of the weights.
        file_name: The file.
        origin: Where it was fetched from.
        size_bytes: Its size.
        sha256: Its hash, in hexadecimal.
        hash_source: Who vouches for the hash: `catalogue`, `hub` (the origin stated it before the download), or
            `download` (nobody stated one: it is the hash of what arrived, and shows later damage only).
        date: When it was fetched, UTC, ISO 8601.
    """

    name: str
    file_name: str
    origin: str
    size_bytes: int
    sha256: str
    hash_source: str
    date: str


def folder(setting: str = "auto") -> Path:
    """The folder of all weights: `models.folder`, else ARR_STREAM_MODELS, else the user's cache; it need not exist."""
    chosen = setting if setting != "auto" else os.environ.get("ARR_STREAM_MODELS", "")
    if chosen:
        return Path(chosen).expanduser()
    return _user_cache() / "arr-stream" / "models"


def _user_cache() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"


def place(weights: KnownWeights, models_folder: Path) -> Path:
    """The folder of one model's weights; it need not exist yet."""
    if isinstance(weights.origin, ShippedFile):
        return weights.origin.path.parent
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", weights.name.replace(":", "--"))
    return models_folder / re.sub(r"^[.]*$|^[.]+", "_", safe)


def on_disk(weights: KnownWeights, models_folder: Path) -> Path | None:
    """The weights' file, if it is there: under its own name, or else the one weights file in its place."""
    here = place(weights, models_folder)
    expected = here / weights.file_name
    if expected.is_file():
        return expected
    if isinstance(weights.origin, ShippedFile) or not here.is_dir():
        return None
    others = [
        path
        for path in sorted(here.iterdir())
        if path.suffix in _WEIGHTS_SUFFIXES and path.name != PCA_NAME and path.is_file()
    ]
    return others[0] if len(others) == 1 else None


def find(name: str, models: ModelSettings, progress: Progress | None = None) -> Path:
    """The file of known weights, fetched first where it is missing and `models.download` is set.

    Companions (a tokenizer) lie beside it. For `tiny` the folder is the package's own, which open_clip reads as
    `local-dir:`.

    Args:
        name: `tiny`, `vit_b`, `vit_l`, `vit_h`, or NAME:PRETRAINED as open_clip writes it.
        models: Where to look, and whether to fetch.
        progress: Hears how far a fetch is.

    Raises:
        InvalidSetting: No such name.
        BackendUnavailable: The weights are not on disk and may not be fetched, or open_clip is needed and missing.
        WeightsInvalid: The file is shorter or longer than it must be.
        FetchFailed: They could not be fetched.
    """
    weights = known(name)
    models_folder = folder(models.folder)
    path = on_disk(weights, models_folder)
    if path is not None:
        check_size(weights, path)
        return path
    if isinstance(weights.origin, ShippedFile):
        return tiny_clip_folder() / weights.file_name
    if not models.download:
        raise BackendUnavailable(
            f"weights {name} are not in {models_folder}",
            remedy=f"fetch them with `arr-stream models fetch {name}`, or allow it with --download",
        )
    from arr_stream.weights.fetching import fetch

    return fetch(weights, models_folder, progress=progress)


def check_size(weights: KnownWeights, path: Path) -> None:
    """Cheap check for files cut short; the hash is for `verify`.

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
    """Weights outside the catalogue that were fetched into the folder, as their notes tell of them."""
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
    """What was noted when this file was fetched; None for files that came another way."""
    note = _parse(path.parent / NOTE_FILE)
    return note if note is not None and note.file_name == path.name else None


def _parse(note_file: Path) -> Note | None:
    try:
        note = Note(**json.loads(note_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (note.name, note.file_name, note.origin, note.sha256, note.hash_source, note.date)
    return note if type(note.size_bytes) is int and all(isinstance(text, str) for text in texts) else None


def write_note(path: Path, note: Note) -> None:
    """Keep the note beside the file."""
    (path.parent / NOTE_FILE).write_text(json.dumps(asdict(note), indent=1) + "\n", encoding="utf-8")
