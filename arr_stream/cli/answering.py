"""Answers on the terminal, piece by piece as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.cli.console import Reporter, out

if TYPE_CHECKING:
    from arr_stream.types import Answer


class AnswerPrinter:
    """Writes answers to standard output, and figures about them where progress is told.

    Args:
        reporter: Makes room on the terminal while an answer is written.
        with_time: Put the time of the video before each answer.
    """

    def __init__(self, reporter: Reporter, *, with_time: bool) -> None:
        self._reporter = reporter
        self._with_time = with_time

    def begin(self, seconds: float) -> None:
        """An answer about the video up to here comes next."""
        self._reporter.pause()
        if self._with_time:
            out.print(f"[{seconds:.1f} s] ", end="", markup=False)

    def piece(self, text: str) -> None:
        """Write a piece of an answer."""
        # Straight to the file: the console would break lines at its own width within words that are still coming.
        out.file.write(text)
        out.file.flush()

    def answer(self, answer: Answer) -> None:
        """End an answer that has been written, or say why there is none."""
        if answer.text and not answer.text.endswith("\n"):
            self.piece("\n")
        if not answer.text and answer.error is None:
            self.piece("(the model said nothing)\n")
        self._reporter.resume()
        self._reporter.answer(answer)
