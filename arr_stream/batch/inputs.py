"""From what a person gave `arr-stream batch` to the sources that are meant."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arr_stream.errors import SourceError, SourceNotFound
from arr_stream.sources.locate import is_glob, is_picture, local_spec, natural_key, public_name, require_file

_VIDEO_ENDINGS = (
    "3gp asf avi f4v flv gif m2ts m4v mjpeg mjpg mkv mov mp4 mpeg mpg mts mxf nut ogm ogv ts vob webm wmv y4m"
)

VIDEO_SUFFIXES = frozenset(f".{ending}" for ending in _VIDEO_ENDINGS.split())
"""Endings of files that a folder is searched for; a file that is named itself may bear any."""


def expand(
    inputs: Sequence[str],
    *,
    lists: Sequence[str] = (),
    recursive: bool = False,
    storage: Mapping[str, Any] | None = None,
    leave_out: Path | None = None,
) -> list[str]:
    """Every source that is meant, once, in the order in which it was named.

    Args:
        inputs: Files, folders, globs, `@FILE` for a list, and addresses that fsspec opens.
        lists: Files with one input a line; `-` is standard input. Of these a line that means nothing is no error here,
            so that it is told with the others that fail.
        recursive: Search folders within folders too.
        storage: Options for fsspec.
        leave_out: Nothing in this folder is meant, by whatever path, such as the outputs of an earlier run.

    Returns:
        Absolute paths and addresses.

    Raises:
        SourceNotFound: A file, folder or list that is not there, or a folder or glob that holds no video.
        NotAMediaFile: A device or pipe.
    """
    found: list[str] = []
    for text in inputs:
        if text.startswith("@") and not Path(text).exists():
            found += _listed(text[1:], recursive, storage)
        else:
            found += _meant(text, recursive, storage)
    for name in lists:
        found += _listed(name, recursive, storage)
    kept = list(dict.fromkeys(found))
    if leave_out is None:
        return kept
    place = Path(os.path.realpath(leave_out))
    return [source for source in kept if not _within(source, place)]


def _listed(name: str, recursive: bool, storage: Mapping[str, Any] | None) -> Iterator[str]:
    for line in _lines(name):
        if _is_address(line) and Path(line).suffix.lower() in VIDEO_SUFFIXES and not glob.has_magic(line):
            # Thousands of addresses need not be asked for one by one; each is when its turn comes.
            yield line
            continue
        try:
            yield from _meant(line, recursive, storage)
        except SourceError:
            yield _as_it_stands(line)


def _as_it_stands(line: str) -> str:
    """A line that means nothing, as the source whose worker says so."""
    if _is_address(line):
        return line
    try:
        return _absolute(Path(local_spec(line)))
    except SourceError:
        return line if "://" in line else _absolute(Path(line))


def _lines(name: str) -> list[str]:
    """Lines that are not empty; odd bytes in names survive."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        raise SourceNotFound(f"list {name}: {why}", remedy="give a text file with one input a line") from exc
    lines = [os.fsdecode(line.rstrip(b"\r")) for line in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    return [line for line in lines if line.strip()]


def _meant(text: str, recursive: bool, storage: Mapping[str, Any] | None) -> list[str]:
    if _is_address(text):
        from arr_stream.batch import remote

        return list(remote.expand(text, dict(storage or {}), recursive=recursive))
    local = local_spec(text)
    path = Path(local)
    if is_glob(local):
        return _matching(local, recursive)
    if path.is_dir():
        return _in_folder(path, recursive)
    require_file(path, public_name(text))
    return [_absolute(path)]


def _is_address(text: str) -> bool:
    scheme, sign, _ = text.partition("://")
    return bool(sign) and scheme.isascii() and scheme.lower() != "file" and not Path(text).exists()


def _matching(pattern: str, recursive: bool) -> list[str]:
    # Path.glob takes no absolute pattern.
    matches = sorted((Path(match) for match in glob.glob(pattern, recursive=True)), key=natural_key)  # noqa: PTH207
    found = [_absolute(path) for path in matches if path.is_file()]
    if not found:
        found = [source for path in matches if path.is_dir() for source in _in_folder(path, recursive)]
    if not found:
        raise SourceNotFound(f"{pattern}: matches no file", remedy="check the pattern; quote it against the shell")
    return found


def _in_folder(folder: Path, recursive: bool) -> list[str]:
    """Videos of a folder; a folder that holds pictures instead is one source, as for `process`."""
    paths = sorted(_files(folder, recursive), key=natural_key)
    videos = [path for path in paths if path.suffix.lower() in VIDEO_SUFFIXES]
    if videos:
        return [_absolute(path) for path in videos]
    if any(is_picture(path) and path.parent == folder for path in paths):
        return [_absolute(folder)]
    raise SourceNotFound(
        f"{folder}: a folder without videos",
        remedy="name files of other endings by a glob" if recursive else "--recursive searches the folders within",
    )


def _files(folder: Path, recursive: bool) -> Iterator[Path]:
    """Files that are not hidden, nor in a hidden folder."""
    try:
        if not recursive:
            yield from (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
            return
        for place, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (Path(place, name) for name in files if not name.startswith("."))
    except OSError as exc:
        raise SourceNotFound(f"{folder}: cannot be listed: {exc.strerror}", remedy="check its permissions") from exc


def _absolute(path: Path) -> str:
    # Without following links: what a link is called is what its owner calls it.
    return os.path.abspath(path)  # noqa: PTH100


def _within(source: str, folder: Path) -> bool:
    """Whether a source, or what it is a link to, lies in a folder.

    Args:
        source: A path or an address.
        folder: Without links.
    """
    if "://" in source or "\0" in source:
        return False
    parent, name = os.path.split(source)
    places = Path(os.path.realpath(parent), name), Path(os.path.realpath(source))
    return any(place.is_relative_to(folder) for place in places)
