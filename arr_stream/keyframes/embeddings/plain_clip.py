"""The package's own encoder, without open_clip, whose import takes ten times as long as an answer.

Its modules are CLIP's (Radford et al., "Learning transferable visual models from natural language supervision", ICML
2021) under open_clip's names, so that `clip` supports both alike, and open_clip can read the weights. It supports only
the shipped configuration: plain blocks, a class token, causal texts.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BytePairs
from torch import Tensor, nn

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
_CURLY = {"‘": "'", "’": "'", "“": '"', "”": '"'}


class Block(nn.Module):
    """Residual block of attention and MLP, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ls_1 = nn.Identity()
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Map `[B, T, C]` to the same shape."""
        seen = self.ln_1(tokens)
        tokens = tokens + self.attn(seen, seen, seen, need_weights=False, attn_mask=attn_mask)[0]
        out: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return out


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        for block in self.resblocks:
            tokens = block(tokens, attn_mask)
        return tokens


class VisionTower(nn.Module):
    """Parts of the vision tower, which `clip.dense_features` combines."""

    def __init__(self, dim: int, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, patch = config["width"], config["patch_size"]
        self.image_size = tuple(config["image_size"])
        self.patch_size = patch, patch
        self.grid_size = self.image_size[0] // patch, self.image_size[1] // patch
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty(1 + self.grid_size[0] * self.grid_size[1], width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = Transformer(width, config["layers"], width // config["head_width"])
        self.proj = nn.Parameter(torch.empty(width, dim))


class PlainClip(nn.Module):
    """Both towers; `clip.ClipTextEncoder` runs the one for texts.

    Args:
        config: `model_cfg` of the shipped configuration.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        dim, text = config["embed_dim"], config["text_cfg"]
        width, self.context_length = text["width"], text["context_length"]
        self.visual: nn.Module = VisionTower(dim, config["vision_cfg"])
        self.transformer = Transformer(width, text["layers"], text["heads"])
        self.token_embedding = nn.Embedding(text["vocab_size"], width)
        self.positional_embedding = nn.Parameter(torch.empty(self.context_length, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, dim))
        self.logit_scale, self.logit_bias = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(()))
        later = torch.full((self.context_length, self.context_length), -torch.inf).triu(1)
        self.register_buffer("attn_mask", later, persistent=False)


def byte_pairs(file: Path) -> BytePairs:
    """Return CLIP's tokenizer, without start and end, from the file of its merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_order)
    merges = [tuple(line.split()) for line in gzip.decompress(file.read_bytes()).decode().split("\n")[1:] if line]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    known = {word: number for number, word in enumerate(words)}
    tokenizer = BytePairs(models.BPE(known, [(a, b) for a, b in merges], end_of_word_suffix="</w>"))
    straight = [normalizers.Replace(curly, plain) for curly, plain in _CURLY.items()]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *straight, normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _byte_order(letter: str) -> tuple[bool, int]:
    """Return bytes in the order of CLIP's numbers: printable characters first."""
    return ord(letter) > 255, ord(letter)
