"""`scripts/package`: build, look inside, and, where asked, install and try."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from shipping.building import BuildFailed, build
from shipping.commands import Outcome
from shipping.contents import sdist_faults, wheel_faults
from shipping.installing import installed, resolved

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 where anything is not as it should be."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="arr-stream-package-") as work:
        try:
            built = build(ROOT, options.out, Path(work))
        except BuildFailed as exc:
            print(f"scripts/package: the build failed: {exc}", file=sys.stderr)
            return 1
        faults = [*wheel_faults(built.wheel, built.tree), *sdist_faults(built.sdist, built.tree)]
        outcomes = [Outcome("contents", not faults, "; ".join(faults) or f"{built.wheel.name}, {built.sdist.name}")]
        right = _told(outcomes)
        if options.resolve:
            right &= _told(resolved(ROOT, options.resolve))
        if options.install:
            extras = [extra for extra in options.extras.split(",") if extra]
            right &= _told(installed(built.wheel, Path(work) / "installed", extras, options.with_))
    return 0 if right else 1


def _told(outcomes: Iterable[Outcome]) -> bool:
    right = True
    for outcome in outcomes:
        print(f"{'ok    ' if outcome.works else 'FAILED'}  {outcome.what}: {outcome.said}", flush=True)
        right &= outcome.works
    return right


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/package", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for wheel and sdist; dist/")
    parser.add_argument("--install", action="store_true", help="into a new environment (several GB), and try it there")
    parser.add_argument("--extras", default="", help="to install with it, such as clip,vlm")
    parser.add_argument(
        "--with", dest="with_", action="append", default=[], help="a further requirement, such as torch==2.13.0+cpu"
    )
    parser.add_argument(
        "--resolve",
        nargs="*",
        metavar="PYTHON",
        help="whether all extras have wheels that fit together for these versions, such as 3.11 3.12 3.13; needs uv",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
