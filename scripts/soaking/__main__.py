"""The command line of `scripts/soak`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from arr_stream.evaluation.tables import plain
from soaking.running import Plan, soak
from soaking.verdicts import judge, slopes, verdict_table


def main() -> int:
    """Run a soak and return 1 if a verdict is bad."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Runs the server and batches under faults.")
    parser.add_argument("--minutes", type=float, default=15.0, help="how long [15]")
    parser.add_argument("--gap", type=float, default=10.0, help="seconds from the end of a fault to the next [10]")
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults [1]")
    parser.add_argument("--faults", action=argparse.BooleanOptionalAction, default=True, help="inject faults")
    parser.add_argument("--out", type=Path, default=Path("soak_output"), help="folder for soak.json [soak_output]")
    parser.add_argument("--json", type=Path, help="write a table of the verdicts here too")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(asked.minutes * 60, asked.gap, asked.seed, asked.faults)
    with tempfile.TemporaryDirectory(prefix="arr-stream-soak-") as folder:
        outcome = soak(plan, Path(folder), _say)
    verdicts = judge(outcome)
    written = {"verdicts": [asdict(each) for each in verdicts], "slopes": slopes(outcome), **asdict(outcome)}
    (asked.out / "soak.json").write_text(json.dumps(written, indent=1) + "\n")
    if asked.json is not None:
        table = verdict_table(outcome, verdicts)
        asked.json.write_text(json.dumps({"tables": [plain(table)], "slopes": slopes(outcome)}))
    for verdict in verdicts:
        print(f"{'good' if verdict.good else 'BAD '}  {verdict.what}: {verdict.found}")
    return 0 if all(verdict.good for verdict in verdicts) else 1


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.localtime())} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
