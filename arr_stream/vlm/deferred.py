"""A viewer that loads its model on the first question, so that a stream without questions does not pay for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.viewer import OnText, Stop, Viewer

_KEPT = 2
"""Newest frames that are shown when the first question arrives: a pair, as one block takes."""


class DeferredViewer:
    """`Viewer` that creates the real one late; the first question is about the newest frames only.

    Args:
        name: Name of the model.
        make: Creates the viewer. `ask` passes its exceptions on, and the next question tries again.
    """

    def __init__(self, name: str, make: Callable[[], Viewer]) -> None:
        self.name = name
        self._make = make
        self._viewer: Viewer | None = None
        self._newest: deque[tuple[Frame, PatchSet]] = deque(maxlen=_KEPT)

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Show a frame, or keep it until the first question; see `Viewer.see`."""
        if self._viewer is not None:
            return self._viewer.see(frame, patches)
        self._newest.append((frame, patches))
        return Feeding(frame_index=frame.index)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; the first one creates the viewer. See `Viewer.ask`."""
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
        """Release the frames and the viewer; safe to call again."""
        self._newest.clear()
        if self._viewer is not None:
            self._viewer.close()
