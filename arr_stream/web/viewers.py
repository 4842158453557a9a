"""The model for several streams: its weights are there once, what it has seen is each stream's own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from arr_stream.config import TINY, Settings
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm import answering, make_viewer, needed_by_model
from arr_stream.vlm.deferred import DeferredViewer
from arr_stream.vlm.viewer import OnText, Stop, Viewer, check_region_tokens
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder

if TYPE_CHECKING:
    from arr_stream.vlm.qwen3_vl.loading import LoadedModel

_OF_THE_PROCESS = ("model", "endpoint", "device", "dtype", "quantize", "key_variable")
"""What presets do not change: which model there is, and where."""

_LOOK_SECONDS = 0.1


class Viewers:
    """Makes a viewer for each stream, of the model that `settings.vlm` names; `name` is the model's.

    The tiny one, where none is named, is loaded when somebody asks.

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
        # What is wrong with the rest of the settings is said now, and not when the first stream starts.
        viewer = self.make(settings)
        self.name = viewer.name
        viewer.close()

    def make(self, settings: Settings) -> Viewer:
        """A viewer with a memory of its own; from any thread."""
        settings = settings.model_copy(update={"vlm": settings.vlm.model_copy(update=self._process)})
        if settings.vlm.endpoint:
            return make_viewer(settings)
        if self._tiny:
            check_region_tokens(settings.vlm)
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
    """A viewer of a model that others use too, one at a time: who uses it holds the `turn`. See `Viewer`."""

    def __init__(self, viewer: Viewer, turn: threading.Lock) -> None:
        self.name = viewer.name
        self._viewer = viewer
        self._turn = turn
        self._newest = -1, 0.0

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """See `Viewer.see`."""
        with self._turn:
            feeding = self._viewer.see(frame, patches)
        self._newest = frame.index, frame.pts_seconds
        return feeding

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """See `Viewer.ask`; a question that is stopped before its turn is `cancelled`."""
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
        """See `Viewer.close`; does not wait for its turn, since it touches nothing that others use."""
        self._viewer.close()
