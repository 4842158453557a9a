"""The machine that figures were measured on."""

from __future__ import annotations

import platform
from pathlib import Path

from arr_stream.processes import usable_cores


def machine() -> str:
    """Describe what times depend on, in a line."""
    import torch

    return f"{processor_name()}, {usable_cores()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def processor_name() -> str:
    """Return the processor's model, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
