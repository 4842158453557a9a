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
_PLAIN_EVERY_SECONDS, _JSON_EVERY_SECONDS = 5.0, 1.0
Advance = Callable[[str, int, int | None], None]
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
    """Progress and notices of a run on standard error; with `--log quiet`, warnings only.

    Args:
        log: Value of `--log`.
        total: Number of steps; None if unknown.
        progress: Bar on a terminal, whose task it is; None for a line every few seconds.
    """

    def __init__(self, log: Log, total: int | None = None, progress: Progress | None = None) -> None:
        self.log, self._total, self._progress = log, total, progress
        self._task = progress.add_task("", total=total) if progress is not None else None
        self._said: set[str] = set()
        self._start = self._last = time.monotonic()

    def tell(self, line: str, event: str, **fields: object) -> None:
        """Print one line, or one JSON object with these fields."""
        if self.log is Log.JSON:
            say_json(event=event, **fields)
        elif self.log is Log.TEXT:
            say(line)

    def notice(self, text: str) -> None:
        self.tell(f"note: {text}", "notice", text=text)

    def warning(self, text: str) -> None:
        """Print a line without which the user would misread the result, with `--log quiet` as well."""
        if self.log is Log.QUIET:
            say(f"warning: {text}")
        self.tell(f"warning: {text}", "warning", text=text)

    def advance(self, text: str, done: int, total: int | None, **fields: object) -> None:
        """Report progress: at once on a bar, else every few seconds."""
        if self.move_bar(text, done, total):
            return
        if time.monotonic() - self._last >= (_JSON_EVERY_SECONDS if self.log is Log.JSON else _PLAIN_EVERY_SECONDS):
            self._last = time.monotonic()
            self.tell(f"{text}{self.left(done, total)}", "progress", **fields)

    def move_bar(self, text: str, done: int, total: int | None) -> bool:
        """Show progress on the bar; return False without one."""
        if self._progress is None or self._task is None:
            return False
        self._progress.update(self._task, description=text, completed=done, total=total)
        return True

    def frame(self, index: int, latency_ms: float, tokens: int) -> None:
        """Report a finished frame."""
        done = index + 1
        of = f"/{self._total}" if self._total else ""
        fps = done / max(time.monotonic() - self._start, 1e-9)
        text = f"frame {done}{of}, {fps:.1f} fps, {latency_ms:.1f} ms a frame"
        self.advance(text, done, self._total, frame=index, latency_ms=round(latency_ms, 3), tokens=tokens)

    def left(self, done: int, total: int | None) -> str:
        """Return the time left, as the end of a line; nothing if it is unknown or over."""
        seconds = (time.monotonic() - self._start) / max(1, done) * ((total or done) - done)
        return f", about {seconds:.0f} s left" if seconds > 0 else ""

    def pause(self) -> None:
        """Pause the bar, since something else is going to write on the terminal."""
        if self._progress is not None:
            self._progress.stop()

    def resume(self) -> None:
        """Resume the bar after a pause."""
        if self._progress is not None:
            self._progress.start()

    def answer(self, answer: Answer) -> None:
        """Report an answer of a model, or its failure."""
        from arr_stream.records.schema import answer_record

        if self.log is Log.JSON:
            say_json(event="answer", **{key: value for key, value in answer_record(answer).items() if key != "type"})
        elif answer.error is not None:
            self.notice(f"no answer at {answer.pts_seconds:.1f} s: {answer.error}")
        elif self.log is Log.TEXT:
            tokens = f"{counted(answer.answer_tokens, 'token')} in " if answer.answer_tokens else ""
            memory = f", from {answer.visual_tokens} cells in {answer.memory_tokens} tokens"
            total_ms = answer.prefill_ms + answer.decode_ms
            say(
                f"{tokens}{total_ms:.0f} ms, the first after {answer.prefill_ms:.0f} ms"
                + (memory if answer.visual_tokens else "")
            )
            if answer.note and answer.note not in self._said:
                self._said.add(answer.note)
                self.notice(answer.note)

    def done(self, text: str) -> None:
        """Print the last line of a run."""
        self.pause()
        self.tell(text, "done", text=text)


@contextmanager
def reporting(total: int | None, log: Log) -> Iterator[Reporter]:
    """Yield a reporter, with a bar if standard error is a terminal."""
    if log is not Log.TEXT or not err.is_terminal:
        yield Reporter(log, total)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        yield Reporter(log, total, progress)


@contextmanager
def counting() -> Iterator[Advance]:
    """Yield a progress callback for work without a stream."""
    with reporting(None, Log.TEXT) as reporter:
        yield reporter.advance


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
