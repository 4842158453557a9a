"""The frame loop on a device: it passes the ordinary one's tests, chooses the same cells, and waits for nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tests.test_pipeline
import tests.test_pipeline_meaning
from arr_stream.config import Settings
from arr_stream.gpu.device import TorchDevice
from arr_stream.gpu.graphs import flatten, unflatten
from arr_stream.keyframes.base import TextFinding
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator
from arr_stream.motion.flow import DisFlow, Flow, FlowInput
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.gaze import GazeTrack
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, parse_text
from arr_stream.stream import Models
from arr_stream.texture import CHANNELS
from arr_stream.types import ByteArray, Frame, TextRegion
from tests.device_checks import DEVICES
from tests.scenes import LONG_REGION, background, long_scene, moving_square
from tests.test_pipeline import *  # noqa: F403 - the same tests, on the other loop
from tests.test_pipeline_meaning import *  # noqa: F403

SQUARE = (100, 120, 80, 80)
SETTINGS = Settings().with_values({"selection.budget": "30", "keyframes.interval": 6})

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


@pytest.fixture(autouse=True)
def _on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordinary loop's tests, gathered above, get this one."""
    for module in (tests.test_pipeline, tests.test_pipeline_meaning):
        monkeypatch.setattr(module, "Pipeline", on_device)


class _HostFlow(DisFlow):
    """The ordinary loop's flow between pictures on a device."""

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        found = super().estimate(*(self._on_host(given) for given in (previous, present)))
        planes = (found.offset_px, found.confidence, found.residual)
        return Flow(*(torch.from_numpy(plane).to(previous.grey.device) for plane in planes))

    def _on_host(self, given: FlowInput) -> FlowInput:
        return FlowInput(given.grey.cpu().numpy().astype(np.uint8), given.frame)


class _WithHostFlow(TorchDevice):
    """A device with the ordinary loop's flow, so that a difference is the loop's own."""

    def make_flow(self) -> DisFlow:
        return _HostFlow()


def on_device(settings: Settings, *given: object, **named: object) -> Pipeline:
    return Pipeline(settings, *given, **{"device": _WithHostFlow("cpu"), **named})  # type: ignore[arg-type]


class _Signs:
    """Finds one word at the square's first place."""

    name = "signs"

    def find(self, picture: object) -> TextFinding:
        corners = ((0.1, 0.25), (0.45, 0.25), (0.45, 0.6), (0.1, 0.6))
        mask = np.zeros((96, 128), np.float32)
        mask[24:58, 13:58] = 1
        return TextFinding(mask, (TextRegion(corners, 0.9, "OPEN"),))


def _scene(count: int = 14) -> list[Frame]:
    return moving_square(count, (384, 512), start_xy=SQUARE[:2], step_xy=(5, 2), side=SQUARE[2])


def _provider() -> InStepKeyframes:
    return InStepKeyframes(StandardGenerator(GridClusterer(12), make_embedder(SETTINGS), _Signs()))


def _both(queries: tuple[Query, ...], settings: Settings = SETTINGS) -> tuple[Pipeline, Pipeline]:
    return Pipeline(settings, _provider(), queries), on_device(settings, _provider(), queries)


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


@pytest.mark.slow
def test_a_long_clip_with_clip_and_a_region_gets_the_same_cells() -> None:
    changes = {"keyframes.embeddings": "clip", "keyframes.text": "none", "keyframes.clusters": "grid"}
    settings = Settings().with_values({"selection.budget": "14", **changes})
    x, y, width, height = (float(edge) for edge in LONG_REGION.split(","))
    queries = RegionQuery((x, y, width, height)), parse_text("circle")
    models = Models.load(settings)
    host, device = (
        Pipeline(settings, InStepKeyframes(models.generator), queries, encoder=models.encoder, pca=models.pca, **named)
        for named in ({}, {"device": _WithHostFlow("cpu")})
    )
    steps = [(host.step(frame), device.step(frame)) for frame in long_scene()]
    assert len(steps) >= 300 and [one.index for one, _ in steps if one.refresh_reason == "cut"] == [192]
    assert all(other.refresh_reason == one.refresh_reason for one, other in steps)
    assert np.mean([_overlap(one, other) for one, other in steps]) >= 0.99


@pytest.mark.parametrize("asked", ["colour", "region", "example"])
def test_with_a_flow_of_its_own_it_still_chooses_the_same_cells(asked: str) -> None:
    host = Pipeline(SETTINGS, _provider(), QUERIES[asked])
    device = on_device(SETTINGS, _provider(), QUERIES[asked], device=TorchDevice("cpu"))
    overlaps = [_overlap(host.step(frame), device.step(frame)) for frame in _scene(10)]
    assert np.mean(overlaps) >= 0.85


@pytest.mark.parametrize(
    "changes",
    [
        {"selection.cascade": "on"},
        {"selection.strategy": "canonical"},
        {"selection.strategy": "tiers", "selection.novelty": "skip"},
        {"selection.novelty": "skip"},
        {"selection.novelty": "off", "selection.context_share": 0.1},
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


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("hw", [(384, 512), (239, 427), (91, 733)], ids=["whole cells", "odd", "wide"])
def test_all_channels_are_those_of_the_host(hw: tuple[int, int], name: str) -> None:
    gaze = GazeTrack(np.array([0.0, 0.1]), np.array([[0.5, 0.5], [0.3, 0.6]], np.float32))
    host = Pipeline(SETTINGS, _provider(), QUERIES["colour"], gaze=gaze)
    device = on_device(SETTINGS, _provider(), QUERIES["colour"], gaze=gaze, device=_WithHostFlow(name))
    for frame in moving_square(4, hw, start_xy=(40, 5), step_xy=(5, 2), side=80):
        one, other = host.step(frame), device.step(frame)
        for pipeline in (host, device):
            pipeline.attend(one.relevance)
    off = (other.texture.dense().cpu() - one.texture.dense()).abs().flatten(1)
    assert other.texture.dense().device.type == name
    for channel, planes in zip(CHANNELS, off, strict=True):
        if channel.interpolation == "nearest" or channel.name == "centroid_distance":
            # A place that lies half-way between two goes to either.
            assert (planes > 0.01).float().mean() < 0.01, channel.name
        else:
            # OpenCV rounds to bytes, and carries more than four channels at a time in steps of 1/32 pixel.
            assert planes.mean() < 0.006 and planes.quantile(0.99) < 0.12, channel.name


@pytest.mark.parametrize("name", DEVICES)
def test_a_texture_stays_as_it_was(name: str) -> None:
    pipeline = on_device(SETTINGS, _provider(), QUERIES["colour"], device=TorchDevice(name))
    frames = _scene(10)
    held = [pipeline.step(frame) for frame in frames[:6]]
    before = [patches.texture.dense().clone() for patches in held]
    for frame in frames[6:]:
        pipeline.step(frame)
    for patches, dense in zip(held, before, strict=True):
        assert torch.equal(patches.texture.dense(), dense)
    frames[0].rgb[:] = 0
    assert held[0].texture.dense()[0].max() > 0.5


def test_values_come_apart_and_together_again() -> None:
    trail = Flow(torch.rand(2, 3, 2), torch.rand(2, 3), torch.rand(2, 3))
    value = ({"a": trail, "b": (None, 3)}, parse_text("red"), torch.arange(3))
    tensors: list[torch.Tensor] = []
    form = flatten(value, tensors)
    assert len(tensors) == 4
    again = unflatten(form, tensors)
    assert again[0]["a"].confidence is trail.confidence and again[0]["b"] == (None, 3) and again[1] == value[1]
    other = ({"a": Flow.still((2, 3), torch.rand(1)), "b": (None, 3)}, parse_text("red"), torch.arange(3))
    assert flatten(other, []) == form and hash(flatten(other, [])) == hash(form)
    for changed in (
        ({"a": trail, "b": (None, 4)}, parse_text("red"), torch.arange(3)),
        ({"a": trail, "b": (None, 3)}, parse_text("blue"), torch.arange(3)),
        ({"a": trail, "b": (None, 3)}, parse_text("red"), torch.arange(4)),
    ):
        assert flatten(changed, []) != form
    with pytest.raises(TypeError):
        flatten((np.zeros(3),), [])


NEVER_WAITS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from arr_stream.config import Settings
from arr_stream.gpu.flow import estimate
from arr_stream.motion.camera import motion_between, visible_structure
from arr_stream.motion.flow import Flow
from arr_stream.motion.memory import with_selection
from arr_stream.motion.memory import Carried, carried
from arr_stream.motion.appearance import PixelModel
from arr_stream.motion.planes import CarriedPlane, region_planes
from arr_stream.motion.region import Region
from arr_stream.relevance.scorers import score_cells
from arr_stream.relevance.figure import Figure, see_figure
from arr_stream.relevance.query import parse_text
from arr_stream.relevance.kinds.base import QueryContext
from arr_stream.relevance.kinds.region import ExampleTask, RegionTask
from arr_stream.relevance.kinds.text import TextTask
from arr_stream.relevance.query_scorers import answer_queries
from arr_stream.texture.array import CELL_LEVEL, Plane, Texture
from arr_stream.texture.pixels import cell_difference
from arr_stream.texture.visual import frame_features, picture_channels
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
    look = frame_features(rgb, None, GRID)
    look = frame_features(rgb, look.colours, GRID)
    flow = estimate(look.grey, look.grey, EIGHTH)
    way = Flow.still(EIGHTH, rgb)
    moved = carried(Carried(torch.zeros((4, *EIGHTH), device=device), (way, way)), flow)
    motion = motion_between(flow, visible_structure(look.eighth_grey))
    _, figure = see_figure(Figure.nothing(motion, EIGHTH), look.eighth, look.high_pass, motion, flow)
    place = torch.zeros(QUARTER, device=device)
    weights, beta = torch.zeros((13, 128), device=device), torch.zeros(129, device=device)
    region = Region(place, place, place.sum(), PixelModel(weights, beta), exact=False)
    half = torch.zeros((GRID.rows * 2, GRID.columns * 2), device=device)
    tasks = (
        TextTask(parse_text('red left moving "open" "closed"'), (place, place)),
        TextTask(parse_text("red")),
        TextTask(parse_text('zebra left "open"'), (place,), by_model=True, meaning=half, embedded_before=True),
        RegionTask(region, False),
        ExampleTask(torch.zeros(32768, device=device)),
    )
    written = torch.zeros((1, *EIGHTH), device=device)
    for text, back in ((CarriedPlane(16, written, way, outside=0.0), flow), (Plane(16, written), None)):
        context = QueryContext(look.quarter, motion, back, way, way, way, 0.5, figure)
        relevance, _ = answer_queries(tasks, context, (GRID.rows, GRID.columns))
        planes = {**picture_channels(look, rgb, motion, GRID.texture_wh), 16: text, 36: Plane(36, moved.history)}
        score_cells(planes, GRID.texture_wh, relevance, figure, None, Settings().scoring)
        with_selection(moved.history, figure)
    cell_difference(look.eighth_grey, look.eighth_grey)
    ids = region_planes(lambda: torch.zeros(QUARTER, dtype=torch.int32, device=device), way)
    others = {18: CarriedPlane(18, half.expand(16, *half.shape), way), 34: Plane(34, motion[None].expand(2, *EIGHTH))}
    texture = Texture(GRID.texture_wh, {**planes, **ids, **others})
    texture.sample(torch.zeros((9, 2), device=device), 2, [12, 5, 11, 10, 33, 13])
    texture.mip(CELL_LEVEL, [12, 5, 11, 10, 33, 13])
    texture.dense()


with torch.no_grad():
    frame(torch.device("cpu"))  # what the host must know is known from here on, as numbers
    with FakeTensorMode(allow_non_fake_inputs=True):
        frame(torch.device("cuda"))  # and what the device must have is there
        with Crossings() as crossings:
            frame(torch.device("cuda"))
assert not crossings.found, crossings.found
"""


def test_no_step_waits_for_the_device() -> None:
    """On a GPU that torch only pretends to have: reading a value, a shape that follows from values, or a tensor on the
    wrong side raises there, and copies between the sides are counted. In a process of its own, since constants that
    are made there are no real tensors."""
    done = subprocess.run([sys.executable, "-c", NEVER_WAITS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@needs_cuda
@pytest.mark.parametrize("asked", QUERIES)
def test_a_gpu_chooses_the_same_cells(asked: str) -> None:
    on_cpu = on_device(SETTINGS, _provider(), QUERIES[asked], device=TorchDevice("cpu"))
    devices = TorchDevice("cuda"), TorchDevice("cuda", graphs=False)
    on_gpu, plain = (Pipeline(SETTINGS, _provider(), QUERIES[asked], device=device) for device in devices)
    overlaps, captured = [], []
    for frame in _scene():
        one, other, third = (pipeline.step(frame) for pipeline in (on_cpu, on_gpu, plain))
        overlaps.append(_overlap(one, other))
        captured.append(_overlap(third, other))
        assert np.abs(one.relevance - other.relevance).mean() < 0.01
    assert np.mean(overlaps) >= 0.9 and np.mean(captured) >= 0.98
    assert devices[0].captures >= 3 and devices[1].captures == 0


@needs_cuda
def test_between_frames_nothing_waits_on_a_gpu() -> None:
    frames: list[Frame] = _scene(14)
    settings = SETTINGS.with_values({"keyframes.interval": 100})
    pipeline = on_device(settings, _provider(), QUERIES["several"], device=TorchDevice("cuda"))
    for frame in frames[:6]:
        pipeline.step(frame)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for frame in frames[6:]:
            pipeline.step(frame)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_a_picture_uploaded_is_the_picture() -> None:
    device = TorchDevice("cuda")
    for seed in range(3):
        rgb: ByteArray = np.random.default_rng(seed).integers(0, 256, (33, 47, 3), np.uint8)
        (back,) = device.fetch((device.upload(rgb),))()
        assert np.array_equal(back, rgb)
