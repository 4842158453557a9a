"""Golden runs: exit codes, chosen cells, and digests of records, requests, events and pictures, kept in two files.

`golden.json` has exact values. Those that another processor or another version of a library may round differently are
compared only where the file was made. `golden_cells.json` has the chosen cells of every run; they are compared
everywhere, by their overlap. A change that alters results on purpose rewrites both files (`ARR_STREAM_GOLDEN=write`),
and its commit message gives the reason.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import arr_stream
from arr_stream.draw.views import VIEWS, render
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records, records_digest
from arr_stream.types import FINER, BoolArray, Frame
from arr_stream.vlm.server.packing import pack
from tests.conftest import Run
from tests.fake_server import FakeServer, body, says
from tests.media import write_video
from tests.scenes import LONG_REGION, long_scene
from tests.test_packing import scene
from tests.web_servers import SETTINGS, running

GOLDEN, CELLS = (Path(__file__).with_name(name) for name in ("golden.json", "golden_cells.json"))
LEAST_OVERLAP = 0.99
MOST_FRAMES = 40
"""Frames of a run whose cells are kept, evenly spread."""
SAMPLES = Path(__file__).parent.parent / "sample_videos"
WRITE = os.environ.get("ARR_STREAM_GOLDEN") == "write"
STREET, SHAPES, SIGNS = (SAMPLES / f"{name}.mp4" for name in ("street", "shapes", "signs"))
SHORT = ("--max-frames", 16, "--set", "keyframes.interval=6")
CLIP = ("--set", "keyframes.embeddings=clip")
QUICK = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--set", "vlm.answer_tokens=4")

PROCESS: dict[str, tuple[object, ...]] = {
    "red": (STREET, "--query", "red", "--budget", 40, *SHORT),
    "no query": (STREET, "--budget", "10%", *SHORT),
    "two queries": (STREET, "--query", "red on the left", "--query", "moving", "--budget", 30, *SHORT),
    "region": (STREET, "--region", "200,120,90,80@0.3", "--budget", 20, *SHORT),
    "gaze": (STREET, "--gaze", "GAZE", "--budget", 20, *SHORT),
    "example": (STREET, "--example", "EXAMPLE", "--budget", 20, *SHORT),
    "CLIP": (SHAPES, "--query", "red circle", *CLIP, "--budget", 16, *SHORT),
    "words": (SIGNS, "--query", '"EXIT"', "--max-frames", 8),
    "cut": (SAMPLES / "cut.mp4", "--query", "green", "--budget", 40),
    "camera": (SAMPLES / "pan_zoom.mp4", "--budget", 40, *SHORT),
    "span": (STREET, "--query", "red", "--start", 1, "--end", 2, "--set", "source.stride=2"),
    "cascade": (STREET, "--query", "red", "--budget", 40, "--set", "selection.cascade=on", *SHORT),
    "canonical": (STREET, "--query", "red", "--set", "selection.strategy=canonical", "--budget", 60, *SHORT),
    "coarse cells": (STREET, "--query", "red", "--set", "selection.context_share=0.1", "--budget", 60, *SHORT),
    "tiers": (STREET, "--query", "red", "--set", "selection.strategy=tiers", "--budget", 60, *SHORT),
    "only what is new": (STREET, "--query", "red", "--set", "selection.novelty=skip", "--budget", 40, *SHORT),
    "merged clusters": (STREET, "--set", "keyframes.clusters=merge", "--budget", 40, "--max-frames", 14),
    "long": ("LONG", "--query", "circle", "--region", LONG_REGION, *CLIP, "--budget", 14, *QUICK),
}

REFUSED: dict[str, tuple[object, ...]] = {
    "no such file": ("process", "nowhere.mp4"),
    "no such setting": ("process", STREET, "--set", "selection.bugdet=3"),
    "no tokens": ("process", STREET, "--budget", 0),
    "a region outside": ("process", STREET, "--region", "9000,9000,10,10", "--patches", "r.jsonl"),
    "no such view": ("process", STREET, "--set", "video.view=nothing", "-o", "o.mp4"),
    "no such option": ("process", STREET, "--colour", "red"),
    "an empty question": ("ask", STREET, " "),
    "no model": ("ask", STREET, "what is red?", "--model", "nowhere/at-all"),
    "a rule that is none": ("stream", STREET, "--headless", "--when", "relevance >> 1"),
    "nothing to batch": ("batch", "nowhere", "-o", "out"),
    "no records": ("replay", "nowhere.jsonl"),
}


PACKED: dict[str, tuple[Frame, PatchSet]] = {
    "one region": scene((960, 640), 150, blobs=1, seed=2),
    "several regions": scene((960, 640), 260, blobs=4, seed=2),
    "the whole frame": scene((640, 480), 300, blobs=3),
}


def machine() -> dict[str, str]:
    packages = ("av", "kornia", "numpy", "onnxruntime", "opencv-python-headless", "rapidocr", "scikit-image", "torch")
    return {name: metadata.version(name) for name in packages} | {"cpu": torch.backends.cpu.get_cpu_capability()}


@dataclass(frozen=True)
class Golden:
    """Kept values and cells by name; `made_here` says whether exact values hold on this machine."""

    values: dict[str, Any]
    cells: dict[str, list[list[Any]]]
    made_here: bool

    def check(self, name: str, value: Any, *records: Path, exact: bool = True) -> None:
        """Compare the cells of files of records, and a value; an exact one only where it was made."""
        chosen = [chosen_cells(path) for path in records]
        if WRITE:
            self.values[name] = value
            if records:
                self.cells[name] = [packed_cells(each) for each in chosen]
        for now, kept in zip(chosen, map(unpacked_cells, self.cells[name] if records else ()), strict=True):
            assert now.shape == kept.shape
            overlap = (now & kept).sum() / max(now.sum(), kept.sum())
            assert overlap >= LEAST_OVERLAP, f"{name}: {overlap:.3f} of the cells are as before"
        if self.made_here or not exact:
            assert self.values[name] == value
        elif not records:
            pytest.skip("golden.json was made with other versions or on another kind of processor")


def chosen_cells(records: Path) -> BoolArray:
    """Return `[frames, levels, rows, columns]` bool: the top left cell of each patch, on at most `MOST_FRAMES` frames.

    The first frame is always among them, and at most one frame is left out at the end.
    """
    header, frames, _ = read_records(records)
    (width, height), (rows, columns) = header.fine_cell_px, header.grid_hw
    frames = frames[:: -(-len(frames) // MOST_FRAMES)]
    chosen = np.zeros((len(frames), 3 - FINER, rows, columns), np.bool_)
    for at, frame in enumerate(frames):
        for cell, reason in zip(frame.cells, frame.reasons, strict=True):
            chosen[at, reason.level - FINER, round(cell.y0 / height), round(cell.x0 / width)] = True
    return chosen


def packed_cells(chosen: BoolArray) -> list[Any]:
    return [list(chosen.shape), base64.b85encode(zlib.compress(np.packbits(chosen).tobytes(), 9)).decode()]


def unpacked_cells(packed: list[Any]) -> BoolArray:
    shape, text = packed
    bits = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
    return np.unpackbits(bits, count=int(np.prod(shape))).reshape(shape).astype(np.bool_)


@pytest.fixture(scope="module")
def golden() -> Iterator[Golden]:
    """Kept values, which are written anew after the tests if `ARR_STREAM_GOLDEN=write`."""
    kept, cells = (json.loads(path.read_text()) if path.exists() else {} for path in (GOLDEN, CELLS))
    golden = Golden(kept.get("values", {}), cells, WRITE or kept["machine"] == machine())
    yield golden
    if WRITE:
        content = {"machine": machine(), "values": dict(sorted(golden.values.items()))}
        GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
        CELLS.write_text(json.dumps(dict(sorted(cells.items())), indent=1) + "\n")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that runs are given by the names in capitals."""
    folder = tmp_path_factory.mktemp("given")
    across, down = np.meshgrid(np.arange(64), np.arange(48))
    picture = np.stack([180 + across % 40, 30 + down % 30, 40 + (across + down) % 20], axis=2).astype(np.uint8)
    Image.fromarray(picture).save(folder / "example.png")
    samples = "".join(f"{time / 30:.4f},{0.2 + time / 100:.3f},0.4\n" for time in range(60))
    (folder / "gaze.csv").write_text("pts_seconds,x,y\n" + samples)
    # Lossless, so that the pixels do not depend on the encoder.
    frames = [frame.rgb for frame in long_scene()]
    long = write_video(folder / "long.mkv", frames, codec="ffv1", pix_fmt="bgr0")
    return {"EXAMPLE": folder / "example.png", "GAZE": folder / "gaze.csv", "LONG": long}


@pytest.mark.parametrize("name", PROCESS)
def test_process(name: str, run: Run, golden: Golden, given: dict[str, Path], tmp_path: Path) -> None:
    arguments = [given.get(str(argument), argument) for argument in PROCESS[name]]
    path = tmp_path / "out.jsonl"
    code, _, err = run("process", *arguments, "--patches", path, "--log=quiet")
    assert code == 0, err
    golden.check(f"process: {name}", records_digest(path), path)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, run: Run, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    golden.check(f"refused: {name}", run(*REFUSED[name])[0], exact=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left"


def test_replay(run: Run, golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert run("process", *PROCESS["red"], "--patches", path, "--log=quiet")[0] == 0
    golden.check("replay: the same", run("replay", path)[0], exact=False)
    lines = path.read_text().splitlines(keepends=True)
    changed = tmp_path / "changed.jsonl"
    changed.write_text(
        "".join([*lines[:5], lines[5].replace('"confidence":', '"confidence": 0.5, "was":'), *lines[6:]])
    )
    golden.check("replay: changed", run("replay", changed)[0], exact=False)


@pytest.mark.parametrize("jobs", [1, 2])
def test_batch(jobs: int, run: Run, golden: Golden, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (SHAPES, STREET, "-o", out, "--query", "red", "--budget", 30, "--max-frames", 12, "--jobs", jobs)
    assert run("batch", *arguments, "--log=quiet")[0] == 0
    records = sorted(out.rglob("*.jsonl"))
    golden.check("batch", {path.parent.name: records_digest(path) for path in records}, *records)


def test_ask(run: Run, golden: Golden, tiny_qwen: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    arguments = (STREET, "What is red?", "--model", tiny_qwen, "--budget", 12, *QUICK, "--end", 0.39)
    code, out, err = run("ask", *arguments, "--patches", path)
    assert code == 0, err
    golden.check("ask", [out.strip(), records_digest(path)], path)


def test_a_live_source(run: Run, golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    arguments = (
        STREET,
        "--headless",
        "--query",
        "red",
        "--budget",
        20,
        "--max-frames",
        12,
        "--set",
        "live.policy=every",
    )
    code, _, err = run("stream", *arguments, "--patches", path)
    assert code == 0, err
    header, *frames = [json.loads(line) for line in path.read_text().splitlines()]
    # Which frame a keyframe's result reaches depends on the machine; what is read and how much is chosen does not.
    told = [[frame["index"], len(frame["cells"])] for frame in frames if frame["type"] == "frame"]
    golden.check("live", [code, header["grid_hw"], header["query"], told], exact=False)


@pytest.mark.parametrize("view", [*VIEWS, "channel:edge_distance", "channel:embedding_3", "channel:fixation"])
def test_view(view: str, golden: Golden) -> None:
    with arr_stream.open(STREET, query="red", budget=40) as stream:
        for patches in stream:
            assert stream.frame is not None
            if patches.index == 8:
                picture = render(view, stream.frame, patches)
                break
    golden.check(f"view: {view}", digest(picture.tobytes()))


@pytest.mark.parametrize("places", [False, True], ids=["crops", "cells"])
def test_requests_to_a_server(places: bool, run: Run, golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with FakeServer(says("A car."), places=places) as server:
        arguments = (
            "--endpoint",
            server.url,
            "--model",
            "m",
            "--budget",
            90,
            "--set",
            "vlm.fps=10",
            *QUICK,
            "--end",
            0.39,
        )
        code, _, err = run("ask", STREET, "What is red?", *arguments, "--patches", path)
    assert code == 0, err
    golden.check(f"sent: {'cells' if places else 'crops'}", [digest(sent) for sent in server.bodies], path)


@pytest.mark.parametrize("name", PACKED)
def test_packing(name: str, golden: Golden) -> None:
    frame, patches = PACKED[name]
    packed = pack(frame.rgb, patches)
    pictures = [[picture.rgb.shape, picture.cells, picture.tokens, picture.caption] for picture in packed.pictures]
    golden.check(f"packed: {name}", json.dumps([pictures, int(packed.cells_shown.sum())]), exact=False)
    golden.check(f"packed: {name}, pixels", [digest(picture.rgb.tobytes()) for picture in packed.pictures])


def test_alerts(run: Run, golden: Golden) -> None:
    with FakeServer(body(b"{}", "application/json")) as server:
        watched = ("--when", "relevance > 0.6", "--post", f"{server.url}/alerts", "--set", "live.policy=every")
        code, _, err = run("stream", SAMPLES / "cut.mp4", "--headless", "--query", "red", "--max-frames", 70, *watched)
    assert code == 0, err
    golden.check("alerts", [stable(alert) for alert in server.requests], exact=False)


REST: tuple[tuple[str, str, object], ...] = (
    ("GET", "/healthz", None),
    ("GET", "/metrics", None),
    ("GET", "/api/info", None),
    ("GET", "/api/streams", None),
    ("POST", "/api/streams", {"source": "/etc/passwd"}),
    ("POST", "/api/streams", {"no": "source"}),
    ("GET", "/api/streams/nothing", None),
    ("PUT", "/api/streams/s1/query", {"texts": ["blue"], "region": {"xywh": [200, 120, 90, 80]}}),
    ("PATCH", "/api/streams/s1", {"name": "second", "preset": "frugal", "settings": {"selection.budget": 7}}),
    ("PATCH", "/api/streams/s1", {"settings": {"keyframes.interval": 0}}),
    ("PUT", "/api/streams/s1/example", None),
    ("PUT", "/api/streams/s1/rules", {"rules": ["relevance > 0.6  for 2s"]}),
    ("PUT", "/api/streams/s1/rules", {"rules": ["relevance > 6"]}),
    ("POST", "/api/streams/s1/questions", {"question": "What is red?"}),
    ("GET", "/api/streams/s1/answers", None),
    ("GET", "/api/streams/s1/records?last=1", None),
    ("GET", "/api/streams/s1/snapshot.jpg?view=patches", None),
    ("DELETE", "/api/streams/s1", None),
)
UNSTABLE = {
    *("age_ms", "confidence", "dropped", "error", "fps", "frames", "latency_ms", "live", "made_unix", "message"),
    *("quality", "reconnects", "remedy", "settings", "source", "stalls", "started_unix", "state", "stream", "tokens"),
    *("uptime_seconds", "version"),
}
"""Keys whose values depend on time, on this machine, or on a choice of words."""


def stable(value: Any) -> Any:
    """Return JSON values without those of `UNSTABLE` keys; of a channel, its name only."""
    if isinstance(value, list):
        return [stable(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "description" in value:
        return value["name"]
    return {key: "..." if key in UNSTABLE else stable(each) for key, each in value.items()}


def stable_answer(answer: httpx.Response) -> str:
    kind = answer.headers.get("content-type", "")
    content: Any = None
    if kind == "application/json":
        content = stable(answer.json())
    elif "ndjson" in kind:
        content = [sorted(json.loads(line).keys() - {"quality"}) for line in answer.text.splitlines()]
    elif "/metrics" in str(answer.url):
        content = [line for line in answer.text.splitlines() if line.startswith("# TYPE arr_stream")]
    return f"{answer.status_code} {kind} {json.dumps(content)}"


def test_rest(golden: Golden) -> None:
    presets = {"frugal": SETTINGS.with_values({"selection.budget": 5})}
    with running(presets=presets) as server:
        server.add(str(STREET), name="first", query=["red"])
        for method, path, sent in REST:
            answer = server.http.request(method, path, json=sent)
            golden.check(f"rest: {method} {path} {json.dumps(sent)}", stable_answer(answer), exact=False)
