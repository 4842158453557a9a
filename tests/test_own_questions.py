"""`arr-stream eval questions`: questions of one's own, asked of a tiny model with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arr_stream.evaluation.answers import WHOLE, AnswersReport, Outcome
from arr_stream.evaluation.questions import Skipped, folded_answer, read_questions
from tests.conftest import Run
from tests.fake_server import FakeServer, says, status
from tests.media import moving_frames, write_video
from tests.qwen_stock import image_inputs, stock_answer
from tests.tiny_qwen import picture

SIZE_WH = (320, 256)
"""80 cells; smaller pictures are scaled up by the stock processor, and not by us."""
QUICK = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--set", "vlm.answer_tokens=4")
QUESTION = "What is red?"


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a picture, a clip of two seconds, and a file that is neither."""
    folder = tmp_path_factory.mktemp("own")
    Image.fromarray(picture(*SIZE_WH)).save(folder / "picture.png")
    write_video(folder / "clip.mp4", moving_frames(20, (192, 160)), fps=10)
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    return folder


def _line(**fields: object) -> str:
    return json.dumps({"picture": "picture.png", "question": QUESTION, "answer": "yes"} | fields)


def _file(folder: Path, *lines: str) -> Path:
    """`questions.jsonl` beside the media, of a test's own."""
    path = folder / "questions.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Three.", "3"),
        ("The red circle", "red circle"),
        ("a", "A"),
        ("12", "twelve"),
        ("ÉTÉ!", "été"),
        ("?", "?"),
        ("top-left", "top left"),
    ],
)
def test_answers_that_mean_the_same(said: str, meant: str) -> None:
    assert folded_answer(said) == folded_answer(meant) != ""


def test_a_file_and_its_folder_are_read_alike(media: Path) -> None:
    path = _file(
        media,
        "\ufeff" + _line(options=["yes", "no"], query=["red", "blue"]),
        "",
        _line(picture=None, video="clip.mp4", answer=[2, "two of them"]),
    )
    (first, second), skipped = read_questions(path)
    assert ([first, second], skipped) == read_questions(media) and not skipped
    assert (first.line, first.source, first.video) == (1, media / "picture.png", None)
    assert (first.options, first.answer) == (("yes", "no"), ("yes",))
    assert [query.label for query in first.queries] == ["red", "blue"]
    assert (second.line, second.video, second.options) == (3, "clip.mp4", ())
    assert [query.label for query in second.queries] == ["red"], "what the question names"
    assert first.model_copy(update={"options": ("-1", "1"), "answer": ("-1",)}).is_right("-1")
    assert not first.model_copy(update={"options": ("-1", "1"), "answer": ("-1",)}).is_right("1")
    assert second.is_right("Two.") and second.is_right("two of them") and not second.is_right("three")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{broken", "the line is no"),
        ("[" * 100_000, "the line is no"),
        ('["a"]', "the line is no"),
        (_line(picture=None), "expected either `picture` or `video`"),
        (_line(video="clip.mp4"), "expected either `picture` or `video`"),
        (_line(picture="gone.png"), "gone.png, found none"),
        (_line(picture="x" * 5000), "found none"),
        (_line(picture="."), "expected a picture at"),
        (_line(question=" "), "`question` is no text"),
        (_line(question="what \ud800 is"), "the line is no"),
        (_line(question="red " * 2000), "at most 2000"),
        (_line(answer=None), "`answer` is no text or list of texts"),
        (_line(answer=True), "`answer` is no text or list of texts"),
        (_line(options=["no", "perhaps"]), "expected `answer` among the options no, perhaps, found 'yes'"),
        (_line(options=["yes"]), "expected `options` that differ, two or more"),
        (_line(options=["yes", ""]), "`options` is no text"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_told_by_its_number(media: Path, line: str, expected: str) -> None:
    found, (skipped,) = read_questions(_file(media, _line(), line, _line()))
    assert [asked.line for asked in found] == [1, 3]
    assert skipped.line == 2 and expected in skipped.reason


def test_bytes_that_are_no_text_spoil_their_line_alone(media: Path) -> None:
    path = _file(media, _line())
    path.write_bytes(b'{"question": "\xff"}\n' + path.read_bytes())
    found, skipped = read_questions(path)
    assert [asked.line for asked in found] == [2] and [each.line for each in skipped] == [1]


def test_the_table_counts_by_budget() -> None:
    outcomes = [
        Outcome(line, QUESTION, "25%", 10 * line, right, "", ms, 2 * ms)
        for line, right, ms in ((1, True, 1), (2, False, 2), (3, True, 30))
    ]
    (table,) = AnswersReport("m", tuple(outcomes), ()).tables
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (row["questions"], row["tokens"], row["ms"], row["choosing"]) == (3, 20, 6, 2)
    assert row["right"] == pytest.approx(2 / 3)
    assert row["from"] < row["right"] < row["to"]  # type: ignore[operator]


def _asked(run: Run, path: Path, model: Path, *arguments: object) -> tuple[int, dict[str, Any], str]:
    code, out, err = run("eval", "questions", path, "--model", model, *QUICK, "--json", *arguments)
    return code, json.loads(out), err


def test_with_all_tokens_it_is_the_stock_model_that_answers(
    run: Run, media: Path, tiny_qwen: Path, tiny: tuple[Any, Any]
) -> None:
    model, processor = tiny
    inputs = image_inputs(processor, [picture(*SIZE_WH)], QUESTION)
    words = processor.decode(stock_answer(model, inputs, 4), skip_special_tokens=True).strip()
    path = _file(media, _line(answer=["?", words.upper()]), _line(answer="no"))
    code, report, err = _asked(run, path, tiny_qwen, "--budget", WHOLE)
    assert code == 0, err
    assert [(each["said"], each["right"]) for each in report["outcomes"]] == [(words, True), (words, False)]
    assert {each["tokens"] for each in report["outcomes"]} == {80}


def test_a_video_goes_the_way_that_ask_goes(run: Run, media: Path, tiny_qwen: Path) -> None:
    code, words, err = run("ask", media / "clip.mp4", QUESTION, "--model", tiny_qwen, "--budget", "25%", *QUICK)
    assert code == 0, err
    path = _file(media, _line(picture=None, video="clip.mp4"))
    _, report, _ = _asked(run, path, tiny_qwen, "--budget", "25%")
    assert report["outcomes"][0]["said"] == words.strip() != ""


def test_what_fails_is_counted_nowhere_and_the_rest_goes_on(run: Run, media: Path, tiny_qwen: Path) -> None:
    path = _file(media, "{broken", _line(picture="broken.png"), _line(), _line(picture="gone.png"))
    code, report, err = _asked(run, path, tiny_qwen)
    assert code == 82
    assert [(each["line"], each["budget"]) for each in report["outcomes"]] == [(3, WHOLE), (3, "25%")]
    assert [each["line"] for each in report["skipped"]] == [1, 4, 2]
    said = err.splitlines()
    for line in (1, 2, 4):
        assert any(each.startswith(f"line {line}: ") for each in said)
    assert said[-1] == "arr-stream: 3 lines of 4 left out; correct the lines reported above"
    assert Skipped(4, report["skipped"][1]["reason"]).reason.endswith("gone.png, found none")


def test_the_prompt_lists_the_options_and_the_words_count(run: Run, media: Path) -> None:
    path = _file(media, _line(options=["yes", "no"]), _line(answer="no"))
    with FakeServer(says("Yes", ".")) as server:
        code, out, err = run(
            "eval", "questions", path, "--endpoint", server.url, "--model", "m", "--budget", "50%", *QUICK, "--json"
        )
    assert code == 0, err
    report = json.loads(out)
    assert [(each["said"], each["right"]) for each in report["outcomes"]] == [("Yes.", True), ("Yes.", False)]
    asked = [request["messages"][-1]["content"][-1]["text"] for request in server.requests]
    assert asked == [f"{QUESTION} Answer with one of these and nothing else: yes, no.", QUESTION]


def test_a_server_that_fails_ends_it_with_what_there_is(run: Run, media: Path) -> None:
    path = _file(media, _line(answer="no"), _line(answer="no"), _line(answer="no"))
    with FakeServer(says("No"), status(500)) as server:
        served = ("--endpoint", server.url, "--model", "m", "--budget", "50%")
        code, out, err = run("eval", "questions", path, *served, *QUICK, "--json")
    assert code == 67 and "500" in err
    assert [each["line"] for each in json.loads(out)["outcomes"]] == [1]
