"""Which commands are tried after an installation, and what each has to say."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CLIP = """
import av, numpy as np, sys
with av.open(sys.argv[1], "w") as container:
    stream = container.add_stream("libx264", rate=10)
    stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
    for index in range(10):
        picture = np.full((120, 160, 3), 90, np.uint8)
        picture[40:80, 10 + 8 * index : 50 + 8 * index] = (220, 30, 30)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
    container.mux(stream.encode(None))
"""
"""A red square that goes right, ten frames; run with the path of the clip."""

_BACKEND_UNAVAILABLE = 60

NEEDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("torch", "torch", ("process", "clip.mp4", "--set", "keyframes.embeddings=clip", "--patches", "no.jsonl")),
    ("torch", "torch", ("process", "clip.mp4", "--set", "motion.flow=torch", "--patches", "no.jsonl")),
    ("torch", "torch", ("process", "clip.mp4", "--set", "loop.device=cuda", "--patches", "no.jsonl")),
    ("torch", "torch", ("ask", "clip.mp4", "What?")),
    ("torch", "torch", ("tune", "clip.mp4", "-o", "no.toml")),
    ("vlm", "transformers", ("ask", "clip.mp4", "What?", "--model", ".")),
    ("vlm", "openai", ("ask", "clip.mp4", "What?", "--model", "M", "--endpoint", "http://127.0.0.1:9/v1")),
    (
        "clip",
        "open_clip",
        (
            "process",
            "clip.mp4",
            "--set",
            "keyframes.embeddings=clip",
            "--set",
            "clip.model=ViT-B-32:random",
            "--patches",
            "no.jsonl",
        ),
    ),
    ("clip", "huggingface_hub", ("models", "fetch", "ViT-B-32:openai", "--folder", "models")),
    (
        "sam",
        "segment_anything",
        (
            "process",
            "clip.mp4",
            "--set",
            "keyframes.clusters=sam",
            "--set",
            "sam.checkpoint=clip.mp4",
            "--patches",
            "no.jsonl",
        ),
    ),
    ("easyocr", "easyocr", ("process", "clip.mp4", "--set", "keyframes.text=easyocr", "--patches", "no.jsonl")),
    ("ray", "ray", ("batch", "clip.mp4", "-o", "no", "--engine", "ray")),
    ("remote", "s3fs", ("batch", "s3://bucket/clip.mp4", "-o", "no")),
    ("remote", "aiohttp", ("batch", "http://127.0.0.1:9/clip.mp4", "-o", "no")),
)
"""Extra, a package of it, and a command that does not work without it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one trial."""

    what: str
    works: bool
    said: str


def tried(python: Path, folder: Path, extras: Sequence[str]) -> Iterator[Outcome]:
    """Run the installed command line in an empty folder.

    Args:
        python: Interpreter of the environment.
        folder: To run in; must lie outside the tree, and gets a clip.
        extras: Extras that are installed; what needs others has to say so in one line.
    """
    yield _outcome("a clip", _run([str(python), "-c", CLIP, "clip.mp4"], folder))
    command = str(python.parent / "arr-stream")
    for plain in (["--version"], ["--help"], ["doctor"], ["settings"], ["channels"], ["models", "list"]):
        yield _outcome(" ".join(plain), _run([command, *plain], folder))
    outputs = ["-o", "out.mp4", "--patches", "out.jsonl", "--report", "report"]
    yield _outcome("process", _run([command, "process", "clip.mp4", "--query", "red", *outputs], folder))
    for name in ("canonical", "documents", "realtime", "surveillance", "untuned"):
        asked = [command, "process", "clip.mp4", "--preset", name, "--patches", f"{name}.jsonl"]
        yield _outcome(f"--preset {name}", _run(asked, folder))
    yield _outcome("a program", _run([str(python), str(Path(__file__).with_name("consumer.py")), "clip.mp4"], folder))
    for extra, package, arguments in NEEDS:
        if not _importable(python, package):
            yield told_to_install(extra, arguments, _run([command, *arguments], folder))
        elif extra not in extras:
            yield Outcome(f"without [{extra}]", False, f"{package} is there although nobody asked for [{extra}]")


def told_to_install(extra: str, arguments: Sequence[str], ended: subprocess.CompletedProcess[str]) -> Outcome:
    """Whether a command that lacks an extra ended with the exit code for that, and a line that names the extra."""
    last = ended.stderr.strip().splitlines()[-1:] or [""]
    right = ended.returncode == _BACKEND_UNAVAILABLE and f"pip install 'arr-stream[{extra}]'" in last[0]
    right = right and "Traceback" not in ended.stderr
    return Outcome(f"without [{extra}]: {arguments[0]}", right, last[0])


def _importable(python: Path, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([str(python), "-c", code], check=False).returncode == 0


def _outcome(what: str, ended: subprocess.CompletedProcess[str]) -> Outcome:
    said = (ended.stdout.strip() or ended.stderr.strip()).splitlines()[-1:] or [""]
    return Outcome(what, ended.returncode == 0, said[0] if ended.returncode == 0 else ended.stderr.strip()[-300:])


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """`-P` is not needed: the folder holds no Python."""
    return subprocess.run(list(command), cwd=folder, capture_output=True, text=True, check=False, timeout=600)
