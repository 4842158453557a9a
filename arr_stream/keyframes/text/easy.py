"""Text by EasyOCR: CRAFT finds it (Baek et al. 2019), a convolutional and recurrent network reads it (Shi et al. 2015).

The package's own `Reader` unpickles its weights freely, makes folders in the user's home and adds one of them to the
module path. Its networks and its geometry are used here without it, with weights loaded as tensors and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from arr_stream import weights
from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.extras import remedy_for
from arr_stream.keyframes.base import KeyframeInput, TextFinding, resized
from arr_stream.keyframes.text.regions import Floats, detect_wh, finding, region_of, straightened
from arr_stream.threads import torch_threads
from arr_stream.types import ByteArray, TextRegion

DETECT_SIDE_PX = 960
"""Long side of the detector's input; twice the time finds one more word of 21."""

ENLARGE = 4
"""Largest upscaling of a frame for detection."""

TEXT_PEAK = 0.7
"""Least score of the surest character of a word."""
TEXT_LOW = 0.4
LINK_LOW = 0.4
"""Least scores of a character pixel, and of the gap between two characters of a word."""

_LINE_PX = 64
"""Height of a line in the recogniser's input."""
_UNSURE = 0.1
"""Confidence below which a line is read again with stretched contrast."""
_REMEDY = remedy_for("easyocr")


class EasyOcrFinder:
    """Finder of English text; keeps unreadable detections, since CRAFT is more reliable than the reader.

    Args:
        threads: Threads for torch; None leaves the choice to it.
        device: `auto`, `cpu` or `cuda`.
        detect_side_px: Long side of the detector's input.

    Raises:
        BackendUnavailable: easyocr or the package with its weights is missing.
        WeightsInvalid: The weights are damaged or of other networks.
    """

    name = "easyocr"

    def __init__(
        self, *, threads: int | None = None, device: str = "auto", detect_side_px: int = DETECT_SIDE_PX
    ) -> None:
        import easyocr_en_models  # type: ignore[import-untyped]
        from easyocr.config import recognition_models
        from easyocr.craft import CRAFT
        from easyocr.model.vgg_model import Model
        from easyocr.utils import CTCLabelConverter

        self.detect_side_px = detect_side_px
        self._threads = threads
        self._device = weights.pick_device(device)
        folder = Path(easyocr_en_models.model_dir())
        self._converter = CTCLabelConverter(recognition_models["gen2"]["english_g2"]["characters"])
        # Without storage: the constructors would draw 140 million random numbers only to have them replaced.
        with torch.device("meta"):
            detector = CRAFT()
            reader = Model(1, 256, hidden_size=256, num_class=len(self._converter.character))
        self._detector = _with_weights(detector, folder / "craft_mlt_25k.pth", self._device)
        self._reader = _with_weights(reader, folder / "english_g2.pth", self._device)

    def find(self, picture: KeyframeInput) -> TextFinding:
        rgb = picture.frame.rgb
        with torch_threads(self._threads), torch.inference_mode():
            read = [replace(region, text=self._read(straightened(rgb, region))) for region in self._detect(rgb)]
        return finding(picture, read)

    def _detect(self, rgb: ByteArray) -> Iterator[TextRegion]:
        from easyocr.craft_utils import getDetBoxes
        from easyocr.imgproc import normalizeMeanVariance

        side_px = min(self.detect_side_px, ENLARGE * max(rgb.shape[:2]))
        size_wh = (rgb.shape[1], rgb.shape[0])
        seen = resized(rgb, detect_wh(size_wh, side_px))
        pixels = torch.from_numpy(normalizeMeanVariance(seen)).permute(2, 0, 1)[None]
        scores, _ = self._detector(pixels.to(self._device))
        text, link = scores[0].float().cpu().permute(2, 0, 1).numpy()
        words, _, _ = getDetBoxes(text, link, TEXT_PEAK, LINK_LOW, TEXT_LOW, False)
        to_frame = (size_wh[0] / text.shape[1], size_wh[1] / text.shape[0])
        for corners in _lines([np.asarray(word) * to_frame for word in words]):
            yield region_of(corners, size_wh, _peak(text, np.clip(corners / size_wh, 0.0, 1.0)))

    def _read(self, line: ByteArray) -> str | None:
        """Return the text of an upright line `[h, w, 3]`; None if nothing can be read."""
        text, confidence = self._recognised(line, contrast=0.0)
        if confidence < _UNSURE:
            text, confidence = max((text, confidence), self._recognised(line, contrast=0.5), key=lambda read: read[1])
        return text.strip() or None

    def _recognised(self, line: ByteArray, contrast: float) -> tuple[str, float]:
        from easyocr.recognition import AlignCollate, recognizer_predict
        from PIL import Image

        width_px = math.ceil(max(1.0, line.shape[1] / line.shape[0])) * _LINE_PX
        align = AlignCollate(imgH=_LINE_PX, imgW=width_px, keep_ratio_with_pad=True, adjust_contrast=contrast)
        pixels = align([Image.fromarray(line).convert("L")])
        ((text, confidence),) = recognizer_predict(
            self._reader, self._converter, [pixels], width_px // 10, [], [], device=self._device
        )
        return text, float(confidence)


def _lines(words: Sequence[Floats]) -> list[Floats]:
    """Return quadrilaterals `[4, 2]` of lines from those of words, in frame pixels; slanted words are unchanged."""
    from easyocr.utils import group_text_box

    if not words:
        return []
    upright, slanted = group_text_box(
        [word.reshape(-1) for word in words],
        slope_ths=0.1,
        ycenter_ths=0.5,
        height_ths=0.5,
        width_ths=0.5,
        add_margin=0.1,
    )
    boxes = [np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]]) for x0, x1, y0, y1 in upright]
    return boxes + [np.array(corners) for corners in slanted]


def _peak(text: Floats, unit: Floats) -> float:
    """Return the highest character score in a region's upright box."""
    size = (text.shape[1], text.shape[0])
    x0, y0 = np.clip(np.floor(unit.min(axis=0) * size), 0, np.array(size) - 1).astype(int)
    x1, y1 = np.ceil(unit.max(axis=0) * size).astype(int)
    return float(text[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)].max())


def _with_weights(network: torch.nn.Module, path: Path, device: torch.device) -> torch.nn.Module:
    if not path.is_file():
        raise BackendUnavailable(f"text easyocr: no {path.name} in {path.parent}", remedy=_REMEDY)
    try:
        network.load_state_dict(weights.load_state_dict(path), assign=True)
    except RuntimeError as exc:
        raise WeightsInvalid(f"{path}: not the weights of easyocr's {type(network).__name__}", remedy=_REMEDY) from exc
    return network.to(device).eval()
