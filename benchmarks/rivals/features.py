"""Inputs of rules: small pictures, and features of cells from dense CLIP, Qwen3-VL's vision tower, or pixels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from arr_stream.config import ModelSettings, Settings, VlmSettings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.tables import timed
from arr_stream.keyframes.base import KeyframeInput, resized
from arr_stream.types import FloatArray, Frame, Grid
from benchmarks.rivals.base import PIXELS_A_CELL, Clip

PATCH_PX = 8
"""Side of a cell in the picture that `Pixels` describes."""


class FeatureMaker(Protocol):
    """Maker of a feature vector for every cell of a frame."""

    @property
    def name(self) -> str:
        """Return the name for tables."""
        ...

    def features(self, frame: Frame, grid: Grid) -> FloatArray:
        """`[gh, gw, D]` float32."""
        ...


class Pixels:
    """The RGB of each cell at 8x8 pixels as one vector, around mid-grey as vision towers take it.

    D is 192, values lie in [-1, 1]. The cosine of two such vectors sees a changed pattern or hue, and hardly sees that
    the same pattern became stronger or weaker.
    """

    @property
    def name(self) -> str:
        return "pixels"

    def features(self, frame: Frame, grid: Grid) -> FloatArray:
        """`[gh, gw, 192]`."""
        small = resized(frame.rgb, (grid.columns * PATCH_PX, grid.rows * PATCH_PX))
        tiles = small.reshape(grid.rows, PATCH_PX, grid.columns, PATCH_PX, 3).swapaxes(1, 2)
        return tiles.reshape(grid.rows, grid.columns, -1).astype(np.float32) / 127.5 - 1


class DenseClip:
    """The package's own CLIP on every frame, one vector of unit length a cell.

    Args:
        settings: `clip` and `models` say which model and how; the preset's other settings do not matter.

    Raises:
        BackendUnavailable, InvalidSetting, WeightsInvalid: As for `ClipEmbedder`.
    """

    def __init__(self, settings: Settings) -> None:
        from arr_stream.keyframes.embeddings.clip import ClipEmbedder

        self._embedder = ClipEmbedder(settings.clip, settings.models)

    @property
    def name(self) -> str:
        return f"dense {self._embedder.name}"

    def features(self, frame: Frame, grid: Grid) -> FloatArray:
        """`[gh, gw, D]`: the mean of the places within a cell, or between places where the model is coarser.

        Raises:
            KeyframeFailed: The model gives values that are not numbers, or the device has too little memory.
        """
        import torch
        import torch.nn.functional as F

        from arr_stream.keyframes.embeddings.clip import at_most

        values = torch.from_numpy(self._embedder.embed(KeyframeInput(frame, grid)).values)
        cells_hw = (grid.rows, grid.columns)
        values = at_most(values, cells_hw)
        if values.shape[1:] != cells_hw:
            finer = F.interpolate(values[None], cells_hw, mode="bilinear", align_corners=False)[0]
            values = F.normalize(finer, dim=0)
        made: FloatArray = values.permute(1, 2, 0).contiguous().numpy()
        return made


class QwenTower:
    """The vision tower of Qwen3-VL over the whole frame: the visual tokens that its language model is given.

    Each frame stands alone, as a picture does, so that there is one token a cell and frame; in a video the model joins
    frames in pairs.

    Args:
        folder: Of a checkpoint, or a hub name.
        device, dtype: As `vlm.device` and `vlm.dtype`.

    Raises:
        BackendUnavailable, ModelUnsupported, ModelTooLarge, WeightsInvalid: As for any use of the model.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    ) -> None:
        from arr_stream.vlm.qwen3_vl.adapter import Adapter
        from arr_stream.vlm.qwen3_vl.loading import load

        # The language model is not used, so its context need not fit into memory.
        settings = VlmSettings(model=str(folder), device=device, dtype=dtype, context_tokens=64)
        loaded = load(settings, ModelSettings())
        self._adapter = Adapter(loaded.model)
        self._normalisation = loaded.normalisation
        self._name = Path(loaded.name).name

    @property
    def name(self) -> str:
        return f"vision tower of {self._name}"

    def features(self, frame: Frame, grid: Grid) -> FloatArray:
        """`[gh, gw, D]`, as wide as the language model."""
        import torch

        from arr_stream.vlm.qwen3_vl.cells import Cells, patch_rows, texture_picture

        cells = Cells.whole((grid.rows, grid.columns))
        picture = texture_picture(frame.rgb, grid.texture_wh)
        with torch.inference_mode():
            rows = patch_rows(picture, picture, cells, self._normalisation)
            tokens = self._adapter.encode(rows, cells, [len(cells)])
        made: FloatArray = tokens.features.float().cpu().numpy().reshape(grid.rows, grid.columns, -1)
        return made


def named_features(name: str, settings: Settings) -> FeatureMaker:
    """Make the features that a user names.

    Raises:
        InvalidSetting: Neither `clip`, `pixels` nor `qwen:FOLDER`.
        BackendUnavailable, WeightsInvalid: The model cannot be loaded.
    """
    what, _, folder = name.partition(":")
    if what == "clip" and not folder:
        return DenseClip(settings)
    if what == "pixels" and not folder:
        return Pixels()
    if what == "qwen" and folder:
        return QwenTower(folder)
    raise InvalidSetting(f"--features {name!r} is not known", remedy="use clip, pixels or qwen:FOLDER")


def make_clip(frames: Iterable[Frame], grid: Grid, features: FeatureMaker | None) -> Clip:
    """A clip of frames that are read once, in order, and not kept.

    Args:
        frames: All of the grid's size.
        grid: Their cells.
        features: Describes every cell; None for rules that need no features.

    Raises:
        ValueError: No frames, or one of another size.
    """
    size_wh = grid.columns * PIXELS_A_CELL, grid.rows * PIXELS_A_CELL
    pictures, described = [], []
    spent: list[float] = []
    for frame in frames:
        if frame.size_wh != grid.size_wh:
            raise ValueError(f"frame {frame.index} is {frame.size_wh}, and the grid is for {grid.size_wh}")
        if features is None:
            with timed(spent):
                pictures.append(resized(frame.rgb, size_wh))
        else:
            pictures.append(resized(frame.rgb, size_wh))
            with timed(spent):
                described.append(features.features(frame, grid))
    if not pictures:
        raise ValueError("a clip has at least one frame")
    return Clip(grid, np.stack(pictures), np.stack(described) if described else None, sum(spent) / len(spent))
