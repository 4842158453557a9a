"""The viewer for a server that is not known yet: cells where it has the plugin, crops where it has not."""

from __future__ import annotations

import time
from dataclasses import replace

from arr_stream.config import Settings
from arr_stream.errors import ServerFailed
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.types import FloatArray, Frame
from arr_stream.vlm.server.chat_errors import failed
from arr_stream.vlm.server.viewer import ServerViewer
from arr_stream.vlm.viewer import OnText, Stop, Viewer

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Before a server that did not answer is asked again what it is; doubled each time."""
_CROPS, _CELLS = "crops, about where they are", "cells at their true places"


class EitherViewer:
    """Finds out what a server can take, and shows it the chosen cells in that way; a `Viewer`.

    As long as it does not answer, frames are kept as crops; what it is shown as cells begins with the frame on which
    it did.

    Args:
        settings: See `CarryingViewer` and `ServerViewer`.

    Raises:
        InvalidSetting, BackendUnavailable: See `ServerViewer`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._crops = ServerViewer(settings.vlm)
        self._cells: Viewer | None = None
        self._decided = self._suspect = False
        self._again_seconds, self._pause_seconds = 0.0, _FIRST_PAUSE_SECONDS
        self._told = ""
        self.name = self._crops.name

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """See `Viewer.see`.

        Raises:
            ArrStreamError: See `CarryingViewer` and `ServerViewer`.
        """
        if self._cells is not None:
            return self._cells.see(frame, patches)
        if not self._decided and time.monotonic() >= self._again_seconds:
            places = self._asked()
            self._decided = places is not None
            if places:
                from arr_stream.vlm.server.carrying import CarryingViewer

                self._cells = CarryingViewer(self._crops.server, self._settings)
                return self._cells.see(frame, patches)
        return self._crops.see(frame, patches)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """See `Viewer.ask`; an answer tells how the cells are sent, where that is new.

        Raises:
            ServerFailed: Among others, the server no longer places cells; frames are sent as crops from then on.
            ArrStreamError: See `CarryingViewer` and `ServerViewer`.
        """
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
        """None: servers do not tell where a model looked."""
        return None

    def close(self) -> None:
        """Call off what is asked and close the connections; safe to call again."""
        if self._cells is not None:
            self._cells.close()
        self._crops.close()

    def _asked(self) -> bool | None:
        """Whether the server places cells; None where it does not say."""
        from arr_stream.vlm.server.carrying import places_cells

        try:
            return places_cells(self._crops.server)
        except ServerFailed:
            self._again_seconds = time.monotonic() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            return None

    def _check_still_placed(self, cells: Viewer) -> None:
        """After a failure another server may be there.

        Raises:
            ServerFailed: It does not place cells.
        """
        places = self._asked()
        self._suspect = places is None
        if places is False:
            cells.close()
            self._cells = None
            raise failed(
                self._crops.server.endpoint,
                "no longer takes cells at their places: what it was shown is lost",
                "start it with arr-stream's plugin (arr-stream vllm-args); crops are sent from the next frame on",
            )
