"""The frame loop on a device: it passes the ordinary one's tests, chooses the same cells, and waits for nothing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tests.test_pipeline
import tests.test_pipeline_meaning
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.evaluation.coverage import score_cells
from arr_stream.evaluation.davis import tight_box
from arr_stream.evaluation.truth import load_truth
from arr_stream.gpu.figure import Figure, cues, see
from arr_stream.gpu.flow import DeviceFlow
from arr_stream.gpu.graphs import Captured, Constants, Flat, flatten, fused, unflatten
from arr_stream.gpu.loop import DevicePipeline
from arr_stream.gpu.memory import DeviceMemory, Trail, advanced
from arr_stream.gpu.region import Region, followed, region_relevance, sought
from arr_stream.gpu.selection import Choice, Seen, allocate
from arr_stream.keyframes.base import TextFinding
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator
from arr_stream.motion import make_flow
from arr_stream.motion.anchor import DEFAULT, RegionTracker
from arr_stream.motion.flow import Flow, FlowInput
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.figure import CUES, FigureMemory
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, parse_text
from arr_stream.selection.allocation import allocate_tokens
from arr_stream.selection.novelty import SeenCells
from arr_stream.sources import open_source
from arr_stream.texture.pictures import Pictures
from arr_stream.types import ByteArray, Frame, Grid, TextRegion
from tests.scenes import background, moving_square, square_cells
from tests.test_pipeline import *  # noqa: F403 - the same tests, on the other loop
from tests.test_pipeline_meaning import *  # noqa: F403

CPU = torch.device("cpu")
SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"
SQUARE = (100, 120, 80, 80)
# The ordinary loop's flow, so that a difference is the loop's own.
SHARED_FLOW = {"motion.flow": "dis"}
SETTINGS = Settings().with_values({"selection.budget": "30", "keyframes.interval": 6, **SHARED_FLOW})

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


@pytest.fixture(autouse=True)
def _on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordinary loop's tests, gathered above, get this one."""
    for module in (tests.test_pipeline, tests.test_pipeline_meaning):
        monkeypatch.setattr(module, "Pipeline", _device_pipeline)


def _device_pipeline(settings: Settings, *given: object, **named: object) -> DevicePipeline:
    if settings.motion.flow == "auto":
        settings = settings.with_values(SHARED_FLOW)
    return DevicePipeline(settings, *given, **named, device="cpu")  # type: ignore[arg-type]


class _Signs:
    """Finds one word at the square's first place."""

    name = "signs"

    def find(self, picture: object, *, read: bool) -> TextFinding:
        corners = ((0.1, 0.25), (0.45, 0.25), (0.45, 0.6), (0.1, 0.6))
        mask = np.zeros((96, 128), np.float32)
        mask[24:58, 13:58] = 1
        return TextFinding(mask, (TextRegion(corners, 0.9, "OPEN"),))


def _scene(count: int = 14) -> list[Frame]:
    return moving_square(count, (384, 512), start_xy=SQUARE[:2], step_xy=(5, 2), side=SQUARE[2])


def _provider() -> InStepKeyframes:
    return InStepKeyframes(StandardGenerator(GridClusterer(12), make_embedder(SETTINGS), _Signs()))


def _both(queries: tuple[Query, ...], settings: Settings = SETTINGS) -> tuple[Pipeline, DevicePipeline]:
    return Pipeline(settings, _provider(), queries), DevicePipeline(settings, _provider(), queries, device="cpu")


def _with_torch_flow(settings: Settings = SETTINGS) -> Settings:
    return settings.with_values({"motion.flow": "torch"})


def _cells(patches: PatchSet) -> dict[tuple[int, int, int], int]:
    places = zip(patches.rows.tolist(), patches.columns.tolist(), patches.level.tolist(), strict=True)
    return {place: at for at, place in enumerate(places)}


def _overlap(one: PatchSet, other: PatchSet) -> float:
    return len(_cells(one).keys() & _cells(other).keys()) / len(one)


QUERIES: dict[str, tuple[Query, ...]] = {
    "nothing": (),
    "colour": (parse_text("red"),),
    "place and motion": (parse_text("red left moving"),),
    "stillness": (parse_text("still"),),
    "a word": (parse_text('"open"'),),
    "unknown": (parse_text("zebra"),),
    "region": (RegionQuery(SQUARE),),
    "later region": (RegionQuery((110, 124, 80, 80), 2 / 30),),
    "example": (ExampleQuery(Path("x.png"), np.ascontiguousarray(_scene(1)[0].rgb[130:190, 110:170])),),
    "several": (parse_text("red"), RegionQuery(SQUARE), parse_text("green moving")),
}


@pytest.mark.parametrize("asked", QUERIES)
def test_it_chooses_the_same_cells_for_the_same_reasons(asked: str) -> None:
    host, device = _both(QUERIES[asked])
    overlaps, differences, agreeing = [], [], []
    for frame in _scene():
        one, other = host.step(frame), device.step(frame)
        assert other.refresh_reason == one.refresh_reason and other.parts == one.parts
        assert other.keyframe_age == one.keyframe_age and len(other) == len(one)
        assert other.confidence == pytest.approx(one.confidence, abs=1e-3)
        assert other.query_scores == pytest.approx(one.query_scores, abs=0.02)
        assert (np.diff(other.score) <= 0).all()
        overlaps.append(_overlap(one, other))
        differences.append(np.abs(one.relevance - other.relevance).mean())
        at, there = _cells(one), _cells(other)
        for name in ("scorer", "query", "carried", "fresh"):
            same = [getattr(one, name)[at[c]] == getattr(other, name)[there[c]] for c in at.keys() & there.keys()]
            agreeing.append(np.mean(same))
    assert np.mean(overlaps) >= 0.92
    assert np.mean(differences) < 0.002
    assert np.mean(agreeing) >= 0.97


@pytest.mark.parametrize("asked", ["colour", "region", "example"])
def test_with_a_flow_of_its_own_it_still_chooses_the_same_cells(asked: str) -> None:
    host = Pipeline(SETTINGS, _provider(), QUERIES[asked])
    device = DevicePipeline(_with_torch_flow(), _provider(), QUERIES[asked], device="cpu")
    overlaps = [_overlap(host.step(frame), device.step(frame)) for frame in _scene(10)]
    assert np.mean(overlaps) >= 0.85


@pytest.mark.parametrize(
    "changes",
    [
        {"selection.cascade": "on"},
        {"selection.strategy": "canonical"},
        {"selection.strategy": "hybrid", "selection.novelty": "skip"},
        {"selection.novelty": "skip"},
        {"selection.novelty": "off", "selection.levels": False},
        {"scoring.commitment": 0.0, "scoring.motion": 0.1},
        {"scoring.commitment": 0.0, "scoring.figure": 0.0, "scoring.text": 1.0},
    ],
)
def test_settings_mean_the_same(changes: dict[str, object]) -> None:
    host, device = _both(QUERIES["colour"])
    frames = _scene(6)
    for frame in frames[:2]:
        host.step(frame), device.step(frame)
    for pipeline in (host, device):
        pipeline.configure(SETTINGS.with_values(changes))
    overlaps = []
    for frame in frames[2:]:
        one, other = host.step(frame), device.step(frame)
        overlaps.append(_overlap(one, other))
        assert other.cells_scored == one.cells_scored and len(other) == len(one)
    assert np.mean(overlaps) >= 0.92


PARTS_OF_SCORES = [
    "edges",
    "high_pass",
    "structure",
    "text",
    "saliency",
    "motion",
    "figure",
    "fovea",
    "commitment",
    "stay",
]


def _scored_by(part: str) -> Settings:
    """Settings by which one part of the scores decides alone."""
    weights = dict.fromkeys(PARTS_OF_SCORES, 0.0) | {"information": 1.0, "perspective": 1.0, part: 1.0}
    return SETTINGS.with_values({f"scoring.{name}": weight for name, weight in weights.items()})


@pytest.mark.parametrize("cascade", ["auto", "on"])
@pytest.mark.parametrize("part", ["figure", "text"])
def test_what_moves_and_what_is_written_count_the_same(part: str, cascade: str) -> None:
    settings = _scored_by(part).with_values({"selection.cascade": cascade})
    host, device = _both((), settings)
    differences, highest = [], []
    for frame in _scene():
        one, other = host.step(frame), device.step(frame)
        differences.append(np.abs(one.relevance - other.relevance).mean())
        highest.append(other.relevance.max())
        assert other.scorer[0] == one.scorer[0]
    assert max(differences) < 0.002
    # On the first frame nothing is known to move; what is written is read on it.
    assert highest[-1] > 0.2 and (highest[0] > 0.2) == (part == "text")


def test_text_goes_with_what_it_is_written_on() -> None:
    settings = _scored_by("text").with_values({"keyframes.interval": 100, "keyframes.min_confidence": 0.0})
    device = DevicePipeline(settings, _provider(), device="cpu")
    scenery = background((384, 580))
    centres = []
    for index in range(13):
        frame = Frame(index, index / 30, np.ascontiguousarray(scenery[:, 60 - 5 * index : 572 - 5 * index]))
        weight = device.step(frame).relevance.sum(axis=0)
        centres.append((weight @ np.arange(len(weight))) / weight.sum())
    # Twelve steps of five pixels to the right; a cell has 32.
    assert centres[-1] - centres[0] == pytest.approx(60 / 32, abs=0.2)


@pytest.mark.parametrize("flow", ["dis", "torch"])
def test_what_moves_is_chosen_without_a_query(flow: str) -> None:
    changes = {"motion.flow": flow, "selection.budget": "8", "selection.levels": False}
    device = DevicePipeline(_scored_by("figure").with_values(changes), _provider(), device="cpu")
    within = []
    for frame in _scene(8):
        patches = device.step(frame)
        covered = square_cells(frame, start_xy=SQUARE[:2], step_xy=(5, 2), side=SQUARE[2])
        within.append(np.mean([cell in covered for cell in zip(patches.rows, patches.columns, strict=True)]))
    assert np.mean(within[2:]) >= 0.9


@pytest.mark.parametrize("hw", [(384, 512), (256, 320)])
def test_what_moved_is_forgotten_at_a_cut_and_at_a_change_of_size(hw: tuple[int, int]) -> None:
    device = DevicePipeline(_scored_by("figure"), _provider(), device="cpu")
    moving = [device.step(frame).relevance.max() for frame in _scene(5)]
    still = np.ascontiguousarray(255 - _scene(1)[0].rgb[: hw[0], : hw[1]])
    after = [device.step(Frame(5 + at, (5 + at) / 30, still)).relevance.max() for at in range(3)]
    assert moving[-1] > 0.3 and max(after) < 1e-4


def test_the_figure_is_the_same_from_the_same_frames() -> None:
    rng = np.random.default_rng(3)
    grid = Grid.for_size((320, 224))
    eighth = grid.rows * 4, grid.columns * 4
    host, memory = FigureMemory(grid), DeviceMemory(grid, CPU)
    expected = np.zeros(0)
    for _ in range(6):
        rgb = rng.integers(0, 256, (*eighth, 3)).astype(np.uint8)
        rgb[8:16, 8:20] = (200, 40, 30)
        detail = rng.integers(0, 256, (grid.rows * 8, grid.columns * 8)).astype(np.uint8)
        motion = np.zeros(eighth, np.float32)
        motion[8:16, 8:20] = rng.random((8, 12))
        offset_px = rng.normal(scale=2, size=(*eighth, 2)).astype(np.float32)
        flow = Flow(offset_px, np.ones(eighth, np.float32), np.zeros(eighth, np.float32), 1)
        expected = host.see(rgb, detail, motion, flow)
        cue = cues(torch.from_numpy(rgb).permute(2, 0, 1).float(), torch.from_numpy(detail) / 255)
        memory.move(advanced(memory.moving, DeviceFlow.from_numpy(flow, CPU)))
        memory.figure, figure = see(memory.figure, cue, torch.from_numpy(motion))
        assert figure.numpy() == pytest.approx(expected, abs=2e-3)
        assert memory.figure.motion.numpy() == pytest.approx(host._motion, abs=2e-3)
    assert expected.max() > 0.2
    memory.forget()
    assert not any(part.any() for part in (memory.figure.motion, memory.figure.gram, memory.figure.moment))


def test_nothing_is_carried_over_a_cut() -> None:
    queries = QUERIES["several"]
    host, device = _both(queries)
    frames = _scene(4)
    other_scene = [
        dataclasses.replace(frame, index=4 + at, pts_seconds=(4 + at) / 30, rgb=255 - frame.rgb)
        for at, frame in enumerate(_scene(3))
    ]
    reasons = []
    for frame in [*frames, *other_scene]:
        one, other = host.step(frame), device.step(frame)
        assert other.refresh_reason == one.refresh_reason
        reasons.append(other.refresh_reason)
        if other.refresh_reason == "cut":
            assert other.flow is None and not other.carried.any()
            assert other.texture.plane("fixation").max() == 0
            assert _overlap(one, other) >= 0.9
    assert reasons.count("cut") == 1


def test_low_confidence_is_acted_on_at_most_a_frame_later() -> None:
    settings = SETTINGS.with_values(
        {"keyframes.interval": 100, "keyframes.min_interval": 1, "keyframes.min_confidence": 0.9}
    )
    scenery = background((256, 640))
    frames = [Frame(i, i / 30, np.ascontiguousarray(scenery[:, 12 * i : 12 * i + 256])) for i in range(12)]
    when = []
    for pipeline in _both((), settings):
        reasons = [pipeline.step(frame).refresh_reason for frame in frames]
        when.append(reasons.index("confidence"))
    assert when[0] <= when[1] <= when[0] + 1


def test_a_texture_stays_as_it_was() -> None:
    pipeline = DevicePipeline(_with_torch_flow(), _provider(), QUERIES["colour"], device="cpu")
    frames = _scene(6)
    held = [pipeline.step(frame) for frame in frames[:3]]
    before = [patches.texture.dense().clone() for patches in held]
    for frame in frames[3:]:
        pipeline.step(frame)
    for patches, dense in zip(held, before, strict=True):
        assert torch.equal(patches.texture.dense(), dense)
    frames[0].rgb[:] = 0
    assert held[0].texture.dense()[0].max() > 0.5


def test_little_comes_back() -> None:
    pipeline = DevicePipeline(_with_torch_flow(), _provider(), QUERIES["several"], device="cpu")
    patches = pipeline.step(_scene(1)[0])
    # Seven numbers a chosen cell, one a cell, one a query, and three.
    expected = 4 * (7 * len(patches) + patches.grid.cells + 3 + 3)
    assert pipeline.report_bytes == expected < 0.02 * _scene(1)[0].rgb.nbytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="no NVIDIA GPU"):
        DevicePipeline(SETTINGS, _provider(), device="cuda")


@pytest.mark.parametrize(("name", "thing"), [("street", "car"), ("pan_zoom", None)])
def test_coverage_on_footage_is_the_same(name: str, thing: str | None) -> None:
    truth = load_truth(SAMPLES / f"{name}.truth.npz")
    object_id = truth.object_id(thing) if thing in truth.object_names else 1
    masks = truth.masks(object_id)
    first = int(masks.any(axis=(1, 2)).argmax())
    region = RegionQuery(tight_box(masks[first]), 0.0)
    settings = SETTINGS.with_values({"selection.budget": "10%"})
    with open_source(SAMPLES / f"{name}.mp4", max_frames=first + 16) as source:
        frames = [dataclasses.replace(frame, index=at) for at, frame in enumerate(list(source.frames())[first:])]
    coverage = [
        np.mean([_coverage(pipeline.step(frame), masks[first + frame.index]) for frame in frames])
        for pipeline in _both((region,), settings)
    ]
    assert coverage[0] > 0.5
    assert coverage[1] == pytest.approx(coverage[0], abs=0.02)


def _coverage(patches: PatchSet, mask: np.ndarray) -> float:
    return score_cells(mask, patches.cells_xyxy, patches.grid.cell_px)[0]


def test_cells_are_allocated_as_on_the_host() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        hw = tuple(rng.integers(1, 20, 2).tolist())
        score = (rng.random(hw) ** rng.integers(1, 9)).astype(np.float32)
        eligible = rng.random(hw) < rng.choice([0.1, 0.5, 1.0])
        eligible.flat[0] = True
        tokens = int(rng.integers(1, score.size + 1))
        expected = allocate_tokens(score, eligible, tokens, int(0.3 * tokens))
        choice = allocate(torch.from_numpy(score), torch.from_numpy(eligible), tokens, int(0.3 * tokens))
        count = int(choice.count)
        assert count == len(expected)
        assert choice.cell[:count].tolist() == (expected.rows * hw[1] + expected.columns).tolist()
        assert (2 * choice.coarse[:count].int()).tolist() == expected.level.tolist()
        assert choice.score[:count].numpy() == pytest.approx(expected.score, abs=1e-6)


def test_what_the_model_has_is_known_as_on_the_host() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        rows, columns = hw = tuple(rng.integers(1, 14, 2).tolist())
        host, device = SeenCells(Grid((columns * 32, rows * 32), rows, columns)), Seen.nothing(hw, CPU)
        grey = rng.integers(0, 255, (rows * 4, columns * 4)).astype(np.uint8)
        for _ in range(4):
            changed = np.kron(rng.random(hw) < 0.5, np.ones((4, 4)))
            grey = np.clip(grey + changed * rng.integers(0, 25, grey.shape), 0, 255).astype(np.uint8)
            score = (rng.random(hw) ** 6).astype(np.float32)
            tokens = int(rng.integers(1, score.size + 1))
            picture = torch.from_numpy(grey).float()
            everywhere = np.ones(hw, bool)
            sent = host.send(allocate_tokens(score, everywhere, tokens, tokens // 3), grey)
            choice = allocate(torch.from_numpy(score), torch.from_numpy(everywhere), tokens, tokens // 3)
            device, fresh = device.send(choice, picture)
            assert fresh[: int(choice.count)].tolist() == sent.tolist()
            assert device.known(picture).numpy().tolist() == host.known(grey).tolist()


def test_a_region_is_followed_as_on_the_host_and_found_again_after_a_cut() -> None:
    frames = _scene(12)
    grid = Grid.for_size(frames[0].size_wh)
    tracker, search, region = RegionTracker(), make_flow("dis"), None
    previous, quarter = None, np.zeros(0)
    for frame in frames:
        pictures = Pictures(frame, grid)
        quarter, present = pictures.quarter, FlowInput(pictures.grey, frame)
        rgb = torch.from_numpy(quarter).permute(2, 0, 1).float()
        if region is None or previous is None:
            box = np.zeros(quarter.shape[:2], np.float32)
            box[28:53, 23:48] = 1
            expected = tracker.start(quarter, box, exact=False)
            region = Region.learned(tracker, DEFAULT, CPU)
        elif frame.index == 8:
            expected, region = tracker.step(quarter, None), sought(region, rgb)
        else:
            flow = search.estimate(previous, present)
            expected = tracker.step(quarter, flow)
            region = followed(region, rgb, DeviceFlow.from_numpy(flow, CPU))
        previous = present
        found = region_relevance(region).numpy()
        assert np.abs(found - expected).mean() < 2e-3
        assert ((found > 0.5) != (expected > 0.5)).mean() < 2e-3 and (found > 0.5).any()
    # Something else altogether: it is not there any more, and says so.
    gone = sought(region, torch.from_numpy(255 - quarter).permute(2, 0, 1).float())
    assert gone.posterior.max() == 0 and region_relevance(gone).max() == 0


def test_values_come_apart_and_together_again() -> None:
    trail = Trail(torch.rand(2, 3, 2), torch.rand(2, 3))
    value = ({"a": trail, "b": (None, 3)}, parse_text("red"), torch.arange(3))
    tensors: list[torch.Tensor] = []
    form = flatten(value, tensors)
    assert len(tensors) == 3
    again = unflatten(form, tensors)
    assert again[0]["a"].confidence is trail.confidence and again[0]["b"] == (None, 3) and again[1] == value[1]
    other = ({"a": Trail.still((2, 3), CPU), "b": (None, 3)}, parse_text("red"), torch.arange(3))
    assert flatten(other, []) == form and hash(flatten(other, [])) == hash(form)
    for changed in (
        ({"a": trail, "b": (None, 4)}, parse_text("red"), torch.arange(3)),
        ({"a": trail, "b": (None, 3)}, parse_text("blue"), torch.arange(3)),
        ({"a": trail, "b": (None, 3)}, parse_text("red"), torch.arange(4)),
    ):
        assert flatten(changed, []) != form
    with pytest.raises(TypeError):
        flatten((np.zeros(3),), [])


def test_constants_are_what_nobody_made() -> None:
    given, shared = torch.rand(4), torch.rand(4)
    with Constants() as constants:
        (given * shared + given.sum()).clamp(min=shared.mean())
    assert [any(found is each for found in constants.found) for each in (given, shared)] == [True, True]
    assert len(constants.found) == 2


def test_without_a_gpu_a_step_is_called_as_it_is() -> None:
    calls = []
    step = Captured(lambda value: calls.append(value) or value, CPU)
    value = torch.rand(3)
    assert step(value) is value and step(value) is value and len(calls) == 2 and step.captures == 0


@pytest.mark.slow
def test_a_fused_step_gives_the_same() -> None:
    def step(choice: Choice, score: torch.Tensor) -> Choice:
        return dataclasses.replace(choice, score=allocate(score, score > 0.1, 12, 3).score * 2 + choice.score)

    score = torch.rand(6, 7)
    choice = allocate(score, score > 0.2, 12, 3)
    tensors: list[torch.Tensor] = []
    form = flatten(((choice, score), {}), tensors)
    flat = Flat(step, form)
    expected = flat(*tensors)
    got = fused(flat, tensors)(*tensors)
    for one, other in zip(expected, got, strict=True):
        assert torch.allclose(one, other)


NEVER_WAITS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from arr_stream.config import Settings
from arr_stream.gpu.asking import DeviceScene, ExampleTask, RegionTask, TextTask
from arr_stream.gpu.figure import Figure
from arr_stream.gpu.memory import Moving, Trail
from arr_stream.gpu.region import Region
from arr_stream.gpu.scoring import Evidence
from arr_stream.gpu.selection import Seen
from arr_stream.gpu.steps import Plan, choose, follow, glance
from arr_stream.motion.anchor import DEFAULT
from arr_stream.types import Grid

GRID = Grid.for_size((310, 200))
EIGHTH, QUARTER = (GRID.rows * 4, GRID.columns * 4), (GRID.rows * 8, GRID.columns * 8)


class Crossings(TorchDispatchMode):
    found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        devices = {t.device.type for t in tree_iter((args, kwargs, result)) if isinstance(t, torch.Tensor)}
        if "lift" in str(func) or ("copy" in str(func) and len(devices) > 1):
            self.found.append(str(func))
        return result


def frame(device):
    rgb = torch.zeros((200, 310, 3), dtype=torch.uint8, device=device)
    seen = glance(rgb, None, GRID)
    seen = glance(rgb, seen.histogram, GRID)
    way = Trail.still(EIGHTH, device)
    moving = Moving(torch.zeros((6, *EIGHTH), device=device), Figure.nothing(EIGHTH, device), (way, way))
    after = follow(seen.grey, seen.grey, seen.structure, seen.cues, moving, "PRESET", 1)
    place = torch.zeros(QUARTER, device=device)
    weights, beta = torch.zeros((13, 128), device=device), torch.zeros(129, device=device)
    region = Region(place, place, place.sum(), weights, beta, DEFAULT)
    table, half = torch.zeros(65536, device=device), torch.zeros((GRID.rows * 2, GRID.columns * 2), device=device)
    tasks = (
        TextTask(table, place, (place, place), True, None, None, False, False, False),
        TextTask(table, None, None, None, None, place, False, True, False),
        TextTask(None, place, (place,), False, half, None, True, False, True),
        RegionTask(region, False),
        ExampleTask(torch.zeros(32768, device=device)),
    )
    known = Seen.nothing((GRID.rows, GRID.columns), device)
    for novelty, flow, text in (("skip", after.flow, place), ("mark", None, None)):
        scene = DeviceScene(seen.quarter, after.motion, flow, way, way, way, 0.5)
        plan = Plan(GRID, 60, 6, novelty, Settings().scoring)
        evidence = Evidence(seen.visual, after.motion, after.moving.history, after.figure, text, way)
        choose(scene, evidence, seen.eighth_grey, tasks, known, plan)


with torch.no_grad():
    frame(torch.device("cpu"))  # what the host must know is known from here on, as numbers
    with FakeTensorMode(allow_non_fake_inputs=True):
        frame(torch.device("cuda"))  # and what the device must have is there
        with Crossings() as crossings:
            frame(torch.device("cuda"))
assert not crossings.found, crossings.found
"""


@pytest.mark.parametrize("preset", ["ultrafast", pytest.param("medium", marks=pytest.mark.slow)])
def test_no_step_waits_for_the_device(preset: str) -> None:
    """On a GPU that torch only pretends to have: reading a value, a shape that follows from values, or a tensor on the
    wrong side raises there, and copies between the sides are counted. In a process of its own, since constants that
    are made there are no real tensors."""
    script = NEVER_WAITS.replace("PRESET", preset)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@needs_cuda
@pytest.mark.parametrize("asked", QUERIES)
def test_a_gpu_chooses_the_same_cells(asked: str) -> None:
    settings = _with_torch_flow()
    on_cpu = DevicePipeline(settings, _provider(), QUERIES[asked], device="cpu")
    on_gpu = DevicePipeline(settings, _provider(), QUERIES[asked], device="cuda")
    plain = DevicePipeline(settings, _provider(), QUERIES[asked], device="cuda", graphs=False)
    overlaps, captured = [], []
    for frame in _scene():
        one, other, third = (pipeline.step(frame) for pipeline in (on_cpu, on_gpu, plain))
        assert not any("without a CUDA graph" in notice for notice in other.notices)
        overlaps.append(_overlap(one, other))
        captured.append(_overlap(third, other))
        assert np.abs(one.relevance - other.relevance).mean() < 0.01
    assert np.mean(overlaps) >= 0.9 and np.mean(captured) >= 0.98
    assert on_gpu.captures >= 3 and plain.captures == 0


@needs_cuda
def test_the_figure_is_learned_inside_a_graph() -> None:
    grid = Grid.for_size((320, 224))
    hw, device = (grid.rows * 4, grid.columns * 4), torch.device("cuda")
    step = Captured(see, device)
    captured = plain = Figure.nothing(hw, device)
    for seed in range(5):
        given = torch.Generator().manual_seed(seed)
        cue, motion = torch.randn((grid.cells, CUES), generator=given), torch.rand(hw, generator=given)
        captured, one = step(captured, cue.to(device), motion.to(device))
        plain, other = see(plain, cue.to(device), motion.to(device))
        assert torch.allclose(one, other, atol=1e-3)
    assert step.captures == 1 and not step.notices


@needs_cuda
def test_between_frames_nothing_waits_on_a_gpu() -> None:
    frames: list[Frame] = _scene(14)
    settings = _with_torch_flow(SETTINGS.with_values({"keyframes.interval": 100}))
    pipeline = DevicePipeline(settings, _provider(), QUERIES["several"], device="cuda")
    for frame in frames[:6]:
        pipeline.step(frame)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for frame in frames[6:]:
            pipeline.step(frame)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_a_texture_on_a_gpu_stays_as_it_was() -> None:
    pipeline = DevicePipeline(_with_torch_flow(), _provider(), QUERIES["colour"], device="cuda")
    frames = _scene(10)
    held = [pipeline.step(frame) for frame in frames[:6]]
    before = [patches.texture.dense().clone() for patches in held]
    for frame in frames[6:]:
        pipeline.step(frame)
    for patches, dense in zip(held, before, strict=True):
        assert torch.equal(patches.texture.dense(), dense)


@needs_cuda
def test_a_picture_uploaded_is_the_picture() -> None:
    from arr_stream.gpu.transfer import Download, Upload

    upload, download = Upload(torch.device("cuda")), Download()
    for seed in range(3):
        rgb: ByteArray = np.random.default_rng(seed).integers(0, 256, (33, 47, 3), np.uint8)
        there = upload(rgb)
        back = download.start(there.float().flatten())()
        assert np.array_equal(back.reshape(rgb.shape), rgb)
