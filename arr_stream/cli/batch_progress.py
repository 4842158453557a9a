"""How a batch is shown: progress over all files, what is to be done, and what it came to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from arr_stream.cli.console import counted, err, out, print_line, say, say_json

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from arr_stream.batch.coordinator import Summary
    from arr_stream.batch.job import JobFailed, JobFinished, JobProgress, JobStarted
    from arr_stream.batch.layout import Layout
    from arr_stream.batch.plan import Plan

_MOST_LINES = 20
_STATES = {
    "new": "to do",
    "done": "done",
    "gone": "done, source gone",
    "changed": "to do again, source changed",
    "differs": "to do again, done with other settings",
}


class BatchReporter:
    """Tells the user how a batch goes, as a `BatchWatcher`; this one says nothing, and errors still reach the user."""

    def notice(self, text: str) -> None:
        """One line worth reading."""

    def started(self, event: JobStarted) -> None: ...

    def progress(self, event: JobProgress) -> None: ...

    def finished(self, event: JobFinished) -> None: ...

    def failed(self, event: JobFailed, *, again: bool) -> None: ...


class JsonLines(BatchReporter):
    """One JSON object a line on standard error, for programs."""

    def notice(self, text: str) -> None:
        say_json(event="notice", text=text)

    def started(self, event: JobStarted) -> None:
        say_json(event="started", name=event.attempt.job.name, attempt=event.attempt.number, worker=event.worker)

    def progress(self, event: JobProgress) -> None:
        say_json(event="progress", name=event.attempt.job.name, frames=event.frames, num_frames=event.num_frames)

    def finished(self, event: JobFinished) -> None:
        say_json(
            event="finished",
            name=event.attempt.job.name,
            frames=event.frames,
            seconds=event.seconds,
            notices=list(event.notices),
            damaged=event.damaged,
        )

    def failed(self, event: JobFailed, *, again: bool) -> None:
        say_json(event="failed", name=event.attempt.job.name, kind=event.kind, text=event.message, again=again)


class Lines(BatchReporter):
    """A line for each file, where there is no terminal.

    Args:
        total: Files to do.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._settled = 0
        self._start = time.monotonic()

    def notice(self, text: str) -> None:
        say(f"note: {text}")

    def finished(self, event: JobFinished) -> None:
        self._settled += 1
        name = event.attempt.job.name
        done = f"{counted(event.frames, 'frame')} in {event.seconds:.1f} s"
        say(f"{self._settled}/{self._total} {name}: {done}{self._left()}")
        for notice in event.notices:
            self.notice(f"{name}: {notice}")
        if event.damaged is not None:
            self.notice(f"{name}: damaged: {event.damaged}")

    def failed(self, event: JobFailed, *, again: bool) -> None:
        name = event.attempt.job.name
        if again:
            self.notice(f"{name}: {event.kind}, another attempt follows: {event.message}")
            return
        self._settled += 1
        say(f"{self._settled}/{self._total} {name}: failed: {event.message}")

    def _left(self) -> str:
        left = self._total - self._settled
        seconds = (time.monotonic() - self._start) / max(1, self._settled) * left
        return f", about {seconds:.0f} s left" if left else ""


class Bars(Lines):
    """A bar over all files and a line for each that is under way, on a terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        super().__init__(total)
        self._progress = progress
        self._all = progress.add_task("files", total=total, doing="")
        self._under_way: dict[int, TaskID] = {}

    def started(self, event: JobStarted) -> None:
        self._drop(event)
        name = event.attempt.job.name
        shown = name if len(name) <= 32 else f"{name[:31]}…"
        self._under_way[event.attempt.job.index] = self._progress.add_task(shown, total=None, doing="opens")

    def progress(self, event: JobProgress) -> None:
        task = self._under_way.get(event.attempt.job.index)
        if task is not None:
            self._progress.update(task, completed=event.frames, total=event.num_frames, doing="frames")

    def finished(self, event: JobFinished) -> None:
        self._drop(event)
        super().finished(event)
        self._progress.update(self._all, completed=self._settled)

    def failed(self, event: JobFailed, *, again: bool) -> None:
        self._drop(event)
        super().failed(event, again=again)
        self._progress.update(self._all, completed=self._settled)

    def _drop(self, event: JobStarted | JobFinished | JobFailed) -> None:
        task = self._under_way.pop(event.attempt.job.index, None)
        if task is not None:
            self._progress.remove_task(task)

    def _left(self) -> str:
        # The bar says it.
        return ""


@contextmanager
def batch_reporting(total: int, *, quiet: bool, log_json: bool) -> Iterator[BatchReporter]:
    """The reporter that fits the options and the terminal, for so many files to do."""
    if quiet:
        yield BatchReporter()
    elif log_json:
        yield JsonLines()
    elif not err.is_terminal:
        yield Lines(total)
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        name, doing = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[doing]}"))
        columns = (name, BarColumn(), MofNCompleteColumn(), doing, TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            yield Bars(progress, total)


def print_plan(plan: Plan) -> None:
    """What would be done, on standard output."""
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "state", "source")
    table.columns[0].overflow = table.columns[2].overflow = "fold"
    for file in plan.files:
        table.add_row(Text(file.job.name), _STATES[file.state], Text(file.job.source))
    out.print(table)
    for notice in plan.notices:
        print_line(f"note: {notice}")
    out.print(f"{counted(len(plan.to_do), 'file')} of {len(plan.files)} to do; nothing was done", markup=False)


def print_summary(summary: Summary, layout: Layout, *, log_json: bool) -> None:
    """What a run came to: on standard output, or as a JSON line."""
    if log_json:
        say_json(
            event="done",
            reason=summary.reason,
            files=summary.files,
            done=summary.done,
            kept=summary.kept,
            failed=len(summary.failed),
            left=summary.left,
        )
        return
    from rich.table import Table

    counts = {
        "files": summary.files,
        "done": summary.done,
        "done before": summary.kept,
        "of these damaged": len(summary.damaged),
        "failed": len(summary.failed),
        "left": summary.left,
        "frames": summary.frames,
    }
    shown = {what: count for what, count in counts.items() if count or what in ("files", "done")}
    table = Table(*shown, "seconds")
    table.add_row(*(str(count) for count in shown.values()), f"{summary.seconds:.1f}")
    out.print(table)
    lines = [f"{name}: damaged: {what}" for name, what in summary.damaged.items()]
    lines += [f"{event.attempt.job.name}: {event.kind}: {event.message}" for event in summary.failed]
    for line in lines[:_MOST_LINES]:
        print_line(line)
    if len(lines) > _MOST_LINES:
        print_line(f"and {len(lines) - _MOST_LINES} more, see {layout.summary}")
