"""Models that watch: a Qwen3-VL here, or one behind a server."""

from __future__ import annotations

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.vlm.viewer import Viewer, check_region_tokens


def make_viewer(settings: Settings) -> Viewer:
    """The viewer that the settings name: a server where `vlm.endpoint` is given, a Qwen3-VL of our own otherwise.

    Raises:
        InvalidSetting: Neither is named, or `region_tokens` are asked of one that has none.
        BackendUnavailable, ModelUnsupported, ModelTooLarge, WeightsInvalid: See `arr_stream.errors`.
    """
    check_region_tokens(settings.vlm)
    if settings.vlm.endpoint:
        from arr_stream.vlm.server import ServerViewer

        return ServerViewer(settings.vlm)
    if not settings.vlm.model:
        raise InvalidSetting(
            "no model was named", remedy="give --model ORG/NAME or a folder with a Qwen3-VL, or --endpoint URL"
        )
    from arr_stream.vlm.qwen3_vl.loading import load
    from arr_stream.vlm.qwen3_vl.viewer import QwenViewer

    return QwenViewer(load(settings.vlm, settings.models), settings)
