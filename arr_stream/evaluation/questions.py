"""The user's own questions: JSON lines, each with a picture or a video, a question, and the right answer.

    {"picture": "yard.jpg", "question": "What colour is the gate?", "options": ["red", "green"], "answer": "green"}
    {"video": "door.mp4", "question": "How many people went in?", "answer": ["3", "three people"], "kind": "count"}

Paths are relative to the file's folder. Invalid lines are reported by number and skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_stream.errors import ArrStreamError, EvaluationDataError
from arr_stream.relevance.query import TextQuery, parse_text
from arr_stream.relevance.question import sought
from arr_stream.relevance.words import folded

FILE_NAME = "questions.jsonl"
"""Name of the question file in a folder."""

_ARTICLES = frozenset(("a", "an", "the"))
_COUNTS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_DIGITS = {word: str(number) for number, word in enumerate(_COUNTS.split())}


@dataclass(frozen=True, slots=True)
class Question:
    """Question about a picture or a video.

    Args:
        line: Its line number in the file, from 1.
        source: The file, or for a video also a folder of its frames.
        video: Show it as a video instead of a picture.
        text: The question.
        options: The possible answers; empty for a question to answer in words.
        answers: The right ones; one or more of the options, if there are any.
        kind: Group for the counts.
        queries: The queries for the pipeline.
    """

    line: int
    source: Path
    video: bool
    text: str
    options: tuple[str, ...]
    answers: tuple[str, ...]
    kind: str
    queries: tuple[TextQuery, ...]

    def is_right(self, said: str) -> bool:
        """Return whether these words are one of the answers; see `folded_answer`."""
        return folded_answer(said) in {folded_answer(answer) for answer in self.answers}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Skipped line, and the reason."""

    line: int
    reason: str


def folded_answer(text: str) -> str:
    """Normalise an answer: no case, accents, punctuation or articles, and numbers in digits ("Three." is "3")."""
    words = folded(text).split()
    kept = [word for word in words if word not in _ARTICLES] or words
    return " ".join(_DIGITS.get(word, word) for word in kept) or text.strip()


def read_questions(path: Path) -> tuple[list[Question], list[Skipped]]:
    """Read all questions of a file, or of `questions.jsonl` in a folder, and the invalid lines.

    Raises:
        EvaluationDataError: There is no such file, it cannot be read, or it has no valid question.
    """
    file = path / FILE_NAME if path.is_dir() else path
    try:
        lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as exc:
        raise EvaluationDataError(
            f"{file}: cannot be read: {(exc.strerror or str(exc)).lower()}",
            remedy=f"give a file of JSON lines, or a folder with one that is called {FILE_NAME}",
        ) from exc
    found: list[Question] = []
    skipped: list[Skipped] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(_question(line, number, file.parent))
        except ArrStreamError as exc:
            skipped.append(Skipped(number, str(exc)))
    if not found:
        first = f"; line {skipped[0].line}: {skipped[0].reason}" if skipped else ""
        raise EvaluationDataError(
            f"{file}: no questions{first}", remedy="each line is a JSON object, see docs/measuring.md"
        )
    return found, skipped


def _question(line: bytes, number: int, folder: Path) -> Question:
    """Parse one line.

    Raises:
        EvaluationDataError, QueryError, InvalidSetting: The line is invalid; the message states the expected form.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as exc:  # Invalid UTF-8 is a ValueError too.
        raise EvaluationDataError(f"expected one JSON object, found invalid JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise EvaluationDataError(f"expected one JSON object, found {json.dumps(fields)}")
    (text,) = _texts(fields, "question", most=1)
    options, answers = _texts(fields, "options", least=0), _texts(fields, "answer")
    if len(set(options)) < len(options) or len(options) == 1:
        raise EvaluationDataError(f"expected `options` that differ, two or more, found {json.dumps(options)}")
    if options and not set(answers) <= set(options):
        raise EvaluationDataError(f"expected `answer` among the options {json.dumps(options)}, found {answers[0]!r}")
    kinds, queries = _texts(fields, "kind", least=0, most=1), _texts(fields, "query", least=0)
    source, video = _media(fields, folder)
    looked_for = tuple(parse_text(query) for query in queries or sought(text))
    return Question(number, source, video, text, options, answers, kinds[0] if kinds else "", looked_for)


def _media(fields: Mapping[str, Any], folder: Path) -> tuple[Path, bool]:
    """Return the question's file, and whether it is a video."""
    named = [name for name in ("picture", "video") if fields.get(name) is not None]
    if len(named) != 1:
        raise EvaluationDataError(f"expected `picture` or `video`, found {' and '.join(named) or 'neither'}")
    video = named == ["video"]
    path = folder / _texts(fields, named[0], most=1)[0]
    try:
        there = path.is_file() or (video and path.is_dir())
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise EvaluationDataError(f"expected a {named[0]} at {path}, found none")
    return path, video


def _texts(fields: Mapping[str, Any], name: str, *, least: int = 1, most: int | None = None) -> tuple[str, ...]:
    """Return a text, a number or a list of them as texts, stripped of surrounding whitespace."""
    value = fields.get(name)
    each = value if isinstance(value, list) else [] if value is None else [value]
    texts = [str(part).strip() for part in each if isinstance(part, str | int | float) and not isinstance(part, bool)]
    # Half a surrogate pair is valid JSON, but not valid text.
    whole = len(texts) == len(each) and all(text and text == text.encode("utf-8", "replace").decode() for text in texts)
    if not whole or len(texts) < least or (most is not None and len(texts) > most):
        what = "a text" if most == 1 else "a text or a list of texts"
        raise EvaluationDataError(f"expected {what} as `{name}`, found {json.dumps(value)}")
    return tuple(texts)
