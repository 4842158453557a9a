"""A folder that tells at a glance what a run did: contact sheet, latency plot, numbers."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arr_stream.config import Settings, public_settings
from arr_stream.consumer import Outcome
from arr_stream.draw.contact_sheet import ContactSheet, clock_time
from arr_stream.draw.latency_plot import write_latency_plot
from arr_stream.draw.model_statistics import ModelStatistics
from arr_stream.draw.run_statistics import RunStatistics
from arr_stream.errors import OutputExists, OutputUnwritable
from arr_stream.files import check_folder, make_parent, partial_path, publish, writing
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.types import Frame

CONTACT_SHEET, LATENCY_PLOT, SUMMARY = "contact_sheet.png", "latency.png", "summary.json"


class Report:
    """Writes `contact_sheet.png`, `latency.png` and `summary.json` into a folder when it is closed.

    Where a model watched, the summary has a section `model`: what it was given, and its newest 1000 answers.

    Args:
        folder: Where to; made when there is something to write.
        force: Replace the three files where they exist; other files in the folder are left alone.
        source: What was read, such as the fields of `SourceInfo`; plain JSON values or paths.
        asked: What was asked for.
        settings: The settings of the run.

    Raises:
        OutputExists: One of the three files exists and `force` is not set.
        OutputUnwritable: The folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path | str,
        force: bool = False,
        *,
        source: Mapping[str, Any] | None = None,
        asked: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.folder = Path(folder)
        check_folder(self.folder)
        for name in (CONTACT_SHEET, LATENCY_PLOT, SUMMARY):
            path = self.folder / name
            if path.is_dir():
                raise OutputUnwritable(f"{path}: is a folder", remedy="choose another folder for the report")
            if os.path.lexists(path) and not force:
                raise OutputExists(f"{path}: exists already", remedy="choose another folder, or --force to replace it")
        self._source, self._asked, self._settings = dict(source or {}), asked, settings or Settings()
        self._statistics = RunStatistics()
        self._model = ModelStatistics()
        self._sheet = ContactSheet(self._settings.video.dim)
        self._began = self._ended = 0.0
        self._closed = False

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Count one frame."""
        if self._closed:
            raise ValueError(f"{self.folder}: closed, and given another frame")
        self._ended = time.perf_counter()
        if self._statistics.frames == 0:
            self._began = self._ended
        self._statistics.add(patches)
        self._model.add(patches)
        self._sheet.add(frame, patches)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Write the three files. Without a frame nothing is written.

        Raises:
            DiskFull, OutputUnwritable: See `arr_stream.errors`.
        """
        if self._closed:
            return
        self._closed = True
        if self._statistics.frames == 0:
            return
        summary = self._summary(outcome or Outcome.of(failed=failed))
        make_parent(self.folder / SUMMARY)
        self._write(CONTACT_SHEET, self._write_sheet)
        self._write(LATENCY_PLOT, lambda path: write_latency_plot(path, self._statistics, self._plot_title()))
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        self._write(SUMMARY, functools.partial(_write_text, text))

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        path = self.folder / name
        partial = partial_path(path)
        try:
            with writing(path):
                write(partial)
            publish(path, force=True)
        finally:
            partial.unlink(missing_ok=True)

    def _write_sheet(self, path: Path) -> None:
        from PIL import Image

        Image.fromarray(self._sheet.picture(self._name(), self._subtitle())).save(path, format="PNG")

    def _summary(self, outcome: Outcome) -> dict[str, Any]:
        wall = self._ended - self._began
        frames = self._statistics.frames
        model = self._model.summary()
        return {
            "ended": outcome.reason,
            "error": redact_url(outcome.error) if outcome.error else None,
            "dropped": outcome.dropped,
            "wall_seconds": round(wall, 3),
            "frames_per_second": round((frames - 1) / wall, 2) if frames > 1 and wall > 0 else None,
            **self._statistics.summary(),
            **({"model": model} if model is not None else {}),
            "source": _redacted(self._source),
            "asked": redact_url(self._asked) if self._asked else None,
            "settings": public_settings(self._settings),
            "counters": _redacted(dict(outcome.counters)),
        }

    def _name(self) -> str:
        return redact_url(Path(str(self._source.get("name") or self._source.get("path") or "report")).name)

    def _subtitle(self) -> str:
        statistics = self._statistics
        parts = [f"{statistics.frames} frames", f"to {clock_time(statistics.last_pts_seconds)}"]
        parts.append(f"{statistics.keyframes.total()} keyframes")
        parts.append(f"{statistics.tokens.total / statistics.frames:.0f} tokens a frame")
        if statistics.latency.count:
            parts.append(f"{statistics.latency.total / statistics.frames:.1f} ms a frame, keyframes included")
        if self._model.answers:
            parts.append(f"{self._model.answers} {'answer' if self._model.answers == 1 else 'answers'}")
        if self._asked:
            parts.append(redact_url(self._asked))
        return "   ·   ".join(parts)

    def _plot_title(self) -> str:
        if not self._statistics.latency.count:
            return f"{self._name()}: no latency was measured"
        amortised = self._statistics.latency.total / self._statistics.frames
        return f"{self._name()}: {amortised:.1f} ms a frame, keyframes included"


def _write_text(text: str, path: Path) -> None:
    # Names of files may hold bytes that are no text; JSON has an escape for them.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _redacted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: redact_url(value) if isinstance(value, str) else value for name, value in values.items()}
