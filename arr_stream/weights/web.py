"""Download of one file over https: bounded, and checked before the file gets its name."""

from __future__ import annotations

import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

from arr_stream.errors import FetchFailed
from arr_stream.weights.places import sha256_of

TIMEOUT_SECONDS = 30.0
"""Longest wait for data."""
_BLOCK_BYTES = 1 << 18
_SPARE_BYTES = 64 * 2**20
"""Disk space that must remain free besides the file."""
_OTHER_MEANS = "if that is the right file, fetch it by other means and put it in its place"

Progress = Callable[[int, int | None], object]
"""Callback with the bytes so far and the bytes in all (None if unknown)."""


def fetch_url(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size_bytes: int | None = None,
    max_bytes: int,
    progress: Progress | None = None,
) -> str:
    """Download a file; it is called TARGET.part until it is complete and right, and is removed if that fails.

    Args:
        url: https address.
        target: File to create; its folder exists.
        sha256: Expected hash, in hexadecimal.
        size_bytes: Expected size.
        max_bytes: Larger files are refused.
        progress: Called with the progress.

    Returns:
        The file's SHA-256.

    Raises:
        FetchFailed: The address or a redirect is not https, no connection, the server refuses, too large, no disk
            space, cut off, or a wrong hash or size.
    """
    _check_scheme(url)
    partial, source = target.with_name(target.name + ".part"), _without_secrets(url)
    request = urllib.request.Request(url, headers={"User-Agent": "arr-stream", "Accept-Encoding": "identity"})
    try:
        with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
            _receive(response, partial, source, size_bytes, max_bytes, progress)
        digest = sha256_of(partial)
        if sha256 is not None and digest != sha256.lower():
            raise FetchFailed(
                f"{source}: SHA-256 is {digest}, expected {sha256.lower()}; it was deleted",
                remedy="try again; if this repeats, the file was replaced, or tampered with in transit",
            )
        partial.replace(target)
    except urllib.error.HTTPError as exc:
        raise FetchFailed(f"{source}: the server answers {exc.code} {exc.reason}", remedy="run it again") from exc
    except urllib.error.URLError as exc:
        raise FetchFailed(f"{source}: no connection: {exc.reason}", remedy="check the network and any proxy") from exc
    except (TimeoutError, ConnectionError, ssl.SSLError, HTTPException) as exc:
        raise FetchFailed(f"{source}: cut off: {type(exc).__name__} {exc}", remedy="run it again") from exc
    finally:
        partial.unlink(missing_ok=True)
    return digest


def check_room(folder: Path, name: str, size_bytes: int | None, max_bytes: int) -> None:
    """Refuse a file that is too large, or larger than the free disk space.

    Raises:
        FetchFailed: It is.
    """
    if size_bytes is None:
        return
    if size_bytes > max_bytes:
        raise FetchFailed(f"{name}: {size_bytes} bytes, more than the {max_bytes} allowed", remedy=_OTHER_MEANS)
    free = shutil.disk_usage(folder).free
    if size_bytes + _SPARE_BYTES > free:
        raise FetchFailed(
            f"{name}: needs {size_bytes / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB are free",
            remedy="make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER",
        )


def _receive(
    response: HTTPResponse,
    partial: Path,
    source: str,
    expected: int | None,
    max_bytes: int,
    progress: Progress | None,
) -> None:
    """Write a server's response to a file; the arguments are those of `fetch_url`."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise FetchFailed(f"{source}: the server sends it compressed against the request", remedy="use another mirror")
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdigit() else None
    if expected is not None and total is not None and total != expected:
        raise FetchFailed(
            f"{source}: the server offers {total} bytes, expected {expected}",
            remedy="the file was replaced; fetch another version, or put the right one in its place",
        )
    check_room(partial.parent, source, total, max_bytes)
    done = 0
    with partial.open("wb") as file:
        while done <= max_bytes and (block := response.read(_BLOCK_BYTES)):
            file.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
    if done > max_bytes:
        raise FetchFailed(
            f"{source}: sends more than the {max_bytes} bytes allowed; it was deleted", remedy=_OTHER_MEANS
        )
    if done < (total or expected or 0):
        raise FetchFailed(f"{source}: cut off after {done} of {total or expected} bytes", remedy="run it again")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows redirects to https only."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message
    ) -> object:
        _check_scheme(urllib.parse.urljoin(req.full_url, headers.get("Location", "")))
        return super().http_error_302(req, fp, code, msg, headers)  # type: ignore[arg-type]

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for https only: a redirect cannot reach files or ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(),
        _SafeRedirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _check_scheme(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme != "https":
        raise FetchFailed(
            f"{_without_secrets(url)}: not an https address", remedy="weights are fetched over https only"
        )


def _without_secrets(url: str) -> str:
    """Return the address without user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))
