"""Vision-language models that watch a stream: a local Qwen3-VL, or a model behind an endpoint.

Importing this package loads no model, so an installation needs only the dependencies of the models it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from arr_stream.config import Settings
    from arr_stream.vlm.session import ModelSession


TINY_LIMITS = (
    "the tiny model knows drawn shapes and signs alone; about real footage its answers mean nothing: "
    "name another with --model ORG/NAME or --endpoint URL"
)


def answering(settings: Settings) -> Settings:
    """Return the settings with a model named: the tiny one by default.

    The tiny model gets the encoder that knows the same drawn shapes, unless the settings name another one.
    """
    from arr_stream.config import TINY

    if not settings.vlm.model and not settings.vlm.endpoint:
        settings = settings.with_values({"vlm.model": TINY})
    if (settings.vlm.model, settings.clip.model, settings.relevance.language) != (TINY, TINY, "auto"):
        return settings
    return settings.with_values({"keyframes.embeddings": "clip", "relevance.language": "clip"})


def needed_by_model(model: str) -> AbstractContextManager[None]:
    """Report in one line the dependencies that a local Qwen3-VL lacks; see `extras.needed_by`."""
    from arr_stream.config import TINY
    from arr_stream.extras import needed_by

    return needed_by(f"vlm.model={model}", "torch" if model == TINY else "vlm")


def make_session(settings: Settings) -> ModelSession:
    """Return the session that the settings name: a server with `vlm.endpoint`, else a local Qwen3-VL.

    Raises:
        BackendUnavailable, ModelUnsupported, ModelTooLarge, WeightsInvalid: See `arr_stream.errors`.
    """
    if settings.vlm.endpoint:
        from arr_stream.vlm.server import EitherSession

        return EitherSession(settings)
    settings = answering(settings)
    with needed_by_model(settings.vlm.model):
        from arr_stream.vlm.qwen3_vl.loading import load
        from arr_stream.vlm.qwen3_vl.session import QwenSession
    return QwenSession(load(settings.vlm, settings.models), settings)
