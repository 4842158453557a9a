"""Download of weights from the Hugging Face hub or the web, only on request.

A file gets its name only when it is complete and its hash is right. No credentials are sent.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from arr_stream.config import ModelSettings
from arr_stream.errors import BackendUnavailable, FetchFailed, WeightsInvalid
from arr_stream.extras import needed_by
from arr_stream.weights.catalogue import HubFile, KnownWeights, folder, known, on_disk, place
from arr_stream.weights.loading import sha256_of

MAX_BYTES = 20 * 2**30
"""Largest download of weights of unknown size."""
TIMEOUT_SECONDS = 30.0
"""Longest wait for data from the web."""
_SPARE_BYTES = 64 * 2**20
"""Disk space that must remain free besides the file."""


def find(name: str, models: ModelSettings) -> Path:
    """Return the file of known weights; download it if it is missing and `models.download` is set.

    Raises:
        InvalidSetting: No such name.
        BackendUnavailable: The weights are not on disk and may not be downloaded, or open_clip is needed and missing.
        WeightsInvalid: The file has the wrong size.
        FetchFailed: The download failed.
    """
    weights = known(name)
    models_folder = folder(models.folder)
    path = on_disk(weights, models_folder)
    if path is None and not models.download:
        raise BackendUnavailable(
            f"weights {name} are not in {models_folder}",
            remedy=f"fetch them with `arr-stream models fetch {name}`, or set models.download=true",
        )
    if path is None:
        return fetch(weights, models_folder)
    # A cheap test for truncated files; `verify` checks the hash.
    size, expected = path.stat().st_size, weights.size_bytes
    if expected is not None and size != expected and path.name == weights.file_name:
        raise WeightsInvalid(
            f"{path}: {size} bytes, expected {expected}",
            remedy=f"fetch it again with `arr-stream models fetch {name} --force`",
        )
    return path


def fetch(weights: KnownWeights, models_folder: Path, *, force: bool = False, hub_endpoint: str | None = None) -> Path:
    """Download weights into their folder, with a progress bar on a terminal, and return their file.

    Args:
        weights: The weights to download.
        models_folder: Folder of all weights; created if needed.
        force: Download again; the old file stays until the new one is complete and right.
        hub_endpoint: Another hub than the one that huggingface_hub is set to.

    Raises:
        FetchFailed: No connection, no such file, too large, no disk space, cut off, or a wrong hash.
        BackendUnavailable: huggingface_hub is needed and not installed.
    """
    origin = weights.origin
    if isinstance(origin, Path):
        return origin
    if not force and (path := on_disk(weights, models_folder)) is not None:
        return path
    here = place(weights, models_folder)
    try:
        here.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetching-", dir=here) as staging:
            staged = Path(staging) / weights.file_name
            stated = None
            if isinstance(origin, HubFile):
                stated = _from_hub(origin, staged, hub_endpoint)
            else:
                _from_web(origin, staged, weights.size_bytes)
            expected = weights.sha256 or stated
            if expected is not None and (digest := sha256_of(staged)) != expected:
                raise FetchFailed(
                    f"{weights.name}: the file from {origin} has SHA-256 {digest}, expected {expected}; it was deleted",
                    remedy="try again; if this repeats, the file was replaced, or tampered with in transit",
                )
            return staged.replace(here / staged.name)
    except OSError as exc:
        raise FetchFailed(
            f"{weights.name} from {origin}: {_one_line(exc)}",
            remedy=f"check the network and any proxy, and that {here} has room, and run it again",
        ) from exc


def fetch_repository(
    repository: str, target: Path, patterns: Sequence[str], *, max_bytes: int, hub_endpoint: str | None = None
) -> None:
    """Download the files of a hub repository that match patterns into a folder, which is created if needed.

    An interrupted download keeps complete files; the next call continues from there.

    Raises:
        FetchFailed: No connection, no such repository, too large, no disk space, or cut off.
        BackendUnavailable: huggingface_hub is not installed.
    """
    with _hub_client(repository, "the model's files", target, "vlm") as hub:
        target.mkdir(parents=True, exist_ok=True)
        what = {"allow_patterns": list(patterns), "local_dir": target, "endpoint": hub_endpoint, "token": False}
        planned = hub.snapshot_download(repository, dry_run=True, **what)
        _check_room(target, repository, sum(file.file_size for file in planned if file.will_download), max_bytes)
        hub.snapshot_download(repository, max_workers=2, **what)


def _check_room(here: Path, name: str, size_bytes: int | None, max_bytes: int) -> None:
    """Refuse a file of unknown size, one that is too large, or one larger than the free disk space."""
    free = shutil.disk_usage(here).free - _SPARE_BYTES
    if size_bytes is None or size_bytes > min(free, max_bytes):
        raise FetchFailed(
            f"{name}: {size_bytes} bytes, at most {max_bytes} are allowed, and {free} are free in {here}",
            remedy="make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER",
        )


def _from_web(url: str, target: Path, size_bytes: int | None) -> None:
    """Download a file over https, redirects included: the opener has no handler for other addresses."""
    # These take 50 ms to import, and most runs need no download.
    import urllib.request
    from http.client import HTTPException

    from rich.console import Console
    from rich.progress import wrap_file

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    console = Console(stderr=True)
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as response, target.open("wb") as file:
            offered = response.length
            if offered is None or offered != (size_bytes or offered):
                raise FetchFailed(
                    f"{target.name}: the server offers {offered} bytes, expected {size_bytes}",
                    remedy="the file was replaced; put the right one in its place by hand",
                )
            _check_room(target.parent, target.name, offered, MAX_BYTES)
            quiet = not console.is_terminal
            with wrap_file(response, offered, description=target.name, console=console, disable=quiet) as reader:
                shutil.copyfileobj(reader, file)
    except HTTPException as exc:
        raise ConnectionError(f"no HTTP: {exc}") from exc


def _from_hub(origin: HubFile, target: Path, endpoint: str | None) -> str | None:
    """Download a file of the hub; return the SHA-256 that the hub states, as it does for large files."""
    repository, name, revision = origin.repository, origin.file_name, origin.revision
    with _hub_client(repository, name, target.parent.parent, "clip") as hub:
        url = hub.hf_hub_url(repository, name, revision=revision, endpoint=endpoint)
        stated = hub.get_hf_file_metadata(url, token=False, endpoint=endpoint)
        _check_room(target.parent, name, stated.size, MAX_BYTES)
        where = {"revision": revision, "local_dir": target.parent, "endpoint": endpoint, "token": False}
        hub.hf_hub_download(repository, name, **where)
    return stated.etag if re.fullmatch(r"[0-9a-f]{64}", stated.etag or "") else None


@contextmanager
def _hub_client(repository: str, wanted: str, here: Path, extra: str) -> Iterator[Any]:
    """Import huggingface_hub silenced, and turn its errors into one line; refuse if the environment forbids access."""
    by_hand = f"put {wanted} into {here} by hand"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise FetchFailed(f"{repository}: HF_HUB_OFFLINE forbids to fetch it", remedy=f"unset it, or {by_hand}")
    with needed_by(f"fetching {repository}", extra):
        import huggingface_hub
        from huggingface_hub.utils import logging as client_logging
    before = client_logging.get_verbosity()
    # The client's warnings contain signed addresses, which must not be logged.
    client_logging.set_verbosity(logging.ERROR)
    try:
        yield huggingface_hub
    except FetchFailed:
        raise
    except Exception as exc:  # The hub's client passes on the errors of every layer below it.
        raise FetchFailed(
            f"{repository}: {type(exc).__name__}: {_one_line(exc)}",
            remedy=f"check the name and the connection and run it again, or {by_hand}",
        ) from exc
    finally:
        client_logging.set_verbosity(before)


def _one_line(exc: Exception) -> str:
    """Return the first line of an error without the queries of addresses, which may be signed."""
    return re.sub(r"[?]\S*", "", (str(exc).strip().splitlines() or [""])[0])[:200]
