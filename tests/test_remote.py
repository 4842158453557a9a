"""Asking a server: what is sent, what comes back, and every way in which servers fail."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import pytest

from arr_stream.config import VlmSettings
from arr_stream.errors import (
    ArrStreamError,
    BackendUnavailable,
    ContextExceeded,
    EmptyQuery,
    InvalidSetting,
    NothingChosen,
    ServerFailed,
)
from arr_stream.patch_set import Answer
from arr_stream.plain_text import AnswerText
from arr_stream.types import Frame
from arr_stream.vlm.server import ServerSession, chat
from arr_stream.vlm.server.chat import ChatServer, Endpoint
from arr_stream.vlm.server.packing import pack
from tests.choices import choose
from tests.fake_server import Behaviour, Exchange, FakeServer, body, hangs, piece, says, status
from tests.live_fakes import wait_until
from tests.tiny_qwen import load_tiny, picture

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def everything_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves a thread behind; none starts with the user's key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = set(threading.enumerate())
    yield
    ended = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < ended:
        time.sleep(0.02)
    assert not left


def frame_at(index: int, size_wh: tuple[int, int] = (320, 256)) -> Frame:
    return Frame(index, 1.5 + index, picture(*size_wh, seed=index))


@contextmanager
def session(
    url: str, *, frames: int = 1, size_wh: tuple[int, int] = (320, 256), **changes: Any
) -> Iterator[ServerSession]:
    settings = {"model": "m", "timeout_seconds": 5.0} | changes
    with patch.object(chat, "RETRIES", settings.pop("retries", 0)):
        watching = ServerSession(VlmSettings(endpoint=url, **settings))
    try:
        for index in range(frames):
            frame = frame_at(index, size_wh)
            watching.see(frame, choose(frame))
        yield watching
    finally:
        watching.close()


def ask(*behaviours: Behaviour, **changes: Any) -> tuple[Answer, FakeServer]:
    with FakeServer(*behaviours) as server, session(server.url, **changes) as watching:
        return watching.ask("what is there?"), server


def fails(*behaviours: Behaviour, **changes: Any) -> tuple[str, FakeServer]:
    """The one line that a question to a bad server ends with."""
    with FakeServer(*behaviours) as server, session(server.url, **changes) as watching:
        with pytest.raises(ServerFailed) as caught:
            watching.ask("what is there?")
        line = str(caught.value)
        assert "\n" not in line and server.host in line and "; " in line
        return line, server


def test_sends_pictures_with_their_places_and_then_the_question() -> None:
    settings = {"instruction": "Be brief.", "answer_tokens": 9}
    answer, server = ask(says("a ", "dog"), frames=3, size_wh=(640, 480), **settings)
    assert (answer.text, answer.finish, answer.error) == ("a dog", "stop", None)
    assert (answer.frame_index, answer.pts_seconds, answer.model) == (2, 3.5, "m")
    request = server.requests[0]
    assert (request["model"], request["max_tokens"], request["temperature"]) == ("m", 9, 0)
    assert request["stream"] is True and request["stream_options"] == {"include_usage": True}
    system, user = request["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    texts = [part["text"] for part in user["content"] if part["type"] == "text"]
    newest = frame_at(2, (640, 480))
    packed = pack(newest.rgb, choose(newest))
    captions = [one.caption for one in packed.pictures]
    assert texts[0].startswith("At 1.5 s. The whole frame") and texts[1].startswith("At 2.5 s. The whole frame")
    assert texts[2:-1] == [f"At 3.5 s. {captions[0]}", *captions[1:]]
    assert captions[1:] and texts[-1] == "what is there?"
    pictures = [decoded(part["image_url"]["url"]) for part in user["content"] if part["type"] == "image_url"]
    assert [sent.shape for sent in pictures[2:]] == [packed_one.rgb.shape for packed_one in packed.pictures]
    for sent, meant in zip(pictures[2:], packed.pictures, strict=True):
        assert np.abs(sent.astype(int) - meant.rgb).mean() < 4
    assert answer.visual_tokens == sum(one.tokens for one in packed.pictures) + sum(
        sent.shape[0] * sent.shape[1] // 1024 for sent in pictures[:2]
    )


def decoded(url: str) -> np.ndarray[Any, Any]:
    kind, _, data = url.partition(";base64,")
    assert kind in ("data:image/jpeg", "data:image/png")
    read = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(read, cv2.COLOR_BGR2RGB)


def test_earlier_frames_are_kept_as_far_as_the_context_goes() -> None:
    answer, server = ask(says("ok"), frames=8, context_tokens=700, answer_tokens=100)
    texts = [part["text"] for part in server.requests[0]["messages"][0]["content"] if part["type"] == "text"]
    times = [float(text.split()[1]) for text in texts if text.startswith("At ")]
    assert 3 <= len(times) < 8 and times == [8.5 - back for back in range(len(times) - 1, -1, -1)]
    assert answer.visual_tokens < 600


def test_pieces_come_as_they_arrive_in_the_callers_thread_whose_errors_hang_up() -> None:
    on_message: list[tuple[str, str]] = []

    def hear(text: str) -> None:
        on_message.append((text, threading.current_thread().name))
        if len(on_message) == 3:
            raise ZeroDivisionError

    with FakeServer(hangs("a", "b", "c")) as server, session(server.url) as watching:
        with pytest.raises(ZeroDivisionError):
            watching.ask("?", on_text=hear)
        assert server.hung_up.wait(2)
    assert on_message == [(text, threading.current_thread().name) for text in "abc"]


# What is asked wrongly.


def test_bad_questions_cost_no_request() -> None:
    with FakeServer(says("ok")) as server:
        with session(server.url) as watching, pytest.raises(EmptyQuery):
            watching.ask(" \n")
        with session(server.url, frames=0) as watching, pytest.raises(NothingChosen, match="no frame was shown"):
            watching.ask("what?")
        with (
            session(server.url, context_tokens=600) as watching,
            pytest.raises(ContextExceeded, match="ask more brief"),
        ):
            watching.ask("why? " * 500)
        with pytest.raises(ContextExceeded, match=r"frame 0 takes .* tokens"), session(server.url, context_tokens=200):
            pass
        assert not server.requests


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "me:hunter2@host:80/v1",
        "http://",
        "http://h:99999/",
        "http://a b/",
        "file:///etc",
    ],
)
def test_an_endpoint_that_is_no_web_address_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSetting, match=r"vlm\.endpoint") as caught:
        ServerSession(VlmSettings(endpoint=endpoint, model="m"))
    assert "hunter2" not in str(caught.value)


def test_a_model_must_be_named_and_openai_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting, match="no model is named"):
        ServerSession(VlmSettings(endpoint="http://127.0.0.1:1/v1"))
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(BackendUnavailable, match=r"arr-stream\[vlm\]"):
        ServerSession(VlmSettings(endpoint="http://127.0.0.1:1/v1", model="m"))


# Attempts.


def test_retry_after_may_be_a_date_and_too_long_a_wait_is_not_waited() -> None:
    later = email.utils.formatdate(time.time() + 300, usegmt=True)
    line, server = fails(status(503, "down", Retry_After=later), retries=3)
    assert len(server.requests) == 1 and "busy (503): down" in line


def hang_up(exchange: Exchange) -> None:
    exchange.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("failure", "least_seconds"),
    [(status(429, "busy", Retry_After="1"), 0.9), (status(408, Retry_After="0"), 0.0), (hang_up, 0.0)],
)
def test_passing_failures_are_tried_again_when_the_server_says(failure: Behaviour, least_seconds: float) -> None:
    answer, server = ask(failure, says("ok"), retries=1)
    assert answer.text == "ok" and len(server.requests) == 2
    assert server.arrivals[1] - server.arrivals[0] > least_seconds


@pytest.mark.parametrize(("code", "attempts"), [(400, 1), (404, 1), (413, 1), (500, 2)])
def test_faults_of_the_server_alone_are_tried_again(code: int, attempts: int) -> None:
    line, server = fails(status(code, "no such thing"), retries=1)
    assert len(server.requests) == attempts and str(code) in line and "no such thing" in line


def test_a_server_that_is_down_is_said_to_be() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with (
            session(url, retries=1) as watching,
            pytest.raises(ServerFailed, match=r"no connection: .*(refused|failed)"),
        ):
            watching.ask("what?")


def test_a_silent_server_is_left_after_the_time_out() -> None:
    line, server = fails(hangs(), retries=1, timeout_seconds=0.5)
    assert "no response for 0.5 s" in line and len(server.requests) == 2


def test_drop_by_drop_ends_too() -> None:
    def drip(exchange: Exchange) -> None:
        exchange.begin()
        while True:
            exchange.event(piece("x"))
            time.sleep(0.05)

    answer, _ = ask(drip, timeout_seconds=1.0)
    assert answer.finish == "failed" and "x" in answer.text and "not whole after 1 s" in (answer.error or "")


def test_a_whole_answer_waits_no_longer_for_counts() -> None:
    def says_no_counts(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(piece("Yes."))
        exchange.event(piece(None, "stop"))
        exchange.hang()

    began = time.monotonic()
    answer, _ = ask(says_no_counts, timeout_seconds=30.0)
    assert (answer.text, answer.finish) == ("Yes.", "stop") and time.monotonic() - began < 15


def test_a_response_that_trickles_ends_a_prefill() -> None:
    def trickle(exchange: Exchange, _request: dict[str, Any]) -> None:
        exchange.begin(Content_Type="application/json")
        with contextlib.suppress(OSError):
            while not exchange.server.fake.ending.is_set():
                exchange.wfile.write(b" ")
                exchange.wfile.flush()
                time.sleep(0.05)

    with FakeServer(says("a")) as server, patch.object(Exchange, "count", trickle):
        chat_server = ChatServer(Endpoint.parse(server.url, "NO_KEY"), "m", timeout_seconds=30.0)
        with contextlib.closing(chat_server), pytest.raises(ServerFailed, match="does not end"):
            chat_server.prefill([{"role": "user", "content": "?"}], timeout_seconds=0.5)


# Nonsense.


def streams(*events: object) -> Behaviour:
    def behave(exchange: Exchange) -> None:
        exchange.begin()
        for event in events:
            exchange.event(event)

    return behave


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (body(b"<html><body>It works!</body></html>", "text/html"), "sent no answer"),
        (body(b"", ""), "sent no answer"),
        (streams(5, [], "x", None, {"object": "x"}, {"choices": 7}), "sent no answer"),
        (streams({"choices": [7]}), "sent an invalid answer|sent no answer"),
        (streams({"choices": [{"delta": {"content": [1, 2]}, "finish_reason": {}}]}), "sent no answer"),
        (streams(b"{not json"), "sent an invalid answer"),
        (streams(b"\xff\xfe"), "sent an invalid answer"),
        (streams({"error": {"message": "out of memory"}}), "the server reports: out of memory"),
        (streams({"error": "out of memory"}), "the server reports: out of memory"),
        (says(finish=None), "sent no answer"),
        (says(finish="stop"), "the answer is empty"),
        (streams(piece(None, "length", reasoning_content="hm")), "raise vlm.answer_tokens"),
        (says("secret", finish="content_filter"), "withheld"),
    ],
)
def test_nonsense_is_named(behaviour: Behaviour, said: str) -> None:
    with FakeServer(behaviour) as server, session(server.url) as watching:
        try:
            answer = watching.ask("what?")
        except ServerFailed as error:
            assert re.search(said, str(error))
        else:
            assert answer.finish == "failed" and answer.text and re.search(said, answer.error or "")


def test_an_answer_that_breaks_off_is_kept_and_not_asked_again() -> None:
    for behaviour in (says("half of ", "it", finish=None), hangs("half of ", "it")):
        answer, server = ask(behaviour, retries=3, timeout_seconds=0.5)
        assert (answer.text, answer.finish) == ("half of it", "failed")
        assert answer.error and server.host in answer.error and len(server.requests) == 1


def test_an_endless_answer_and_an_endless_line_are_cut() -> None:
    def endless(exchange: Exchange) -> None:
        exchange.begin()
        while True:
            exchange.event(piece("more " * 50))

    def endless_line(exchange: Exchange) -> None:
        exchange.begin()
        exchange.wfile.write(b"data: ")
        while True:
            exchange.wfile.write(b"x" * 65536)

    answer, server = ask(endless, answer_tokens=16)
    assert answer.finish == "length" and len(answer.text) == 32 * 16 + 1024
    assert server.hung_up.is_set()
    assert "more than 16 MiB" in fails(endless_line)[0]


def test_compressed_answers_are_refused() -> None:
    line, server = fails(lambda exchange: exchange.begin(Content_Encoding="gzip"))
    assert "compressed" in line and server.headers[0]["accept-encoding"] == "identity"


def test_control_characters_and_surrogates_do_not_get_through() -> None:
    answer, _ = ask(says("a\x1b[3", "1mred\x1b]0;title\x07 \x07b\x9b2J\u202e\n\tc", "\ud83d", "\x1b[12"))
    assert answer.text == "a[31mred]0;title b2J\n\tc\ufffd[12"


THOUGHTS = {
    "<think>\n\n</think>\n\nA red\n circle": "A red\n circle",
    "\n<think>\nIt is <think> red.\n</think>\n\n red </think>": "red </think>",
    "<think>never ended": "",
    "<think></think>\n": "",
    "<thin": "<thin",
    " <thimble>": " <thimble>",
    "red <think>x</think>": "red <think>x</think>",
    "": "",
}


@pytest.mark.parametrize(("text", "answer"), THOUGHTS.items())
def test_thoughts_before_an_answer_are_left_out_wherever_pieces_end(text: str, answer: str) -> None:
    for cuts in range(1, len(text) + 1):
        cleaner = AnswerText()
        pieces = [cleaner.feed(text[at : at + cuts]) for at in range(0, len(text), cuts)]
        assert "".join(pieces) + cleaner.finish() == answer


# Secrets.


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.INFO)
    echoes = [status(code, f"key {KEY} is wrong") for code in (400, 401, 404, 500)]
    echoes += [body(f"<p>{KEY}</p>".encode(), "text/html"), streams({"error": {"message": KEY}})]
    echoes += [lambda exchange: exchange.body(b"", 307, Location=f"http://other/?q={KEY}")]
    for behaviour in echoes:
        with FakeServer(behaviour) as server, session(server.url, key_variable="MY_KEY") as watching:
            with pytest.raises(ServerFailed) as caught:
                watching.ask("what?")
            assert server.headers[0]["authorization"] == f"Bearer {KEY}"
            shown = "".join(traceback.format_exception(caught.value)) + repr(vars(watching)) + repr(watching)
            assert KEY not in shown and KEY not in caplog.text


def test_a_refused_key_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    line, server = fails(status(401, "no key"), retries=2)
    assert "wants a key (401); set OPENAI_API_KEY" in line and len(server.requests) == 1
    assert server.headers[0]["authorization"] == "Bearer none"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert "refuses the key of OPENAI_API_KEY (401)" in fails(status(401, "bad key"))[0]


def test_a_key_that_no_header_holds_is_refused_unshown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-one\nsk-two")
    with pytest.raises(InvalidSetting) as caught:
        ServerSession(VlmSettings(endpoint="http://127.0.0.1:1/v1", model="m"))
    assert "OPENAI_API_KEY" in str(caught.value) and "sk-" not in str(caught.value)


def test_a_password_in_the_address_is_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FakeServer(status(500, "no")) as server:
        url = server.url.replace("http://", "http://me:hunter22@") + "?api-key=topsecret1"
        with session(url) as watching, pytest.raises(ServerFailed) as caught:
            watching.ask("what?")
    sent = base64.b64decode(server.headers[0]["authorization"].removeprefix("Basic ")).decode()
    assert sent == "me:hunter22"
    shown = "".join(traceback.format_exception(caught.value)) + repr(Endpoint.parse(url, "NONE"))
    assert "hunter22" not in shown + caplog.text and "topsecret1" not in "".join(map(str, caught.value.args))


def test_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FakeServer(says("stolen")) as other:
        for code in (302, 307):
            line, _ = fails(lambda exchange, code=code: exchange.body(b"", code, Location=other.url))
            assert f"redirects to {other.url}" in line
        assert not other.requests


def test_certificates_are_checked(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with FakeServer(says("ok"), tls=tls) as server:
        with session(server.url) as watching, pytest.raises(ServerFailed, match="certificate is not trusted"):
            watching.ask("what?")
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with session(server.url) as watching:
            assert watching.ask("what?").text == "ok"


def test_no_proxy_comes_between_this_machine_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(says("ok"))[0].text == "ok"


# Calling off.


@pytest.mark.parametrize("behaviour", [hangs(), hangs("so ", "far"), status(503, "down", Retry_After="60")])
@pytest.mark.parametrize("seconds", [0.0, 0.3], ids=["before", "meanwhile"])
def test_stop_ends_a_question(behaviour: Behaviour, seconds: float) -> None:
    """At once: the server would hang for good, and openai wait for a minute."""
    stop = threading.Event()
    with FakeServer(behaviour) as server, session(server.url, retries=1) as watching:
        timer = threading.Timer(seconds, stop.set)
        timer.start()
        if not seconds:
            timer.join()
        answer = watching.ask("what?", stop=stop)
        timer.join()
        assert answer.finish == "cancelled" and answer.text in ("", "so far") and answer.error is None
        if seconds and behaviour.__name__ == "behave":
            assert server.hung_up.wait(2)


def test_closing_calls_off_what_another_thread_asks() -> None:
    failures: list[ArrStreamError] = []

    def wait(watching: ServerSession) -> None:
        try:
            watching.ask("what?")
        except ArrStreamError as error:
            failures.append(error)

    with FakeServer(hangs()) as server, session(server.url) as watching:
        asking = threading.Thread(target=wait, args=(watching,))
        asking.start()
        wait_until(lambda: server.requests, 5.0)
        watching.close()
        watching.close()
        asking.join(2)
        assert not asking.is_alive() and "closed while it was asked" in str(failures[0])


# A true server.


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[str]:
    """`transformers serve` over a model on disk; ended by its own process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_until(lambda: server.poll() is not None or healthy(port), 90.0)
            assert server.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def healthy(port: int) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.mark.slow
def test_a_true_server_sees_what_was_packed(tiny_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model behind `transformers serve` says what the same model says here of the same messages."""
    import torch

    sent: list[Any] = []
    send = ChatServer.ask
    monkeypatch.setattr(
        ChatServer, "ask", lambda self, messages, **more: (sent.append(messages), send(self, messages, **more))[1]
    )
    with (
        serving(tiny_qwen, tmp_path / "log") as url,
        session(url, model=str(tiny_qwen), frames=3, answer_tokens=8, timeout_seconds=60.0) as watching,
    ):
        on_message: list[str] = []
        answer = watching.ask("What is there?", on_text=on_message.append)
        with session(url, model="another") as wrong, pytest.raises(ServerFailed, match="refuses the request"):
            wrong.ask("What is there?")
    assert "".join(on_message) == answer.text and answer.finish in ("length", "stop") and answer.error is None

    model, processor = load_tiny(tiny_qwen)
    for part in sent[0][-1]["content"]:
        if part["type"] == "image_url":
            part |= {"type": "image", "url": part.pop("image_url")["url"]}
    inputs = processor.apply_chat_template(
        sent[0], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        tokens = model.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert answer.prompt_tokens == inputs["input_ids"].shape[1]
    assert answer.visual_tokens == int((inputs["input_ids"] == model.config.image_token_id).sum())
    assert answer.text == processor.decode(tokens, skip_special_tokens=True)
    assert answer.answer_tokens == len(tokens)
