"""The interface for programs over HTTP, row by row, on a server that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from arr_stream.errors import NothingChosen
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.types import Frame
from arr_stream.web.access import AllowedSources
from tests.web_servers import PICTURE, SETTINGS, RunningServer, running, until, write_picture

JPEG = b"\xff\xd8\xff"
NOWHERE = "rtsp://camera:hunter2@127.0.0.1:9/none"


class Parrot:
    """Answers with the question, and that it has seen something."""

    name = "parrot"

    def __init__(self) -> None:
        self.seen: Frame | None = None
        self.attention = None

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        self.seen = frame
        return Feeding(sent=len(patches))

    def ask(self, question: str, *, on_text: object = None, stop: object = None) -> Answer:
        if self.seen is None:
            raise NothingChosen("nothing was seen")
        cells = np.array([[0, 0, 16, 16, 1.0]], np.float32)
        frames = np.array([self.seen.index], np.int32)
        text = f"You ask: {question}"
        return Answer(question, text, self.seen.index, self.seen.pts_seconds, self.name, cells, frames)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    presets = {"frugal": SETTINGS.with_values({"selection.budget": 5})}
    with running(presets=presets, make_session=lambda settings: Parrot()) as server:
        server.add(name="first", query=["red"])
        yield server


@pytest.fixture
def first(server: RunningServer) -> str:
    """The path of the first stream."""
    return f"/api/streams/{server.serving.streams.runners[0].id}"


@pytest.fixture(scope="module")
def bare() -> Iterator[RunningServer]:
    """No model, but cameras; one stream runs, another never opens, and no more may be added."""
    with running(allowed=AllowedSources(named=(NOWHERE,), cameras=True), most=2) as server:
        server.add()
        (named,) = server.http.get("/api/info").json()["sources"]["named"]
        assert server.http.post("/api/streams", json={"source": named, "name": "dark"}).status_code == 201
        yield server


def test_a_stream_is_added_changed_and_removed(server: RunningServer) -> None:
    body = {"source": PICTURE, "name": "second", "query": ["blue"], "settings": {"selection.budget": 7}}
    added = server.http.post("/api/streams", json=body)
    assert added.status_code == 201
    id = added.json()["id"]
    path = f"/api/streams/{id}"
    assert [status["id"] for status in server.http.get("/api/streams").json()][-1] == id
    until(lambda: server.status(id)["tokens"] == 7)
    status = server.http.patch(path, json={"name": "renamed", "settings": {"selection.budget": "3"}}).json()
    assert (status["name"], status["settings"]["selection.budget"]) == ("renamed", "3")
    until(lambda: server.status(id)["tokens"] == 3)
    assert server.http.patch(path, json={"preset": "frugal"}).json()["preset"] == "frugal"
    until(lambda: server.status(id)["tokens"] == 5)
    status = server.http.patch(path, json={"preset": None}).json()
    assert status["preset"] is None
    assert "selection.budget" not in status["settings"]
    assert server.http.patch(path, json={"paused": True}).json()["paused"] is True
    frames = until(lambda: (a := server.status(id)["frames"]) == server.status(id)["frames"] and a)
    assert server.http.patch(path, json={"paused": False}).json()["paused"] is False
    until(lambda: server.status(id)["frames"] > frames)
    assert server.http.post(f"{path}/retry").status_code == 200
    assert server.http.delete(path).status_code == 204
    assert server.http.get(path).status_code == 404
    assert server.http.delete(path).status_code == 404


def test_a_source_that_is_not_allowed(server: RunningServer) -> None:
    for source in ("lavfi:mandelbrot", "/etc/passwd", "rtsp://user:secret@10.0.0.1/x", "0"):
        answer = server.http.post("/api/streams", json={"source": source})
        assert answer.status_code == 403
        assert set(answer.json()) == {"error", "remedy"}
        assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/streams", {}, 422),
        ("POST", "/api/streams", {"source": PICTURE, "more": 1}, 422),
        ("POST", "/api/streams", {"source": PICTURE, "query": ["x" * 501]}, 422),
        ("POST", "/api/streams", {"source": PICTURE, "query": ["x"] * 17}, 422),
        ("POST", "/api/streams", {"source": PICTURE, "name": "a\x00b"}, 422),
        ("POST", "/api/streams", {"source": PICTURE, "name": "\ud800"}, 422),
        ("POST", "/api/streams", {"source": PICTURE, "preset": "unknown"}, 400),
        ("POST", "/api/streams", {"source": PICTURE, "settings": {"models.folder": "/tmp"}}, 400),
        ("POST", "/api/streams", {"source": PICTURE, "settings": {"keyframes.interval": 0}}, 400),
        ("PATCH", "{first}", {"settings": {"vlm.endpoint": "http://evil"}}, 400),
        ("PATCH", "{first}", {"settings": {"selection.budget": {"a": 1}}}, 422),
        ("PATCH", "{first}", {"settings": {"selection.budget": "0"}}, 400),
        ("PATCH", "{first}", {"name": " "}, 422),
        ("PATCH", "/api/streams/nothing", {"paused": True}, 404),
        ("PUT", "{first}/query", {"texts": [" "]}, 422),
        ("PUT", "{first}/query", {"texts": [], "region": {"xywh": [5000, 5000, 10, 10]}}, 400),
        ("PUT", "{first}/query", {"texts": [], "region": {"xywh": [1, 2, 3]}}, 422),
        ("POST", "{first}/questions", {"question": ""}, 422),
        ("POST", "{first}/questions", {"question": "x", "when": "never"}, 422),
        ("POST", "{first}/questions", {"question": "x", "when": "every", "every_seconds": 0.01}, 400),
        ("GET", "{first}/records?last=0", None, 422),
        ("GET", "{first}/snapshot.jpg?view=nothing", None, 400),
        ("GET", "/api/cameras", None, 403),
        ("GET", "/api/nothing", None, 404),
        ("DELETE", "/api/info", None, 405),
    ],
)
def test_what_makes_no_sense_gets_one_line(
    server: RunningServer, first: str, method: str, path: str, body: object, status: int
) -> None:
    # As json.dumps writes it: lone surrogates too.
    content = None if body is None else json.dumps(body)
    headers = {"content-type": "application/json"}
    answer = server.http.request(method, path.format(first=first), content=content, headers=headers)
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert set(told) == {"error", "remedy"}
    assert told["error"]
    assert "\n" not in told["error"]
    assert len(server.serving.streams.runners) == 1


def test_no_json_at_all(server: RunningServer) -> None:
    for content in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"source": NaN}'):
        answer = server.http.post("/api/streams", content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        assert set(answer.json()) == {"error", "remedy"}


def test_what_to_look_for(server: RunningServer, first: str, tmp_path: Path) -> None:
    body = {"texts": ["red", "moving"], "region": {"xywh": [10, 10, 40, 30]}}
    status = server.http.put(f"{first}/query", json=body).json()
    assert (status["texts"], status["region"]) == (["red", "moving"], [10, 10, 40, 30])
    assert server.http.put(f"{first}/query", json={"texts": ["green"]}).json()["region"] == [10, 10, 40, 30]
    status = server.http.put(f"{first}/example", content=write_picture(tmp_path / "a.png")).json()
    assert (status["example"], status["texts"], status["region"]) == ("picture", ["green"], [10, 10, 40, 30])
    status = server.http.put(f"{first}/query", json={"texts": ["red"], "region": None}).json()
    assert (status["example"], status["texts"], status["region"]) == ("picture", ["red"], None)
    assert server.http.delete(f"{first}/example").json()["example"] is None
    broken = server.http.put(f"{first}/example", content=b"not a picture", headers={"content-type": "image/png"})
    assert broken.status_code == 400
    assert "/tmp" not in broken.text
    assert server.http.put(f"{first}/example").status_code == 400


def test_questions_and_answers(server: RunningServer, first: str) -> None:
    asked = server.http.post(f"{first}/questions", json={"question": "What is red?"})
    assert asked.status_code == 202
    until(lambda: server.http.get(f"{first}/answers").json())
    (answer,) = server.http.get(f"{first}/answers").json()
    assert (answer["question"], answer["text"]) == ("What is red?", "You ask: What is red?")
    assert answer["cells"]
    body = {"question": "And now?", "when": "every", "every_seconds": 1}
    status = server.http.post(f"{first}/questions", json=body).json()
    assert status["plan"] == {"question": "And now?", "when": "every", "every_seconds": 1.0}
    until(lambda: len(server.http.get(f"{first}/answers").json()) >= 3)
    assert server.http.delete(f"{first}/questions").status_code == 204
    assert server.http.get(first).json()["plan"] is None


def test_records_can_be_read_back(server: RunningServer, first: str, tmp_path: Path) -> None:
    until(lambda: server.http.get(first).json()["frames"] > 12)
    answer = server.http.get(f"{first}/records", params={"last": 10})
    path = tmp_path / "records.jsonl"
    path.write_bytes(answer.content)
    header, frames, end = read_records(path)
    assert header.frame_size_wh == (160, 96)
    assert len(frames) == 10
    assert [frame.index for frame in frames] == sorted(frame.index for frame in frames)
    assert end is None
    assert all(frame.cells for frame in frames)


def test_rules_are_replaced_and_their_alerts_come_as_events(bare: RunningServer) -> None:
    with bare.socket("/api/events") as events:
        rules = [" relevance  < 1 ", "relevance[1] > 0.5 for 3s", "relevance < 1"]
        status = bare.http.put("/api/streams/s1/rules", json={"rules": rules}).json()
        assert status["rules"] == ["relevance < 1", "relevance[1] > 0.5 for 3s"]
        event = next(each for each in map(json.loads, events) if each["type"] == "alert")
    assert {"type": "alert", "stream": "s1", "rule": "relevance < 1", "message": "relevance 0"}.items() <= event.items()
    refused = bare.http.put("/api/streams/s1/rules", json={"rules": ["relevance > 2"]})
    assert refused.status_code == 400 and "from 0 to 1" in refused.json()["error"]
    assert bare.status("s1")["rules"] == ["relevance < 1", "relevance[1] > 0.5 for 3s"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "streams", {"source": "0"}, 409, "2 is the limit"),
        ("POST", "streams/s1/questions", {"question": "What?"}, 409, "--model"),
        ("GET", "streams/s1/answers", None, 200, "[]"),
        ("GET", "streams/s2/answers", None, 200, "[]"),
        ("GET", "streams/s2/snapshot.jpg", None, 503, "no picture yet"),
        ("GET", "streams/s2/records", None, 503, "no frame yet"),
        ("GET", "cameras", None, 200, "["),
    ],
)
def test_what_cannot_be_had_here(
    bare: RunningServer, method: str, path: str, body: object, status: int, says: str
) -> None:
    answer = bare.http.request(method, f"/api/{path}", json=body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_passwords_stand_in_no_status(bare: RunningServer) -> None:
    until(lambda: bare.status("s2")["message"])
    texts = [bare.http.get(path).text for path in ("/api/info", "/api/streams", "/metrics")]
    assert "127.0.0.1:9" in texts[1]
    assert not any("hunter2" in text for text in texts)
    assert bare.http.get("/healthz").status_code == 200


def test_metrics_are_those_of_the_statuses(server: RunningServer) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    id = server.add()
    families = list(parser.text_string_to_metric_families(server.http.get("/metrics").text))
    values = {(sample.name, sample.labels.get("stream")): sample.value for each in families for sample in each.samples}
    assert 0 < values["arr_stream_frames_total", id] <= server.status(id)["frames"]
    assert 0 < values["arr_stream_frame_seconds", id] < 5 and values["arr_stream_streams", None] >= 1
    assert all(each.name.startswith(("arr_stream_", "process_")) and each.documentation for each in families)
    server.http.delete(f"/api/streams/{id}")
    assert f'stream="{id}"' not in server.http.get("/metrics").text


def test_the_page_and_its_files(server: RunningServer) -> None:
    page = server.http.get("/")
    assert "text/html" in page.headers["content-type"]
    script = server.http.get("/static/js/main.js")
    assert "javascript" in script.headers["content-type"]
    again = server.http.get("/static/js/main.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304
    for path in ("../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", ""):
        assert server.http.get(f"/static/{path}").status_code == 404, path
