"""The model: its configuration, its start, and its forward passes for training, at any size of picture."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from benchmarks.scenes.shapes import make_scene
from tiny_clip.words import CONTEXT

PATCH_PX = 16
FRAME_WH = (448, 256)
WEIGHTS = "open_clip_model.safetensors"
MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)


def model_config(vocabulary: int, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "embed_dim": 96,
        "init_logit_bias": -6.0,
        "vision_cfg": {
            "image_size": [FRAME_WH[1], FRAME_WH[0]],
            "patch_size": PATCH_PX,
            "width": args.width,
            "layers": args.layers,
            "head_width": args.head_width,
            "mlp_ratio": args.mlp_ratio,
        },
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": vocabulary,
            "width": 128,
            "heads": 4,
            "layers": 2,
        },
    }


def starting_model(config: dict[str, Any], args: argparse.Namespace) -> open_clip.CLIP:
    """A fresh model that is spared three slow beginnings.

    Its first layer whitens patches of generated scenes: their greatest variance, the mean colour, is ten thousand times
    that of the edges that make a shape. Its positions are sines, so that near places start out alike. Products of query
    and key weights start near the identity, those of value and output weights near its negative ("mimetic" start;
    Trockman and Kolter, 2023).
    """
    torch.manual_seed(args.seed)
    model = open_clip.CLIP(**config)
    visual = model.visual
    with torch.no_grad():
        visual.conv1.weight.copy_(whitening(args.width, args.seed).view_as(visual.conv1.weight))
        places = sines(*visual.grid_size, args.width)
        visual.positional_embedding[1:] = 0.5 * places
        for block in visual.transformer.resblocks:
            start_local(block.attn)
        model.logit_scale.fill_(math.log(12.0))
    return model


def whitening(count: int, seed: int) -> torch.Tensor:
    """`[count, 3 * PATCH_PX^2]`: the leading principal components of patches, each scaled to a variance near 0.5."""
    rng = np.random.default_rng([seed, 99])
    scenes = np.stack([make_scene(rng, FRAME_WH, (2, 6)).rgb for _ in range(60)])
    patches = F.unfold(to_pixels(scenes), PATCH_PX, stride=PATCH_PX).transpose(1, 2).flatten(0, 1)
    patches = patches - patches.mean(dim=0)
    variance, directions = torch.linalg.eigh((patches.T @ patches / len(patches)).double())
    variance, directions = variance.flip(0)[:count].float(), directions.flip(1)[:, :count].float()
    # The least components are noise of the camera: they are not blown up fully.
    return 0.7 * (directions / (variance + 0.02 * variance.mean()).sqrt()).T


def sines(rows: int, columns: int, width: int) -> torch.Tensor:
    """`[rows * columns, width]`: a quarter each of sines and cosines of the row and of the column."""
    rate = 1.0 / 40 ** (torch.arange(width // 4) / (width // 4))
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    turns = [place.reshape(-1, 1) * rate for place in (r, c)]
    return torch.cat([f(turn) for turn in turns for f in (torch.sin, torch.cos)], dim=1)


def start_local(attention: torch.nn.MultiheadAttention) -> None:
    width, heads = attention.embed_dim, attention.num_heads
    each = width // heads
    query_key: list[torch.Tensor] = []
    for _ in range(heads):
        target = 0.7 * torch.eye(width) + 0.7 * torch.randn(width, width) / math.sqrt(width)
        u, s, vt = torch.linalg.svd(target)
        root = s[:each].sqrt()
        query_key.append(torch.stack([(u[:, :each] * root).T, root[:, None] * vt[:each]]))
    target = -0.4 * torch.eye(width) + 0.4 * torch.randn(width, width) / math.sqrt(width)
    u, s, vt = torch.linalg.svd(target)
    value = s.sqrt()[:, None] * vt
    attention.in_proj_weight.copy_(torch.cat([*(torch.cat([h[i] for h in query_key]) for i in (0, 1)), value]))
    attention.out_proj.weight.copy_(u * s.sqrt())


def positions(model: open_clip.CLIP, rows: int, columns: int, window: tuple[int, int, int, int] | None) -> torch.Tensor:
    """`[1 + rows * columns, width]`: class position, then the grid's, interpolated.

    `window` (all rows, all columns, first row, first column) takes the positions from within a larger frame.
    """
    learned = model.visual.positional_embedding
    height, width = model.visual.grid_size
    grid = learned[1:].T.reshape(1, -1, height, width)
    all_rows, all_columns, row, column = window or (rows, columns, 0, 0)
    grid = F.interpolate(grid, (all_rows, all_columns), mode="bicubic", align_corners=False, antialias=False)
    grid = grid[:, :, row : row + rows, column : column + columns]
    return torch.cat([learned[:1], grid.flatten(2)[0].T])


@dataclass
class Seen:
    """Outputs of the visual tower for a batch: dense features, the pooled one, and the blocks' outputs."""

    dense: torch.Tensor  # [B, T, D], not normalised
    pooled: torch.Tensor  # [B, D]
    blocks: list[torch.Tensor]  # each [B, T, width]


def look(model: open_clip.CLIP, pixels: torch.Tensor, window: tuple[int, int, int, int] | None = None) -> Seen:
    visual = model.visual
    grid = visual.conv1(pixels)
    rows, columns = grid.shape[2:]
    x = grid.flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    x = visual.ln_pre(x + positions(model, rows, columns, window).to(x.dtype))
    blocks: list[torch.Tensor] = []
    for block in visual.transformer.resblocks[:-1]:
        x = block(x)
        blocks.append(x[:, 1:])
    last = visual.transformer.resblocks[-1]
    attention = last.attn
    width = attention.embed_dim
    value = F.linear(last.ln_1(x[:, 1:]), attention.in_proj_weight[-width:], attention.in_proj_bias[-width:])
    value = F.linear(value, attention.out_proj.weight, attention.out_proj.bias)
    dense = visual.ln_post(value) @ visual.proj
    # Only the class token's row of the last block is wanted: the pooled feature needs no other.
    y = last.ln_1(x)
    first = x[:, :1] + attention(y[:, :1], y, y, need_weights=False)[0]
    first = first + last.mlp(last.ln_2(first))
    pooled = visual.ln_post(first[:, 0]) @ visual.proj
    return Seen(dense, pooled, blocks)


def read(model: open_clip.CLIP, ids: torch.Tensor) -> torch.Tensor:
    """`[N, D]`: texts as `encode_text` gives them, for ids that need not fill the context (its mask is causal)."""
    length = ids.shape[1]
    x = model.token_embedding(ids) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return x[torch.arange(len(x)), ids.argmax(dim=1)] @ model.text_projection


def to_pixels(rgb: np.ndarray[Any, Any]) -> torch.Tensor:
    """`[B, 3, H, W]` float32 from `[B, H, W, 3]` bytes, normalised as the model's configuration says."""
    scaled = torch.from_numpy(rgb).permute(0, 3, 1, 2).float() / 255
    return (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def save(model: open_clip.CLIP, config: dict[str, Any], folder: Path) -> None:
    """Weights as fp16 safetensors, and the configuration that `open_clip.create_model("local-dir:...")` reads."""
    state = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    partial = folder / f"{WEIGHTS}.part"
    save_file(state, str(partial))
    partial.chmod(0o644)
    partial.replace(folder / WEIGHTS)
    preprocessing = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "squash"}
    text = json.dumps({"model_cfg": config, "preprocess_cfg": preprocessing}, indent=2)
    (folder / "open_clip_config.json").write_text(text + "\n", encoding="utf-8")
