"""CLIP as embedder and text encoder: loading from disk, agreement with open_clip, and what bad input says."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file

from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.errors import ArrStreamError, BackendUnavailable, InvalidSetting, KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.clip import ClipEmbedder, ClipTextEncoder, dense_features
from arr_stream.keyframes.embeddings.openclip import CAPTIONS, CONFIG_NAME, load_clip
from arr_stream.types import Frame, Grid
from tests.clip_models import CONFIGS, built, save_model
from tests.clip_models import one_thread as one_thread
from tests.weight_files import PickleBomb

WEIGHTS = "open_clip_model.safetensors"
TEXTS = ["red dog", "a very small blue car", "ein grüner Hund", "犬", "🙂", ""]


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "vit16", "vit16")


@pytest.fixture
def models(tmp_path: Path) -> ModelSettings:
    """No weights but those that a test puts there."""
    return ModelSettings(folder=str(tmp_path / "models"), device="cpu")


@pytest.fixture
def copy_of_vit(vit: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vit, tmp_path / "copy"))


def settings(model: Path | str) -> ClipSettings:
    return ClipSettings(model=str(model))


def picture(size_wh: tuple[int, int] = (160, 96), seed: int = 0) -> KeyframeInput:
    rgb = np.random.default_rng(seed).integers(0, 255, (size_wh[1], size_wh[0], 3), np.uint8)
    return KeyframeInput(Frame(0, 0.0, rgb), Grid.for_size(size_wh))


# The embedder


@pytest.mark.parametrize("kind", ["vit16", "vit32"])
def test_every_kind_of_model_embeds(kind: str, tmp_path: Path, models: ModelSettings) -> None:
    embedder = ClipEmbedder(settings(save_model(tmp_path / kind, kind)), models, threads=1)
    embedding = embedder.embed(picture())
    assert embedding.joint and embedding.space == embedder.space
    depth, height, width = embedding.values.shape
    assert depth == CONFIGS[kind]["embed_dim"] and height <= 6 and width <= 10
    assert (height, width) == (6, 10) or kind != "vit16", "two samples a cell"
    assert embedding.values.dtype == np.float32 and embedding.values.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(embedding.values, axis=0), 1.0, atol=1e-5)
    assert embedder.name == f"clip {embedder.space}"
    np.testing.assert_array_equal(embedding.values, embedder.embed(picture()).values)


def test_pixels_are_normalised_as_the_folder_says(vit: Path, models: ModelSettings) -> None:
    frame = picture((64, 64))
    embedding = ClipEmbedder(settings(vit), models).embed(frame)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    pixels = (torch.from_numpy(frame.frame.rgb) / 255.0 - mean) / std
    expected = dense_features(built("vit16").visual, pixels.permute(2, 0, 1)[None])[0]
    np.testing.assert_allclose(embedding.values, expected, atol=1e-5)


def test_a_model_that_gives_no_numbers_fails_the_keyframe_in_one_line(copy_of_vit: Path, models: ModelSettings) -> None:
    state = load_file(copy_of_vit / WEIGHTS)
    state["visual.transformer.resblocks.0.mlp.c_fc.weight"].fill_(3e38)  # finite, but what it is multiplied with is not
    save_file(state, copy_of_vit / WEIGHTS)
    embedder = ClipEmbedder(settings(copy_of_vit), models)
    with pytest.raises(KeyframeFailed, match=r"^embedding: clip .* not numbers; ") as caught:
        embedder.embed(picture())
    assert "\n" not in str(caught.value)


# The text encoder


def own_text_features(model: Any, folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    tokenizer = open_clip.SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=12)
    with torch.inference_mode():
        return np.asarray(model.encode_text(tokenizer(texts), normalize=True).numpy())


def test_texts_are_the_means_of_open_clips_own_features_of_phrases(vit: Path, models: ModelSettings) -> None:
    encoder, model = ClipTextEncoder(settings(vit), models), built("vit16")
    each = [own_text_features(model, vit, [template.format(text) for text in TEXTS]) for template in CAPTIONS]
    mean = np.mean(each, axis=0)
    ours = encoder.encode(TEXTS)
    np.testing.assert_allclose(ours, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)
    assert ours.dtype == np.float32


def test_a_text_is_the_same_alone_in_company_and_from_another_thread(vit: Path, models: ModelSettings) -> None:
    alone = {text: ClipTextEncoder(settings(vit), models).encode([text])[0] for text in TEXTS}
    encoder = ClipTextEncoder(settings(vit), models)
    found: list[np.ndarray[Any, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(encoder.encode(TEXTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    for vectors in found:
        np.testing.assert_array_equal(vectors, np.stack([alone[text] for text in TEXTS]))


def test_long_texts_are_cut(vit: Path, models: ModelSettings) -> None:
    encoder = ClipTextEncoder(settings(vit), models)
    assert encoder.encode([]).shape == (0, 24)
    assert np.isfinite(encoder.encode(["dog " * 40])).all()
    np.testing.assert_array_equal(encoder.encode(["dog " * 40]), encoder.encode(["dog " * 41]))


def test_texts_that_are_not_numbers_are_refused(copy_of_vit: Path, models: ModelSettings) -> None:
    state = load_file(copy_of_vit / WEIGHTS)
    state["text_projection"].fill_(3e38)
    save_file(state, copy_of_vit / WEIGHTS)
    with pytest.raises(WeightsInvalid, match="text encoder gives values that are not numbers"):
        ClipTextEncoder(settings(copy_of_vit), models).encode(["dog"])


# Where models come from


def test_weights_of_another_picture_size_get_their_positions_resized(copy_of_vit: Path, models: ModelSettings) -> None:
    configured(copy_of_vit, lambda written: written["model_cfg"]["vision_cfg"].update(image_size=96))
    assert tuple(load_clip(settings(copy_of_vit), models).model.visual.grid_size) == (6, 6)


@pytest.mark.parametrize(("name", "quick_gelu"), [("ViT-B-32:openai", True), ("ViT-B-32:laion2b_s34b_b79k", False)])
def test_known_weights_bring_their_activation(
    name: str, quick_gelu: bool, tmp_path: Path, models: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arr_stream.weights.find", lambda *_: tmp_path / "model.pt")
    monkeypatch.setattr(open_clip, "get_model_config", lambda _: json.loads(json.dumps(CONFIGS["vit16"])))
    state = built("vit16").state_dict()
    torch.save({"state_dict": {f"module.{key}": value.half() for key, value in state.items()}}, tmp_path / "model.pt")
    loaded = load_clip(settings(name), models)
    assert loaded.space == name and loaded.templates == CAPTIONS
    assert ("QuickGELU" in {type(module).__name__ for module in loaded.model.modules()}) == quick_gelu
    weight = loaded.model.token_embedding.weight
    torch.testing.assert_close(weight.half(), state["token_embedding.weight"].half())
    assert weight.dtype == torch.float32


def test_nothing_is_ever_asked_of_the_hub(vit: Path, models: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_clip(settings(vit), models)
    with pytest.raises(BackendUnavailable, match="models fetch"):
        load_clip(settings("ViT-B-16:openai"), models)


# Bad input


def configured(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    path = folder / CONFIG_NAME
    written = json.loads(path.read_text())
    change(written)
    path.write_text(json.dumps(written))
    return folder


def truncated(folder: Path) -> Path:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1000])
    return folder


def of_another_model(folder: Path) -> Path:
    save_file(built("vit32").state_dict(), folder / WEIGHTS)
    return folder


def without(folder: Path, name: str) -> Path:
    (folder / name).unlink()
    return folder


def with_code(folder: Path) -> Path:
    without(folder, WEIGHTS)
    torch.save({"weight": PickleBomb(folder / "ran")}, folder / "model.bin")
    return folder


def not_finite(folder: Path) -> Path:
    state = load_file(folder / WEIGHTS)
    next(iter(state.values())).fill_(float("nan"))
    save_file(state, folder / WEIGHTS)
    return folder


def written(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder


def with_entry(section: tuple[str, ...], **values: Any) -> Callable[[Path], Path]:
    """Puts values into a section of the configuration."""
    return lambda folder: configured(
        folder, lambda content: functools.reduce(dict.get, section, content).update(values)
    )


TEXT_CFG, VISION_CFG = ("model_cfg", "text_cfg"), ("model_cfg", "vision_cfg")

BAD: list[tuple[str, Callable[[Path], Path | str], type[ArrStreamError], str]] = [
    ("truncated", truncated, WeightsInvalid, "damaged, or not plain weights: SafetensorError"),
    ("of another model", of_another_model, WeightsInvalid, "not weights of copy: RuntimeError: .*state_dict"),
    ("with code", with_code, WeightsInvalid, "could run code"),
    ("not numbers", not_finite, WeightsInvalid, "not finite|NaN|nan"),
    ("no weights file", lambda f: without(f, WEIGHTS), BackendUnavailable, "holds no weights file"),
    ("no configuration", lambda f: without(f, CONFIG_NAME), InvalidSetting, "open_clip_config.json is not a"),
    ("broken configuration", lambda f: written(f, CONFIG_NAME, "{"), InvalidSetting, "not a configuration"),
    ("broken tokeniser", lambda f: written(f, "bpe.txt.gz", "no"), WeightsInvalid, "tokeniser does not fit"),
    ("larger tokeniser", lambda f: without(f, "bpe.txt.gz"), WeightsInvalid, "49408 tokens, the model has 515"),
    ("unknown option", with_entry(("model_cfg",), novel=1), InvalidSetting, "cannot be built: TypeError"),
    ("odd towers", with_entry(("model_cfg",), text_cfg=[[1, 2, 3]]), InvalidSetting, "cannot be built: TypeError"),
    ("text tower from the hub", with_entry(TEXT_CFG, hf_model_name="owner/name"), InvalidSetting, "no support for hf"),
    ("vision tower of timm", with_entry(VISION_CFG, timm_model_name="vit"), InvalidSetting, "no support for timm"),
    (
        "ResNet",
        with_entry(("model_cfg",), vision_cfg={"layers": [1, 1, 1, 1], "width": 16, "patch_size": None}),
        InvalidSetting,
        "no vision transformer",
    ),
    ("unknown name", lambda _: "ViT-B-61:openai", InvalidSetting, "known as 'ViT-B-61:openai'.*'ViT-B-16:openai'"),
    ("another kind", lambda _: "tiny-qwen3-vl", InvalidSetting, "is no CLIP model"),
    ("neither", lambda _: "ViT-B-16-openai", InvalidSetting, "did you mean 'ViT-B-16:openai'"),
]


@pytest.mark.parametrize(("make", "kind", "says"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_models_are_refused_in_one_line_with_a_remedy(
    make: Any, kind: type[ArrStreamError], says: str, copy_of_vit: Path, models: ModelSettings
) -> None:
    model = make(copy_of_vit)
    with pytest.raises(kind, match=says) as caught:
        ClipTextEncoder(settings(model), models)
    assert caught.value.remedy and "\n" not in str(caught.value)
    assert not (copy_of_vit / "ran").exists()


def test_half_precision_changes_little(vit: Path, models: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA does, on the CPU: every step takes tensors of mixed precision."""
    embedder = ClipEmbedder(settings(vit), models)
    full = embedder.embed(picture()).values
    half = torch.autocast("cpu", dtype=torch.bfloat16)
    monkeypatch.setattr("arr_stream.keyframes.embeddings.clip._precision", lambda _: half)
    values = embedder.embed(picture()).values
    assert not np.array_equal(values, full)
    assert (values * full).sum(axis=0).min() > 0.98
    np.testing.assert_allclose(np.linalg.norm(values, axis=0), 1.0, atol=1e-5)


@pytest.mark.cuda
def test_half_precision_on_cuda_agrees_with_the_cpu(vit: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    on = {device: ClipEmbedder(settings(vit), ModelSettings(device=device)) for device in ("cpu", "cuda")}
    cosines = (on["cpu"].embed(picture()).values * on["cuda"].embed(picture()).values).sum(axis=0)
    assert cosines.min() > 0.99
    texts = {
        device: ClipTextEncoder(settings(vit), ModelSettings(device=device)).encode(TEXTS) for device in ("cpu", "cuda")
    }
    assert (texts["cpu"] * texts["cuda"]).sum(axis=1).min() > 0.99
