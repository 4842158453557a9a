"""Loading a Qwen3-VL: what is whole loads, and everything else ends with one line before it does harm."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from transformers import Qwen3VLForConditionalGeneration

from arr_stream.config import ModelSettings, VlmSettings
from arr_stream.errors import (
    ArrStreamError,
    BackendUnavailable,
    FetchFailed,
    InvalidSetting,
    ModelTooLarge,
    ModelUnsupported,
    WeightsInvalid,
)
from arr_stream.vlm.qwen3_vl import adapter, loading
from arr_stream.vlm.qwen3_vl.cells import Normalisation
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, is_whole, load, locate
from tests.tiny_qwen import EVERY_FAMILY, load_tiny
from tests.weight_files import HUB_COMMIT, FileServer, PickleBomb, Served, serving_files

torch.set_num_threads(1)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SOME = "model.language_model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def copy(tiny_qwen: Path, tmp_path: Path) -> Path:
    """The tiny model, to be spoilt."""
    return Path(shutil.copytree(tiny_qwen, tmp_path / "tiny-qwen3-vl"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARR_STREAM_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def load_from(folder: Path | str, **settings: Any) -> LoadedModel:
    options: dict[str, Any] = {"device": "cpu", "context_tokens": 512, **settings}
    return load(VlmSettings(model=str(folder), **options), ModelSettings())


def refused(
    kind: type[ArrStreamError], folder: Path | str, *words: str, told: str | None = None, **settings: Any
) -> None:
    """Loading ends with this error, in one line that names the model (as `told`) and holds the words."""
    with pytest.raises(ArrStreamError) as caught:
        load_from(folder, **settings)
    error = caught.value
    assert type(error) is kind, repr(error)
    assert "\n" not in str(error) and error.remedy and len(str(error)) < 600
    for word in (told or str(folder), *words):
        assert word in str(error)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def respoil(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def shard(folder: Path) -> list[Path]:
    """Weights in three files and an index, as large models come."""
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(state)
    files = [folder / f"model-{i + 1:05d}-of-00003.safetensors" for i in range(3)]
    for i, path in enumerate(files):
        save_file({name: state[name] for name in names[i::3]}, path, metadata={"format": "pt"})
    where = {name: files[i % 3].name for i, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return files


# What is whole


@EVERY_FAMILY
def test_the_weights_are_those_of_the_file(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    respoil(copy, lambda state: state.update({"mtp.fc.weight": torch.zeros(2, 2)} if "qwen3_5" in copy.name else {}))
    loaded = load_from(copy)
    assert capfd.readouterr() == ("", "")
    assert (loaded.name, loaded.device.type, loaded.dtype) == (str(copy), "cpu", torch.float32)
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    state, stock = loaded.model.state_dict(), load_tiny(copy)[0].state_dict()
    assert all(torch.equal(state[key], stock[key]) for key in stock)
    with safe_open(copy / WEIGHTS, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118
            if ".experts." not in key:
                assert torch.equal(state[key], file.get_tensor(key).float()), key
    assert loaded.normalisation == Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_the_tokenizer_is_the_one_that_transformers_would_take(tiny_qwen: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, usual = load_from(tiny_qwen).tokenizer, AutoTokenizer.from_pretrained(tiny_qwen)
    assert tokenizer.is_fast
    for text in ("What is written on the bus?", "<|im_start|>user\nNaïve 3.14 𝄞<|im_end|>", "  a\n\n b"):
        assert tokenizer(text)["input_ids"] == usual(text)["input_ids"]


def test_shards_give_the_same_model(copy: Path) -> None:
    whole = load_file(copy / WEIGHTS)
    shard(copy)
    sharded = load_from(copy).model.state_dict()
    assert all(torch.equal(whole[key], sharded[key]) for key in whole)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_are_of_the_type_asked_for(tiny_qwen: Path, dtype: str) -> None:
    loaded = load_from(tiny_qwen, dtype=dtype)
    assert loaded.dtype == getattr(torch, dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {loaded.dtype}
    assert torch.isfinite(loaded.model(input_ids=torch.arange(8)[None]).logits).all()


def test_saved_in_bfloat16_runs_in_float32_on_a_cpu(copy: Path) -> None:
    respoil(copy, lambda state: state.update({key: value.bfloat16() for key, value in state.items()}))
    assert loading._read_headers(copy, "")[1] == "bfloat16"
    assert load_from(copy).dtype == torch.float32


@pytest.mark.parametrize("nested", [False, True])
def test_pixels_are_normalised_as_the_processor_says(copy: Path, nested: bool) -> None:
    without_processor(copy)
    said = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    name = "processor_config.json" if nested else "preprocessor_config.json"
    (copy / name).write_text(json.dumps({"image_processor": said} if nested else said))
    assert load_from(copy).normalisation == Normalisation((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


# What is not whole, or not a Qwen3-VL


Spoil = Callable[[Path], object]


def configured(section: str = "", /, **values: object) -> Spoil:
    """Changes config.json, or a section of it."""

    def spoil(folder: Path) -> None:
        edit(folder / "config.json", lambda config: (config[section] if section else config).update(values))

    return spoil


def weighted(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    return lambda folder: respoil(folder, change)


def written(name: str, content: str) -> Spoil:
    return lambda folder: (folder / name).write_text(content)


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def cut(name: str, share: float) -> Spoil:
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(share * len(data))])

    return spoil


def sharded(change: Spoil) -> Spoil:
    """In shards, of which something is wrong then."""

    def spoil(folder: Path) -> None:
        shard(folder)
        change(folder)

    return spoil


def without_processor(folder: Path) -> None:
    for path in folder.glob("*processor_config.json"):
        if not path.name.startswith("video"):
            path.unlink()


SECOND_SHARD, EXTRA = "model-00002-of-00003.safetensors", "model.visual.extra.weight"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"
BACKENDS, UNSUPPORTED, INVALID = BackendUnavailable, ModelUnsupported, WeightsInvalid

SPOILT: dict[str, tuple[Spoil, type[ArrStreamError], tuple[str, ...]]] = {
    **{f"config {content[:3]!r}": (written("config.json", content), INVALID, ()) for content in ("{", "null", "\x00")},
    **{
        f"architecture {kind}": (configured(model_type=kind), UNSUPPORTED, (str(kind), "qwen3_vl"))
        for kind in ("qwen2_5_vl", None)
    },
    "text alone": (
        lambda folder: edit(folder / "config.json", lambda config: config.pop("vision_config")),
        UNSUPPORTED,
        ("without a vision tower",),
    ),
    "no tower among the weights": (
        weighted(lambda state: [state.pop(key) for key in list(state) if key.startswith("model.visual.")]),
        INVALID,
        ("missing keys", "model.visual."),
    ),
    "cells": (configured("vision_config", temporal_patch_size=1), UNSUPPORTED, ("temporal_patch_size is 1", "32x32")),
    "quantised": (configured(quantization_config={"quant_method": "fp8"}), UNSUPPORTED, ("vlm.dtype=int8",)),
    "adapter": (written("adapter_config.json", '{"base_model_name_or_path": "a/b"}'), UNSUPPORTED, ("adapter",)),
    "no weights": (without(WEIGHTS), BACKENDS, ("no safetensors",)),
    **{
        f"cut at {share}": (cut(WEIGHTS, share), INVALID, (WEIGHTS, "damaged or truncated"))
        for share in (0.0, 0.0001, 0.9999)
    },
    "Git LFS": (written(WEIGHTS, LFS), INVALID, (WEIGHTS, "git lfs pull")),
    "shard missing": (sharded(without(SECOND_SHARD)), INVALID, (SECOND_SHARD,)),
    "shard cut": (sharded(cut(SECOND_SHARD, 0.999)), INVALID, (SECOND_SHARD, "truncated")),
    "empty index": (sharded(written(INDEX, "{}")), INVALID, ()),
    "a tensor missing": (weighted(lambda state: state.pop(SOME)), INVALID, (SOME, "missing keys")),
    "a tensor too many": (weighted(lambda state: state.update({EXTRA: torch.zeros(3)})), INVALID, (EXTRA,)),
    "another shape": (weighted(lambda state: state.update({SOME: state[SOME][:-1].clone()})), INVALID, ()),
    "more layers than fit": (configured("text_config", num_hidden_layers=10**9), ModelTooLarge, ("cache",)),
    "more layers of the tower": (configured("vision_config", depth=10**8), INVALID, ("100000000 layers",)),
    "more words than fit": (configured("text_config", vocab_size=10**10), ModelTooLarge, ("missing",)),
    **{
        f"width {value}": (configured("text_config", hidden_size=value), INVALID, ())
        for value in (65, "many", -4, 0, None)
    },
    "no tokenizer": (without("tokenizer.json"), UNSUPPORTED, ("tokenizer.json",)),
    "tokenizer cut": (cut("tokenizer.json", 0.1), INVALID, ()),
    "another tokenizer": (configured(image_token_id=7), UNSUPPORTED, ("tokenizer.json", "image_token_id", "7")),
    "no processor": (without_processor, INVALID, ("image processor",)),
}


@pytest.mark.parametrize(("spoil", "kind", "words"), SPOILT.values(), ids=SPOILT)
def test_what_is_not_whole_ends_with_one_line(
    copy: Path, spoil: Spoil, kind: type[ArrStreamError], words: tuple[str, ...]
) -> None:
    spoil(copy)
    refused(kind, copy, *words)


def test_what_is_no_folder_with_a_model(copy: Path, tmp_path: Path) -> None:
    refused(InvalidSetting, "", "vlm.model", "--model")
    refused(BackendUnavailable, tmp_path / "nowhere", "no such folder")
    refused(ModelUnsupported, copy / WEIGHTS, "not a folder with a model")


def test_pickles_are_not_read(copy: Path, tmp_path: Path) -> None:
    (copy / WEIGHTS).unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(PickleBomb(tmp_path / "ran")))
    refused(BackendUnavailable, copy, "can run code")
    assert not (tmp_path / "ran").exists()


# Checkpoints that nobody vouches for


def test_code_beside_the_weights_is_never_run(copy: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for name in ("modeling_evil.py", "tokenization_evil.py"):
        (copy / name).write_text(f"open({str(mark)!r}, 'w')\nclass Evil: ...\n")
    (copy / "custom_generate").mkdir()
    (copy / "custom_generate" / "generate.py").write_text(f"open({str(mark)!r}, 'w')\ndef generate(*a, **b): ...\n")
    edit(copy / "config.json", lambda config: config.update(auto_map={"AutoModel": "modeling_evil.Evil"}))
    evil = {"auto_map": {"AutoTokenizer": [None, "tokenization_evil.Evil"]}, "tokenizer_class": "Evil"}
    edit(copy / "tokenizer_config.json", lambda config: config.update(evil))
    loaded = load_from(copy)
    assert type(loaded.model).__module__.startswith("transformers.") and not mark.exists()


def test_only_the_architecture_is_taken_from_the_configuration(copy: Path) -> None:
    other = {
        "_attn_implementation": "someone/kernel",
        "attn_implementation": "someone/kernel",
        "transformers_weights": "elsewhere.safetensors",
        "fusion_config": {"patch_embeddings": True},
        "_name_or_path": "someone/else",
    }
    edit(copy / "config.json", lambda config: [part.update(other) for part in (config, config["text_config"])])
    save_file({"a": torch.zeros(1)}, copy / "elsewhere.safetensors")
    config = load_from(copy).model.config
    assert config._attn_implementation == config.text_config._attn_implementation == "sdpa"
    for part in (config, config.text_config):
        assert all(getattr(part, key, None) is None for key in ("fusion_config", "transformers_weights"))


# Versions and packages


def test_an_unsupported_transformers(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "SUPPORTED", (">=99", "<100"))
    refused(ModelUnsupported, copy, "transformers", ">=99,<100", "pip install", told="is installed")


@pytest.mark.parametrize(
    "package, settings, remedy",
    [
        ("transformers", {}, "arr-stream[vlm]"),
        ("bitsandbytes", {"dtype": "int8"}, "arr-stream[quantize]"),
        ("accelerate", {"dtype": "int4"}, "arr-stream[vlm]"),
        ("psutil", {}, "arr-stream[vlm]"),
    ],
)
def test_a_missing_package(
    copy: Path, package: str, settings: dict[str, Any], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackendUnavailable) as caught:
        load_from(copy, **settings)
    assert package in caught.value.message and remedy in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_not_there(copy: Path) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        load_from(copy, device="cuda")
    assert "vlm.device=cuda" in str(caught.value) and "vlm.device=cpu" in str(caught.value)


# Memory


def needed(folder: Path, settings: VlmSettings) -> dict[str, int]:
    config, (shapes, _) = loading._read_config(folder, ""), loading._read_headers(folder, "")
    return loading.memory_need(config, shapes, torch.float32, settings)


def kept_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters and of the scales of quantised ones."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if (scales := getattr(weight, "SCB", None)) is not None:
            total += scales.numel() * scales.element_size()
        if (state := getattr(weight, "quant_state", None)) is not None:
            total += state.absmax.numel() * state.absmax.element_size()
    return total


@EVERY_FAMILY
def test_weights_and_cache_take_what_was_foretold(tiny_qwen: Path) -> None:
    settings = VlmSettings(model=str(tiny_qwen), device="cpu", dtype="float32", context_tokens=100)
    model = load(settings, ModelSettings()).model
    assert kept_bytes(model) == needed(tiny_qwen, settings)["weights"]
    with torch.inference_mode():
        cache = model(input_ids=torch.arange(100)[None], use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers if hasattr(layer, "keys"))
    assert held == needed(tiny_qwen, settings)["cache"]


@EVERY_FAMILY
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantised_layers_are_those_that_bear_it(tiny_qwen: Path, dtype: str) -> None:
    pytest.importorskip("bitsandbytes")
    settings = VlmSettings(model=str(tiny_qwen), device="cpu", dtype=dtype)
    whole, small = load_from(tiny_qwen, dtype="float32").model, load(settings, ModelSettings()).model
    assert kept_bytes(small) == pytest.approx(needed(tiny_qwen, settings)["weights"], rel=0.1)
    for name, module in small.named_modules():
        if isinstance(module, torch.nn.Linear):
            inside = name.startswith("model.language_model.layers.")
            inside = inside and not name.endswith(tuple(loading._NOT_QUANTISED))
            assert (type(module) is torch.nn.Linear) != inside, name
    ids = torch.arange(16)[None]
    with torch.inference_mode():
        expected, found = whole(input_ids=ids).logits, small(input_ids=ids).logits
    difference = float((expected - found).norm() / expected.norm())
    # Rounding adds up in recurrent states, and sends tokens to other experts.
    most = {"int8": 0.05, "int4": 0.5}[dtype]
    assert 0 < difference < (most if type(whole).__name__.startswith("Qwen3VLFor") else 0.8)


def test_a_model_too_large_says_what_it_needs(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda _: 7_200_000)
    monkeypatch.setattr(
        Qwen3VLForConditionalGeneration, "from_pretrained", lambda *_, **__: pytest.fail("it was loaded all the same")
    )
    refused(ModelTooLarge, copy, "needs", "weights", "cache", "work", "7.2 MB are free", "vlm.dtype=bfloat16 or int8")


def test_a_context_too_large_for_the_memory(tiny_qwen: Path) -> None:
    refused(ModelTooLarge, tiny_qwen, "cache", "vlm.context_tokens", context_tokens=10**9)


# Hub names


@pytest.fixture
def hub(tiny_qwen: Path) -> Iterator[FileServer]:
    """A hub with one repository, own/model, as its client meets it."""
    files = {path.name: path.read_bytes() for path in tiny_qwen.iterdir() if path.is_file()}
    files |= {"modeling_evil.py": b"import evil", "pytorch_model.bin": b"pickle", "README.md": b"hello"}
    siblings = [{"rfilename": name} for name in files]
    tree = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files.items()]
    with serving_files() as server:
        commit = {"X-Repo-Commit": HUB_COMMIT}
        model = Served(json.dumps({"id": "own/model", "sha": HUB_COMMIT, "siblings": siblings}).encode())
        server.files = {
            "/api/models/own/model": model,
            "/api/models/own/model/revision/main": model,
            f"/api/models/own/model/tree/{HUB_COMMIT}": Served(json.dumps(tree).encode()),
        }
        for name, data in files.items():
            served = Served(data, headers={"ETag": f'"{name}-tag"', **commit})
            server.files[f"/own/model/resolve/{HUB_COMMIT}/{name}"] = served
        server.missing = Served(b"{}", 404, {"X-Error-Code": "RepoNotFound", **commit})
        yield server


FETCH = ModelSettings(download=True)


def test_a_model_is_fetched_without_code_and_pickles(
    hub: FileServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    folder = locate("own/model", FETCH, hub_endpoint=hub.url)
    assert folder == tmp_path / "models" / "own--model" and is_whole(folder)
    assert not [path for path in folder.rglob("*") if path.suffix in (".py", ".bin", ".md")]
    assert hub.asked and not any(asked.authorization for asked in hub.asked)
    assert capfd.readouterr() == ("", "")
    hub.asked.clear()
    assert locate("own/model", FETCH, hub_endpoint=hub.url) == folder and not hub.asked
    assert load_from("own/model").name == "own/model"


def test_a_fetch_goes_on_with_what_is_missing(hub: FileServer) -> None:
    folder = locate("own/model", FETCH, hub_endpoint=hub.url)
    (folder / WEIGHTS).unlink()
    with pytest.raises(BackendUnavailable, match="nor complete"):
        load_from("own/model")
    hub.asked.clear()
    assert is_whole(locate("own/model", FETCH, hub_endpoint=hub.url))
    got = [Path(asked.path).name for asked in hub.asked if asked.command == "GET" and "/resolve/" in asked.path]
    assert got == [WEIGHTS]


def test_a_folder_of_shards_is_whole_with_all_of_them(copy: Path) -> None:
    files = shard(copy)
    assert is_whole(copy)
    files[1].unlink()
    assert not is_whole(copy)


def test_nothing_is_fetched_unasked(tmp_path: Path) -> None:
    for name in ("own/model", "own/mod--el"):
        refused(BackendUnavailable, name, "models.download", str(tmp_path / "models"))


def test_a_repository_that_is_not_there_and_a_hub_that_cannot_be_reached(hub: FileServer) -> None:
    for model, endpoint in (("own/other", hub.url), ("own/model", "http://127.0.0.1:9")):
        with pytest.raises(FetchFailed) as caught:
            locate(model, FETCH, hub_endpoint=endpoint)
        assert model in str(caught.value) and "\n" not in str(caught.value)


def test_offline_means_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchFailed, match="HF_HUB_OFFLINE"):
        locate("own/model", FETCH, hub_endpoint="http://127.0.0.1:9")


def test_a_full_disk_is_told_before_anything_comes(
    hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(FetchFailed, match="--set models"):
        locate("own/model", FETCH, hub_endpoint=hub.url)
    assert not (tmp_path / "models" / "own--model" / WEIGHTS).exists()


def test_hugging_faces_own_cache_is_looked_into(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "d" * 40
    repository = tmp_path / "cache" / "models--own--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    copy.rename(repository / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    assert locate("own/model", ModelSettings()) == repository / "snapshots" / commit


@pytest.mark.parametrize(
    "name",
    ["a/b/c", "model", "../own/model", "~nobody-here/x/y", "x" * 400, "a\0b"],
)
def test_names_that_are_neither_folder_nor_hub_name(name: str) -> None:
    refused(BackendUnavailable, name, "ORG/NAME", told=name.replace("\0", r"\x00")[:100])
