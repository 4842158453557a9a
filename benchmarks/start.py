"""Time and memory from the command line to the first annotated frame on disk, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.processes import module_command, module_path

# A small process starts the command: the peak of a child counts the memory of its parent at the fork.
_LAUNCH = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
seconds = time.perf_counter() - began
print(json.dumps([code, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3]))
"""


@dataclass(frozen=True, slots=True)
class StartReport(Report):
    """Medians of several starts: seconds with the interpreter's own, and MB of its largest process (Linux)."""

    source: str
    runs: int
    seconds: float
    memory_mb: float

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        title = f"`arr-stream process {self.source}` to its first frame, median of {self.runs} starts"
        return (ResultTable(title, ("seconds", "MB"), ((self.seconds, self.memory_mb),), digits=2),)


def measure_start(source: str, runs: int) -> StartReport:
    """Start `process` for one frame, several times.

    Raises:
        MeasurementFailed: The command fails.
    """
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="arr-stream-start-") as folder:
            out = Path(folder) / "first.mp4"
            command = module_command("arr_stream", "process", source, "--max-frames", 1, "-o", out)
            launched = [sys.executable, "-c", _LAUNCH, *command]
            code, *figures = json.loads(subprocess.check_output(launched, env=os.environ | module_path()))
        if code:
            raise MeasurementFailed(f"{source}: process ended with exit code {code}", remedy="run it by hand")
        found.append(figures)
    seconds, memory_mb = map(median, zip(*found, strict=True))
    return StartReport(source, runs, seconds, memory_mb)
