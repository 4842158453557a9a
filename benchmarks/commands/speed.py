"""Commands that measure cost, each against a baseline run in the same minute: read the ratios."""

from __future__ import annotations

import shutil
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import out
from arr_stream.cli.measuring import Json, Overrides, Preset, say, show
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from benchmarks.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.vlm.bench import Part

LEAST_SIDE_PX = 32
"""One cell; queries are asked for a part of it."""

Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch.")]


class PartName(StrEnum):
    vision = "vision"
    modes = "modes"
    end_to_end = "end-to-end"


def start(
    source: Annotated[str, typer.Argument(help="A video.")],
    repeats: Annotated[int, typer.Option(min=1, help="Starts.")] = 5,
    as_json: Json = False,
) -> None:
    """Time `arr-stream process` from the command to its first frame on disk, and its memory."""
    from benchmarks.start import measure_start

    show(measure_start(source, repeats), as_json=as_json)


def device(
    device: Annotated[str, typer.Option(help="cuda or cpu; auto takes a GPU where there is one.")] = "auto",
    size: Annotated[str, typer.Option(help="Frame size, WIDTHxHEIGHT.")] = "1024x1024",
    frames: Annotated[int, typer.Option(min=8, help="Frames in each run.")] = 60,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each part in a round.")] = 20,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Time a frame between keyframes and each of its parts beside what the memory's speed allows."""
    settings = Settings.load(preset, overrides or ())
    size_wh = parse_size(size, least=LEAST_SIDE_PX)
    if settings.loop.device == "cuda" and device == "cpu":
        raise InvalidSetting("--device cpu beside loop.device=cuda", remedy="leave one of them out")
    wanted = "cuda" if settings.loop.device == "cuda" and device == "auto" else device

    from benchmarks.device.bench import bench_device, named_device

    report = bench_device(
        settings,
        named_device(wanted),
        size_wh=size_wh,
        frames=frames,
        repeats=repeats,
        progress=say,
    )
    show(report, as_json=as_json)
    for line in () if as_json else report.unmeasured:
        out.print(line, markup=False)


def vlm(
    model: Annotated[
        str, typer.Option(help="Hub name or folder of a Qwen3-VL; without it one with random weights is made.")
    ] = "",
    part: Annotated[list[PartName] | None, typer.Option(help="Only this; may be given again.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Cells of a frame that ours is given.")] = 273,
    size: Annotated[str, typer.Option(help="Frame size, WIDTHxHEIGHT.")] = "1024x1024",
    like: Annotated[
        str | None,
        typer.Option(help="Random weights: all sizes of a released model (4B), in place of --layers and --width."),
    ] = None,
    layers: Annotated[str, typer.Option(help="Random weights: layers of vision and text.")] = "12,8",
    width: Annotated[str, typer.Option(help="Random weights: widths of vision and text.")] = "512,1024",
    runs: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of the end-to-end clip.")] = 2.0,
    threads: Threads = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Time a Qwen3-VL with the chosen cells against the same model with whole frames. Look at the ratios."""
    settings = Settings.load(preset, overrides or ())
    if model:
        settings = settings.with_values({"vlm.model": model})
    size_wh = parse_size(size, least=LEAST_SIDE_PX)
    depth, breadth = _pair("--layers", layers), _pair("--width", width)

    from benchmarks.device.bench import named_device
    from benchmarks.vlm.bench import PARTS, bench_vlm
    from benchmarks.vlm.model import RELEASED, Shape

    named_device(settings.loop.device)  # before a model is made

    if like is not None and like not in RELEASED:
        raise InvalidSetting(
            f"--like {like}: no sizes of such a model are known", remedy=f"known: {', '.join(RELEASED)}"
        )
    wanted: Sequence[Part] = [name for name in PARTS if name in part] if part else PARTS
    report = bench_vlm(
        settings,
        parts=wanted,
        shape=RELEASED[like] if like else Shape(*depth, *breadth),
        tokens=tokens,
        size_wh=size_wh,
        seconds=seconds,
        runs=runs,
        threads=threads,
        progress=say,
    )
    show(report, as_json=as_json)


def serving(
    vllm: Annotated[str, typer.Option(envvar="ARR_STREAM_VLLM", help="Where `vllm` is that has the plugin.")] = "",
    times: Annotated[bool, typer.Option(help="Time to the first token, and streams, with random weights.")] = True,
    clips: Annotated[int, typer.Option(min=0, help="Drawn clips that the tiny model is asked about.")] = 20,
    streams: Annotated[list[int] | None, typer.Option(min=1, help="That ask at once (1, 4 and 16).")] = None,
    layers: Annotated[str, typer.Option(help="Random weights: layers of vision and text.")] = "12,8",
    width: Annotated[str, typer.Option(help="Random weights: widths of vision and text.")] = "512,1024",
    runs: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 5,
    as_json: Json = False,
) -> None:
    """Whole frames, published pruning and chosen cells side by side in vLLM: time, throughput, right answers."""
    depth, breadth = _pair("--layers", layers), _pair("--width", width)
    if shutil.which(vllm) is None:
        found = f"--vllm {vllm}: no such program" if vllm else "no vLLM is named"
        raise InvalidSetting(found, remedy="give --vllm PATH or set ARR_STREAM_VLLM; scripts/test --vllm")

    from benchmarks.serving.measure import STREAMS, measure
    from benchmarks.vlm.model import Shape

    shape = Shape(*depth, *breadth)
    report = measure(vllm, times=times, clips=clips, runs=runs, streams=streams or STREAMS, shape=shape, progress=say)
    show(report, as_json=as_json)


def live(
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="page, browser-camera, rate, three, four, keyframes, first-picture or outage; "
            "repeat it for several. All where none is named.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=2.0, help="Length of each measurement.")] = 20.0,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure live streams from the camera to the page, with Chromium on this machine."""
    # Validate here, so that errors do not surface in the measured server.
    Settings.load(None, overrides or ())

    from benchmarks.live.bench import PARTS, bench_live
    from benchmarks.live.figures import LivePlan

    plan = LivePlan(seconds, tuple(overrides or ()), say)
    show(bench_live(tuple(dict.fromkeys(part or PARTS)), plan), as_json=as_json)


def _pair(option: str, text: str) -> tuple[int, int]:
    first, comma, second = text.partition(",")
    if not (comma and first.strip().isdecimal() and second.strip().isdecimal()):
        raise InvalidSetting(f"{option} {text!r}", remedy="write two whole numbers, such as 12,8")
    return int(first), int(second)
