"""Provenance of a run: written into the header of its records, and read by `arr-stream replay` to repeat the run.

It names the input and its hash, the frames read, the queries, and the versions of the packages that affect the results.
It holds no time of day, host, user or process, so that two equal runs write the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from arr_stream.plain_text import redact_url
from arr_stream.sources.base import Colour, Reading

if TYPE_CHECKING:
    from arr_stream.relevance.query import Query
    from arr_stream.sources.base import Source
    from arr_stream.stream import Stream

_PACKAGES = ("av", "numpy", "onnxruntime", "opencv-python-headless", "pillow", "rapidocr", "scikit-image", "torch")


class _Part(BaseModel):
    # As in the records: a later version may add fields.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class FileIdentity(_Part):
    """Identity of a file.

    Args:
        path: Path as given by the user.
        size_bytes: Size of the file.
        sha256: In hexadecimal.
    """

    path: str
    size_bytes: int | None = None
    sha256: str | None = None


class SourceIdentity(FileIdentity):
    """Identity of the source; a live source has no size and no hash, since its data are not kept, nor have pictures.

    Args:
        kind: Same as `arr_stream.sources.SourceInfo.kind`.
        colour: Colour description of the video, and its conversion to RGB; None for pictures.
    """

    kind: str
    colour: Colour | None = None


class AskedText(_Part):
    kind: Literal["text"] = "text"
    text: str


class AskedRegion(_Part):
    kind: Literal["region"] = "region"
    xywh: tuple[float, float, float, float]
    at_seconds: float = 0.0


class AskedExample(_Part):
    kind: Literal["example"] = "example"
    picture: FileIdentity


Asked = Annotated[AskedText | AskedRegion | AskedExample, Field(discriminator="kind")]


class Question(_Part):
    """Question to a model about the video, and its schedule; see `arr_stream.vlm.watcher.Plan`."""

    text: str
    when: str
    every_seconds: float | None = None


class Provenance(_Part):
    """Facts about a run that its settings do not hold.

    Args:
        versions: Versions that results depend on, see `versions`.
        source: Source of the frames.
        reading: Range of frames read.
        queries: The queries, in order.
        gaze: File with gaze samples.
        question: Question to a model.
        realtime: Frames were dropped when the pipeline was too slow, so that no second run is the same.
    """

    versions: dict[str, str] = Field(default_factory=dict)
    source: SourceIdentity | None = None
    reading: Reading = Reading()
    queries: tuple[Asked, ...] = ()
    gaze: FileIdentity | None = None
    question: Question | None = None
    realtime: bool = False


def provenance_of(stream: Stream, question: Question | None = None) -> Provenance:
    """Return the provenance of a stream; read its file once, to hash it, unless it is live.

    Args:
        stream: An open stream, opened by `arr_stream.open` if it reads only some of the source's frames.
        question: Question to a model about it.

    Raises:
        OSError: A file has been removed since it was opened.
    """
    return Provenance(
        versions=versions(),
        source=source_identity(stream.source),
        reading=stream.source.reading,
        queries=tuple(_asked(query) for query in stream.queries),
        gaze=None if stream.gaze_csv is None else file_identity(stream.gaze_csv),
        question=question,
        realtime=stream.realtime,
    )


def versions() -> dict[str, str]:
    """Return the versions that results depend on, by name; `cpu` is the newest instruction set that NumPy uses."""
    from arr_stream import __version__

    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    found = {"arr-stream": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"cpu": str([*simd["baseline"], *simd["found"]][-1])}


def source_identity(source: Source) -> SourceIdentity:
    """Return the identity of a source; for a file, with the hash of its bytes.

    Raises:
        OSError: A file has been removed since it was opened.
    """
    info = source.info
    name = redact_url(info.name)
    if info.live or info.path is None or not info.path.is_file():
        return SourceIdentity(kind=info.kind, path=name, colour=info.colour)
    return SourceIdentity(kind=info.kind, colour=info.colour, **file_identity(info.path).model_dump() | {"path": name})


def file_identity(path: Path | str) -> FileIdentity:
    """Return size and hash of a file; an unchanged file is not read again.

    Raises:
        OSError: It cannot be read.
    """
    status = Path(path).stat()
    sha256 = _sha256(Path(path).resolve(), status.st_size, status.st_mtime_ns, status.st_ino)
    return FileIdentity(path=str(path), size_bytes=status.st_size, sha256=sha256)


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, size_bytes: int, modified_ns: int, inode: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _asked(query: Query) -> Asked:
    from arr_stream.relevance.query import ExampleQuery, RegionQuery

    if isinstance(query, RegionQuery):
        return AskedRegion(xywh=query.xywh, at_seconds=query.at_seconds)
    if isinstance(query, ExampleQuery):
        on_disk = query.path.is_file()
        return AskedExample(picture=file_identity(query.path) if on_disk else FileIdentity(path=str(query.path)))
    return AskedText(text=redact_url(query.text))
