"""Motion vectors that the decoder already has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av.error
import numpy as np
import numpy.typing as npt
from av.sidedata.motionvectors import MotionVectors
from av.video.frame import PictureType, VideoFrame

from arr_stream.errors import MotionVectorsUnavailable
from arr_stream.sources.container import choose_stream, next_of, open_media

EXPORT_OPTIONS = {"flags2": "+export_mvs"}
"""Options of a decoder that make it hand out its motion vectors."""

_INTRA = (PictureType.I, PictureType.SI, PictureType.BI)
_INTER = (PictureType.P, PictureType.B, PictureType.S, PictureType.SP)
_PROBE_INTER_FRAMES = 8
_PROBE_FRAMES = 64


def exported_vectors(picture: VideoFrame) -> npt.NDArray[Any] | None:
    """A copy of the vectors, `[N]` with PyAV's fields, or None; the picture's memory is not held."""
    found = picture.side_data.get("MOTION_VECTORS")
    return np.array(found.to_ndarray()) if isinstance(found, MotionVectors) else None


def is_intra(picture: VideoFrame) -> bool | None:
    """Coded without reference to other frames; None where the decoder does not say."""
    if picture.pict_type in _INTRA or picture.key_frame:
        return True
    return False if picture.pict_type in _INTER else None


def require_export(path: Path, name: str, video_stream: int | None) -> None:
    """Decode the beginning until it is known whether this decoder exports motion vectors.

    Known means: a frame has some, or eight frames that refer to others have none, or no frame among the first 64 refers
    to another. A file of one frame is let pass.

    Raises:
        MotionVectorsUnavailable: It does not.
    """
    media = open_media(path, name)
    try:
        stream, _ = choose_stream(media.container, name, video_stream)
        context = stream.codec_context
        context.options = EXPORT_OPTIONS
        codec, inter, seen, ended = context.name, 0, 0, False
        pictures = media.container.decode(stream)
        while inter < _PROBE_INTER_FRAMES and seen < _PROBE_FRAMES and not ended:
            try:
                picture = next_of(pictures)
            except (av.error.FFmpegError, OSError):
                picture = None
            if picture is None:
                ended = True
                break
            if exported_vectors(picture) is not None:
                return
            seen += 1
            inter += is_intra(picture) is False
    finally:
        media.close()
    if ended and seen <= 1:
        return
    what = "exports no motion vectors" if inter else "codes every frame by itself, so that there are no motion vectors"
    raise MotionVectorsUnavailable(f"{name}: {codec} {what}", remedy="use --set motion.flow=dis")
