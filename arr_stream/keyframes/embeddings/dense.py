"""Dense features from models that were trained to give one feature of a whole picture.

A dual encoder compares one pooled vector with a text. Its hidden states are not in the joint space: the last
attention's value and output projections, the last norm and the projection bring the pooled vector there. As in MaskCLIP
(Zhou, Loy and Dai, ECCV 2022), every place goes through the same maps separately: the last block does not mix places,
and its residual and MLP are left out.

Three kinds of tower are supported: open_clip's own ViT, timm's ViT (SigLIP, MobileCLIP-B) and timm's FastViT
(MobileCLIP). SigLIP has an attention pool: its last block runs as trained, and each place then goes through the value
path of the pool. FastViT averages places before one linear map, so that applying the map to every place is exact: the
mean over places is the pooled feature.
"""

from __future__ import annotations

import math
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


def make_tower(visual: nn.Module, space: str) -> Tower:
    """Return the dense view of the vision tower of an open_clip model; `space` names the model, for errors.

    Raises:
        InvalidSetting: Its architecture is not supported.
    """
    tower = _tower_of(visual)
    if tower is None:
        inner = getattr(visual, "trunk", visual)
        raise InvalidSetting(
            f"clip.model={space}: no dense features are known for a tower of kind {type(inner).__name__}",
            remedy="use a ViT (ViT-B-16), a SigLIP or a MobileCLIP model",
        )
    return tower


def _tower_of(visual: Any) -> Tower | None:
    if isinstance(visual, VisionTower):
        return OpenClipViT(visual)
    from open_clip.timm_model import TimmModel
    from open_clip.transformer import VisionTransformer

    if isinstance(visual, VisionTransformer):
        return OpenClipViT(visual) if OpenClipViT.fits(visual) else None
    if not isinstance(visual, TimmModel):
        return None
    from timm.models.fastvit import FastVit
    from timm.models.vision_transformer import VisionTransformer as TimmTrunk

    if isinstance(visual.trunk, FastVit):
        return FastViT(visual) if FastViT.fits(visual) else None
    return TimmViT(visual) if isinstance(visual.trunk, TimmTrunk) and TimmViT.fits(visual) else None


class _Transformer(Tower):
    """Shared steps of the two ViTs; tokens are `[B, prefix + N, C]`, the prefix being class and register tokens."""

    pooled_by_attention = False
    _own_hw: tuple[int, int]
    """Places per side at the model's training size."""
    _blocks: list[Any]

    def features(self, pixels: Tensor) -> Tensor:
        grid_hw = pixels.shape[2] // self.stride_px, pixels.shape[3] // self.stride_px
        tokens = self._embedded(pixels, grid_hw)
        for block in self._blocks[:-1]:
            tokens = block(tokens)
        tokens = self._blocks[-1](tokens) if self.pooled_by_attention else self._attended_alone(tokens)
        places = self._to_joint(tokens[:, tokens.shape[1] - math.prod(grid_hw) :])
        places = F.normalize(places.float(), dim=-1)
        return places.transpose(1, 2).reshape(len(places), -1, *grid_hw)

    @abstractmethod
    def _embedded(self, pixels: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        """Return the tokens at the input of the first block."""

    @abstractmethod
    def _attended_alone(self, tokens: Tensor) -> Tensor:
        """Return tokens `[B, T, C]` through the last block's attention branch, each attending to itself alone."""

    @abstractmethod
    def _to_joint(self, tokens: Tensor) -> Tensor:
        """Project tokens without prefix to the joint space, `[B, N, D]`, each by itself."""


class OpenClipViT(_Transformer):
    """open_clip's own vision transformer: ViT-B-32, ViT-B-16, ViT-L-14 and their like; and the one in the package."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        self._blocks = list(visual.transformer.resblocks)
        self.stride_px = int(visual.patch_size[0])
        self._own_hw = int(visual.grid_size[0]), int(visual.grid_size[1])

    @staticmethod
    def fits(visual: Any) -> bool:
        """Return whether it has plain blocks and no attention pool, as every model of OpenAI's architecture."""
        from open_clip.transformer import ResidualAttentionBlock

        blocks = visual.transformer.resblocks
        plain = all(type(block) is ResidualAttentionBlock for block in blocks) and visual.transformer.batch_first
        return plain and visual.attn_pool is None and visual.patch_size[0] == visual.patch_size[1]

    def _embedded(self, pixels: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        visual = self._visual
        patches: Tensor = visual.conv1(pixels).flatten(2).transpose(1, 2)
        first = visual.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        positions = resized_positions(visual.positional_embedding, self._own_hw, grid_hw, prefix=1)
        tokens: Tensor = visual.ln_pre(torch.cat([first, patches], dim=1) + positions.to(patches.dtype))
        return tokens

    def _attended_alone(self, tokens: Tensor) -> Tensor:
        block = self._blocks[-1]
        qkv = F.linear(block.ln_1(tokens), block.attn.in_proj_weight, block.attn.in_proj_bias)
        out: Tensor = block.ls_1(block.attn.out_proj(qkv.chunk(3, dim=-1)[2]))
        return out

    def _to_joint(self, tokens: Tensor) -> Tensor:
        out: Tensor = self._visual.ln_post(tokens) @ self._visual.proj
        return out


class TimmViT(_Transformer):
    """timm's vision transformer inside open_clip: SigLIP (attention pool) and MobileCLIP-B (class token)."""

    def __init__(self, visual: Any) -> None:
        self._visual, self._trunk = visual, visual.trunk
        self._blocks = list(visual.trunk.blocks)
        embed = self._trunk.patch_embed
        if hasattr(embed, "strict_img_size"):
            embed.strict_img_size = False  # frames may have any size
        self._own_hw = int(embed.grid_size[0]), int(embed.grid_size[1])
        self.stride_px = int(embed.img_size[0]) // self._own_hw[0]
        self.pooled_by_attention = self._trunk.attn_pool is not None

    @staticmethod
    def fits(visual: Any) -> bool:
        """Return whether it has plain blocks, learned positions, and a supported pool."""
        from timm.layers.attention import Attention
        from timm.layers.attention_pool import AttentionPoolLatent
        from timm.models.vision_transformer import Block

        trunk = visual.trunk
        plain = all(
            type(block) is Block and type(block.attn) is Attention and block.attn.gate is None for block in trunk.blocks
        )
        pool = trunk.attn_pool
        if pool is None:
            known_pool = trunk.global_pool in ("token", "avg")
        else:
            known_pool = type(pool) is AttentionPoolLatent and pool.pos_embed is None and pool.latent_len == 1
        return plain and known_pool and trunk.pos_embed is not None

    def _embedded(self, pixels: Tensor, grid_hw: tuple[int, int]) -> Tensor:
        trunk = self._trunk
        patches = trunk.patch_embed(pixels)
        tokens = patches.flatten(1, 2) if patches.ndim == 4 else patches
        prefix = [
            token.expand(len(tokens), -1, -1) for token in (trunk.cls_token, trunk.reg_token) if token is not None
        ]
        shared = 0 if trunk.no_embed_class else trunk.num_prefix_tokens
        positions = resized_positions(trunk.pos_embed[0], self._own_hw, grid_hw, prefix=shared)
        if trunk.no_embed_class:
            tokens = torch.cat([*prefix, tokens + positions], dim=1)
        else:
            tokens = torch.cat([*prefix, tokens], dim=1) + positions
        out: Tensor = trunk.norm_pre(tokens)
        return out

    def _attended_alone(self, tokens: Tensor) -> Tensor:
        block = self._blocks[-1]
        values = block.attn.qkv(block.norm1(tokens)).chunk(3, dim=-1)[2]
        out: Tensor = block.ls1(block.attn.proj(block.attn.norm(values)))
        return out

    def _to_joint(self, tokens: Tensor) -> Tensor:
        trunk = self._trunk
        places = trunk.norm(tokens)
        if self.pooled_by_attention:
            # Attention over one token gives it weight 1, so the pool reduces to its value path.
            places = trunk.attn_pool(places.flatten(0, 1).unsqueeze(1)).unflatten(0, tokens.shape[:2])
        out: Tensor = self._visual.head(trunk.head(trunk.fc_norm(places)))
        return out


class FastViT(Tower):
    """timm's FastViT inside open_clip: the convolutional MobileCLIP models."""

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


def resized_positions(
    positions: Tensor, from_hw: tuple[int, int], to_hw: tuple[int, int], *, prefix: int = 0
) -> Tensor:
    """Resize learned positions `[prefix + N, C]` to another grid, bicubically; the prefix is unchanged."""
    if from_hw == to_hw:
        return positions
    first, places = positions[:prefix], positions[prefix:]
    plane = places.float().T.reshape(1, -1, *from_hw)
    resized = F.interpolate(plane, size=to_hw, mode="bicubic", align_corners=False)[0]
    return torch.cat([first, resized.flatten(1).T.to(positions.dtype)])
