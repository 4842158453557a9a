"""Display of a batch: progress over all files, the plan and the summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from arr_stream.cli.console import JsonLines, Log, PlainLines, Reporter, counted, err, out, print_line, say, say_json
from arr_stream.plain_text import redact_url

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from arr_stream.batch.batch import BatchResult
    from arr_stream.batch.job import Event, JobFailed, JobFinished
    from arr_stream.batch.plan import Plan

_MOST_LINES = 20
_STATES = {
    "new": "to do",
    "done": "done",
    "gone": "done, source gone",
    "changed": "to do again, source changed",
    "differs": "to do again, done with other settings",
}


class BatchReporter(Reporter):
    """Progress display of a batch; this class, for `--log quiet`, prints warnings only."""

    def hear(self, event: Event) -> None:
        """Report the outcome of a file."""
        from arr_stream.batch.job import JobFinished

        if isinstance(event, JobFinished) and event.done.damaged is not None:
            self.warning(f"{event.done.name}: damaged: {event.done.damaged}")


class BatchJsonLines(JsonLines, BatchReporter):
    """One JSON object a line on standard error, for programs."""

    def hear(self, event: Event) -> None:
        from arr_stream.batch.job import JobFailed, JobFinished, JobProgress, JobStarted

        name = event.attempt.job.name
        match event:
            case JobStarted():
                say_json(event="started", name=name, attempt=event.attempt.number, worker=event.worker)
            case JobProgress():
                say_json(event="progress", name=name, frames=event.frames, num_frames=event.num_frames)
            case JobFinished(done=done):
                about = {"frames": done.frames, "seconds": done.seconds}
                say_json(event="finished", name=name, **about, notices=list(done.notices), damaged=done.damaged)
            case JobFailed():
                say_json(event="failed", name=name, kind=event.kind, text=event.message, again=event.again)


class BatchLines(PlainLines, BatchReporter):
    """Line for each finished file, with the total, for output that is not a terminal."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._to_do = total
        self._settled = 0

    def hear(self, event: Event) -> None:
        from arr_stream.batch.job import JobFailed, JobFinished

        if isinstance(event, JobFinished):
            self._finished(event)
        elif isinstance(event, JobFailed):
            self._failed(event)
        BatchReporter.hear(self, event)

    def _finished(self, event: JobFinished) -> None:
        done = event.done
        self._settled += 1
        how = f"{counted(done.frames, 'frame')} in {done.seconds:.1f} s{self._left()}"
        say(f"{self._settled}/{self._to_do} {done.name}: {how}")
        for notice in done.notices:
            self.notice(f"{done.name}: {notice}")

    def _failed(self, event: JobFailed) -> None:
        name = event.attempt.job.name
        if event.again:
            self.notice(f"{name}: {event.kind}, another attempt follows: {event.message}")
            return
        self._settled += 1
        say(f"{self._settled}/{self._to_do} {name}: failed: {event.message}")

    def _left(self) -> str:
        left = self._to_do - self._settled
        seconds = (time.monotonic() - self._start) / max(1, self._settled) * left
        return f", about {seconds:.0f} s left" if left else ""


class BatchBars(BatchLines):
    """Bar over all files and a line for each file in progress, on a terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        super().__init__(total)
        self._progress = progress
        self._all = progress.add_task("files", total=total, doing="")
        self._under_way: dict[int, TaskID] = {}

    def hear(self, event: Event) -> None:
        from arr_stream.batch.job import JobProgress, JobStarted

        job = event.attempt.job
        if isinstance(event, JobProgress):
            if (task := self._under_way.get(job.index)) is not None:
                self._progress.update(task, completed=event.frames, total=event.num_frames, doing="frames")
            return
        if (task := self._under_way.pop(job.index, None)) is not None:
            self._progress.remove_task(task)
        if isinstance(event, JobStarted):
            shown = job.name if len(job.name) <= 32 else f"{job.name[:31]}…"
            self._under_way[job.index] = self._progress.add_task(shown, total=None, doing="opens")
        super().hear(event)
        self._progress.update(self._all, completed=self._settled)

    def _left(self) -> str:
        # The bar shows it.
        return ""


@contextmanager
def batch_reporting(total: int, log: Log) -> Iterator[BatchReporter]:
    """Yield the reporter that fits `--log` and the terminal, for `total` files."""
    if log is Log.QUIET:
        yield BatchReporter()
    elif log is Log.JSON:
        yield BatchJsonLines()
    elif not err.is_terminal:
        yield BatchLines(total)
    else:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        name, doing = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[doing]}"))
        columns = (name, BarColumn(), MofNCompleteColumn(), doing, TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            yield BatchBars(progress, total)


def print_plan(plan: Plan, notices: Sequence[str]) -> None:
    """Print the plan to standard output, with further notices."""
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "state", "source")
    table.columns[0].overflow = table.columns[2].overflow = "fold"
    for file in plan.files:
        table.add_row(Text(file.job.name), _STATES[file.state], Text(redact_url(file.job.source)))
    out.print(table)
    for notice in (*notices, *plan.notices):
        print_line(f"note: {notice}")
    out.print(f"{counted(len(plan.to_do), 'file')} of {len(plan.files)} to do; nothing was done", markup=False)


def print_summary(result: BatchResult, log: Log) -> None:
    """Print the summary of a run to standard output, or log it as a JSON line."""
    plan, damaged = result.plan, result.damaged
    counts = {
        "files": len(plan.files),
        "done": len(result.finished),
        "kept": len(plan.kept),
        "failed": len(result.failed),
        "left": len(result.left),
    }
    if log is Log.JSON:
        say_json(event="done", reason=result.reason, **counts)
        return
    from rich.table import Table

    shown = {
        "files": counts["files"],
        "done": counts["done"],
        "done before": counts["kept"],
        "of these damaged": len(damaged),
        "failed": counts["failed"],
        "left": counts["left"],
        "frames": result.frames,
    }
    shown = {what: count for what, count in shown.items() if count or what in ("files", "done")}
    table = Table(*shown, "seconds")
    table.add_row(*(str(count) for count in shown.values()), f"{result.seconds:.1f}")
    out.print(table)
    lines = [f"{name}: damaged: {what}" for name, what in damaged.items()]
    lines += [f"{event.attempt.job.name}: {event.kind}: {event.message}" for event in result.failed]
    for line in lines[:_MOST_LINES]:
        print_line(line)
    if len(lines) > _MOST_LINES:
        print_line(f"and {len(lines) - _MOST_LINES} more, see {plan.layout.summary}")
