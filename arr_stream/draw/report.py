"""Report folder of a run: contact sheet, latency plot, numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from arr_stream.config import Settings, public_settings
from arr_stream.consumer import Outcome
from arr_stream.draw import typeface
from arr_stream.draw.overlay import draw_patches
from arr_stream.draw.statistics import ModelStatistics, ObjectStatistics, RunStatistics
from arr_stream.draw.typeface import ACCENT, GREY, WHITE
from arr_stream.files import prepare_output, written_whole
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.types import ByteArray, Frame

CONTACT_SHEET, LATENCY_PLOT, SUMMARY = "contact_sheet.png", "latency.png", "summary.json"

_SHOWN = 16
_COLUMNS = 4
_THUMB_WIDTH, _THUMB_MOST_HEIGHT = 400, 420
_GAP, _MARGIN, _CAPTION = 14, 28, 26
_GROUND = (17, 19, 23)
_INK, _PAPER, _GRID = "#1b1f26", "#ffffff", "#e4e8ee"
_LINE, _MARK = "#2b6cb0", "#e8890c"


def prepare_report(folder: Path, force: bool) -> None:
    """Check that a report can be written; see `Report`."""
    for name in (CONTACT_SHEET, LATENCY_PLOT, SUMMARY):
        prepare_output(folder / name, force)


class Report:
    """Writer of `contact_sheet.png`, `latency.png` and `summary.json` into a folder when it is closed.

    If a model watched, the summary has a section `model`: its inputs, and its newest 1000 answers. If objects of a
    query were found, `objects` holds for each class their number and times.

    Args:
        folder: Output folder; created when there is something to write.
        force: Replace the three files if they exist; other files in the folder are left alone.
        source: Description of the source, such as the fields of `SourceInfo`; plain JSON values or paths.
        asked: The queries.
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
        prepare_report(self.folder, force)
        self._source, self._asked, self._settings = dict(source or {}), asked, settings or Settings()
        self._statistics = RunStatistics()
        self._model = ModelStatistics()
        self._objects = ObjectStatistics()
        self._sheet = ContactSheet()
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
        self._objects.add(patches)
        self._sheet.add(frame, patches)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Write the three files. Without a frame nothing is written."""
        if self._closed:
            return
        self._closed = True
        if self._statistics.frames == 0:
            return
        summary = self._summary(outcome or Outcome.of(failed=failed))
        sheet = Image.fromarray(self._sheet.picture(self._name(), self._subtitle()))
        self._write(CONTACT_SHEET, lambda path: sheet.save(path, format="PNG"))
        self._write(LATENCY_PLOT, lambda path: write_latency_plot(path, self._statistics, self._plot_title()))
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        # File names may hold bytes that are not text; JSON has an escape for them.
        self._write(SUMMARY, lambda path: path.write_bytes(text.encode("utf-8", "backslashreplace")))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        with written_whole(self.folder / name, force=True) as partial:
            write(partial)

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
            **({"objects": self._objects.classes} if self._objects.classes else {}),
            "source": _redacted(self._source),
            "asked": redact_url(self._asked) if self._asked else None,
            "settings": public_settings(self._settings),
            "counters": _redacted(dict(outcome.counters)),
        }

    def _name(self) -> str:
        return redact_url(Path(str(self._source.get("name") or self._source.get("path") or "report")).name)

    def _subtitle(self) -> str:
        statistics = self._statistics
        parts = [
            f"{statistics.frames} frames",
            f"to {clock_time(statistics.last_pts_seconds)}",
            f"{statistics.keyframes.total()} keyframes",
            f"{statistics.tokens.total / statistics.frames:.0f} tokens a frame",
        ]
        if statistics.latency.count:
            parts.append(f"{statistics.amortised_ms:.1f} ms a frame")
        if self._model.answers:
            parts.append(f"{self._model.answers} {'answer' if self._model.answers == 1 else 'answers'}")
        if self._asked:
            parts.append(redact_url(self._asked))
        return "   ·   ".join(parts)

    def _plot_title(self) -> str:
        if not self._statistics.latency.count:
            return f"{self._name()}: no latency was measured"
        return f"{self._name()}: {self._statistics.amortised_ms:.1f} ms a frame (total / frames, keyframes included)"


def _redacted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: redact_url(value) if isinstance(value, str) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Thumbnail:
    """Annotated picture `[h, w, 3]`, at most 400x420; `reason` is why it was a keyframe, None if it was none."""

    rgb: ByteArray
    pts_seconds: float
    tokens: int
    reason: str | None


class ContactSheet:
    """Sheet of every n-th frame, at most 32, which doubles n when there are more; cells that were not chosen are
    dimmed.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._stride = 1
        self.kept: list[Thumbnail] = []

    def add(self, frame: Frame, patches: PatchSet) -> None:
        """Add the frame if it is an n-th one."""
        if self._seen % self._stride == 0:
            if len(self.kept) == 2 * _SHOWN:
                self.kept = self.kept[::2]
                self._stride *= 2
            self.kept.append(self._thumbnail(frame, patches))
        self._seen += 1

    def picture(self, title: str, subtitle: str) -> ByteArray:
        """Return the sheet, `[H, W, 3]`; at least one frame must have been added."""
        shown = min(_SHOWN, len(self.kept))
        places = np.linspace(0, len(self.kept) - 1, shown).round().astype(int)
        chosen = [self.kept[place] for place in places]
        columns = min(_COLUMNS, shown)
        cell_w = max(thumb.rgb.shape[1] for thumb in chosen)
        cell_h = max(thumb.rgb.shape[0] for thumb in chosen)
        rows = -(-shown // columns)
        header = 84
        width = max(640, 2 * _MARGIN + columns * cell_w + (columns - 1) * _GAP)
        height = header + rows * (cell_h + _CAPTION + _GAP) + _MARGIN - _GAP
        sheet = np.full((height, width, 3), _GROUND, dtype=np.uint8)
        room = width - 2 * _MARGIN
        typeface.draw(sheet, typeface.fitted(title, 22, room, True), (_MARGIN, 18), 22, WHITE, bold=True)
        typeface.draw(sheet, typeface.fitted(subtitle, 14, room), (_MARGIN, 50), 14, GREY)
        for place, thumb in enumerate(chosen):
            x = _MARGIN + place % columns * (cell_w + _GAP)
            y = header + place // columns * (cell_h + _CAPTION + _GAP)
            _paste(sheet, thumb, (x, y), (cell_w, cell_h))
        return sheet

    def _thumbnail(self, frame: Frame, patches: PatchSet) -> Thumbnail:
        width, height = frame.size_wh
        scale = min(_THUMB_WIDTH / width, _THUMB_MOST_HEIGHT / height)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        small = np.asarray(cv2.resize(frame.rgb, size, interpolation=method), dtype=np.uint8)
        reason = patches.refresh_reason if patches.keyframe else None
        return Thumbnail(draw_patches(small, patches), frame.pts_seconds, patches.tokens, reason)


def clock_time(seconds: float) -> str:
    """Return a time as `1:02:03.4` or `2:03.4`."""
    tenths = round(seconds * 10)
    minutes, rest = divmod(abs(tenths), 600)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02}:" if hours else f"{minutes}:"
    return ("-" if tenths < 0 else "") + text + f"{rest // 10:02}.{rest % 10}"


def _paste(sheet: ByteArray, thumb: Thumbnail, xy: tuple[int, int], cell_wh: tuple[int, int]) -> None:
    (x, y), (cell_w, cell_h) = xy, cell_wh
    height, width = thumb.rgb.shape[:2]
    left, top = x + (cell_w - width) // 2, y + (cell_h - height) // 2
    sheet[top : top + height, left : left + width] = thumb.rgb
    line = y + cell_h + 4
    after = typeface.draw(sheet, clock_time(thumb.pts_seconds), (x, line), 13, WHITE, bold=True)
    after = typeface.draw(sheet, f"{thumb.tokens} tokens", (after + 10, line), 13, GREY)
    if thumb.reason:
        label = typeface.fitted(f"◆ {thumb.reason}", 13, cell_w - (after + 10 - x))
        typeface.draw(sheet, label, (after + 10, line), 13, ACCENT)


def write_latency_plot(path: Path, statistics: RunStatistics, title: str) -> None:
    """Draw milliseconds over frames as a PNG, with the time spent on keyframes marked.

    Of a long run, an even random sample of the frames is shown.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    frames = statistics.timeline.items
    index, total, keyframe_ms = np.array([frame[:3] for frame in frames], dtype=float).reshape(-1, 3).T
    pays = np.array([frame.pays for frame in frames], dtype=bool)
    rest = total - keyframe_ms
    figure = Figure(figsize=(12, 5), dpi=120, facecolor=_PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if len(frames):
        axes.fill_between(
            index, rest, total, color=_MARK, alpha=0.6, linewidth=0, step="mid", label="time spent on keyframes"
        )
        axes.step(index, rest, where="mid", color=_LINE, linewidth=1.1, label="all else")
        marked = index[pays], total[pays]
        axes.scatter(*marked, s=26, color=_MARK, marker="D", zorder=3, lw=0, label="takes in parts of a keyframe")
    numbers = statistics.latency.summary()
    for name, style in (("median", "-"), ("p95", "--"), ("p99", ":")):
        if name in numbers:
            label = f"{name} {numbers[name]:.1f} ms"
            axes.axhline(numbers[name], color=_INK, linewidth=1, linestyle=style, alpha=0.75, label=label)
    if len(frames) and total.max() > 8 * max(float(np.median(total)), 1e-3) and total.min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.set_xlabel("frame", color=_INK)
    axes.set_ylabel("milliseconds a frame", color=_INK)
    axes.set_title(title, loc="left", color=_INK, fontsize=13, fontweight="bold", pad=12)
    axes.grid(True, which="major", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=_INK)
    figure.savefig(path, format="png", facecolor=_PAPER)
