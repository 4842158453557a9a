"""Loading of a model from disk, with checks before and after.

Before: the version of transformers, the content of the folder, and the memory need, computed from the headers. After:
every tensor came from the files (transformers fills missing ones with random numbers and continues), and all weights
are finite. Code of the checkpoint is never run; only `locate` may use the network.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arr_stream.config import TINY, ModelSettings, VlmSettings
from arr_stream.errors import ModelTooLarge, ModelUnsupported, WeightsInvalid
from arr_stream.extras import need
from arr_stream.vlm import TINY_LIMITS
from arr_stream.vlm.qwen3_vl.adapter import use_transformers
from arr_stream.vlm.qwen3_vl.cells import Normalisation
from arr_stream.vlm.qwen3_vl.checkpoint import Checkpoint, Entry, locate, read_checkpoint
from arr_stream.weights import pick_device
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder
from arr_stream.weights.loading import first_line, is_finite

CELLS = 1024
"""Cells of the picture in the memory estimate: the largest grid of the default settings."""
INT4_BLOCK = 64
"""Weights that share one float32 scale in bitsandbytes' 4-bit format (its default)."""
QUANTISED = ("int8", "int4")
"""Values of `vlm.dtype` that quantise the linear layers of the language model."""
_LINEAR = re.compile(r"model\.language_model\.layers\.(?!.*\.experts\.).*(_proj|\.in_proj_(qkv|z))\.weight")
_SKIP = ["model.visual", "lm_head", "in_proj_a", "in_proj_b", "shared_expert_gate"]
"""Modules that are not quantised: they are small, and their errors would affect every token.

A layer's experts are no modules of their own for bitsandbytes, and stay as they are, too.
"""
_MARKERS = {
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
    "<|image_pad|>": "image_token_id",
    "<|video_pad|>": "video_token_id",
}
_WORD = re.compile(r"[^\W\d_]+")
_TURNS = ("<|im_start|>", "<|im_end|>")
_OTHER_COPY = "take config.json, weights and tokenizer.json from one and the same model"


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
        BackendUnavailable, FetchFailed, ModelUnsupported: See `locate` and `read_checkpoint`; or CUDA is missing.
        WeightsInvalid: See `read_checkpoint`; or weights are not finite.
        ModelTooLarge: It needs more memory than is free; raised before loading.
    """
    use_transformers()
    device = pick_vlm_device(settings.device)
    _need_packages(settings.dtype, device)
    tiny = settings.model == TINY
    checkpoint = read_checkpoint(shipped_folder(TINY_QWEN) if tiny else locate(settings.model, models), settings.model)
    dtype = pick_dtype(checkpoint, settings.dtype, device)
    needed, free = memory_need(checkpoint, dtype, settings), free_bytes(device)
    if (total := sum(needed.values())) > free:
        parts = ", ".join(f"{name} {_size(size)}" for name, size in needed.items())
        raise ModelTooLarge(
            f"{checkpoint.name} needs {_size(total)} ({parts}) and {_size(free)} are free",
            remedy="choose a smaller model, vlm.dtype=bfloat16 or int8, or fewer tokens with "
            "--set vlm.context_tokens=N",
        )
    tokenizer, of_torch = _tokenizer(checkpoint), getattr(torch, dtype)
    model = _model(checkpoint, quantisation(settings), device, of_torch)
    loaded = LoadedModel(checkpoint.name, model, tokenizer, checkpoint.normalisation, device, of_torch)
    return replace(loaded, limits=partial(_tiny_limits, tokenizer)) if tiny else loaded


def _tiny_limits(tokenizer: Any, question: str) -> str:
    """Describe the tiny model's limits, and name up to three words of the question that it was not taught."""

    def is_known(word: str) -> bool:
        # Unknown words take several tokens.
        forms = (f"{before}{form}" for form in (word, word.lower()) for before in (" ", ""))
        return any(len(tokenizer(form)["input_ids"]) == 1 for form in forms)

    unknown = [repr(word) for word in dict.fromkeys(_WORD.findall(question)) if not is_known(word)]
    return TINY_LIMITS + (f"; it was not taught {', '.join(unknown[:3])}" if unknown else "")


def _need_packages(dtype: str, device: torch.device) -> None:
    if dtype in QUANTISED:
        need("bitsandbytes", f"vlm.dtype={dtype}")
    if dtype in QUANTISED or device.type != "cpu":
        need("accelerate", "loading quantised" if dtype in QUANTISED else "loading to a GPU")


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """Load the tokenizer from `tokenizer.json`, never with a class that a file names."""
    from transformers import PreTrainedTokenizerFast

    path = checkpoint.folder / "tokenizer.json"
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as exc:  # The tokenizers library raises plain Exception.
        raise WeightsInvalid(f"{path}: cannot be read: {first_line(exc)}", remedy=_OTHER_COPY) from exc
    vocabulary = tokenizer.get_vocab()
    for marker, key in _MARKERS.items():
        if vocabulary.get(marker) != (wanted := getattr(checkpoint.config, key)):
            raise ModelUnsupported(
                f"{path}: {marker} is token {vocabulary.get(marker)}, and config.json says {wanted} ({key})",
                remedy=_OTHER_COPY,
            )
    if missing := [marker for marker in _TURNS if marker not in vocabulary]:
        raise ModelUnsupported(f"{path}: lacks the token {missing[0]}", remedy=_OTHER_COPY)
    rows = checkpoint.config.text_config.vocab_size
    if max(vocabulary.values()) >= rows:
        raise ModelUnsupported(
            f"{path}: token ids up to {max(vocabulary.values())}, and the model knows {rows}", remedy=_OTHER_COPY
        )
    return tokenizer


def _model(checkpoint: Checkpoint, quantize: str | None, device: torch.device, dtype: torch.dtype) -> Any:
    options: dict[str, Any] = {}
    if quantize is not None:
        options["quantization_config"] = _quantization(quantize, dtype)
    if quantize is not None or device.type != "cpu":
        options["device_map"] = {"": device}
    # Typed as returning a model alone, without the loading report.
    from_pretrained: Any = checkpoint.family.class_of("ForConditionalGeneration").from_pretrained
    try:
        model, report = from_pretrained(
            checkpoint.folder,
            config=checkpoint.config,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except (MemoryError, torch.OutOfMemoryError) as exc:
        raise ModelTooLarge(
            f"{checkpoint.name}: memory ran out while it was loaded",
            remedy="choose a smaller model, vlm.dtype=bfloat16 or int8, or close other programs",
        ) from exc
    except Exception as exc:  # transformers passes on the errors of every layer below it.
        raise WeightsInvalid(
            f"{checkpoint.name}: cannot be loaded: {first_line(exc)}", remedy="copy or fetch the model again"
        ) from exc
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        if report[kind]:
            first, problem = min(str(key) for key in report[kind])[:120], kind.replace("_", " ")
            raise WeightsInvalid(
                f"{checkpoint.name}: transformers reports {len(report[kind])} {problem}, such as {first}",
                remedy=_OTHER_COPY,
            )
    model.requires_grad_(False).eval()
    _check_finite(checkpoint, model)
    return model


def _quantization(quantize: str, dtype: torch.dtype) -> Any:
    import transformers

    make_config: Any = transformers.BitsAndBytesConfig
    # It warns at every layer about rounding, which is intended here.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if quantize == "int8":
        return make_config(load_in_8bit=True, llm_int8_skip_modules=_SKIP)
    return make_config(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=_SKIP
    )


def _check_finite(checkpoint: Checkpoint, model: Any) -> None:
    for key, parameter in model.named_parameters():
        if parameter.is_floating_point() and not is_finite(parameter):
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise WeightsInvalid(
                f"{checkpoint.name}: {key}, in {dtype}: holds NaN or infinite values",
                remedy="use another checkpoint, or vlm.dtype=bfloat16 or float32",
            )


def memory_need(checkpoint: Checkpoint, dtype: str, settings: VlmSettings) -> dict[str, int]:
    """Return the bytes that a model would take, by purpose; `dtype` is torch's name of the type to compute in.

    `cache` holds the keys and values of `vlm.context_tokens` tokens, and recurrent states with the copy that undoes a
    question; `kept features` those of as many cells, twice while the memory is rebuilt; `work` one pass of 1024 cells
    through the vision tower, which takes more than the language model (estimate).
    """
    size = int(getattr(torch, dtype).itemsize)
    text = checkpoint.config.text_config
    weights = sum(_kept_bytes(key, entry, size, quantisation(settings)) for key, entry in checkpoint.tensors.items())
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    linear = kinds.count("linear_attention")
    per_token = 2 * (len(kinds) - linear) * text.num_key_value_heads * text.head_dim * size
    cache = per_token * settings.context_tokens + (2 * linear * _state_bytes(text, size) if linear else 0)
    levels = 1 + len(getattr(checkpoint.config.vision_config, "deepstack_visual_indexes", ()))
    kept = 2 * levels * text.hidden_size * size * settings.context_tokens
    work = _work_bytes(checkpoint.config.vision_config, size)
    return {"weights": weights, "cache": cache, "kept features": kept, "work": work}


def _state_bytes(text: Any, size: int) -> int:
    """Recurrent and convolution state of one Gated DeltaNet layer; the former is float32."""
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    return int(4 * values * text.linear_key_head_dim + (2 * keys + values) * text.linear_conv_kernel_dim * size)


def pick_vlm_device(setting: str) -> torch.device:
    """Return the device that `vlm.device` asks for; raises as `arr_stream.weights.pick_device` does."""
    return pick_device(setting, name="vlm.device", option="vlm.device=cpu")


def pick_dtype(checkpoint: Checkpoint, setting: str, device: torch.device) -> str:
    """Return torch's name of the type to compute in: as requested, else float32 on a CPU, the saved type elsewhere."""
    if setting not in ("auto", *QUANTISED):
        return setting
    return "float32" if device.type == "cpu" else checkpoint.saved_dtype


def quantisation(settings: VlmSettings) -> str | None:
    """Return `int8` or `int4` if the settings quantise the model, else None."""
    return settings.dtype if settings.dtype in QUANTISED else None


def is_quantized(key: str, entry: Entry) -> bool:
    """Return whether quantisation shrinks this tensor, which is so for linear layers of the language model."""
    return _LINEAR.fullmatch(key) is not None and len(entry.shape) == 2


def _kept_bytes(key: str, entry: Entry, size: int, quantize: str | None) -> int:
    if quantize is None or not is_quantized(key, entry):
        return entry.elements * size
    if quantize == "int8":
        return entry.elements + 4 * entry.shape[0]  # one float32 scale a row
    return (entry.elements + 1) // 2 + 4 * -(-entry.elements // INT4_BLOCK)


def _work_bytes(vision: Any, size: int) -> int:
    patches, pixels = 4 * CELLS, 3 * 2 * 16 * 16
    # A block holds the residual and its normed copy; then queries, keys and values, rotated in float32 with copies, or
    # the two halves of the wide layer. Attention itself needs no table (flash kernels of torch's sdpa). Twice that is
    # slightly more than measured, with positions, the libraries' copies and the allocator's reserve included.
    attention = 3 * vision.hidden_size * size + 6 * vision.hidden_size * 4
    per_patch = 2 * vision.hidden_size * size + max(attention, 2 * vision.intermediate_size * size)
    features = CELLS * vision.out_hidden_size * (1 + len(getattr(vision, "deepstack_visual_indexes", ()))) * size
    return int(patches * (2 * per_patch + pixels * (4 + size)) + features)


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device: the system's, or less if a container limits it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch holds in reserve is free for this process.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    need("psutil", "measuring the free memory")
    import psutil  # type: ignore[import-untyped]

    free = int(psutil.virtual_memory().available)
    limit = _container_free_bytes()
    return free if limit is None else min(free, limit)


def _container_free_bytes(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the free bytes within this container's limit (control group version 2); None without one."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Cached pages of files can be dropped at once.
    return max(0, limit - used + int(stat.get("inactive_file", 0)))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
