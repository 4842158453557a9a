"""Download of weights from the Hugging Face hub or the web, only on request.

A file is staged under another name until it is complete and its hash is right. No credentials are sent.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_stream.config import ModelSettings
from arr_stream.errors import BackendUnavailable, FetchFailed
from arr_stream.extras import remedy_for
from arr_stream.weights.catalogue import (
    HUB_WEIGHTS,
    HubFile,
    KnownWeights,
    ShippedFile,
    WebFile,
    known,
    shipped_folder,
)
from arr_stream.weights.places import Note, check_size, folder, on_disk, place, sha256_of, write_note

if TYPE_CHECKING:
    from arr_stream.weights.web import Progress

MAX_BYTES = 20 * 2**30
"""Largest download of weights of unknown size."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_TOKENIZER_MAX_BYTES = 256 * 2**20
_HUB_PICKLE = "open_clip_pytorch_model.bin"
_STAGING = ".fetching"


def find(name: str, models: ModelSettings, progress: Progress | None = None) -> Path:
    """Return the file of known weights; download it if it is missing and `models.download` is set.

    Companions (a tokenizer) are in the same folder. For `tiny`, the folder is the package's own, which open_clip reads
    as `local-dir:`.

    Raises:
        InvalidSetting: No such name.
        BackendUnavailable: The weights are not on disk and may not be downloaded, or open_clip is needed and missing.
        WeightsInvalid: The file has the wrong size.
        FetchFailed: The download failed.
    """
    weights = known(name)
    models_folder = folder(models.folder)
    if (path := on_disk(weights, models_folder)) is not None:
        check_size(weights, path)
        return path
    if isinstance(weights.origin, ShippedFile):
        return shipped_folder(name) / weights.file_name
    if not models.download:
        raise BackendUnavailable(
            f"weights {name} are not in {models_folder}",
            remedy=f"fetch them with `arr-stream models fetch {name}`, or set models.download=true",
        )
    return fetch(weights, models_folder, progress=progress)


def fetch(
    weights: KnownWeights,
    models_folder: Path,
    *,
    progress: Progress | None = None,
    force: bool = False,
    hub_endpoint: str | None = None,
) -> Path:
    """Download weights, and the tokenizer if the model needs one, into their folder.

    Args:
        weights: The weights to download.
        models_folder: Folder of all weights; created if needed.
        progress: Called with the bytes so far and the bytes in all (None if unknown).
        force: Download again; the old file stays until the new one is complete and right.
        hub_endpoint: Another hub than the one that huggingface_hub is set to.

    Returns:
        The weights' file.

    Raises:
        FetchFailed: No connection, no such file, too large, no disk space, cut off, or a wrong hash.
        BackendUnavailable: huggingface_hub is needed and not installed.
    """
    origin = weights.origin
    if isinstance(origin, ShippedFile):
        return origin.path
    here = place(weights, models_folder)
    try:
        here.mkdir(parents=True, exist_ok=True)
        path = None if force else on_disk(weights, models_folder)
        if path is None and isinstance(origin, WebFile):
            path = _fetch_web(weights, origin, here, progress)
        if path is None:
            assert isinstance(origin, HubFile)
            path = _fetch_hub(weights, origin, here, progress, hub_endpoint)
        for name in TOKENIZER_FILES if weights.tokenizer else ():
            if force or not (here / name).is_file():
                staged, _ = _from_hub(HubFile(weights.tokenizer, name), (), here, hub_endpoint, None)
                staged.replace(here / name)
    except OSError as exc:
        raise FetchFailed(
            f"{weights.name}: {exc.strerror or type(exc).__name__} in {here}",
            remedy="make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER",
        ) from exc
    shutil.rmtree(here / _STAGING, ignore_errors=True)
    return path


def fetch_repository(
    repository: str, target: Path, patterns: Sequence[str], *, max_bytes: int, hub_endpoint: str | None = None
) -> None:
    """Download the files of a hub repository that match patterns into a folder, which is created if needed.

    An interrupted download keeps complete files; the next call continues from there.

    Raises:
        FetchFailed: No connection, no such repository, too large, no disk space, or cut off.
        BackendUnavailable: huggingface_hub is not installed.
    """
    from arr_stream.weights.web import check_room

    with _hub_client(repository, "the model's files", target, "vlm") as hub:
        target.mkdir(parents=True, exist_ok=True)
        what: dict[str, Any] = {
            "allow_patterns": list(patterns),
            "local_dir": target,
            "endpoint": hub_endpoint,
            "token": False,
            "tqdm_class": _reporting_to(None, None),
        }
        planned = hub.snapshot_download(repository, dry_run=True, **what)
        check_room(target, repository, sum(file.file_size for file in planned if file.will_download), max_bytes)
        hub.snapshot_download(repository, max_workers=2, **what)


def _fetch_web(weights: KnownWeights, origin: WebFile, here: Path, progress: Progress | None) -> Path:
    from arr_stream.weights.web import fetch_url

    target = here / origin.file_name
    digest = fetch_url(
        origin.url,
        target,
        sha256=weights.sha256,
        size_bytes=weights.size_bytes,
        max_bytes=weights.size_bytes or MAX_BYTES,
        progress=progress,
    )
    _note(weights, target, digest, "download")
    return target


def _fetch_hub(
    weights: KnownWeights, origin: HubFile, here: Path, progress: Progress | None, endpoint: str | None
) -> Path:
    # Older repositories of open_clip have only a pickle, which torch's restricted reader reads.
    others = (_HUB_PICKLE,) if weights.sha256 is None and origin.file_name == HUB_WEIGHTS else ()
    staged, stated = _from_hub(origin, others, here, endpoint, progress)
    expected, digest = weights.sha256 or stated, sha256_of(staged)
    if expected is not None and digest != expected:
        staged.unlink()
        raise FetchFailed(
            f"{weights.name}: the file from {origin} has SHA-256 {digest}, expected {expected}; it was deleted",
            remedy="try again; if this repeats, the file was replaced, or tampered with in transit",
        )
    target = staged.replace(here / staged.name)
    _note(weights, target, digest, "hub" if stated else "download")
    return target


def _note(weights: KnownWeights, path: Path, digest: str, source: str) -> None:
    now, vouched = datetime.now(UTC).isoformat(timespec="seconds"), "catalogue" if weights.sha256 else source
    write_note(path, Note(weights.name, path.name, str(weights.origin), path.stat().st_size, digest, vouched, now))


def _from_hub(
    origin: HubFile, others: Sequence[str], here: Path, endpoint: str | None, progress: Progress | None
) -> tuple[Path, str | None]:
    """Stage a file, or the first of others if the repository lacks it; return it with the hub's SHA-256 of it."""
    from arr_stream.weights.web import check_room

    repository, names = origin.repository, (origin.file_name, *others)
    with _hub_client(repository, origin.file_name, here, "clip") as hub:
        for name in names:
            url = hub.hf_hub_url(repository, name, revision=origin.revision, endpoint=endpoint)
            try:
                stated = hub.get_hf_file_metadata(url, token=False, endpoint=endpoint)
            except hub.errors.EntryNotFoundError:
                continue
            check_room(here, name, stated.size, _TOKENIZER_MAX_BYTES if name in TOKENIZER_FILES else MAX_BYTES)
            staged = hub.hf_hub_download(
                repository,
                name,
                revision=origin.revision,
                local_dir=here / _STAGING,
                endpoint=endpoint,
                token=False,
                tqdm_class=_reporting_to(progress, stated.size),
            )
            # The hub states a SHA-256 for large files, and a git hash, which is of no use here, for small ones.
            is_sha256 = re.fullmatch(r"[0-9a-f]{64}", stated.etag or "") is not None
            return Path(str(staged)), stated.etag if is_sha256 else None
    raise FetchFailed(
        f"{repository} at {origin.revision} has no file {' or '.join(names)}",
        remedy="see which files it has on the hub",
    )


@contextmanager
def _hub_client(repository: str, wanted: str, here: Path, extra: str) -> Iterator[Any]:
    """Import huggingface_hub silenced, and turn its errors into one line; refuse if the environment forbids access."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise FetchFailed(
            f"{repository} is on the Hugging Face hub, and HF_HUB_OFFLINE forbids going there",
            remedy=f"unset it, or put {wanted} into {here} by hand",
        )
    try:
        import huggingface_hub
        import huggingface_hub.errors
        from huggingface_hub.utils import logging as client_logging
    except ImportError as exc:
        raise BackendUnavailable(
            f"{repository} is on the Hugging Face hub, and huggingface_hub is not installed",
            remedy=remedy_for(extra),
        ) from exc
    before = client_logging.get_verbosity()
    # The client's warnings contain signed addresses, which must not be logged.
    client_logging.set_verbosity(logging.ERROR)
    try:
        yield huggingface_hub
    except FetchFailed:
        raise
    except Exception as exc:  # The hub's client passes on the errors of every layer below it.
        # Cut at the question mark: the query of an address is signed.
        line = re.sub(r"[?]\S*", "", (str(exc).strip().splitlines() or [""])[0])[:200]
        raise FetchFailed(
            f"{repository}: {type(exc).__name__}: {line}",
            remedy=f"check the name and the connection and run it again, which resumes the download; or put "
            f"{wanted} into {here}",
        ) from exc
    finally:
        client_logging.set_verbosity(before)


def _reporting_to(progress: Progress | None, total: int | None) -> Any:
    """Return a substitute for the hub client's progress bar that draws nothing and passes the count on."""
    from huggingface_hub.utils.tqdm import tqdm

    class Passing(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self._there = int(options.get("initial") or 0)
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            self._there += int(n or 0)
            if progress is not None:
                progress(self._there, total)
            return None

    return Passing
