"""`process` with models: what is found, what is recorded, and one line for all that can be wrong with weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.live.live_stream import LiveStream
from arr_stream.records.json_lines import read_records
from arr_stream.relevance.query import parse_text
from arr_stream.sources.live import open_live
from arr_stream.weights import shipped_folder
from benchmarks.scenes.shapes import moving_scene
from tests.conftest import Run
from tests.media import write_video

pytest.importorskip("open_clip", reason="needs arr-stream[clip]")

SEED = (77, 8)
"""A red circle and a red arrow, among others."""

CLIP = ("--set", "keyframes.embeddings=clip")
FAST = ("--set", "keyframes.text=none", "--budget", "20")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "shapes.mp4"
    write_video(path, [scene.rgb for scene in moving_scene(np.random.default_rng(SEED), (640, 360), 12)])
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the tiny encoder, to be spoilt."""
    return Path(shutil.copytree(shipped_folder("tiny"), tmp_path / "model"))


def test_a_query_in_plain_words_finds_its_thing_and_the_record_says_by_what(
    run: Run, clip: Path, tmp_path: Path
) -> None:
    records = tmp_path / "out.jsonl"
    code, _, err = run("process", clip, "-q", "red circle", *CLIP, "--patches", records, *FAST)
    assert code == 0, err
    assert "unknown word" not in err
    frames = read_records(records)[1]
    assert all(frame.parts["embedding"] == (0, "clip tiny") for frame in frames)
    scene = list(moving_scene(np.random.default_rng(SEED), (640, 360), 12))[-1]
    (wanted,) = [thing for thing in scene.things if thing.phrase() == "red circle"]
    shown = np.zeros(wanted.mask.shape, bool)
    for x0, y0, x1, y1, _ in frames[-1].cells:
        shown[int(y0) : int(y1), int(x0) : int(x1)] = True
    assert (wanted.mask & shown).sum() > 0.8 * wanted.mask.sum()


def _truncated(folder: Path) -> None:
    file = folder / "open_clip_model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def _missing(folder: Path) -> None:
    (folder / "open_clip_model.safetensors").unlink()


@pytest.mark.parametrize(("spoil", "expected"), [(_truncated, 62), (_missing, 60)])
def test_spoilt_weights_end_with_one_line(
    run: Run, clip: Path, model: Path, tmp_path: Path, spoil: Callable[[Path], None], expected: int
) -> None:
    spoil(model)
    video = tmp_path / "out.mp4"
    code, _, err = run("process", clip, "-q", "red circle", *CLIP, "--set", f"clip.model={model}", "-o", video, *FAST)
    assert code == expected, err
    assert err.count("\n") == 1 and str(model) in err
    assert not video.exists()


def test_a_model_that_fails_on_the_way_is_missing_in_the_record(
    run: Run, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from arr_stream.keyframes.embeddings.clip import ClipEmbedder

    monkeypatch.setattr(ClipEmbedder, "_features", lambda *_: torch.full((8, 2, 2), torch.nan))
    records = tmp_path / "out.jsonl"
    code, _, err = run("process", clip, "-q", "red circle", *CLIP, "--patches", records, *FAST)
    assert code == 61, "the model was asked for, and never worked"
    assert "values that are not numbers" in err and "the results are written" in err
    frames = read_records(records)[1]
    assert len(frames) == 12
    assert all(frame.parts["embedding"] is None for frame in frames) and frames[-1].parts["clusters"] is not None
    assert all(len(frame.cells) == 20 for frame in frames)


@pytest.mark.slow
def test_in_real_time_the_model_answers_from_beside(tmp_path: Path) -> None:
    long = tmp_path / "long.mp4"
    scenes = moving_scene(np.random.default_rng(SEED), (640, 360), 75)
    # Long enough for the worker to load its model.
    write_video(long, [scene.rgb for scene in scenes], fps=5)
    settings = Settings().with_values({"keyframes.embeddings": "clip", "keyframes.text": "none"})
    settings = settings.with_values({"selection.budget": "20"})
    with LiveStream(open_live(str(long), settings), settings, [parse_text("red circle")]) as stream:
        found = [("embedding" in patches.parts, patches.query_scores[0]) for patches in stream]
    assert any(arrived for arrived, _ in found)
    assert max(score for _, score in found) > 0.3
