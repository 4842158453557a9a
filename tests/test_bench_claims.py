"""Claims: verdicts follow from figures alone, and the figures are what they are said to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings import find_pca, make_embedder, make_text_encoder
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.types import Embedding, Frame, Grid
from benchmarks.claims.base import Claim, ClaimsPlan, Verdict, claims_table
from benchmarks.claims.projection import retrieval, variance_kept
from benchmarks.claims.regions import edge_distances, regions_claims
from benchmarks.claims.run import PARTS, bench_claims
from benchmarks.claims.texture import Made, held_bytes, mip_difference, stepped, texture_claims
from benchmarks.claims.video import PerceptionCost, claims_of, measure_perception, relevance_claims
from benchmarks.query import RelevanceReport
from benchmarks.scenes.shapes import make_scene
from tests.conftest import Run

PLAIN = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid"})
SMALL = ClaimsPlan(PLAIN, models=("tiny",), size_wh=(128, 96), rounds=1, between=2, scenes=1, threads=1)

COST = PerceptionCost(
    model="m",
    size_wh=(64, 32),
    interval=30,
    crops_ms=600.0,
    dense_ms=31.0,
    image_ms=50.0,
    keyframe_ms=32.0,
    between_ms=2.0,
    parts_ms={"embedding": 20.0, "text": 9.0},
    stages_ms={"flow": 1.5, "visual": 0.5},
)


@pytest.mark.parametrize(
    ("claimed", "measured", "at_least", "other_machine", "verdict"),
    [
        (14, 14.0, True, False, "yes"),
        (14, 13.9, True, False, "no"),
        (4, 4.0, False, True, "yes"),
        (4, 4.1, False, True, "no, on this machine"),
        (4, 4.1, False, False, "no"),
        (4, None, False, True, "not measured"),
    ],
)
def test_a_verdict_follows_from_two_figures(
    claimed: float, measured: float | None, at_least: bool, other_machine: bool, verdict: str
) -> None:
    claim = Claim("p", "w", claimed, measured, "ms", "h", at_least=at_least, other_machine=other_machine)
    assert claim.verdict == verdict
    assert claim.as_json()["verdict"] == verdict


@pytest.mark.parametrize(("measured", "verdict"), [(9.0, "by construction"), (7.0, "no"), (None, "not measured")])
def test_what_holds_by_construction_is_not_called_a_finding(measured: float | None, verdict: Verdict) -> None:
    assert Claim("p", "w", 8, measured, "x", "h", at_least=True, by_construction=True).verdict == verdict


def test_the_table_shows_both_figures() -> None:
    claims = [
        Claim("p", "ratio", 174, 1234.5, "x", "h", at_least=True),
        Claim("p", "share", 0.9, 0.9432, "%", "h", at_least=True),
        Claim("p", "time", 0.27, 0.01234, "ms", "h"),
        Claim("p", "no weights", 50, None, "ms", "h"),
        Claim("p", "tolerance", 0.02, 0.01, "%", "h", own_limit=True),
    ]
    rows = claims_table(claims, (64, 32)).rows
    assert [row[1:4] for row in rows] == [
        ("≥ 174x", "1,234x", "yes"),
        ("≥ 90.0%", "94.3%", "yes"),
        ("≤ 0.27 ms", "0.0123 ms", "yes"),
        ("≤ 50 ms", None, "not measured"),
        ("≤ 2.0% (ours)", "1.0%", "yes"),
    ]
    assert [claim.as_json()["own_limit"] for claim in claims] == [False] * 4 + [True]


def test_amortised_cost_is_that_of_the_claim() -> None:
    assert COST.amortised_ms == pytest.approx((32 + 29 * 2) / 30)
    assert PerceptionCost("m", (64, 32), 30, 1, 1, 1, 50, 2, {}, {}).amortised_ms == pytest.approx(3.6)
    assert sum(ms for _, ms in COST.shares()) == pytest.approx(COST.amortised_ms)
    assert [ms for _, ms in COST.shares()] == sorted((ms for _, ms in COST.shares()), reverse=True)


def test_ratios_of_perception() -> None:
    by_target = {(claim.claimed, claim.unit): claim.measured for claim in claims_of(COST)}
    assert by_target[14, "x"] == pytest.approx(12)
    assert by_target[174, "x"] == by_target[280, "x"] == pytest.approx(600 / 3)
    assert by_target[15, "x"] == pytest.approx(31 / 3)
    assert by_target[0.8, "ms"] == pytest.approx(3)


def test_ratios_of_relevance_alone() -> None:
    report = RelevanceReport("m", (64, 32), 2, 107.0, 29.0, 1.0, 0.5, 3.0, 2.0, 30)
    measured = [claim.measured for claim in relevance_claims(report)]
    amortised = 1 + 29 / 30
    assert measured == pytest.approx([107, 107 / amortised, 30 / amortised, 0.5])


class MadeWhenRead:
    """The channels from 3 on, once something reads them."""

    def made(self) -> Plane:
        return Plane(3, torch.zeros(37, 4, 1))


def test_bytes_are_those_of_the_planes() -> None:
    planes: dict[int, Plane | LazyPlane] = {
        0: Plane(0, torch.zeros(3, 8, 8, dtype=torch.uint8)),
        3: MadeWhenRead(),
    }
    assert held_bytes(Texture((32, 32), planes)) == 3 * 64 + 37 * 4 * 4


def test_a_wrong_mip_level_is_noticed() -> None:
    generator = torch.Generator().manual_seed(0)
    texture = Texture((64, 32), {0: Plane(0, torch.rand(40, 32, 64, generator=generator))})
    dense = texture.dense()
    assert mip_difference(texture, dense) < 1e-5
    assert mip_difference(texture, dense + 0.1) == pytest.approx(0.1, abs=1e-4)


def test_channels_that_nobody_reads_count_among_all_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(20.0, 2.0, 10.0, 1.0, Texture((32, 32), {}))
    assert (made.all_first_ms, made.all_between_ms) == (30, 3)
    assert made.amortised_ms(3) == pytest.approx((30 + 3 + 3) / 3)
    read: list[Texture] = []
    planes = Texture.all_planes

    def noting(texture: Texture) -> list[tuple[int, Plane]]:
        read.append(texture)
        return planes(texture)

    monkeypatch.setattr(Texture, "all_planes", noting)
    found = stepped(SMALL)
    assert len(read) == len({id(texture) for texture in read}) == (SMALL.rounds + 1) * len(SMALL.frames)
    assert all(isinstance(plane, Plane) for plane in found.texture.planes.values())
    assert min(found.first_unread_ms, found.between_unread_ms) > 0


def test_texture_part() -> None:
    claims, _ = texture_claims(SMALL)
    memory = {claim.what: claim for claim in claims if claim.unit == "MiB"}
    dense = memory["memory of 40 dense channels"]
    assert dense.measured == pytest.approx(128 * 96 * 40 * 4 / 2**20)
    assert dense.measured == pytest.approx(dense.claimed)
    assert dense.by_construction and dense.verdict == "by construction"
    pyramid = memory["memory of 40 dense channels with mip levels"]
    assert pyramid.measured == pytest.approx(dense.claimed * 4 / 3, rel=0.01)
    kept = memory["memory of the texture as the frame loop keeps it"]
    assert kept.measured is not None
    assert kept.measured < dense.claimed / 10
    assert {claim.verdict for claim in claims if claim.unit == "of the range"} == {"yes"}
    assert all(claim.measured is not None and claim.measured > 0 for claim in claims if claim.unit == "ms")


def test_regions_part() -> None:
    claims, _ = regions_claims(SMALL)
    by_what = {claim.what: claim for claim in claims}
    assert by_what["the cascade scores fewer of 4096 places"].verdict == "by construction"
    assert by_what["... and finds the object as well"].own_limit
    assert by_what["text is looked for"].verdict == "not measured"
    assert by_what["places farther than 0.8 from any edge, which are skipped"].verdict == "no"
    assert by_what["regions by SAM"].verdict == "not measured"
    distances = edge_distances(SMALL)
    assert 0 <= distances.min() <= distances.max() <= 1


@pytest.mark.slow
def test_video_part_measures_everything_once() -> None:
    cost = measure_perception("tiny", (128, 96), SMALL)
    assert set(cost.parts_ms) == {"clusters", "embedding", "text"}
    assert {"visual", "flow", "carry", "selection"} <= set(cost.stages_ms)
    times = (cost.crops_ms, cost.dense_ms, cost.image_ms, cost.keyframe_ms, cost.between_ms)
    assert all(ms > 0 for ms in times)
    assert cost.interval == 30


def _embedding(vectors: np.ndarray) -> Embedding:
    """`[N, D]` vectors as one row of places."""
    return Embedding(vectors.T[:, None].astype(np.float32), "s", joint=True)


def test_variance_along_known_directions() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4000, 32))
    basis = np.eye(32, dtype=np.float32)[:16]
    pca = Pca("s", np.zeros(32, np.float32), basis, np.ones(16, np.float32), 32.0, 4000)
    own, best = variance_kept(pca, [_embedding(vectors[:2000]), _embedding(vectors[2000:] + 5)])
    # The jump between the two lies along all directions alike.
    assert own == pytest.approx(0.5, abs=0.02)
    assert own is not None
    assert best > own
    flat = vectors.copy()
    flat[:, 16:] = 3
    assert variance_kept(pca, [_embedding(flat)]) == pytest.approx((1, 1))
    assert variance_kept(None, [_embedding(flat)])[0] is None


def test_what_is_asked_is_found_as_well_in_16_channels() -> None:
    settings = Settings().with_values({"keyframes.embeddings": "clip"})
    encoder, embedder = make_text_encoder(settings), make_embedder(settings)
    assert encoder is not None
    scenes = [make_scene(np.random.default_rng([5, i]), (320, 256), (3, 5)) for i in range(2)]
    grid = Grid.for_size((320, 256))
    features = [embedder.embed(KeyframeInput(Frame(0, 0.0, scene.rgb), grid)) for scene in scenes]
    found = retrieval(scenes, features, encoder, find_pca(settings, encoder), asked=True)
    assert found.texts > 2
    assert found.full == found.channels > 0.5
    assert found.kept == 1


def test_unknown_parts_are_refused(measure: Run) -> None:
    with pytest.raises(InvalidSetting, match="choose from"):
        bench_claims(["moon"], SMALL)
    code, _, err = measure("claims", "--part", "moon")
    assert code != 0
    assert "moon" in err
    assert set(PARTS) == {"video", "projection", "texture", "regions"}


def test_command_line(measure: Run, tmp_path: Path) -> None:
    import json

    settings = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid")
    code, out, _ = measure("claims", "--quick", "--part", "texture", "--size", "96x64", *settings, "--json")
    assert code == 0
    printed = json.loads(out)
    assert len(printed["claims"]) == len(printed["tables"][0]["rows"]) == 10
    assert {claim["part"] for claim in printed["claims"]} == {"texture"}
