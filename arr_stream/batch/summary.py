"""What a run of a batch came to: for `summary.json`, for the table at the end, and for the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arr_stream.batch.coordinator import BatchResult
from arr_stream.batch.job import JobFailed
from arr_stream.batch.plan import Plan
from arr_stream.plain_text import redact_url


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over all files of a batch, those that earlier runs did among them.

    Args:
        files: How many there are.
        done: Done in this run.
        kept: Done before.
        failed: Given up in this run.
        left: Neither done nor given up.
        damaged: Sources that broke off and what is wrong with each, by name; all of them are done.
        frames: Of all files that are done.
        seconds: Of this run.
        reason: As `BatchResult.reason`.
    """

    files: int
    done: int
    kept: int
    failed: tuple[JobFailed, ...]
    left: int
    damaged: dict[str, str]
    frames: int
    seconds: float
    reason: str

    @classmethod
    def of(cls, plan: Plan, result: BatchResult) -> Summary:
        """Of a run that has ended."""
        damaged = {file.job.name: file.done.damaged for file in plan.kept if file.done and file.done.damaged}
        damaged |= {event.attempt.job.name: event.damaged for event in result.finished if event.damaged}
        frames = sum(file.done.frames for file in plan.kept if file.done is not None)
        return cls(
            files=len(plan.files),
            done=len(result.finished),
            kept=len(plan.kept),
            failed=tuple(result.failed),
            left=len(result.left),
            damaged=damaged,
            frames=frames + sum(event.frames for event in result.finished),
            seconds=result.seconds,
            reason=result.reason,
        )

    def as_json(self, *, engine: str, jobs: int) -> dict[str, Any]:
        """What stands in `summary.json`."""
        return {
            "version": 1,
            "files": self.files,
            "done": self.done + self.kept,
            "done_in_this_run": self.done,
            "damaged": self.damaged,
            "failed": [
                {
                    "name": event.attempt.job.name,
                    "source": redact_url(event.attempt.job.source),
                    "kind": event.kind,
                    "message": event.message,
                    "exit_code": event.exit_code,
                    "attempts": event.attempt.number,
                }
                for event in self.failed
            ],
            "left": self.left,
            "frames": self.frames,
            "seconds": self.seconds,
            "reason": self.reason,
            "engine": engine,
            "jobs": jobs,
        }
