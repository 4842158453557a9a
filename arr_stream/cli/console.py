"""Output of the command line: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from arr_stream.errors import ArrStreamError, OutputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from arr_stream.patch_set import Answer


class _Results(Console):
    """Standard output; a failed write, as to a full disk, raises one of our errors."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does.

        Raises:
            OutputError: The system refuses the write.
        """
        try:
            super().print(*objects, **options)
        except OSError as exc:
            raise _refused(exc) from exc


def _refused(exc: OSError) -> OutputError:
    """Give standard output up after a failed write, and return the error."""
    from arr_stream.files import output_error

    give_up_output()
    return output_error(exc, Path("standard output"))


out = _Results(highlight=False)
err = Console(stderr=True, highlight=False)

INTERRUPTED_EXIT_CODE = 130
_PLAIN_EVERY_SECONDS = 5.0
Advance = Callable[[str, int, int], None]
"""Callback after each step of the work: description, amount done, total amount."""
_INSTEAD = {"cancelled": "(interrupted)", "failed": "(no answer)"}


def say(text: str) -> None:
    """Print one line to standard error, without markup or wrapping."""
    err.print(text, soft_wrap=True, markup=False)


def say_json(**fields: object) -> None:
    """Print one line of JSON to standard error, with the time."""
    sys.stderr.write(json.dumps({"time": round(time.time(), 3), **fields}) + "\n")
    sys.stderr.flush()


def print_line(text: str) -> None:
    """Print one line to standard output, without markup or wrapping."""
    out.print(text, soft_wrap=True, markup=False)


def interrupted(what_then: str = "") -> typer.Exit:
    """Report Ctrl-C, and return the exit to raise."""
    say(f"arr-stream: interrupted{what_then}")
    return typer.Exit(INTERRUPTED_EXIT_CODE)


def print_error(error: ArrStreamError) -> None:
    """Print an error as one line on standard error."""
    err.print(f"arr-stream: {error}", soft_wrap=True, markup=False, style="red" if err.is_terminal else None)


def give_up_output() -> None:
    """Discard the rest of standard output's buffer, so that flushing it does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 frame`, `2 frames`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Log(StrEnum):
    """Values of `--log`: how progress is reported on standard error."""

    TEXT, JSON, QUIET = "text", "json", "quiet"


class Reporter:
    """Progress display of a run; this class, for `--log quiet`, prints warnings only."""

    def notice(self, text: str) -> None:
        """Print a notice."""

    def warning(self, text: str) -> None:
        """Print a line without which the user would misread the result, with `--log quiet` as well."""
        say(f"warning: {text}")

    def frame(self, index: int, latency_ms: float, tokens: int) -> None:
        """Report a finished frame."""

    def pause(self) -> None:
        """Pause the display, since something else is going to write on the terminal."""

    def resume(self) -> None:
        """Resume the display after a pause."""

    def answer(self, answer: Answer) -> None:
        """Report an answer of a model, or its failure."""

    def done(self, text: str) -> None:
        """Print the last line of a run."""


class JsonLines(Reporter):
    """One JSON object a line on standard error, for programs."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def notice(self, text: str) -> None:
        say_json(event="notice", text=text)

    def warning(self, text: str) -> None:
        say_json(event="warning", text=text)

    def frame(self, index: int, latency_ms: float, tokens: int) -> None:
        if time.monotonic() - self._last >= 1.0:
            self._last = time.monotonic()
            say_json(event="progress", frame=index, latency_ms=round(latency_ms, 3), tokens=tokens)

    def answer(self, answer: Answer) -> None:
        from arr_stream.records.schema import answer_record

        say_json(event="answer", **{key: value for key, value in answer_record(answer).items() if key != "type"})

    def done(self, text: str) -> None:
        say_json(event="done", text=text)


class PlainLines(Reporter):
    """Line every few seconds, for output that is not a terminal."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._said: set[str] = set()
        self._start = self._last = time.monotonic()

    def notice(self, text: str) -> None:
        self._said.add(text)
        say(f"note: {text}")

    def frame(self, index: int, latency_ms: float, tokens: int) -> None:
        now = time.monotonic()
        if now - self._last < _PLAIN_EVERY_SECONDS:
            return
        self._last = now
        fps = (index + 1) / (now - self._start)
        of = f"/{self._total}" if self._total else ""
        left = f", {(self._total - index - 1) / fps:.0f} s left" if self._total else ""
        err.print(f"frame {index + 1}{of}, {fps:.1f} fps, {latency_ms:.1f} ms a frame{left}", markup=False)

    def answer(self, answer: Answer) -> None:
        if answer.error is not None:
            self.notice(f"no answer at {answer.pts_seconds:.1f} s: {answer.error}")
            return
        tokens = f"{answer.answer_tokens} tokens in " if answer.answer_tokens else ""
        memory = f", from {answer.visual_tokens} cells in {answer.memory_tokens} tokens" if answer.visual_tokens else ""
        total_ms = answer.prefill_ms + answer.decode_ms
        say(f"{tokens}{total_ms:.0f} ms, the first after {answer.prefill_ms:.0f} ms{memory}")
        if answer.note and answer.note not in self._said:
            self.notice(answer.note)

    def done(self, text: str) -> None:
        say(text)


class Bar(PlainLines):
    """A progress bar on a terminal."""

    def __init__(self, progress: Progress, total: int | None) -> None:
        super().__init__(total)
        self._progress = progress
        self._task = progress.add_task("", total=total, fps="", latency="")

    def frame(self, index: int, latency_ms: float, tokens: int) -> None:
        fps = (index + 1) / max(time.monotonic() - self._start, 1e-9)
        self._progress.update(
            self._task, completed=index + 1, fps=f"{fps:.1f} fps", latency=f"{latency_ms:.1f} ms, {tokens} tokens"
        )

    def pause(self) -> None:
        self._progress.stop()

    def resume(self) -> None:
        self._progress.start()

    def done(self, text: str) -> None:
        self._progress.stop()
        super().done(text)


@contextmanager
def reporting(total: int | None, log: Log) -> Iterator[Reporter]:
    """Yield the reporter that fits `--log` and the terminal."""
    if log is Log.QUIET:
        yield Reporter()
    elif log is Log.JSON:
        yield JsonLines()
    elif not err.is_terminal:
        yield PlainLines(total)
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        texts = (TextColumn("{task.fields[fps]}"), TextColumn("{task.fields[latency]}"))
        columns = (BarColumn(), MofNCompleteColumn(), *texts, TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            yield Bar(progress, total)


@contextmanager
def counting() -> Iterator[Advance]:
    """Yield a progress callback for work without a stream: a bar on a terminal, a line every few seconds elsewhere."""
    if err.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda text, done, of: progress.update(task, description=text, completed=done, total=of)
        return
    last = time.monotonic()

    def advance(text: str, done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PLAIN_EVERY_SECONDS:
            last = time.monotonic()
            say(text)

    yield advance


class AnswerPrinter:
    """Printer that writes answers to standard output piece by piece as they arrive, and passes their figures to the
    reporter.

    Args:
        reporter: Pauses its display while an answer is written.
        with_time: Put the time of the video before each answer.
    """

    def __init__(self, reporter: Reporter, *, with_time: bool) -> None:
        self._reporter = reporter
        self._with_time = with_time
        self._prefix = ""
        self._line = ""
        self._gone = False

    def begin(self, seconds: float) -> None:
        """Begin an answer about the video up to `seconds`."""
        self._reporter.pause()
        self._prefix = f"[{seconds:.1f} s] " if self._with_time else ""
        self._line = ""

    def piece(self, text: str) -> None:
        """Write a piece of an answer."""
        self._line += text
        self._write(self._prefix + text)
        self._prefix = ""

    def answer(self, answer: Answer) -> None:
        """End a written answer, or print why it failed."""
        if not self._line.strip() and (self._with_time or answer.error is None):
            self.piece(_INSTEAD.get(answer.finish, "(the model said nothing)"))
        if self._line and not self._line.endswith("\n"):
            self.piece("\n")
        self._reporter.resume()
        self._reporter.answer(answer)

    def _write(self, text: str) -> None:
        """Write straight to the file: the console would break lines within words that are still arriving."""
        if self._gone:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as exc:
            self._gone = True
            error = _refused(exc)
            if not isinstance(exc, BrokenPipeError):
                raise error from exc
