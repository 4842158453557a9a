"""`scripts/results`: measure, keep, and write the page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arr_stream.errors import ArrStreamError
from arr_stream.files import check_folder, prepare_output, writing
from results_page.blocks import documents, filled
from results_page.measuring import Place, is_current, keeps, lacking, measure
from results_page.page import page
from results_page.pictures import draw
from results_page.records import DamagedRecord, load_records
from results_page.sections import BY_NAME, SECTIONS, Section

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 where a command failed, 2 for footage that is not there, 130 where it was interrupted.

    What cannot be read or written ends with one line and the product's own code.
    """
    options = _options(arguments)
    if options.data is not None and not options.page and not options.data.is_dir():
        print(f"scripts/results: --data {options.data}: no such folder", file=sys.stderr)
        return 2
    try:
        return _run(options)
    except (ArrStreamError, DamagedRecord) as exc:
        print(f"scripts/results: {exc}", file=sys.stderr)
        return exc.exit_code if isinstance(exc, ArrStreamError) else 1


def _run(options: argparse.Namespace) -> int:
    data = options.data.resolve() if options.data else None
    out = (options.out or (ROOT / "build" / "results" if options.quick else ROOT / "docs")).resolve()
    place = Place(ROOT, out, data)
    chosen = [section for section in SECTIONS if not options.only or section.name in options.only]
    if options.list:
        _list(chosen, data)
        return 0
    prepare_output(place.page, force=True, direct=True)
    check_folder(place.records)
    check_folder(place.pictures)
    with writing(out):
        try:
            failed = [] if options.page else measure_all(chosen, place, quick=options.quick, resume=options.resume)
        except KeyboardInterrupt:
            print("interrupted; what was measured is kept, and --resume goes on", file=sys.stderr)
            write(place)
            return 130
        write(place)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def write(place: Place) -> None:
    """The page, and the blocks of the other documents where the page is the project's own."""
    records = load_records(place.records)
    draw(records, place.pictures)
    place.page.parent.mkdir(parents=True, exist_ok=True)
    place.page.write_text(page(records), encoding="utf-8")
    print(f"wrote {place.page}")
    if place.out != place.root / "docs":
        return
    for document in documents(place.root):
        if document != place.page:
            text = document.read_text(encoding="utf-8")
            new = filled(text, records, os.path.relpath(place.page, document.parent))
            if new != text:
                document.write_text(new, encoding="utf-8")
                print(f"wrote {document}")


def measure_all(chosen: Sequence[Section], place: Place, *, quick: bool, resume: bool) -> list[str]:
    """Names of the sections of which a command failed."""
    kept = load_records(place.records)
    failed = []
    for number, section in enumerate(chosen, 1):
        about = f", about {section.minutes:g} min" if not quick else ""
        print(f"[{number}/{len(chosen)}] {section.name}{about}", flush=True)
        before, why = kept.get(section.name), lacking(section.needs, place.data)
        if before is not None and why and keeps(before, quick=quick):
            # Perhaps of another machine; the page tells its date and commit.
            print(f"  not measured: {why}; kept as of {before.measured}, commit {before.commit}", flush=True)
            continue
        if resume and is_current(before, place, quick=quick):
            print("  kept", flush=True)
            continue
        start = time.monotonic()
        record = measure(section, place, quick=quick, say=lambda line: print(line, flush=True))
        record.save(place.records)
        if record.missing and not why:
            failed.append(section.name)
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
    return failed


def _list(chosen: Sequence[Section], data: Path | None) -> None:
    for section in chosen:
        print(f"{section.name:14}{section.minutes:5.1f} min  {section.title}")
        why = lacking(section.needs, data)
        if why:
            print(f"{'':14}           cannot be measured now: {why}")
        for command in section.commands:
            print(f"{'':14}           arr-stream {command.line}")
    print(f"{'together':14}{sum(section.minutes for section in chosen):5.1f} min")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/results", description="Measure what docs/results.md shows.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(BY_NAME), help="these sections alone")
    parser.add_argument("--list", action="store_true", help="tell the sections, their commands and times")
    parser.add_argument("--quick", action="store_true", help="short runs for trying, into build/results")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured from the present code")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from what is kept")
    parser.add_argument("--out", type=Path, help="folder of results.md (docs, or build/results with --quick)")
    default = os.environ.get("ARR_STREAM_DATA")
    parser.add_argument("--data", type=Path, default=Path(default) if default else None, help="folder of footage")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
