"""`arr-stream models` as users meet it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from arr_stream.weights import CATALOGUE
from tests.conftest import Run

NAME = "ViT-B-16:laion2b_s34b_b88k"
PLACE = "ViT-B-16--laion2b_s34b_b88k/open_clip_model.safetensors"


@pytest.fixture
def models(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `arr-stream models` in this process, with a folder of its own."""
    monkeypatch.setenv("ARR_STREAM_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return lambda *arguments: run("models", *arguments)


def put(models_folder: Path) -> Path:
    path = models_folder / PLACE
    path.parent.mkdir(parents=True)
    save_file({"weight": torch.ones(5)}, path)
    return path


def test_list_tells_what_is_on_disk(models: Run, tmp_path: Path) -> None:
    path = tmp_path / "models/ViT-L-14--openai/by-hand.safetensors"
    path.parent.mkdir(parents=True)
    save_file({"weight": torch.ones(5)}, path)
    code, out, _ = models("list", "--json")
    listed = json.loads(out)
    rows = {row["name"]: row for row in listed["models"]}
    assert code == 0 and listed["folder"] == str(tmp_path / "models")
    assert rows.keys() == CATALOGUE.keys()
    row = rows["ViT-L-14:openai"]
    assert row["path"] == str(path) and row["size_bytes"] == path.stat().st_size
    assert rows["vit_b"]["path"] is None and rows["vit_b"]["size_bytes"] == 375_042_383
    assert rows["vit_b"]["licence"] == "Apache-2.0" and len(rows["vit_b"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (("fetch", "vit_b", "vit_bb"), 51, "'vit_b'"),
        (("fetch", "ViT-B-32:openai"), 63, "HF_HUB_OFFLINE"),
    ],
)
def test_what_is_missing_misspelt_or_out_of_reach(
    models: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: int, said: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = models(*arguments)
    assert (code, out) == (expected, "") and said in err.splitlines()[-1]
    assert ("licence MIT" in err) == (err.count("\n") > 1) == (expected == 63)
    assert not list((tmp_path / "models").glob("*/*"))


def test_fetch_names_the_licence_and_prints_the_file(
    models: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    save_file({"weight": torch.ones(5)}, tmp_path / "remote.safetensors")
    asked: list[tuple[str, str]] = []

    def download(repository: str, name: str, *, local_dir: Path, token: bool, **options: Any) -> str:
        assert token is False
        asked.append((repository, name))
        (local_dir / name).write_bytes((tmp_path / "remote.safetensors").read_bytes())
        return str(local_dir / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda *_, **__: SimpleNamespace(size=100, etag="0" * 40)
    )
    code, out, err = models("fetch", NAME)
    assert (code, out) == (0, f"{tmp_path / 'models' / PLACE}\n")
    assert "licence unknown" in err and "laion/CLIP-ViT-B-16-laion2B-s34B-b88K" in err
    assert [name for _, name in asked] == ["open_clip_model.safetensors"]
    code, _, err = models("fetch", NAME)
    assert code == 0 and "there already" in err and len(asked) == 1
    code, out, _ = models("verify", NAME)
    assert code == 0 and f"{NAME}: readable" in out


def test_verify_names_each_and_fails_for_the_broken(models: Run, tmp_path: Path) -> None:
    path = put(tmp_path / "models")
    code, out, _ = models("verify", NAME)
    assert (code, out) == (0, f"{NAME}: readable: no hash to compare with; 1 sound tensors\n")
    path.write_bytes(path.read_bytes()[:-3])
    sam = tmp_path / "models" / "vit_b" / "sam_vit_b_01ec64.pth"
    sam.parent.mkdir()
    torch.save({"weight": torch.ones(5)}, sam)
    code, out, _ = models("verify", NAME, "vit_b")
    assert code == 62
    assert f"{NAME}: failed" in out and "vit_b: failed" in out
    code, out, _ = models("verify", "vit_l")
    assert code == 60 and "vit_l: missing" in out
