"""`arr-stream doctor`: extras, backends that work or why not, devices."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

import typer

from arr_stream.cli.console import out
from arr_stream.cli.measuring import Json
from arr_stream.errors import ArrStreamError, BackendUnavailable, KeyframeFailed
from arr_stream.extras import EXTRAS, needed_by, remedy_for

if TYPE_CHECKING:
    from arr_stream.keyframes.base import PartName
    from arr_stream.types import Frame

OPTIONAL_BACKENDS = (
    *("clusters slic-fast", "clusters sam", "embeddings clip", "text easyocr"),
    *("objects auto", "model qwen3-vl"),
)
PARTS: dict[PartName, tuple[str, tuple[str, ...]]] = {
    "clusters": ("keyframes.clusters", ("slic-fast", "slic-skimage", "grid", "merge", "features", "sam")),
    "embedding": ("keyframes.embeddings", ("appearance", "clip")),
    "text": ("keyframes.text", ("auto", "rapidocr", "easyocr")),
    "objects": ("keyframes.objects", ("auto",)),
}
"""Parts of a keyframe: the setting that chooses the backend of each, and its choices."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Checked `extra`, `backend` or `device`: its version or figure, or why it fails and what to do."""

    group: str
    name: str
    works: bool
    detail: str


def doctor(as_json: Json = False) -> None:
    """Look at extras, backends and devices; exit with 1 if something that the defaults need does not work."""
    from rich.table import Table
    from rich.text import Text

    findings = [*_extras(), *_backends(), *_devices()]
    if as_json:
        out.print_json(json.dumps([asdict(finding) for finding in findings]))
    else:
        table = Table(title=f"arr-stream on Python {platform.python_version()}, {sys.platform}", title_justify="left")
        for heading in ("", "what", "works", "detail"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            table.add_row(finding.group, finding.name, "yes" if finding.works else "no", Text(finding.detail))
        out.print(table)
    if any(not found.works and found.group == "backend" and "(optional)" not in found.detail for found in findings):
        raise typer.Exit(1)


def _extras() -> list[Finding]:
    """Return the installed packages of each extra, and what installing the rest would add."""
    distributions = metadata.packages_distributions()
    findings = []
    for extra, held in EXTRAS.items():
        found = [name for module in held.modules for name in distributions.get(module, [])[:1]]
        whole = len(found) == len(held.modules)
        there = ", ".join(f"{name} {metadata.version(name)}" for name in found)
        adds = "" if whole else f"{held.adds}; {remedy_for(extra)}"
        findings.append(Finding("extra", extra, whole, "; ".join(part for part in (there, adds) if part)))
    return findings


def _backends() -> list[Finding]:
    """Check each backend by running it once on a small picture."""
    checks: dict[str, Callable[[], str]] = {
        **{
            f"{setting.partition('.')[2]} {name}": partial(_try_part, part, {setting: name})
            for part, (setting, names) in PARTS.items()
            for name in names
        },
        "video h264": _try_encoder,
        "opencv": _check_opencv,
        "model qwen3-vl": _try_qwen,
    }
    return [_checked(name, check) for name, check in checks.items()]


def _checked(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding("backend", name, True, check())
    except ArrStreamError as error:
        optional = " (optional)" if name in OPTIONAL_BACKENDS else ""
        return Finding("backend", name, False, f"{error}{optional}")
    except Exception as error:
        return Finding("backend", name, False, f"{type(error).__name__}: {error}")


def _small_frame() -> Frame:
    import numpy as np

    from arr_stream.types import Frame

    return Frame(0, 0.0, np.random.default_rng(0).integers(0, 255, (96, 128, 3), np.uint8))


def _try_part(part: PartName, values: dict[str, object]) -> str:
    from arr_stream.config import Settings
    from arr_stream.keyframes.generate import KeyframeFailure, KeyframeRequest, make_generator, make_part
    from arr_stream.keyframes.objects import REMEDY
    from arr_stream.types import Grid

    request = KeyframeRequest(_small_frame(), Grid.for_size((128, 96)))
    jobs = make_generator(Settings().with_values(values), parts=[part]).jobs(request)
    if part not in jobs:
        raise BackendUnavailable("no detector is installed", remedy=REMEDY)
    made = make_part(0, part, jobs[part])
    if isinstance(made, KeyframeFailure):
        raise KeyframeFailed(made.message)
    return f"{made.backend}: {made.seconds * 1e3:.0f} ms on 128x96"


def _try_qwen() -> str:
    with needed_by("a model", "vlm"):
        from arr_stream.vlm.qwen3_vl.adapter import use_transformers

        return f"transformers {use_transformers().__version__}"


def _try_encoder() -> str:
    import av

    return f"{av.codec.Codec('libx264', 'w').long_name}, PyAV {av.__version__}"


def _check_opencv() -> str:
    flavours = sorted(set(metadata.packages_distributions()["cv2"]))
    if len(flavours) > 1:
        raise BackendUnavailable(
            f"{' and '.join(flavours)} overwrite each other", remedy="keep opencv-python-headless alone"
        )
    return f"{flavours[0]} {metadata.version(flavours[0])}"


def _devices() -> list[Finding]:
    import cv2

    from arr_stream.processes import usable_cores

    cores = f"{usable_cores()} cores, OpenCV uses {cv2.getNumThreads()} threads"
    return [Finding("device", "cpu", True, cores), *_gpus()]


def _gpus() -> list[Finding]:
    try:
        import torch
    except ModuleNotFoundError:
        return [Finding("device", "cuda", False, "torch, which would use it, is not installed")]
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    works = [
        Finding("device", f"cuda:{number}", True, f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")
        for number, gpu in enumerate(found)
    ]
    return works or [Finding("device", "cuda", False, "no NVIDIA GPU that torch can use")]
