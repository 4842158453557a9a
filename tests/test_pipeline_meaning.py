"""Queries that a model understands, through the frame loop: found, carried, changed in mid-stream, and narrowed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.base import PARTS, KeyframePart, PartName
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.generate import (
    InStepKeyframes,
    KeyframeFailure,
    KeyframeRequest,
    StandardGenerator,
    make_part,
)
from arr_stream.keyframes.text import NoText
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query, parse_text
from arr_stream.texture import EMBEDDING
from arr_stream.types import Frame
from tests.joint_fakes import WORDS, ColourEmbedder, WordEncoder
from tests.scenes import moving_square, square_cells

SETTINGS = Settings().with_values({"selection.budget": "12", "selection.levels": False, "keyframes.interval": 30})


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
                    arrived.append(KeyframeFailure(index, f"{part}: no", "", (part,)))
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


def test_what_is_not_there_scores_low_everywhere() -> None:
    made, _, _ = pipeline("unicorn")
    assert made.step(moving_square(1)[0]).query_scores[0] < 0.3


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
        ("clip", "red", ("red",)),
        ("lexicon", "red dragon", ()),
        ("clip", "left", ()),
    ],
)
def test_who_is_asked(language: str, text: str, asked: tuple[str, ...]) -> None:
    made, _, _ = pipeline(text, language=language)
    assert made.phrases == asked


def test_several_queries_keep_their_own_scores() -> None:
    made, _, _ = pipeline("dragon", "unicorn", "red")
    scores = made.step(moving_square(1)[0]).query_scores
    assert scores[0] > 0.4 and scores[1] < 0.3 and scores[2] > 0.5


def test_a_query_beyond_the_context_is_told_once() -> None:
    made, _, _ = pipeline("a very long story of many knights and one small castle and a dragon")
    first, second = (made.step(frame) for frame in moving_square(2))
    assert any("only its beginning counts" in notice for notice in first.notices)
    assert second.notices == ()


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


def test_the_channels_hold_what_is_asked_and_move_with_the_picture() -> None:
    made, _, _ = pipeline("dragon")
    first, *_, last = (made.step(frame) for frame in moving_square(9))
    before = first.texture.mip(4, list(range(EMBEDDING.start, EMBEDDING.stop)))
    after = last.texture.mip(4, list(range(EMBEDDING.start, EMBEDDING.stop)))
    assert before.shape[0] == 16 and float(before.abs().max()) <= 1.0
    assert float((before[0, :, 2:] - after[0, :, 2:]).abs().max()) > 0.1
