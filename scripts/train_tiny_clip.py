#!/usr/bin/env python3
"""Train the tiny dual encoder on generated scenes, in minutes on two cores.

    python scripts/train_tiny_clip.py --minutes 40 --seed 0 -o FOLDER

The model is a small CLIP of open_clip's own classes (a vision transformer and a text transformer). What is trained is
what is used: the dense value path of the last block (MaskCLIP; Zhou, Loy and Dai, "Extract Free Dense Labels from
CLIP", 2022), so that a text matches the places that it is about. Four losses, all on freshly generated scenes:

- every token against a batch of phrases, as independent yes-or-no questions (the sigmoid loss of SigLIP: Zhai et al.,
  2023); a token has several true phrases, from "something" to "small striped red circle";
- every token of a thing against the bare words of each kind of attribute, as a choice of one;
- questions about each token's thing to the blocks below, with heads that are thrown away afterwards (deep supervision;
  Lee et al., 2015): attributes, centre, which tokens around belong to it, and its silhouette. Without them colours are
  learned at once and shapes hardly at all: a colour lies in each pixel, a shape must be gathered from the outline;
- whole pictures against captions, contrastively, on the pooled feature.

Batches vary in shape: parts of a frame of 28x16 tokens, whose positions they take, now and then of a larger frame with
interpolated positions, so that the model can be used at other sizes. Ctrl-C stops early and keeps what there is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import open_clip
import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file

from arr_stream.evaluate.toy_scenes import COLOURS, SHAPES, TEXTURES, Scene, Thing, caption, make_scene

PATCH_PX = 16
NEAR_TOKENS = 7
SILHOUETTE = 10
CONTEXT = 32
FRAME_WH = (448, 256)
SIZES_WH = ((224, 224), (256, 192), (192, 256), (320, 160), (448, 256))
TOKENS_A_STEP = 4700
RATES = torch.linspace(0.15, 1.0, 8)
OFFSETS = (
    ((-1, 0), (1, 0), (0, -1), (0, 1)),
    ((-1, -1), (-1, 1), (1, -1), (1, 1)),
    ((-2, 0), (2, 0), (0, -2), (0, 2)),
    ((-2, -2), (-2, 2), (2, -2), (2, 2)),
    ((-3, 0), (3, 0), (0, -3), (0, 3)),
)
MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)

SYNONYMS = {"circle": "disc", "ring": "hoop", "cross": "plus", "square": "box", "arrow": "pointer"}
GENERIC = ("something", "an object", "a thing", "a shape", "objects", "things", "shapes", "any object")
BACKGROUND = ("background", "the background", "nothing", "empty space", "a background")
TEMPLATES = (
    "{}", "{}", "a {}", "the {}", "a photo of a {}", "a picture of a {}", "find the {}", "where is the {}", "one {}",
    "there is a {}", "an image of the {}", "look at the {}", "a {} in the scene", "{}s", "the {}s", "{} shape",
)  # fmt: skip
# Words that are true of nothing here: the text tower must learn that what it does not know matches no place.
OTHER_WORDS = """
dog cat person people man woman child face hand eye hair car bus truck bicycle motorcycle train boat ship plane road
street house building window door wall roof floor table chair bed sofa lamp clock phone computer screen keyboard book
paper pen bottle cup glass plate fork knife spoon bowl food bread apple banana orange juice cake pizza coffee tea
water river lake sea ocean beach sand rock stone mountain hill tree leaf flower grass plant forest garden park sky
cloud sun moon rain snow fire smoke light shadow bird fish horse cow sheep bear elephant lion tiger zebra giraffe
mouse rabbit insect butterfly bee shirt shoe hat coat dress bag umbrella ball bat racket kite skateboard surfboard ski
helmet player team game music guitar piano sign letter number word text traffic stop bench fence bridge tower church
city town village farm field animal vehicle furniture tool machine engine wheel seat robot doctor teacher student baby
boy girl king queen friend family crowd
""".split()  # noqa: SIM905
COMMON_WORDS = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by but not what all
were we when your can said there use an each which she do how their if will up other about out many then them these so
some her would make like him into time has look two more write go see no way could my than first been call who its now
find long down day did get come made may part over new sound take only little work know place year live me back give
most very after thing our just name good sentence think say great where help through much before line right too mean
old any same tell follow came want show also around form three small set put end does another well large must big even
such because turn here why ask went men read need land different home us move try kind picture again change off play
spell air away point page mother answer found study still learn should world high every near add between own below
country last never start earth near top bottom left right centre middle corner medium large small plain striped dotted
checked photo image scene empty space nothing something background grey brown dark bright colour shape texture video
frame
""".split()  # noqa: SIM905


# --- words -----------------------------------------------------------------------------------------------------------


def learn_merges(frequency: Counter[str], most: int) -> list[tuple[str, str]]:
    """Byte-pair merges, most frequent pair first (Sennrich et al., 2016), for words as open_clip splits them."""
    words = {(*word[:-1], word[-1] + "</w>"): count for word, count in frequency.items()}
    merges: list[tuple[str, str]] = []
    while len(merges) < most:
        pairs: Counter[tuple[str, str]] = Counter()
        for parts, count in words.items():
            for pair in pairwise(parts):
                pairs[pair] += count
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.__getitem__)
        merges.append(best)
        words = {_merged(parts, best): count for parts, count in words.items()}
    return merges


def _merged(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def write_vocabulary(folder: Path, seed: int) -> SimpleTokenizer:
    """Learns the merges from captions, templates and common words; writes `bpe.txt.gz` and reads it back."""
    rng = np.random.default_rng(seed)
    frequency = Counter(dict.fromkeys([*COMMON_WORDS, *OTHER_WORDS], 20))
    for _ in range(300):
        frequency.update(caption(make_scene(rng, (160, 160), (1, 4)), rng).replace(",", "").split())
    for text in (*GENERIC, *BACKGROUND, *TEMPLATES, *SYNONYMS.values(), *COLOURS, *SHAPES, *TEXTURES):
        frequency.update(text.replace("{}", "").split() * 20)
    frequency.update([f"{shape}s" for shape in (*SHAPES, *SYNONYMS.values())] * 20)
    merges = learn_merges(frequency, most=1400)
    lines = ["#version: tiny"] + [" ".join(pair) for pair in merges]
    path = folder / "bpe.txt.gz"
    # A fixed time of modification: the same words give the same bytes.
    path.write_bytes(gzip.compress("\n".join(lines).encode("utf-8"), mtime=0))
    return SimpleTokenizer(bpe_path=str(path), context_length=CONTEXT)


class Texts:
    """Token ids of phrases, kept; batches are cut to their longest text."""

    def __init__(self, tokenizer: SimpleTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, torch.Tensor] = {}

    def ids(self, phrases: Sequence[str]) -> torch.Tensor:
        rows = []
        for phrase in phrases:
            if phrase not in self._known:
                self._known[phrase] = self._tokenizer([phrase])[0]
            rows.append(self._known[phrase])
        ids = torch.stack(rows)
        longest = int((ids != 0).sum(dim=1).max())
        return ids[:, :longest]


# --- the model -------------------------------------------------------------------------------------------------------


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
    """A fresh model that starts out as a convolutional network does.

    Positions are sines in a few dimensions of their own. In each block four heads look at a fixed offset each, nearer
    ones in lower blocks, and two look at places of similar content (in the spirit of Zheng et al., "Convolutional
    initialization for data-efficient vision transformers", 2024). From a random start shapes are not learned in minutes.
    """
    torch.manual_seed(args.seed)
    model = open_clip.CLIP(**config)
    visual = model.visual
    with torch.no_grad():
        places = sines(*visual.grid_size)
        visual.positional_embedding.mul_(0.1)
        visual.positional_embedding[1:, : places.shape[1]] += places
        visual.conv1.weight[: places.shape[1]] = 0
        for block, offsets in zip(visual.transformer.resblocks, OFFSETS, strict=False):
            start_convolutional(block.attn, offsets)
        model.logit_scale.fill_(math.log(12.0))
    return model


def sines(rows: int, columns: int) -> torch.Tensor:
    """`[rows * columns, 4 * len(RATES)]`: for each rate the sine and cosine of the row, then those of the column."""
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    turns = torch.cat([place.reshape(-1, 1) * RATES for place in (r, c)], dim=1)
    return torch.stack([turns.sin(), turns.cos()], dim=2).flatten(1)


def start_convolutional(attention: torch.nn.MultiheadAttention, offsets: Sequence[tuple[int, int]]) -> None:
    """The first heads look at the place `offset` (rows, columns) away, the rest at what looks alike."""
    width, heads = attention.embed_dim, attention.num_heads
    each = width // heads
    query, key = (attention.in_proj_weight[i * width : (i + 1) * width].view(heads, each, width) for i in (0, 1))
    query.mul_(0.3)
    key.mul_(0.3)
    sharpness = 2.4
    for head in range(heads):
        if head < len(offsets):
            row, column = offsets[head]
            for pair in range(each // 2):
                turn = float(RATES[pair % len(RATES)]) * (row if pair < len(RATES) else column)
                at = slice(2 * pair, 2 * pair + 2)
                # Turning (sin, cos) of the present place by `turn` gives those of the place looked for.
                rotation = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
                query[head, at, at] += sharpness * rotation
                key[head, at, at] += sharpness * torch.eye(2)
        else:
            alike = torch.randn(each, width) / math.sqrt(width)
            query[head] += 2 * alike
            key[head] += 2 * alike


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
    """What the visual tower makes of a batch: dense features, the pooled one, and the blocks' outputs."""

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


class Helpers(torch.nn.Module):
    """Heads on the lower blocks, not part of what is saved.

    Each names the attributes of its token's thing, says where its centre lies and which tokens around belong to it,
    and draws its silhouette: a hundred answers a token about the outline where the name of the shape is but one.
    """

    def __init__(self, width: int, blocks: Sequence[int]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.outputs = (len(SHAPES) + 1, len(COLOURS) + 1, len(TEXTURES) + 1, 3, NEAR_TOKENS**2, SILHOUETTE**2)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in blocks)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(width, sum(self.outputs)) for _ in blocks)

    def loss(self, seen: Seen, truth: Truth) -> torch.Tensor:
        total = seen.dense.new_zeros(())
        all_weight = truth.weight / truth.weight.sum()
        own_weight = truth.weight * (truth.thing >= 0)
        own_weight = own_weight / own_weight.sum()
        silhouettes = truth.silhouettes[truth.thing.clamp(min=0)]
        for i, norm, head in zip(self.blocks, self.norms, self.heads, strict=True):
            parts = head(norm(seen.blocks[i])).float().split(self.outputs, dim=-1)
            shape, colour, texture, place, near, silhouette = parts
            for logits, wanted, weight in (
                (shape, truth.shape, 1.0),
                (colour, truth.colour, 0.3),
                (texture, truth.texture, 0.3),
            ):
                each = F.cross_entropy(logits.transpose(1, 2), wanted + 1, reduction="none")
                total = total + weight * (each * all_weight).sum()
            total = total + 0.3 * ((place - truth.offset).abs().sum(-1) * own_weight).sum()
            for logits, target in ((near, truth.near), (silhouette, silhouettes)):
                each = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
                total = total + 2.0 * (each * own_weight).sum()
        return total / len(self.blocks)


# --- scenes as batches -----------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What each token of a batch shows; -1 stands for the background. All `[B, T]` but `offset`.

    Args:
        thing: Index into all things of the batch.
        shape, colour, texture: Indices into the lists of words.
        weight: 0 where a token is torn between thing and background; else such that things count alike, large or small.
        offset: `[B, T, 3]`, where the thing's centre lies from the token, and its size, in units of 4 tokens.
        near: `[B, T, NEAR_TOKENS^2]`, 1 where a token around belongs to the same thing.
        silhouettes: `[things, SILHOUETTE^2]`, share that each thing covers of the squares around its middle.
    """

    thing: torch.Tensor
    shape: torch.Tensor
    colour: torch.Tensor
    texture: torch.Tensor
    weight: torch.Tensor
    offset: torch.Tensor
    near: torch.Tensor
    silhouettes: torch.Tensor


@dataclass
class Batch:
    pixels: torch.Tensor
    things: list[Thing]
    captions: list[str]
    truth: Truth
    window: tuple[int, int, int, int] | None


def to_pixels(rgb: np.ndarray[Any, Any]) -> torch.Tensor:
    """`[B, 3, H, W]` float32 from `[B, H, W, 3]` bytes, normalised as the model's configuration says."""
    scaled = torch.from_numpy(rgb).permute(0, 3, 1, 2).float() / 255
    return (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def draw_batch(rng: np.random.Generator, size: tuple[int, int], plain_share: float, tokens: int) -> Batch:
    rows, columns = size[1] // PATCH_PX, size[0] // PATCH_PX
    count = max(2, tokens // (rows * columns))
    most = max(2, round(rows * columns / 75))
    scenes = []
    for _ in range(count):
        diameters = (float(rng.uniform(30, 60)), float(rng.uniform(90, 160)))
        scenes.append(make_scene(rng, size, (1, most), diameter_px=diameters, plain=bool(rng.random() < plain_share)))
    # The picture is a part of a frame; now and then of a larger one, whose positions lie closer together.
    zoom = float(rng.uniform(1, 2)) if rng.random() < 0.25 else 1.0
    all_rows, all_columns = (round(zoom * side / PATCH_PX) for side in (FRAME_WH[1], FRAME_WH[0]))
    window = (
        all_rows,
        all_columns,
        int(rng.integers(all_rows - rows + 1)),
        int(rng.integers(all_columns - columns + 1)),
    )
    return as_batch(scenes, rng, window)


def as_batch(scenes: Sequence[Scene], rng: np.random.Generator, window: tuple[int, int, int, int] | None) -> Batch:
    things = [thing for scene in scenes for thing in scene.things]
    height, width = scenes[0].rgb.shape[:2]
    rows, columns = height // PATCH_PX, width // PATCH_PX
    owner = np.full((len(scenes), rows * columns), -1)
    weight = np.zeros((len(scenes), rows * columns), np.float32)
    offset = np.zeros((len(scenes), rows * columns, 3), np.float32)
    r, c = np.divmod(np.arange(rows * columns), columns)
    first = 0
    for b, scene in enumerate(scenes):
        shares = np.stack([token_shares(thing.mask, rows, columns) for thing in scene.things])
        most, covered = shares.argmax(axis=0), shares.max(axis=0)
        owner[b] = np.where(covered >= 0.3, first + most, -1)
        weight[b, shares.sum(axis=0) < 0.05] = 0.06
        for i, thing in enumerate(scene.things):
            mine = owner[b] == first + i
            weight[b, mine] = 4.0 / (4.0 + mine.sum())
            x0, y0, x1, y1 = thing.box_xyxy
            offset[b, mine, 0] = ((x0 + x1) / 2 / PATCH_PX - 0.5 - c[mine]) / 4
            offset[b, mine, 1] = ((y0 + y1) / 2 / PATCH_PX - 0.5 - r[mine]) / 4
            offset[b, mine, 2] = math.sqrt((x1 - x0) * (y1 - y0)) / PATCH_PX / 4
        first += len(scene.things)
    words = np.array(
        [[SHAPES.index(t.shape), list(COLOURS).index(t.colour), TEXTURES.index(t.texture)] for t in things]
    )
    named = np.concatenate([words, [[-1, -1, -1]]])[owner]
    truth = Truth(
        torch.from_numpy(owner),
        *(torch.from_numpy(np.ascontiguousarray(named[..., k])) for k in range(3)),
        torch.from_numpy(weight),
        torch.from_numpy(offset),
        same_near(torch.from_numpy(owner).reshape(-1, rows, columns)),
        torch.from_numpy(np.stack([silhouette(thing) for thing in things])),
    )
    pixels = to_pixels(np.stack([scene.rgb for scene in scenes]))
    return Batch(pixels, things, [caption(scene, rng) for scene in scenes], truth, window)


def token_shares(mask: np.ndarray[Any, Any], rows: int, columns: int) -> np.ndarray[Any, Any]:
    """`[rows * columns]`: share of each token's square that the mask covers."""
    shares = cv2.resize(mask.astype(np.float32), (columns, rows), interpolation=cv2.INTER_AREA)
    return np.asarray(shares).reshape(-1)


def same_near(owner: torch.Tensor) -> torch.Tensor:
    """`[B, T, NEAR_TOKENS^2]` from `[B, rows, columns]`."""
    batch, rows, columns = owner.shape
    reach = NEAR_TOKENS // 2
    padded = F.pad(owner, (reach, reach, reach, reach), value=-2)
    around = padded.unfold(1, NEAR_TOKENS, 1).unfold(2, NEAR_TOKENS, 1).reshape(batch, rows * columns, -1)
    return (around == owner.reshape(batch, -1, 1)).float()


def silhouette(thing: Thing) -> np.ndarray[Any, Any]:
    """`[SILHOUETTE^2]` in [0, 1]: the thing's mask in a square around its box, coarsely."""
    x0, y0, x1, y1 = thing.box_xyxy
    side = 1.1 * max(x1 - x0, y1 - y0)
    left, top = (x0 + x1 - side) / 2, (y0 + y1 - side) / 2
    fine = 3 * SILHOUETTE
    at = (np.arange(fine) + 0.5) * side / fine
    rows, columns = np.floor(top + at).astype(int), np.floor(left + at).astype(int)
    height, width = thing.mask.shape
    inside = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))
    picked = thing.mask[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)] & inside
    shares = picked.reshape(SILHOUETTE, 3, SILHOUETTE, 3).mean(axis=(1, 3))
    return shares.reshape(-1).astype(np.float32)


# --- phrases ---------------------------------------------------------------------------------------------------------


@dataclass
class Phrases:
    """Texts and, for each, which things it is true of and what it says of the background.

    Args:
        true_of: `[P, things + 1]`: 1 true, 0 false, -1 not asked; the last column is the background.
    """

    texts: list[str]
    true_of: torch.Tensor


def said(np_text: str, rng: np.random.Generator) -> str:
    template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    text = template.format(np_text)
    return text.replace("a o", "an o").replace("a a", "an a") if rng.random() < 0.5 else text


def draw_phrases(things: Sequence[Thing], rng: np.random.Generator, count: int) -> Phrases:
    """Half of all phrases are about the shape alone; the rest mix attributes, or speak of everything or nothing."""
    shape = np.array([t.shape for t in things])
    colour = np.array([t.colour for t in things])
    texture = np.array([t.texture for t in things])
    size = np.array([t.size_word for t in things])
    texts: list[str] = []
    rows: list[np.ndarray[Any, Any]] = []

    def add(text: str, holds: np.ndarray[Any, Any] | float, background: float) -> None:
        row = np.empty(len(things) + 1, np.float32)
        row[:-1], row[-1] = holds, background
        texts.append(text)
        rows.append(row)

    for word in SHAPES:
        add(said(word if rng.random() < 0.9 else SYNONYMS.get(word, word), rng), shape == word, 0)
    while len(texts) < count:
        thing = things[int(rng.integers(len(things)))]
        kind = rng.random()
        if kind < 0.5:
            # An attribute of another thing now and then: hard negatives such as a red circle beside a red square.
            other = things[int(rng.integers(len(things)))] if rng.random() < 0.3 else thing
            holds = (shape == thing.shape) & (colour == other.colour)
            words = [other.colour, thing.shape if rng.random() < 0.92 else SYNONYMS.get(thing.shape, thing.shape)]
            if rng.random() < 0.2:
                words.insert(0, thing.texture)
                holds = holds & (texture == thing.texture)
            if rng.random() < 0.15:
                words.insert(0, thing.size_word)
                holds = holds & (size == thing.size_word)
            add(said(" ".join(words), rng), holds, 0)
        elif kind < 0.65:
            noun = ("", "thing", "object", "shape", "one")[int(rng.integers(5))]
            add(said(f"{thing.colour} {noun}".strip(), rng), colour == thing.colour, 0 if noun else -1)
        elif kind < 0.75:
            noun = ("", "thing", "object", thing.shape)[int(rng.integers(4))]
            holds = (texture == thing.texture) & ((shape == thing.shape) | (noun != thing.shape))
            add(said(f"{thing.texture} {noun}".strip(), rng), holds, 0 if noun else -1)
        elif kind < 0.81:
            noun = ("thing", "object", thing.shape)[int(rng.integers(3))]
            holds = (size == thing.size_word) & ((shape == thing.shape) | (noun != thing.shape))
            add(said(f"{thing.size_word} {noun}", rng), holds, 0)
        elif kind < 0.87:
            add(GENERIC[int(rng.integers(len(GENERIC)))], 1, 0)
        elif kind < 0.93:
            add(BACKGROUND[int(rng.integers(len(BACKGROUND)))], 0, 1)
        else:
            add(said(OTHER_WORDS[int(rng.integers(len(OTHER_WORDS)))], rng), 0, 0)
    return Phrases(texts, torch.from_numpy(np.stack(rows)))


# --- losses ----------------------------------------------------------------------------------------------------------


@dataclass
class Losses:
    sigmoid: torch.Tensor
    choice: torch.Tensor
    picture: torch.Tensor
    helpers: torch.Tensor

    def total(self, args: argparse.Namespace) -> torch.Tensor:
        return self.sigmoid + self.choice + 0.15 * self.picture + args.helpers * self.helpers


def losses(model: open_clip.CLIP, helpers: Helpers, batch: Batch, texts: Texts, rng: np.random.Generator) -> Losses:
    phrases = draw_phrases(batch.things, rng, 64)
    bare = [*SHAPES, *COLOURS, *TEXTURES]
    lists = [*phrases.texts, *bare, *batch.captions]
    with torch.autocast("cpu", torch.bfloat16):
        seen = look(model, batch.pixels, batch.window)
        encoded = read(model, texts.ids(lists))
    text = F.normalize(encoded.float(), dim=-1)
    asked, words, captions = text.split([len(phrases.texts), len(bare), len(batch.captions)])
    dense = F.normalize(seen.dense.float(), dim=-1)
    scale = model.logit_scale.exp()
    truth = batch.truth
    weight = truth.weight / truth.weight.sum()

    labels = phrases.true_of.T[truth.thing]  # [B, T, P]; thing -1 is the last row, the background
    logits = scale * dense @ asked.T + model.logit_bias
    each = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0), reduction="none")
    sigmoid = (each * (labels >= 0) * weight[..., None]).sum() / 10

    by_word = scale * dense @ words.T
    choice = logits.new_zeros(())
    owned = weight * (truth.thing >= 0)
    owned = owned / owned.sum()
    start = 0
    for wanted, count, share in (
        (truth.shape, len(SHAPES), 1.0),
        (truth.colour, len(COLOURS), 0.3),
        (truth.texture, len(TEXTURES), 0.2),
    ):
        part = by_word[..., start : start + count].transpose(1, 2)
        start += count
        choice = choice + share * (F.cross_entropy(part, wanted.clamp(min=0), reduction="none") * owned).sum()

    match = scale * F.normalize(seen.pooled.float(), dim=-1) @ captions.T
    same = torch.arange(len(match))
    picture = (F.cross_entropy(match, same) + F.cross_entropy(match.T, same)) / 2
    with torch.autocast("cpu", torch.bfloat16):
        helped = helpers.loss(seen, truth)
    return Losses(sigmoid, choice, picture, helped)


# --- held-out figures ------------------------------------------------------------------------------------------------


def auc(positive: np.ndarray[Any, Any], negative: np.ndarray[Any, Any]) -> float:
    """Probability that a positive scores above a negative, ties half."""
    order = np.sort(negative)
    below = np.searchsorted(order, positive, "left") + np.searchsorted(order, positive, "right")
    return float(below.mean() / 2 / len(order))


@torch.no_grad()
def held_out(model: open_clip.CLIP, tokenizer: SimpleTokenizer, scenes: int, seed: int) -> dict[str, float]:
    """Figures on fresh scenes of 448x256, as 14x8 cells of 2x2 tokens.

    A cell belongs to a thing that covers at least 0.3 of it. Queries are the distinct phrases true of a scene's things;
    a query's own cells are those of all things that it is true of.
    """
    rng = np.random.default_rng([seed, 77])
    model.eval()
    found: dict[str, list[float]] = {}
    matches = []
    for _ in range(scenes):
        scene = make_scene(rng, (448, 256), (2, 6))
        with torch.autocast("cpu", torch.bfloat16):
            seen = look(model, to_pixels(scene.rgb[None]))
        grid = seen.dense.float().reshape(8, 2, 14, 2, -1).mean(dim=(1, 3)).reshape(112, -1)
        shares = np.stack([token_shares(thing.mask, 8, 14) for thing in scene.things])
        for name, colour, shape in (("both", True, True), ("shape", False, True), ("colour", True, False)):
            said_of = [thing.phrase(colour=colour, shape=shape) for thing in scene.things]
            queries = sorted(set(said_of))
            text = F.normalize(model.encode_text(tokenizer(queries)).float(), dim=-1)
            scores = (F.normalize(grid, dim=-1) @ text.T).numpy()
            for q, query in enumerate(queries):
                of_query = np.array([phrase == query for phrase in said_of])
                mine = shares[of_query].sum(axis=0)
                own = mine >= 0.3
                others = (shares[~of_query] >= 0.3).any(axis=0) & ~own if (~of_query).any() else np.zeros(112, bool)
                if not own.any():
                    continue
                score = scores[:, q]
                found.setdefault(f"{name}: all other cells", []).append(auc(score[own], score[~own]))
                if others.any():
                    found.setdefault(f"{name}: cells of other things", []).append(auc(score[own], score[others]))
                kept, best = np.argsort(-score)[:11], np.sort(mine)[::-1][:11].sum()
                found.setdefault(f"{name}: coverage at 10%", []).append(float(mine[kept].sum() / best))
        caption_ids = tokenizer([caption(scene, rng)])
        matches.append((seen.pooled.float()[0], model.encode_text(caption_ids).float()[0]))
    pooled, captions = (F.normalize(torch.stack(list(side)), dim=-1) for side in zip(*matches, strict=True))
    rank = (pooled @ captions.T).argmax(dim=1) == torch.arange(len(pooled))
    model.train()
    figures = {name: float(np.mean(values)) for name, values in found.items()}
    figures["right caption of all, whole picture"] = float(rank.float().mean())
    return figures


# --- training --------------------------------------------------------------------------------------------------------


def optimisers(model: open_clip.CLIP, helpers: Helpers, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices where asked for (Jordan et al., 2024), AdamW for the rest."""
    in_blocks = {id(p) for p in model.visual.transformer.parameters() if args.muon and p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in in_blocks]
    rest = [p for p in [*model.parameters(), *helpers.parameters()] if id(p) not in in_blocks]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.05},
                {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=args.lr,
            betas=(0.9, 0.98),
        )
    ]
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=args.muon_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
    return made


def save(model: open_clip.CLIP, config: dict[str, Any], folder: Path) -> None:
    """Weights as fp16 safetensors, and the configuration that `open_clip.create_model("local-dir:...")` reads."""
    state = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    partial = folder / "open_clip_model.safetensors.part"
    save_file(state, str(partial))
    partial.chmod(0o644)
    partial.replace(folder / "open_clip_model.safetensors")
    preprocessing = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "squash"}
    text = json.dumps({"model_cfg": config, "preprocess_cfg": preprocessing}, indent=2)
    (folder / "open_clip_config.json").write_text(text + "\n", encoding="utf-8")


class Together:
    """Two or more processes of one thread each that share their gradients once a step.

    On a machine with other work this is much faster than one process of two threads, which wait for each other in every
    operation.
    """

    def __init__(self, rank: int, processes: int, meeting_place: Path) -> None:
        self.rank, self.processes = rank, processes
        if processes > 1:
            store = torch.distributed.FileStore(str(meeting_place), processes)
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)

    def average(self, parameters: Sequence[torch.nn.Parameter], spent: float) -> float:
        """Makes all gradients the mean over processes; returns the mean of `spent` too, so that all stop together."""
        if self.processes == 1:
            return spent
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([torch.tensor([spent]), *(g.reshape(-1) for g in grads)])
        torch.distributed.all_reduce(flat)
        flat /= self.processes
        at = 1
        for parameter in parameters:
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        return float(flat[0])


class Progress:
    """Running means of the losses, and the clocks."""

    def __init__(self) -> None:
        self._start, self._cpu_start = time.monotonic(), time.process_time()
        self._mean: dict[str, float] = {}

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    @property
    def cpu_minutes(self) -> float:
        return (time.process_time() - self._cpu_start) / 60

    def note(self, found: Losses) -> None:
        for name in ("sigmoid", "choice", "picture", "helpers"):
            value = float(getattr(found, name).detach())
            self._mean[name] = 0.95 * self._mean.get(name, value) + 0.05 * value

    def line(self, step: int) -> str:
        parts = " ".join(f"{name} {value:.3f}" for name, value in self._mean.items())
        return f"{self.minutes:5.1f} min, cpu {self.cpu_minutes:5.1f}, step {step}: {parts}"


def train(rank: int, args: argparse.Namespace) -> None:
    """One process of the training; the first one reports and saves."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    folder: Path = args.output
    together = Together(rank, args.processes, folder / ".meeting")
    tokenizer = SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=CONTEXT)
    texts = Texts(tokenizer)
    config = model_config(tokenizer.vocab_size, args)
    model = starting_model(config, args)
    helpers = Helpers(args.width, [b for b in args.helper_blocks if b < args.layers - 1])
    made = optimisers(model, helpers, args)
    parameters = [*model.parameters(), *helpers.parameters()]
    rng, shared = np.random.default_rng([args.seed, rank]), np.random.default_rng(args.seed)
    if rank == 0:
        print(
            f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M weights, {tokenizer.vocab_size} words",
            flush=True,
        )
    progress = Progress()
    spent, step, saved = 0.0, 0, 0.0
    try:
        while spent < 1.0:
            set_rate(made, step, spent)
            size = SIZES_WH[int(shared.integers(len(SIZES_WH)))]
            batch = draw_batch(rng, size, max(0.1, 0.7 - 3 * spent), args.tokens // args.processes)
            for optimiser in made:
                optimiser.zero_grad(set_to_none=True)
            found = losses(model, helpers, batch, texts, rng)
            found.total(args).backward()
            spent = max(progress.minutes / args.minutes, (step + 1) / args.steps if args.steps else 0.0)
            spent = together.average(parameters, spent)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimiser in made:
                optimiser.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(40))
            step += 1
            progress.note(found)
            if rank == 0 and step % 50 == 0:
                print(progress.line(step), flush=True)
            if rank == 0 and progress.minutes - saved > args.save_every:
                saved = progress.minutes
                save(model, config, folder)
                print(json.dumps(held_out(model, tokenizer, 20, args.seed)), flush=True)
    except KeyboardInterrupt:
        if rank == 0:
            print("stopped early; keeping what there is", flush=True)
    if rank == 0:
        print(progress.line(step), flush=True)
        save(model, config, folder)
        for name, value in held_out(model, tokenizer, args.scenes, args.seed).items():
            print(f"{name:42} {value:.3f}", flush=True)


def set_rate(made: Sequence[torch.optim.Optimizer], step: int, spent: float) -> None:
    """Warm-up over 100 steps, then level, then down along a cosine to 2% over the last 0.6 of the time."""
    fall = max(0.0, (spent - 0.4) / 0.6)
    factor = min(1.0, (step + 1) / 100) * max(0.02, 0.5 + 0.5 * math.cos(math.pi * fall))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["lr"] = group["full_lr"] * factor


def arguments(argv: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the model")
    parser.add_argument("--minutes", type=float, default=40.0, help="when to stop (default: 40)")
    parser.add_argument(
        "--steps", type=int, default=0, help="stop after so many steps instead, the same on any machine"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="processes of one thread each (default: 2)")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--head-width", type=int, default=32)
    parser.add_argument("--mlp-ratio", type=float, default=4.0)
    parser.add_argument("--tokens", type=int, default=TOKENS_A_STEP)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--muon-lr", type=float, default=3e-3)
    parser.add_argument("--muon", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--helpers", type=float, default=1.0)
    parser.add_argument("--helper-blocks", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--save-every", type=float, default=4.0, help="minutes between checkpoints")
    parser.add_argument("--scenes", type=int, default=60, help="held-out scenes")
    return parser.parse_args(None if argv is None else list(argv))


def main() -> None:
    args = arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    write_vocabulary(args.output, args.seed)
    meeting_place = args.output / ".meeting"
    meeting_place.unlink(missing_ok=True)
    try:
        if args.processes == 1:
            train(0, args)
        else:
            torch.multiprocessing.spawn(train, args=(args,), nprocs=args.processes)
    finally:
        meeting_place.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
