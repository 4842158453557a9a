"""A viewer that is made when the first question comes, so that a stream that nobody asks about pays nothing for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.viewer import OnText, Stop, Viewer

_KEPT = 2
"""Newest frames that are shown once there is a question: a pair, as one block takes."""


class DeferredViewer:
    """See `Viewer`; the first question is about the newest frames alone.

    Args:
        name: The model's.
        make: Makes the viewer; what it raises comes out of `ask`, and the next question tries again.
    """

    def __init__(self, name: str, make: Callable[[], Viewer]) -> None:
        self.name = name
        self._make = make
        self._viewer: Viewer | None = None
        self._newest: deque[tuple[Frame, PatchSet]] = deque(maxlen=_KEPT)

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """See `Viewer.see`."""
        if self._viewer is not None:
            return self._viewer.see(frame, patches)
        self._newest.append((frame, patches))
        return Feeding(frame_index=frame.index)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """See `Viewer.ask`."""
        if self._viewer is None:
            self._viewer = self._make()
            kept = tuple(self._newest)
            self._newest.clear()
            for frame, patches in kept:
                self._viewer.see(frame, patches)
        return self._viewer.ask(question, on_text=on_text, stop=stop)

    @property
    def attention(self) -> FloatArray | None:
        return None if self._viewer is None else self._viewer.attention

    def close(self) -> None:
        """See `Viewer.close`."""
        self._newest.clear()
        if self._viewer is not None:
            self._viewer.close()
