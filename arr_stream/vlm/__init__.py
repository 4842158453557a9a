"""Vision-language models that watch a stream: a local Qwen3-VL, or a model behind an endpoint.

Importing this package loads no model, so an installation needs only the dependencies of the models it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from arr_stream.config import Settings
    from arr_stream.patch_set import Answer, Feeding, PatchSet
    from arr_stream.types import FloatArray, Frame


TINY_LIMITS = (
    "the tiny model knows drawn shapes and signs alone; about real footage its answers mean nothing: "
    "name another with --model ORG/NAME or --endpoint URL"
)


OnText = Callable[[str], None]
"""Callback that gets each piece of an answer as it arrives."""


class Stop(Protocol):
    """Flag that asks to stop; a `threading.Event` is one."""

    def is_set(self) -> bool: ...


class ModelSession(Protocol):
    """Model that receives the chosen cells of frames and answers questions about them at any time."""

    name: str

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Take the chosen cells of one frame; frames come in order.

        Raises:
            ArrStreamError: The session could not take the frame; it keeps the earlier ones.
        """
        ...

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question about the frames so far; pass each piece of the answer to `on_text`.

        A set `stop` ends the answer early; the partial answer is returned as `cancelled`.

        Raises:
            EmptyQuery: The question is empty.
            NothingChosen: No frame was shown yet.
            ContextExceeded: The question does not fit into the context.
            ArrStreamError: The model gave no answer, or ran out of memory; the session keeps its frames.
        """
        ...

    @property
    def attention(self) -> FloatArray | None:
        """`[gh, gw]` in [0, 1], maximum 1: attention of the last answer to the newest frame; None if unknown."""
        ...

    def close(self) -> None:
        """Release the frames, threads and connections; safe to call again."""
        ...


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
    from arr_stream.extras import needed_by

    return needed_by(f"vlm.model={model}", "vlm")


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
