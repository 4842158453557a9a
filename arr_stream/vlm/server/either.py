"""The session for an unknown server: it sends cells if the server has the plugin, crops otherwise."""

from __future__ import annotations

import time
from dataclasses import replace

from arr_stream.config import Settings
from arr_stream.errors import ServerFailed
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.server.session import ServerSession
from arr_stream.vlm.session import ModelSession, OnText, Stop

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Pauses before the session probes a server again that did not answer; doubled each time."""
_CROPS, _CELLS = "crops, about where they are", "cells at their true places"


class EitherSession:
    """`ModelSession` that tests whether a server places cells; until it answers, frames are kept as crops.

    Raises:
        InvalidSetting, BackendUnavailable: See `ServerSession`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._crops = ServerSession(settings.vlm)
        self._cells: ModelSession | None = None
        self._decided = self._suspect = False
        self._again_seconds, self._pause_seconds = 0.0, _FIRST_PAUSE_SECONDS
        self._told = ""
        self.name = self._crops.name

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Show a frame, as cells or as crops; see `ModelSession.see`."""
        if self._cells is not None:
            return self._cells.see(frame, patches)
        if not self._decided and time.monotonic() >= self._again_seconds:
            places = self._asked()
            self._decided = places is not None
            if places:
                from arr_stream.vlm.server.carrying import CarryingSession

                self._cells = CarryingSession(self._crops.server, self._settings)
                return self._cells.see(frame, patches)
        return self._crops.see(frame, patches)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; the answer notes how the cells are sent when that has changed. See `ModelSession.ask`."""
        cells = self._cells
        if cells is not None and self._suspect:
            self._check_still_placed(cells)
        try:
            answer = (cells or self._crops).ask(question, on_text=on_text, stop=stop)
        except ServerFailed:
            self._suspect = cells is not None
            raise
        if answer.error is not None:
            return answer
        if cells is not None:
            note = f"sent as {_CELLS}"
        else:
            why = "has no arr-stream plugin" if self._decided else "did not say in time whether it has the plugin"
            note = f"sent as {_CROPS}: the server {why}"
        if note == self._told:
            return answer
        self._told = note
        return replace(answer, note=note)

    @property
    def attention(self) -> FloatArray | None:
        return None  # servers do not report it

    def close(self) -> None:
        if self._cells is not None:
            self._cells.close()
        self._crops.close()

    def _asked(self) -> bool | None:
        """Return whether the server places cells; None if it does not answer."""
        from arr_stream.vlm.server.carrying import places_cells

        try:
            return places_cells(self._crops.server)
        except ServerFailed:
            self._again_seconds = time.monotonic() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            return None

    def _check_still_placed(self, cells: ModelSession) -> None:
        """Probe the server after a failure, since another one may have taken its place."""
        places = self._asked()
        self._suspect = places is None
        if places is False:
            cells.close()
            self._cells = None
            raise self._crops.server.endpoint.failed(
                "no longer takes cells at their places; the frames that it saw are lost",
                "start it with arr-stream's plugin (arr-stream vllm-args); crops are sent from the next frame on",
            )
