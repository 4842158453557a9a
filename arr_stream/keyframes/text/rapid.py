"""Text by RapidOCR (PaddleOCR's models on onnxruntime), with the weights inside its wheel.

How large the picture that detection sees should be, measured on the ten ICDAR 2015 photos (1280x720) of mmocr, one
thread: share of the pixels of legible words that the mask covers, words more than half covered, share of the mask
(illegible words left out) that is on a legible word, processor seconds:

| long side | pixels | words | precision | seconds |
|---|---|---|---|---|
| 480 | 0.34 | 5/21 | 0.64 | 0.02 |
| 640 | 0.60 | 14/21 | 0.56 | 0.05 |
| 736 | 0.62 | 15/21 | 0.62 | 0.07 |
| 960 | 0.62 | 15/21 | 0.30 | 0.13 |
| 1280 | 0.69 | 16/21 | 0.27 | 0.23 |

Enlarging helps as well: photos reduced to 480x270 gave 5/21 words as they are and 12/21 brought to 736.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.errors import BackendUnavailable
from arr_stream.keyframes.base import KeyframeInput, TextFinding, resized
from arr_stream.keyframes.text.lines import detect_wh, straightened
from arr_stream.keyframes.text.mask import text_mask
from arr_stream.types import ByteArray, TextRegion

DETECT_SIDE_PX = 640
"""Long side of the picture that detection sees; beyond it cost grows faster than what is found."""

LEAST_SCORE = 0.5
"""Mean probability of text in a box from which the box counts."""

_REMEDY = "run `pip install rapidocr onnxruntime`, or set keyframes.text=none"


class RapidOcrFinder:
    """Finds text, and reads it when asked.

    Args:
        threads: Threads for onnxruntime; None leaves the choice to it.
        detect_side_px: Long side in pixels of the picture that detection sees; frames are reduced or enlarged to it.

    Raises:
        BackendUnavailable: rapidocr or onnxruntime is missing, or the models are not inside the package.
    """

    name = "rapidocr"

    def __init__(self, *, threads: int | None = None, detect_side_px: int = DETECT_SIDE_PX) -> None:
        self.detect_side_px = detect_side_px
        self._engine = _make_engine(threads)
        # The engine loads a model at its first use. Loading the detector's here makes the first keyframe as quick as
        # any other; the recogniser's waits until a query needs words.
        self.regions(np.zeros((32, 32, 3), np.uint8), detect_side_px)

    def find(self, picture: KeyframeInput, *, read: bool) -> TextFinding:
        rgb = picture.frame.rgb
        found = self.regions(rgb, self.detect_side_px)
        # The mask says where text is, read or not, so it keeps the detector's scores.
        mask = text_mask(found, picture.quarter_hw)
        return TextFinding(mask, tuple(self.read(rgb, region) for region in found) if read else found)

    def regions(self, rgb: ByteArray, side_px: float, least_score: float = LEAST_SCORE) -> tuple[TextRegion, ...]:
        """Detection alone.

        Args:
            rgb: `[h, w, 3]` uint8; positions of the regions are relative to it.
            side_px: Long side at which it is looked at.
            least_score: Mean probability from which a box counts, in [0, 1].
        """
        seen = resized(rgb, detect_wh((rgb.shape[1], rgb.shape[0]), side_px))
        # The engine remembers thresholds from call to call, so each call names its own.
        found = self._engine(_bgr(seen), use_det=True, use_cls=False, use_rec=False, box_thresh=least_score)
        if found.boxes is None:
            return ()
        size_wh = (seen.shape[1], seen.shape[0])
        return tuple(
            TextRegion(
                tuple((float(x), float(y)) for x, y in np.clip(corners / size_wh, 0.0, 1.0)),
                float(np.clip(score, 0.0, 1.0)),
            )
            for corners, score in zip(found.boxes, found.scores, strict=True)
        )

    def read(self, rgb: ByteArray, region: TextRegion) -> TextRegion:
        """The region with its words; unchanged where nothing can be read."""
        line = straightened(rgb, region)
        found = self._engine(_bgr(line), use_det=False, use_cls=False, use_rec=True)
        text = " ".join(found.txts or ()).strip()
        if not text:
            return region
        return TextRegion(region.polygon_xy, float(np.clip(min(found.scores), 0.0, 1.0)), text)


def _make_engine(threads: int | None) -> Any:
    # onnxruntime reports each session to its maker, unless this is set before it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import rapidocr
    except ImportError as exc:
        raise BackendUnavailable(f"text rapidocr needs rapidocr: {exc}", remedy=_REMEDY) from exc
    models = Path(rapidocr.__file__).parent / "models"
    # Sizes are ours to choose (`_detect_wh`), so the engine's own limits are moved out of the way. Named model files
    # keep it from looking for others on the network.
    settings: dict[str, Any] = {
        "Global.log_level": "critical",
        "Global.min_side_len": 1,
        "Global.max_side_len": 1 << 20,
        "Global.text_score": 0.0,
        "Det.limit_type": "max",
        "Det.limit_side_len": 1 << 20,
        "Det.model_path": _model(models, "det"),
        "Cls.model_path": _model(models, "cls"),
        "Rec.model_path": _model(models, "rec"),
    }
    if threads is not None:
        settings["EngineConfig.onnxruntime.intra_op_num_threads"] = threads
        settings["EngineConfig.onnxruntime.inter_op_num_threads"] = 1
    try:
        return rapidocr.RapidOCR(params=settings)
    except ImportError as exc:
        raise BackendUnavailable(f"text rapidocr needs onnxruntime: {exc}", remedy=_REMEDY) from exc


def _model(models: Path, part: str) -> str:
    found = sorted(models.glob(f"*_{part}_*.onnx"))
    if not found:
        raise BackendUnavailable(
            f"text rapidocr: no {part} model in {models}", remedy="run `pip install --force-reinstall rapidocr`"
        )
    return str(found[0])


def _bgr(rgb: ByteArray) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(rgb[:, :, ::-1])
