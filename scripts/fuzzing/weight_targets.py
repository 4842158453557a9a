"""Fuzzing of checkpoints: safetensors, files of `torch.save`, PCA files."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzzing.mutate import PLAIN, Mutation, inserted, json_value
from fuzzing.target import Run, Target

warnings.filterwarnings("ignore", "Duplicate name", UserWarning, "zipfile")


def safetensors_header(rng: random.Random, data: bytes) -> bytes:
    """The JSON in front of the tensors, with its length made right again most of the time."""
    if len(data) < 8:
        return data
    size = struct.unpack("<Q", data[:8])[0]
    if size > len(data):
        return rng.choice(PLAIN)(rng, data)
    header = json_value(rng, data[8 : 8 + size])
    wanted = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(header) + 1))
    return struct.pack("<Q", wanted) + header + data[8 + size :]


def zipped_entry(rng: random.Random, data: bytes) -> bytes:
    """A file inside a zip archive is changed, renamed, doubled or left out; the archive itself stays whole."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # It is damaged already, in whatever way.
        return rng.choice(PLAIN)(rng, data)
    if not entries:
        return data
    at = rng.randrange(len(entries))
    name, body = entries[at]
    match rng.randrange(6):
        case 0:
            del entries[at]
        case 1:
            odd = ("archive/code/x.py", "archive/constants.pkl", "../x", "archive/data.pkl", "/x")
            entries[at] = (rng.choice(odd), body)
        case 2:
            entries.append((name, body))
        case _:
            entries[at] = (name, rng.choice((*PLAIN, _PICKLE))(rng, body or b"\x00"))
    out = io.BytesIO()
    with zipfile.ZipFile(
        out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, body in entries:
            archive.writestr(zipfile.ZipInfo(name), body)
    return out.getvalue()


_PICKLE = inserted("pickle")


def _tensors() -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    return {"a.weight": torch.randn(4, 3), "a.bias": torch.zeros(4, dtype=torch.float16), "n": torch.arange(3)}


def _safetensors() -> list[bytes]:
    from safetensors.torch import save

    return [save(_tensors()), save({f"module.{k}": v for k, v in _tensors().items()}, {"format": "pt"})]


def _torch_files() -> list[bytes]:
    import torch

    made = []
    for held in (
        _tensors(),
        {"state_dict": _tensors(), "epoch": 3},
        {"model": {"x": torch.nn.Parameter(torch.ones(2))}},
    ):
        for zipped in (True, False):
            out = io.BytesIO()
            torch.save(held, out, _use_new_zipfile_serialization=zipped)
            made.append(out.getvalue())
    return made


def _open_state(name: str) -> Callable[[Path], Run]:
    def opened(scratch: Path) -> Run:
        import torch

        from arr_stream.weights import load_state_dict

        path = scratch / name

        def run(data: bytes) -> str:
            path.write_bytes(data)
            state = load_state_dict(path)
            for key, tensor in state.items():
                if not isinstance(tensor, torch.Tensor) or (
                    tensor.is_floating_point() and not torch.isfinite(tensor.float()).all()
                ):
                    raise AssertionError(f"{key!r} let through")
            return f"{min(len(state), 4)} tensors"

        return run

    return opened


def _pca_files() -> list[bytes]:
    import numpy as np
    from safetensors.numpy import save

    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((24, 24)))[0][:16].astype(np.float32)
    tensors = {"mean": np.zeros(24, np.float32), "basis": basis, "variance": np.linspace(2, 1, 16).astype(np.float32)}
    about = {"format": "arr-stream pca 1", "space": "tiny", "method": "value", "count": "99", "total_variance": "40.0"}
    return [save(tensors, about)]


def _open_pca(scratch: Path) -> Run:
    import numpy as np

    from arr_stream.keyframes.embeddings.pca import load_pca

    path = scratch / "pca.safetensors"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        pca = load_pca(path)
        if not np.isfinite(pca.basis).all() or not 0 <= pca.variance_kept(pca.components) <= 1:
            raise AssertionError("a PCA of what are no numbers")
        return f"{pca.components} directions"

    return run


def _weights(
    name: str,
    about: str,
    seeds: Callable[[], list[bytes]],
    opened: Callable[[Path], Run],
    mutations: Sequence[Mutation],
    share: float = 0.3,
    memory_mb: int = 512,
) -> Target:
    return Target(name, about, seeds, opened, mutations, share, memory_mb=memory_mb, forbidden=("pickle.find_class",))


_HEADERS = (safetensors_header, safetensors_header, *PLAIN)
_ZIPPED = (zipped_entry, zipped_entry, zipped_entry, *PLAIN, _PICKLE)

TARGETS = (
    _weights("safetensors", "weights in safetensors files", _safetensors, _open_state("w.safetensors"), _HEADERS, 0.8),
    _weights("torch", "weights in files of torch.save", _torch_files, _open_state("w.pt"), _ZIPPED, 1.0),
    _weights("pca", "PCA files", _pca_files, _open_pca, (safetensors_header, *PLAIN), 0.5),
)
