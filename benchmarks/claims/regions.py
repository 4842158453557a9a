"""Claims about regions: the cascade, culling, clusters made seldom and carried, text looked for before it is read."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from arr_stream.evaluation.tables import ResultTable
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters import make_clusterer
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator
from arr_stream.keyframes.text import make_text_finder
from arr_stream.pipeline import Pipeline
from arr_stream.selection.cascade import CULL_EDGE_DISTANCE, SAVING
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.visual import edge_distance, polar_edges
from arr_stream.types import FloatArray, Frame, Grid
from benchmarks.cascade import CascadeReport, evaluate_cascade, generated_cases
from benchmarks.claims.base import Claim, ClaimsPlan, median_ms
from benchmarks.scenes.shapes import make_scene

_claim = partial(Claim, "regions")
HALF_CELLS_LEVEL = 4
SIDE_PX = 1024
"""Halves of cells of such a picture are the 4096 places that the claim is about."""

BUDGETS = (40, 101, 273)
CLAIMED_CULL_DISTANCE = 0.8


def regions_claims(plan: ClaimsPlan) -> tuple[list[Claim], list[ResultTable]]:
    """Shares counted on generated scenes, times on the plan's clip."""
    clusterer = make_clusterer(plan.settings, at_once=True)
    plan.progress(f"regions: the cascade on {plan.scenes} scenes")
    report = evaluate_cascade(generated_cases(plan.scenes, side_px=SIDE_PX), BUDGETS, clusterer, level=HALF_CELLS_LEVEL)
    plan.progress("regions: culling")
    distances = edge_distances(plan)
    plan.progress("regions: clusters and text")
    return [*_cascade(report), *_culling(distances), *_clusters(plan), *_text(plan)], []


def _cascade(report: CascadeReport) -> list[Claim]:
    worst = min(report.rows, key=lambda row: row.saving)
    on = f"eval cascade --half-cells --side {SIDE_PX}"
    faster = float(np.median([row.all_ms / row.cascade_ms for row in report.rows]))
    lost = max(report.rows, key=lambda row: row.lost)
    return [
        _claim(
            f"the cascade scores fewer of {worst.places} places",
            8,
            worst.saving,
            "x",
            f"{on}: the worst picture and budget, {worst.scored_most} scored; the cascade stops at one place in "
            f"{SAVING}",
            at_least=True,
            by_construction=True,
        ),
        _claim(
            "... and finds the object as well",
            0.02,
            lost.lost,
            "%",
            f"{on}: share of the coverage lost, the worst set and budget ({lost.kind}, {lost.tokens} tokens)",
            own_limit=True,
        ),
        _claim(
            "... and takes less time",
            8,
            faster,
            "x",
            f"{on}: process time of scoring all places over that of the cascade, median of sets and budgets",
            at_least=True,
        ),
    ]


def edge_distances(plan: ClaimsPlan) -> FloatArray:
    """Distance to the nearest edge, over the diagonal, of many places of generated scenes."""
    found = []
    for index in range(plan.scenes):
        scene = make_scene(np.random.default_rng([7, index]), plan.size_wh)
        found.append(Frame(0, 0.0, scene.rgb))
    pictures = (Pictures(frame, Grid.for_size(plan.size_wh)) for frame in [*found, *plan.frames])
    return np.concatenate([edge_distance(polar_edges(picture.quarter_grey)).ravel() / 255 for picture in pictures])


def _culling(distances: FloatArray) -> list[Claim]:
    return [
        _claim(
            f"places farther than {limit} from any edge, which are skipped{remark}",
            0.3,
            float((distances > limit).mean()),
            "%",
            f"channel 12 of generated scenes; the farthest place lies at {distances.max():.2f} of the diagonal",
            at_least=True,
        )
        for limit, remark in ((CLAIMED_CULL_DISTANCE, ""), (CULL_EDGE_DISTANCE, " (the limit in use)"))
    ]


def _clusters(plan: ClaimsPlan) -> list[Claim]:
    """Clusters alone on keyframes, carried between: what the claim's arithmetic is about."""
    clusterer = make_clusterer(plan.settings, at_once=True)
    grid = Grid.for_size(plan.size_wh)
    picture = plan.frames[0]
    made_ms = median_ms(lambda: clusterer.cluster(KeyframeInput(picture, grid)), plan.rounds)
    settings = plan.settings.with_values({"keyframes.min_confidence": 0.0, "keyframes.cut_threshold": 1.0})
    pipeline = Pipeline(settings, InStepKeyframes(StandardGenerator(clusterer)), clock=time.perf_counter)
    carried_ms = []
    for frame in plan.frames:
        patches = pipeline.step(frame)
        started = time.perf_counter()
        patches.texture.plane(CHANNEL_INDEX["cluster"])
        read_ms = (time.perf_counter() - started) * 1e3
        if not patches.keyframe:
            carried_ms.append(patches.latency_ms["flow"] + patches.latency_ms["carry"] + read_ms)
    between_ms, interval = float(np.median(carried_ms)), plan.settings.keyframes.interval
    name = clusterer.cluster(KeyframeInput(picture, grid)).method
    return [
        _claim("about 50 regions by SLIC", 5, made_ms, "ms", name, other_machine=True),
        _claim(
            "regions every 30th frame, carried between: (50 + 29 x 2) / 30",
            3.6,
            (made_ms + (interval - 1) * between_ms) / interval,
            "ms",
            f"{name} {made_ms:.1f} ms in place of SAM, flow and carrying {between_ms:.2f} ms, every {interval} frames",
            other_machine=True,
        ),
        _claim("regions by SAM", 50, None, "ms", "its weights do not come with the project"),
    ]


def _text(plan: ClaimsPlan) -> list[Claim]:
    if plan.settings.keyframes.text == "none":
        return [_claim("text is looked for", 10, None, "ms", "keyframes.text=none looks for none")]
    finder, grid = make_text_finder(plan.settings, plan.threads), Grid.for_size(plan.size_wh)
    pictures = (plan.frames[0], plan.frames[-1])
    looked_ms = [median_ms(partial(finder.find, KeyframeInput(frame, grid)), plan.rounds) for frame in pictures]
    how = f"{finder.name}, on a picture without any"
    return [_claim("text is looked for", 10, float(np.median(looked_ms)), "ms", how, other_machine=True)]
