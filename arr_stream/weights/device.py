"""Where models run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.errors import BackendUnavailable, InvalidSetting

if TYPE_CHECKING:
    import torch


def pick_device(setting: str = "auto") -> torch.device:
    """The device that `models.device` asks for; `auto` takes CUDA where torch can use it.

    Raises:
        BackendUnavailable: CUDA was asked for and there is none.
        InvalidSetting: Neither `auto`, `cpu` nor `cuda`.
    """
    import torch

    if setting not in ("auto", "cpu", "cuda"):
        raise InvalidSetting(f"models.device={setting!r} is no device", remedy="allowed are auto, cpu and cuda")
    if setting == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if setting == "cuda":
        raise BackendUnavailable(
            "models.device=cuda, but torch finds no NVIDIA GPU that it can use",
            remedy="use --set models.device=cpu, or install a build of torch with CUDA",
        )
    return torch.device("cpu")
