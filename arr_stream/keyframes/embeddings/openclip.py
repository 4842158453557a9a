"""CLIP models from files on disk, without downloads and without unpickling.

| `clip.model` | architecture | weights |
|---|---|---|
| `tiny` | `PlainClip`, which runs without open_clip | inside the package |
| `NAME:PRETRAINED`, such as `ViT-B-16:openai` | open_clip's | from the models folder |
| a folder in the form of open_clip's `local-dir:` | its `open_clip_config.json` | its weights file |

open_clip's own factory downloads missing files, so only its architectures, its loader and its tokeniser are used.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BytePairs
from tokenizers.models import BPE
from torch import Tensor, nn

from arr_stream import weights
from arr_stream.config import TINY, ClipSettings, ModelSettings
from arr_stream.errors import BackendUnavailable, InvalidSetting, WeightsInvalid
from arr_stream.extras import need
from arr_stream.files import expanded
from arr_stream.weights.catalogue import HUB_WEIGHTS, weights_in
from arr_stream.weights.loading import first_line

CONFIG_NAME = "open_clip_config.json"
VOCABULARY_NAME = "bpe.txt.gz"
CAPTIONS = ("{}.", "a photo of {}.", "a picture showing {}.", "a frame of a video with {}.")
"""Phrases whose mean stands for a text (Radford et al., 2021); the tiny encoder takes texts as they are."""

_OPENAI = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}

Tokenizer = Callable[[str], list[int]]
"""Function of a text that returns all its tokens, start and end included."""

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
_CURLY = {"‘": "'", "’": "'", "“": '"', "”": '"'}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedClip:
    """Dual encoder in evaluation mode on the CPU, in float32.

    Args:
        model: Its `visual` is the vision tower.
        file: The weights.
        space: Names model and weights; features of one space can be compared.
        mean, std: `[1, 3, 1, 1]`, normalisation of pixels in [0, 1].
        templates: Phrases that a text is inserted into.
    """

    model: Any
    file: Path
    space: str
    mean: Tensor
    std: Tensor
    templates: tuple[str, ...] = CAPTIONS


def load_clip(settings: ClipSettings, models: ModelSettings) -> LoadedClip:
    """Load the model that `clip.model` names.

    Raises:
        BackendUnavailable: open_clip or the weights are missing.
        InvalidSetting: No such weights; names the nearest. A folder without a model, or an unsupported architecture.
        WeightsInvalid: Damaged, of another model, or a pickle with code in it.
    """
    folder = expanded(settings.model)
    if settings.model == TINY:
        file = weights.find(TINY, models)
        config, mean, std = _read_config(file.parent)
        loaded = LoadedClip(PlainClip(config), file, TINY, mean, std, ("{}",))
        loaded.model.load_state_dict(weights.load_state_dict(file))
    else:
        need("open_clip", f"clip.model={settings.model}")
        loaded = _built_from(folder) if settings.model and folder.is_dir() else _built_known(settings.model, models)
        weights.load_state_dict(loaded.file)  # refuses files that open_clip would load, such as those with NaN
        try:
            from open_clip import load_checkpoint

            load_checkpoint(loaded.model, str(loaded.file))
        except Exception as exc:  # Damaged files and those of other models fail in any way.
            raise WeightsInvalid(
                f"{loaded.file}: not weights of {loaded.space}: {first_line(exc)}",
                remedy="fetch or copy them again, with the configuration that they were trained with",
            ) from exc
    loaded.model.eval().requires_grad_(False)
    return loaded


def _built_known(name: str, models: ModelSettings) -> LoadedClip:
    file = weights.find(name, models)
    from open_clip import get_model_config, get_pretrained_cfg

    architecture, _, tag = name.partition(":")
    config, known = get_model_config(architecture), get_pretrained_cfg(architecture, tag)
    if config is None:
        raise InvalidSetting(f"clip.model={name!r} is no CLIP model", remedy="see `arr-stream models list`")
    # Weights trained with QuickGELU give worse results without it, and no error.
    config["quick_gelu"] = known.get("quick_gelu", config.get("quick_gelu", False))
    return LoadedClip(_built(config, name), file, name, *_statistics(known))


def _built_from(folder: Path) -> LoadedClip:
    file = weights_in(folder, HUB_WEIGHTS)
    if file is None:
        raise BackendUnavailable(
            f"clip.model: {folder} holds no weights file, or several", remedy=f"name one of them {HUB_WEIGHTS}"
        )
    config, mean, std = _read_config(folder)
    space = folder.resolve().name
    return LoadedClip(_built(config, space), file, space, mean, std)


def _read_config(folder: Path) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Return the model's configuration, and the mean and deviation of its pixels, from open_clip's file in a folder."""
    path = folder / CONFIG_NAME
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        return dict(written["model_cfg"]), *_statistics(written.get("preprocess_cfg", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as exc:
        raise InvalidSetting(
            f"clip.model: {path} is not a configuration of open_clip: {first_line(exc)}",
            remedy="it needs model_cfg and may have preprocess_cfg",
        ) from exc


def _statistics(entry: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the mean and deviation of pixels in a preprocessing configuration; OpenAI's by default."""
    mean, std = (torch.tensor(entry.get(name) or default).view(1, 3, 1, 1) for name, default in _OPENAI.items())
    return mean, std


def _built(config: dict[str, Any], space: str) -> Any:
    """Return the architecture with random weights; only those are built that `clip` can use, and none from the hub."""
    import open_clip
    from open_clip.transformer import ResidualAttentionBlock, VisionTransformer

    try:
        parts = {*config, *config["vision_cfg"], *config["text_cfg"]}
        if foreign := parts & {"multimodal_cfg", "timm_model_name", "hf_model_name", "hf_tokenizer_name"}:
            raise ValueError(f"no support for {', '.join(sorted(foreign))}")
        model = open_clip.CLIP(**config)
        visual, projection = model.visual, model.text_projection
        plain = isinstance(visual, VisionTransformer) and visual.attn_pool is None and model.attn_mask is not None
        plain = plain and model.text_pool_type == "argmax" and isinstance(projection, nn.Parameter)
        if not plain or any(type(block) is not ResidualAttentionBlock for block in visual.transformer.resblocks):
            raise ValueError("no vision transformer of OpenAI's architecture")
    except Exception as exc:  # It is built from untrusted numbers, so it may fail in any way.
        raise InvalidSetting(
            f"clip.model={space}: it cannot be built: {first_line(exc)}", remedy="use a ViT, such as ViT-B-16:openai"
        ) from exc
    return model


def make_tokenizer(loaded: LoadedClip) -> Tokenizer:
    """Return the tokeniser that belongs to the model, from files on disk alone.

    Raises:
        WeightsInvalid: It is damaged, or has more tokens than the model.
    """
    vocabulary = loaded.file.parent / VOCABULARY_NAME
    if isinstance(loaded.model, PlainClip):
        pairs = byte_pairs(vocabulary)
        start = pairs.get_vocab_size()
        return lambda text: [start, *pairs.encode(text).ids, start + 1]
    from open_clip import SimpleTokenizer

    try:
        simple = SimpleTokenizer(str(vocabulary)) if vocabulary.is_file() else SimpleTokenizer()
        if simple.vocab_size > loaded.model.vocab_size:
            raise ValueError(f"{simple.vocab_size} tokens, the model has {loaded.model.vocab_size}")
    except (OSError, ValueError, EOFError) as exc:
        raise WeightsInvalid(
            f"{loaded.space}: the tokeniser does not fit: {first_line(exc)}",
            remedy=f"put the model's own {VOCABULARY_NAME} beside its weights",
        ) from exc
    return lambda text: [simple.sot_token_id, *simple.encode(text), simple.eot_token_id]


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
    """CLIP (Radford et al., 2021) under open_clip's names, whose import takes ten times as long as an answer.

    Of both towers it has the parts, which `clip` combines; it supports only plain blocks and causal texts.

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
    # CLIP numbers the printable characters first.
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda letter: (ord(letter) > 255, ord(letter)))
    merges = [tuple(line.split()) for line in gzip.decompress(file.read_bytes()).decode().split("\n")[1:] if line]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    known = {word: number for number, word in enumerate(words)}
    tokenizer = BytePairs(BPE(known, [(a, b) for a, b in merges], end_of_word_suffix="</w>"))
    straight = [normalizers.Replace(curly, plain) for curly, plain in _CURLY.items()]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *straight, normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer
