"""The protocol of every model that watches a stream, local or behind a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame

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


@runtime_checkable
class Weighs(Protocol):
    """Session that can compute the likelihood of an answer."""

    def weigh(self, question: str, answers: Sequence[str]) -> tuple[float, ...]:
        """Return the log-likelihood of each whole answer, given the frames so far; the memory is unchanged."""
        ...
