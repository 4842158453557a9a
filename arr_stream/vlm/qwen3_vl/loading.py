"""Lookup and loading of a model on disk.

`locate` looks for a hub name in the weights folder (as ORG--NAME) and in Hugging Face's cache, and downloads it only on
request: configuration and weights, never code or pickles. Nothing else uses the network.

The folder is not trusted. Of `config.json`, only the keys that describe the architecture are passed on, so that it can
name no code, kernel, adapter or other file; pickles (`*.bin`, `*.pt`) are never opened. transformers compares the
tensors with the configuration. It fills missing ones with random numbers and continues, which is an error here.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arr_stream.config import TINY, ModelSettings, VlmSettings
from arr_stream.errors import (
    ArrStreamError,
    BackendUnavailable,
    InvalidSetting,
    ModelTooLarge,
    ModelUnsupported,
    WeightsInvalid,
)
from arr_stream.extras import need
from arr_stream.files import expanded
from arr_stream.vlm import TINY_LIMITS
from arr_stream.vlm.qwen3_vl.adapter import use_transformers
from arr_stream.vlm.qwen3_vl.cells import Normalisation
from arr_stream.vlm.qwen3_vl.families import FAMILIES
from arr_stream.weights import folder as models_folder
from arr_stream.weights import pick_device
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder
from arr_stream.weights.fetching import fetch_repository
from arr_stream.weights.loading import first_line, refuse_pointer

CELL = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
"""Values that make a visual token a cell of 32x32 pixels of two frames."""
QUANTISED = {"int8": 1.0, "int4": 0.5 + 4 / 64}
"""Bytes of a weight by the values of `vlm.dtype` that quantise the linear layers of the language model."""
FETCHED = ("*.json", "*.safetensors", "*.txt", "*.jinja")
"""Downloaded files: configuration, weights, vocabulary, chat template; never `*.py` or pickles."""
MAX_BYTES = 200 * 2**30
_DTYPE_OF = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of plain weight types in safetensors, with torch's names."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_KEYS = {
    "": "image_token_id video_token_id vision_start_token_id vision_end_token_id tie_word_embeddings",
    "text_config": "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "head_dim hidden_act max_position_embeddings initializer_range rms_norm_eps rope_parameters rope_scaling "
    "rope_theta attention_bias attention_dropout pad_token_id bos_token_id eos_token_id tie_word_embeddings "
    "layer_types full_attention_interval partial_rotary_factor linear_conv_kernel_dim linear_key_head_dim "
    "linear_value_head_dim linear_num_key_heads linear_num_value_heads num_experts num_experts_per_tok "
    "moe_intermediate_size num_local_experts decoder_sparse_step mlp_only_layers shared_expert_intermediate_size",
    "vision_config": "depth hidden_size hidden_act intermediate_size num_heads in_channels patch_size "
    "spatial_merge_size temporal_patch_size out_hidden_size num_position_embeddings deepstack_visual_indexes "
    "initializer_range rope_parameters",
}
"""Keys of `config.json`, and of its sections, that describe a model of any family."""
_NOT_QUANTISED = ["model.visual", "lm_head", "in_proj_a", "in_proj_b", "shared_expert_gate"]
"""Modules that are small, and whose errors would affect every token. Experts are no modules of bitsandbytes either."""
_MARKERS = {
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
    "<|image_pad|>": "image_token_id",
    "<|video_pad|>": "video_token_id",
}
_WORD = re.compile(r"[^\W\d_]+")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_COPY_AGAIN = "copy it again from where it came, or delete it and fetch the model with models.download=true"
_CHOOSE = "choose a Qwen3-VL or Qwen3.5 with its vision tower, such as Qwen/Qwen3-VL-2B-Instruct"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """Model on a device, in evaluation mode, with its fast tokenizer and the normalisation of its image processor.

    `dtype` is the type of the weights that are not quantised and of the cache; `limits` returns a note about the answer
    to a question, or None.
    """

    name: str
    model: Any
    tokenizer: Any
    normalisation: Normalisation
    device: torch.device
    dtype: torch.dtype
    limits: Callable[[str], str | None] = lambda _question: None


def load(settings: VlmSettings, models: ModelSettings) -> LoadedModel:
    """Load the model that `vlm.model` names, or the tiny one, if it fits into memory together with a full context.

    Raises:
        InvalidSetting: `vlm.model` is empty.
        BackendUnavailable, FetchFailed: See `locate`; or a package or CUDA is missing.
        ModelUnsupported: Not a model, another architecture or cell size, or weights that are quantised already.
        WeightsInvalid: A file is missing, damaged or truncated, or the files do not match each other.
        ModelTooLarge: It needs more memory than is free; raised before loading.
    """
    use_transformers()
    device = pick_vlm_device(settings.device)
    if settings.dtype in QUANTISED:
        need("bitsandbytes", f"vlm.dtype={settings.dtype}")
    if settings.dtype in QUANTISED or device.type != "cpu":
        need("accelerate", "loading quantised or to a GPU")
    name, tiny = settings.model, settings.model == TINY
    folder = shipped_folder(TINY_QWEN) if tiny else locate(name, models)
    with _reading(name):
        config = _read_config(folder, name)
        shapes, saved_dtype = _read_headers(folder, name)
        chosen: str = settings.dtype
        if chosen == "auto" or chosen in QUANTISED:
            chosen = "float32" if tiny or device.type == "cpu" else saved_dtype
        dtype = getattr(torch, chosen)
        needed, free = memory_need(config, shapes, dtype, settings), free_bytes(device)
        _check_memory(name, needed, free)
        _check_memory(name, needed | {"missing": _missing_values(config, shapes, name) * dtype.itemsize}, free)
        tokenizer = _tokenizer(folder, config, name)
        normalisation = _normalisation(folder)
        model = _model(folder, config, settings.dtype, device, dtype, name)
    limits = {"limits": partial(_tiny_limits, tokenizer)} if tiny else {}
    return LoadedModel(name, model, tokenizer, normalisation, device, dtype, **limits)


def pick_vlm_device(setting: str) -> torch.device:
    """Return the device that `vlm.device` asks for; raises as `arr_stream.weights.pick_device` does."""
    return pick_device(setting, name="vlm.device", option="vlm.device=cpu")


# The folder


def locate(model: str, models: ModelSettings, *, hub_endpoint: str | None = None) -> Path:
    """Return the folder, unchecked, of a model given as a folder or as ORG/NAME; download it if `models` allows that.

    Raises:
        InvalidSetting: `model` is empty.
        BackendUnavailable: No such folder, or a hub name that is not on disk and may not be downloaded.
        FetchFailed: The download failed.
    """
    if not model.strip():
        raise InvalidSetting("vlm.model is empty", remedy="name a folder or a hub name with --model")
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # too long, with a null byte, or of an unknown user
        if (given := expanded(model)).exists():
            return given
    if not _HUB_NAME.fullmatch(model):
        raise BackendUnavailable(
            f"{model}: no such folder, and no hub name ORG/NAME",
            remedy="name a folder with a checkpoint, or a hub name such as Qwen/Qwen3-VL-2B-Instruct",
        )
    own = models_folder(models.folder) / model.replace("/", "--")
    for place in (own, *_hub_cache(model)):
        if is_whole(place):
            return place
    if models.download:
        fetch_repository(model, own, FETCHED, max_bytes=MAX_BYTES, hub_endpoint=hub_endpoint)
        return own
    raise BackendUnavailable(
        f"{model} is neither a folder, nor complete in Hugging Face's cache or in {own.parent}",
        remedy="fetch it with --download (models.download=true), or name a folder that holds it",
    )


def is_whole(folder: Path) -> bool:
    """Return whether a download is complete; the content of the files is not checked."""
    try:
        index = folder / _INDEX
        weights = json.loads(index.read_text())["weight_map"].values() if index.is_file() else [_WEIGHTS]
        return all((folder / name).is_file() for name in {"config.json", "tokenizer.json", *weights})
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        return False


def _hub_cache(model: str) -> list[Path]:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError):  # ValueError: not a valid hub name
        return []
    return [Path(found).parent] if isinstance(found, str) else []


# Its files


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Report any error of the libraries in one line: each layer of transformers has its own kinds."""
    try:
        yield
    except ArrStreamError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as exc:
        raise ModelTooLarge(
            f"{name}: memory ran out while it was loaded",
            remedy="choose a smaller model, vlm.dtype=bfloat16 or int8, or close other programs",
        ) from exc
    except Exception as exc:
        raise WeightsInvalid(f"{name}: cannot be loaded: {first_line(exc)}", remedy=_COPY_AGAIN) from exc


def _read_config(folder: Path, name: str) -> Any:
    """Return transformers' configuration of the architecture."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelUnsupported(f"{name}: not a folder with a model: it has no config.json", remedy=_CHOOSE)
    raw = json.loads(path.read_text(encoding="utf-8"))
    kind = raw.get("model_type")
    if kind not in FAMILIES or "vision_config" not in raw:
        lacks = " without a vision tower" if "vision_config" not in raw else ""
        raise ModelUnsupported(
            f"{name}: a model of type {str(kind)[:80]}{lacks}; supported are {', '.join(FAMILIES)}", remedy=_CHOOSE
        )
    if raw.get("quantization_config"):
        raise ModelUnsupported(
            f"{name}: its weights are quantised already",
            remedy="choose the same model unquantised, with vlm.dtype=int8 or int4",
        )
    if (folder / "adapter_config.json").exists():
        raise ModelUnsupported(
            f"{name}: holds an adapter (adapter_config.json), which would change the model",
            remedy="merge it into the weights and save the whole model, or take the file away",
        )
    sections = {key: _described(raw[key], key) for key in _KEYS if key}
    config = FAMILIES[kind].class_of("Config")(**_described(raw, ""), **sections)
    for key, wanted in CELL.items():
        if (found := getattr(config.vision_config, key)) != wanted:
            raise ModelUnsupported(
                f"{name}: {key} is {found}, and {wanted} is supported (a cell is 32x32 pixels of two frames)",
                remedy=_CHOOSE,
            )
    return config


def _described(raw: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key in _KEYS[section].split()}


def _read_headers(folder: Path, name: str) -> tuple[dict[str, tuple[int, ...]], str]:
    """Return the shape of each saved tensor, and torch's name of the type that most of the weights are saved in."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                refuse_pointer(path, file.read(40))
            with safe_open(path, framework="pt") as header:
                for key in header.keys():  # noqa: SIM118 - it is no dict
                    part = header.get_slice(key)
                    shapes[key] = tuple(part.get_shape())
                    counts[part.get_dtype()] += math.prod(shapes[key])
        except SafetensorError as exc:
            raise WeightsInvalid(f"{path}: damaged or truncated: {first_line(exc)}", remedy=_COPY_AGAIN) from exc
    if not shapes:
        raise BackendUnavailable(
            f"{name}: no safetensors in {folder}; pickles are not read, for they can run code", remedy=_COPY_AGAIN
        )
    [(saved, _)] = counts.most_common(1)
    return shapes, _DTYPE_OF.get(saved, "bfloat16")


def _missing_values(config: Any, shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    """Return how many values a configuration describes beyond those in the files; transformers allocates them."""
    text, vision = config.text_config, config.vision_config
    layers = max(text.num_hidden_layers, vision.depth, len(getattr(vision, "deepstack_visual_indexes", ())))
    if layers > len(shapes):
        raise WeightsInvalid(
            f"{name}: config.json describes {layers} layers, and the files hold {len(shapes)} tensors",
            remedy="take config.json and weights from one and the same model",
        )
    with torch.device("meta"):
        described: torch.nn.Module = FAMILIES[config.model_type].class_of("ForConditionalGeneration")(
            copy.deepcopy(config)
        )
    return max(0, sum(each.numel() for each in described.parameters()) - sum(map(math.prod, shapes.values())))


def _tokenizer(folder: Path, config: Any, name: str) -> Any:
    """Load the tokenizer from `tokenizer.json`, never with a class that a file names."""
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise ModelUnsupported(f"{name}: no tokenizer.json in {folder}", remedy=_COPY_AGAIN)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    for marker, key in _MARKERS.items():
        found, wanted = tokenizer.convert_tokens_to_ids(marker), getattr(config, key)
        if found != wanted:
            raise ModelUnsupported(
                f"{name}: {marker} is token {found} in tokenizer.json, and {wanted} in config.json ({key})",
                remedy="take config.json and tokenizer.json from one and the same model",
            )
    return tokenizer


def _normalisation(folder: Path) -> Normalisation:
    """Return the pixel statistics of the processor's configuration, in either of its two files."""
    from transformers.image_processing_base import ImageProcessingMixin

    found, _ = ImageProcessingMixin.get_image_processor_dict(str(folder), local_files_only=True)
    return Normalisation(tuple(found["image_mean"]), tuple(found["image_std"]))


def _model(folder: Path, config: Any, setting: str, device: torch.device, dtype: torch.dtype, name: str) -> Any:
    options: dict[str, Any] = {}
    if setting in QUANTISED:
        options["quantization_config"] = _quantization(setting, dtype)
    if setting in QUANTISED or device.type != "cpu":
        options["device_map"] = {"": device}
    # Typed as returning a model alone, without the loading report.
    from_pretrained: Any = FAMILIES[config.model_type].class_of("ForConditionalGeneration").from_pretrained
    model, report = from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if report[kind]:
            first, problem = min(str(key) for key in report[kind])[:120], kind.replace("_", " ")
            raise WeightsInvalid(
                f"{name}: transformers reports {len(report[kind])} {problem}, such as {first}",
                remedy="take config.json and weights from one and the same model",
            )
    model.requires_grad_(False).eval()
    return model


def _quantization(setting: str, dtype: torch.dtype) -> Any:
    import transformers

    make_config: Any = transformers.BitsAndBytesConfig
    # It warns at every layer about rounding, which is intended here.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if setting == "int8":
        return make_config(load_in_8bit=True, llm_int8_skip_modules=_NOT_QUANTISED)
    return make_config(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=_NOT_QUANTISED
    )


def _tiny_limits(tokenizer: Any, question: str) -> str:
    """Describe the tiny model's limits, and name up to three words of the question that it was not taught."""

    def is_known(word: str) -> bool:
        # Unknown words take several tokens.
        forms = (f"{before}{form}" for form in (word, word.lower()) for before in (" ", ""))
        return any(len(tokenizer(form)["input_ids"]) == 1 for form in forms)

    unknown = [repr(word) for word in dict.fromkeys(_WORD.findall(question)) if not is_known(word)]
    return TINY_LIMITS + (f"; it was not taught {', '.join(unknown[:3])}" if unknown else "")


# Memory


def memory_need(
    config: Any, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, settings: VlmSettings
) -> dict[str, int]:
    """Estimate the bytes that a model takes: its weights, the keys and values of a full context, and its work.

    The latter are the features of as many cells, twice while the memory is rebuilt, and one pass of 1024 cells through
    the vision tower.
    """
    text, vision, size = config.text_config, config.vision_config, dtype.itemsize
    weights = 0.0
    for key, shape in shapes.items():
        linear = len(shape) == 2 and ".language_model.layers." in key and ".experts." not in key
        weights += math.prod(shape) * (QUANTISED.get(settings.dtype, size) if linear else size)
    kinds = getattr(text, "layer_types", None)
    layers = kinds.count("full_attention") if kinds else text.num_hidden_layers
    per_token = 2 * layers * text.num_key_value_heads * text.head_dim * size
    levels = 1 + len(getattr(vision, "deepstack_visual_indexes", ()))
    features = 2 * levels * text.hidden_size * size * settings.context_tokens
    # Measured: up to 40 values of the tower's width for each of the four patches of a cell.
    work = features + 4 * 1024 * 40 * vision.hidden_size * size
    return {"weights": int(weights), "cache": per_token * settings.context_tokens, "work": work}


def _check_memory(name: str, needed: Mapping[str, int], free: int) -> None:
    if (total := sum(needed.values())) > free:
        parts = ", ".join(f"{part} {_size(size)}" for part, size in needed.items())
        raise ModelTooLarge(
            f"{name} needs {_size(total)} ({parts}) and {_size(free)} are free",
            remedy="choose a smaller model, vlm.dtype=bfloat16 or int8, or fewer tokens with "
            "--set vlm.context_tokens=N",
        )


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch holds in reserve is free for this process.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    need("psutil", "measuring the free memory")
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().available)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
