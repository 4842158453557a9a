"""What times depend on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> str:
    """What times depend on, in a line."""
    import torch

    return f"{processor_name()}, {cores()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def processor_name() -> str:
    """The processor's model, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
