"""Regions by Segment Anything: objects and their parts, of any class.

Kirillov et al., "Segment Anything", 2023. A grid of points is put to the model one by one, masks with a high predicted
quality are kept once each, and where masks overlap the smaller one is on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from arr_stream.config import ModelSettings, SamSettings
from arr_stream.errors import BackendUnavailable, InvalidSetting, KeyframeFailed, WeightsInvalid
from arr_stream.extras import needed_by
from arr_stream.files import expanded
from arr_stream.keyframes.base import KeyframeInput, resized
from arr_stream.keyframes.clusters.regions import absorb_small, clusters_from_labels
from arr_stream.types import BoolArray, ByteArray, Clusters, IntArray

if TYPE_CHECKING:
    import torch

Architectures = Mapping[str, Callable[[], Any]]
"""Makers of an untrained `segment_anything.modeling.Sam`, by the values of `sam.model`."""

PRED_IOU_THRESH = 0.88
"""Least predicted IoU of a kept mask."""
STABILITY_SCORE_THRESH = 0.95
"""Least stability of a kept mask under a changed threshold."""
MIN_AREA = 0.0005
"""Smallest region, as a share of the frame."""
MODELS = ("vit_b", "vit_l", "vit_h")

POINTS_A_BATCH = {"cpu": 16, "cuda": 64}
"""Prompts decoded at once. Each holds three masks of 1024x1024 float32 for a moment, 12 MB."""


class SamClusterer:
    """Regions by a Segment Anything model.

    Args:
        settings: Model, checkpoint and thresholds.
        models: Where weights are, whether to fetch them, and the device.
        architectures: Untrained models by name; None for those of segment_anything.

    Raises:
        BackendUnavailable: segment_anything or the weights are missing.
        InvalidSetting: No architecture has that name.
        WeightsInvalid: The weights are damaged, hold code, or belong to another model.
    """

    def __init__(
        self, settings: SamSettings, models: ModelSettings, architectures: Architectures | None = None
    ) -> None:
        with needed_by("keyframes.clusters=sam", "sam"):
            from segment_anything import SamAutomaticMaskGenerator, sam_model_registry
            from segment_anything.utils.amg import rle_to_mask
        from arr_stream import weights

        known = architectures or {name: sam_model_registry[name] for name in MODELS}
        if settings.model not in known:
            raise InvalidSetting(f"sam.model={settings.model!r}", remedy=f"choose one of {', '.join(known)}")
        device = weights.pick_device(models.device)
        model = load_sam(known, settings.model, checkpoint_path(settings, models)).to(device)
        model.image_encoder.register_forward_hook(_refuse_what_is_no_number)
        model.mask_decoder.register_forward_hook(_refuse_what_is_no_number)
        self.settings = settings
        self._longest_px: int = model.image_encoder.img_size
        self._rle_to_mask = rle_to_mask
        self._generator = SamAutomaticMaskGenerator(
            model,
            points_per_side=settings.points_per_side,
            points_per_batch=POINTS_A_BATCH.get(device.type, POINTS_A_BATCH["cpu"]),
            pred_iou_thresh=PRED_IOU_THRESH,
            stability_score_thresh=STABILITY_SCORE_THRESH,
            # Masks stay run lengths until each is painted: hundreds at full size would not fit beside the model.
            output_mode="uncompressed_rle",
        )

    def cluster(self, picture: KeyframeInput) -> Clusters:
        """Return the model's regions, and one for uncovered places, at a quarter of the texture.

        `Clusters.method` says when the model found nothing; the frame is one region then.

        Raises:
            KeyframeFailed: The model gave values that are not numbers.
        """
        found = self._generator.generate(_at_most(picture.frame.rgb, self._longest_px))
        masks = (np.asarray(self._rle_to_mask(mask["segmentation"]), np.bool_) for mask in found)
        labels = labels_from_masks(masks, picture.quarter_hw)
        labels = absorb_small(labels, MIN_AREA * labels.size)
        return clusters_from_labels(labels, "sam" if found else "sam (no masks)")


def checkpoint_path(settings: SamSettings, models: ModelSettings) -> Path:
    """Return the checkpoint's file; raise BackendUnavailable or FetchFailed if it is missing."""
    from arr_stream import weights

    if settings.checkpoint == "auto":
        return weights.find(settings.model, models)
    path = expanded(settings.checkpoint)
    if not path.is_file():
        raise BackendUnavailable(
            f"sam.checkpoint={settings.checkpoint!r}: no such file",
            remedy=f"give a .pth or .safetensors file, or run `arr-stream models fetch {settings.model}`",
        )
    return path


def load_sam(architectures: Architectures, name: str, path: Path) -> Any:
    """Return a model with the weights of a file, in evaluation mode on the CPU.

    Raises:
        WeightsInvalid: The file is damaged, holds code, or belongs to another model.
    """
    from arr_stream import weights

    state = weights.load_state_dict(path)
    if not _fits(architectures[name], state):
        raise WeightsInvalid(
            f"{path}: not the weights of the SAM model {name}",
            remedy=f"give them, or set sam.model to another of {MODELS}",
        )
    model = architectures[name]()
    model.load_state_dict(state, strict=True)
    return model.eval()


def _fits(architecture: Callable[[], Any], state: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the weights match the architecture's names and shapes; allocates nothing."""
    import torch

    with torch.device("meta"):
        expected = architecture().state_dict()
    return {key: value.shape for key, value in expected.items()} == {key: value.shape for key, value in state.items()}


def _at_most(rgb: ByteArray, longest_px: int) -> ByteArray:
    """Return the picture, shrunk if its long side exceeds the model's input: larger masks add no detail."""
    height, width = rgb.shape[:2]
    scale = longest_px / max(height, width)
    if scale >= 1.0:
        return rgb
    return resized(rgb, (max(1, round(width * scale)), max(1, round(height * scale))))


def _refuse_what_is_no_number(module: Any, given: Any, made: Any) -> None:
    """Raise on NaN, which would fail every threshold, as if the picture had no objects."""
    for values in made if isinstance(made, tuple) else (made,):
        if not bool(values.isfinite().all()):
            raise KeyframeFailed(
                f"sam: {type(module).__name__} gave values that are not numbers",
                remedy="check the weights with `arr-stream models verify`",
            )


UNCOVERED = 0
"""Id of places that no mask covers."""


def labels_from_masks(masks: Iterable[BoolArray], hw: tuple[int, int]) -> IntArray:
    """Return a label for every place: the smallest mask that covers it, so that a part stays a region inside its
    object.

    Args:
        masks: `[h', w']` bool each, any number, of any sizes; used one at a time. Masks of another size are resized to
            the map's; a place then counts as covered if at least half of it is.
        hw: Height and width of the label map.

    Returns:
        `[h, w]` int32: 1 + the position of the mask, of equally large ones the first; `UNCOVERED` where there is none.
    """
    fitted = [(float(mask.mean()), _fitted(mask, hw)) for mask in masks]
    # Largest first, so that smaller ones are painted over them.
    labels = np.full(hw, UNCOVERED, np.int32)
    for index in sorted(range(len(fitted)), key=lambda i: (-fitted[i][0], -i)):
        labels[fitted[index][1]] = index + 1
    return labels


def _fitted(mask: BoolArray, hw: tuple[int, int]) -> BoolArray:
    if mask.shape == hw:
        return mask
    shrinks = hw[0] < mask.shape[0] or hw[1] < mask.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(mask.astype(np.float32), hw[::-1], interpolation=method) >= 0.5)
