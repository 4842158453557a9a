"""Pixels of chosen cells in Python: crops, the source frame, and the examples in docs and in examples/."""

from __future__ import annotations

import gc
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import arr_stream
from arr_stream.errors import NotAMediaFile
from arr_stream.types import FINER, Frame
from tests.choices import choose
from tests.media import moving_frames, write_video

ROOT = Path(__file__).parent.parent
QUICK = arr_stream.Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid"})


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    write_video(path, moving_frames(8, (130, 100)))
    return path


def test_crops_are_the_cells_of_the_frame_in_one_size(clip: Path) -> None:
    for patches in arr_stream.open(clip, budget=5, settings=QUICK):
        rgb, crops = patches.frame.rgb, patches.crops()
        assert crops.shape == (len(patches), 32, 32, 3) and crops.dtype == np.uint8
        assert patches.crops(48).shape == (len(patches), 48, 48, 3)
        for crop, (x0, y0, x1, y1) in zip(crops, patches.cells_xyxy.round().astype(int), strict=True):
            assert np.abs(crop.mean(axis=(0, 1)) - rgb[y0:y1, x0:x1].mean(axis=(0, 1))).max() < 3


def test_cells_of_every_level_become_crops_of_one_size() -> None:
    rgb = np.zeros((100, 130, 3), np.uint8)
    rgb[:, 65:] = 200
    frame = Frame(0, 0.0, rgb)
    rows, columns = np.zeros(3, np.int32), np.array([0, 0, 3], np.int32)
    changes = {name: np.zeros(3, np.int32) for name in ("scorer", "query")}
    changes |= {"score": np.ones(3, np.float32), **{name: np.zeros(3, bool) for name in ("carried", "fresh")}}
    level = np.array([FINER, 2, 0], np.int32)
    patches = choose(frame, rows=rows, columns=columns, level=level, frame_ref=weakref.ref(frame), **changes)
    finer, coarse, fine = patches.crops(16)
    assert finer.max() == 0 and fine.min() == 200
    assert coarse[:, :8].max() == 0 and coarse[:, 8:].min() == 200, "four cells across, of which two are dark"


def test_a_list_of_patch_sets_keeps_no_frames(clip: Path) -> None:
    stream = arr_stream.open(clip, settings=QUICK)
    kept = list(stream)
    stream.frame = None
    del stream
    gc.collect()
    assert len(kept) == 8 and all(each.frame_ref is not None and each.frame_ref() is None for each in kept)
    with pytest.raises(ReferenceError, match=r"frame 3 is no longer in memory; take patches\.frame or"):
        kept[3].crops()
    assert pickle.loads(pickle.dumps(kept[3].without_texture())).index == 3


@pytest.mark.parametrize("source", [0, "0", "camera:0", "lavfi:testsrc2", "rtsp://10.0.0.1/stream"])
def test_live_sources_are_refused_with_the_call_that_reads_them(source: str | int) -> None:
    with pytest.raises(NotAMediaFile, match=r"arr_stream\.live\.live_stream\.LiveStream"):
        arr_stream.open(source)


def test_public_names_are_listed() -> None:
    assert dir(arr_stream) == sorted(arr_stream.__all__)
    text = pydoc.plain(pydoc.render_doc(arr_stream))
    assert all(re.search(rf"\b{name}\b", text) for name in arr_stream.__all__ if name != "__version__")
    assert "class PatchSet" in text and re.search(r"crops\(self, size: .* = 32\)", text)
    assert inspect.isfunction(arr_stream.open)


@pytest.mark.slow
def test_the_examples_run(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    files, live, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(files.replace("street.mp4", str(clip)), {})
    assert len(re.findall(r", 32, 32, 3\) .* \(100, 130, 3\)\n", capsys.readouterr().out)) == 8
    exec(live.replace("rtsp://10.0.0.1/stream", "lavfi:testsrc2=size=128x96:duration=0.2"), {})
    assert re.match(r"0\.\d+ \d+\n", capsys.readouterr().out)
    command = [sys.executable, ROOT / "examples" / "crops.py", clip, "red", tmp_path / "crops.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = np.load(tmp_path / "crops.npz")
    assert found["crops"].shape[1:] == (64, 64, 3) and len(found["crops"]) == len(found["level"]) >= 8
    assert f"{len(found['crops'])} crops of 8 frames" in done.stdout


def test_arrays_of_other_libraries_are_a_line(clip: Path) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| NumPy \| `(.*?)`", page, re.MULTILINE)
    for patches in arr_stream.open(clip, settings=QUICK, max_frames=1):
        made = eval(line, {"np": np, "patches": patches})
        assert made.shape == (len(patches), 6)
    (line,) = re.findall(r"^\| supervision \| `(.*?)`", page, re.MULTILINE)
    given = eval(line, {"sv": type("sv", (), {"Detections": dict}), "patches": patches})
    assert given["xyxy"].shape == (len(patches), 4) and given["class_id"].dtype.kind == "i"
    assert given["confidence"].shape == given["class_id"].shape == (len(patches),)
