"""`arr-stream bench vlm`: what it saves to show a model the chosen cells only."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import err, out
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.vlm.bench import Part, VlmReport
    from benchmarks.vlm.end_to_end import EndToEndReport
    from benchmarks.vlm.memory import MemoryReport
    from benchmarks.vlm.passes import ModeCost, PassesReport


class PartName(StrEnum):
    vision = "vision"
    modes = "modes"
    end_to_end = "end-to-end"
    memory = "memory"


def bench_vlm(
    model: Annotated[
        str, typer.Option(help="Hub name or folder of a Qwen3-VL; without it one with random weights is made.")
    ] = "",
    part: Annotated[list[PartName] | None, typer.Option(help="Only this; may be given again.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Cells of a frame that ours is given.")] = 273,
    side: Annotated[int, typer.Option(min=32, help="Side of the square frames in pixels.")] = 1024,
    layers: Annotated[str, typer.Option(help="Random weights: layers of vision and text.")] = "12,8",
    width: Annotated[str, typer.Option(help="Random weights: widths of vision and text.")] = "512,1024",
    runs: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the end-to-end clip.")] = 2.0,
    frames: Annotated[int, typer.Option(min=10, help="Length of the stream that memory is watched over.")] = 500,
    context: Annotated[int, typer.Option(min=256, help="Context tokens in that stream.")] = 2048,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    preset: Annotated[Path | None, typer.Option(help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a Qwen3-VL with the chosen cells against the same model with whole frames. Look at the ratios."""
    settings = Settings.load(preset, overrides or ())
    on_cpu(settings, "bench vlm")
    if model:
        settings = settings.with_values({"vlm.model": model})
    depth, breadth = _pair("--layers", layers), _pair("--width", width)

    from benchmarks.vlm.bench import PARTS, bench_vlm
    from benchmarks.vlm.model import Shape

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    wanted: Sequence[Part] = [name for name in PARTS if name in part] if part else PARTS
    report = bench_vlm(
        settings,
        parts=wanted,
        shape=Shape(*depth, *breadth),
        tokens=tokens,
        side_px=side,
        seconds=seconds,
        runs=runs,
        frames=frames,
        context_tokens=context,
        threads=threads,
        progress=progress,
    )
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        _print(report)


def _pair(option: str, text: str) -> tuple[int, int]:
    first, comma, second = text.partition(",")
    if not (comma and first.strip().isdecimal() and second.strip().isdecimal()):
        raise InvalidSetting(f"{option} {text!r}", remedy="write two whole numbers, such as 12,8")
    return int(first), int(second)


def _print(report: VlmReport) -> None:
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    out.print(f"{report.model}; {report.dtype}, {report.device}, {threads}", soft_wrap=True, markup=False)
    if report.vision is not None:
        _print_passes(report.vision, report.side_px)
    if report.modes is not None:
        _print_modes(report.modes, report.side_px)
    if report.end_to_end is not None:
        _print_end_to_end(report.end_to_end, report.side_px)
    if report.memory is not None:
        _print_memory(report.memory)


def _table(title: str, *headings: str) -> Table:
    table = Table("", title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _print_ratios(ratios: dict[str, float]) -> None:
    for name, ratio in ratios.items():
        out.print(f"{name}: {ratio:.2f}")


def _print_passes(passes: PassesReport, side_px: int) -> None:
    table = _table(
        f"One frame of {side_px}x{side_px}, {passes.tokens} of {passes.cells} cells; median ms", "stock", "ours"
    )
    table.add_row("vision", f"{passes.stock_vision.median:.1f}", f"{passes.vision.median:.1f}")
    table.add_row("prefill", f"{passes.stock_prefill.median:.1f}", f"{passes.prefill.median:.1f}")
    table.add_row("question about a frame in memory", "", f"{passes.question.median:.1f}")
    table.add_row("tokens of the prompt", str(passes.stock_prompt_tokens), str(passes.prompt_tokens))
    out.print(table)
    _print_ratios(passes.ratios)
    counted = ", ".join(f"{name} {ratio:.2f}" for name, ratio in passes.operations.items())
    out.print(f"by counted multiplications: {counted}")


def _print_modes(rows: Sequence[ModeCost], side_px: int) -> None:
    table = _table(
        f"Modes on one frame of {side_px}x{side_px}; medians",
        "chosen",
        "kept",
        "vision ms",
        "prefill ms",
        "cache MB",
        "ms a token",
    )
    for row in rows:
        table.add_row(
            row.mode,
            str(row.chosen),
            str(row.kept),
            f"{row.vision_ms:.1f}",
            f"{row.prefill_ms:.1f}",
            f"{row.cache_mb:.1f}",
            f"{row.decode_ms:.2f}",
        )
    out.print(table)


def _print_end_to_end(clip: EndToEndReport, side_px: int) -> None:
    table = _table(
        f"{clip.frames} frames of {side_px}x{side_px} ({clip.keyframes} keyframes), {clip.shown} shown to the model, "
        f"one question, {clip.answer_tokens} tokens of an answer",
        "median ms",
        "visual tokens",
    )
    for name, timing in clip.parts.items():
        table.add_row(f"  {name}", f"{timing.median:.0f}", "")
    table.add_row("ours", f"{clip.ours.median:.0f}", f"{clip.sent} (and {clip.held} held)")
    table.add_row("stock, whole frames", f"{clip.stock.median:.0f}", str(clip.stock_tokens))
    table.add_row("stock, at most 768 tokens a pair", f"{clip.capped.median:.0f}", str(clip.capped_tokens))
    out.print(table)
    _print_ratios(clip.ratios)


def _print_memory(memory: MemoryReport) -> None:
    rebuilds = ", ".join(f"{count} x {reason}" for reason, count in memory.rebuilds.items()) or "none"
    resident = " ".join(f"{each:.0f}" for each in memory.resident_mb)
    out.print(f"{memory.frames} frames, {memory.asked} questions, {memory.seconds:.0f} s; rebuilds: {rebuilds}")
    out.print(
        f"cache: at most {memory.cache_peak_bytes / 1e6:.1f} MB of the {memory.budget_bytes / 1e6:.1f} MB that "
        f"{memory.context_tokens} tokens take"
    )
    out.print(
        f"resident memory by fifth of the stream, MB: {resident}; last against second: {memory.growth_mb:+.1f}; "
        f"at most {memory.resident_peak_mb:.0f}"
    )
