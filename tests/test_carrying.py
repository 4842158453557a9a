"""A server that places cells: found out, told, shown what was chosen, and served from its cache."""

from __future__ import annotations

import base64
import io
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arr_stream.config import Settings
from arr_stream.errors import ServerFailed
from arr_stream.types import Frame
from arr_stream.vlm import ModelSession, make_session
from arr_stream.vlm.qwen3_vl.carrier import CarriedCells, carried
from arr_stream.vlm.qwen3_vl.cells import Cells
from tests.fake_server import Behaviour, Exchange, FakeServer, piece, tokens_of
from tests.qwen_stock import patches_of
from tests.tiny_qwen import picture

pytestmark = pytest.mark.usefixtures("no_retries")


def session_of(url: str, **vlm: Any) -> ModelSession:
    return make_session(
        Settings.checked(
            {"vlm": {"endpoint": url, "model": "m", "media": "image", **vlm}, "selection": {"per_second": 1.0}}
        )
    )


def answers(text: str = "a bus", cached: int = 0) -> Behaviour:
    """Streams an answer with the tokens of what was asked."""

    def behave(exchange: Exchange) -> None:
        fake = exchange.server.fake
        usage = {
            "prompt_tokens": tokens_of(fake.requests[-1], places=fake.places),
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        exchange.begin()
        exchange.event(piece(text))
        exchange.event(piece(None, "stop"))
        exchange.event(piece() | {"choices": [], "usage": usage})
        exchange.event(b"[DONE]")

    return behave


def frame_at(index: int) -> Frame:
    return Frame(index, index / 2, picture(320, 256, seed=index))


def show(session: ModelSession, *indices: int, count: int = 10) -> list[str | None]:
    """Some cells of frames; why the memory was rebuilt at each."""
    rebuilt = []
    for index in indices:
        rng = np.random.default_rng(index)
        cells = Cells.whole((8, 10)).select(np.sort(rng.permutation(80)[:count]).astype(np.int32))
        rebuilt.append(session.see(frame_at(index), patches_of(frame_at(index), cells)).rebuilt)
    return rebuilt


def shown(request: dict[str, Any]) -> list[CarriedCells | None]:
    """What the pictures of a request carry."""
    parts = [part for part in request["messages"][-1]["content"] if part["type"] == "image_url"]
    data = [base64.b64decode(part["image_url"]["url"].split(",", 1)[1]) for part in parts]
    return [carried(Image.open(io.BytesIO(each))) for each in data]


def test_a_server_that_places_cells_is_given_them_as_they_are() -> None:
    with FakeServer(answers(cached=7), places=True) as server:
        session = session_of(server.url)
        show(session, 0, 1)
        answer = session.ask("what?")
        again = session.ask("and now?")
        session.close()
    assert len(server.prefilled) == 2
    assert answer.note == "sent as cells at their true places" and again.note is None
    assert answer.visual_tokens == 20 and answer.cached_tokens == 7
    found = shown(server.requests[0])
    assert [each.cells.grid_hw if each else None for each in found] == [(8, 10)] * 2
    first = found[0]
    assert first is not None
    tiles = frame_at(0).rgb.reshape(8, 32, 10, 32, 3).swapaxes(1, 2)
    np.testing.assert_array_equal(first.pictures[:, 0], tiles[first.cells.rows, first.cells.columns])


@pytest.mark.parametrize("mode", ["align", "none"])
def test_a_server_that_caches_states_is_sent_new_frames_before_the_question(mode: str) -> None:
    with FakeServer(answers(), places=True) as server:
        server.metrics = f'vllm:cache_config_info{{mamba_cache_mode="{mode}"}} 1.0'.encode()
        session = session_of(server.url)
        show(session, 0, 1)
        session.ask("what?")
        session.ask("and now?")
        show(session, 2)
        session.ask("and then?")
        session.close()
    assert len(server.requests) == 3
    asked = [request["messages"][-1]["content"][:-1] for request in server.requests]
    assert [request["messages"][-1]["content"][:-1] for request in server.prefilled[2:]] == (
        [asked[0], asked[2]] if mode == "align" else []
    )
    assert all(request["max_tokens"] == 1 and not request["add_generation_prompt"] for request in server.prefilled)


def test_what_was_asked_before_stays_the_same_bytes() -> None:
    with FakeServer(answers(), places=True) as server:
        session = session_of(server.url, media="video")
        show(session, 0, 1)
        session.ask("what?")
        show(session, 2, 3)
        session.ask("and now?")
        session.close()
    before, after = (request["messages"][-1]["content"] for request in server.requests)
    assert json.dumps(after[: len(before) - 1]) == json.dumps(before[:-1])
    assert [part["text"] for part in after if part["type"] == "text"] == ["<0.2 seconds>", "<1.2 seconds>", "and now?"]


def test_a_full_memory_is_rewritten_and_says_so() -> None:
    with FakeServer(answers(), places=True) as server:
        session = session_of(server.url, context_tokens=256, answer_tokens=16)
        rebuilt = []
        for index in range(12):
            rebuilt += show(session, index, count=30)
            assert session.ask("what?").prompt_tokens <= 256
        session.close()
    assert set(rebuilt) == {None, "budget"}
    contents = [request["messages"][-1]["content"][:-1] for request in server.requests]
    grown = [later[: len(earlier)] == earlier for earlier, later in pairwise(contents)]
    assert grown == [reason is None for reason in rebuilt[1:]]


def test_a_stock_server_gets_crops() -> None:
    with FakeServer(answers()) as server:
        session = session_of(server.url)
        show(session, 0)
        answer = session.ask("what?")
        session.close()
    assert answer.note == "sent as crops, about where they are: the server has no arr-stream plugin"
    assert shown(server.requests[0]) == [None] * len(shown(server.requests[0]))


def test_a_server_that_no_longer_places_cells_is_noticed() -> None:
    with FakeServer(answers(), places=True) as server:
        session = session_of(server.url)
        show(session, 0, 1, 2)
        session.ask("what?")
        server.places = False
        with pytest.raises(ServerFailed, match="it took cells for whole pictures; start it with arr-stream's plugin"):
            session.ask("what?")
        session.close()
