"""Evaluation of the trained model on scenes that training has not seen: figures, and directions of its features."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from open_clip.tokenizer import SimpleTokenizer
from safetensors.numpy import save_file

from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.clip import ClipEmbedder
from arr_stream.types import Frame, Grid
from arr_stream.weights import PCA_NAME
from benchmarks.localisation import auc
from benchmarks.scenes.shapes import caption, make_scene
from tiny_clip.batches import scene_with_signs, token_shares
from tiny_clip.model import look, to_pixels

_DIRECTION_SCENES = 200
_COMPONENTS = 32


@torch.no_grad()
def held_out(model: open_clip.CLIP, tokenizer: SimpleTokenizer, scenes: int, seed: int) -> dict[str, float]:
    """Figures on fresh scenes of 448x256, as 14x8 cells of 2x2 tokens; every second has signs.

    A cell belongs to a thing that covers at least 0.3 of it. Queries are the distinct phrases true of a scene's things;
    a query's own cells are those of all things that it is true of.
    """
    rng = np.random.default_rng([seed, 77])
    model.eval()
    found: dict[str, list[float]] = {}
    matches = []
    for number in range(scenes):
        signs = number % 2 == 1
        draw = partial(scene_with_signs, purpose="tuning") if signs else make_scene
        scene = draw(rng, (448, 256), (2, 6))
        of = "with signs, " if signs else ""
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
                found.setdefault(f"{of}{name}: all other cells", []).append(auc(score[own], score[~own]))
                if others.any():
                    found.setdefault(f"{of}{name}: cells of other things", []).append(auc(score[own], score[others]))
                kept, best = np.argsort(-score)[:11], np.sort(mine)[::-1][:11].sum()
                found.setdefault(f"{of}{name}: coverage at 10%", []).append(float(mine[kept].sum() / best))
        caption_ids = tokenizer([caption(scene, rng)])
        matches.append((seen.pooled.float()[0], model.encode_text(caption_ids).float()[0]))
    pooled, captions = (F.normalize(torch.stack(list(side)), dim=-1) for side in zip(*matches, strict=True))
    rank = (pooled @ captions.T).argmax(dim=1) == torch.arange(len(pooled))
    model.train()
    figures = {name: float(np.mean(values)) for name, values in found.items()}
    figures["right caption of all, whole picture"] = float(rank.float().mean())
    return figures


def write_directions(folder: Path, seed: int) -> float:
    """Writes `pca.safetensors` beside the weights; gives the share of the variance that 16 channels keep."""
    settings = ClipSettings(model=str(folder))
    embedder = ClipEmbedder(settings, ModelSettings(device="cpu"), threads=1)
    rng = np.random.default_rng([seed, 55])
    features = []
    for index in range(_DIRECTION_SCENES):
        scene = scene_with_signs(rng, (448, 256), (2, 6)) if index % 2 else make_scene(rng)
        frame = Frame(index, 0.0, scene.rgb)
        values = embedder.embed(KeyframeInput(frame, Grid.for_size(frame.size_wh))).values
        features.append(values.reshape(len(values), -1))
    vectors = np.concatenate(features, axis=1).astype(np.float64)
    variance, basis = np.linalg.eigh(np.cov(vectors, bias=True))
    variance, basis = variance[::-1], basis.T[::-1]
    kept = {"mean": vectors.mean(axis=1), "basis": basis[:_COMPONENTS], "variance": variance[:_COMPONENTS]}
    tensors = {name: np.ascontiguousarray(values, np.float32) for name, values in kept.items()}
    save_file(tensors, folder / PCA_NAME, {"total_variance": str(variance.sum())})
    return float(variance[:16].sum() / variance.sum())
