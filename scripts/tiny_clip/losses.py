"""Losses of the training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import open_clip
import torch
import torch.nn.functional as F

from benchmarks.scenes.shapes import COLOURS, TEXTURES
from tiny_clip.batches import FINE, NEAR_TOKENS, SILHOUETTE, Batch, Truth
from tiny_clip.model import Seen, look, read
from tiny_clip.phrases import draw_phrases
from tiny_clip.words import NOUNS, Texts


class SideHeads(torch.nn.Module):
    """Heads beside the model, not part of what is saved, that ask for more than words do.

    The lower blocks draw, for each token, where in it and right around it anything stands out from the background. The
    upper ones say where the centre of the token's thing lies, which tokens around belong to it, and draw its
    silhouette: a hundred answers about an outline where the name of the shape is but one. These and the dense features
    name attributes.
    """

    def __init__(self, width: int, embed_dim: int, lower: Sequence[int], upper: Sequence[int]) -> None:
        super().__init__()
        self.lower, self.upper = tuple(lower), tuple(upper)
        self.words = (len(NOUNS), len(COLOURS), len(TEXTURES))
        self.outputs = (*self.words, 3, NEAR_TOKENS**2, SILHOUETTE**2)
        self.below = torch.nn.ModuleList(_head(width, (3 * FINE) ** 2) for _ in lower)
        self.above = torch.nn.ModuleList(_head(width, sum(self.outputs)) for _ in upper)
        self.dense = _head(embed_dim, sum(self.words))

    def loss(self, seen: Seen, truth: Truth) -> torch.Tensor:
        own = truth.weight * (truth.thing >= 0)
        own = own / own.sum()
        total = self._names(self.dense(seen.dense).float().split(self.words, dim=-1), truth, own)
        for i, head in zip(self.lower, self.below, strict=True):
            fine = F.binary_cross_entropy_with_logits(head(seen.blocks[i]).float(), truth.fine)
            total = total + 2.0 * fine / len(self.lower)
        silhouettes = truth.silhouettes[truth.thing.clamp(min=0)]
        for i, head in zip(self.upper, self.above, strict=True):
            *names, place, near, drawn = head(seen.blocks[i]).float().split(self.outputs, dim=-1)
            asked = self._names(names, truth, own) + 0.3 * ((place - truth.offset).abs().sum(-1) * own).sum()
            for logits, target in ((near, truth.near), (drawn, silhouettes)):
                each = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
                asked = asked + 2.0 * (each * own).sum()
            total = total + asked / len(self.upper)
        return total

    def _names(self, parts: Sequence[torch.Tensor], truth: Truth, own: torch.Tensor) -> torch.Tensor:
        total = own.new_zeros(())
        for logits, wanted, share in zip(
            parts, (truth.shape, truth.colour, truth.texture), (1.0, 0.3, 0.3), strict=True
        ):
            each = F.cross_entropy(logits.transpose(1, 2), wanted.clamp(min=0), reduction="none")
            total = total + share * (each * own).sum()
        return total


def _head(width: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, outputs))


@dataclass
class Losses:
    sigmoid: torch.Tensor
    choice: torch.Tensor
    picture: torch.Tensor
    side_heads: torch.Tensor

    def total(self, args: argparse.Namespace) -> torch.Tensor:
        return self.sigmoid + self.choice + 0.15 * self.picture + args.side_heads * self.side_heads


def losses(
    model: open_clip.CLIP, side_heads: SideHeads, batch: Batch, texts: Texts, rng: np.random.Generator
) -> Losses:
    phrases = draw_phrases(batch.things, rng, 64)
    bare = [*NOUNS, *COLOURS, *TEXTURES]
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
        (truth.shape, len(NOUNS), 1.0),
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
        aside = side_heads.loss(seen, truth)
    return Losses(sigmoid, choice, picture, aside)
