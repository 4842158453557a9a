"""Segment Anything models small enough for tests: one of the package's parts, untrained, and one that sees colours."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, Sam, TwoWayTransformer

SIZE_PX = 64
"""Long side of what the model looks at, as 1024 is for the published models."""


def build(width: int = 32) -> Any:
    """A model of the package's own parts, untrained; `width` is the width of its image encoder."""
    patch_px, channels = 8, 32
    encoder = ImageEncoderViT(
        img_size=SIZE_PX,
        patch_size=patch_px,
        embed_dim=width,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        out_chans=channels,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
        use_rel_pos=True,
        window_size=4,
        global_attn_indexes=(1,),
    )
    decoder = MaskDecoder(
        transformer_dim=channels,
        transformer=TwoWayTransformer(depth=2, embedding_dim=channels, num_heads=2, mlp_dim=64),
        num_multimask_outputs=3,
        iou_head_depth=2,
        iou_head_hidden_dim=32,
    )
    return _sam(encoder, channels, SIZE_PX // patch_px, decoder)


def by_colour() -> Any:
    """A model whose mask of a point is what has the point's colour, and whose other two masks are nothing."""
    model = _sam(_Colours(), 64, SIZE_PX // 2, _SameColour())
    for embedding in model.prompt_encoder.point_embeddings:
        embedding.weight.data.zero_()
    return model


def _sam(encoder: torch.nn.Module, channels: int, side: int, decoder: torch.nn.Module) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prompts = PromptEncoder(
            embed_dim=channels, image_embedding_size=(side, side), input_image_size=(SIZE_PX, SIZE_PX), mask_in_chans=4
        )
    return Sam(image_encoder=encoder, prompt_encoder=prompts, mask_decoder=decoder).eval()


class _Colours(torch.nn.Module):
    """Every 2x2 pixels by their mean colour."""

    img_size = SIZE_PX

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(pixels, 2)


class _SameColour(torch.nn.Module):
    """Finds a point's place by its positional encoding, and takes what looks like that place."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = torch.nn.Parameter(torch.tensor(20.0))

    def forward(
        self,
        image_embeddings: torch.Tensor,
        image_pe: torch.Tensor,
        sparse_prompt_embeddings: torch.Tensor,
        dense_prompt_embeddings: torch.Tensor,
        multimask_output: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        place = (sparse_prompt_embeddings[:, 0] @ image_pe[0].flatten(1)).argmax(dim=1)
        colour = image_embeddings[0].flatten(1).T[place]
        apart = (image_embeddings - colour[:, :, None, None]).abs().amax(dim=1).clamp(max=1.0)
        masks = self.sharpness * torch.stack([0.5 - apart, -1 - apart, -1 - apart], dim=1)
        return masks, torch.tensor([0.97, 0.0, 0.0]).expand(len(masks), 3)


def picture() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """`[32, 64, 3]` and its truth `[32, 64]`: 0 the ground, 1 a red block, 2 a green one, 3 a blue one on the green."""
    labels = np.zeros((32, 64), np.int32)
    labels[8:24, 4:20] = 1
    labels[4:28, 30:58] = 2
    labels[8:24, 36:52] = 3
    colours = np.array([[90, 90, 90], [220, 40, 40], [40, 200, 60], [40, 60, 220]], np.uint8)
    return colours[labels], labels
