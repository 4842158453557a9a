"""The plugin in a vLLM that runs: the same numbers as here, whatever is asked meanwhile, and nothing kills it."""

from __future__ import annotations

import base64
import io
import os
import re
import struct
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from arr_stream.config import Settings
from arr_stream.types import ByteArray, FloatArray, Frame
from arr_stream.vlm import make_session
from arr_stream.vlm.qwen3_vl.carrier import MAGIC
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.loading import load
from arr_stream.vlm.qwen3_vl.session import QwenSession
from arr_stream.vlm.server.carrying import CarryingSession
from arr_stream.vlm.server.chat import ChatServer, Endpoint
from arr_stream.weights.catalogue import shipped_folder
from benchmarks.serving.server import PLUGIN, VllmServer, free_port, plugin, vllm_server
from tests.qwen_stock import patches_of
from tests.tiny_qwen import maker

EXECUTABLE = os.environ.get("ARR_STREAM_VLLM", "")
pytestmark = [
    pytest.mark.skipif(
        not EXECUTABLE,
        reason="needs vLLM in an environment of its own: scripts/test --vllm makes it and sets ARR_STREAM_VLLM",
    ),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

QUESTION = "what colour is the circle?"
CLOSE = 5e-5
"""Largest difference of log probabilities."""
CLOSE_IN_BFLOAT16 = 0.06
"""Largest mean difference over the 20 likeliest tokens: rounding makes 0.02 to 0.03, a shift by a column 0.2 to 0.3."""
SIZE_WH = (384, 288)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One that takes 96 tokens at a time, so that pictures are cut in their middle."""
    log = tmp_path_factory.mktemp("vllm") / "log"
    with started(log, *PLUGIN, "--max-num-batched-tokens", "96", "--max-num-seqs", "8") as running:
        yield running


def started(log: Path, *arguments: str, port: int = 0, model: Path | None = None) -> AbstractContextManager[VllmServer]:
    """A server with the model that comes along, or another."""
    limits = ["--max-model-len", "4096", "--limit-mm-per-prompt", '{"image": 256, "video": 0}']
    return vllm_server(EXECUTABLE, model or shipped_folder("tiny-qwen3-vl"), log, *limits, *arguments, port=port)


@dataclass(frozen=True)
class Other:
    """A server with a tiny model of random weights, and how it differs from the one that comes along.

    Args:
        hybrid: Whether it has Gated DeltaNet, for which vLLM's kernels for the CPU take bfloat16 and heads of 128
            channels alone.
    """

    server: VllmServer
    model: Path
    hybrid: bool

    @property
    def settings(self) -> dict[str, Any]:
        return {"model": str(self.model), "dtype": "bfloat16" if self.hybrid else "float32"}

    def check(self, differences: FloatArray) -> None:
        """Check differences of the log probabilities of the likeliest tokens."""
        if self.hybrid:
            assert np.abs(differences).mean() < CLOSE_IN_BFLOAT16
        else:
            assert np.abs(differences).max() < CLOSE


@pytest.fixture(scope="module", params=["qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    folder, family = tmp_path_factory.mktemp(request.param), request.param
    hybrid = family.startswith("qwen3_5")
    # Sizes that vLLM's kernels for the CPU take, and a key of true checkpoints that transformers does not write.
    heads: dict[str, Any] = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    text = heads if hybrid else {"norm_topk_prob": True}
    if family.endswith("moe"):
        # All experts of Qwen3.5, since rounding to bfloat16 would choose others.
        text |= {"moe_intermediate_size": 96, "num_experts_per_tok": 4 if hybrid else 2}
    model = maker().make_tiny_qwen3_vl(folder / "tiny", family=family, text=text)
    if family == "qwen3_vl_moe":
        transpose_experts(model / "model.safetensors")
    arguments = "--dtype", "bfloat16" if hybrid else "float32", "--max-num-batched-tokens", "96", "--max-num-seqs", "8"
    # As `vllm-args` sets it: the state of linear layers is kept near the end of each request.
    arguments += ("--prefix-match-unit", "16") if hybrid else ()
    with started(folder / "log", *plugin(family), *arguments, model=model) as running:
        yield Other(running, model, hybrid)


def transpose_experts(file: Path) -> None:
    """Lay the experts of a Qwen3-VL as true checkpoints do, and transformers does not."""
    weights = load_file(file)
    for name in [name for name in weights if ".experts." in name]:
        weights[name] = weights[name].transpose(1, 2).contiguous()
    save_file(weights, file, metadata={"format": "pt"})


def drawn(seed: int = 0, size_wh: tuple[int, int] = SIZE_WH) -> ByteArray:
    """Discs of plain colours."""
    rng = np.random.default_rng(seed)
    rgb = np.full((size_wh[1], size_wh[0], 3), 200, np.uint8)
    for _ in range(4):
        centre = int(rng.integers(size_wh[0])), int(rng.integers(size_wh[1]))
        cv2.circle(rgb, centre, int(rng.integers(20, 60)), [int(part) for part in rng.integers(0, 256, 3)], -1)
    return rgb


def some(count: int, seed: int = 0, grid_hw: tuple[int, int] = (9, 12)) -> Cells:
    return Cells.whole(grid_hw).select(np.sort(np.random.default_rng(seed).permutation(108)[:count]).astype(np.int32))


def settings_of(server: VllmServer | None = None, **vlm: Any) -> Settings:
    where = {"endpoint": server.address} if server is not None else {}
    return Settings.checked({"vlm": {"model": "tiny", "media": "image", "answer_tokens": 4, **where, **vlm}})


def near(settings: Settings) -> QwenSession:
    """The same model here."""
    session = QwenSession(load(settings.vlm, settings.models), settings)
    session.fills = False
    return session


def far(server: VllmServer, settings: Settings) -> CarryingSession:
    endpoint = Endpoint.parse(server.address, "OPENAI_API_KEY")
    chat = ChatServer(endpoint, "tiny", timeout_seconds=60)
    chat.close()  # It is not asked by itself here.
    session = CarryingSession(chat, settings)
    session.fills = False
    return session


def logs_here(session: QwenSession, question: str) -> list[float]:
    """The five highest log probabilities of an answer's first token."""
    return sorted(all_logs_here(session, question), reverse=True)[:5]


def all_logs_here(session: QwenSession, question: str) -> list[float]:
    """The log probabilities of an answer's first token, by token."""
    memory = session.memory
    with memory.kept():
        hidden = memory.read(memory.prompt.question(question), memory.position)
        logs: list[float] = memory.adapter.logits(hidden).float().log_softmax(dim=-1).detach().tolist()
    return logs


CASES = {
    "all cells of a picture": [(Cells.whole((9, 12)), "image")],
    "some cells": [(some(20), "image")],
    "one cell": [(some(1), "image")],
    "three pictures": [(some(20), "image"), (some(7, 1), "image"), (some(33, 2), "image")],
    "pairs of frames with their times": [(some(20), "video"), (some(9, 1), "video")],
    "coarse and finer cells": [
        (
            Cells(
                (9, 12),
                np.array([0, 0, 4, 8, 5, 5, 5, 5], np.int32),
                np.array([0, 4, 4, 8, 11, 11, 11, 11], np.int32),
                np.array([2, 1, 0, 2, -1, -1, -1, -1], np.int32),
                np.ones(8, np.float32),
                np.array([0, 0, 0, 0, 0, 1, 2, 3], np.int32),
            ),
            "image",
        )
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_here(server: VllmServer, case: str) -> None:
    settings = settings_of(media=CASES[case][0][1])
    here, there = near(settings), far(server, settings)
    show(case, here, there)
    answer = here.ask(QUESTION)
    text, logs, tokens = server.likeliest(there.memory.messages(QUESTION))
    assert text == answer.text.strip()
    assert tokens == here.memory.tokens + answer.prompt_tokens
    np.testing.assert_allclose(logs, logs_here(here, QUESTION), atol=CLOSE)


def show(case: str, here: QwenSession, there: CarryingSession) -> None:
    index = 0
    for number, (cells, media) in enumerate(CASES[case]):
        for _ in range(2 if media == "video" else 1):
            frame = Frame(index, index / 2, drawn(number + 10 * index if media == "video" else number))
            finer = cells.quarter[cells.level == -1]
            patches = patches_of(
                frame, cells.select((cells.level >= 0) | (cells.quarter == 0)) if len(finer) else cells
            )
            assert here.see(frame, patches).sent == there.see(frame, patches).sent
            index += 1


@pytest.mark.parametrize("case", CASES)
def test_other_families_give_the_same_as_here(other: Other, case: str) -> None:
    settings = settings_of(media=CASES[case][0][1], **other.settings)
    here, there = near(settings), far(other.server, settings)
    show(case, here, there)
    logs, tokens = by_token(other.server, there.memory.messages(QUESTION))
    assert tokens == here.memory.tokens + here.ask(QUESTION).prompt_tokens
    whole = all_logs_here(here, QUESTION)
    other.check(np.array([log - whole[token] for token, log in logs.items()]))


def by_token(server: VllmServer, messages: list[dict[str, Any]]) -> tuple[dict[int, float], int]:
    """The 20 highest log probabilities of an answer's first token, by token, and the tokens of the prompt."""
    options = {"logprobs": True, "top_logprobs": 20, "return_tokens_as_token_ids": True, "max_tokens": 1}
    status, answer = server.post(messages, **options)
    assert status == 200, answer
    likeliest = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    logs = {int(each["token"].removeprefix("token_id:")): each["logprob"] for each in likeliest}
    return logs, answer["usage"]["prompt_tokens"]


def test_all_cells_are_a_picture_as_vllm_takes_it(server: VllmServer) -> None:
    carried, whole = (server.likeliest(messages) for messages in carried_and_whole(server, settings_of()))
    assert carried[0] == whole[0] and carried[2] == whole[2]
    np.testing.assert_allclose(carried[1], whole[1], atol=CLOSE)


def test_all_cells_are_a_picture_of_other_families(other: Other) -> None:
    both = carried_and_whole(other.server, settings_of(**other.settings))
    (carried, tokens), (whole, tokens_of_whole) = (by_token(other.server, messages) for messages in both)
    assert tokens == tokens_of_whole and len(carried.keys() & whole.keys()) >= 10
    other.check(np.array([carried[token] - whole[token] for token in carried.keys() & whole.keys()]))


def carried_and_whole(server: VllmServer, settings: Settings) -> list[list[dict[str, Any]]]:
    """A question about all cells of a picture, and about the picture."""
    there = far(server, settings)
    frame = Frame(0, 0.0, drawn())
    there.see(frame, patches_of(frame))
    png = io.BytesIO()
    Image.fromarray(frame.rgb).save(png, "PNG")
    ordinary = [picture_part(png.getvalue()), {"type": "text", "text": QUESTION}]
    return [there.memory.messages(QUESTION), [{"role": "user", "content": ordinary}]]


def test_ordinary_pictures_and_cells_in_one_conversation(server: VllmServer) -> None:
    there = far(server, settings_of())
    frame = Frame(0, 0.0, drawn(1))
    there.see(frame, patches_of(frame, some(12)))
    [message] = there.memory.messages(QUESTION)
    png = io.BytesIO()
    Image.fromarray(drawn(2)).save(png, "PNG")
    message["content"].insert(0, picture_part(png.getvalue()))
    message["content"].insert(2, picture_part(png.getvalue()))
    text, logs, tokens = server.likeliest([message])
    _, _, alone = server.likeliest(there.memory.messages(QUESTION))
    assert tokens == alone + 2 * (108 + 2)
    # The same with what is ordinary as cells, all of them.
    whole = far(server, settings_of())
    frame = Frame(0, 0.0, drawn(2))
    whole.see(frame, patches_of(frame))
    message["content"][0] = message["content"][2] = whole.memory.messages("")[0]["content"][0]
    other = server.likeliest([message])
    assert other[0] == text and other[2] == tokens
    np.testing.assert_allclose(other[1], logs, atol=CLOSE)


def test_many_at_once_are_answered_as_one_by_one(server: VllmServer) -> None:
    conversations = []
    for number in range(12):
        there = far(server, settings_of())
        frame = Frame(0, 0.0, drawn(number))
        there.see(frame, patches_of(frame, some(5 + 8 * number, number)))
        conversations.append(there.memory.messages(QUESTION))
    alone = [server.likeliest(messages) for messages in conversations]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(server.likeliest, conversations))
    for one, other in zip(alone, together, strict=True):
        assert one[0] == other[0]
        np.testing.assert_allclose(one[1], other[1], atol=CLOSE)


def test_the_memory_of_a_stream_is_computed_once(server: VllmServer) -> None:
    check_computed_once(server)


def test_the_memory_of_other_families_is_computed_once(other: Other) -> None:
    check_computed_once(other.server)


def computed_tokens(server: VllmServer) -> float:
    """The tokens of all prompts so far that were not in the prefix cache."""
    with urllib.request.urlopen(f"{server.address.removesuffix('/v1')}/metrics") as answer:
        found = dict(re.findall(r"^vllm:(\w+)_total\{[^}]*\} (\S+)$", answer.read().decode(), re.MULTILINE))
    return float(found["prompt_tokens"]) - float(found["prefix_cache_hits"])


def check_computed_once(server: VllmServer) -> None:
    """60 frames of half a second, a question every ten."""
    session = make_session(settings_of(server, media="video"))
    before, shown, asked = computed_tokens(server), 0, 0
    try:
        for index in range(60):
            frame = Frame(index, index / 2, drawn(index) ^ np.uint8(24 * (index // 2 % 10)))
            shown += session.see(frame, patches_of(frame, some(30, index))).sent
            if index % 10 == 9:
                answer = session.ask(QUESTION)
                asked += 1
                assert answer.error is None and answer.finish in ("stop", "length")
                assert answer.note is None or "true places" in answer.note
        new = answer.prompt_tokens + 12 * (asked - 1)
    finally:
        session.close()
    assert shown > 600
    assert computed_tokens(server) - before <= 1.2 * new


def test_mutated_pictures_are_refused_or_answered(server: VllmServer) -> None:
    there = far(server, settings_of())
    frame = Frame(0, 0.0, drawn())
    there.see(frame, patches_of(frame, some(6)))
    [message] = there.memory.messages(QUESTION)
    right = server.likeliest([message])
    png = base64.b64decode(message["content"][0]["image_url"]["url"].split(",", 1)[1])

    def post(seed: int) -> tuple[int, str]:
        part = picture_part(mutated(png, seed))
        status, answer = server.post([{"role": "user", "content": [part, message["content"][1]]}], max_tokens=1)
        return status, answer.get("error", {}).get("message", "")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(2_000)))
    assert not [each for each in enumerate(answers) if each[1][0] not in (200, 400) or each[1] == (400, "")][:5]
    assert sum(status == 400 for status, _ in answers) > 500
    assert server.likeliest([message]) == right


@pytest.mark.parametrize(
    ("grid_hw", "cells", "says"),
    [
        ((6, 8), [(6, 0, 0, 0)], "outside of the grid"),
        ((6, 8), [(0, 0, 0, 0), (0, 0, 0, 0)], "given twice"),
        ((6, 8), [(0, 0, 5, 0)], "level of detail"),
        ((6, 8), [(65535, 65535, 0, 0)], "outside of the grid"),
        ((0, 0), [(0, 0, 0, 0)], "a grid of 0x0"),
    ],
)
def test_cells_that_cannot_be_are_refused_with_the_reason(
    server: VllmServer, grid_hw: tuple[int, int], cells: list[tuple[int, ...]], says: str
) -> None:
    head = struct.pack("<8sBBHHI", MAGIC, 1, 1, *grid_hw, len(cells))
    head += b"".join(struct.pack("<HHbB", *cell) for cell in cells)
    head += struct.pack("<I", zlib.crc32(head))
    status, answer = server.post([{"role": "user", "content": [picture_part(painted(head, len(cells)))]}])
    assert status == 400 and says in answer["error"]["message"]


def test_a_million_cells_and_ten_megabytes_of_text_are_refused(server: VllmServer) -> None:
    head = struct.pack("<8sBBHHI", MAGIC, 1, 1, 1000, 1000, 1_000_000)
    status, answer = server.post([{"role": "user", "content": [picture_part(painted(head, 4))]}])
    assert status == 400 and "1000000 cells" in answer["error"]["message"]
    from PIL.PngImagePlugin import PngInfo

    text, png = PngInfo(), io.BytesIO()
    text.add_text("cells", "0" * 10_000_000)
    Image.new("RGB", (64, 64)).save(png, "PNG", pnginfo=text)
    status, _ = server.post([{"role": "user", "content": [picture_part(png.getvalue())]}])
    assert status in (200, 400)


def test_more_positions_than_the_model_has_are_refused(server: VllmServer) -> None:
    """One cell of the largest grid moves on by 1,024 positions: thirteen are beyond four times the context."""
    head = struct.pack("<8sBBHHI", MAGIC, 1, 1, 1024, 1024, 1) + struct.pack("<HHbB", 1023, 1023, 0, 0)
    part = picture_part(painted(head + struct.pack("<I", zlib.crc32(head)), 1))
    for _ in range(2):
        status, answer = server.post([{"role": "user", "content": [part] * 13}])
        assert status == 400 and "send fewer pictures" in answer["error"]["message"]
    status, answer = server.post([{"role": "user", "content": [part] * 12}])
    assert status == 200, answer
    named = part | {"uuid": "far"}
    assert server.post([{"role": "user", "content": [named]}])[0] == 200
    server.post([{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "far"}] * 20}])
    assert server.post([{"role": "user", "content": [part] * 12}])[0] == 200


def test_two_processes_that_share_the_model(tmp_path: Path) -> None:
    """Tensor parallel: the tower and the language model split by their weights."""
    settings = settings_of()
    frame = Frame(0, 0.0, drawn())
    here = near(settings)
    here.see(frame, patches_of(frame, some(20)))
    with started(tmp_path / "log", *PLUGIN, "--tensor-parallel-size", "2") as server:
        there = far(server, settings)
        there.see(frame, patches_of(frame, some(20)))
        text, logs, _ = server.likeliest(there.memory.messages(QUESTION))
    assert text == here.ask(QUESTION).text.strip()
    np.testing.assert_allclose(logs, logs_here(here, QUESTION), atol=CLOSE)


def test_a_stock_server_gets_crops_and_a_changed_one_is_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Killed and started anew in the middle of a stream, at first with the plugin and then without."""
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    frames = [Frame(index, index / 2, drawn(index)) for index in range(12)]
    with started(folder / "first", *PLUGIN, port=port) as server:
        session = make_session(settings_of(server))
        for frame in frames[:3]:
            session.see(frame, patches_of(frame, some(20, frame.index)))
        assert "true places" in (session.ask(QUESTION).note or "")
    with pytest.raises(Exception, match="no connection"):
        session.ask(QUESTION)
    with started(folder / "second", *PLUGIN, port=port):
        for frame in frames[3:]:
            session.see(frame, patches_of(frame, some(20, frame.index)))
        answer = session.ask(QUESTION)
        assert answer.error is None and answer.visual_tokens > 100
    with started(folder / "third", port=port) as server:
        with pytest.raises(Exception, match="took cells for whole pictures"):
            session.ask(QUESTION)
        session.close()
        session = make_session(settings_of(server))
        session.see(frames[0], patches_of(frames[0], some(20)))
        assert "crops" in (session.ask(QUESTION).note or "")
        session.close()


def picture_part(png: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
    return {"type": "image_url", "image_url": {"url": url}}


def painted(head: bytes, count: int) -> bytes:
    """A picture with these bytes first."""
    across = int(np.ceil(np.sqrt(count)))
    pixels = np.zeros((32 * (1 + -(-count // across)), 32 * across, 3), np.uint8)
    pixels.reshape(-1)[: len(head)] = np.frombuffer(head, np.uint8)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return png.getvalue()


def mutated(png: bytes, seed: int) -> bytes:
    """Changed in its bytes, in its list of cells, with a right checksum or not, cut off, or made longer."""
    rng = np.random.default_rng(seed)
    way = seed % 4
    if way == 0:
        changed = bytearray(png)
        for place in rng.integers(0, len(png), rng.integers(1, 8)):
            changed[place] = rng.integers(0, 256)
        return bytes(changed)
    if way == 1:
        return png[: rng.integers(0, len(png))] + rng.bytes(int(rng.integers(0, 64)))
    pixels = np.asarray(Image.open(io.BytesIO(png))).copy()
    flat, end = pixels.reshape(-1), 18 + 6 * 6
    for place in rng.integers(8, end, rng.integers(1, 6)):
        flat[place] = rng.integers(0, 256)
    if way == 3:
        flat[end : end + 4] = np.frombuffer(struct.pack("<I", zlib.crc32(flat[:end].tobytes())), np.uint8)
    again = io.BytesIO()
    Image.fromarray(pixels).save(again, "PNG")
    return again.getvalue()
