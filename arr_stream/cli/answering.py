"""Answers on the terminal, piece by piece as they come."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream.cli.console import Reporter, give_up_output

if TYPE_CHECKING:
    from arr_stream.patch_set import Answer

_INSTEAD = {"cancelled": "(interrupted)", "failed": "(no answer)"}


class AnswerPrinter:
    """Writes answers to standard output, and figures about them where progress is told.

    Args:
        reporter: Makes room on the terminal while an answer is written.
        with_time: Put the time of the video before each answer.
    """

    def __init__(self, reporter: Reporter, *, with_time: bool) -> None:
        self._reporter = reporter
        self._with_time = with_time
        self._prefix = ""
        self._line = ""
        self._gone = False

    def begin(self, seconds: float) -> None:
        """An answer about the video up to here comes next."""
        self._reporter.pause()
        self._prefix = f"[{seconds:.1f} s] " if self._with_time else ""
        self._line = ""

    def piece(self, text: str) -> None:
        """Write a piece of an answer."""
        self._line += text
        self._write(self._prefix + text)
        self._prefix = ""

    def answer(self, answer: Answer) -> None:
        """End an answer that has been written, or say why there is none."""
        if not self._line.strip() and (self._with_time or answer.error is None):
            self.piece(_INSTEAD.get(answer.finish, "(the model said nothing)"))
        if self._line and not self._line.endswith("\n"):
            self.piece("\n")
        self._reporter.resume()
        self._reporter.answer(answer)

    def _write(self, text: str) -> None:
        """Straight to the file: the console would break lines within words that are still coming."""
        if self._gone:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as exc:
            give_up_output()
            self._gone = True
            if not isinstance(exc, BrokenPipeError):
                from arr_stream.files import output_error

                raise output_error(exc, Path("standard output")) from exc
