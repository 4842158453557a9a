"""CLIP as embedder and text encoder: loading from disk, agreement with open_clip, and what bad input says."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
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
from arr_stream.keyframes.embeddings.clip import ClipEmbedder, ClipTextEncoder
from arr_stream.keyframes.embeddings.dense import make_tower
from arr_stream.keyframes.embeddings.openclip import CAPTIONS, CONFIG_NAME, fingerprint, load_clip, make_plan
from arr_stream.types import Frame, Grid
from tests.clip_models import CONFIGS, built, save_model
from tests.clip_models import one_thread as one_thread

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


@pytest.fixture
def architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A small architecture that open_clip knows by name."""
    from open_clip import factory

    config = json.loads(json.dumps(CONFIGS["vit16"]))
    config["text_cfg"]["vocab_size"] = 49408
    name = "ViT-Nano-16"
    (tmp_path / f"{name}.json").write_text(json.dumps(config))
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    open_clip.add_model_config(tmp_path / f"{name}.json")
    yield name


def settings(model: Path | str, **others: Any) -> ClipSettings:
    return ClipSettings(model=str(model), **others)


def picture(size_wh: tuple[int, int] = (160, 96), seed: int = 0) -> KeyframeInput:
    rgb = np.random.default_rng(seed).integers(0, 255, (size_wh[1], size_wh[0], 3), np.uint8)
    return KeyframeInput(Frame(0, 0.0, rgb), Grid.for_size(size_wh))


# The embedder


@pytest.mark.parametrize("kind", ["vit16", "vit32", "siglip", "fastvit"])
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
    expected = make_tower(built("vit16").visual, "vit16").features(pixels.permute(2, 0, 1)[None])[0]
    np.testing.assert_allclose(embedding.values, expected, atol=1e-5)


def test_a_model_that_gives_no_numbers_fails_the_keyframe_in_one_line(copy_of_vit: Path, models: ModelSettings) -> None:
    state = load_file(copy_of_vit / WEIGHTS)
    state["visual.transformer.resblocks.0.mlp.c_fc.weight"].fill_(3e38)  # finite, but what it is multiplied with is not
    save_file(state, copy_of_vit / WEIGHTS)
    embedder = ClipEmbedder(settings(copy_of_vit), models)
    with pytest.raises(KeyframeFailed, match=r"^embedding: clip .* not numbers; ") as caught:
        embedder.embed(picture())
    assert "\n" not in str(caught.value)


def test_the_space_tells_weights_apart(copy_of_vit: Path, vit: Path, models: ModelSettings) -> None:
    before = make_plan(str(copy_of_vit), models).space
    save_file(built("vit16", seed=1).state_dict(), copy_of_vit / WEIGHTS)
    after = make_plan(str(copy_of_vit), models).space
    assert before != after and before.split("@")[0] == after.split("@")[0] == "copy"
    assert make_plan(str(vit), models).space.split("@")[1] == before.split("@")[1]


# The text encoder


def own_text_features(model: Any, folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    tokenizer = open_clip.SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=12)
    with torch.inference_mode():
        return np.asarray(model.encode_text(tokenizer(texts), normalize=True).numpy())


@pytest.mark.parametrize("kind", ["vit16", "siglip"])
def test_texts_equal_open_clips_own(kind: str, tmp_path: Path, models: ModelSettings) -> None:
    folder = save_model(tmp_path / kind, kind, prompt_templates=["{}"])
    encoder = ClipTextEncoder(settings(folder), models)
    ours = encoder.encode(TEXTS)
    np.testing.assert_allclose(ours, own_text_features(built(kind), folder, TEXTS), atol=1e-6)
    assert ours.dtype == np.float32
    assert encoder.context_length == 12


def test_phrases_are_averaged_as_unit_vectors(vit: Path, models: ModelSettings) -> None:
    each = own_text_features(built("vit16"), vit, [template.format("red dog") for template in CAPTIONS])
    mean = each.mean(axis=0)
    ours = ClipTextEncoder(settings(vit), models).encode(["red dog"])[0]
    np.testing.assert_allclose(ours, mean / np.linalg.norm(mean), atol=1e-6)


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


def test_tokens_are_counted_whole_and_texts_cut(vit: Path, tmp_path: Path, models: ModelSettings) -> None:
    folder = save_model(tmp_path / "vit", "vit16", prompt_templates=["{}"])
    encoder = ClipTextEncoder(settings(folder), models)
    assert encoder.encode([]).shape == (0, 24)
    assert encoder.token_count("") == 2
    assert encoder.token_count("dog") == 5  # three bytes, start and end
    assert encoder.token_count("red") == 4  # `r e` is the one merge of the vocabulary
    long = "dog " * 40
    assert encoder.token_count(long) == 122
    assert np.isfinite(encoder.encode([long])).all()
    np.testing.assert_array_equal(encoder.encode([long]), encoder.encode(["dog " * 41]))
    longest = max(encoder.token_count(template.format("dog")) for template in CAPTIONS)
    assert ClipTextEncoder(settings(vit), models).token_count("dog") == longest > encoder.token_count("dog")


def test_texts_that_are_not_numbers_are_refused(copy_of_vit: Path, models: ModelSettings) -> None:
    state = load_file(copy_of_vit / WEIGHTS)
    state["text_projection"].fill_(3e38)
    save_file(state, copy_of_vit / WEIGHTS)
    with pytest.raises(WeightsInvalid, match="text encoder gives values that are not numbers"):
        ClipTextEncoder(settings(copy_of_vit), models).encode(["dog"])


# Where models come from


def test_an_architecture_with_a_file(architecture: str, tmp_path: Path, models: ModelSettings) -> None:
    model = open_clip.create_model(architecture, pretrained=None)
    file = tmp_path / "mine.pt"
    torch.save({"state_dict": {f"module.{name}": value.half() for name, value in model.state_dict().items()}}, file)
    loaded = load_clip(settings(f"{architecture}:{file}"), models)
    assert loaded.plan.space == f"{architecture}:mine@{fingerprint(file)}"
    assert loaded.plan.templates == CAPTIONS
    torch.testing.assert_close(loaded.model.token_embedding.weight.half(), model.token_embedding.weight.half())
    assert loaded.model.token_embedding.weight.dtype == torch.float32


def test_old_names_of_text_towers_are_converted(copy_of_vit: Path, models: ModelSettings) -> None:
    configured(copy_of_vit, lambda written: written["model_cfg"].update(custom_text=True))
    encoder = ClipTextEncoder(settings(copy_of_vit), models)
    assert encoder._model.text is not None
    expected = own_text_features(built("vit16"), copy_of_vit, ["dog."])
    np.testing.assert_allclose(
        encoder._model.encode_text(encoder._tokenizer.batch(["dog."]), normalize=True), expected, atol=1e-6
    )


def test_weights_of_another_picture_size_get_their_positions_resized(copy_of_vit: Path, models: ModelSettings) -> None:
    state = {name: value.half() for name, value in load_file(copy_of_vit / WEIGHTS).items()}
    save_file(state, copy_of_vit / WEIGHTS)
    configured(copy_of_vit, lambda written: written["model_cfg"]["vision_cfg"].update(image_size=96))
    loaded = load_clip(settings(copy_of_vit), models)
    assert tuple(loaded.model.visual.grid_size) == (6, 6)


def test_known_weights_bring_their_activation_and_statistics(
    models: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arr_stream.weights.find", lambda name, models: Path(name))
    openai = make_plan("ViT-B-16:openai", models)
    assert openai.config["quick_gelu"] is True and openai.space == "ViT-B-16:openai"
    assert not make_plan("ViT-B-16:laion2b_s34b_b88k", models).config["quick_gelu"]
    siglip = make_plan("ViT-B-16-SigLIP:webli", models)
    assert siglip.mean == siglip.std == (0.5, 0.5, 0.5)
    assert make_plan("MobileCLIP-S1:datacompdr", models).mean == (0.0, 0.0, 0.0)


def test_nothing_is_ever_asked_of_the_hub(vit: Path, models: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that asks timm for pretrained weights (`timm_model_pretrained`) does not get them."""
    import socket

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder = save_model(vit.parent / "siglip", "siglip")
    assert json.loads((folder / CONFIG_NAME).read_text())["model_cfg"]["vision_cfg"]["timm_model_pretrained"]
    load_clip(settings(folder), models)
    with pytest.raises(BackendUnavailable, match="models fetch"):
        load_clip(settings("ViT-B-16:openai"), models)


# Bad input


class Runs:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return exec, ("open('ran', 'w').close()",)


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
    torch.save({"weight": Runs()}, folder / "model.bin")
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
FROM_HUB = "from the hub are not supported"

BAD: list[tuple[str, Callable[[Path], Path | str], type[ArrStreamError], str]] = [
    ("truncated", truncated, WeightsInvalid, "truncated"),
    ("of another model", of_another_model, WeightsInvalid, r"not weights of copy@\w+: RuntimeError: .*state_dict"),
    ("with code", with_code, WeightsInvalid, "could run code"),
    ("no weights file", lambda f: without(f, WEIGHTS), BackendUnavailable, "holds no weights file"),
    ("no configuration", lambda f: without(f, CONFIG_NAME), InvalidSetting, "holds no open_clip_config.json"),
    ("broken configuration", lambda f: written(f, CONFIG_NAME, "{"), InvalidSetting, "not a configuration"),
    ("broken tokeniser", lambda f: written(f, "bpe.txt.gz", "no"), WeightsInvalid, "tokeniser cannot be read"),
    ("larger tokeniser", lambda f: without(f, "bpe.txt.gz"), WeightsInvalid, "49408 tokens, the model 515"),
    ("phrase without a gap", with_entry((), prompt_templates=["photo"]), InvalidSetting, "needs one {}"),
    ("unknown option", with_entry(("model_cfg",), novel=1), InvalidSetting, "open_clip cannot build it: TypeError"),
    ("text tower from the hub", with_entry(TEXT_CFG, hf_model_name="owner/name"), InvalidSetting, FROM_HUB),
    (
        "vision tower from the hub",
        with_entry(VISION_CFG, timm_model_name="hf-hub:owner/name"),
        InvalidSetting,
        FROM_HUB,
    ),
    (
        "no hub tokeniser",
        with_entry(TEXT_CFG, hf_tokenizer_name="o/n"),
        BackendUnavailable,
        r"no tokenizer\.json beside",
    ),
    ("unknown name", lambda _: "ViT-B-61:openai", InvalidSetting, "no architecture 'ViT-B-61'; nearest: .*ViT-B-16"),
    ("unknown weights", lambda _: "ViT-B-16:openay", InvalidSetting, "ViT-B-16 has openai"),
    ("missing file", lambda f: f"ViT-B-16:{f}/none.pt", BackendUnavailable, "no weights file"),
    ("neither", lambda _: "ViT-B-16-openai", InvalidSetting, "did you mean 'ViT-B-16:openai'"),
]


@pytest.mark.parametrize(("make", "kind", "says"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_models_are_refused_in_one_line_with_a_remedy(
    make: Any, kind: type[ArrStreamError], says: str, copy_of_vit: Path, models: ModelSettings, monkeypatch: Any
) -> None:
    model = make(copy_of_vit)
    monkeypatch.chdir(copy_of_vit)
    with pytest.raises(kind, match=says) as caught:
        ClipTextEncoder(settings(model), models)
    assert caught.value.remedy and "\n" not in str(caught.value)
    assert not (copy_of_vit / "ran").exists()


@pytest.mark.parametrize("kind", ["vit16", "siglip"])
def test_half_precision_changes_little(
    kind: str, tmp_path: Path, models: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA does, on the CPU: every step takes tensors of mixed precision."""
    embedder = ClipEmbedder(settings(save_model(tmp_path / kind, kind)), models)
    full = embedder.embed(picture()).values
    half = torch.autocast("cpu", dtype=torch.bfloat16)
    monkeypatch.setattr("arr_stream.keyframes.embeddings.clip._precision", lambda _: half)
    values = embedder.embed(picture()).values
    assert not np.array_equal(values, full)
    assert (values * full).sum(axis=0).min() > 0.98
    np.testing.assert_allclose(np.linalg.norm(values, axis=0), 1.0, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["vit16", "siglip", "fastvit"])
def test_half_precision_on_cuda_agrees_with_the_cpu(kind: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    folder = save_model(tmp_path / kind, kind)
    on = {device: ClipEmbedder(settings(folder), ModelSettings(device=device)) for device in ("cpu", "cuda")}
    cosines = (on["cpu"].embed(picture()).values * on["cuda"].embed(picture()).values).sum(axis=0)
    assert cosines.min() > 0.99
    texts = {
        device: ClipTextEncoder(settings(folder), ModelSettings(device=device)).encode(TEXTS)
        for device in ("cpu", "cuda")
    }
    assert (texts["cpu"] * texts["cuda"]).sum(axis=1).min() > 0.99
