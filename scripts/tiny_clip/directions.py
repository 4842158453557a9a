"""Where the trained model's features lie on generated scenes, for the 16 embedding channels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.clip import ClipEmbedder
from arr_stream.keyframes.embeddings.pca import StreamingPca
from arr_stream.types import Frame, Grid
from arr_stream.weights import PCA_NAME
from benchmarks.scenes.shapes import make_scene

SCENES = 200
COMPONENTS = 32


def write_directions(folder: Path, seed: int) -> float:
    """Writes `pca.safetensors` beside the weights; gives the share of the variance that 16 directions keep."""
    settings = ClipSettings(model=str(folder))
    embedder = ClipEmbedder(settings, ModelSettings(device="cpu"), threads=1)
    rng = np.random.default_rng([seed, 55])
    gathered: StreamingPca | None = None
    for index in range(SCENES):
        frame = Frame(index, 0.0, make_scene(rng).rgb)
        values = embedder.embed(KeyframeInput(frame, Grid.for_size(frame.size_wh))).values
        gathered = gathered or StreamingPca(len(values))
        gathered.add(values.reshape(len(values), -1).T)
    assert gathered is not None
    pca = replace(gathered.result("tiny", COMPONENTS), method=settings.method)
    pca.save(folder / PCA_NAME)
    return pca.variance_kept(16)
