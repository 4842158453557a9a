"""Download of one file over https: resumable, bounded, and checked before the file gets its name.

It uses only the standard library: the known download libraries follow redirects to any scheme, restart after an
interruption, join halves of two files, or have no size limit.
"""

from __future__ import annotations

import os
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
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
_RUN_AGAIN = "run it again, which resumes the download"
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
    """Download a file; it is called TARGET.part until it is complete and right, and a later call resumes from that.

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
    partial = _Partial(target.with_name(target.name + ".part"), _without_secrets(url), size_bytes, max_bytes, progress)
    if size_bytes is None or partial.size_bytes != size_bytes:
        _download(url, partial)
    digest = sha256_of(partial.path)
    if sha256 is not None and digest != sha256.lower():
        partial.discard()
        raise FetchFailed(
            f"{partial.source}: SHA-256 is {digest}, expected {sha256.lower()}; it was thrown away",
            remedy="try again; if it stays so, the file was changed or tampered with on the way",
        )
    partial.path.replace(target)
    partial.etag_path.unlink(missing_ok=True)
    return digest


def check_room(folder: Path, name: str, size_bytes: int | None, max_bytes: int, there_bytes: int = 0) -> None:
    """Refuse a file that is too large, or larger than the free disk space.

    Raises:
        FetchFailed: It is.
    """
    if size_bytes is None:
        return
    if size_bytes > max_bytes:
        raise FetchFailed(f"{name}: {size_bytes} bytes, more than the {max_bytes} allowed", remedy=_OTHER_MEANS)
    free = shutil.disk_usage(folder).free
    if size_bytes - there_bytes + _SPARE_BYTES > free:
        raise FetchFailed(
            f"{name}: needs {(size_bytes - there_bytes) / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB are free",
            remedy="make room, or choose another folder with ARR_STREAM_MODELS or --set models.folder=FOLDER",
        )


@dataclass(frozen=True, slots=True)
class _Partial:
    """Incomplete file, and beside it the ETag of the file that it belongs to.

    Its source is its address for display; the rest is as in `fetch_url`.
    """

    path: Path
    source: str
    expected_bytes: int | None
    max_bytes: int
    progress: Progress | None

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def etag_path(self) -> Path:
        return self.path.with_name(self.path.name + ".etag")

    @property
    def etag(self) -> str:
        """ETag of the file, empty if the download cannot resume."""
        try:
            return self.etag_path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return ""

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.etag_path.unlink(missing_ok=True)

    def receive(self, response: HTTPResponse, there: int) -> None:
        """Write a server's response, after the first `there` bytes if the server agrees to resume."""
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise FetchFailed(f"{self.source}: comes compressed, though that was refused", remedy="use another mirror")
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {there}-")
        done = there if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        expected = self.expected_bytes
        if expected is not None and total is not None and total != expected:
            raise FetchFailed(
                f"{self.source}: the server offers {total} bytes, expected {expected}",
                remedy="the file was replaced; fetch another version, or put the right one in its place",
            )
        check_room(self.path.parent, self.source, total, self.max_bytes, done)
        with self.path.open("ab" if resumed else "wb") as file:
            # Write the ETag only now, when the file no longer holds bytes of another version.
            self._mark(response.headers.get("ETag", ""))
            while done <= self.max_bytes and (block := response.read(_BLOCK_BYTES)):
                file.write(block)
                done += len(block)
                if self.progress is not None:
                    self.progress(done, total)
            file.flush()
            os.fsync(file.fileno())
        if done > self.max_bytes:
            self.discard()
            raise FetchFailed(
                f"{self.source}: sends more than the {self.max_bytes} bytes allowed; it was thrown away",
                remedy=_OTHER_MEANS,
            )
        if done < (total or expected or 0):
            raise FetchFailed(f"{self.source}: cut off after {done} of {total or expected} bytes", remedy=_RUN_AGAIN)

    def _mark(self, etag: str) -> None:
        """Keep a strong ETag; without one, the partial file may belong to another version."""
        if etag.startswith('"'):
            self.etag_path.write_text(etag, encoding="ascii", errors="ignore")
        else:
            self.etag_path.unlink(missing_ok=True)


def _download(url: str, partial: _Partial) -> None:
    there, source = partial.size_bytes, partial.source
    request = urllib.request.Request(url, headers={"User-Agent": "arr-stream", "Accept-Encoding": "identity"})
    if there and partial.etag:
        # With If-Range, the server sends the whole file if its version has changed.
        request.add_header("Range", f"bytes={there}-")
        request.add_header("If-Range", partial.etag)
    try:
        with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
            partial.receive(response, there)
    except urllib.error.HTTPError as exc:
        if exc.code == 416 and exc.headers.get("Content-Range") == f"bytes */{there}":
            return  # Nothing is left to send: the last run ended between the last byte and the check.
        if exc.code == 416:
            partial.discard()
        raise FetchFailed(f"{source}: the server answers {exc.code} {exc.reason}", remedy=_RUN_AGAIN) from exc
    except urllib.error.URLError as exc:
        raise FetchFailed(f"{source}: no connection: {exc.reason}", remedy="check the network and any proxy") from exc
    except (TimeoutError, ConnectionError, ssl.SSLError, HTTPException) as exc:
        raise FetchFailed(f"{source}: cut off: {type(exc).__name__} {exc}", remedy=_RUN_AGAIN) from exc


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
