"""Resolution of the user's input to files, and detection of their content."""

from __future__ import annotations

import difflib
import glob
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from unicodedata import category
from urllib.parse import unquote, urlsplit

from arr_stream.errors import NoImages, NotAMediaFile, SourceNotFound
from arr_stream.extras import remedy_for

_PICTURE_SUFFIXES = {".bmp", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of files read as pictures if their first bytes are inconclusive."""

Content = Literal["picture", "animation", "heif", "media", "unknown"]
_HEAD_BYTES = 1 << 14

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def public_name(spec: str) -> str:
    """Return the text without the user and password of any URL in it.

    Bytes that are not text, and control characters, are escaped: names go to records, pictures and terminals.
    """
    spec = "".join(
        letter if category(letter) not in ("Cc", "Cs") else letter.encode("unicode_escape").decode() for letter in spec
    )
    return re.sub(r"([A-Za-z][A-Za-z0-9+.-]{0,31}://)[^/?#\s]*@", r"\1", spec)


def local_spec(spec: str | Path) -> str:
    """Return the local path or glob: unchanged, or from a `file://` URL.

    Raises:
        NotAMediaFile: Any other URL; those are live sources, see `arr_stream.sources.live`.
        SourceNotFound: The input is empty, or a `file://` URL of another machine.
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
    except OSError as exc:  # The name is too long, or in a folder without read permission.
        if not is_url:
            reason = (exc.strerror or str(exc)).lower()
            raise SourceNotFound(f"{name}: {reason}", remedy="check the path and its permissions") from exc
    try:
        parts = urlsplit(text)
    except ValueError as exc:
        raise SourceNotFound(f"{name}: no address: {exc}", remedy="check the part in brackets") from exc
    if parts.scheme.lower() != "file":
        raise NotAMediaFile(
            f"{name}: an address, not a file",
            remedy=f"watch it with `arr-stream stream ADDRESS` (in Python {_LIVE_CALL}), or save it to a file",
        )
    if parts.netloc not in ("", "localhost"):
        raise SourceNotFound(f"{name}: is on another machine", remedy="write file:///path for a file of this one")
    return unquote(parts.path)


_LIVE_CALL = "arr_stream.live.live_stream.LiveStream"


def content_of(path: Path) -> Content:
    """Return the kind of content that a file's first bytes show; of JPEG, the name tells a video from a picture.

    `picture` is JPEG, PNG, WebP or AVIF; `animation` is WebP or AVIF with several frames; `media` is for FFmpeg,
    including GIF, APNG and Motion JPEG.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return "unknown"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        # The chunk that announces frames precedes the pixels.
        return "media" if b"acTL" in head[: head.find(b"IDAT")] else "picture"
    if head.startswith(b"\xff\xd8\xff"):
        return "media" if path.suffix.lower() in (".mjpeg", ".mjpg") else "picture"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "animation" if head[12:16] == b"VP8X" and head[20:21] and head[20] & 2 else "picture"
    if head[4:8] == b"ftyp":
        brands = head[8 : max(12, int.from_bytes(head[:4]))]
        if b"avis" in brands or b"avif" in brands:
            return "animation" if b"avis" in brands else "picture"
        return "heif" if brands[:4] in (b"heic", b"heix", b"heim", b"heis", b"mif1") else "media"
    return "media" if head.startswith((b"GIF8", b"\x1aE\xdf\xa3", b"RIFF", b"FLV")) else "unknown"


def is_glob(spec: str) -> bool:
    """Return True if the input is a glob to expand: a file of exactly this name comes first."""
    try:
        return glob.has_magic(spec) and not Path(spec).exists()
    except OSError:  # Too long for a file name.
        return True


def is_picture(path: Path) -> bool:
    """Return True if a file is a single picture that can be read here."""
    content = content_of(path)
    if content == "unknown":
        return path.suffix.lower() in _PICTURE_SUFFIXES
    return content == "picture" or (content == "heif" and find_spec("pillow_heif") is not None)


def pictures_of(spec: str) -> tuple[list[Path], list[Path]]:
    """Return the pictures of a folder or glob, frame2 before frame10, and its other files.

    Subfolders and hidden files of a folder do not count; `**` in a glob includes subfolders.

    Raises:
        NoImages: There are none.
    """
    try:
        is_folder = Path(spec).is_dir()
        # Path.glob takes no absolute pattern.
        found = Path(spec).iterdir() if is_folder else map(Path, glob.glob(spec, recursive=True))  # noqa: PTH207
        files = [path for path in found if path.is_file() and not (is_folder and path.name.startswith("."))]
    except OSError as exc:
        raise NoImages(f"{spec}: cannot be listed: {exc.strerror}", remedy="check its permissions") from exc
    pictures = sorted(filter(is_picture, files), key=natural_key)
    others = sorted(set(files).difference(pictures), key=natural_key)
    if not pictures:
        remedy = "JPEG, PNG, WebP, AVIF, BMP and TIFF are pictures; `batch` takes folders of videos"
        if any(content_of(path) == "heif" for path in others):
            remedy = f"{remedy_for('heif')} reads HEIF"
        what = "a folder without pictures" if is_folder else "matches no picture"
        raise NoImages(f"{spec}: {what}", remedy=remedy)
    return pictures, others


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key: numbers in names by value and the rest by letter, folder by folder."""
    return [
        (1, int(piece), piece) if piece.isdecimal() else (0 if piece == "/" else 2, 0, piece)
        for piece in re.split(r"(\d+|/)", path.as_posix())
        if piece
    ]


def require_file(path: Path, name: str) -> None:
    """Check that a file exists.

    Raises:
        SourceNotFound: There is no such file; the message names the nearest one of the folder.
        NotAMediaFile: It is a device, a pipe or a live source.
    """
    from arr_stream.sources.live.spec import is_live_spec

    if path.is_file():
        return
    if is_live_spec(str(path)):
        raise NotAMediaFile(
            f"{name}: a live source, not a file",
            remedy=f"watch it with `arr-stream stream {name}` (in Python {_LIVE_CALL})",
        )
    if path.exists():
        raise NotAMediaFile(f"{name}: a device or pipe, not a file", remedy="give a file that can be read twice")
    if path.is_symlink():
        raise SourceNotFound(f"{name}: a broken symbolic link", remedy="check its target")
    if not path.parent.is_dir():
        raise SourceNotFound(f"{name}: no such file, and no folder {path.parent}", remedy="check the path")
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    raise SourceNotFound(
        f"{name}: no such file", remedy=f"did you mean {path.parent / near[0]}?" if near else "check the path"
    )
