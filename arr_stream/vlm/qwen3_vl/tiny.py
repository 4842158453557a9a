"""The tiny Qwen3-VL that ships with arr-stream: it needs no download and knows only drawn shapes and signs.

Its network is a Qwen3-VL (Bai et al., 2025) in plain torch, since importing transformers takes longer than this model
takes to answer. The parts have the names of transformers, so that the same weights fit and `Adapter` takes either. It
runs one sequence at a time, in evaluation only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_stream.config import VlmSettings
from arr_stream.errors import InvalidSetting
from arr_stream.vlm import TINY_LIMITS
from arr_stream.vlm.qwen3_vl.cells import Normalisation
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, pick_vlm_device, quantisation
from arr_stream.weights import load_state_dict
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines."""
_VISION_THETA = 10_000.0
_NORM_EPSILON = 1e-6
_WORD = re.compile(r"[^\W\d_]+")


def load_tiny(settings: VlmSettings) -> LoadedModel:
    """Load the tiny model; `vlm.device` and `vlm.dtype` are read."""
    if quantisation(settings):
        raise InvalidSetting(f"vlm.dtype={settings.dtype} with the tiny model, which is 12 MB", remedy="leave it out")
    folder, device = shipped_folder(TINY_QWEN), pick_vlm_device(settings.device)
    config = _read(folder / "config.json")
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    network = Network(config)
    state = load_state_dict(folder / "model.safetensors")
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.language_model.embed_tokens.weight"]
    network.load_state_dict(state)
    network.to(device, dtype).requires_grad_(False).eval()
    tokenizer = Tokenizer(folder / "tokenizer.json")
    statistics = _read(folder / "processor_config.json").image_processor
    return LoadedModel(
        settings.model,
        network,
        tokenizer,
        Normalisation(tuple(statistics.image_mean), tuple(statistics.image_std)),
        device,
        dtype,
        limits=tokenizer.limits,
    )


class Network(nn.Module):
    """Whole model; `config` has the entries of `config.json` as attributes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        text = config.text_config
        self.model = _Model(config)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.get_input_embeddings().weight

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.language_model.embed_tokens

    def new_cache(self) -> Cache:
        return Cache(len(self.model.language_model.layers))


class Cache:
    """Keys and values of each layer, `[1, heads, tokens, d]`; None before the first token."""

    def __init__(self, layers: int) -> None:
        self.layers = [SimpleNamespace(keys=None, values=None) for _ in range(layers)]

    def update(self, keys: Tensor, values: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Append to a layer; return all of its keys and values."""
        layer = self.layers[number]
        if layer.keys is not None:
            keys, values = torch.cat([layer.keys, keys], dim=2), torch.cat([layer.values, values], dim=2)
        layer.keys, layer.values = keys, values
        return keys, values

    def get_seq_length(self) -> int:
        return 0 if self.layers[0].keys is None else int(self.layers[0].keys.shape[2])


class _Model(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.visual = _Tower(config.vision_config)
        self.language_model = _LanguageModel(config.text_config)


class _Tower(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.patch_embed = _PatchEmbedding(config)
        self.pos_embed = nn.Embedding(config.num_position_embeddings, width)
        self.num_grid_per_side = round(config.num_position_embeddings**0.5)
        self.deepstack_visual_indexes = list(config.deepstack_visual_indexes)
        self.rotary_pos_emb = _PlaceRotation(width // config.num_heads)
        self.blocks = nn.ModuleList(_TowerBlock(config) for _ in range(config.depth))
        self.merger = _Merger(config, norm_after=False)
        self.deepstack_merger_list = nn.ModuleList(
            _Merger(config, norm_after=True) for _ in config.deepstack_visual_indexes
        )


class _PatchEmbedding(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(config.in_channels, config.hidden_size, kernel, stride=kernel)

    def forward(self, rows: Tensor) -> Tensor:
        # Each patch is one row, so the convolution is one matrix product.
        return F.linear(rows.to(self.proj.weight.dtype), self.proj.weight.flatten(1), self.proj.bias)


class _PlaceRotation(nn.Module):
    """Rotary embedding of patches: half of the frequencies for the row, half for the column."""

    inverse: Tensor

    def __init__(self, head: int) -> None:
        super().__init__()
        inverse = _VISION_THETA ** -(torch.arange(0, head // 2, 2) / (head // 2))
        self.register_buffer("inverse", inverse, persistent=False)

    def forward(self, _hidden: Tensor, places: Tensor) -> Rotation:
        """Return cosines and sines of `[N, 2]` places, `[N, head]` each."""
        angles = (places[..., None].float() * self.inverse).flatten(1)
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()


class _TowerBlock(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1 = nn.LayerNorm(width, eps=_NORM_EPSILON)
        self.norm2 = nn.LayerNorm(width, eps=_NORM_EPSILON)
        self.attn = _TowerAttention(width, config.num_heads)
        self.mlp = _TowerPerceptron(width, config.intermediate_size)

    def forward(self, hidden: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, position_embeddings: Rotation) -> Tensor:
        """Run the block; patches attend to those of their own segment, with borders `cu_seqlens`."""
        mixed: Tensor = self.attn(self.norm1(hidden), cu_seqlens.diff().tolist(), position_embeddings)
        hidden = hidden + mixed
        made: Tensor = self.mlp(self.norm2(hidden))
        return hidden + made


class _TowerPerceptron(nn.Module):
    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(width, wide)
        self.linear_fc2 = nn.Linear(wide, width)

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(hidden), approximate="tanh"))
        return made


class _TowerAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, hidden: Tensor, segments: list[int], rotation: Rotation) -> Tensor:
        parts = self.qkv(hidden).view(len(hidden), 3, self.heads, -1).permute(1, 2, 0, 3)
        query, key = (_turned(part.float(), rotation).to(part.dtype) for part in (parts[0], parts[1]))
        split = (part.split(segments, dim=1) for part in (query, key, parts[2]))
        mixed = [F.scaled_dot_product_attention(*each) for each in zip(*split, strict=True)]
        made: Tensor = self.proj(torch.cat(mixed, dim=1).transpose(0, 1).flatten(1))
        return made


class _Merger(nn.Module):
    def __init__(self, config: Any, *, norm_after: bool) -> None:
        super().__init__()
        self._wide = config.hidden_size * config.spatial_merge_size**2
        self._norm_after = norm_after
        self.norm = nn.LayerNorm(self._wide if norm_after else config.hidden_size, eps=_NORM_EPSILON)
        self.linear_fc1 = nn.Linear(self._wide, self._wide)
        self.linear_fc2 = nn.Linear(self._wide, config.out_hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        cells = hidden.view(-1, self._wide)
        cells = self.norm(cells) if self._norm_after else self.norm(hidden).view(-1, self._wide)
        made: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(cells)))
        return made


class _LanguageModel(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_emb = _TokenRotation(config)
        self.layers = nn.ModuleList(_Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        *,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache,
        use_cache: bool,
        visual_pos_masks: Tensor | None,
        deepstack_visual_embeds: list[Tensor] | None,
    ) -> SimpleNamespace:
        """Run the layers over `inputs_embeds` `[1, N, D]`, `position_ids` `[3, 1, N]`; see `Adapter.extend`."""
        hidden = inputs_embeds
        rotation = self.rotary_emb(hidden, position_ids)
        if attention_mask is None:
            known, added = past_key_values.get_seq_length(), hidden.shape[1]
            attention_mask = torch.ones(added, known + added, dtype=torch.bool, device=hidden.device).tril(known)
        levels = deepstack_visual_embeds or []
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, rotation, attention_mask, past_key_values)
            if number < len(levels):
                hidden = hidden.clone()
                hidden[visual_pos_masks] += levels[number].to(hidden.dtype)
        return SimpleNamespace(last_hidden_state=self.norm(hidden))


class _TokenRotation(nn.Module):
    """Rotary embedding of tokens: frequencies for time, row and column in turn (interleaved M-RoPE)."""

    inverse: Tensor
    axis: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        rope, half = config.rope_parameters, config.head_dim // 2
        axis = torch.zeros(half, dtype=torch.long)
        for number in (1, 2):
            axis[number : 3 * rope.mrope_section[number] : 3] = number
        inverse = rope.rope_theta ** -(torch.arange(half) / half)
        self.register_buffer("inverse", inverse, persistent=False)
        self.register_buffer("axis", axis, persistent=False)

    def forward(self, hidden: Tensor, positions: Tensor) -> Rotation:
        """Return cosines and sines, `[1, N, head]` each."""
        angles = positions.float()[self.axis].permute(1, 2, 0) * self.inverse
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(hidden.dtype), both.sin().to(hidden.dtype)


class _Layer(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        width, wide = config.hidden_size, config.intermediate_size
        self.input_layernorm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.self_attn = _Attention(config, number)
        self.mlp = _Perceptron(width, wide)

    def forward(self, hidden: Tensor, rotation: Rotation, mask: Tensor, cache: Cache) -> Tensor:
        normed = self.input_layernorm(hidden)
        mixed: Tensor = self.self_attn(hidden_states=normed, position_embeddings=rotation, mask=mask, cache=cache)
        hidden = hidden + mixed
        made: Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + made


class _Perceptron(nn.Module):
    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, wide, bias=False)
        self.up_proj = nn.Linear(width, wide, bias=False)
        self.down_proj = nn.Linear(wide, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return made


class _Attention(nn.Module):
    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self._number = number
        self.num_key_value_groups = heads // groups
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, groups * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, groups * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, *, hidden_states: Tensor, position_embeddings: Rotation, mask: Tensor, cache: Cache) -> Tensor:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        rotation = position_embeddings[0].unsqueeze(1), position_embeddings[1].unsqueeze(1)
        keys, values = cache.update(_turned(key, rotation), value, self._number)
        keys, values = (part.repeat_interleave(self.num_key_value_groups, dim=1) for part in (keys, values))
        mixed = F.scaled_dot_product_attention(
            _turned(query, rotation), keys, values, attn_mask=mask, scale=self.scaling
        )
        made: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return made


def _turned(part: Tensor, rotation: Rotation) -> Tensor:
    cosine, sine = rotation
    low, high = part.chunk(2, dim=-1)
    return part * cosine + torch.cat([-high, low], dim=-1) * sine


class Tokenizer:
    """Subset of transformers' fast tokenizer that this package uses."""

    unk_token_id = None

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Backend

        self.backend_tokenizer = Backend.from_file(str(path))
        # User text is plain letters, even if it looks like a marker.
        self.backend_tokenizer.encode_special_tokens = True
        self.eos_token_id = self.convert_tokens_to_ids("<|im_end|>")

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=False).ids}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, name: str) -> int | None:
        return self.backend_tokenizer.token_to_id(name)

    def limits(self, question: str) -> str:
        """Describe the model's limits, and name up to three words of the question that it was not taught."""
        # Unknown words take several tokens.
        unknown = [word for word in dict.fromkeys(_WORD.findall(question)) if not self._knows(word)]
        return TINY_LIMITS + (f"; it was not taught {', '.join(map(repr, unknown[:3]))}" if unknown else "")

    def _knows(self, word: str) -> bool:
        forms = (f"{before}{form}" for form in (word, word.lower()) for before in (" ", ""))
        return any(len(self(form)["input_ids"]) == 1 for form in forms)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), object_hook=lambda found: SimpleNamespace(**found))
