"""What users do gives what it gave: exit codes, digests of records and of pictures, kept in `golden.json`.

A change that means to alter a choice makes the file anew (`ARR_STREAM_GOLDEN=write`) and says in its message why.
Another processor or another version of a library may round otherwise, so the file says what it was made with.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_stream
from arr_stream.draw.views import VIEWS, render
from arr_stream.records.json_lines import records_digest
from tests.conftest import Run

GOLDEN = Path(__file__).with_name("golden.json")
SAMPLES = Path(__file__).parent.parent / "sample_videos"
WRITE = os.environ.get("ARR_STREAM_GOLDEN") == "write"
STREET, SHAPES, SIGNS = (SAMPLES / f"{name}.mp4" for name in ("street", "shapes", "signs"))
SHORT = ("--max-frames", 16, "--set", "keyframes.interval=6")
QUICK = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--set", "vlm.answer_tokens=4")

PROCESS: dict[str, tuple[object, ...]] = {
    "red": (STREET, "--query", "red", "--budget", 40, *SHORT),
    "no query": (STREET, "--budget", "10%", *SHORT),
    "two queries": (STREET, "--query", "red on the left", "--query", "moving", "--budget", 30, *SHORT),
    "region": (STREET, "--region", "200,120,90,80", "--region-at", 0.3, "--budget", 20, *SHORT),
    "gaze": (STREET, "--gaze", "GAZE", "--budget", 20, *SHORT),
    "example": (STREET, "--example", "EXAMPLE", "--budget", 20, *SHORT),
    "CLIP": (SHAPES, "--query", "red circle", "--clip-model", "tiny", "--budget", 16, *SHORT),
    "words": (SIGNS, "--query", '"EXIT"', "--max-frames", 8),
    "cut": (SAMPLES / "cut.mp4", "--query", "green", "--budget", 40),
    "camera": (SAMPLES / "pan_zoom.mp4", "--budget", 40, *SHORT),
    "span": (STREET, "--query", "red", "--start", 1, "--end", 2, "--stride", 2),
    "cascade": (STREET, "--query", "red", "--budget", 40, "--set", "selection.cascade=on", *SHORT),
    "canonical": (STREET, "--query", "red", "--set", "selection.strategy=canonical", "--budget", 60, *SHORT),
    "coarse cells": (STREET, "--query", "red", "--set", "selection.context_share=0.1", "--budget", 60, *SHORT),
    "tiers": (STREET, "--query", "red", "--set", "selection.strategy=tiers", "--budget", 60, *SHORT),
    "hybrid": (STREET, "--query", "red", "--set", "selection.strategy=hybrid", "--budget", 60, *SHORT),
    "only what is new": (STREET, "--query", "red", "--set", "selection.novelty=skip", "--budget", 40, *SHORT),
    "merged clusters": (STREET, "--set", "keyframes.clusters=merge", "--budget", 40, "--max-frames", 14),
    "torch flow": (STREET, "--query", "red", "--set", "motion.flow=torch", "--budget", 40, "--max-frames", 10),
}

REFUSED: dict[str, tuple[object, ...]] = {
    "no such file": ("process", "nowhere.mp4"),
    "no such setting": ("process", STREET, "--set", "selection.bugdet=3"),
    "no tokens": ("process", STREET, "--budget", 0),
    "a region outside": ("process", STREET, "--region", "9000,9000,10,10", "--patches", "r.jsonl"),
    "no such view": ("process", STREET, "--view", "nothing", "-o", "o.mp4"),
    "no such option": ("process", STREET, "--colour", "red"),
    "an empty question": ("ask", STREET, " "),
    "no model": ("ask", STREET, "what is red?", "--model", "nowhere/at-all"),
    "a rule that is none": ("stream", STREET, "--headless", "--when", "relevance >> 1"),
    "nothing to batch": ("batch", "nowhere", "-o", "out"),
    "no records": ("replay", "nowhere.jsonl"),
}


def machine() -> dict[str, str]:
    packages = ("av", "kornia", "numpy", "onnxruntime", "opencv-python-headless", "rapidocr", "scikit-image", "torch")
    return {name: metadata.version(name) for name in packages} | {"cpu": torch.backends.cpu.get_cpu_capability()}


@pytest.fixture(scope="module")
def golden() -> Any:
    """Values by name; what differs from them fails, or is written down where that was asked for."""
    kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"machine": {}, "values": {}}
    if not WRITE and kept["machine"] != machine():
        pytest.skip(f"golden.json was made with {kept['machine']}, here is {machine()}")
    yield kept["values"]
    if WRITE:
        content = {"machine": machine(), "values": dict(sorted(kept["values"].items()))}
        GOLDEN.write_text(json.dumps(content, indent=1) + "\n")


def check(golden: dict[str, Any], name: str, value: Any) -> None:
    if WRITE:
        golden[name] = value
    assert golden[name] == value


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that runs are given by the names in capitals."""
    folder = tmp_path_factory.mktemp("given")
    across, down = np.meshgrid(np.arange(64), np.arange(48))
    picture = np.stack([180 + across % 40, 30 + down % 30, 40 + (across + down) % 20], axis=2).astype(np.uint8)
    Image.fromarray(picture).save(folder / "example.png")
    samples = "".join(f"{time / 30:.4f},{0.2 + time / 100:.3f},0.4\n" for time in range(60))
    (folder / "gaze.csv").write_text("pts_seconds,x,y\n" + samples)
    return {"EXAMPLE": folder / "example.png", "GAZE": folder / "gaze.csv"}


@pytest.mark.parametrize("name", PROCESS)
def test_process(name: str, run: Run, golden: dict[str, Any], given: dict[str, Path], tmp_path: Path) -> None:
    arguments = [given.get(str(argument), argument) for argument in PROCESS[name]]
    path = tmp_path / "out.jsonl"
    code, _, err = run("process", *arguments, "--patches", path, "--quiet")
    assert code == 0, err
    check(golden, f"process: {name}", records_digest(path))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, run: Run, golden: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(golden, f"refused: {name}", run(*REFUSED[name])[0])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left"


def test_replay(run: Run, golden: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert run("process", *PROCESS["red"], "--patches", path, "--quiet")[0] == 0
    check(golden, "replay: the same", run("replay", path, "--check")[0])
    lines = path.read_text().splitlines(keepends=True)
    changed = tmp_path / "changed.jsonl"
    changed.write_text(
        "".join([*lines[:5], lines[5].replace('"confidence":', '"confidence": 0.5, "was":'), *lines[6:]])
    )
    check(golden, "replay: changed", run("replay", changed, "--check")[0])


@pytest.mark.parametrize("jobs", [1, 2])
def test_batch(jobs: int, run: Run, golden: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (SHAPES, STREET, "-o", out, "--query", "red", "--budget", 30, "--max-frames", 12, "--jobs", jobs)
    assert run("batch", *arguments, "--quiet")[0] == 0
    digests = {
        path.parent.name: records_digest(path) for path in sorted(out.rglob("*.jsonl")) if path.name != "manifest.jsonl"
    }
    check(golden, "batch", digests)


def test_ask(run: Run, golden: dict[str, Any], tiny_qwen: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    arguments = (STREET, "What is red?", "--model", tiny_qwen, "--budget", 12, *QUICK, "--max-frames", 12)
    code, out, err = run("ask", *arguments, "--patches", path)
    assert code == 0, err
    check(golden, "ask", [out.strip(), records_digest(path)])


def test_a_live_source(run: Run, golden: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    arguments = (STREET, "--headless", "--query", "red", "--budget", 20, "--max-frames", 12, "--policy", "every")
    code, _, err = run("stream", *arguments, "--patches", path)
    assert code == 0, err
    header, *frames = [json.loads(line) for line in path.read_text().splitlines()]
    # Which frame a keyframe's result reaches depends on the machine; what is read and how much is chosen does not.
    told = [[frame["index"], len(frame["cells"])] for frame in frames if frame["type"] == "frame"]
    check(golden, "live", [code, header["grid_hw"], header["query"], told])


@pytest.mark.parametrize("view", [*VIEWS, "channel:edge_distance", "channel:embedding_3", "channel:fixation"])
def test_view(view: str, golden: dict[str, Any]) -> None:
    with arr_stream.open(STREET, query="red", budget=40) as stream:
        for patches in stream:
            assert stream.frame is not None
            if patches.index == 8:
                picture = render(view, stream.frame, patches)
                break
    check(golden, f"view: {view}", hashlib.sha256(picture.tobytes()).hexdigest())
