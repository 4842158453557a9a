"""The user's own questions: JSON lines, each with a picture or a video, a question, and the right answer.

    {"picture": "yard.jpg", "question": "What colour is the gate?", "options": ["red", "green"], "answer": "green"}
    {"video": "door.mp4", "question": "How many people went in?", "answer": ["3", "three people"]}

Paths are relative to the file's folder. Invalid lines are reported by number and skipped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

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

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Texts = Annotated[
    tuple[_Text, ...],
    BeforeValidator(lambda value: value if isinstance(value, list) else [] if value is None else [value]),
]


class Question(BaseModel):
    """Question about a picture or a video: a line of the file, with its number and the path of the media.

    `options` are the possible answers, empty for a question to answer in words; `answer` the right ones, among the
    options if there are any; `query` the queries, if not what the question names.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    picture: _Text | None = None
    video: _Text | None = None
    question: _Text
    options: _Texts = ()
    answer: Annotated[_Texts, Field(min_length=1)]
    query: _Texts = ()
    line: int = 0
    source: Path = Path()

    @property
    def prompt(self) -> str:
        """The question with its options."""
        options = f" Answer with one of these and nothing else: {', '.join(self.options)}." if self.options else ""
        return self.question + options

    @property
    def queries(self) -> tuple[TextQuery, ...]:
        """The queries for the pipeline."""
        return tuple(parse_text(query) for query in self.query or sought(self.question))

    def is_right(self, said: str) -> bool:
        """Return whether these words are one of the answers: an option as it is written, or see `folded_answer`."""
        exact = [option for option in self.options if option.casefold() == said.strip().casefold()]
        if exact:
            return exact[0] in self.answer
        return folded_answer(said) in {folded_answer(answer) for answer in self.answer}


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
        try:
            if line.strip():
                found.append(_question(line, number, file.parent))
        except ArrStreamError as exc:
            skipped.append(Skipped(number, str(exc)))
    if not found:
        raise EvaluationDataError(
            f"{file}: no questions" + "".join(f"; line {each.line}: {each.reason}" for each in skipped[:1]),
            remedy="each line is a JSON object, see docs/measuring.md",
        )
    return found, skipped


def _question(line: bytes, number: int, folder: Path) -> Question:
    """Parse one line; errors state the expected form."""
    try:
        asked = Question.model_validate_json(line)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        field = f"`{error['loc'][0]}`" if error["loc"] else "the line"
        raise EvaluationDataError(f"{field} is no text or list of texts: {error['msg']}") from exc
    options, wrong = ", ".join(asked.options), [answer for answer in asked.answer if answer not in asked.options]
    if len(set(asked.options)) < len(asked.options) or len(asked.options) == 1:
        raise EvaluationDataError(f"expected `options` that differ, two or more, found {options}")
    if options and wrong:
        raise EvaluationDataError(f"expected `answer` among the options {options}, found {wrong[0]!r}")
    if (asked.picture is None) == (asked.video is None):
        raise EvaluationDataError("expected either `picture` or `video`")
    source = folder / (asked.picture or asked.video or "")
    # Other than `Path.is_file`, these take names that no file can have.
    if not (os.path.isfile(source) or (asked.video and os.path.isdir(source))):  # noqa: PTH112, PTH113
        raise EvaluationDataError(f"expected a {'video' if asked.video else 'picture'} at {source}, found none")
    asked = asked.model_copy(update={"line": number, "source": source})
    _ = asked.queries  # refuses texts that are too long
    return asked
