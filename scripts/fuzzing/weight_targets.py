"""Fuzzing of checkpoints: safetensors and files of `torch.save`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.structure import safetensors_header, zip_member
from fuzzing.target import Run, Target

warnings.filterwarnings("ignore", "Duplicate name", UserWarning, "zipfile")


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


_NO_CLASSES = ("pickle.find_class",)

TARGETS = (
    Target(
        *("safetensors", "weights in safetensors files", _safetensors, _open_state("w.safetensors")),
        *("odd", safetensors_header, 0.8, (), 512, _NO_CLASSES),
    ),
    Target(
        *("torch", "weights in files of torch.save", _torch_files, _open_state("w.pt")),
        *("pickle", zip_member, 1.0, (), 512, _NO_CLASSES),
    ),
)
