"""Remote sources on object stores and web servers: expansion of addresses, and a temporary local copy.

Addresses may come from an untrusted list, and fsspec could open far more than videos: `zip://` and `simplecache::` open
one address within another, `reference://` reads a file that names further files of this machine, `github://` or
`jupyter://` talk to whole services. So only the schemes below are read, each by its own file system, and `::` has no
meaning. Credentials come from the environment of each worker, so that no record or error can hold them.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from arr_stream.errors import (
    ArrStreamError,
    AuthenticationFailed,
    BackendUnavailable,
    ConnectionFailed,
    DiskFull,
    InvalidSetting,
    NotAMediaFile,
    SourceNotFound,
    SourceTooLarge,
)
from arr_stream.extras import needed_by, remedy_for
from arr_stream.files import output_error, writing
from arr_stream.plain_text import one_line, redact_url
from arr_stream.sources.locate import natural_key

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "memory")
"""Schemes that are read; `memory` works only within one process."""

_WEB = ("http", "https")
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Packages that the extra `remote` lacks."""
_SECRET = re.compile(r"secret|token|passw|pwd|credential|connection_string|sas|auth|(?:^|[._])(?:account_)?key$", re.I)
_REFUSED = ("unauthorized", "forbidden", "access denied", "credentials", "signature")
_CHANGING = (
    *("size", "ETag", "etag", "md5Hash", "Content-MD5", "content_md5"),
    *("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created"),
)
"""Fields of fsspec's `info` that change with a file; each store has some of them."""


def expand(text: str, storage: Mapping[str, Any], is_wanted: Callable[[Path], bool]) -> list[str]:
    """Expand an address into files: itself, the matches of its glob, or the videos of its folder.

    Web servers have no folders, and a `?` in their addresses is no glob, so these are taken literally.

    Args:
        text: Address with a scheme of `SCHEMES`.
        storage: Options for fsspec.
        is_wanted: Returns whether a file of a folder is a video.

    Raises:
        ArrStreamError: As `identity`; a folder without videos counts as not found.
    """
    scheme, fs, path = _open(text, storage)
    if scheme in _WEB:
        return [text]
    with _store_errors(text):
        if fs.isfile(path):
            return [text]
        if glob.has_magic(path):
            found = [name for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"]
            missing = "matches no file"
        elif fs.isdir(path):
            found = [name for name in fs.find(path, maxdepth=1) if is_wanted(Path(name))]
            missing = "a folder without videos; its folders are not searched"
        else:
            found, missing = [], "no such file"
    if not found:
        raise SourceNotFound(f"{redact_url(text)}: {missing}", remedy="check the address")
    return [f"{scheme}://{name.lstrip('/')}" for name in sorted(found, key=lambda name: natural_key(Path(name)))]


def identity(address: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that change with a file, as far as its store reports them, such as `size` and `ETag`.

    Raises:
        SourceNotFound: No such file.
        NotAMediaFile: It is a folder, or its scheme is not supported.
        BackendUnavailable: A package for this scheme is missing.
        AuthenticationFailed: Wrong or missing credentials.
        ConnectionFailed: The store cannot be reached, or fails.
        InvalidSetting: An option that holds a secret, or that the file system does not know.
    """
    _, fs, path = _open(address, storage)
    with _store_errors(address):
        return _identity(fs, path, address)


@contextlib.contextmanager
def fetched(address: str, storage: Mapping[str, Any], *, folder: Path, max_bytes: int) -> Iterator[Path]:
    """Provide a local copy that only this user can read, for the duration of the context.

    It is created in `folder`, and refused beyond `max_bytes`, regardless of the size that the store states.

    Raises:
        SourceTooLarge: The file is larger than `max_bytes`.
        ConnectionFailed: It arrived incomplete.
        DiskFull, OutputUnwritable: The copy cannot be written.
        ArrStreamError: As `identity`.
    """
    _, fs, path = _open(address, storage)
    with writing(folder / "fetched"):
        descriptor, name = tempfile.mkstemp(prefix="fetched-", suffix=_suffix(path), dir=folder)
        os.close(descriptor)
    copy = Path(name)
    try:
        with _store_errors(address):
            _copy(fs, path, address, copy, max_bytes)
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _copy(fs: Any, path: str, address: str, copy: Path, max_bytes: int) -> None:
    from fsspec.callbacks import Callback

    def check(size: int, value: int, **_: Any) -> None:
        if max(size or 0, value) > max_bytes:
            raise SourceTooLarge(
                f"{redact_url(address)}: {max(size or 0, value)} bytes or more, at most {max_bytes} are allowed",
                remedy="raise source.remote_max_bytes",
            )

    size = _identity(fs, path, address).get("size")
    check(size or 0, 0)
    try:
        fs.get_file(path, str(copy), callback=Callback(hooks={"check": check}))
    except OSError as exc:
        if isinstance(full := output_error(exc, copy), DiskFull):
            raise full from exc
        raise
    arrived = copy.stat().st_size
    if size is not None and arrived != size:
        raise ConnectionFailed(f"{redact_url(address)}: {arrived} of {size} bytes arrived", remedy="try again")


def _open(address: str, storage: Mapping[str, Any]) -> tuple[str, Any, str]:
    """Return the scheme, the file system, and the path within it."""
    scheme, sign, _ = address.partition("://")
    scheme = scheme.lower()
    if not sign or scheme not in SCHEMES:
        raise NotAMediaFile(
            f"{redact_url(address)}: addresses of this kind are not read",
            remedy=f"give one with {', '.join(name + '://' for name in SCHEMES if name != 'memory')}",
        )
    options = _options(scheme, storage)
    try:
        import fsspec

        # Open by scheme and not by address: an address could name a chain of file systems.
        fs = fsspec.filesystem(scheme, **options)
    except ImportError as exc:
        remedy = f"pip install {_PACKAGES[scheme]}" if scheme in _PACKAGES else remedy_for("remote")
        raise BackendUnavailable(f"{scheme}:// needs a package that is missing: {exc}", remedy=remedy) from exc
    except (TypeError, ValueError) as exc:
        raise InvalidSetting(
            f"--storage for {scheme}://: {redact_url(str(exc))}", remedy="see fsspec's options"
        ) from exc
    return scheme, fs, str(fs._strip_protocol(address))


def _options(scheme: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as fsspec takes them, `true` and `false` as booleans; refuse secrets."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in _WEB:
        with needed_by("http://"):
            import aiohttp
        # Timeout of each wait, not of the whole download, whose duration depends on the size.
        options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)}}
    elif scheme == "s3":
        # One request after the other: parallel ones hold 500 MB, and could mix two versions of a file.
        options["max_concurrency"] = 1
    for key, value in storage.items():
        if _SECRET.search(key) or (isinstance(value, str) and redact_url(value) != value):
            raise InvalidSetting(
                f"--storage {key}=***: credentials are no options",
                remedy="put them into the environment, such as AWS_ACCESS_KEY_ID, or a profile",
            )
        options[key] = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    return options


def _identity(fs: Any, path: str, address: str) -> dict[str, Any]:
    fs.invalidate_cache(path)
    info: Mapping[str, Any] = fs.info(path)
    if info.get("type") == "directory":
        raise NotAMediaFile(f"{redact_url(address)}: a folder, not a file", remedy="add /* for the files in it")
    found = {key: info[key] for key in _CHANGING if info.get(key) is not None}
    return {key: value if isinstance(value, int) else str(value) for key, value in found.items()}


@contextlib.contextmanager
def _store_errors(address: str) -> Iterator[None]:
    """Turn a store's errors into those of `arr_stream.errors`."""
    try:
        yield
    except ArrStreamError:
        raise
    except Exception as exc:
        name = redact_url(address)
        # The file system of web servers reports every error as a missing file.
        cause = exc.__cause__ if isinstance(exc, FileNotFoundError) and exc.__cause__ is not None else exc
        if isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410):
            raise SourceNotFound(f"{name}: no such file", remedy="check the address") from exc
        reason = one_line(f"{type(cause).__name__}: {cause}")[:300]
        if isinstance(cause, PermissionError) or any(word in reason.lower() for word in _REFUSED):
            remedy = "put the store's credentials into the environment of every worker"
            raise AuthenticationFailed(f"{name}: {reason}", remedy=remedy) from exc
        raise ConnectionFailed(f"{name}: {reason}", remedy="check the address and the network") from exc


def _suffix(path: str) -> str:
    """Return the file's suffix, by which readers tell formats apart, if it is a plain one."""
    ending = Path(urlsplit(path).path if path.startswith(("http://", "https://")) else path).suffix
    return ending if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", ending) else ""
