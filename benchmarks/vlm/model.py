"""The model that is timed: one from disk, or one with random weights and realistic widths, made in memory.

Random weights take the same time as trained ones. What they answer means nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.vlm.qwen3_vl.adapter import use_transformers
from arr_stream.vlm.qwen3_vl.families import FAMILIES

if TYPE_CHECKING:
    from arr_stream.vlm.qwen3_vl.loading import LoadedModel

_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CONTEXT_TOKENS = 32_768
_MEAN_STD = (0.5, 0.5, 0.5)
_VISION_HEAD_DIM = 64
_TEXT_HEAD_DIM = 128
CHAT_TEMPLATE = """\
{%- macro shown(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type in ('image', 'image_url') or 'image' in part or 'image_url' in part -%}
        {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- elif part.type == 'video' or 'video' in part -%}
        {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
      {%- elif 'text' in part -%}
        {{- part.text -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\\n' + shown(message.content) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
_FLAT_TEMPLATE = CHAT_TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>")
"""A video is its placeholder alone: the processor puts every frame of it between markers of its own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model with random weights.

    Args:
        vision_layers, text_layers: Depth of the vision tower and of the language model.
        vision_width: A multiple of 64, the channels of a head.
        text_width: A multiple of 256.
        text_heads: Of 128 channels; None for as many as the width has room for.
        text_key_heads: Key-value heads; None for one to two heads.
        text_inner: Width between the two layers of the text's feed-forward part; None for three times its own.
        vocabulary: Tokens that each answer's token is chosen of; None for those of the tokenizer.
        vision_inner: Width between the two layers of the tower's feed-forward part; None for four times its own.
        linear_heads: Value heads of a Gated DeltaNet layer, which makes it a Qwen3.5; None for a Qwen3-VL.
        tied: Words have the same vectors as input and as output.
    """

    vision_layers: int = 12
    text_layers: int = 8
    vision_width: int = 512
    text_width: int = 1024
    text_heads: int | None = None
    text_key_heads: int | None = None
    text_inner: int | None = None
    vocabulary: int | None = None
    vision_inner: int | None = None
    linear_heads: int | None = None
    tied: bool = False

    @property
    def family(self) -> str:
        """Return its `model_type`."""
        return "qwen3_vl" if self.linear_heads is None else "qwen3_5"

    def __post_init__(self) -> None:
        if self.vision_layers < 1 or self.text_layers < 1:
            raise InvalidSetting(
                f"--layers {self.vision_layers},{self.text_layers}: allowed are 1 and more", remedy="such as 12,8"
            )
        if self.text_layers < len(self.deepstack_after):
            raise InvalidSetting(
                f"--layers {self.vision_layers},{self.text_layers}: the vision tower feeds "
                f"{len(self.deepstack_after)} layers of text",
                remedy="give the language model at least as many",
            )
        if min(self.vision_width, self.text_width) < 1 or self.vision_width % 64 or self.text_width % 256:
            raise InvalidSetting(
                f"--width {self.vision_width},{self.text_width}: allowed are multiples of 64 and of 256",
                remedy="such as 512,1024",
            )

    @property
    def deepstack_after(self) -> tuple[int, ...]:
        """Vision layers whose output enters the language model's first layers: three, or fewer in shallow towers."""
        return tuple(sorted({max(0, self.vision_layers * quarter // 4 - 1) for quarter in (1, 2, 3)}))

    def __str__(self) -> str:
        return (
            f"random weights: vision {self.vision_layers} layers x {self.vision_width}, "
            f"text {self.text_layers} layers x {self.text_width}"
        )


_QWEN3_5: dict[str, Any] = {"vocabulary": 248_320, "vision_inner": 4096}
RELEASED = {
    "4B": Shape(24, 36, 1024, 2560, text_heads=32, text_key_heads=8, text_inner=9728, vocabulary=151_936),
    "Qwen3.5-0.8B": Shape(
        12, 24, 768, 1024, 8, 2, 3584, linear_heads=16, tied=True, **_QWEN3_5 | {"vision_inner": 3072}
    ),
    "Qwen3.5-2B": Shape(24, 24, 1024, 2048, 8, 2, 6144, linear_heads=16, tied=True, **_QWEN3_5),
    "Qwen3.5-4B": Shape(24, 32, 1024, 2560, 16, 4, 9216, linear_heads=32, tied=True, **_QWEN3_5),
    "Qwen3.5-9B": Shape(27, 32, 1152, 4096, 16, 4, 12_288, linear_heads=32, **_QWEN3_5 | {"vision_inner": 4304}),
}
"""Sizes of released models; `4B` is Qwen3-VL-4B-Instruct.

Text dimensions of Qwen3.5-0.8B, 4B and 9B agree with published configurations; those of 2B and of the towers were not
checked against their files.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """A model and the processor that it is used with where nobody leaves anything out.

    Args:
        name: For tables.
        loaded: As the viewer takes it.
        processor: transformers' own, with picture and video processor and chat template.
    """

    name: str
    loaded: LoadedModel
    processor: Any

    @property
    def cache_bytes_per_token(self) -> int:
        text = self.loaded.model.config.get_text_config()
        size = torch.empty(0, dtype=self.loaded.dtype).element_size()
        layers = list(getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers)
        return int(2 * layers.count("full_attention") * text.num_key_value_heads * text.head_dim * size)

    @contextmanager
    def clock(self, into: list[float]) -> Iterator[None]:
        """Adds the milliseconds that its context takes, work that a GPU was given included."""
        self._settle()
        started = time.perf_counter()
        yield
        self._settle()
        into.append((time.perf_counter() - started) * 1e3)

    def _settle(self) -> None:
        if self.loaded.device.type == "cuda":
            torch.cuda.synchronize(self.loaded.device)


def timed_model(settings: Settings, shape: Shape) -> Timed:
    """The model of `vlm.model`, or one of `shape` with random weights where none is named.

    Raises:
        ArrStreamError: The model cannot be had; see `qwen3_vl.loading.load`.
    """
    use_transformers()
    return _from_disk(settings) if settings.vlm.model else random_model(shape, settings)


def _from_disk(settings: Settings) -> Timed:
    from transformers import AutoProcessor

    from arr_stream.vlm.qwen3_vl.loading import load, locate

    loaded = load(settings.vlm, settings.models)
    processor = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        locate(settings.vlm.model, settings.models), local_files_only=True, trust_remote_code=False
    )
    return Timed(loaded.name, loaded, processor)


def random_model(shape: Shape, settings: Settings, seed: int = 0) -> Timed:
    """A model that was never trained; its answers never end by themselves.

    Its tokenizer takes every byte for a token, which costs both sides alike.
    """
    from transformers import GenerationConfig

    from arr_stream.vlm.qwen3_vl.cells import Normalisation
    from arr_stream.vlm.qwen3_vl.loading import LoadedModel, pick_vlm_device

    device = pick_vlm_device(settings.vlm.device)
    dtype = torch.float32 if settings.vlm.dtype == "auto" else getattr(torch, settings.vlm.dtype)
    tokenizer = bytes_tokenizer()
    torch.manual_seed(seed)
    with device:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        model: Any = FAMILIES[shape.family].class_of("ForConditionalGeneration")(shape_config(shape, tokenizer))
        torch.set_default_dtype(before)
    with torch.no_grad():
        # Of the scores of all tokens some are above 0, so a token with a row of zeros is never the likeliest.
        for token in (tokenizer.eos_token_id, tokenizer.pad_token_id):
            model.lm_head.weight[token] = 0
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    model.requires_grad_(False)
    model.eval().to(device=device, dtype=dtype)
    loaded = LoadedModel(str(shape), model, tokenizer, Normalisation(_MEAN_STD, _MEAN_STD), device, dtype)
    return Timed(str(shape), loaded, processor_of(tokenizer, _FLAT_TEMPLATE))


def bytes_tokenizer() -> Any:
    """Return a tokenizer that takes every byte for a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    markers = [part for family in FAMILIES.values() for part in family.answer_start if not part.isspace()]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (*_SPECIAL_TOKENS, *markers)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT_TOKENS,
    )


def processor_of(tokenizer: Any, chat_template: str = CHAT_TEMPLATE) -> Any:
    """Pictures and videos as the true model takes them, with a chat template of the same layout."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    shared: dict[str, Any] = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": list(_MEAN_STD),
        "image_std": list(_MEAN_STD),
    }
    # Limits on pixels, for a video of all frames together, as released with the true models.
    image = Qwen2VLImageProcessor(size={"shortest_edge": 65_536, "longest_edge": 16_777_216}, **shared)
    video_size = {"shortest_edge": 4_096, "longest_edge": 25_165_824}
    video = Qwen3VLVideoProcessor(size=video_size, fps=2, min_frames=4, max_frames=768, **shared)
    return Qwen3VLProcessor(  # type: ignore[no-untyped-call]
        image_processor=image, tokenizer=tokenizer, video_processor=video, chat_template=chat_template
    )


def shape_config(shape: Shape, tokenizer: Any) -> Any:
    """Return transformers' configuration of a model of these sizes."""
    vision: dict[str, Any] = {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_width,
        "intermediate_size": shape.vision_inner or 4 * shape.vision_width,
        "num_heads": shape.vision_width // _VISION_HEAD_DIM,
    }
    text: dict[str, Any] = {
        "hidden_size": shape.text_width,
        "intermediate_size": shape.text_inner or 3 * shape.text_width,
        "num_hidden_layers": shape.text_layers,
        "num_attention_heads": shape.text_heads or shape.text_width // _TEXT_HEAD_DIM,
        "head_dim": _TEXT_HEAD_DIM,
    }
    if shape.linear_heads is None:
        vision["deepstack_visual_indexes"] = list(shape.deepstack_after)
    else:
        text |= {"head_dim": 2 * _TEXT_HEAD_DIM, "partial_rotary_factor": 0.25}
        text |= {"linear_num_key_heads": 16, "linear_num_value_heads": shape.linear_heads}
    given = {"num_key_value_heads": shape.text_key_heads, "vocab_size": shape.vocabulary}
    text |= {name: value for name, value in given.items() if value is not None}
    return config_of(tokenizer, family=shape.family, vision=vision, text=text, tie_word_embeddings=shape.tied)


def config_of(
    tokenizer: Any, *, vision: Mapping[str, Any], text: Mapping[str, Any], family: str = "qwen3_vl", **options: Any
) -> Any:
    """transformers' configuration of a family with these sizes; of everything else, what all of its models share."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL_TOKENS}
    # Of the frequencies of a head, 24 of 64 turn with time, 20 with rows and 20 with columns.
    share = text.get("partial_rotary_factor", 1.0)
    frequencies = int(text["head_dim"] * share) // 2
    turning = frequencies * 5 // 16
    rope = {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [frequencies - 2 * turning, turning, turning],
        "mrope_interleaved": True,
        **({"partial_rotary_factor": share} if share < 1 else {}),
    }
    return FAMILIES[family].class_of("Config")(
        text_config={
            "vocab_size": len(tokenizer),
            "num_key_value_heads": text["num_attention_heads"] // 2,
            "max_position_embeddings": CONTEXT_TOKENS,
            "rope_parameters": rope,
            "tie_word_embeddings": options["tie_word_embeddings"],
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            **text,
        },
        vision_config={
            "out_hidden_size": text["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 2304,
            **vision,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        **options,
    )
