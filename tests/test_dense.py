"""Dense features against independent computations with the models' own modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from open_clip.model import _build_vision_tower

from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.embeddings.clip import (
    MOST_PLACES,
    Normalisation,
    at_most,
    frame_features,
    places_hw,
)
from arr_stream.keyframes.embeddings.dense import (
    make_tower,
    resized_positions,
)
from arr_stream.types import Grid
from tests.clip_models import built
from tests.clip_models import one_thread as one_thread

NORMAL = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), torch.device("cpu"))
TRANSFORMERS = ("vit16", "token", "siglip")


def pixels(side: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def own_pixels(visual: Any) -> torch.Tensor:
    return pixels(visual.image_size[0])


def last_block(visual: Any) -> Any:
    return visual.trunk.blocks[-1] if hasattr(visual, "trunk") else visual.transformer.resblocks[-1]


def entering(visual: Any, module: torch.nn.Module, picture: torch.Tensor) -> torch.Tensor:
    """What enters a module while the model itself encodes a picture."""
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    visual(picture)
    handle.remove()
    return seen[0]


def attention(block: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The block's own attention branch under a boolean mask, True where a token may look."""
    if hasattr(block, "ln_1"):
        out = block.attn(*[block.ln_1(tokens)] * 3, need_weights=False, attn_mask=~mask)[0]
        return torch.as_tensor(block.ls_1(out))
    return torch.as_tensor(block.ls1(block.attn(block.norm1(tokens), attn_mask=mask)))


def to_joint(visual: Any, tokens: torch.Tensor, places: int) -> torch.Tensor:
    """Tokens to `[B, N, D]` by the model's own head; with an attention pool, one place after the other."""
    if not hasattr(visual, "trunk"):
        return F.normalize(visual.ln_post(tokens[:, -places:]) @ visual.proj, dim=-1)
    trunk = visual.trunk
    tokens = trunk.norm(tokens)[:, -places:]
    if trunk.attn_pool is None:
        return F.normalize(visual.head(trunk.head(trunk.fc_norm(tokens))), dim=-1)
    each = []
    for place in range(places):
        only = torch.zeros(1, 1, 1, places, dtype=torch.bool)
        only[..., place] = True
        each.append(trunk.attn_pool(tokens, attn_mask=only))
    return F.normalize(visual.head(trunk.head(torch.stack(each, dim=1))), dim=-1)


def flat(features: torch.Tensor) -> torch.Tensor:
    return features.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("kind", ["vit16", "token"])
def test_value_is_the_last_attention_of_every_place_to_itself_alone(kind: str) -> None:
    visual = built(kind).visual
    features = make_tower(visual, kind).features(own_pixels(visual))
    block = last_block(visual)
    tokens = entering(visual, block, own_pixels(visual))
    alone = attention(block, tokens, torch.eye(tokens.shape[1], dtype=torch.bool))
    expected = to_joint(visual, alone, features[0, 0].numel())
    torch.testing.assert_close(flat(features), expected, atol=1e-5, rtol=1e-5)


def test_value_of_an_attention_pool_is_the_pool_looking_at_one_place() -> None:
    visual = built("siglip").visual
    features = make_tower(visual, "siglip").features(own_pixels(visual))
    tokens = entering(visual, visual.trunk.norm, own_pixels(visual))
    expected = to_joint(visual, tokens, features[0, 0].numel())
    torch.testing.assert_close(flat(features), expected, atol=1e-5, rtol=1e-5)


def test_fastvit_places_average_to_the_pooled_feature() -> None:
    visual = built("fastvit").visual
    features = make_tower(visual, "fastvit").features(own_pixels(visual))
    fc = visual.trunk.head.fc
    places = F.conv2d(visual.trunk.forward_features(own_pixels(visual)), fc.weight[..., None, None], fc.bias)
    torch.testing.assert_close(places.mean(dim=(2, 3)), visual(own_pixels(visual)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(features, F.normalize(places, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [*TRANSFORMERS, "fastvit"])
def test_every_size_gives_its_own_grid_of_unit_vectors(kind: str) -> None:
    visual = built(kind).visual
    tower = make_tower(visual, kind)
    features = tower.features(torch.randn(1, 3, 3 * tower.stride_px, 5 * tower.stride_px))
    assert features.shape[2:] == (3, 5) and features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(1, 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stride_px", "own_hw"),
    [
        ("ViT-B-32", 32, (7, 7)),
        ("ViT-B-16", 16, (14, 14)),
        ("ViT-L-14", 14, (16, 16)),
        ("ViT-B-16-SigLIP", 16, (14, 14)),
        ("MobileCLIP-B", 16, (14, 14)),
        ("MobileCLIP2-S0", 32, (8, 8)),
    ],
)
def test_models_of_true_size_are_understood(name: str, stride_px: int, own_hw: tuple[int, int]) -> None:
    """Shapes alone, without memory for weights."""
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        visual = _build_vision_tower(config["embed_dim"], config["vision_cfg"]).eval()
        tower = make_tower(visual, name)
        assert (tower.stride_px, tower.own_hw) == (stride_px, own_hw)
        features = tower.features(torch.zeros(1, 3, 3 * stride_px, 5 * stride_px))
        assert features.shape == (1, config["embed_dim"], 3, 5)


def test_a_tower_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="ModifiedResNet"):
        make_tower(built("resnet").visual, "resnet")


SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(SIDES, SIDES, st.integers(0, 2))
def test_resized_positions_keep_prefix_and_constants(from_hw: Any, to_hw: Any, prefix: int) -> None:
    positions = torch.cat([torch.randn(prefix, 4), torch.full((math.prod(from_hw), 4), 0.5)])
    resized = resized_positions(positions, from_hw, to_hw, prefix=prefix)
    assert resized_positions(positions, from_hw, from_hw, prefix=prefix) is positions
    assert resized.shape == (prefix + math.prod(to_hw), 4)
    assert torch.equal(resized[:prefix], positions[:prefix])
    torch.testing.assert_close(resized[prefix:], torch.full((math.prod(to_hw), 4), 0.5))


def test_resized_positions_keep_rows_and_columns_apart() -> None:
    rows = torch.arange(4.0).repeat_interleave(3)
    resized = resized_positions(rows[:, None], (4, 3), (8, 6)).reshape(8, 6)
    assert (resized.diff(dim=0) > 0).all() and resized.diff(dim=1).abs().max() < 1e-5


GRIDS = st.builds(
    lambda rows, columns: Grid((columns * 32, rows * 32), rows, columns), st.integers(1, 80), st.integers(1, 80)
)


@given(GRIDS, st.sampled_from([8, 14, 16, 32, 64]), st.integers(1, 5000))
@example(Grid((96, 96), 3, 3), 64, 3)
@example(Grid((1024, 1024), 32, 32), 16, 4096)
def test_places_stay_within_two_a_cell_and_the_limit(grid: Grid, stride: int, most: int) -> None:
    rows, columns = places_hw(grid, stride, most=most)
    assert 1 <= rows <= 2 * grid.rows and 1 <= columns <= 2 * grid.columns
    assert rows * columns <= most
    if stride == 16 and 4 * grid.cells <= most:
        assert (rows, columns) == (2 * grid.rows, 2 * grid.columns)


def test_features_finer_than_two_a_cell_are_averaged_and_unit_again() -> None:
    fine = F.normalize(torch.randn(8, 12, 5), dim=0)
    pooled = at_most(fine, (4, 8))
    assert pooled.shape == (8, 4, 5)
    torch.testing.assert_close(pooled.norm(dim=0), torch.ones(4, 5))
    torch.testing.assert_close(pooled[:, 0], F.normalize(fine[:, :3].mean(dim=1), dim=0))
    assert at_most(fine, (12, 5)) is fine


@pytest.mark.parametrize(("size_wh", "hw"), [((256, 192), (12, 16)), ((64, 32), (2, 4)), ((2048, 1024), (32, 64))])
def test_a_frame_is_seen_at_its_own_aspect_with_at_most_2048_places(
    size_wh: tuple[int, int], hw: tuple[int, int]
) -> None:
    tower = make_tower(built("vit16").visual, "vit16")
    rgb = np.random.default_rng(0).integers(0, 255, (size_wh[1], size_wh[0], 3), np.uint8)
    grid = Grid.for_size(size_wh, max_pixels=2048 * 1024)
    features = frame_features(tower, rgb, grid, NORMAL)
    assert features.shape[1:] == hw and hw[0] * hw[1] <= MOST_PLACES
    own = tower.features(NORMAL.pixels(rgb, hw, 16))[0]
    torch.testing.assert_close(features, own, atol=1e-5, rtol=1e-5)
