"""What figures depend on: the machine, the packages, and the state of the code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from arr_stream.evaluation.machine import cores, processor_name

PACKAGES = (
    "torch",
    "numpy",
    "opencv-python-headless",
    "av",
    "scikit-image",
    "onnxruntime",
    "rapidocr",
    "kornia",
    "open_clip_torch",
    "transformers",
)

PRODUCT = ("arr_stream", "pipelines", "sample_videos")
"""Folders whose files can change a figure."""


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, GPU, system, Python and the packages that figures depend on."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "processor": processor_name(),
        "cores": str(cores()),
        "memory": _memory(),
        "GPU": gpu,
        "system": platform.system() + " " + platform.release().partition("-")[0],
        "Python": platform.python_version(),
        **_versions(),
    }


def _memory() -> str:
    """Of the machine; `unknown` on systems that do not tell."""
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, OSError, ValueError):
        return "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def load_average() -> float:
    """Of the last minute; 0 on systems that have none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def code_digest(root: Path) -> str:
    """Changes with any file of the product, and with nothing else."""
    digest = hashlib.sha256()
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit(root: Path) -> str:
    """Short name of the commit, with `+` where files of the product differ from it; `unknown` outside a repository."""
    try:
        name = _git(root, "rev-parse", "--short=8", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *PRODUCT)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
