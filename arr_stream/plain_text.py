"""Text made safe for terminals, logs and records: no control characters, and no secrets in URLs."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import overload

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # strings: titles, links, clipboard
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # all others
)
_BEGUN = re.compile(r"[\x1b\x90\x98\x9b\x9d-\x9f]")
_LONGEST_ESCAPE = 4096
_THOUGHTS, _THOUGHTS_END = "<think>", "</think>"
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class PlainText:
    """Filter that removes escape sequences and control characters from a text that comes in pieces.

    A sequence cut at the end of a piece is held back until it is complete. Line breaks and tabs stay; bidirectional
    control characters are removed, since they make a text look like another; lone surrogates, which no file can hold,
    become U+FFFD.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the safe text after one more piece."""
        text = _ESCAPE.sub("", self._held + piece)
        begun = _BEGUN.search(text)
        at = len(text) if begun is None or len(text) - begun.start() > _LONGEST_ESCAPE else begun.start()
        text, self._held = text[:at], text[at:]
        return "".join(shown for character in text if (shown := _shown(character)))

    def finish(self) -> str:
        """Return the held back text, without its control characters."""
        text, self._held = self._held, ""
        return "".join(shown for character in text if (shown := _shown(character)))


class AnswerText:
    """Filter of a model's answer that comes in pieces: safe text, without a block of thoughts (`<think>`) at its start.

    Attributes:
        thought: The answer began with a block of thoughts.
    """

    def __init__(self) -> None:
        self._safe = PlainText()
        self._held = ""
        self._begun = self.thought = False

    def feed(self, piece: str) -> str:
        """Return the text of the answer after one more piece."""
        return self._answer(self._safe.feed(piece))

    def finish(self) -> str:
        """Return the held back text; thoughts that did not end have none."""
        text = self._answer(self._safe.finish())
        held, self._held = self._held, ""
        return text if self.thought else text + held

    def _answer(self, text: str) -> str:
        if self._begun:
            return text
        text, self._held = self._held + text, ""
        if not self.thought:
            start = text.lstrip()
            if _THOUGHTS.startswith(start) and len(text) < _LONGEST_ESCAPE:
                self._held = text
                return ""
            self.thought = start.startswith(_THOUGHTS)
        if self.thought:
            _, ended, answer = text.partition(_THOUGHTS_END)
            if not answer.strip():
                # The marker may be cut in two.
                self._held = ended or text[-len(_THOUGHTS_END) :]
                return ""
            text = answer.lstrip()
        self._begun = True
        return text


def plain(text: str) -> str:
    """Return a whole text without escape sequences and control characters."""
    cleaner = PlainText()
    return cleaner.feed(text) + cleaner.finish()


def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    if character in _REORDERING:
        return ""
    category = unicodedata.category(character)
    return "" if category == "Cc" else "\ufffd" if category == "Cs" else character


# Schemes are short; without the bound, a long text without one would take quadratic time.
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,31}://[^\s'\"<>]+", re.IGNORECASE)
_USER = re.compile(r"^([a-z][a-z0-9+.-]*://)(?:[^/@]*@)+", re.IGNORECASE)
_SECRET = re.compile(
    r"([?&;](?:[\w.-]{0,64}(?:pass|token|secret|key|auth|sig|credential|pwd)[\w.-]{0,64})=)[^&;#\s]*", re.IGNORECASE
)


def redact_url(text: str) -> str:
    """Replace user names, passwords and secret parameters of URLs in a text by `***`."""
    return _URL.sub(lambda match: _SECRET.sub(r"\1***", _USER.sub(r"\1***@", match.group())), text)


def model_name(model: str) -> str:
    """Return the model's name without its folder; secrets in an address are blanked."""
    if "://" in model:
        return redact_url(model)
    return Path(model).name if model.startswith(("/", "~", ".")) else model


@overload
def one_line(text: str) -> str: ...
@overload
def one_line(text: None) -> None: ...
def one_line(text: str | None) -> str | None:
    """Return the text in one line, with secrets in URLs masked; None stays None."""
    return None if text is None else redact_url(" ".join(text.split()))
