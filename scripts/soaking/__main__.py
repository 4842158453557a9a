"""The command line of `scripts/soak`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from soaking.plotting import plot_soak
from soaking.running import SoakPlan, soak
from soaking.verdicts import everything, judge, verdict_table


def main() -> int:
    """Run a soak; 1 where a verdict is bad."""
    given = _parse()
    given.out.mkdir(parents=True, exist_ok=True)
    plan = SoakPlan(
        stream_seconds=given.stream_minutes * 60,
        paced=given.speed == "1",
        faults=given.faults,
        seed=given.seed,
        gap_seconds=given.gap,
    )
    with tempfile.TemporaryDirectory(prefix="arr-stream-soak-") as folder:
        outcome = soak(plan, Path(folder), _say)
    verdicts = judge(outcome)
    (given.out / "soak.json").write_text(json.dumps(everything(outcome, verdicts), indent=1) + "\n")
    for picture in (given.out / "soak.png", given.plot):
        if picture is not None:
            plot_soak(outcome, picture)
    if given.json is not None:
        table = verdict_table(outcome, verdicts)
        given.json.write_text(json.dumps({"tables": [table.as_json()], "slopes": outcome.slopes()}))
    for verdict in verdicts:
        print(f"{'good' if verdict.good else 'BAD '}  {verdict.what}: {verdict.found}")
    return 0 if all(verdict.good for verdict in verdicts) else 1


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.localtime())} {line}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--stream-minutes", type=float, default=60.0, help="length of the stream (60)")
    parser.add_argument("--speed", choices=("max", "1"), default="max", help="as fast as it goes, or at its own speed")
    parser.add_argument("--out", type=Path, default=Path("soak_output"), help="folder for soak.json and soak.png")
    parser.add_argument("--json", type=Path, help="write a table of the verdicts here too")
    parser.add_argument("--plot", type=Path, help="draw the plot here too")
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults")
    parser.add_argument("--gap", type=float, default=30.0, help="mean seconds of the stream between two faults")
    parser.add_argument("--faults", action=argparse.BooleanOptionalAction, default=True, help="without: none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
