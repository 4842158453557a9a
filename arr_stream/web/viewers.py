"""Model for several streams: the weights are shared, the memory is each stream's own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from arr_stream.config import TINY, Settings
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm import answering, make_viewer, needed_by_model
from arr_stream.vlm.viewer import OnText, Stop, Viewer
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder

if TYPE_CHECKING:
    from arr_stream.vlm.qwen3_vl.loading import LoadedModel

_OF_THE_PROCESS = ("model", "endpoint", "device", "dtype", "key_variable")
"""Settings that presets do not change: the model, its endpoint and its device."""

_LOOK_SECONDS = 0.1


class Viewers:
    """Factory of a viewer for each stream, with the model of `settings.vlm`; `name` is the model's.

    The tiny model, the default, is loaded at the first question.

    Raises:
        InvalidSetting, BackendUnavailable, ModelUnsupported, ModelTooLarge, WeightsInvalid: See `make_viewer`.
    """

    def __init__(self, settings: Settings) -> None:
        self._turn = threading.Lock()
        self._loaded: LoadedModel | None = None
        settings = answering(settings)
        self._process = {key: getattr(settings.vlm, key) for key in _OF_THE_PROCESS}
        self._tiny = settings.vlm.model == TINY and not settings.vlm.endpoint
        if self._tiny:
            shipped_folder(TINY_QWEN)
        elif not settings.vlm.endpoint:
            self._load(settings)
        # Report errors in the other settings now, and not when the first stream starts.
        viewer = self.make(settings)
        self.name = viewer.name
        viewer.close()

    def make(self, settings: Settings) -> Viewer:
        """Return a viewer with its own memory; callable from any thread."""
        settings = settings.model_copy(update={"vlm": settings.vlm.model_copy(update=self._process)})
        if settings.vlm.endpoint:
            return make_viewer(settings)
        if self._tiny:
            return DeferredViewer(TINY, lambda: self._own(settings))
        return self._own(settings)

    def _own(self, settings: Settings) -> Viewer:
        with needed_by_model(settings.vlm.model):
            from arr_stream.vlm.qwen3_vl.viewer import QwenViewer
        return TakingTurns(QwenViewer(self._load(settings), settings), self._turn)

    def _load(self, settings: Settings) -> LoadedModel:
        with needed_by_model(settings.vlm.model):
            from arr_stream.vlm.qwen3_vl.loading import load
        with self._turn:
            if self._loaded is None:
                self._loaded = load(settings.vlm, settings.models)
            return self._loaded


class TakingTurns:
    """Viewer of a shared model, used by one stream at a time, which holds the `turn`. See `Viewer`."""

    def __init__(self, viewer: Viewer, turn: threading.Lock) -> None:
        self.name = viewer.name
        self._viewer = viewer
        self._turn = turn
        self._newest = -1, 0.0

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Show a frame to the model; see `Viewer.see`."""
        with self._turn:
            feeding = self._viewer.see(frame, patches)
        self._newest = frame.index, frame.pts_seconds
        return feeding

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Ask a question; see `Viewer.ask`. A question that is stopped before its turn is `cancelled`."""
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            if stop is not None and stop.is_set():
                return Answer(question, "", *self._newest, self.name, finish="cancelled")
        try:
            return self._viewer.ask(question, on_text=on_text, stop=stop)
        finally:
            self._turn.release()

    @property
    def attention(self) -> FloatArray | None:
        return self._viewer.attention

    def close(self) -> None:
        """Close the viewer; see `Viewer.close`. It does not wait for its turn, since it uses no shared state."""
        self._viewer.close()


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
        self._newest: deque[tuple[Frame, PatchSet]] = deque(maxlen=2)  # one pair

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
