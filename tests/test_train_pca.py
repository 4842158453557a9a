"""`arr-stream train-pca`: what goes in, what comes out, and what happens when it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from arr_stream.cli.train_pca import train_pca
from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.errors import OutputExists, OutputUnwritable
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.pca import load_pca
from arr_stream.types import Embedding, FloatArray
from tests.media import write_images, write_video
from tests.scenes import moving_square

DIMENSIONS = 24


class FakeClip:
    """Mean colours of 16x16 blocks through a fixed random matrix."""

    made: list[FakeClip]

    def __init__(self, settings: ClipSettings, models: ModelSettings) -> None:
        self.space = f"fake {settings.model}"
        self.seen: list[tuple[int, float]] = []
        self.matrix = np.random.default_rng(0).standard_normal((DIMENSIONS, 3)).astype(np.float32)
        FakeClip.made.append(self)

    @property
    def name(self) -> str:
        return self.space

    def embed(self, picture: KeyframeInput) -> Embedding:
        self.seen.append((picture.frame.index, picture.frame.pts_seconds))
        colours = picture.quarter_rgb[::4, ::4].astype(np.float32) / 255
        colours += np.random.default_rng(len(self.seen)).normal(0, 0.1, colours.shape).astype(np.float32)
        values = np.tensordot(self.matrix, colours, (1, 2)) + 1.0
        return Embedding(self._checked(values / np.linalg.norm(values, axis=0)), self.space, joint=True)

    def _checked(self, values: FloatArray) -> FloatArray:
        return values.astype(np.float32)


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with a fake model; exceptions of ours are raised."""
    pytest.importorskip("arr_stream.keyframes.embeddings.clip")
    monkeypatch.setattr("arr_stream.keyframes.embeddings.clip.ClipEmbedder", FakeClip)
    FakeClip.made = []
    app = typer.Typer()
    app.command()(train_pca)

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty frames at ten a second."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_video(path, [frame.rgb for frame in moving_square(40)], fps=10)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures")
    write_images(path, [frame.rgb for frame in moving_square(5)])
    return path


def test_videos_by_the_second_and_every_picture(run: Run, clip: Path, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "pca.safetensors"
    result = run(clip, folder, "-o", output, "--set", "clip.model=B", "--components", 20)
    assert result.exit_code == 0
    (model,) = FakeClip.made
    assert [index for index, _ in model.seen] == [0, 10, 20, 30, 0, 1, 2, 3, 4]
    pca = load_pca(output, "fake B")
    assert (pca.components, pca.dimensions, pca.space) == (20, DIMENSIONS, "fake B")
    assert pca.count % len(model.seen) == 0 and pca.count > 0
    table = result.stdout
    for components in (8, 15, 16):
        assert f"{components}" in table and f"{pca.variance_kept(components):.3f}" in table
    assert "32" not in table.split("variance kept")[1], "more directions than the features have"
    assert list(output.parent.iterdir()) == [output]


def test_the_output_is_not_overwritten_unless_forced(run: Run, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "pca.safetensors"
    output.write_bytes(b"precious")
    with pytest.raises(OutputExists, match="exists already"):
        run(folder, "-o", output, "--components", 16)
    assert FakeClip.made == [] and output.read_bytes() == b"precious"
    run(folder, "-o", output, "--components", 16, "--force")
    assert load_pca(output).count > 0
    with pytest.raises(OutputUnwritable, match="is a folder"):
        run(folder, "-o", tmp_path)


def test_a_damaged_source_gives_the_rest(run: Run, clip: Path, folder: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    write_images(pictures, [frame.rgb for frame in moving_square(4)])
    sorted(pictures.iterdir())[2].write_bytes(b"no picture at all")
    output = tmp_path / "pca.safetensors"
    result = run(pictures, folder, "-o", output, "--components", 16)
    assert result.exit_code == 0 and "the rest is used" in result.stderr
    assert len(FakeClip.made[0].seen) == 3 + 5
