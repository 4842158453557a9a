"""One file from an https address: resumable, bounded, checked before it takes its name."""

from __future__ import annotations

import os
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Protocol

from arr_stream.errors import FetchFailed
from arr_stream.weights.checking import sha256_of

TIMEOUT_SECONDS = 30.0
_BLOCK_BYTES = 1 << 18
_SPARE_BYTES = 64 * 2**20
"""Room that must be left on the disk besides the file."""
_RUN_AGAIN = "run it again, which goes on where it stopped"


class Progress(Protocol):
    """Hears how far a fetch is."""

    def __call__(self, done_bytes: int, total_bytes: int | None) -> None:
        """So many bytes are there, of so many in all (None where nobody said)."""
        ...


def fetch_url(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size_bytes: int | None = None,
    max_bytes: int,
    progress: Progress | None = None,
    allow_http: bool = False,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> str:
    """Fetch a file; until it is whole and right it is called TARGET.part, and a later call goes on with that.

    Args:
        url: https address.
        target: File to make; its folder exists.
        sha256: Hash that it must have, in hexadecimal.
        size_bytes: Size that it must have.
        max_bytes: Larger files are refused.
        progress: Hears how far it is.
        allow_http: Permit plain HTTP, for servers on this machine.
        timeout_seconds: Longest silence.

    Returns:
        The file's SHA-256.

    Raises:
        FetchFailed: The address or a redirect is not https, no connection, the server refuses, too large, no room, cut
            off, or another hash or size than stated.
    """
    _check_scheme(url, allow_http)
    part = target.with_name(target.name + ".part")
    _download(url, part, size_bytes, max_bytes, progress, allow_http, timeout_seconds)
    digest = sha256_of(part)
    if sha256 is not None and digest != sha256.lower():
        _throw_away(part)
        raise FetchFailed(
            f"{_shown(url)}: SHA-256 is {digest}, expected {sha256.lower()}; it was thrown away",
            remedy="try again; if it stays so, the file was changed or tampered with on the way",
        )
    part.replace(target)
    _validator_file(part).unlink(missing_ok=True)
    return digest


def check_room(folder: Path, name: str, size_bytes: int | None, max_bytes: int, there_bytes: int = 0) -> None:
    """Refuse what is too large, or larger than the room on the disk.

    Raises:
        FetchFailed: It is.
    """
    if size_bytes is None:
        return
    if size_bytes > max_bytes:
        raise FetchFailed(
            f"{name}: {size_bytes} bytes, more than the {max_bytes} allowed",
            remedy="if that is the right file, fetch it by other means and put it in its place",
        )
    free = shutil.disk_usage(folder).free
    if size_bytes - there_bytes + _SPARE_BYTES > free:
        raise FetchFailed(
            f"{name}: needs {(size_bytes - there_bytes) / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB are free",
            remedy="make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER",
        )


def _download(
    url: str,
    part: Path,
    size_bytes: int | None,
    max_bytes: int,
    progress: Progress | None,
    allow_http: bool,
    timeout_seconds: float,
) -> None:
    there = part.stat().st_size if part.exists() else 0
    if size_bytes is not None and there == size_bytes:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "arr-stream", "Accept-Encoding": "identity"})
    validator = _read_validator(part)
    if there and validator:
        # If-Range has the server send the whole file where it is no longer the one that was begun.
        request.add_header("Range", f"bytes={there}-")
        request.add_header("If-Range", validator)
    try:
        with _opener(allow_http).open(request, timeout=timeout_seconds) as response:
            _receive(response, url, part, there, size_bytes, max_bytes, progress)
    except urllib.error.HTTPError as exc:
        if exc.code == 416 and exc.headers.get("Content-Range") == f"bytes */{there}":
            return  # Nothing is left to send: the last run ended between the last byte and the check.
        if exc.code == 416:
            _throw_away(part)
        raise FetchFailed(f"{_shown(url)}: the server answers {exc.code} {exc.reason}", remedy=_RUN_AGAIN) from exc
    except urllib.error.URLError as exc:
        raise FetchFailed(
            f"{_shown(url)}: no connection: {exc.reason}", remedy="check the network and any proxy"
        ) from exc
    except (TimeoutError, ConnectionError, ssl.SSLError, HTTPException) as exc:
        raise FetchFailed(f"{_shown(url)}: cut off: {type(exc).__name__} {exc}", remedy=_RUN_AGAIN) from exc


def _receive(
    response: HTTPResponse,
    url: str,
    part: Path,
    there: int,
    size_bytes: int | None,
    max_bytes: int,
    progress: Progress | None,
) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise FetchFailed(f"{_shown(url)}: comes compressed, though that was refused", remedy="use another mirror")
    resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {there}-")
    done = there if resumed else 0
    length = response.headers.get("Content-Length", "")
    total = done + int(length) if length.isdigit() else None
    if size_bytes is not None and total is not None and total != size_bytes:
        raise FetchFailed(
            f"{_shown(url)}: the server offers {total} bytes, expected {size_bytes}",
            remedy="the file was replaced; fetch another version, or put the right one in its place",
        )
    check_room(part.parent, _shown(url), total, max_bytes, done)
    with part.open("ab" if resumed else "wb") as file:
        # Only now, when nothing of another file is left in it, may the part carry this file's mark.
        _write_validator(part, response.headers.get("ETag", ""))
        done = _copy(response, file, done, total, max_bytes, progress)
        file.flush()
        os.fsync(file.fileno())
    if done > max_bytes:
        _throw_away(part)
        raise FetchFailed(
            f"{_shown(url)}: sends more than the {max_bytes} bytes allowed; it was thrown away",
            remedy="if that is the right file, fetch it by other means and put it in its place",
        )
    if done < (total or size_bytes or 0):
        raise FetchFailed(f"{_shown(url)}: cut off after {done} of {total or size_bytes} bytes", remedy=_RUN_AGAIN)


def _copy(
    response: HTTPResponse,
    file: IO[bytes],
    done: int,
    total: int | None,
    max_bytes: int,
    progress: Progress | None,
) -> int:
    while done <= max_bytes and (block := response.read(_BLOCK_BYTES)):
        file.write(block)
        done += len(block)
        if progress is not None:
            progress(done, total)
    return done


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only (and to http where that was permitted)."""

    def __init__(self, allow_http: bool) -> None:
        self._allow_http = allow_http

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message
    ) -> object:
        _check_scheme(urllib.parse.urljoin(req.full_url, headers.get("Location", "")), self._allow_http)
        return super().http_error_302(req, fp, code, msg, headers)  # type: ignore[arg-type]

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener(allow_http: bool) -> urllib.request.OpenerDirector:
    """An opener that knows no scheme but http and https: files and ftp are out of reach, wherever a redirect points."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _SafeRedirects(allow_http),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _check_scheme(url: str, allow_http: bool) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (allow_http and parts.scheme == "http"):
        return
    raise FetchFailed(f"{_shown(url)}: not an https address", remedy="weights are fetched over https only")


def _shown(url: str) -> str:
    """The address without user, password and query, which may be secret."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _read_validator(part: Path) -> str:
    try:
        return _validator_file(part).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _write_validator(part: Path, etag: str) -> None:
    """Keep a strong ETag; with a weak one or none, half a file cannot be trusted to be half of the same file."""
    if etag.startswith('"'):
        _validator_file(part).write_text(etag, encoding="ascii", errors="ignore")
    else:
        _validator_file(part).unlink(missing_ok=True)


def _throw_away(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)
