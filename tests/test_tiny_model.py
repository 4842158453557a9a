"""The tiny model that comes along: right about a sample clip, modest about the rest."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from arr_stream.config import TINY, Settings
from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.patch_set import Feeding
from arr_stream.vlm import answering
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from arr_stream.vlm.qwen3_vl.session import QwenSession
from arr_stream.web.sessions import SharedSession
from tests.conftest import Run

SHAPES = Path(__file__).resolve().parent.parent / "sample_videos" / "shapes.mp4"
QUESTION = "what colour is the circle?"


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    settings = Settings().with_values({"vlm.model": TINY, "vlm.device": "cpu"})
    return load(settings.vlm, settings.models)


def test_the_sample_clip_is_answered_right(run: Run) -> None:
    code, out, err = run("ask", SHAPES, QUESTION, "--log=quiet")
    assert (code, out.strip()) == (0, "red")
    assert err.startswith("warning: the tiny model knows drawn shapes and signs alone")


def test_words_that_it_was_not_taught_are_told_of(run: Run, tmp_path: Path) -> None:
    records = tmp_path / "out.jsonl"
    short = ("--end", 0.12, "--patches", records)
    code, out, err = run("ask", SHAPES, "Is there a dog beside the circle?", *short)
    assert code == 0 and out.strip()
    limits, not_taught = "knows drawn shapes and signs alone", "it was not taught 'dog'"
    assert err.index(limits) < err.index("token in") < err.index(not_taught) and "--model" in err
    [answer] = [line for line in map(json.loads, records.read_text().splitlines()) if line["type"] == "answer"]
    assert "'dog'" in answer["note"] and answer["model"] == TINY


def test_what_it_is_asked_about_is_looked_for_by_the_encoder_that_knows_shapes() -> None:
    for settings in (Settings(), Settings().with_values({"vlm.model": TINY})):
        found = answering(settings)
        assert (found.keyframes.embeddings, found.relevance.language) == ("clip", "clip")
    for chosen in ({"relevance.language": "lexicon"}, {"clip.model": "ViT-B-16:openai"}):
        settings = Settings().with_values({"vlm.model": TINY, **chosen})
        assert answering(settings) == settings


class _Broken:
    """Makes a viewer at the second attempt."""

    def __init__(self, made: QwenSession) -> None:
        self._made = made
        self.attempts = 0

    def __call__(self) -> QwenSession:
        self.attempts += 1
        if self.attempts == 1:
            raise BackendUnavailable("not yet", remedy="again")
        return self._made


def test_a_deferred_session_is_made_by_the_first_question(tiny: LoadedModel) -> None:
    import arr_stream

    settings = answering(Settings.load(None, ["keyframes.text=none", "selection.budget=40"]))
    at_once, make = QwenSession(tiny, settings), _Broken(QwenSession(tiny, settings))
    deferred = SharedSession(TINY, make, threading.Lock(), late=True)
    with arr_stream.open(SHAPES, query="circle", settings=settings, max_frames=3) as stream:
        shown = [(stream.frame, patches) for patches in stream]
    for frame, patches in shown:
        assert frame is not None and deferred.see(frame, patches) == Feeding(frame_index=frame.index)
    assert make.attempts == 0 and deferred.attention is None
    with pytest.raises(ArrStreamError, match="not yet"):
        deferred.ask(QUESTION)
    for frame, patches in shown[-2:]:
        assert frame is not None
        at_once.see(frame, patches)
    answer, expected = deferred.ask(QUESTION), at_once.ask(QUESTION)
    assert (answer.text, answer.visual_tokens) == (expected.text, expected.visual_tokens)
    assert deferred.attention is not None and make.attempts == 2
    deferred.close()
    at_once.close()
