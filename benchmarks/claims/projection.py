"""Claims about 16 channels in place of hundreds of numbers: variance kept, and what is found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from arr_stream.evaluation.tables import ResultTable
from arr_stream.keyframes.base import Embedder, KeyframeInput, TextEncoder
from arr_stream.keyframes.embeddings import find_pca, make_embedder, make_text_encoder
from arr_stream.keyframes.embeddings.pca import CHANNELS, Pca, StreamingPca
from arr_stream.types import BoolArray, Embedding, FloatArray, Frame, Grid
from benchmarks.claims.base import Claim, ClaimsPlan
from benchmarks.localisation import HELD_OUT_SEED, mask_shares
from benchmarks.meaning import MeasuredSpace, evaluate_projected
from benchmarks.scenes.shapes import Scene, make_scene

_claim = partial(Claim, "projection")
MODEL = "tiny"
"""The trained encoder that comes with the project: random weights would say nothing here."""

THINGS = (8, 12)
CHOSEN = 273
SIDE_PX = 1024


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How often the best cell for a text lies on a thing that it names.

    Args:
        texts: How many were looked for.
        full: Share found from all dimensions.
        channels: Share found from 16 channels.
    """

    texts: int
    full: float
    channels: float

    @property
    def kept(self) -> float:
        """Of what all dimensions find; 0 where they find nothing."""
        return self.channels / self.full if self.full else 0.0


def projection_claims(plan: ClaimsPlan) -> tuple[list[Claim], list[ResultTable]]:
    """Measured on held-out generated scenes."""
    settings = plan.settings.with_values({"keyframes.embeddings": "clip", "clip.model": MODEL})
    embedder, encoder = make_embedder(settings), make_text_encoder(settings)
    assert encoder is not None
    pca = find_pca(settings, encoder)
    plan.progress(f"projection: {plan.scenes} scenes")
    scenes = list(held_out(plan.scenes))
    features = [_embedded(embedder, scene) for scene in scenes]
    own, gathered = variance_kept(pca, features)
    asked, unasked = (retrieval(scenes, features, encoder, pca, asked=asked) for asked in (True, False))
    overlap = evaluate_projected(embedder, encoder, pca, scenes=plan.scenes, chosen=CHOSEN)
    numbers = features[0].values.shape[0]
    where = f"{MODEL} ({numbers} numbers a place), {plan.scenes} drawn scenes that it was not trained on"
    claims = [
        _claim(
            f"variance that {CHANNELS} directions keep",
            0.9,
            gathered if own is None else own,
            "%",
            f"{where}, directions of {'these' if own is None else 'other'} scenes; the best ones keep {gathered:.1%}",
            at_least=True,
        )
    ]
    # The channels' first directions span what is asked, so that it is read from them exactly.
    for name, found, exact in (("what is asked", asked, True), ("a text that is not asked", unasked, False)):
        claims.append(
            _claim(
                f"retrieval of {name}, {CHANNELS} channels against all",
                0.95,
                found.kept,
                "%",
                f"{where}: the best cell lies on the thing, {found.channels:.3f} against {found.full:.3f} of "
                f"{found.texts} texts",
                at_least=True,
                by_construction=exact,
            )
        )
    for name, value, exact in (
        ("asked", overlap.active, True),
        ("not asked, in the scene", overlap.unasked, False),
    ):
        claims.append(
            _claim(
                f"the same {CHOSEN} cells chosen, texts {name}",
                0.95,
                value,
                "%",
                f"eval meaning: overlap with the choice from all dimensions, of {overlap.cells} cells",
                at_least=True,
                by_construction=exact,
                own_limit=True,
            )
        )
    return claims, []


def held_out(count: int) -> list[Scene]:
    """Large scenes of many things, from seeds that training never sees."""
    return [
        make_scene(np.random.default_rng([HELD_OUT_SEED, 3, index]), (SIDE_PX, SIDE_PX), THINGS)
        for index in range(count)
    ]


def _embedded(embedder: Embedder, scene: Scene) -> Embedding:
    grid = Grid.for_size((scene.rgb.shape[1], scene.rgb.shape[0]))
    return embedder.embed(KeyframeInput(Frame(0, 0.0, scene.rgb), grid))


def variance_kept(pca: Pca | None, features: list[Embedding]) -> tuple[float | None, float]:
    """Share of the features' variance that 16 directions keep.

    Returns:
        Along the directions of the file, about the features' own mean; None where there is no file.
        Along the best directions of these features, which nothing can exceed.
    """
    gathered = StreamingPca(features[0].values.shape[0])
    for embedding in features:
        gathered.add(embedding.values.reshape(gathered.dimensions, -1).T)
    best = gathered.variance_kept(CHANNELS)
    if pca is None:
        return None, best
    vectors = np.concatenate([embedding.values.reshape(gathered.dimensions, -1).T for embedding in features])
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    kept = np.square(centred @ pca.basis[:CHANNELS].T.astype(np.float64)).sum() / np.square(centred).sum()
    return float(kept), best


def retrieval(
    scenes: list[Scene], features: list[Embedding], encoder: TextEncoder, pca: Pca | None, *, asked: bool
) -> Retrieval:
    """Look for every thing that alone is called what it is called, from all dimensions and from 16 channels.

    Args:
        scenes, features: What is looked at.
        encoder, pca: The model.
        asked: The channels are made for the text; otherwise for another, and the text is guessed from them.
    """
    hits = []
    for scene, embedding in zip(scenes, features, strict=True):
        texts = [thing.phrase() for thing in scene.things]
        grid = Grid.for_size((scene.rgb.shape[1], scene.rgb.shape[0]))
        for number, text in enumerate(texts):
            if texts.count(text) > 1:
                continue
            on_thing = mask_shares(scene.things[number].mask, grid) > 0
            space = MeasuredSpace(encoder, pca)
            space.ask([text])
            space.learn(embedding)
            full = space.relevance_full(embedding)[0]
            if asked:
                found = space.relevance(space.project(embedding))[0]
            else:
                space.ask([texts[number - 1]])
                found = space.guessed([text], space.project(embedding))[0]
            hits.append((_hits(full, on_thing, grid), _hits(found, on_thing, grid)))
    if not hits:
        return Retrieval(0, 0.0, 0.0)
    by_all, by_channels = np.mean(hits, axis=0).tolist()
    return Retrieval(len(hits), by_all, by_channels)


def _hits(relevance: FloatArray, on_thing: BoolArray, grid: Grid) -> bool:
    import cv2

    cells = cv2.resize(relevance, (grid.columns, grid.rows), interpolation=cv2.INTER_AREA)
    return bool(on_thing.ravel()[int(cells.argmax())])
