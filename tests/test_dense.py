"""Dense features against independent computations with the models' own modules."""

from __future__ import annotations

import open_clip
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from open_clip.model import _build_vision_tower

from arr_stream.keyframes.embeddings.clip import dense_features, places_hw
from arr_stream.types import Grid
from tests.clip_models import built
from tests.clip_models import one_thread as one_thread


def test_value_is_the_last_attention_of_every_place_to_itself_alone() -> None:
    visual = built("vit16").visual
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    block, entered = visual.transformer.resblocks[-1], list[torch.Tensor]()
    handle = block.register_forward_pre_hook(lambda _module, inputs: entered.append(inputs[0]))
    visual(pixels)
    handle.remove()
    tokens = block.ln_1(entered[0])
    others = ~torch.eye(tokens.shape[1], dtype=torch.bool)
    alone = block.ls_1(block.attn(tokens, tokens, tokens, need_weights=False, attn_mask=others)[0])
    expected = F.normalize(visual.ln_post(alone[:, 1:]) @ visual.proj, dim=-1)
    features = dense_features(visual, pixels)
    torch.testing.assert_close(features.flatten(2).transpose(1, 2), expected, atol=1e-5, rtol=1e-5)


def test_every_size_gives_its_own_grid_of_unit_vectors() -> None:
    features = dense_features(built("vit16").visual, torch.randn(1, 3, 3 * 16, 5 * 16))
    assert features.shape[2:] == (3, 5) and features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(1, 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stride_px"), [("ViT-B-32", 32), ("ViT-B-16", 16), ("ViT-L-14", 14)])
def test_models_of_true_size_are_understood(name: str, stride_px: int) -> None:
    """Shapes alone, without memory for weights."""
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        visual = _build_vision_tower(config["embed_dim"], config["vision_cfg"]).eval()
        features = dense_features(visual, torch.zeros(1, 3, 3 * stride_px, 5 * stride_px))
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
