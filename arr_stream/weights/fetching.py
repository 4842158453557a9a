"""Download of weights from the Hugging Face hub or the web, only on request.

A file is staged under another name until it is complete and its hash is right. No credentials are sent.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any

from arr_stream.config import ModelSettings
from arr_stream.errors import BackendUnavailable, FetchFailed, WeightsInvalid
from arr_stream.extras import remedy_for
from arr_stream.weights.catalogue import HubFile, KnownWeights, folder, known, on_disk, place
from arr_stream.weights.loading import sha256_of

Progress = Callable[[int, int | None], object]
"""Callback with the bytes so far and the bytes in all (None if unknown)."""

MAX_BYTES = 20 * 2**30
"""Largest download of weights of unknown size."""
TIMEOUT_SECONDS = 30.0
"""Longest wait for data from the web."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_STAGING = ".fetching"
_BLOCK_BYTES = 1 << 18
_SPARE_BYTES = 64 * 2**20
"""Disk space that must remain free besides the file."""
_ROOM_REMEDY = "make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER"
_OTHER_MEANS = "if that is the right file, fetch it by other means and put it in its place"


def find(name: str, models: ModelSettings, progress: Progress | None = None) -> Path:
    """Return the file of known weights; download it if it is missing and `models.download` is set.

    Companions (a tokenizer) are in the same folder.

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
        return fetch(weights, models_folder, progress=progress)
    # A cheap test for truncated files; `verify` checks the hash.
    size, expected = path.stat().st_size, weights.size_bytes
    if expected is not None and size != expected and path.name == weights.file_name:
        raise WeightsInvalid(
            f"{path}: {size} bytes, expected {expected}",
            remedy=f"fetch it again with `arr-stream models fetch {name} --force`",
        )
    return path


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
    if isinstance(origin, Path):
        return origin
    here = place(weights, models_folder)
    staging = here / _STAGING
    try:
        here.mkdir(parents=True, exist_ok=True)
        path = None if force else on_disk(weights, models_folder)
        if path is None:
            if isinstance(origin, HubFile):
                staged, stated = _from_hub(origin, staging, hub_endpoint, progress)
            else:
                staged, stated = _from_web(origin, staging, weights.size_bytes, progress), None
            expected = weights.sha256 or stated
            if expected is not None and (digest := sha256_of(staged)) != expected.lower():
                staged.unlink()
                raise FetchFailed(
                    f"{weights.name}: the file from {origin} has SHA-256 {digest}, expected {expected}; it was deleted",
                    remedy="try again; if this repeats, the file was replaced, or tampered with in transit",
                )
            path = staged.replace(here / staged.name)
        for name in TOKENIZER_FILES if weights.tokenizer else ():
            if force or not (here / name).is_file():
                _from_hub(HubFile(weights.tokenizer, name), staging, hub_endpoint, None)[0].replace(here / name)
    except OSError as exc:
        raise FetchFailed(
            f"{weights.name}: {exc.strerror or type(exc).__name__} in {here}", remedy=_ROOM_REMEDY
        ) from exc
    shutil.rmtree(staging, ignore_errors=True)
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
        _check_room(target, repository, sum(file.file_size for file in planned if file.will_download), max_bytes)
        hub.snapshot_download(repository, max_workers=2, **what)


def _check_room(here: Path, name: str, size_bytes: int | None, max_bytes: int = MAX_BYTES) -> None:
    """Refuse a file that is too large, or larger than the free disk space."""
    if size_bytes is None:
        return
    if size_bytes > max_bytes:
        raise FetchFailed(f"{name}: {size_bytes} bytes, more than the {max_bytes} allowed", remedy=_OTHER_MEANS)
    free = shutil.disk_usage(here).free
    if size_bytes + _SPARE_BYTES > free:
        raise FetchFailed(
            f"{name}: needs {size_bytes / 1e6:.0f} MB in {here}, where {free / 1e6:.0f} MB are free",
            remedy=_ROOM_REMEDY,
        )


# The web


def _from_web(url: str, staging: Path, size_bytes: int | None, progress: Progress | None) -> Path:
    """Download a file over https into the folder; return its path there."""
    _check_scheme(url)
    source, target = _without_secrets(url), staging / Path(urllib.parse.urlsplit(url).path).name
    staging.mkdir(exist_ok=True)
    request = urllib.request.Request(url, headers={"User-Agent": "arr-stream", "Accept-Encoding": "identity"})
    try:
        with ExitStack() as on_failure:
            on_failure.callback(target.unlink, missing_ok=True)
            with urllib.request.build_opener(_SafeRedirects).open(request, timeout=TIMEOUT_SECONDS) as response:
                _receive(response, target, source, size_bytes, progress)
            on_failure.pop_all()
    except urllib.error.HTTPError as exc:
        raise FetchFailed(f"{source}: the server answers {exc.code}", remedy="run it again") from exc
    except urllib.error.URLError as exc:
        raise FetchFailed(f"{source}: no connection: {exc.reason}", remedy="check the network and any proxy") from exc
    except (TimeoutError, ConnectionError, ssl.SSLError, HTTPException) as exc:
        raise FetchFailed(f"{source}: cut off: {type(exc).__name__} {exc}", remedy="run it again") from exc
    return target


def _receive(
    response: HTTPResponse, target: Path, source: str, expected: int | None, progress: Progress | None
) -> None:
    """Write a server's response to a file of the expected size."""
    length = response.headers.get("Content-Length", "")
    total, max_bytes = int(length) if length.isdigit() else expected, expected or MAX_BYTES
    if expected is not None and total != expected:
        raise FetchFailed(
            f"{source}: the server offers {total} bytes, expected {expected}",
            remedy="the file was replaced; fetch another version, or put the right one in its place",
        )
    _check_room(target.parent, source, total)
    done = 0
    with target.open("wb") as file:
        while done <= max_bytes and (block := response.read(_BLOCK_BYTES)):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
    if done > max_bytes:
        raise FetchFailed(f"{source}: sends more than the {max_bytes} bytes allowed", remedy=_OTHER_MEANS)
    if done < (total or 0):
        raise FetchFailed(f"{source}: cut off after {done} of {total} bytes", remedy="run it again")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows redirects to https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _check_scheme(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme != "https":
        raise FetchFailed(
            f"{_without_secrets(url)}: not an https address", remedy="weights are fetched over https only"
        )


def _without_secrets(url: str) -> str:
    """Return the address without user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))


# The Hugging Face hub


def _from_hub(
    origin: HubFile, staging: Path, endpoint: str | None, progress: Progress | None
) -> tuple[Path, str | None]:
    """Stage a file; return it with the SHA-256 that the hub states, if it does."""
    repository, name, revision = origin.repository, origin.file_name, origin.revision
    with _hub_client(repository, name, staging.parent, "clip") as hub:
        url = hub.hf_hub_url(repository, name, revision=revision, endpoint=endpoint)
        stated = hub.get_hf_file_metadata(url, token=False, endpoint=endpoint)
        _check_room(staging.parent, name, stated.size)
        staged = hub.hf_hub_download(
            repository,
            name,
            revision=revision,
            local_dir=staging,
            endpoint=endpoint,
            token=False,
            tqdm_class=_reporting_to(progress, stated.size),
        )
    # The hub states a SHA-256 for large files, and a git hash, which is of no use here, for small ones.
    is_sha256 = re.fullmatch(r"[0-9a-f]{64}", stated.etag or "") is not None
    return Path(str(staged)), stated.etag if is_sha256 else None


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
