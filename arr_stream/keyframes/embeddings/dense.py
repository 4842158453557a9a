"""Dense features from models that were trained to give one feature of a whole picture.

A dual encoder compares one pooled vector with a text. Its hidden states are not in the joint space: the last
attention's value and output projections, the last norm and the projection bring the pooled vector there. As in MaskCLIP
(Zhou, Loy and Dai, ECCV 2022), every place goes through the same maps separately: the last block does not mix places,
and its residual and MLP are left out.

Three kinds of tower are supported: open_clip's own ViT, timm's ViT (SigLIP) and timm's FastViT (MobileCLIP-S).
SigLIP has an attention pool: its last block runs as trained, and each place then goes through the value path of the
pool. FastViT averages places before one linear map, so that applying the map to every place is exact: the mean over
places is the pooled feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.embeddings.plain_clip import VisionTower


class Tower(ABC):
    """Vision tower with dense features.

    Attributes:
        stride_px: Side of a place in pixels of the model's input.
    """

    stride_px: int

    @abstractmethod
    def features(self, pixels: Tensor) -> Tensor:
        """Return the features of every place in the joint space.

        Args:
            pixels: `[B, 3, H, W]`, normalised for the model; sides are multiples of `stride_px`.

        Returns:
            `[B, D, H / stride, W / stride]` float32 of unit length.
        """


def make_tower(visual: Any, space: str) -> Tower:
    """Return the dense view of the vision tower of an open_clip model; `space` names the model, for errors.

    Raises:
        InvalidSetting: Its architecture is not supported.
    """
    if isinstance(visual, VisionTower):
        return OpenClipViT(visual)
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import VisionTransformer
    from timm.models.fastvit import FastVit
    from timm.models.vision_transformer import VisionTransformer as TimmTrunk

    inner = visual.trunk if isinstance(visual, TimmModel) else visual
    for kind, tower in ((VisionTransformer, OpenClipViT), (TimmTrunk, SigLip), (FastVit, FastViT)):
        if isinstance(inner, kind) and tower.fits(visual):
            return tower(visual)
    raise InvalidSetting(
        f"clip.model={space}: no dense features are known for a tower of kind {type(inner).__name__}",
        remedy="use a ViT (ViT-B-16), a SigLIP or a MobileCLIP-S model",
    )


class OpenClipViT(Tower):
    """open_clip's own vision transformer: ViT-B-32, ViT-B-16, ViT-L-14 and their like; and the one in the package."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        self.stride_px = int(visual.patch_size[0])

    @staticmethod
    def fits(visual: Any) -> bool:
        """Return whether it has plain blocks and no attention pool, as every model of OpenAI's architecture."""
        from open_clip.transformer import ResidualAttentionBlock

        blocks = visual.transformer.resblocks
        plain = all(type(block) is ResidualAttentionBlock for block in blocks) and visual.transformer.batch_first
        return plain and visual.attn_pool is None and visual.patch_size[0] == visual.patch_size[1]

    def features(self, pixels: Tensor) -> Tensor:
        visual = self._visual
        *blocks, last = visual.transformer.resblocks
        patches = visual.conv1(pixels)
        grid_hw = patches.shape[2], patches.shape[3]
        patches = patches.flatten(2).transpose(1, 2)
        first = visual.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        own, own_hw = visual.positional_embedding, (int(visual.grid_size[0]), int(visual.grid_size[1]))
        positions = torch.cat([own[:1], resized_positions(own[1:], own_hw, grid_hw)])
        tokens = visual.ln_pre(torch.cat([first, patches], dim=1) + positions.to(patches.dtype))
        for block in blocks:
            tokens = block(tokens)
        # Attention of each token to itself alone: the value path.
        qkv = F.linear(last.ln_1(tokens), last.attn.in_proj_weight, last.attn.in_proj_bias)
        tokens = last.ls_1(last.attn.out_proj(qkv.chunk(3, dim=-1)[2]))
        return _unit_planes(visual.ln_post(tokens[:, 1:]) @ visual.proj, grid_hw)


class SigLip(Tower):
    """timm's vision transformer with an attention pool inside open_clip: SigLIP and SigLIP 2."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        embed = visual.trunk.patch_embed
        embed.strict_img_size = False  # frames may have any size
        self._own_hw = int(embed.grid_size[0]), int(embed.grid_size[1])
        self.stride_px = int(embed.img_size[0]) // self._own_hw[0]

    @staticmethod
    def fits(visual: Any) -> bool:
        """Return whether it has learned positions, no other tokens than places, and a pool that sees each alone."""
        from timm.layers.attention_pool import AttentionPoolLatent

        trunk, pool = visual.trunk, visual.trunk.attn_pool
        known_pool = type(pool) is AttentionPoolLatent and pool.pos_embed is None and pool.latent_len == 1
        return known_pool and trunk.pos_embed is not None and trunk.num_prefix_tokens == 0

    def features(self, pixels: Tensor) -> Tensor:
        trunk = self._visual.trunk
        grid_hw = pixels.shape[2] // self.stride_px, pixels.shape[3] // self.stride_px
        tokens = trunk.patch_embed(pixels) + resized_positions(trunk.pos_embed[0], self._own_hw, grid_hw)
        places = trunk.norm(trunk.blocks(trunk.norm_pre(tokens)))
        # Attention over one token gives it weight 1, so the pool reduces to its value path.
        places = trunk.attn_pool(places.flatten(0, 1).unsqueeze(1)).unflatten(0, places.shape[:2])
        return _unit_planes(self._visual.head(trunk.head(trunk.fc_norm(places))), grid_hw)


class FastViT(Tower):
    """timm's FastViT inside open_clip: the convolutional MobileCLIP-S models."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        self.stride_px = int(visual.trunk.feature_info[-1]["reduction"])

    @staticmethod
    def fits(visual: Any) -> bool:
        """Return whether all layers after the average are linear."""
        head = visual.trunk.head
        after = [head.fc, *visual.head]
        linear = all(isinstance(layer, nn.Linear | nn.Identity | nn.Dropout) for layer in after)
        return linear and visual.trunk.global_pool == "avg" and not visual.trunk.fork_feat

    def features(self, pixels: Tensor) -> Tensor:
        places = self._visual.trunk.forward_features(pixels).permute(0, 2, 3, 1)
        joint = self._visual.head(self._visual.trunk.head.fc(places))
        return F.normalize(joint.float(), dim=-1).permute(0, 3, 1, 2)


def _unit_planes(places: Tensor, grid_hw: tuple[int, int]) -> Tensor:
    """Return `[B, N, D]` as `[B, D, h, w]` float32 of unit length."""
    return F.normalize(places.float(), dim=-1).transpose(1, 2).reshape(len(places), -1, *grid_hw)


def resized_positions(positions: Tensor, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> Tensor:
    """Resize learned positions `[N, C]` to another grid, bicubically."""
    if from_hw == to_hw:
        return positions
    plane = positions.float().T.reshape(1, -1, *from_hw)
    resized = F.interpolate(plane, size=to_hw, mode="bicubic", align_corners=False)[0]
    return resized.flatten(1).T.to(positions.dtype)
