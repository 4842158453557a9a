"""Models that watch: a Qwen3-VL here, or one behind a server."""

from __future__ import annotations

from arr_stream.config import TINY, Settings
from arr_stream.vlm.viewer import Viewer, check_region_tokens


def answering(settings: Settings) -> Settings:
    """Settings that name a model: the tiny one where they named none."""
    if settings.vlm.model or settings.vlm.endpoint:
        return settings
    return settings.with_values({"vlm.model": TINY})


def make_viewer(settings: Settings) -> Viewer:
    """The viewer that the settings name: a server where `vlm.endpoint` is given, a Qwen3-VL of our own otherwise, the
    tiny one where none is named.

    Raises:
        InvalidSetting: `region_tokens` are asked of one that has none.
        BackendUnavailable, ModelUnsupported, ModelTooLarge, WeightsInvalid: See `arr_stream.errors`.
    """
    check_region_tokens(settings.vlm)
    if settings.vlm.endpoint:
        from arr_stream.vlm.server import ServerViewer

        return ServerViewer(settings.vlm)
    from arr_stream.vlm.qwen3_vl.loading import load
    from arr_stream.vlm.qwen3_vl.viewer import QwenViewer

    settings = answering(settings)
    return QwenViewer(load(settings.vlm, settings.models), settings)
