"""Dense features against independent computations with the models' own modules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from open_clip.model import _build_vision_tower

from arr_stream.config import ClipSettings
from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.embeddings.clip import (
    Normalisation,
    at_most,
    frame_features,
    places_hw,
    window_starts,
)
from arr_stream.keyframes.embeddings.dense import (
    METHODS,
    NEIGHBOURHOOD_TOKENS,
    make_tower,
    neighbourhood,
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
    features = make_tower(visual, kind, "value").features(own_pixels(visual), "value")
    block = last_block(visual)
    tokens = entering(visual, block, own_pixels(visual))
    alone = attention(block, tokens, torch.eye(tokens.shape[1], dtype=torch.bool))
    expected = to_joint(visual, alone, features[0, 0].numel())
    torch.testing.assert_close(flat(features), expected, atol=1e-5, rtol=1e-5)


def test_value_of_an_attention_pool_is_the_pool_looking_at_one_place() -> None:
    visual = built("siglip").visual
    features = make_tower(visual, "siglip", "value").features(own_pixels(visual), "value")
    tokens = entering(visual, visual.trunk.norm, own_pixels(visual))
    expected = to_joint(visual, tokens, features[0, 0].numel())
    torch.testing.assert_close(flat(features), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["vit16", "token"])
def test_raw_equals_the_towers_own_tokens(kind: str) -> None:
    visual = built(kind).visual
    features = make_tower(visual, kind, "raw").features(own_pixels(visual), "raw")
    if kind == "token":
        joint = visual.trunk.head(visual.trunk.forward_features(own_pixels(visual))[:, 1:])
    else:
        visual.output_tokens = True
        joint = visual(own_pixels(visual))[1] @ visual.proj
    torch.testing.assert_close(flat(features), F.normalize(joint, dim=-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("method", ["self", "neighbour"])
def test_mixing_methods_equal_attention_written_out(kind: str, method: str) -> None:
    visual = built(kind).visual
    features = make_tower(visual, kind, method).features(own_pixels(visual), method)
    rows, columns = features.shape[2:]
    block = last_block(visual)
    tokens = entering(visual, block, own_pixels(visual))
    mixed = mixed_by_hand(block, tokens, method, rows, columns)
    expected = to_joint(visual, mixed, rows * columns)
    torch.testing.assert_close(flat(features), expected, atol=2e-5, rtol=1e-4)


def mixed_by_hand(block: Any, tokens: torch.Tensor, method: str, rows: int, columns: int) -> torch.Tensor:
    """One head after the other, with softmax and the Gaussian spelled out."""
    native = hasattr(block, "ln_1")
    attn = block.attn
    normed = block.ln_1(tokens) if native else block.norm1(tokens)
    qkv = F.linear(normed, attn.in_proj_weight, attn.in_proj_bias) if native else attn.qkv(normed)
    width, heads = qkv.shape[-1] // 3, attn.num_heads
    size = width // heads
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()
    near = torch.exp(-(torch.cdist(places, places) ** 2) / (2 * NEIGHBOURHOOD_TOKENS**2))
    bias = torch.zeros(tokens.shape[1], tokens.shape[1])
    bias[-len(places) :, -len(places) :] = near
    outs = []
    for head in range(heads):
        q, k, v = (qkv[..., part * width + head * size :][..., :size] for part in range(3))
        by_keys = k @ k.transpose(1, 2) / math.sqrt(size)
        if method == "neighbour":
            outs.append((by_keys + bias).softmax(-1) @ v)
        else:
            by_queries = q @ q.transpose(1, 2) / math.sqrt(size)
            outs.append((by_queries.softmax(-1) + by_keys.softmax(-1)) / 2 @ v)
    joined = torch.cat(outs, dim=-1)
    return torch.as_tensor(block.ls_1(attn.out_proj(joined)) if native else block.ls1(attn.proj(joined)))


def test_fastvit_places_average_to_the_pooled_feature() -> None:
    visual = built("fastvit").visual
    features = make_tower(visual, "fastvit", "value").features(own_pixels(visual), "value")
    fc = visual.trunk.head.fc
    places = F.conv2d(visual.trunk.forward_features(own_pixels(visual)), fc.weight[..., None, None], fc.bias)
    torch.testing.assert_close(places.mean(dim=(2, 3)), visual(own_pixels(visual)), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(features, F.normalize(places, dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [*TRANSFORMERS, "fastvit"])
def test_every_size_gives_its_own_grid_of_unit_vectors(kind: str) -> None:
    visual = built(kind).visual
    tower = make_tower(visual, kind, "value")
    for method in tower.methods:
        picture = torch.randn(1, 3, 3 * tower.stride_px, 5 * tower.stride_px)
        features = tower.features(picture, method)
        assert features.shape[2:] == (3, 5) and features.dtype == torch.float32
        torch.testing.assert_close(features.norm(dim=1), torch.ones(1, 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stride_px", "own_hw", "methods"),
    [
        ("ViT-B-32", 32, (7, 7), METHODS),
        ("ViT-B-16", 16, (14, 14), METHODS),
        ("ViT-L-14", 14, (16, 16), METHODS),
        ("ViT-B-16-SigLIP", 16, (14, 14), METHODS[:3]),
        ("MobileCLIP-B", 16, (14, 14), METHODS),
        ("MobileCLIP2-S0", 32, (8, 8), METHODS[:1]),
    ],
)
def test_models_of_true_size_are_understood(
    name: str, stride_px: int, own_hw: tuple[int, int], methods: tuple[str, ...]
) -> None:
    """Shapes alone, without memory for weights."""
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        visual = _build_vision_tower(config["embed_dim"], config["vision_cfg"]).eval()
        tower = make_tower(visual, name, "value")
        assert (tower.stride_px, tower.own_hw, tower.methods) == (stride_px, own_hw, methods)
        for method in methods:
            features = tower.features(torch.zeros(1, 3, 3 * stride_px, 5 * stride_px), method)
            assert features.shape == (1, config["embed_dim"], 3, 5)


def test_what_does_not_fit_a_tower_is_refused() -> None:
    for kind, methods in (("siglip", "value, self, neighbour"), ("fastvit", "value")):
        with pytest.raises(InvalidSetting, match=f"'raw' does not fit {kind}; this model has {methods}$"):
            make_tower(built(kind).visual, kind, "raw")
    with pytest.raises(InvalidSetting, match="ModifiedResNet"):
        make_tower(built("resnet").visual, "resnet", "value")


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


@given(SIDES, st.integers(0, 2))
def test_the_neighbourhood_falls_with_distance_and_spares_the_prefix(grid_hw: Any, prefix: int) -> None:
    near = neighbourhood(grid_hw, prefix=prefix)
    assert near.shape == (prefix + math.prod(grid_hw),) * 2
    assert not near[:prefix].any() and not near[:, :prefix].any()
    torch.testing.assert_close(near, near.T)
    corner = near[prefix, prefix:].reshape(grid_hw)
    assert corner[0, 0] == 1.0
    assert (corner.diff(dim=0) < 0).all() and (corner.diff(dim=1) < 0).all()


# Passes


@given(st.integers(1, 300), st.integers(1, 64))
def test_windows_cover_a_side_half_a_window_apart(length: int, window: int) -> None:
    starts = window_starts(length, min(window, length))
    covered = {place for start in starts for place in range(start, start + min(window, length))}
    assert covered == set(range(length))
    assert len(set(starts)) == len(starts)
    assert all(b - a <= max(1, window // 2) for a, b in itertools.pairwise(starts))


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


def features_of(kind: str, passes: Any, size_wh: tuple[int, int], **settings: int) -> torch.Tensor:
    tower = make_tower(built(kind).visual, kind, "value")
    rgb = np.random.default_rng(0).integers(0, 255, (size_wh[1], size_wh[0], 3), np.uint8)
    return frame_features(tower, rgb, Grid.for_size(size_wh), ClipSettings(passes=passes, **settings), NORMAL)


@pytest.mark.parametrize(("places", "expected_hw"), [(200, (12, 16)), (192, (12, 16)), (100, (8, 11)), (16, (3, 4))])
def test_a_native_pass_has_at_most_so_many_places(places: int, expected_hw: tuple[int, int]) -> None:
    assert features_of("vit16", "native", (256, 192), places=places).shape[1:] == expected_hw


@pytest.mark.parametrize("passes", ["windows", "native"])
@pytest.mark.parametrize(("kind", "side"), [("vit16", 64), ("siglip", 160), ("token", 160), ("fastvit", 128)])
def test_a_picture_of_the_models_own_size_is_the_same_in_every_pass(kind: str, side: int, passes: str) -> None:
    coarse = features_of(kind, "coarse", (side, side))
    torch.testing.assert_close(features_of(kind, passes, (side, side)), coarse, atol=1e-5, rtol=1e-5)


def test_how_windows_are_batched_changes_nothing() -> None:
    one, seven = (features_of("vit16", "windows", (320, 192), batch=batch) for batch in (1, 7))
    torch.testing.assert_close(one, seven, atol=1e-5, rtol=1e-4)


def test_a_picture_smaller_than_a_window_is_one_window() -> None:
    small = features_of("siglip", "windows", (64, 32))
    assert small.shape[1:] == (2, 4)
    torch.testing.assert_close(small, features_of("siglip", "native", (64, 32)), atol=1e-5, rtol=1e-5)


def test_windows_look_at_each_place_among_its_neighbours() -> None:
    """A place in the corner is seen by one window alone, and that window is a picture of its own."""
    visual: Callable[..., Any] = built("vit16").visual
    tower = make_tower(visual, "vit16", "value")  # type: ignore[arg-type]
    rgb = np.random.default_rng(2).integers(0, 255, (128, 128, 3), np.uint8)
    whole = frame_features(tower, rgb, Grid.for_size((128, 128)), ClipSettings(passes="windows", batch=4), NORMAL)
    corner = tower.features(NORMAL.pixels(np.ascontiguousarray(rgb[:64, :64]), (4, 4), 16), "value")[0]
    torch.testing.assert_close(whole[:, :2, :2], corner[:, :2, :2], atol=1e-5, rtol=1e-5)
