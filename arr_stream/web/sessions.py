"""Model for several streams: the weights are shared, the memory is each stream's own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from arr_stream.config import TINY, Settings
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm import ModelSession, OnText, Stop, answering, make_session, needed_by_model
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder

if TYPE_CHECKING:
    from arr_stream.vlm.qwen3_vl.loading import LoadedModel

_OF_THE_PROCESS = ("model", "endpoint", "device", "dtype", "key_variable")
"""Settings that presets do not change: the model, its endpoint and its device."""

_LOOK_SECONDS = 0.1


class SessionFactory:
    """Factory of a session for each stream, with the model of `settings.vlm`; `name` is the model's.

    The tiny model, the default, is loaded at the first question.

    Raises:
        InvalidSetting, BackendUnavailable, ModelUnsupported, ModelTooLarge, WeightsInvalid: See `make_session`.
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
        session = self.make(settings)
        self.name = session.name
        session.close()

    def make(self, settings: Settings) -> ModelSession:
        """Return a session with its own memory; callable from any thread."""
        settings = settings.model_copy(update={"vlm": settings.vlm.model_copy(update=self._process)})
        if settings.vlm.endpoint:
            return make_session(settings)
        if self._tiny:
            return SharedSession(TINY, lambda: self._own(settings), self._turn, late=True)
        session = self._own(settings)
        return SharedSession(session.name, lambda: session, self._turn, late=False)

    def _own(self, settings: Settings) -> ModelSession:
        with needed_by_model(settings.vlm.model):
            from arr_stream.vlm.qwen3_vl.session import QwenSession
        return QwenSession(self._load(settings), settings)

    def _load(self, settings: Settings) -> LoadedModel:
        with needed_by_model(settings.vlm.model):
            from arr_stream.vlm.qwen3_vl.loading import load
        if self._loaded is not None:
            return self._loaded  # without waiting for the answer of another stream
        with self._turn:
            if self._loaded is None:
                self._loaded = load(settings.vlm, settings.models)
            return self._loaded


class SharedSession:
    """`ModelSession` on a shared model, used by one stream at a time, which holds the `turn`.

    A session that is made late, at the first question, knows the newest frames only.

    Args:
        name: Name of the model.
        make: Creates the session. `ask` passes its exceptions on, and the next question tries again.
        late: Create it at the first question.
    """

    def __init__(self, name: str, make: Callable[[], ModelSession], turn: threading.Lock, *, late: bool) -> None:
        self.name = name
        self._make = make
        self._turn = turn
        self._session = None if late else make()
        self._kept: deque[tuple[Frame, PatchSet]] = deque(maxlen=2)  # one pair
        self._newest = -1, 0.0

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Show a frame, or keep it until the first question; see `ModelSession.see`."""
        self._newest = frame.index, frame.pts_seconds
        if self._session is None:
            self._kept.append((frame, patches))
            return Feeding(frame_index=frame.index)
        with self._turn:
            return self._session.see(frame, patches)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Ask a question; see `ModelSession.ask`. A question that is stopped before its turn is `cancelled`."""
        session = self._session or self._make()
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            if stop is not None and stop.is_set():
                return Answer(question, "", *self._newest, self.name, finish="cancelled")
        try:
            if self._session is None:
                self._session = session
                while self._kept:
                    session.see(*self._kept.popleft())
            return session.ask(question, on_text=on_text, stop=stop)
        finally:
            self._turn.release()

    @property
    def attention(self) -> FloatArray | None:
        return None if self._session is None else self._session.attention

    def close(self) -> None:
        """Release the frames and the session, without waiting for a turn, since it uses no shared state."""
        self._kept.clear()
        if self._session is not None:
            self._session.close()
