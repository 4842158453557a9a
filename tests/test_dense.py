"""Dense features against independent computations with the models' own modules."""

from __future__ import annotations

from typing import Any

import open_clip
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from open_clip.model import _build_vision_tower

from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.embeddings.clip import places_hw
from arr_stream.keyframes.embeddings.dense import make_tower
from arr_stream.types import Grid
from tests.clip_models import built
from tests.clip_models import one_thread as one_thread


def pixels(side: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def own_pixels(visual: Any) -> torch.Tensor:
    return pixels(visual.image_size[0])


def entering(visual: Any, module: torch.nn.Module, picture: torch.Tensor) -> torch.Tensor:
    """What enters a module while the model itself encodes a picture."""
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    visual(picture)
    handle.remove()
    return seen[0]


def flat(features: torch.Tensor) -> torch.Tensor:
    return features.flatten(2).transpose(1, 2)


def test_value_is_the_last_attention_of_every_place_to_itself_alone() -> None:
    visual = built("vit16").visual
    features = make_tower(visual, "vit16").features(own_pixels(visual))
    block = visual.transformer.resblocks[-1]
    tokens = block.ln_1(entering(visual, block, own_pixels(visual)))
    others = ~torch.eye(tokens.shape[1], dtype=torch.bool)
    alone = block.ls_1(block.attn(tokens, tokens, tokens, need_weights=False, attn_mask=others)[0])
    expected = F.normalize(visual.ln_post(alone[:, 1:]) @ visual.proj, dim=-1)
    torch.testing.assert_close(flat(features), expected, atol=1e-5, rtol=1e-5)


def test_value_of_an_attention_pool_is_the_pool_looking_at_one_place() -> None:
    visual = built("siglip").visual
    features = make_tower(visual, "siglip").features(own_pixels(visual))
    trunk, places = visual.trunk, features[0, 0].numel()
    tokens = trunk.norm(entering(visual, trunk.norm, own_pixels(visual)))
    each = [trunk.attn_pool(tokens, attn_mask=only[None, None, None]) for only in torch.eye(places, dtype=torch.bool)]
    expected = F.normalize(visual.head(trunk.head(torch.stack(each, dim=1))), dim=-1)
    torch.testing.assert_close(flat(features), expected, atol=1e-5, rtol=1e-5)


def test_fastvit_places_average_to_the_pooled_feature() -> None:
    visual = built("fastvit").visual
    features = make_tower(visual, "fastvit").features(own_pixels(visual))
    fc = visual.trunk.head.fc
    places = F.conv2d(visual.trunk.forward_features(own_pixels(visual)), fc.weight[..., None, None], fc.bias)
    torch.testing.assert_close(places.mean(dim=(2, 3)), visual(own_pixels(visual)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(features, F.normalize(places, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["vit16", "siglip", "fastvit"])
def test_every_size_gives_its_own_grid_of_unit_vectors(kind: str) -> None:
    visual = built(kind).visual
    tower = make_tower(visual, kind)
    features = tower.features(torch.randn(1, 3, 3 * tower.stride_px, 5 * tower.stride_px))
    assert features.shape[2:] == (3, 5) and features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(1, 3, 5))


def test_other_towers_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="no dense features are known for a tower of kind ModifiedResNet"):
        make_tower(built("resnet").visual, "resnet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stride_px"),
    [
        ("ViT-B-32", 32),
        ("ViT-B-16", 16),
        ("ViT-L-14", 14),
        ("ViT-B-16-SigLIP", 16),
        ("MobileCLIP2-S0", 32),
    ],
)
def test_models_of_true_size_are_understood(name: str, stride_px: int) -> None:
    """Shapes alone, without memory for weights."""
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        visual = _build_vision_tower(config["embed_dim"], config["vision_cfg"]).eval()
        tower = make_tower(visual, name)
        assert tower.stride_px == stride_px
        features = tower.features(torch.zeros(1, 3, 3 * stride_px, 5 * stride_px))
        assert features.shape == (1, config["embed_dim"], 3, 5)


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
