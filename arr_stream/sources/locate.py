"""From what a person typed to the files that are meant."""

from __future__ import annotations

import difflib
import glob
import re
from pathlib import Path
from unicodedata import category
from urllib.parse import unquote, urlsplit

from arr_stream.errors import NoImages, NotAMediaFile, SourceNotFound

IMAGE_SUFFIXES = frozenset({".bmp", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"})
"""Endings of files that are read as pictures; an animated GIF is a video."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def public_name(spec: str) -> str:
    """The same text without the password, and without the user, of any URL in it.

    Bytes that are no text, and control characters, are escaped: names go to records, pictures and terminals.
    """
    spec = "".join(
        letter if category(letter) not in ("Cc", "Cs") else letter.encode("unicode_escape").decode() for letter in spec
    )
    return re.sub(r"([A-Za-z][A-Za-z0-9+.-]{0,31}://)[^/?#\s]*@", r"\1", spec)


def local_spec(spec: str | Path) -> str:
    """What to look for on this machine: paths and globs as they are, `file://` URLs as paths.

    Raises:
        NotAMediaFile: Any other URL; those are live sources, see `arr_stream.sources.live`.
        SourceNotFound: Nothing was given, or a `file://` URL of another machine.
    """
    text = str(spec)
    if not text:
        raise SourceNotFound("no source was given", remedy="give a video file, a folder of pictures or a glob")
    if "\0" in text:
        raise SourceNotFound(f"{text!r}: no such file", remedy="a file name cannot hold a zero byte")
    name, is_url = public_name(text), not isinstance(spec, Path) and _URL.match(text) is not None
    try:
        if Path(text).exists() or not is_url:
            return text
    except OSError as exc:  # A name that is too long, or in a folder that may not be looked into.
        if not is_url:
            reason = (exc.strerror or str(exc)).lower()
            raise SourceNotFound(f"{name}: {reason}", remedy="check the path and its permissions") from exc
    try:
        parts = urlsplit(text)
    except ValueError as exc:
        raise SourceNotFound(f"{name}: no address: {exc}", remedy="check what stands in brackets") from exc
    if parts.scheme.lower() != "file":
        raise NotAMediaFile(
            f"{name}: an address, not a file", remedy="watch it with `arr-stream stream ADDRESS`, or save it to a file"
        )
    if parts.netloc not in ("", "localhost"):
        raise SourceNotFound(f"{name}: lies on another machine", remedy="write file:///path for a file of this one")
    return unquote(parts.path)


def files_of(spec: str | Path) -> tuple[list[Path], Path | None, bool]:
    """The files to read, the file or folder that was named (None for a glob), and whether they are pictures.

    Raises:
        SourceError: See `local_spec`, `pictures_in`, `pictures_matching` and `require_file`.
    """
    text = local_spec(spec)
    path = Path(text)
    if path.is_dir():
        return pictures_in(path), path, True
    if is_glob(text):
        return pictures_matching(text), None, True
    require_file(path, public_name(str(spec)))
    return [path], path, is_picture(path)


def is_glob(spec: str) -> bool:
    """Whether to expand it: a file of exactly this name comes first."""
    try:
        return glob.has_magic(spec) and not Path(spec).exists()
    except OSError:  # Too long for the name of a file.
        return True


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def pictures_in(folder: Path) -> list[Path]:
    """Pictures of a folder, not of its subfolders, frame2 before frame10; hidden files do not count.

    Raises:
        NoImages: There are none.
    """
    try:
        found = [
            path for path in folder.iterdir() if is_picture(path) and not path.name.startswith(".") and path.is_file()
        ]
    except OSError as exc:
        raise NoImages(f"{folder}: cannot be listed: {exc.strerror}", remedy="check its permissions") from exc
    if not found:
        raise NoImages(
            f"{folder}: a folder without pictures",
            remedy="give a folder with JPEG, PNG, WebP, BMP or TIFF files, or a video; `batch` takes folders of videos",
        )
    return sorted(found, key=natural_key)


def pictures_matching(pattern: str) -> list[Path]:
    """Pictures that a glob names (`**` goes into subfolders), frame2 before frame10.

    Raises:
        NoImages: There are none.
    """
    # Path.glob takes no absolute pattern.
    found = [Path(match) for match in glob.glob(pattern, recursive=True)]  # noqa: PTH207
    pictures = [path for path in found if is_picture(path) and path.is_file()]
    if not pictures:
        what = f"matches {len(found)} files, but no picture" if found else "matches nothing"
        raise NoImages(f"{pattern}: {what}", remedy="a glob names pictures, such as 'frames/*.jpg'")
    return sorted(pictures, key=natural_key)


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Sorts numbers in names by value and the rest by letter, folder by folder."""
    return [
        (1, int(piece), piece) if piece.isdecimal() else (0 if piece == "/" else 2, 0, piece)
        for piece in re.split(r"(\d+|/)", path.as_posix())
        if piece
    ]


def require_file(path: Path, name: str) -> None:
    """Raises:
    SourceNotFound: There is no such file; names the nearest one of the folder.
    NotAMediaFile: It is a device or a pipe.
    """
    if path.is_file():
        return
    if path.exists():
        raise NotAMediaFile(f"{name}: a device or pipe, not a file", remedy="give a file that can be read twice")
    if not path.parent.is_dir():
        raise SourceNotFound(f"{name}: no such file, and no folder {path.parent}", remedy="check the path")
    if "%" in path.name:
        raise SourceNotFound(
            f"{name}: no such file", remedy="number patterns are not read; give a glob such as '*.jpg'"
        )
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    raise SourceNotFound(
        f"{name}: no such file", remedy=f"did you mean {path.parent / near[0]}?" if near else "check the path"
    )
