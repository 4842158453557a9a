"""What enters the picture between two keyframes: how soon does a question that a model answers find it?

Generated scenes under a still, a panning and a shaking camera. A keyframe on the first frame, then three things come in
from the sides, and one is asked for by colour and shape ("red circle"). The cells chosen at a twentieth of the grid are
scored by how much of it they show, as a share of what the best choice would, on each frame from the first on which all
of it is in view.

*Keyframe there* has one on the frame that is scored: the most that the model can do. Costs are of one interval, with
one keyframe at its start: what the model was given to look at, in cells, and the time that it took, beside those of the
keyframe alone. *Whole run* is processor time of everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.keyframes.base import Embedder, KeyframeInput, TextEncoder
from arr_stream.keyframes.beside import make_provider
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.keyframes.generate import StandardGenerator
from arr_stream.keyframes.text import NoText
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.types import Embedding, Frame
from benchmarks.localisation import HELD_OUT_SEED
from benchmarks.meaning import coverage_share
from benchmarks.scenes.camera import CAMERAS, Camera, camera_path
from benchmarks.scenes.shapes import Scene, entering_scene

INTERVAL = 30
BUDGET = "5%"
"""About as many cells as one of the things fills, so that what only moves cannot be shown as well."""
WITHIN = 5
"""Frames after it is whole in view by which a newcomer should be found."""
SCORED = (0, WITHIN, 8)
"""Frames after it is whole in view on which it is looked for."""
_WHOLE_AT = (12, 22)
_ROOM_WH = (80.0, 32.0)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A clip of one interval: the last of its things comes in, and is whole in view from frame `whole_at` on."""

    camera: Camera
    whole_at: int
    scenes: tuple[Scene, ...]


@dataclass(frozen=True, slots=True)
class EnteringRow:
    """One way to deal with what enters, on all clips.

    Args:
        name: What it is.
        coverage_share: On the frames `SCORED`, mean over clips.
        by_camera: The same `WITHIN` frames after, for each camera.
        seen_cells: What the model looked at in an interval.
        model_ms, run_ms: An interval's time in the model, and in everything.
    """

    name: str
    coverage_share: tuple[float, ...]
    by_camera: Mapping[Camera, float]
    seen_cells: float
    model_ms: float
    run_ms: float

    @property
    def within(self) -> float:
        return self.coverage_share[SCORED.index(WITHIN)]


@dataclass(frozen=True, slots=True)
class EnteringReport(Report):
    """Keyframes alone, with a look at what is new between them, and the bound."""

    clips: int
    today: EnteringRow
    looking: EnteringRow
    there: EnteringRow

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        today = self.today
        rows: tuple[tuple[Value, ...], ...] = tuple(
            (row.name, *row.coverage_share, *row.by_camera.values()) for row in (today, self.looking, self.there)
        )
        ages = ("", *(f"{age} frames on" for age in SCORED))
        costs = tuple(
            (row.name, row.seen_cells / today.seen_cells, row.model_ms / today.model_ms, row.run_ms / today.run_ms)
            for row in (today, self.looking)
        )
        return (
            ResultTable(
                f"Coverage of what entered, as a share of the best, {self.clips} clips",
                (*ages, *(f"{camera}, {WITHIN} on" for camera in CAMERAS)),
                rows,
            ),
            ResultTable(
                "Cost of an interval, as a multiple of keyframes alone",
                ("", "cells looked at", "model's time", "whole run's time"),
                costs,
            ),
        )

    def facts(self) -> Mapping[str, Any]:
        today, looking, there = self.today, self.looking, self.there
        return {
            "clips": self.clips,
            "rows": {row.name: row for row in (today, looking, there)},
            "share_of_keyframe": looking.within / there.within,
            "model_cost": looking.model_ms / today.model_ms,
            "cells_cost": looking.seen_cells / today.seen_cells,
            "run_cost": looking.run_ms / today.run_ms,
        }


class _Counted:
    """An embedder that counts the cells it is given and the time it takes."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.cells = 0
        self.milliseconds = 0.0

    @property
    def name(self) -> str:
        return self._embedder.name

    def embed(self, picture: KeyframeInput) -> Embedding:
        started = time.thread_time()
        made = self._embedder.embed(picture)
        self.milliseconds += (time.thread_time() - started) * 1e3
        self.cells += picture.grid.cells
        return made


def held_out_entries(scenes: int, interval: int = INTERVAL) -> Iterator[Entry]:
    """Each scene under each camera."""
    for index in range(scenes):
        whole_at = int(np.random.default_rng([HELD_OUT_SEED, 3, index]).integers(*_WHOLE_AT))
        for camera in CAMERAS:
            path = camera_path(camera, interval, _ROOM_WH, np.random.default_rng([HELD_OUT_SEED, 4, index]))
            drawn = entering_scene(
                np.random.default_rng([HELD_OUT_SEED, 5, index]), path - np.array(_ROOM_WH) / 2, whole_at
            )
            yield Entry(camera, whole_at, tuple(drawn))


def evaluate_entering(
    entries: Iterator[Entry],
    embedder: Embedder,
    encoder: TextEncoder,
    pca: Pca | None,
    *,
    settings: Settings | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> EnteringReport:
    """Ask every clip for what enters, three times.

    Args:
        entries: Clips of one interval each.
        embedder, encoder, pca: The model.
        settings: What is looked at, and how often.
        progress: Told how many clips are done.
    """
    settings = (settings or Settings()).with_values(
        {
            "selection.budget": BUDGET,
            "selection.novelty": "off",
            "keyframes.interval": INTERVAL,
            "keyframes.min_confidence": 0.0,
            "keyframes.cut_threshold": 1.0,
            "relevance.language": "clip",
        }
    )
    alone = settings.with_values({"keyframes.window_share": 0.0})
    model = embedder, encoder, pca
    runs: dict[str, list[tuple[Camera, _Run]]] = {"keyframes alone": [], "with windows": [], "keyframe there": []}
    for count, entry in enumerate(entries, start=1):
        runs["keyframes alone"].append((entry.camera, _run(entry, alone, *model)))
        runs["with windows"].append((entry.camera, _run(entry, settings, *model)))
        runs["keyframe there"].append((entry.camera, _run_with_keyframes(entry, alone, *model)))
        progress(count)
    rows = [_row(name, each) for name, each in runs.items()]
    return EnteringReport(len(runs["keyframes alone"]), *rows)


@dataclass(frozen=True, slots=True)
class _Run:
    shares: tuple[float, ...]
    seen_cells: int
    model_ms: float
    run_ms: float


def _run(entry: Entry, settings: Settings, embedder: Embedder, encoder: TextEncoder, pca: Pca | None) -> _Run:
    counted = _Counted(embedder)
    keyframes = make_provider(StandardGenerator(GridClusterer(50), counted, NoText()), settings.keyframes)
    newcomer = entry.scenes[0].things[-1].phrase()
    pipeline = Pipeline(settings, keyframes, [parse_text(newcomer)], encoder=encoder, pca=pca)
    shares, started = [], time.process_time()
    try:
        for index, scene in enumerate(entry.scenes):
            patches = pipeline.step(Frame(index, index / 30, scene.rgb))
            shares.append(coverage_share(patches, scene.things[-1].mask) if scene.things[-1].mask.any() else 0.0)
    finally:
        keyframes.close()
    scored = tuple(shares[entry.whole_at + age] for age in SCORED if entry.whole_at + age < len(shares))
    return _Run(scored, counted.cells, counted.milliseconds, (time.process_time() - started) * 1e3)


def _run_with_keyframes(
    entry: Entry, settings: Settings, embedder: Embedder, encoder: TextEncoder, pca: Pca | None
) -> _Run:
    """For each frame that is scored, the same clip with a keyframe on that frame."""
    shares = []
    for age in SCORED:
        scored = entry.whole_at + age
        there = settings.with_values({"keyframes.interval": scored, "keyframes.delay": 0})
        clip = Entry(entry.camera, scored, entry.scenes[: scored + 1])
        shares.append(_run(clip, there, embedder, encoder, pca).shares[0])
    return _Run(tuple(shares), 0, 0.0, 0.0)


def _row(name: str, runs: Sequence[tuple[Camera, _Run]]) -> EnteringRow:
    mean = np.mean([[run.seen_cells, run.model_ms, run.run_ms] for _, run in runs], axis=0).tolist()
    by_camera = {
        camera: float(np.mean([run.shares[SCORED.index(WITHIN)] for at, run in runs if at == camera]))
        for camera in CAMERAS
    }
    return EnteringRow(name, tuple(np.mean([run.shares for _, run in runs], axis=0).tolist()), by_camera, *mean)
