"""Safe loading of weights from untrusted files: tensors only, never code.

safetensors files hold nothing but tensors. Files of `torch.save` are pickles, and unpickling can run code; torch's
restricted reader (`weights_only=True`) makes tensors and plain containers from them and refuses the rest.
"""

from __future__ import annotations

import hashlib
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_stream.errors import BackendUnavailable, InvalidSetting, WeightsInvalid
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
        BackendUnavailable: There is no such file, or safetensors is not installed.
        WeightsInvalid: Empty, truncated, not a weights file, holding code or things other than tensors, a TorchScript
            program, or weights that are NaN or infinite; the message names the tensor.
    """
    path = Path(path)
    head = _head(path)
    # A file name proves nothing; only safetensors begins with a length and an opening brace.
    is_safetensors = path.suffix == ".safetensors" or head[8:9] == b"{"
    state = _unwrapped(_read_safetensors(path) if is_safetensors else _read_torch(path, head), path)
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
    """Return the device that a setting asks for; `auto` takes CUDA if torch can use it.

    Args:
        setting: Its value.
        name: Name of the setting, for errors.
        option: Option that sets it to `cpu`, for errors.

    Raises:
        BackendUnavailable: CUDA was asked for and is not available.
        InvalidSetting: Neither `auto`, `cpu` nor `cuda`.
    """
    import torch

    if setting not in ("auto", "cpu", "cuda"):
        raise InvalidSetting(f"{name}={setting!r} is no device", remedy="allowed are auto, cpu and cuda")
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


def _head(path: Path) -> bytes:
    """Return the first bytes of the file, after checks that it may be a weights file."""
    if path.is_dir():
        raise WeightsInvalid(f"{path}: a folder, not a weights file", remedy="name the file inside it")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError as exc:
        raise BackendUnavailable(f"{path}: no such weights file", remedy="see `arr-stream models list`") from exc
    except OSError as exc:
        raise WeightsInvalid(f"{path}: cannot be read: {exc.strerror}", remedy="check its permissions") from exc
    if not head:
        raise WeightsInvalid(f"{path}: empty, 0 bytes", remedy=_FETCH_AGAIN)
    refuse_pointer(path, head)
    if head.lstrip().startswith(b"<"):
        raise WeightsInvalid(f"{path}: a web page, not weights", remedy=_FETCH_AGAIN)
    return head


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


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as exc:
        raise WeightsInvalid(f"{path}: damaged or truncated: {exc}", remedy=_FETCH_AGAIN) from exc


def _read_torch(path: Path, head: bytes) -> object:
    import pickle

    import torch

    zipped = head.startswith(_ZIP)
    try:
        if zipped:
            _check_archive(path)
        with warnings.catch_warnings():
            # torch warns about odd pickles; the errors below report them in one line.
            warnings.simplefilter("ignore", UserWarning)
            # Only the zip format can be mapped; the older one is read whole.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except WeightsInvalid:
        raise
    except pickle.UnpicklingError as exc:
        wanted = re.search(r"GLOBAL (\S+)", str(exc))
        if wanted is None:
            raise WeightsInvalid(f"{path}: damaged, or not a weights file", remedy=_FETCH_AGAIN) from exc
        raise WeightsInvalid(
            f"{path}: a pickle that holds more than tensors ({wanted[1]}), which could run code",
            remedy="save its tensors as safetensors on a machine that trusts it",
        ) from exc
    except Exception as exc:  # Damage causes many: BadZipFile, EOFError, KeyError, RuntimeError, UnicodeDecodeError.
        raise WeightsInvalid(f"{path}: damaged or truncated: {first_line(exc)}", remedy=_FETCH_AGAIN) from exc


def _check_archive(path: Path) -> None:
    """Refuse zip archives that are programs, or that would unpack to more than their size."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any("/code/" in entry.filename or entry.filename.endswith("constants.pkl") for entry in entries):
        raise WeightsInvalid(
            f"{path}: a TorchScript program, not plain weights",
            remedy="take the safetensors file of the same model, such as `arr-stream models fetch ViT-B-32:openai`",
        )
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise WeightsInvalid(f"{path}: a compressed archive; weights are stored plainly", remedy=_FETCH_AGAIN)


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
