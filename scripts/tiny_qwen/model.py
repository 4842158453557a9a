"""The model: its tokenizer and sizes, its start, and batched forward passes for training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from make_tiny_qwen3_vl import make_tokenizer
from safetensors.torch import load_file
from torch import Tensor
from transformers import AttentionInterface, GenerationConfig, Qwen3VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from arr_stream.vlm.qwen3_vl.cells import Cells, interpolation, patch_positions
from arr_stream.weights.catalogue import HUB_WEIGHTS, shipped_folder
from benchmarks.scenes.asking import texts
from benchmarks.scenes.stories import picture_story
from benchmarks.vlm.model import config_of, processor_of

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]

_TABLE_SIDE = 24
_VISION = {
    "depth": 5,
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_heads": 6,
    "deepstack_visual_indexes": [2],
    "num_position_embeddings": _TABLE_SIDE**2,
}
"""The first blocks of the tiny CLIP, which the tower starts from."""
_TEXT = {
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 64,
}
_COPY, _WORD_SCALE = 0.1, 0.1
"""How much of what is attended to is taken over at first, and how large words are."""
_CLIP_GRID_HW = (16, 28)
_LEAN = 0.25
LOOKING_LAYER, LOOKING_HEADS = 2, 2
"""The layer of the language model, and its first heads, that are taught where to look."""
_ROPE_THETA = 2000.0
"""The release has 5 million, for contexts of 256 thousand tokens: of ten frequencies two would tell places apart."""


def tokenizer_of_questions() -> Any:
    """A byte-level BPE in which every word of `asking.texts` is one token."""
    return make_tokenizer([*texts(), "system\n", "user\n", "assistant\n"])


def starting_model(tokenizer: Any, seed: int) -> Any:
    """A fresh model whose tower has learnt to see: it is that of the tiny CLIP, which knows what a cell shows.

    Without that, colours are read at once and shapes hardly at all. In the language model, products of query and key
    weights start near the identity, and those of value and output weights as well ("mimetic" start; Trockman and
    Kolter, 2023): tokens attend to those that are like them, and take over a little of what they are.
    """
    torch.manual_seed(seed)
    config = config_of(tokenizer, vision=_VISION, text=_TEXT, tie_word_embeddings=True, dtype="float32")
    config.text_config.rope_parameters["rope_theta"] = _ROPE_THETA
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        _start_seeing(model.model.visual, load_file(shipped_folder("tiny") / HUB_WEIGHTS), seed)
        for layer in model.model.language_model.layers:
            _start_matching(layer.self_attn)
        model.get_input_embeddings().weight.normal_(0, _WORD_SCALE)
    model.model.language_model.config._attn_implementation = "exact"
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        do_sample=False,
    )
    return model


def _start_seeing(visual: Any, clip: Mapping[str, Tensor], seed: int) -> None:
    """The tower with a CLIP's first layers, positions and blocks; its class token is left out.

    Its first norm has no place in a Qwen3-VL: it is taken for the same on every token, and goes into what comes before
    it. Half of the first layer's channels weigh the first frame of a pair more, the others the second, so that motion
    shows.
    """
    weights = {name: value.float() for name, value in clip.items()}
    first, places = weights["visual.conv1.weight"], weights["visual.positional_embedding"][1:]
    rows, columns = _CLIP_GRID_HW
    # CLIP's pixels have a deviation of a quarter, those of Qwen3-VL of a half.
    tokens = _patches(seed) @ (2 * first).flatten(1).T
    tokens = tokens + places[torch.arange(len(tokens)) % len(places)]
    scale = weights["visual.ln_pre.weight"] / tokens.std(dim=1).median()
    lean = torch.where(torch.arange(len(first)) % 2 == 0, 1 + _LEAN, 1 - _LEAN).view(-1, 1, 1, 1)
    scaled = first * scale.view(-1, 1, 1, 1)
    projection = visual.patch_embed.proj
    projection.weight.copy_(torch.stack([scaled * lean, scaled * (2 - lean)], dim=2))
    projection.bias.copy_(weights["visual.ln_pre.bias"] - scale * tokens.mean())
    table = (places * scale).T.reshape(1, -1, rows, columns)
    sides = (_TABLE_SIDE, _TABLE_SIDE)
    visual.pos_embed.weight.copy_(F.interpolate(table, sides, mode="bilinear", align_corners=True)[0].flatten(1).T)
    for number, block in enumerate(visual.blocks):
        own = f"visual.transformer.resblocks.{number}."
        for part, name in (
            (block.norm1, "ln_1."),
            (block.norm2, "ln_2."),
            (block.attn.qkv, "attn.in_proj_"),
            (block.attn.proj, "attn.out_proj."),
            (block.mlp.linear_fc1, "mlp.c_fc."),
            (block.mlp.linear_fc2, "mlp.c_proj."),
        ):
            part.weight.copy_(weights[f"{own}{name}weight"])
            part.bias.copy_(weights[f"{own}{name}bias"])


def _patches(seed: int) -> Tensor:
    """`[N, 3 * 16 * 16]`: patches of stories in [-1, 1]."""
    rng = np.random.default_rng([seed, 99])
    pictures = np.stack([picture_story(rng, (256, 192), (2, 6)).frames[0] for _ in range(20)])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
    return F.unfold(pixels, 16, stride=16).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """Output of the tower for cells.

    Args:
        features: `[K, D]`.
        deepstack: `[K, D]` for each level.
    """

    features: Tensor
    deepstack: tuple[Tensor, ...]


def look(model: Any, rows: Sequence[Tensor], blocks: Sequence[Cells]) -> Seen:
    """The tower over many blocks at once: as `Adapter.encode`, padded to the longest of them instead of one by one.

    Args:
        model: The model.
        rows: `[4 * K, 1536]` of `patch_rows` for each block.
        blocks: The K cells of each.

    Returns:
        Of all cells, block after block.
    """
    visual = model.model.visual
    lengths = [len(part) for part in rows]
    device = visual.pos_embed.weight.device
    there = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).to(device)
    places = [patch_positions(cells) for cells in blocks]
    read = [interpolation(p, cells.grid_hw, visual.num_grid_per_side) for p, cells in zip(places, blocks, strict=True)]
    indices, weights = (torch.cat(parts).to(device) for parts in zip(*read, strict=True))
    first = visual.patch_embed.proj
    # The convolution of the library is one product; as such it takes a tenth of the time to learn.
    flat = F.linear(torch.cat(list(rows)).to(device), first.weight.flatten(1), first.bias)
    flat = flat + (visual.pos_embed(indices) * weights[:, :, None]).sum(1).to(flat.dtype)
    cosine, sine = (_padded(part, there)[:, None] for part in visual.rotary_pos_emb(flat, torch.cat(places).to(device)))
    hidden = _padded(flat, there)
    mask = None if bool(there.all()) else there[:, None, None, :]
    deepstack = []
    for number, block in enumerate(visual.blocks):
        hidden = hidden + _attended(block.attn, block.norm1(hidden), cosine, sine, mask)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if number in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
            deepstack.append(merger(hidden[there]))
    return Seen(visual.merger(hidden[there]), tuple(deepstack))


def _padded(flat: Tensor, there: Tensor) -> Tensor:
    """`[B, L, ...]`, zeros where nothing is."""
    padded = flat.new_zeros(*there.shape, *flat.shape[1:])
    padded[there] = flat
    return padded


def _attended(attention: Any, hidden: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor | None) -> Tensor:
    batch, length, width = hidden.shape
    parts = attention.qkv(hidden).view(batch, length, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    query, key = (_turned(part, cosine, sine) for part in (parts[0], parts[1]))
    mixed = _exact_attention(query, key, parts[2], mask)
    projected: Tensor = attention.proj(mixed.transpose(1, 2).reshape(batch, length, width))
    return projected


def _exact_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Compute attention in float32 in any case: on a CPU that is faster than bfloat16, conversions included."""
    with torch.autocast(query.device.type, enabled=False):
        parts = (part.float() for part in (query, key, value))
        return F.scaled_dot_product_attention(
            *parts, attn_mask=mask, scale=scale, enable_gqa=len(key[0]) < len(query[0])
        )


def _text_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    if module.layer_idx == LOOKING_LAYER:
        module.looked = query, key
    return _exact_attention(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register("exact", _text_attention)


def _start_matching(attention: Any) -> None:
    """Tokens attend to those like them, and take over what they are."""
    width, each = attention.q_proj.in_features, attention.head_dim
    groups = attention.num_key_value_groups
    keys = [_orthonormal(each, width) for _ in range(len(attention.k_proj.weight) // each)]
    values = [_orthonormal(each, width) for _ in keys]
    queries = [key + 0.3 * torch.randn_like(key) / math.sqrt(width) for key in keys for _ in range(groups)]
    attention.q_proj.weight.copy_(torch.cat(queries))
    attention.k_proj.weight.copy_(torch.cat(keys))
    attention.v_proj.weight.copy_(torch.cat(values))
    out = torch.cat([value.T for value in values for _ in range(groups)], dim=1) * (_COPY / groups)
    attention.o_proj.weight.copy_(out)


def _orthonormal(rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(torch.randn(columns, rows)).Q.T


def _turned(part: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    low, high = part.chunk(2, dim=-1)
    return part * cosine + torch.cat([-high, low], dim=-1) * sine


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights in fp16, configuration, tokenizer, processors and chat template, as `save_pretrained` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    processor_of(tokenizer).save_pretrained(folder)
    state = {name: value.detach().half() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    model.config.dtype = "float16"
    model.save_pretrained(folder, state_dict=state, safe_serialization=True)
