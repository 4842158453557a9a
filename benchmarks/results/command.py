"""`python -m benchmarks results`: measure, keep, and write the page."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, err, out
from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.files import check_folder, prepare_output, writing
from benchmarks.results.measuring import Place, is_current, keeps, lacking, measure
from benchmarks.results.page import documents, filled, page
from benchmarks.results.pictures import draw
from benchmarks.results.records import load_records
from benchmarks.results.sections import BY_NAME, SECTIONS, Section

ROOT = Path(__file__).resolve().parents[2]


def results(
    only: Annotated[list[str] | None, typer.Option("--only", help="This section alone; repeat it.")] = None,
    tell: Annotated[bool, typer.Option("--list", help="List the sections, their commands and times.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs for trying, into build/results.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave out what was measured from the present code.")
    ] = False,
    page_only: Annotated[
        bool, typer.Option("--page", help="Measure nothing, write the page from what is kept.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of results.md (docs, or build/results with --quick).")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of footage.", envvar="ARR_STREAM_DATA")] = None,
) -> None:
    """Measure what docs/results.md shows, keep it as JSON, and write that page anew."""
    for name in only or ():
        if name not in BY_NAME:
            raise InvalidSetting(f"--only {name}: no such section", remedy=f"choose from {', '.join(BY_NAME)}")
    if data is not None and not page_only and not data.is_dir():
        raise EvaluationDataError(f"--data {data}: no such folder", remedy="name one, or leave it out")
    data = data.resolve() if data else None
    place = Place(ROOT, (folder or (ROOT / "build" / "results" if quick else ROOT / "docs")).resolve(), data)
    chosen = [section for section in SECTIONS if not only or section.name in only]
    if tell:
        _list(chosen, data)
        return
    prepare_output(place.page, force=True, direct=True)
    check_folder(place.records)
    check_folder(place.pictures)
    with writing(place.out):
        try:
            failed = [] if page_only else measure_all(chosen, place, quick=quick, resume=resume)
        except KeyboardInterrupt:
            err.print("interrupted; what was measured is kept, and --resume goes on")
            write(place)
            raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
        write(place)
    if failed:
        err.print(f"failed: {', '.join(failed)}")
        raise typer.Exit(1)


def write(place: Place) -> None:
    """The page, and the blocks of the other documents where the page is the project's own."""
    records = load_records(place.records)
    place.pictures.mkdir(parents=True, exist_ok=True)
    draw(records, place.pictures)
    place.page.parent.mkdir(parents=True, exist_ok=True)
    place.page.write_text(page(records), encoding="utf-8")
    _say(f"wrote {place.page}")
    if place.out != place.root / "docs":
        return
    for document in documents(place.root):
        if document != place.page:
            text = document.read_text(encoding="utf-8")
            new = filled(text, records, os.path.relpath(place.page, document.parent))
            if new != text:
                document.write_text(new, encoding="utf-8")
                _say(f"wrote {document}")


def measure_all(chosen: Sequence[Section], place: Place, *, quick: bool, resume: bool) -> list[str]:
    """Names of the sections of which a command failed."""
    kept = load_records(place.records)
    failed = []
    for number, section in enumerate(chosen, 1):
        about = f", about {section.minutes:g} min" if not quick else ""
        _say(f"[{number}/{len(chosen)}] {section.name}{about}")
        before, why = kept.get(section.name), lacking(section.needs, place.data)
        if before is not None and why and keeps(before, quick=quick):
            # Perhaps of another machine; the page tells its date and commit.
            _say(f"  not measured: {why}; kept as of {before.measured}, commit {before.commit}")
            continue
        if resume and is_current(before, place, quick=quick):
            _say("  kept")
            continue
        start = time.monotonic()
        record = measure(section, place, quick=quick, say=_say)
        record.save(place.records)
        if record.missing and not why:
            failed.append(section.name)
        _say(f"  {time.monotonic() - start:.0f} s")
    return failed


def _list(chosen: Sequence[Section], data: Path | None) -> None:
    for section in chosen:
        _say(f"{section.name:14}{section.minutes:5.1f} min  {section.title}")
        why = lacking(section.needs, data)
        if why:
            _say(f"{'':14}           cannot be measured now: {why}")
        for command in section.commands:
            _say(f"{'':14}           {command.line}")
    _say(f"{'together':14}{sum(section.minutes for section in chosen):5.1f} min")


def _say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)
