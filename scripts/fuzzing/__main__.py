"""The command line of the fuzzer; see `scripts/fuzz --help`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.text import Text

from arr_stream.evaluation.tables import ResultTable
from fuzzing.campaign import Campaign, Report
from fuzzing.child import FINDINGS
from fuzzing.runner import Runner
from fuzzing.targets import TARGETS

EXIT_FINDINGS, EXIT_BROKEN = 1, 3


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


def run_all(campaigns: Sequence[Campaign], asked: argparse.Namespace) -> bool:
    """Run the campaigns, some at once, until all inputs are tried or the time is over; return whether none broke."""
    whole, due = sum(campaign.target.share for campaign in campaigns), time.monotonic() + (asked.seconds or math.inf)
    with ThreadPoolExecutor(asked.jobs) as pool:
        # The largest begin, so that none is left alone at the end.
        begun = [
            pool.submit(
                campaign.run,
                max(1, round(asked.inputs * campaign.target.share / whole)),
                lambda: time.monotonic() > due,
            )
            for campaign in sorted(campaigns, key=lambda campaign: -campaign.target.share)
        ]
    errors = [error for each in begun if (error := each.exception()) is not None]
    for error in errors:
        traceback.print_exception(error)
    return not errors


def result_table(reports: Sequence[Report], title: str) -> ResultTable:
    """A line a target."""
    lines = tuple(
        (
            *(report.target, report.inputs, report.count("value"), report.count("refused")),
            *(report.lines - report.seed_lines, len(report.findings), report.slowest_seconds, report.peak_mb),
        )
        for report in reports
    )
    columns = ("what reads", "inputs", "values", "refused", "lines gained", "findings", "slowest, s", "most memory, MB")
    return ResultTable(title, columns, lines, digits=1)


def reproduce(console: Console, spec: str, path: Path) -> int:
    """Try one input, and tell what comes of it."""
    with Runner(spec) as runner:
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
    began = time.monotonic()
    campaigns = [Campaign(spec, asked.seed) for spec in dict.fromkeys(asked.target or TARGETS)]
    if not run_all(campaigns, asked):
        console.print(Text("a campaign ended in an error of its own; see above"))
        return EXIT_BROKEN
    reports, seconds = [campaign.report for campaign in campaigns], time.monotonic() - began
    tried = sum(report.inputs for report in reports)
    findings = [finding for report in reports for finding in report.findings.values()]
    table = result_table(reports, f"{tried} inputs in {seconds:.0f} s, seed {asked.seed}: {len(findings)} findings")
    console.print(table.rich())
    for finding in findings:
        path = finding.save(asked.findings)
        console.print(Text(f"{finding.kind}: {finding.outcome}"))
        console.print(Text(f"  {finding.again(path)}"), soft_wrap=True)
    if asked.json is not None:
        figures = {
            "seed": asked.seed,
            "inputs": tried,
            "seconds": seconds,
            "targets": [report.as_json() for report in reports],
            "tables": [table.as_json()],
        }
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return EXIT_FINDINGS if findings else 0


if __name__ == "__main__":
    sys.exit(main())
