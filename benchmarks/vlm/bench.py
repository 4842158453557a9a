"""Savings of sparse feeding: the model with chosen cells against the same model with whole frames, side by side.

Candidates take turns in one run, since machines are noisy: read the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.tables import Report, ResultTable, fields_of
from arr_stream.threads import torch_threads
from arr_stream.types import Grid
from benchmarks.vlm.end_to_end import EndToEndReport, bench_end_to_end
from benchmarks.vlm.model import Shape, timed_model
from benchmarks.vlm.passes import ModeCost, PassesReport, bench_modes, bench_passes, modes_table

Part = Literal["vision", "modes", "end-to-end"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class VlmReport(Report):
    """Results; a part that was not measured is None.

    Args:
        model: Name of the timed model.
        size: Of the frames, WIDTHxHEIGHT.
        dtype, device, threads: How it ran.
        vision: Vision and prefill of one frame.
        modes: All modes at several shares of the cells.
        end_to_end: A clip, perception counted in.
    """

    model: str
    size: str
    dtype: str
    device: str
    threads: int
    vision: PassesReport | None = None
    modes: tuple[ModeCost, ...] | None = None
    end_to_end: EndToEndReport | None = None

    def facts(self) -> Mapping[str, Any]:
        return {name: v.facts() if isinstance(v, PassesReport | EndToEndReport) else v for name, v in fields_of(self)}

    @property
    def tables(self) -> list[ResultTable]:
        """Return the tables of every measured part."""
        about = f"{self.model}; {self.dtype}, {self.device}, {self.threads} threads"
        found = [
            self.vision and self.vision.table(self.size, about),
            self.modes and modes_table(self.modes, self.size),
            self.end_to_end and self.end_to_end.table(self.size),
        ]
        return [table for table in found if table]


def bench_vlm(
    settings: Settings,
    *,
    parts: Sequence[Part] = PARTS,
    shape: Shape | None = None,
    tokens: int = 273,
    size_wh: tuple[int, int] = (1024, 1024),
    seconds: float = 2.0,
    runs: int = 5,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> VlmReport:
    """Time one model.

    Args:
        settings: `vlm.model` names the model; empty for one with random weights.
        parts: What to measure.
        shape: Of the random weights; None for 12 vision and 8 text layers.
        tokens: Cells of a frame that ours is given.
        size_wh: Size of the frames. Ours sees their texture; the stock model sees them at their own size.
        seconds: Length of the end-to-end clip.
        runs: Rounds; medians are over them, and something before them warms up. `modes`, with its many candidates,
            has half as many.
        threads: Of torch; None as it is set.
        progress: Told what comes next.

    Raises:
        InvalidSetting: Sizes that do not fit together.
        ArrStreamError: The model cannot be had.
    """
    _check(size_wh, tokens, settings)
    with torch_threads(threads):
        progress("loading")
        model = timed_model(settings, shape or Shape())
        frame: dict[str, Any] = {"size_wh": size_wh, "runs": runs, "progress": progress}
        passes = bench_passes(model, settings, tokens=tokens, **frame) if "vision" in parts else None
        modes = bench_modes(model, settings, **frame | {"runs": (runs + 1) // 2}) if "modes" in parts else None
        clip = None
        if "end-to-end" in parts:
            clip = bench_end_to_end(model, settings, tokens=tokens, seconds=seconds, **frame)
        return VlmReport(
            model=model.name,
            size="{}x{}".format(*size_wh),
            dtype=str(model.loaded.dtype).removeprefix("torch."),
            device=str(model.loaded.device),
            threads=torch.get_num_threads(),
            vision=passes,
            modes=modes,
            end_to_end=clip,
        )


def _check(size_wh: tuple[int, int], tokens: int, settings: Settings) -> None:
    cells = Grid.for_size(size_wh, max_pixels=settings.grid.max_pixels).cells
    if not 1 <= tokens <= cells:
        raise InvalidSetting(
            f"--tokens {tokens}: a frame of {size_wh[0]}x{size_wh[1]} has {cells} cells",
            remedy="lower --tokens, or raise --size",
        )
