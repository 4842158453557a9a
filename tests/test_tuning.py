"""Tuning: the relaxed choice is what it claims to be, gradients go through the scorers' own code, held-out footage is
left alone until the end, and what moves wins where what moves is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from arr_stream.cli.tune import tune as tune_command
from arr_stream.config import ScoringSettings, Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting, NoGain, OutputExists, OutputUnwritable
from arr_stream.evaluation.coverage import object_shares, score_cells
from arr_stream.evaluation.footage import Footage
from arr_stream.relevance.scorers import CHANNEL_NAMES, Change, Sample
from arr_stream.tuning.fitting import (
    NAMES,
    FrameTable,
    as_weights,
    fit,
    hard_coverage,
    hard_topk,
    leaf,
    soft_coverage,
    soft_topk,
)
from arr_stream.tuning.recording import Kind, run
from arr_stream.tuning.report import TuneReport
from arr_stream.tuning.tuner import VALIDATION_PART, tune
from arr_stream.types import Frame, Grid
from tests.scenes import background

QUICK = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "10%"})
BLIND = QUICK.with_values(
    {"scoring.motion": 0.05, "scoring.figure": 0.1, "scoring.saliency": 1.0, "scoring.information": 1.0}
    | {"scoring.change": 0.0, "scoring.change_moving": 0.0}
)
"""Weights that look at what is colourful and detailed instead of at what moves."""

# --- the relaxed choice


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.floats(0.01, 3.0), st.floats(1e-3, 1e3))
def test_soft_shares_spend_the_budget(seed: int, n: int, temperature: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=(3, n)) * scale)
    count = torch.from_numpy(rng.integers(1, n, 3)).double()
    shares = soft_topk(scores, count, temperature * scale)
    assert shares.min() >= 0 and shares.max() <= 1
    assert shares.sum(dim=1).tolist() == pytest.approx(count.tolist(), abs=1e-6)
    # A better place never has less.
    order = scores.argsort(dim=1)
    assert (shares.gather(1, order).diff(dim=1) >= -1e-9).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_soft_shares_become_the_hard_choice(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(np.stack([rng.permutation(n) for _ in range(2)]).astype(np.float64))
    count = torch.from_numpy(rng.integers(1, n, 2)).double()
    assert torch.allclose(soft_topk(scores, count, 0.01), hard_topk(scores, count), atol=1e-6)


# --- weights


def _table(seed: int, *, answered: bool, moving: bool = False, cells: int = 60, fine: int = 8) -> FrameTable:
    """Random channels; the object is where motion is high."""
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.random((cells, len(CHANNEL_NAMES)), np.float32)) * 0.5
    relevance = torch.from_numpy(rng.random(cells, np.float32)) * (0.7 if answered else 0.0)
    motion = values[:, CHANNEL_NAMES.index("motion")]
    share = (motion >= motion.sort().values[-fine]).float()
    figure = torch.from_numpy(rng.random(cells, np.float32)) * (0.5 if moving else 0.0)
    change = Change(figure**2, *(torch.full((cells,), value if moving else 0.0) for value in (0.8, 0.5)))
    sample = Sample(values, relevance, figure, figure.max().expand(cells), torch.zeros(cells), change)
    return FrameTable(sample, share / share.sum(), fine)


def test_gradients_reach_every_weight() -> None:
    values = leaf(ScoringSettings())
    frames = [_table(seed, answered=seed % 2 == 0, moving=True) for seed in range(4)]
    soft_coverage(frames, as_weights(values), 0.5).backward()
    assert values.grad is not None
    grads = dict(zip(NAMES, values.grad.tolist(), strict=True))
    assert all(np.isfinite(value) and value != 0 for value in grads.values()), grads


# --- fitting


def _cases(first: int, *, count: int = 3, frames: int = 6) -> list[list[FrameTable]]:
    return [[_table(first + 100 * case + frame, answered=False) for frame in range(frames)] for case in range(count)]


def test_a_fit_finds_what_marks_the_object_and_repeats_itself_to_the_bit() -> None:
    start = ScoringSettings(motion=0.1, saliency=0.6)
    training, validation = _cases(0), _cases(5000)
    first, again = (fit(training, validation, start, steps=60) for _ in range(2))
    assert first == again
    assert hard_coverage(validation, first) > hard_coverage(validation, start) + 0.2
    assert first.motion > 0.3 > first.saliency


# --- records


@given(st.integers(32, 200), st.integers(32, 160), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_shares_are_what_coverage_counts(width: int, height: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((height, width)) < 0.2
    mask[0, 0] = True
    grid = Grid.for_size((width, height))
    share = object_shares(mask, grid).ravel()
    assert share.sum() == pytest.approx(1, abs=1e-5)
    cells = rng.permutation(grid.cells)[: rng.integers(1, grid.cells + 1)].astype(np.int32)
    rows, columns = np.divmod(cells, np.int32(grid.columns))
    rectangles = grid.cells_xyxy(rows, columns, np.ones_like(rows))
    assert share[cells].sum() == pytest.approx(score_cells(mask, rectangles, grid.cell_px)[0], abs=1e-5)


SIDE = 40


@lru_cache(maxsize=8)
def _walk(name: str, seed: int, step_xy: tuple[int, int], count: int = 14) -> Footage:
    """A plain grey patch of the scenery's own kind walks; a bright red one beside it stays."""
    rng = np.random.default_rng(seed)
    scenery = background((192, 256), seed)
    scenery[16:80, 176:240] = (230, 30, 30)
    scenery[16:80, 176:240:4] = (250, 220, 40)
    patch = np.repeat(rng.integers(60, 150, (SIDE, SIDE, 1), np.uint8), 3, axis=2)
    frames, masks = [], []
    for index in range(count):
        x, y = 20 + index * step_xy[0], 110 + index * step_xy[1]
        rgb, mask = scenery.copy(), np.zeros((192, 256), bool)
        rgb[y : y + SIDE, x : x + SIDE] = patch
        mask[y : y + SIDE, x : x + SIDE] = True
        frames.append(Frame(index, index / 30, rgb))
        masks.append(mask)
    return Footage(name, Path(name), lambda: list(frames), lambda: list(masks))


def _walks() -> list[Footage]:
    steps = ((5, 1), (6, 0), (7, 1), (5, -2))
    return [_walk(f"walk{number}", number, step) for number, step in enumerate(steps)]


@pytest.mark.parametrize("kind", ["nothing", "region"])
def test_records_lead_to_the_choice_that_the_pipeline_made(kind: Kind) -> None:
    found = run(_walks()[0], kind, QUICK)
    assert len(found.tables) == len(found.coverage) == 13, "all but the first"
    # Without coarse cells the choice is the best of the scores, so that records must give the true coverage.
    assert hard_coverage([found.tables], QUICK.scoring) == pytest.approx(float(found.coverage.mean()), abs=1e-4)


def test_the_first_frame_and_frames_without_the_object_do_not_count() -> None:
    walk = _walk("walk", 0, (5, 1))
    masks = walk.masks()
    masks[4] = np.zeros_like(masks[4])
    found = run(replace(walk, masks=lambda: masks), "nothing", QUICK)
    assert len(found.coverage) == len(found.tables) == 12


# --- the whole


tune_quickly = partial(tune, settings=BLIND, kinds=("nothing",), rounds=2, steps=60)


@lru_cache(maxsize=1)
def _toy() -> TuneReport:
    return tune_quickly(_walks())


def test_where_the_moving_thing_is_right_motion_wins() -> None:
    report = _toy()
    before, after = np.mean([*report.means(report.held_out)["nothing"].values()], axis=0)
    assert report.weights.change > report.start.change + 0.1
    assert report.weights.motion > report.start.motion
    assert after > before + 0.2
    assert report.held_out == ("walk1", "walk3")


def test_held_out_footage_is_not_read_before_the_weights_are_final() -> None:
    events: list[str] = []

    def noted(footage: Footage, name: str) -> Footage:
        def told(read: Callable[[], list]) -> Callable[[], list]:
            def reading() -> list:
                events.append(f"read {name}")
                return read()

            return reading

        return replace(footage, frames=told(footage.frames))

    walks = [noted(footage, footage.name) for footage in _walks()]
    tune_quickly(walks, rounds=1, steps=10, progress=lambda what, done, of: events.append(what))
    last_fit = max(place for place, event in enumerate(events) if event.startswith(("fit", "round")))
    first_look = min(place for place, event in enumerate(events) if event in ("read walk1", "read walk3"))
    assert first_look > last_fit > 0


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("seen", [range(0), range(1), range(1, 14), range(VALIDATION_PART)])
def test_footage_with_too_few_masks_is_named_before_anything_runs(place: int, seen: range) -> None:
    def refused(what: str, done: int, of: int) -> None:
        raise AssertionError("something ran")

    walks = _walks()
    masks = [mask if index in seen else np.zeros_like(mask) for index, mask in enumerate(walks[place].masks())]
    walks[place] = replace(walks[place], masks=lambda: masks)
    with pytest.raises(EvaluationDataError, match=f"{walks[place].name}: .* first frame"):
        tune_quickly(walks, kinds=("nothing", "region"), progress=refused)


# --- the command

app = typer.Typer()
app.command()(tune_command)


def _write(folder: Path, footage: Footage) -> None:
    """In the layout of DAVIS."""
    for part in ("frames", "masks"):
        (folder / part / footage.name).mkdir(parents=True)
    for frame, mask in zip(footage.frames(), footage.masks(), strict=True):
        cv2.imwrite(str(folder / "frames" / footage.name / f"{frame.index:05}.jpg"), frame.rgb[..., ::-1])
        cv2.imwrite(str(folder / "masks" / footage.name / f"{frame.index:05}.png"), mask.astype(np.uint8) * 255)


_QUICK_COMMAND = ["--ask", "nothing", "--rounds", "1"]
_QUICK_COMMAND += [part for name in ("walk1", "walk2", "walk3") for part in ("--hold-out", name)]
_QUICK_COMMAND += ["--set", "keyframes.text=none", "--set", "keyframes.clusters=grid"]


def test_weights_that_do_worse_on_held_out_footage_are_not_written(tmp_path: Path) -> None:
    moving, *others = _walks()
    _write(tmp_path / "data", moving)
    still = np.zeros((192, 256), bool)
    still[16:80, 176:240] = True
    for each in others:
        # The object is the patch that stays, so that weights fitted to a moving one lose.
        _write(tmp_path / "data", replace(each, masks=lambda: [still] * 14))
    out, weights = tmp_path / "w.toml", ["--set", "scoring.motion=0.05", "--set", "scoring.saliency=1.0"]
    arguments = [str(tmp_path / "data"), "--json", *_QUICK_COMMAND, *weights, "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, NoGain) and "w.toml not written: gain -" in str(done.exception)
    values = json.loads(done.stdout)
    assert values["gain"]["mean"] < -0.1 and not values["gain"]["reliable"] and values["preset"] is None
    assert not out.exists() and "use it" not in done.output


@pytest.mark.slow
def test_the_command_writes_a_preset(tmp_path: Path) -> None:
    data, out = tmp_path / "toy", tmp_path / "tuned.toml"
    for footage in _walks():
        _write(data, footage)
    overrides = ["scoring.motion=0.05", "scoring.saliency=1.0"]
    arguments = [str(data), "--json", *_QUICK_COMMAND, "--out", str(out)]
    arguments += [part for override in overrides for part in ("--set", override)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    values = json.loads(done.stdout)
    assert [table["title"].split()[0] for table in values["tables"]] == ["Coverage", "Weights"]
    assert (values["fitted"], values["held_out"]) == (["walk0"], ["walk1", "walk2", "walk3"])
    assert values["gain"]["reliable"] and values["gain"]["mean"] > 2 * values["gain"]["standard_error"] > 0
    assert out.read_text() == values["preset"]
    assert Settings.load(out, overrides).scoring.settling == values["scoring"]["settling"]
    with pytest.raises(OutputExists):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (("--out", "FOLDER"), OutputUnwritable, "is a folder"),
        (("--set", "loop.device=cuda"), InvalidSetting, "loop.device=cuda: tune"),
    ],
)
def test_the_command_refuses_before_footage_is_read(
    tmp_path: Path, options: tuple[str, ...], error: type[Exception], words: str
) -> None:
    given = [option.replace("FOLDER", str(tmp_path)) for option in options]
    with pytest.raises(error, match=words):
        CliRunner().invoke(app, [str(tmp_path / "no footage"), *given], catch_exceptions=False)
    assert not list(tmp_path.iterdir())
