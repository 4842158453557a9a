"""The campaign over one target: makes inputs, keeps those that show something new, and makes findings small.

With the same seed and number of inputs the same inputs are made, as long as the readers answer alike: what is kept
follows from lines that ran for the first time and from outcomes that were not seen before, never from time.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.child import FINDINGS, Answer
from fuzzing.mutate import apply
from fuzzing.runner import Runner
from fuzzing.targets import find_target

_MOST_FINDINGS = 40
"""Kinds of findings of one target; who finds so many has seen enough."""
_SHRINKING_TRIALS = 150
_SHRINKING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that did what none should.

    Args:
        target, spec: Whose, and the same as `find_target` takes it.
        kind: One of `FINDINGS`.
        outcome: What tells it from others of the kind.
        detail: Traceback or message.
        data: The input, made small.
        size_bytes: How large it was when found.
    """

    target: str
    spec: str
    kind: str
    outcome: str
    detail: str
    data: bytes
    size_bytes: int

    def again(self, path: Path) -> str:
        """The command that shows it once more."""
        return f"scripts/fuzz --target {self.spec} --reproduce {path}"

    def save(self, folder: Path) -> Path:
        """Write the input, and beside it what it does and how to see it again."""
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(f"{self.kind} {self.outcome}".encode()).hexdigest()[:8]
        path = folder / f"{self.target}-{self.kind}-{digest}.bin"
        path.write_bytes(self.data)
        sizes = f"{len(self.data)} bytes, {self.size_bytes} when found"
        text = f"{self.kind}: {self.outcome}\n{sizes}\n{self.again(path)}\n\n{self.detail}\n"
        path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        return path


@dataclass(slots=True)
class Report:
    """Results of a target.

    Attributes:
        target: Its name.
        inputs: How many were tried, seeds included, without those that made findings small.
        outcomes: How often each came up.
        seed_lines, lines: Lines of the product that ran, by the seeds alone and in all.
        kept: Inputs that showed something new.
        slowest_seconds, peak_mb: Of one input.
    """

    target: str
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    seed_lines: int = 0
    lines: int = 0
    kept: int = 0
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    slowest_seconds: float = 0.0
    peak_mb: float = 0.0

    def count(self, kind: str) -> int:
        """Inputs that were answered so."""
        return sum(count for outcome, count in self.outcomes.items() if outcome.partition(":")[0] == kind)

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "inputs": self.inputs,
            "values": self.count("value"),
            "refused": self.count("refused"),
            "found": {kind: self.count(kind) for kind in FINDINGS},
            "outcomes": len(self.outcomes),
            "lines": self.lines,
            "gained": self.lines - self.seed_lines,
            "kept": self.kept,
            "slowest_seconds": round(self.slowest_seconds, 3),
            "peak_mb": round(self.peak_mb, 1),
            "findings": [f"{finding.kind}: {finding.outcome}" for finding in self.findings.values()],
        }


class Campaign:
    """Tries inputs of one target.

    Args:
        spec: The target, as `find_target` takes it.
        seed: Of the random numbers.

    Attributes:
        report: What came of it so far.
    """

    def __init__(self, spec: str, seed: int) -> None:
        self.target = find_target(spec)
        self.report = Report(self.target.name)
        self._spec = spec
        self._rng = random.Random(f"{seed} {self.target.name}")
        self._lines: set[int] = set()
        self._corpus: list[bytes] = []
        self._new: list[bytes] = []

    def run(self, inputs: int, over: Callable[[], bool] = lambda: False) -> Report:
        """Try so many inputs, the seeds first.

        Args:
            inputs: How many; at least the seeds are tried.
            over: Asked before each input beyond the seeds: whether to end early.
        """
        report = self.report
        with Runner(self._spec) as runner:
            self._corpus = runner.start()
            for seed in self._corpus:
                self._try(runner, seed, is_seed=True)
            report.seed_lines = len(self._lines)
            while report.inputs < inputs and len(report.findings) < _MOST_FINDINGS and not over():
                self._try(runner, self._made())
        report.lines, report.kept = len(self._lines), len(self._new)
        return report

    def _made(self) -> bytes:
        """A new input: half of them from seeds, half from what showed something new, the newest most often."""
        if self._new and self._rng.random() < 0.5:
            at = max(self._rng.randrange(len(self._new)), self._rng.randrange(len(self._new)))
            parent = self._new[at]
        else:
            parent = self._rng.choice(self._corpus)
        return apply(self._rng, parent, self.target.mutations, self._corpus)

    def _try(self, runner: Runner, data: bytes, is_seed: bool = False) -> None:
        answer = runner.attempt(data)
        report = self.report
        report.inputs += 1
        report.slowest_seconds = max(report.slowest_seconds, answer.seconds)
        report.peak_mb = max(report.peak_mb, answer.peak_mb)
        outcome = f"{answer.kind}: {answer.outcome}"
        fresh = set(answer.lines) - self._lines
        if (fresh or outcome not in report.outcomes) and not is_seed and answer.kind not in ("hang", "crash"):
            self._new.append(data)
        self._lines |= fresh
        report.outcomes[outcome] += 1
        if answer.kind in FINDINGS and (key := (answer.kind, answer.outcome)) not in report.findings:
            small = shrunk(runner, data, answer)
            report.findings[key] = Finding(report.target, self._spec, *key, answer.detail, small, len(data))


def shrunk(runner: Runner, data: bytes, answer: Answer) -> bytes:
    """The input without the parts that the finding does not need."""
    due = time.monotonic() + _SHRINKING_SECONDS
    trials = 6 if answer.kind == "hang" else _SHRINKING_TRIALS
    size = max(1, len(data) // 2)
    while size:
        at = 0
        while at < len(data):
            if trials == 0 or time.monotonic() > due:
                return data
            trials -= 1
            shorter = data[:at] + data[at + size :]
            found = runner.attempt(shorter) if shorter else None
            if found is not None and (found.kind, found.outcome) == (answer.kind, answer.outcome):
                data = shorter
            else:
                at += size
        size //= 2
    return data
