"""The tiny model that comes along: the network of transformers, right about a sample clip, modest about the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_stream.config import TINY, Settings
from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.patch_set import Feeding
from arr_stream.vlm import answering
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, block_extent, text_positions, token_positions
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from arr_stream.vlm.qwen3_vl.session import QwenSession
from arr_stream.web.sessions import SharedSession
from arr_stream.weights.catalogue import TINY_QWEN, shipped_folder
from tests.conftest import Run

SHAPES = Path(__file__).resolve().parent.parent / "sample_videos" / "shapes.mp4"
QUESTION = "what colour is the circle?"


def loaded(model: str) -> LoadedModel:
    settings = Settings().with_values({"vlm.model": model, "vlm.device": "cpu"})
    return load(settings.vlm, settings.models)


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return loaded(TINY)


def test_the_network_is_that_of_transformers(tiny: LoadedModel) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    true = loaded(str(shipped_folder(TINY_QWEN)))
    cells = Cells.whole((4, 7)).select(np.array([0, 3, 5, 9, 20, 27], np.int32))
    rows = torch.rand(4 * len(cells), 1536, generator=torch.Generator().manual_seed(0)) * 2 - 1
    begin, question = tiny.tokenizer("user\n")["input_ids"], tiny.tokenizer(QUESTION)["input_ids"]
    assert question == true.tokenizer(QUESTION, add_special_tokens=False)["input_ids"]
    assert tiny.tokenizer.decode(question) == QUESTION
    scores = []
    for each in (tiny, true):
        adapter = Adapter(each.model)
        adapter.check()
        with torch.inference_mode():
            tokens = adapter.encode(rows, cells, [4, 2])
            # A block of cells between words, in two passes, and a bias over all of it.
            embeddings = torch.cat([adapter.embed(begin), tokens.features, adapter.embed(question)])
            after = len(begin) + block_extent(cells.grid_hw)
            positions = torch.cat(
                [
                    text_positions(len(begin), 0),
                    token_positions(cells, len(begin)),
                    text_positions(len(question), after),
                ],
                dim=1,
            )
            visual = torch.zeros(len(embeddings), dtype=torch.bool)
            visual[len(begin) : len(begin) + len(cells)] = True
            cache, middle = adapter.new_cache(), len(begin) + len(cells)
            adapter.extend(cache, embeddings[:middle], positions[:, :middle], visual[:middle], tokens.deepstack)
            hidden = adapter.extend(cache, embeddings[middle:], positions[:, middle:], visual[middle:], ())
            bias = torch.linspace(-2, 0, len(embeddings))
            biased = adapter.extend(adapter.new_cache(), embeddings, positions, visual, tokens.deepstack, bias)
            scores.append(adapter.logits(torch.cat([hidden, biased])))
    assert torch.allclose(*scores, atol=1e-4 * float(scores[1].abs().max()))


def test_the_sample_clip_is_answered_right_without_transformers() -> None:
    program = (
        "import sys; from arr_stream.cli import main\n"
        "try: main()\n"
        "finally: print('transformers' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "ask", str(SHAPES), QUESTION, "--log=quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    warning, loaded = done.stderr.splitlines()
    assert (done.returncode, done.stdout.strip(), loaded) == (0, "red", "False")
    assert warning.startswith("warning: the tiny model knows drawn shapes and signs alone")


def test_words_that_it_was_not_taught_are_told_of(run: Run, tmp_path: Path) -> None:
    records = tmp_path / "out.jsonl"
    short = ("--end", 0.12, "--patches", records)
    code, out, err = run("ask", SHAPES, "Is there a dog beside the circle?", *short)
    assert code == 0 and out.strip()
    limits, not_taught = "knows drawn shapes and signs alone", "it was not taught 'dog'"
    assert err.index(limits) < err.index("tokens in") < err.index(not_taught) and "--model" in err
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
