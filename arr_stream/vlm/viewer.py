"""The shape that every model which watches has in common, whether it runs here or behind a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from arr_stream.config import VlmSettings
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame

OnText = Callable[[str], None]
"""Called with each piece of an answer as it comes."""


class Stop(Protocol):
    """Tells whether to stop; a `threading.Event` does."""

    def is_set(self) -> bool: ...


class Viewer(Protocol):
    """A model that is shown the chosen cells of frames, and answers questions about them at any time."""

    name: str

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Take the chosen cells of one frame; frames come in order.

        Raises:
            ArrStreamError: The frame could not be taken; what was seen before stays.
        """
        ...

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer about what was seen.

        Args:
            question: In words; not empty.
            on_text: Called with each piece of the answer.
            stop: Ends the answer early when set; it comes back as far as it is, `cancelled`.

        Raises:
            EmptyQuery: The question is empty.
            ArrStreamError: No answer came of it; what was seen stays.
        """
        ...

    @property
    def attention(self) -> FloatArray | None:
        """`[gh, gw]` in [0, 1]: where on the newest frame the last answer looked, largest 1; None if not known."""
        ...

    def close(self) -> None:
        """Let go of what was seen, of threads and of connections; safe to call again."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """A viewer that can tell how likely an answer is."""

    def weigh(self, question: str, answers: Sequence[str]) -> tuple[float, ...]:
        """For each answer the logarithm of how likely it is, as a whole, about what was seen; changes nothing.

        Raises:
            ArrStreamError: It could not be told.
        """
        ...


def check_region_tokens(settings: VlmSettings) -> None:
    """Refuse summaries where no vision tower has seen what they would sum up, or nothing is left out.

    Raises:
        InvalidSetting: `region_tokens` with a server, or with another mode than `prune`.
    """
    if settings.region_tokens and (settings.endpoint or settings.mode != "prune"):
        where = "a server" if settings.endpoint else f"vlm.mode={settings.mode}"
        raise InvalidSetting(
            f"vlm.region_tokens={settings.region_tokens} with {where}: only `prune` encodes cells and leaves them out",
            remedy="set it to 0, or take --mode prune with a model of your own",
        )
