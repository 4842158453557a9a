"""Weights brought from the Hugging Face hub or the web, only ever because someone asked.

What arrives lies beside its place under another name until it is whole and its hash is right; a fetch that was cut off
goes on where it stopped. No credentials are sent.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arr_stream.errors import BackendUnavailable, FetchFailed
from arr_stream.weights.catalogue import HUB_WEIGHTS, HubFile, KnownWeights, ShippedFile, WebFile
from arr_stream.weights.places import Note, on_disk, place, write_note
from arr_stream.weights.web import Progress, check_room, fetch_url

MAX_BYTES = 20 * 2**30
"""Weights of unknown size are refused beyond this."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_TOKENIZER_MAX_BYTES = 256 * 2**20
_HUB_PICKLE = "open_clip_pytorch_model.bin"
_STAGING = ".fetching"


def fetch(
    weights: KnownWeights,
    models_folder: Path,
    *,
    progress: Progress | None = None,
    force: bool = False,
    hub_endpoint: str | None = None,
    allow_http: bool = False,
) -> Path:
    """Bring weights, and the tokenizer where the model needs one, to their place.

    Args:
        weights: Which.
        models_folder: Folder of all weights; made if need be.
        progress: Hears the bytes that are there and the bytes in all (None where unknown).
        force: Fetch even what is there already; the old file stays until the new one is whole and right.
        hub_endpoint: Another hub than the one that huggingface_hub is set to.
        allow_http: Permit plain HTTP, for servers on this machine.

    Returns:
        The weights' file.

    Raises:
        FetchFailed: No connection, no such file, too large, no room, cut off, or with another hash than stated.
        BackendUnavailable: huggingface_hub is needed and not installed.
    """
    if isinstance(weights.origin, ShippedFile):
        return weights.origin.path
    here = place(weights, models_folder)
    try:
        here.mkdir(parents=True, exist_ok=True)
        path = None if force else on_disk(weights, models_folder)
        if path is None:
            if isinstance(weights.origin, WebFile):
                path = _fetch_web(weights, weights.origin, here, progress, allow_http)
            else:
                path = _fetch_hub(weights, weights.origin, here, progress, hub_endpoint)
        _fetch_tokenizer(weights, here, force, hub_endpoint)
    except OSError as exc:
        raise FetchFailed(
            f"{weights.name}: {exc.strerror or type(exc).__name__} in {here}",
            remedy="make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER",
        ) from exc
    shutil.rmtree(here / _STAGING, ignore_errors=True)
    return path


def _fetch_web(weights: KnownWeights, origin: WebFile, here: Path, progress: Progress | None, allow_http: bool) -> Path:
    target = here / origin.file_name
    digest = fetch_url(
        origin.url,
        target,
        sha256=weights.sha256,
        size_bytes=weights.size_bytes,
        max_bytes=weights.size_bytes or MAX_BYTES,
        progress=progress,
        allow_http=allow_http,
    )
    _note(weights, target, digest, "catalogue" if weights.sha256 else "download")
    return target


def _fetch_hub(
    weights: KnownWeights, origin: HubFile, here: Path, progress: Progress | None, endpoint: str | None
) -> Path:
    names = [origin.file_name]
    if weights.sha256 is None and origin.file_name == HUB_WEIGHTS:
        # Older repositories of open_clip hold nothing but this pickle, which is read by torch's restricted reader.
        names.append(_HUB_PICKLE)
    staged, stated = _from_hub(origin.repository, names, origin.revision, here, endpoint, progress, MAX_BYTES)
    expected = weights.sha256 or stated
    from arr_stream.weights.checking import sha256_of

    digest = sha256_of(staged)
    if expected is not None and digest != expected:
        staged.unlink()
        raise FetchFailed(
            f"{weights.name}: what {origin} sent has SHA-256 {digest}, expected {expected}; it was thrown away",
            remedy="try again; if it stays so, the file was changed or tampered with on the way",
        )
    target = here / staged.name
    staged.replace(target)
    _note(weights, target, digest, "catalogue" if weights.sha256 else "hub" if stated else "download")
    return target


def _fetch_tokenizer(weights: KnownWeights, here: Path, force: bool, endpoint: str | None) -> None:
    for name in TOKENIZER_FILES if weights.tokenizer else ():
        if force or not (here / name).is_file():
            staged, _ = _from_hub(weights.tokenizer, [name], "main", here, endpoint, None, _TOKENIZER_MAX_BYTES)
            staged.replace(here / name)


def _note(weights: KnownWeights, path: Path, digest: str, hash_source: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = Note(weights.name, path.name, str(weights.origin), path.stat().st_size, digest, hash_source, now)
    write_note(path, note)


def _from_hub(
    repository: str,
    names: list[str],
    revision: str,
    here: Path,
    endpoint: str | None,
    progress: Progress | None,
    max_bytes: int,
) -> tuple[Path, str | None]:
    """The first of the named files that the repository has, staged, and its SHA-256 as the hub states it."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise FetchFailed(
            f"{repository} is on the Hugging Face hub, and HF_HUB_OFFLINE forbids going there",
            remedy=f"unset it, or put {names[0]} into {here} by hand",
        )
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as exc:
        raise BackendUnavailable(
            f"{repository} is on the Hugging Face hub, and huggingface_hub is not installed",
            remedy="pip install 'arr-stream[clip]'",
        ) from exc
    for name in names:
        try:
            url = hf_hub_url(repository, name, revision=revision, endpoint=endpoint)
            try:
                stated = get_hf_file_metadata(url, token=False, endpoint=endpoint)
            except EntryNotFoundError:
                continue
            check_room(here, name, stated.size, max_bytes)
            with _client_quiet():
                staged = hf_hub_download(
                    repository,
                    name,
                    revision=revision,
                    local_dir=here / _STAGING,
                    endpoint=endpoint,
                    token=False,
                    tqdm_class=_reporting_to(progress, stated.size),
                )
        except FetchFailed:
            raise
        except Exception as exc:  # The hub's client passes on the errors of every layer below it.
            raise FetchFailed(
                f"{repository}/{name}: {_first_line(exc)}",
                remedy=f"check the connection and run it again, which goes on where it stopped; or put it into {here}",
            ) from exc
        # Large files are known by their SHA-256, small ones by a git hash that is of no use here.
        is_sha256 = re.fullmatch(r"[0-9a-f]{64}", stated.etag or "") is not None
        return Path(str(staged)), stated.etag if is_sha256 else None
    raise FetchFailed(
        f"{repository} at {revision} has no file {' or '.join(names)}", remedy="see which files it has on the hub"
    )


def _first_line(exc: Exception) -> str:
    """What the client says, without the signed part of addresses."""
    line = (str(exc).strip().splitlines() or [""])[0]
    return f"{type(exc).__name__}: {re.sub(r'[?][^ ]*', '', line)[:200]}"


@contextmanager
def _client_quiet() -> Iterator[None]:
    """The client's warnings hold signed addresses, which belong in no log."""
    from huggingface_hub.utils import logging as client_logging

    before = client_logging.get_verbosity()
    client_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        client_logging.set_verbosity(before)


def _reporting_to(progress: Progress | None, total: int | None) -> Any:
    """A stand-in for the hub client's progress bar that draws nothing and passes the count on."""
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
