"""Text made safe for terminals, logs and records: no control characters, and no secrets in URLs."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import overload

_THOUGHTS, _THOUGHTS_END = "<think>", "</think>"
_MOST_HELD = 4096
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class AnswerText:
    """Filter of a model's answer that comes in pieces: safe text, without a block of thoughts (`<think>`) at its start.

    Attributes:
        thought: The answer began with a block of thoughts.
    """

    def __init__(self) -> None:
        self._held = ""
        self._begun = self.thought = False

    def feed(self, piece: str) -> str:
        """Return the text of the answer after one more piece."""
        text = plain(piece)
        if self._begun:
            return text
        text, self._held = self._held + text, ""
        if not self.thought:
            start = text.lstrip()
            if _THOUGHTS.startswith(start) and len(text) < _MOST_HELD:
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

    def finish(self) -> str:
        """Return the held back text; thoughts that did not end have none."""
        return "" if self.thought else self._held


def plain(text: str) -> str:
    """Return a text without control characters, so that escape sequences have no effect on a terminal.

    Line breaks and tabs stay; bidirectional control characters are removed, since they make a text look like another;
    lone surrogates, which no file can hold, become U+FFFD.
    """
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    category = unicodedata.category(character)
    return "" if category == "Cc" or character in _REORDERING else "\ufffd" if category == "Cs" else character


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
