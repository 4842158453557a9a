"""Plan of a batch: inputs expanded into sources, their names and identities, compared with the output folder."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

from arr_stream.batch import remote
from arr_stream.batch.folder import DONE, Layout
from arr_stream.batch.job import Done, Job, JobOptions, difference, options_digest, public_options
from arr_stream.errors import ArrStreamError, BatchDiffers, SourceError, SourceNotFound
from arr_stream.plain_text import redact_url
from arr_stream.sources.locate import (
    is_glob,
    is_picture,
    local_spec,
    natural_key,
    public_name,
    require_file,
)

_VIDEO_ENDINGS = (
    "3gp asf avi f4v flv gif m2ts m4v mjpeg mjpg mkv mov mp4 mpeg mpg mts mxf nut ogm ogv ts vob webm wmv y4m"
)

VIDEO_SUFFIXES = frozenset(f".{ending}" for ending in _VIDEO_ENDINGS.split())
"""File name suffixes that count as video in a folder; a file that the user names may have any."""

_MOST_BYTES = 80
_FORCE = "choose another folder, or --force to use it"


def expand(
    inputs: Sequence[str], *, storage: Mapping[str, Any] | None = None, leave_out: Path | None = None
) -> list[str]:
    """Expand inputs into sources, each once, in the order given.

    Args:
        inputs: Files, folders, globs, addresses that fsspec opens, and `@FILE` for a list, one input a line (`@-` for
            standard input). An invalid line is no error here; it fails later like any other source.
        storage: Options for fsspec.
        leave_out: Folder whose files are excluded, by whatever path, such as the outputs of an earlier run.

    Returns:
        Absolute paths and addresses.

    Raises:
        SourceNotFound: A missing file, folder or list, or a folder or glob without video.
        NotAMediaFile: A device or pipe.
    """
    found = list[str]()
    for text in inputs:
        if text.startswith("@") and not Path(text).exists():
            found += _expand_list(text[1:], storage or {})
        else:
            found += _expand_one(text, storage or {})
    place = None if leave_out is None else Path(os.path.realpath(leave_out))
    return [source for source in dict.fromkeys(found) if place is None or not _within(source, place)]


def _expand_list(name: str, storage: Mapping[str, Any]) -> Iterator[str]:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        raise SourceNotFound(f"list {name}: {why}", remedy="give a text file with one input a line") from exc
    # Undecodable bytes in names survive.
    lines = (os.fsdecode(line.rstrip(b"\r")) for line in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    for line in filter(str.strip, lines):
        if _is_address(line) and Path(line).suffix.lower() in VIDEO_SUFFIXES and not glob.has_magic(line):
            # Do not query thousands of addresses one by one now; each is checked at its turn.
            yield line
            continue
        try:
            yield from _expand_one(line, storage)
        except SourceError:
            # As a source, whose worker reports the error.
            try:
                yield line if _is_address(line) else _absolute(Path(local_spec(line)))
            except SourceError:
                yield line if "://" in line else _absolute(Path(line))


def _expand_one(text: str, storage: Mapping[str, Any]) -> list[str]:
    if _is_address(text):
        return list(remote.expand(text, storage, _is_video))
    local = local_spec(text)
    path = Path(local)
    if is_glob(local):
        return _expand_glob(local)
    if path.is_dir():
        return _expand_folder(path)
    require_file(path, public_name(text))
    return [_absolute(path)]


def _is_address(text: str) -> bool:
    scheme, sign, _ = text.partition("://")
    return bool(sign) and scheme.isascii() and scheme.lower() != "file" and not os.path.exists(text)  # noqa: PTH110


def _expand_glob(pattern: str) -> list[str]:
    # Path.glob takes no absolute pattern.
    matches = sorted((Path(match) for match in glob.glob(pattern, recursive=True)), key=natural_key)  # noqa: PTH207
    found = [_absolute(path) for path in matches if path.is_file()]
    if not found:
        found = [source for path in matches if path.is_dir() for source in _expand_folder(path)]
    if not found:
        raise SourceNotFound(f"{pattern}: matches no file", remedy="check the pattern; quote it against the shell")
    return found


def _expand_folder(folder: Path) -> list[str]:
    """Return the videos of a folder; a folder of pictures is one source, as for `process`."""
    try:
        files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    except OSError as exc:
        raise SourceNotFound(f"{folder}: cannot be listed: {exc.strerror}", remedy="check its permissions") from exc
    videos = sorted((path for path in files if _is_video(path)), key=natural_key)
    if videos:
        return [_absolute(path) for path in videos]
    if any(is_picture(path) for path in files):
        return [_absolute(folder)]
    raise SourceNotFound(
        f"{folder}: a folder without videos",
        remedy="name files of other endings, or of folders within, by a glob such as 'FOLDER/**/*.mp4'",
    )


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES and not path.name.startswith(".")


def _absolute(path: Path) -> str:
    # Do not resolve links: the user knows a link by its own name.
    return os.path.abspath(path)  # noqa: PTH100


def _within(source: str, folder: Path) -> bool:
    """Return whether a local source, its links resolved, is in a folder, whose path has no links."""
    return "://" not in source and "\0" not in source and Path(os.path.realpath(source)).is_relative_to(folder)


def identity(source: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that change with a source: size and modification time, or a hash over a folder of pictures.

    Raises:
        OSError: A local source is missing or cannot be read.
        ArrStreamError: A remote one is missing.
    """
    if "://" in source:
        return remote.identity(source, storage)
    path = Path(source)
    status = path.stat()
    if not path.is_dir():
        return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    hashed = hashlib.sha256()
    for entry in sorted(path.iterdir()):
        if entry.is_file():
            status = entry.stat()
            hashed.update(f"{os.fsencode(entry.name)!r} {status.st_size} {status.st_mtime_ns}\n".encode())
    return {"files_sha256": hashed.hexdigest()}


def assign_names(sources: Sequence[str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Assign a unique name to every source: its earlier one, else its stem, with a hash of the whole if that is taken.

    Args:
        sources: Absolute paths or addresses, each once.
        earlier: The source of each name in the output folder, without secrets.

    Returns:
        The name of each source. All names differ, even if case and accent encoding are ignored.
    """
    known = {source: name for name, source in earlier.items()}
    used = {_key(name) for name in earlier}
    names = dict[str, str]()
    for source in sources:
        # An address with a new signature is the same source; of two, the first gets the name.
        name = known.pop(redact_url(source), None)
        if name is None:
            # Without the query of an address.
            stem = PurePosixPath(urlsplit(source).path if "://" in source else source).stem or "video"
            name = safe_name(stem)
            name = safe_name(stem, mark=_hash(source)) if _key(name) in used else name
            used.add(_key(name))
        names[source] = name
    return names


def safe_name(text: str, *, mark: str = "") -> str:
    """Turn text into a folder name: letters, digits, `.`, `_` and `-`, in any script; at most 80 bytes of UTF-8.

    Args:
        text: Any text.
        mark: Suffix that is kept when the rest is shortened.
    """
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))
    kept = (
        "".join(letter if letter in "._-" or unicodedata.category(letter)[0] in "LMN" else "_" for letter in text)
        .lstrip(".-")
        .rstrip(".")
    )
    if not kept.strip("_"):
        kept = "video"
    if len(kept.encode()) > _MOST_BYTES and not mark:
        mark = _hash(text)
    if not mark:
        return kept
    room = _MOST_BYTES - len(mark) - 1
    return f"{kept.encode()[:room].decode('utf-8', 'ignore').rstrip('.-')}-{mark}"


def _key(name: str) -> str:
    """Return a key that is equal for names that some file system treats as the same."""
    return unicodedata.normalize("NFC", name.casefold())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


State = Literal["new", "done", "gone", "changed", "differs"]
"""State of a file: never done; done; done, source gone; done before its source changed; done with other options."""


@dataclass(frozen=True, slots=True)
class FileState:
    """File with its earlier result, None without one."""

    job: Job
    state: State
    done: Done | None = None

    @property
    def to_do(self) -> bool:
        return self.state not in ("done", "gone")


@dataclass(frozen=True, slots=True)
class Plan:
    """Batch before it begins.

    Args:
        layout: Layout of the output folder.
        options: The options.
        public: The options as `options.json` records them.
        files: Every file, in the order of the inputs.
    """

    layout: Layout
    options: JobOptions
    public: Mapping[str, Any]
    files: tuple[FileState, ...]

    @property
    def digest(self) -> str:
        return options_digest(self.public)

    @property
    def to_do(self) -> list[Job]:
        return [file.job for file in self.files if file.to_do]

    @property
    def kept(self) -> list[Done]:
        """Results of files that need not be done again."""
        return [file.done for file in self.files if file.done is not None and not file.to_do]

    @property
    def notices(self) -> Iterator[str]:
        """Notices for the user, one line each."""
        for file in self.files:
            source = redact_url(file.job.source)
            if file.state == "changed":
                yield f"{source}: changed since it was done, and is done again"
            elif file.state == "gone":
                yield f"{source}: can no longer be read; its results are kept"


def make_plan(sources: Sequence[str], options: JobOptions, *, force: bool = False) -> Plan:
    """Compare the sources with the output folder; write nothing.

    Args:
        sources: From `expand`.
        options: Options for every file.
        force: Continue even if the settings differ, and redo files that were done with other settings.

    Raises:
        BatchDiffers: The folder holds a batch with other settings, or foreign files.
    """
    layout, public = Layout(Path(options.folder)), public_options(options)
    check_options(layout, public, force=force)
    earlier = {path.parent.name: Done.read(path) for path in layout.videos.glob(f"*/{DONE}")}
    names = assign_names(sources, {name: "" if done is None else done.source for name, done in earlier.items()})
    digest = options_digest(public)
    jobs = [Job(index, source, names[source]) for index, source in enumerate(sources)]
    files = tuple(_state(job, earlier.get(job.name), digest, options.storage) for job in jobs)
    return Plan(layout, options, public, files)


def check_options(layout: Layout, public: Mapping[str, Any], *, force: bool = False) -> None:
    """Check that the output folder is new, or holds a batch with these options or without results.

    Raises:
        BatchDiffers: It does not, and `force` is not set.
    """
    if force:
        return
    try:
        recorded = json.loads(layout.options.read_bytes())["options"]
        changed = difference(recorded, public)
    except FileNotFoundError:
        if (found := next(filter(_has_content, (layout.summary, layout.videos, layout.errors)), None)) is not None:
            raise BatchDiffers(f"{found}: already exists, and no batch wrote it", remedy=_FORCE) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise BatchDiffers(f"{layout.options}: not the options of a batch", remedy=_FORCE) from exc
    else:
        if changed and any(layout.videos.glob(f"*/{DONE}")):
            raise BatchDiffers(
                f"{layout.folder}: holds a batch with other settings: {changed}",
                remedy="choose another folder, or --force to do its files again",
            )


def _has_content(path: Path) -> bool:
    """Return whether the path is a file or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _state(job: Job, done: Done | None, digest: str, storage: Mapping[str, Any]) -> FileState:
    if done is None or done.source != redact_url(job.source):
        return FileState(job, "new")
    if done.options != digest:
        return FileState(job, "differs", done)
    try:
        now = identity(job.source, storage)
    except (OSError, ArrStreamError):
        return FileState(job, "gone", done)
    return FileState(job, "done" if done.fits(job.source, digest, now) else "changed", done)
