"""Safe loading of weights from untrusted files: tensors only, never code.

safetensors files hold nothing but tensors. Files of `torch.save` are pickles, and unpickling can run code; torch's
restricted reader (`weights_only=True`) makes tensors and plain containers from them and refuses the rest.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.weights.catalogue import KnownWeights

if TYPE_CHECKING:
    import torch

_ZIP = b"PK\x03\x04"
_WRAPPERS = ("state_dict", "model")
_PREFIX = "module."
_FETCH_AGAIN = "fetch it again with `arr-stream models fetch NAME --force`, or copy it again from where it came"


def load_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Load the tensors of a weights file, by name, on the CPU.

    It reads safetensors and files of `torch.save`. A dict around the weights (`state_dict`, `model`) is removed, and so
    is the prefix `module.` from data-parallel training. Large files are memory-mapped if the format allows it.

    Raises:
        BackendUnavailable: There is no such file.
        WeightsInvalid: Empty, truncated, not a weights file, holding code or things other than tensors, or weights that
            are NaN or infinite; the message names the tensor.
    """
    if not path.is_file():
        raise BackendUnavailable(f"{path}: no such weights file", remedy="see `arr-stream models list`")
    state = _unwrapped(_read(path), path)
    for name, tensor in state.items():
        _check_tensor(path, name, tensor)
    return state


def first_line(exc: BaseException) -> str:
    """Return the message of another library's error as one short line with its class."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {' '.join(lines[:2])[:160]}" if lines else type(exc).__name__


def is_finite(values: torch.Tensor) -> bool:
    """Return whether a tensor of floats holds neither NaN nor infinity."""
    import torch

    # NaN and infinity survive a sum, which needs no second copy; only if the sum is not finite, check every value.
    total = values.detach().sum(dtype=torch.float32)
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values).all())


def pick_device(
    setting: str = "auto", *, name: str = "models.device", option: str = "--set models.device=cpu"
) -> torch.device:
    """Return the device for a setting `auto`, `cpu` or `cuda`; `auto` takes CUDA if torch can use it.

    Args:
        setting: Its value.
        name: Name of the setting, for errors.
        option: Option that sets it to `cpu`, for errors.

    Raises:
        BackendUnavailable: CUDA was asked for and is not available.
    """
    import torch

    if setting == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            f"{name}=cuda, but torch finds no NVIDIA GPU that it can use",
            remedy=f"use {option}, or install a build of torch with CUDA",
        )
    return torch.device("cuda" if setting != "cpu" and torch.cuda.is_available() else "cpu")


def verify(weights: KnownWeights, path: Path) -> str:
    """Compare a file with the catalogue's hash, or check that it holds sound tensors; return the result in words.

    Raises:
        WeightsInvalid: Another hash, or damaged.
        BackendUnavailable: A package that reads the file is missing.
    """
    # The catalogue's hash is for one file; another file in its place can still be sound.
    if weights.sha256 is not None and path.name == weights.file_name:
        check_sha256(path, weights.sha256)
        return "ok: SHA-256 as in the catalogue"
    return f"readable: no hash to compare with; {len(load_state_dict(path))} sound tensors"


def sha256_of(path: Path) -> str:
    """Return the hash of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file with a hash in hexadecimal.

    Raises:
        WeightsInvalid: They differ.
    """
    found = sha256_of(path)
    if found != expected.lower():
        raise WeightsInvalid(
            f"{path}: SHA-256 is {found}, expected {expected.lower()}",
            remedy="the file is damaged or another one; get it again, with `arr-stream models fetch NAME --force` "
            "where `arr-stream models list` names it",
        )


def refuse_pointer(path: Path, head: bytes) -> None:
    """Refuse a Git LFS pointer, which a clone has in place of each large file that was not pulled.

    Raises:
        WeightsInvalid: The first bytes of the file are a pointer's.
    """
    if head.startswith(b"version https://git-lfs"):
        raise WeightsInvalid(
            f"{path}: a Git LFS pointer, not the weights that it points to",
            remedy="run `git lfs pull` in its repository",
        )


def _read(path: Path) -> object:
    import pickle

    import torch
    from safetensors.torch import load_file

    try:
        with path.open("rb") as file:
            head = file.read(64)
        refuse_pointer(path, head)
        # A file name proves nothing; only safetensors begins with a length and an opening brace.
        if path.suffix == ".safetensors" or head[8:9] == b"{":
            return load_file(path)
        with warnings.catch_warnings():
            # torch warns about odd pickles; the errors below report them in one line.
            warnings.simplefilter("ignore", UserWarning)
            # Only the zip format can be mapped; the older one is read whole.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=head.startswith(_ZIP))
    except WeightsInvalid:
        raise
    except Exception as exc:  # Damage causes many: BadZipFile, EOFError, KeyError, RuntimeError, UnicodeDecodeError.
        wanted = re.search(r"GLOBAL (\S+)", str(exc)) if isinstance(exc, pickle.UnpicklingError) else None
        what = f"more than tensors ({wanted[1]}), which could run code" if wanted else first_line(exc)
        raise WeightsInvalid(f"{path}: damaged, or not plain weights: {what}", remedy=_FETCH_AGAIN) from exc


def _unwrapped(found: object, path: Path) -> dict[str, torch.Tensor]:
    for key in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    if not isinstance(found, Mapping) or not found:
        what = "no tensors at all" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise WeightsInvalid(f"{path}: holds {what}, not a state dict", remedy="save `model.state_dict()`")
    if all(isinstance(name, str) and name.startswith(_PREFIX) for name in found):
        return {name.removeprefix(_PREFIX): tensor for name, tensor in found.items()}
    return dict(found)


def _check_tensor(path: Path, name: object, tensor: object) -> None:
    import torch

    if not isinstance(name, str) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise WeightsInvalid(
            f"{path}: {str(name)[:80]!r} is a {type(tensor).__name__}, not a tensor", remedy="save `model.state_dict()`"
        )
    assert isinstance(tensor, torch.Tensor)
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    # A tensor can claim any shape over a few stored values; its sum would never end.
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise WeightsInvalid(f"{path}: {name} is not a plain dense tensor", remedy="save `model.state_dict()`")
    if tensor.is_floating_point() and tensor.numel() and not is_finite(tensor):
        raise WeightsInvalid(f"{path}: {name} holds NaN or infinite values", remedy="use another checkpoint")
