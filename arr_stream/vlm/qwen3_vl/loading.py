"""A Qwen3-VL from disk into memory: looked at first, then loaded, then looked at again.

Before: the version of transformers, what the folder holds, and whether it fits into memory. After: that every tensor
came from the files (transformers fills what is missing with random numbers and goes on), and that all numbers are
finite. No code of the checkpoint is ever run, and nothing is asked of the network here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from arr_stream.config import ModelSettings, VlmSettings
from arr_stream.errors import ModelTooLarge, ModelUnsupported, WeightsInvalid
from arr_stream.vlm.qwen3_vl.checkpoint import Checkpoint, first_line, read_checkpoint
from arr_stream.vlm.qwen3_vl.hub import locate
from arr_stream.vlm.qwen3_vl.library import SUPPORTED, need_package, use_transformers
from arr_stream.vlm.qwen3_vl.memory_need import (
    check_memory,
    free_bytes,
    is_quantized,
    need_of,
    pick_dtype,
    pick_vlm_device,
)

__all__ = ["SUPPORTED", "Loaded", "load"]

_SKIP = ["model.visual", "lm_head"]
"""Modules that quantisation leaves as they are: small, and their errors would be in every token."""
_MARKERS = {
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
    "<|image_pad|>": "image_token_id",
    "<|video_pad|>": "video_token_id",
}
_TURNS = ("<|im_start|>", "<|im_end|>")
_OTHER_COPY = "take config.json, weights and tokenizer.json from one and the same model"


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model that is ready to run.

    Args:
        name: What the user called it: a hub name or a folder.
        model: transformers' Qwen3VLForConditionalGeneration, in eval mode, without gradients, on `device`.
        tokenizer: Its fast tokenizer.
        image_mean, image_std: Of each channel, for pixels in [0, 1].
        device: Where it runs.
        dtype: Type of its numbers; with quantisation, of those that are not quantised, and of the cache.
    """

    name: str
    model: Any
    tokenizer: Any
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    device: torch.device
    dtype: torch.dtype


def load(settings: VlmSettings, models: ModelSettings) -> Loaded:
    """Load the model that `vlm.model` names.

    Args:
        settings: Which model, where and in which type it runs, and the context that must fit into memory with it.
        models: Where hub names are looked for, and whether they may be fetched.

    Raises:
        InvalidSetting: `vlm.model` is empty.
        BackendUnavailable: A package, the folder or the weights are missing, or CUDA is.
        FetchFailed: It was to be fetched, and could not be.
        ModelUnsupported: Not a model, another architecture, another tokenizer, or an unsupported transformers.
        WeightsInvalid: A file is damaged or missing, tensors are missing or of other shapes, or not finite.
        ModelTooLarge: It needs more memory than there is; said before it is loaded.
    """
    use_transformers()
    device = pick_vlm_device(settings.device)
    _need_packages(settings.quantize, device)
    checkpoint = read_checkpoint(locate(settings.model, models), settings.model)
    dtype = pick_dtype(checkpoint, settings.dtype, device)
    check_memory(checkpoint.name, need_of(checkpoint, dtype, settings), free_bytes(device))
    tokenizer = _tokenizer(checkpoint)
    model = _model(checkpoint, settings.quantize, device, getattr(torch, dtype))
    return Loaded(
        checkpoint.name,
        model,
        tokenizer,
        checkpoint.image_mean,
        checkpoint.image_std,
        device,
        getattr(torch, dtype),
    )


def _need_packages(quantize: str, device: torch.device) -> None:
    if quantize != "none":
        need_package("bitsandbytes", f"vlm.quantize={quantize}", remedy="pip install bitsandbytes")
    if quantize != "none" or device.type != "cpu":
        need_package("accelerate", "loading quantised" if quantize != "none" else "loading to a GPU")


def _tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer as `tokenizer.json` has it, of no class that a file asks for."""
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
        raise ModelUnsupported(f"{path}: knows no {missing[0]}", remedy=_OTHER_COPY)
    rows = checkpoint.config.text_config.vocab_size
    if max(vocabulary.values()) >= rows:
        raise ModelUnsupported(
            f"{path}: token ids up to {max(vocabulary.values())}, and the model knows {rows}", remedy=_OTHER_COPY
        )
    return tokenizer


def _model(checkpoint: Checkpoint, quantize: str, device: torch.device, dtype: torch.dtype) -> Any:
    from transformers import Qwen3VLForConditionalGeneration

    options: dict[str, Any] = {}
    if quantize != "none":
        options["quantization_config"] = _quantization(quantize, dtype)
    if quantize != "none" or device.type != "cpu":
        options["device_map"] = {"": device}
    # Typed as giving a model alone, without what it has to say.
    from_pretrained: Any = Qwen3VLForConditionalGeneration.from_pretrained
    try:
        model, told = from_pretrained(
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
            remedy="choose a smaller model, --dtype bfloat16 or --quantize int8, or close what else runs",
        ) from exc
    except Exception as exc:  # transformers passes on the errors of every layer below it.
        raise WeightsInvalid(
            f"{checkpoint.name}: cannot be loaded: {first_line(exc)}", remedy="copy or fetch the model again"
        ) from exc
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        if told[kind]:
            first = sorted(str(key) for key in told[kind])[0][:120]
            raise WeightsInvalid(
                f"{checkpoint.name}: transformers tells of {len(told[kind])} {kind.replace('_', ' ')}, such as {first}",
                remedy=_OTHER_COPY,
            )
    model.requires_grad_(False)
    model.eval()
    if quantize != "none":
        _check_saved_finite(checkpoint)
    _check_finite(checkpoint, model)
    return model


def _quantization(quantize: str, dtype: torch.dtype) -> Any:
    import transformers

    make_config: Any = transformers.BitsAndBytesConfig

    # It says at every layer that numbers are rounded on the way, which is what was asked for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if quantize == "int8":
        return make_config(load_in_8bit=True, llm_int8_skip_modules=_SKIP)
    return make_config(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=_SKIP
    )


def _check_finite(checkpoint: Checkpoint, model: Any) -> None:
    for key, parameter in model.named_parameters():
        if parameter.is_floating_point() and not _is_finite(parameter):
            raise _not_finite(f"{checkpoint.name}: {key}, in {parameter.dtype}".replace("torch.", ""))


def _check_saved_finite(checkpoint: Checkpoint) -> None:
    """Quantisation hides what is not finite, so those tensors are looked at as they were saved."""
    from safetensors import safe_open

    for path in checkpoint.files:
        with safe_open(path, framework="pt") as file:
            for key, entry in checkpoint.tensors.items():
                if entry.file == path and is_quantized(key, entry) and not _is_finite(file.get_tensor(key)):
                    raise _not_finite(f"{path}: {key}")


def _is_finite(values: torch.Tensor) -> bool:
    # NaN and infinity survive a sum, which needs no second copy; only a sum that fails is looked at value by value.
    total = values.detach().sum(dtype=torch.float32)
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values).all())


def _not_finite(what: str) -> WeightsInvalid:
    return WeightsInvalid(
        f"{what}: holds NaN or infinite values", remedy="use another checkpoint, or --dtype bfloat16 or float32"
    )
