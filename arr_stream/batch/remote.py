"""Remote sources on object stores and web servers: expansion of addresses, and a temporary local copy.

Addresses may come from an untrusted list, and fsspec could open far more than is wanted of them: `zip://` and
`simplecache::` open one address within another, `reference://` reads a file that names further files of this machine,
`github://` or `jupyter://` talk to whole services, and a `::` anywhere chains such things. So only the schemes below
are read, each by its own file system, and no address is taken for a chain. Credentials come from the environment of
each worker, as for the store's own tools; they are neither options nor parts of addresses, so that no record, manifest
or error can hold them.
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

from arr_stream.config import Settings
from arr_stream.errors import (
    ArrStreamError,
    AuthenticationFailed,
    BackendUnavailable,
    ConnectionFailed,
    InvalidSetting,
    NotAMediaFile,
    SourceNotFound,
    SourceTooLarge,
)
from arr_stream.extras import needed_by, remedy_for
from arr_stream.files import writing
from arr_stream.plain_text import one_line, redact_url
from arr_stream.sources.locate import natural_key

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "memory", "file")
"""Schemes that are read; `memory` works only within one process."""

_WEB = ("http", "https")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(r"secret|token|passw|pwd|credential|connection_string|sas|auth|(?:^|[._])(?:account_)?key$", re.I)
_REFUSED = ("unauthorized", "forbidden", "access denied", "credentials", "signature")
_CHUNK_BYTES = 1 << 20
_MAX_BYTES = int(Settings().source.remote_max_bytes)


def expand(text: str, storage: Mapping[str, Any], is_wanted: Callable[[Path], bool]) -> list[str]:
    """Expand an address into files: itself, the matches of its glob, or the videos of its folder.

    An address of a web server stands for itself: such a server has no folders, and a `?` in it is no glob.

    Args:
        text: Address with a scheme of `SCHEMES`.
        storage: Options for fsspec.
        is_wanted: Returns whether a file of a folder is a video.

    Raises:
        ArrStreamError: As `identity`; a folder without videos counts as not found.
    """
    scheme, fs, path = _opened(text, storage)
    if scheme in _WEB:
        return [text]
    with _asking(text):
        if glob.has_magic(path) and not fs.isfile(path):
            found = [name for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"]
            missing = "matches no file"
        elif fs.isdir(path):
            found = [name for name in fs.find(path, maxdepth=1) if is_wanted(Path(name))]
            missing = "a folder without videos; its folders are not searched"
        else:
            found, missing = ([path] if fs.isfile(path) else []), "no such file"
    if not found:
        raise SourceNotFound(f"{redact_url(text)}: {missing}", remedy="check the address")
    if found == [path]:
        return [text]
    return [_address(text, name) for name in sorted(found, key=lambda name: natural_key(Path(name)))]


def identity(address: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that change with a file, as far as its store reports them: `etag`, `bytes` and `changed`.

    Raises:
        SourceNotFound: No such file.
        NotAMediaFile: It is a folder, or its scheme is not supported.
        BackendUnavailable: A package for this scheme is missing.
        AuthenticationFailed: Wrong or missing credentials.
        ConnectionFailed: The store cannot be reached, or fails.
        InvalidSetting: An option that holds a secret, or that the file system does not know.
    """
    _, fs, path = _opened(address, storage)
    with _asking(address):
        return _identity(_info(fs, path, address))


@contextlib.contextmanager
def fetched(address: str, storage: Mapping[str, Any], *, folder: Path, max_bytes: int = _MAX_BYTES) -> Iterator[Path]:
    """Provide a local copy that only this user can read, for the duration of the context.

    It is created in `folder`, and refused beyond `max_bytes`, regardless of the size that the store states.

    Raises:
        SourceTooLarge: The file is larger than `max_bytes`.
        ConnectionFailed: It arrived incomplete, or changed meanwhile.
        DiskFull, OutputUnwritable: The copy cannot be written.
        ArrStreamError: As `identity`.
    """
    _, fs, path = _opened(address, storage)
    with writing(folder / "fetched"):
        descriptor, name = tempfile.mkstemp(prefix="fetched-", suffix=_suffix(path), dir=folder)
    copy = Path(name)
    try:
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123
            _copy(fs, path, address, file.fileno(), copy, max_bytes)
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _copy(fs: Any, path: str, address: str, descriptor: int, copy: Path, max_bytes: int) -> None:
    arrived = 0
    with _asking(address):
        before = _info(fs, path, address)
        size = before.get("size")
        _check_size(address, size or 0, max_bytes)
        with fs.open(path, "rb", block_size=8 * _CHUNK_BYTES) as source:
            while chunk := source.read(_CHUNK_BYTES):
                arrived += len(chunk)
                _check_size(address, arrived, max_bytes)
                with writing(copy):
                    rest = memoryview(chunk)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
        after = _info(fs, path, address)
    if size is not None and arrived != size:
        raise ConnectionFailed(f"{redact_url(address)}: {arrived} of {size} bytes arrived", remedy="try again")
    if _identity(after) != _identity(before):
        raise ConnectionFailed(f"{redact_url(address)}: was changed while it was read", remedy="try again")


def _check_size(address: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise SourceTooLarge(
            f"{redact_url(address)}: {size} bytes or more, at most {max_bytes} are allowed",
            remedy="raise source.remote_max_bytes",
        )


def _opened(address: str, storage: Mapping[str, Any]) -> tuple[str, Any, str]:
    """Return the scheme, the file system, and the path within it."""
    match = _ADDRESS.match(address)
    scheme = match.group(1).lower() if match else ""
    if scheme not in SCHEMES:
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
        package = _PACKAGES.get(scheme, "aiohttp")
        remedy = remedy_for("remote") if package in ("s3fs", "aiohttp") else f"pip install {package}"
        raise BackendUnavailable(f"{scheme}:// needs a package that is missing: {exc}", remedy=remedy) from exc
    except (TypeError, ValueError) as exc:
        raise InvalidSetting(
            f"--storage for {scheme}://: {redact_url(str(exc))}", remedy="see fsspec's options"
        ) from exc
    return scheme, fs, str(fs._strip_protocol(address))


def _options(scheme: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as fsspec takes them: dotted keys nested, `true` and `false` as booleans; refuse secrets."""
    if scheme in _WEB:
        options: dict[str, Any] = {"client_kwargs": {"timeout": _web_timeout()}}
    else:
        options = {"use_listings_cache": False}
    for key, value in storage.items():
        if _SECRET.search(key) or (isinstance(value, str) and redact_url(value) != value):
            raise InvalidSetting(
                f"--storage {key}=***: credentials are no options",
                remedy="put them into the environment, such as AWS_ACCESS_KEY_ID, or a profile",
            )
        place = options
        *outer, last = key.split(".")
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    return options


def _web_timeout() -> Any:
    with needed_by("http://"):
        import aiohttp
    # Timeout of each wait, not of the whole download, whose duration depends on the size.
    return aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)


def _info(fs: Any, path: str, address: str) -> Mapping[str, Any]:
    fs.invalidate_cache(path)
    info: Mapping[str, Any] = fs.info(path)
    if info.get("type") == "directory":
        raise NotAMediaFile(f"{redact_url(address)}: a folder, not a file", remedy="add /* for the files in it")
    return info


def _identity(info: Mapping[str, Any]) -> dict[str, Any]:
    etag = _first(info, "ETag", "etag", "md5Hash", "Content-MD5", "content_md5")
    changed = _first(info, "LastModified", "last_modified", "mtime", "updated", "created")
    found = {
        "etag": None if etag is None else str(etag).strip('"'),
        "bytes": info.get("size"),
        "changed": changed.isoformat() if hasattr(changed, "isoformat") else changed,
    }
    return {key: value for key, value in found.items() if value is not None}


def _first(info: Mapping[str, Any], *keys: str) -> Any:
    return next((info[key] for key in keys if info.get(key) is not None), None)


@contextlib.contextmanager
def _asking(address: str) -> Iterator[None]:
    """Turn a store's errors into those of `arr_stream.errors`."""
    name = redact_url(address)
    try:
        yield
    except ArrStreamError:
        raise
    except Exception as exc:
        # The file system of web servers reports every error as a missing file.
        cause = exc.__cause__ if isinstance(exc, FileNotFoundError) and exc.__cause__ is not None else exc
        raise _refusal(name, cause) from exc


def _refusal(name: str, exc: BaseException) -> ArrStreamError:
    if isinstance(exc, FileNotFoundError) or getattr(exc, "status", None) in (404, 410):
        return SourceNotFound(f"{name}: no such file", remedy="check the address")
    if isinstance(exc, IsADirectoryError):
        return NotAMediaFile(f"{name}: a folder, not a file", remedy="add /* for the files in it")
    reason = one_line(f"{type(exc).__name__}: {exc}")[:300]
    if isinstance(exc, PermissionError) or any(word in reason.lower() for word in _REFUSED):
        return AuthenticationFailed(
            f"{name}: {reason}", remedy="put the store's credentials into the environment of every worker"
        )
    return ConnectionFailed(f"{name}: {reason}", remedy="check the address and the network")


def _address(text: str, name: str) -> str:
    """Return the address of a file found under `text`, with the scheme, user and host of `text`."""
    scheme, host = text.partition("://")[0], urlsplit(text).netloc
    name = name.lstrip("/")
    container = host.partition("@")[0]
    if container != host and name.startswith(f"{container}/"):
        name = f"{host}/{name.removeprefix(f'{container}/')}"
    return f"{scheme}:///{name}" if not host else f"{scheme}://{name}"


def _suffix(path: str) -> str:
    """Return the file's suffix, by which readers tell formats apart, if it is a plain one."""
    ending = Path(urlsplit(path).path if path.startswith(("http://", "https://")) else path).suffix
    return ending if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", ending) else ""
