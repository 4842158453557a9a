"""The command line of `scripts/soak`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from arr_stream.evaluation.tables import ResultTable
from soaking.plotting import plot_soak
from soaking.running import SoakPlan, soak
from soaking.verdicts import Outcome, Verdict, judge


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
    write(outcome, verdicts, given.out)
    if given.json is not None:
        given.json.write_text(json.dumps({"tables": [table(outcome, verdicts).as_json()], "slopes": slopes(outcome)}))
    if given.plot is not None:
        plot_soak(outcome, given.plot)
    for verdict in verdicts:
        print(f"{'good' if verdict.good else 'BAD '}  {verdict.what}: {verdict.found}")
    return 0 if all(verdict.good for verdict in verdicts) else 1


def write(outcome: Outcome, verdicts: list[Verdict], folder: Path) -> None:
    """`soak.json` and `soak.png`."""
    steady = outcome.steady()
    spans = {
        field: [min(getattr(each, field) for each in steady), max(getattr(each, field) for each in steady)]
        for field in ("handles", "threads", "children", "waiting", "blocks")
        if steady
    }
    written = {
        "verdicts": [asdict(each) for each in verdicts],
        "slopes": slopes(outcome),
        "least_and_most_between_faults": spans,
        **asdict(outcome),
    }
    (folder / "soak.json").write_text(json.dumps(written, indent=1) + "\n")
    plot_soak(outcome, folder / "soak.png")


def slopes(outcome: Outcome) -> dict[str, dict[str, float]]:
    """How memory grows after the warm-up."""
    return {
        name: asdict(outcome.slope(field, of_stream=of_stream))
        for name, field, of_stream in (
            ("own_mb_per_run_minute", "own_mb", False),
            ("all_mb_per_run_minute", "all_mb", False),
            ("own_mb_per_stream_minute", "own_mb", True),
            ("all_mb_per_stream_minute", "all_mb", True),
        )
    }


def table(outcome: Outcome, verdicts: list[Verdict]) -> ResultTable:
    """The verdicts, for a page."""
    kinds = len({fault.kind for fault in outcome.faults})
    title = (
        f"{outcome.stream_seconds / 60:.0f} minutes of stream in {outcome.run_seconds / 60:.0f} minutes, "
        f"{len(outcome.faults)} faults of {kinds} kinds"
    )
    rows = tuple((verdict.what, "yes" if verdict.good else "no", verdict.found) for verdict in verdicts)
    return ResultTable(title, ("what", "holds", "found"), rows)


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
