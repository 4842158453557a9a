"""Queries that a model understands, through the frame loop: found, carried, changed in mid-stream, and narrowed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import cv2
import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.base import PARTS, KeyframeInput, KeyframePart, PartName
from arr_stream.keyframes.beside import KeyframesBeside
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    KeyframeFailure,
    KeyframeProvider,
    KeyframeRequest,
    StandardGenerator,
    make_part,
)
from arr_stream.keyframes.text import NoText
from arr_stream.motion.refresh import WINDOW_EVERY
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query, parse_text
from arr_stream.texture.arrays import to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import Embedding, Frame
from tests.joint_fakes import DIMENSIONS, WORDS, ColourEmbedder, WordEncoder, direction
from tests.scenes import background, moving_square, square_cells

_SALIENCY = CHANNEL_INDEX["saliency"]
SETTINGS = Settings().with_values({"selection.budget": "12", "keyframes.interval": 30})


class PartByPart:
    """A provider whose parts take different numbers of frames, each busy until its own is ready."""

    def __init__(self, delays: dict[PartName, int], failing: Sequence[PartName] = ()) -> None:
        self.embedder = ColourEmbedder()
        self._generator = StandardGenerator(GridClusterer(12), self.embedder, NoText())
        self._delays = delays
        self._failing = failing
        self._polls = 0
        self._asked: dict[PartName, tuple[int, KeyframeRequest]] = {}

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        free = tuple(part for part in request.parts if part not in self._asked)
        for part in free:
            self._asked[part] = (self._polls + self._delays[part], request)
        return free

    def collect(self) -> list[KeyframePart | KeyframeFailure]:
        self._polls += 1
        arrived: list[KeyframePart | KeyframeFailure] = []
        for part, (due, request) in list(self._asked.items()):
            if self._polls > due:
                del self._asked[part]
                index = request.frame.index
                if part in self._failing:
                    arrived.append(KeyframeFailure(index, f"{part}: no", (part,)))
                else:
                    arrived.append(make_part(index, part, self._generator.jobs(request)[part]))
        return arrived

    def close(self) -> None: ...


def pipeline(
    *texts: str, provider: PartByPart | None = None, language: str = "auto"
) -> tuple[Pipeline, ColourEmbedder, WordEncoder]:
    encoder = WordEncoder()
    embedder = ColourEmbedder() if provider is None else provider.embedder
    keyframes = provider or InStepKeyframes(StandardGenerator(GridClusterer(12), embedder, NoText()))
    queries: list[Query] = [parse_text(text) for text in texts]
    settings = SETTINGS.with_values({"relevance.language": language})
    return Pipeline(settings, keyframes, queries, encoder=encoder), embedder, encoder


def found(patches: PatchSet, frame: Frame) -> float:
    """Share of the square's cells among the chosen."""
    chosen = set(zip(patches.rows.tolist(), patches.columns.tolist(), strict=True))
    wanted = square_cells(frame)
    return len(wanted & chosen) / len(wanted)


def test_a_word_that_only_the_model_knows_is_found_and_followed() -> None:
    made, embedder, _ = pipeline("dragon")
    for frame in moving_square(12):
        patches = made.step(frame)
        assert found(patches, frame) >= 0.9
        assert patches.query_scores[0] > 0.4
    assert embedder.calls == 1
    assert patches.carried[patches.query == 0].all()


def test_a_new_query_in_mid_stream_needs_no_new_look_at_the_picture() -> None:
    provider = PartByPart({"clusters": 0, "embedding": 0, "text": 0})
    made, embedder, encoder = pipeline("harbour", provider=provider)
    frames = moving_square(12)
    for frame in frames[:6]:
        patches = made.step(frame)
    assert patches.query_scores[0] < 0.3
    provider._delays = dict.fromkeys(PARTS, 1000)
    made.ask([parse_text("dragon")])
    patches = made.step(frames[6])
    assert embedder.calls == 1 and encoder.encoded[-1] == "dragon"
    assert found(patches, frames[6]) >= 0.9 and patches.query_scores[0] > 0.4
    assert patches.parts["embedding"] == (0, "words")


def test_places_narrow_what_the_model_finds() -> None:
    rgb = np.zeros((128, 320, 3), np.uint8)
    rgb[:] = WORDS["ashes"]
    rgb[32:96, 32:96] = rgb[32:96, 224:288] = WORDS["dragon"]
    made, _, _ = pipeline("dragon on the right")
    patches = made.step(Frame(0, 0.0, rgb))
    best = patches.columns[np.argsort(-patches.score)[:4]]
    assert set(best.tolist()) == {7, 8}


@pytest.mark.parametrize(
    ("language", "text", "asked"),
    [
        ("auto", "red", ()),
        ("auto", "red dragon", ("red dragon",)),
        ("clip", "red", ("red thing",)),
        ("lexicon", "red dragon", ()),
        ("clip", "left", ()),
    ],
)
def test_who_is_asked(language: str, text: str, asked: tuple[str, ...]) -> None:
    made, _, _ = pipeline(text, language=language)
    assert made.phrases == asked


def test_parts_join_as_they_arrive_and_say_where_they_come_from() -> None:
    provider = PartByPart({"clusters": 4, "embedding": 2, "text": 0})
    made, _, _ = pipeline("dragon", provider=provider)
    steps = [made.step(frame) for frame in moving_square(8)]
    assert steps[0].parts == {"text": (0, "none")}
    assert steps[2].parts == {"embedding": (0, "words"), "text": (0, "none")}
    assert steps[4].parts == {"clusters": (0, "grid"), "embedding": (0, "words"), "text": (0, "none")}
    frame = moving_square(8)[2]
    assert found(steps[2], frame) >= 0.9
    assert steps[1].query_scores == (0.0,)


class _OneStrangePlace:
    """Every place means the same but those of cell (2, 5), whatever the picture shows."""

    name = "words"

    def embed(self, picture: KeyframeInput) -> Embedding:
        rng = np.random.default_rng(0)
        values = direction("meadow")[:, None, None] + 0.02 * rng.normal(
            size=(DIMENSIONS, 2 * picture.grid.rows, 2 * picture.grid.columns)
        )
        values[:, 4:6, 10:12] = direction("dragon")[:, None, None]
        return Embedding(np.float32(values / np.linalg.norm(values, axis=0)), "words", joint=True)


def test_what_means_something_else_than_the_rest_of_the_frame_stands_out_and_is_followed() -> None:
    scenery = background((256, 512))
    frames = [Frame(index, index / 30, scenery[:, 64 - 4 * index : 448 - 4 * index]) for index in range(9)]
    generator = StandardGenerator(GridClusterer(12), _OneStrangePlace(), NoText())
    pipeline = Pipeline(SETTINGS, InStepKeyframes(generator), [parse_text("lagoon")], encoder=WordEncoder())
    plain = Pipeline(SETTINGS, InStepKeyframes(StandardGenerator(GridClusterer(12), None, NoText())))
    for frame in frames:
        seen, alone = (to_numpy(each.step(frame).texture.cells([_SALIENCY]))[0] for each in (pipeline, plain))
        assert np.all(seen >= alone)
        if frame.index in (0, 8):  # A cell has gone by.
            place = 2, 5 + frame.index // 8
            assert seen[place] > max(0.6, alone[place] + 0.1) > np.median(seen) + 0.1


def test_a_slow_part_does_not_hold_up_the_others() -> None:
    provider = PartByPart({"clusters": 25, "embedding": 1, "text": 1})
    settings = SETTINGS.with_values({"keyframes.interval": 10, "keyframes.min_confidence": 0.0})
    made = Pipeline(settings, provider, [parse_text("dragon")], encoder=WordEncoder())
    steps = [made.step(frame) for frame in moving_square(30, step_xy=(2, 1))]
    assert [patches.index for patches in steps if patches.keyframe] == [0, 10, 20]
    assert steps[24].parts["embedding"][0] == 20
    assert "clusters" not in steps[24].parts
    assert steps[26].parts["clusters"][0] == 0 and steps[26].keyframe_index == 20


def test_a_missing_part_is_told_and_the_stream_goes_on() -> None:
    provider = PartByPart(dict.fromkeys(PARTS, 0), failing=["embedding"])
    made, _, _ = pipeline("dragon", provider=provider)
    steps = [made.step(frame) for frame in moving_square(4)]
    assert "embedding: no" in steps[0].notices[0]
    assert all(set(patches.parts) == {"clusters", "text"} for patches in steps)
    assert all(len(patches) == 12 for patches in steps)
    assert not steps[-1].texture.plane("embedding_0").any()


VISIT_PX = 6
"""How far the visitor goes a frame."""


def visitor() -> list[Frame]:
    """A checkered square that comes in from the left on frame 7, and is whole in view from frame 20 on."""
    scenery, side = background((192, 256)), 80
    shades = np.kron(np.random.default_rng(0).uniform(0.5, 1.1, (10, 10)), np.ones((8, 8)))
    square = (shades[:, :, None] * WORDS["dragon"]).clip(0, 255).astype(np.uint8)
    frames = []
    for index in range(30):
        wide = np.pad(scenery, ((0, 0), (side, 0), (0, 0)))
        x = max(0, side + VISIT_PX * (index - 20))
        wide[60 : 60 + side, x : x + side] = square
        frames.append(Frame(index, index / 30, np.ascontiguousarray(wide[:, side:])))
    return frames


def share_of_visitor(patches: PatchSet, frame: Frame) -> float:
    wanted = square_cells(frame, start_xy=(-20 * VISIT_PX, 60), step_xy=(VISIT_PX, 0), side=80)
    return len(wanted & set(zip(patches.rows.tolist(), patches.columns.tolist(), strict=True))) / len(wanted)


class Noted(InStepKeyframes):
    """Notes what it is asked for."""

    def __init__(self, embedder: ColourEmbedder) -> None:
        super().__init__(StandardGenerator(GridClusterer(12), embedder, NoText()))
        self.windows: list[KeyframeRequest] = []

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        self.windows += [request] if request.window else []
        return super().submit(request)


def watched(provider: KeyframeProvider, *texts: str, **settings: float) -> Pipeline:
    values = {f"keyframes.{name}": value for name, value in settings.items()}
    chosen = SETTINGS.with_values({"keyframes.min_confidence": 0.0, "keyframes.window_share": 1.0, **values})
    return Pipeline(chosen, provider, [parse_text(text) for text in texts], encoder=WordEncoder())


def test_what_enters_between_keyframes_is_found_within_five_frames() -> None:
    frames = visitor()
    beside = KeyframesBeside(StandardGenerator(GridClusterer(12), ColourEmbedder(), NoText()), delay=8)
    with closing(beside):
        made = watched(beside, "dragon")
        steps = [made.step(frame) for frame in frames]
    assert steps[9].query_scores[0] < 0.3
    assert share_of_visitor(steps[25], frames[25]) >= 0.9 and steps[25].query_scores[0] > 0.4
    assert [patches.index for patches in steps if patches.keyframe] == [0]
    assert {patches.parts["embedding"][0] for patches in steps} == {0}
    assert "new places of frame" in steps[25].parts["embedding"][1]
    blind = watched(Noted(ColourEmbedder()), "dragon", window_share=0.0)
    assert [blind.step(frame) for frame in frames][25].query_scores[0] < 0.3


def test_where_nothing_is_new_or_nobody_asks_nothing_is_looked_at() -> None:
    still = [Frame(index, index / 30, moving_square(1)[0].rgb) for index in range(20)]
    for frames, texts in ((still, ["dragon"]), (visitor(), []), (visitor(), ["red"])):
        embedder = ColourEmbedder()
        made = watched(Noted(embedder), *texts)
        for frame in frames:
            made.step(frame)
        assert embedder.calls == 1


def test_looks_between_keyframes_are_few_and_small() -> None:
    provider = Noted(ColourEmbedder())
    made = watched(provider, "dragon", window_share=0.4)
    frames = visitor()
    for frame in frames:
        made.step(frame)
    cells = [request.grid.cells for request in provider.windows]
    indices = [request.frame.index for request in provider.windows]
    assert indices and min(np.diff(indices), default=WINDOW_EVERY) >= WINDOW_EVERY
    # All that was paid for when the last one was asked for had been saved by then.
    assert sum(cells[:-1]) < 0.4 * 48 and max(cells) < 48
    assert all(request.parts == ("embedding",) for request in provider.windows)


def test_windows_join_at_the_same_frame_however_fast_they_are_made() -> None:
    def run(seconds: float, threads: int) -> list[tuple[bytes, ...]]:
        class Slow(ColourEmbedder):
            def embed(self, picture: KeyframeInput) -> Embedding:
                time.sleep(seconds)
                return super().embed(picture)

        before = cv2.getNumThreads()
        cv2.setNumThreads(threads)
        beside = KeyframesBeside(StandardGenerator(GridClusterer(12), Slow(), NoText()), delay=4)
        try:
            with closing(beside):
                made = watched(beside, "dragon")
                steps = [made.step(frame) for frame in visitor()]
        finally:
            cv2.setNumThreads(before)
        return [(patches.rows.tobytes(), patches.columns.tobytes(), patches.score.tobytes()) for patches in steps]

    assert run(0.0, 2) == run(0.02, 1)


def test_a_window_of_a_scene_that_is_gone_is_not_used() -> None:
    provider = PartByPart({"clusters": 0, "embedding": 0, "text": 0})
    made = watched(provider, "dragon")
    frames = visitor()
    for frame in frames[:12]:
        made.step(frame)
    provider._delays["embedding"] = 3
    step = 12
    while "embedding" not in provider._asked:
        made.step(frames[step])
        step += 1
    cut = np.full_like(frames[0].rgb, 255)
    assert "embedding" not in made.step(Frame(step, step / 30, cut)).parts
    for late in range(1, 5):
        parts = made.step(Frame(step + late, (step + late) / 30, cut)).parts
    assert parts.get("embedding", (step, ""))[0] >= step
