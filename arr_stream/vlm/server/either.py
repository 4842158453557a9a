"""The viewer for a server that is not known yet: cells where it has the plugin, crops where it has not."""

from __future__ import annotations

import time
from dataclasses import replace

from arr_stream.config import Settings
from arr_stream.errors import ServerFailed
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.server.viewer import ServerViewer
from arr_stream.vlm.viewer import OnText, Stop, Viewer

_AGAIN_SECONDS = 5.0
"""Pause before a server that did not answer is asked again what it is."""


class EitherViewer:
    """Finds out what a server can take, and shows it the chosen cells in that way; a `Viewer`.

    As long as it does not answer, frames are kept as crops.

    Args:
        settings: See `CarryingViewer` and `ServerViewer`.

    Raises:
        InvalidSetting, BackendUnavailable: See `ServerViewer`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._crops = ServerViewer(settings.vlm)
        self._viewer: Viewer | None = None
        self._tried_seconds: float | None = None
        self._told = False
        self.name = self._crops.name

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """See `Viewer.see`.

        Raises:
            ArrStreamError: See `CarryingViewer` and `ServerViewer`.
        """
        return self._decided().see(frame, patches)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """See `Viewer.ask`; the first answer tells how the cells are sent.

        Raises:
            ArrStreamError: See `CarryingViewer` and `ServerViewer`.
        """
        answer = (self._viewer or self._crops).ask(question, on_text=on_text, stop=stop)
        if self._told or self._viewer is None or answer.error is not None:
            return answer
        self._told = True
        way = "crops, about where they are" if self._viewer is self._crops else "cells at their true places"
        why = ": the server has no arr-stream plugin" if self._viewer is self._crops else ""
        return replace(answer, note=f"sent as {way}{why}")

    @property
    def attention(self) -> FloatArray | None:
        """None: servers do not tell where a model looked."""
        return None

    def close(self) -> None:
        """Call off what is asked and close the connections; safe to call again."""
        if self._viewer is not None:
            self._viewer.close()
        self._crops.close()

    def _decided(self) -> Viewer:
        """Whom frames are shown to."""
        if self._viewer is not None:
            return self._viewer
        now = time.monotonic()
        if self._tried_seconds is not None and now - self._tried_seconds < _AGAIN_SECONDS:
            return self._crops
        from arr_stream.vlm.server.carrying import CarryingViewer, places_cells

        self._tried_seconds = now
        try:
            places = places_cells(self._crops.server)
        except ServerFailed:
            return self._crops
        self._viewer = CarryingViewer(self._crops.server, self._settings) if places else self._crops
        return self._viewer
