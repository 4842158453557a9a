"""The command line of the fuzzer; see `scripts/fuzz --help`."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from arr_stream.evaluation.tables import ResultTable, plain
from fuzzing.guard import CANARIES
from fuzzing.target import all_targets, find_target

SCRIPTS = Path(__file__).resolve().parent.parent
EXIT_FINDINGS = 1
HANG_SECONDS = 10
_COLUMNS = ("what reads", "inputs", "branches by seeds", "branches", "finding", "slowest, s", "most memory, MB")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a target: libFuzzer's exit status, the end of its output, its figures, and the input found, if any."""

    name: str
    status: int
    output: str
    inputs: int
    seed_branches: int
    branches: int
    slowest_seconds: int
    peak_mb: int
    found: Path | None = None


def run_target(spec: str, *options: str | Path, findings: Path) -> Outcome:
    """Run a target in a process of its own; `options` are an input or libFuzzer's options."""
    name = find_target(spec).name
    prefix = findings / f"{name}-"
    with _folder() as folder:
        elsewhere = str(folder / "elsewhere")
        environment = os.environ | {
            **{"PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")])},
            **{"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            **{"HOME": elsewhere, "XDG_CACHE_HOME": elsewhere, "TMPDIR": str(folder)},
        }
        fixed = (f"-timeout={HANG_SECONDS}", f"-artifact_prefix={prefix}", "-print_final_stats=1")
        done = subprocess.run(
            [sys.executable, "-m", "fuzzing.harness", spec, str(folder), *map(str, options), *fixed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
            check=False,
        )
    said = done.stdout
    found = re.search(r"Test unit written to (.+)", said)

    def figure(pattern: str) -> int:
        numbers = re.findall(pattern, said)
        return int(numbers[-1]) if numbers else 0

    return Outcome(
        *(name, done.returncode, said[-6000:]),
        *(figure(r"number_of_executed_units: *(\d+)"), figure(r"INITED cov: (\d+)"), figure(r" cov: (\d+)")),
        *(figure(r"slowest_unit_time_sec: *(\d+)"), figure(r"peak_rss_mb: *(\d+)")),
        found=Path(found[1]) if found else None,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder for a harness, with a working folder in it, and canaries in both."""
    folder = Path(tempfile.mkdtemp(prefix="arr-stream-fuzz-"))
    try:
        (folder / "elsewhere").mkdir()
        for name in CANARIES:
            for place in (folder, folder / "elsewhere"):
                (place / name).write_bytes(b"canary")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Try mutated input on everything that reads untrusted data. Exit code 1 with findings.",
    )
    parser.add_argument("--inputs", type=int, default=20_000, help="how many, over all targets [20000]")
    parser.add_argument("--target", action="append", metavar="NAME", help="only this one, or FILE.py:NAME; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers [1]")
    parser.add_argument("--jobs", type=int, default=2, help="targets at once [2]")
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz_findings"), help="folder for findings [fuzz_findings]"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="try this one input; needs one --target")
    asked = parser.parse_args(arguments)
    if min(asked.inputs, asked.jobs) < 1:
        parser.error("--inputs and --jobs must be 1 or more")
    for spec in asked.target or ():
        if ":" not in spec and spec not in all_targets():
            parser.error(f"--target {spec}: none of {', '.join(all_targets())}")
    if asked.reproduce is not None and (len(asked.target or ()) != 1 or not asked.reproduce.is_file()):
        parser.error("--reproduce needs a file, and with --target the reader that it was found for")
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    asked, console = _parsed(arguments), Console()
    if asked.list:
        for target in all_targets().values():
            console.print(Text(f"{target.name:17} {target.about}"))
        return 0
    findings = asked.findings.resolve()
    findings.mkdir(parents=True, exist_ok=True)
    if asked.reproduce is not None:
        outcome = run_target(asked.target[0], asked.reproduce.resolve(), findings=findings)
        console.print(Text(outcome.output))
        return EXIT_FINDINGS if outcome.status else 0
    began = time.monotonic()
    shares = {spec: find_target(spec).share for spec in asked.target or all_targets()}
    # The largest begin, so that none is left alone at the end.
    specs = sorted(shares, key=lambda spec: -shares[spec])
    with ThreadPoolExecutor(asked.jobs) as pool:

        def run(spec: str) -> Outcome:
            inputs = math.ceil(asked.inputs * shares[spec] / sum(shares.values()))
            return run_target(spec, f"-runs={inputs}", f"-seed={asked.seed}", findings=findings)

        outcomes = list(pool.map(run, specs))
    tried, seconds = sum(outcome.inputs for outcome in outcomes), time.monotonic() - began
    failed = [(spec, outcome) for spec, outcome in zip(specs, outcomes, strict=True) if outcome.status]
    lines = tuple(
        (
            *(outcome.name, outcome.inputs, outcome.seed_branches, outcome.branches),
            *("yes" if outcome.status else "-", outcome.slowest_seconds, outcome.peak_mb),
        )
        for outcome in outcomes
    )
    title = f"{tried} inputs in {seconds:.0f} s, seed {asked.seed}: {len(failed)} findings"
    table = ResultTable(title, _COLUMNS, lines, digits=0)
    console.print(table)
    for spec, outcome in failed:
        console.print(Text(outcome.output))
        if outcome.found is not None:
            console.print(Text(f"scripts/fuzz --target {spec} --reproduce {outcome.found}"), soft_wrap=True)
    if asked.json is not None:
        figures = {"seed": asked.seed, "inputs": tried, "seconds": seconds, "findings": len(failed)}
        asked.json.write_text(json.dumps(figures | {"tables": [plain(table)]}, indent=1) + "\n")
    return EXIT_FINDINGS if failed else 0


if __name__ == "__main__":
    sys.exit(main())
