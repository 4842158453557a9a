"""The command line of the fuzzer; see `scripts/fuzz --help`."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from arr_stream.evaluation.tables import ResultTable
from fuzzing.campaign import Campaign, Finding, Report
from fuzzing.child import FINDINGS, find_target
from fuzzing.runner import Runner
from fuzzing.targets import TARGETS

EXIT_FINDINGS, EXIT_INTERRUPTED = 1, 130


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Tries mutated input on everything that reads what others wrote. Exit code 1 with findings.",
    )
    parser.add_argument("--inputs", type=int, default=20_000, help="how many, over all targets [20000]")
    parser.add_argument("--seconds", type=float, help="end after so long, whatever is left")
    parser.add_argument(
        "--target", action="append", type=_named, metavar="NAME", help="only this one, or FILE.py:NAME; repeatable"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers [1]")
    parser.add_argument("--jobs", type=int, default=2, help="targets at once [2]")
    parser.add_argument(
        "--findings", type=Path, default=Path("fuzz_findings"), help="folder for findings [fuzz_findings]"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--list", action="store_true", help="tell the targets and end")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="try this one input; needs one --target")
    asked = parser.parse_args(arguments)
    for name in ("inputs", "jobs"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name} {getattr(asked, name)}: must be 1 or more")
    if asked.reproduce is not None and len(asked.target or ()) != 1:
        parser.error("--reproduce needs --target NAME, the one that the input was found for")
    return asked


def _named(spec: str) -> str:
    if ":" not in spec and spec not in TARGETS:
        raise argparse.ArgumentTypeError(f"{spec!r} is none of {', '.join(TARGETS)}")
    return spec


class Fuzz:
    """Campaigns over several targets, a few at once.

    Args:
        shares: How many inputs each target gets.
        seed: Of the random numbers.
        until: When to end, by `time.monotonic`; None for when all is done.

    Attributes:
        tried: Inputs so far.
        reports: Of the targets that are done.
        stopped: Set to end early.
        done: Set when no more is tried.
    """

    def __init__(self, shares: dict[str, int], seed: int, until: float | None) -> None:
        self.tried = 0
        self.reports: dict[str, Report] = {}
        self.stopped = False
        self.done = threading.Event()
        self._shares, self._seed, self._until = shares, seed, until
        self._campaigns: dict[str, Campaign] = {}
        self._lock = threading.Lock()

    @property
    def findings(self) -> list[Finding]:
        campaigns = list(self._campaigns.values())
        return [finding for campaign in campaigns for finding in list(campaign.report.findings.values())]

    def run(self, jobs: int) -> None:
        """Until all is tried, or the time is over. The largest targets begin, so that none is left alone at the end."""
        names = sorted(self._shares, key=lambda name: -self._shares[name])
        try:
            with ThreadPoolExecutor(jobs) as pool:
                for name, report in zip(names, pool.map(self._one, names), strict=True):
                    self.reports[name] = report
        finally:
            self.done.set()

    def line(self) -> str:
        """How far it is."""
        total = sum(self._shares.values())
        at_work = [name for name, campaign in list(self._campaigns.items()) if name not in self.reports and campaign]
        return f"{self.tried}/{total} inputs, {len(self.findings)} findings; {', '.join(at_work[-4:])}"

    def _one(self, name: str) -> Report:
        campaign = self._campaigns[name] = Campaign(name, find_target(name), self._seed)
        return campaign.run(self._shares[name], over=self._over, on_input=self._count)

    def _over(self) -> bool:
        return self.stopped or (self._until is not None and time.monotonic() > self._until)

    def _count(self) -> None:
        with self._lock:
            self.tried += 1


def divided(inputs: int, names: Sequence[str]) -> dict[str, int]:
    """How many inputs each target gets, by its share."""
    shares = {name: find_target(name).share for name in names}
    whole = sum(shares.values())
    return {name: max(1, round(inputs * share / whole)) for name, share in shares.items()}


def result_table(reports: Sequence[Report], title: str) -> ResultTable:
    """A line a target."""
    lines = []
    for report in reports:
        row = figures(report)
        counts = (row[key] for key in ("target", "inputs", "values", "refused", "gained"))
        lines.append((*counts, len(report.findings), report.slowest_seconds, report.peak_mb))
    columns = ("what reads", "inputs", "values", "refused", "lines gained", "findings", "slowest, s", "most memory, MB")
    return ResultTable(title, columns, tuple(lines), digits=1)


def figures(report: Report) -> dict[str, Any]:
    """Of one target, for the table and for programs."""
    counted = dict.fromkeys(("value", "refused", *FINDINGS), 0)
    for outcome, count in report.outcomes.items():
        counted[outcome.partition(":")[0]] += count
    return {
        "target": report.target,
        "inputs": report.inputs,
        "values": counted["value"],
        "refused": counted["refused"],
        "found": {kind: counted[kind] for kind in FINDINGS},
        "outcomes": len(report.outcomes),
        "lines": report.lines,
        "gained": report.lines - report.seed_lines,
        "kept": report.kept,
        "slowest_seconds": round(report.slowest_seconds, 3),
        "peak_mb": round(report.peak_mb, 1),
        "starts": report.starts,
        "seconds": round(report.seconds, 2),
        "findings": [f"{finding.kind}: {finding.outcome}" for finding in report.findings.values()],
    }


def reproduce(console: Console, name: str, path: Path) -> int:
    """Try one input, and tell what comes of it."""
    with Runner(name, find_target(name)) as runner:
        answer = runner.attempt(path.read_bytes())
    console.print(
        Text(f"{answer.kind}: {answer.outcome}, {answer.seconds:.2f} s, {answer.peak_mb:.0f} MiB\n{answer.detail}")
    )
    return EXIT_FINDINGS if answer.kind in FINDINGS else 0


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parsed(sys.argv[1:] if arguments is None else arguments)
    console = Console()
    if asked.list:
        for target in TARGETS.values():
            console.print(Text(f"{target.name:14} {target.about}"))
        return 0
    if asked.reproduce is not None:
        return reproduce(console, asked.target[0], asked.reproduce)
    names = list(dict.fromkeys(asked.target or TARGETS))
    began = time.monotonic()
    fuzz = Fuzz(divided(asked.inputs, names), asked.seed, None if asked.seconds is None else began + asked.seconds)
    work = threading.Thread(target=fuzz.run, args=(asked.jobs,), daemon=True)
    with Live(Text(""), console=console, transient=True, auto_refresh=False) as live:
        work.start()
        # An event, since a thread whose join is interrupted passes for one that has ended.
        while not fuzz.done.is_set():
            try:
                fuzz.done.wait(0.5)
            except KeyboardInterrupt:
                # What was found so far is worth telling; a second Ctrl-C ends at once.
                if fuzz.stopped:
                    raise
                fuzz.stopped = True
            live.update(Text(fuzz.line()), refresh=True)
    if set(fuzz.reports) != set(names):
        console.print(Text("a campaign ended in an error of its own; see above"))
        return 3
    reports = [fuzz.reports[name] for name in names]
    seconds = time.monotonic() - began
    tried = sum(report.inputs for report in reports)
    title = f"{tried} inputs in {seconds:.0f} s, seed {asked.seed}: {len(fuzz.findings)} findings"
    console.print(result_table(reports, title).rich())
    for finding in fuzz.findings:
        path = finding.save(asked.findings)
        console.print(Text(f"{finding.kind}: {finding.outcome}"))
        console.print(Text(f"  {finding.again(path)}"), soft_wrap=True)
    if asked.json is not None:
        rows = [figures(report) for report in reports]
        asked.json.write_text(
            json.dumps(
                {
                    "seed": asked.seed,
                    "inputs": tried,
                    "seconds": seconds,
                    "targets": rows,
                    "tables": [result_table(reports, title).as_json()],
                },
                indent=1,
            )
            + "\n"
        )
    if fuzz.stopped:
        return EXIT_INTERRUPTED
    return EXIT_FINDINGS if fuzz.findings else 0


if __name__ == "__main__":
    sys.exit(main())
