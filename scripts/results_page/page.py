"""The page, written from what is kept alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from arr_stream.evaluation.tables import ResultTable
from results_page.pictures import DRAWN, drawn
from results_page.records import Record
from results_page.sections import SECTIONS, Section
from results_page.tables import tables_of
from results_page.targets import targets_table

HEAD = """# Results

`scripts/results` writes this page from what the commands below print; nothing on it is typed by hand. `DATA` is a
folder with `davis/` (frames and masks in the layout of DAVIS), `flow/` (pairs with ground truth) and `text/` (pictures
with text boxes), given by `--data` or `ARR_STREAM_DATA`. What each command prints is kept in [results/](results/), with
the machine, the date and the state of the code. Ratios hold from machine to machine, milliseconds do not."""

AGAIN = """    scripts/results --data DATA                    # everything; again after a break: --resume
    scripts/results --data DATA --only flow text   # these sections anew, the others as they are kept
    scripts/results --list                         # what there is, and about how long each takes
    scripts/results --quick                        # short runs for trying, written to build/results"""


def page(records: Mapping[str, Record], sections: Sequence[Section] = SECTIONS) -> str:
    """The whole page as Markdown; the same records give the same bytes."""
    machines = _machines(records, sections)
    parts = [HEAD, AGAIN]
    if any(record.quick for record in records.values()):
        parts.append("**Made with `--quick`: these figures are for trying, and mean nothing.**")
    parts += ["## Targets", _promised(records), "## Contents", _contents(records, sections, machines)]
    for section in sections:
        parts += list(_section(section, records.get(section.name), machines))
    parts += ["## Machines", *_machine_tables(machines)]
    return "\n\n".join(parts) + "\n"


def _promised(records: Mapping[str, Record]) -> str:
    return targets_table(records).markdown().partition("\n\n")[2]


def _machines(records: Mapping[str, Record], sections: Sequence[Section]) -> list[Mapping[str, str]]:
    """Each machine that something was measured on, once, in the order of the sections."""
    found: list[Mapping[str, str]] = []
    for section in sections:
        record = records.get(section.name)
        if record is not None and record.runs and record.machine not in found:
            found.append(record.machine)
    return found


def _contents(records: Mapping[str, Record], sections: Sequence[Section], machines: Sequence[Mapping[str, str]]) -> str:
    rows = []
    for section in sections:
        record = records.get(section.name)
        if record is None or record.missing:
            figures: tuple[str | float | None, ...] = ("not measured", None, None, None, None)
        else:
            load = max(run.load for run in record.runs)
            machine = _letter(machines.index(record.machine))
            figures = (record.measured, f"`{record.commit}`", machine, _duration(record.seconds), round(load, 1))
        rows.append((f"[{section.title}](#{section.name})", *figures))
    headings = ("section", "measured", "commit", "machine", "took", "load at the start")
    table = ResultTable("Contents", headings, tuple(rows), digits=1).markdown().partition("\n\n")[2]
    return (
        table
        + "\n\n*Load* is the average of the last minute when a command began, the highest of the section's. A section "
        "that follows another finds what that one left, at most the number of cores; more is another program's doing, "
        "and has a hand in the times."
    )


def _section(section: Section, record: Record | None, machines: Sequence[Mapping[str, str]]) -> Iterable[str]:
    yield f'<a id="{section.name}"></a>\n\n## {section.title}'
    yield section.shows + (f" More in [{section.page}]({section.page})." if section.page else "")
    if record is None:
        yield "*Not measured yet.*"
        return
    if record.missing:
        yield f"*Not measured: {record.missing}.*"
        return
    yield "\n".join(f"    {run.command}" for run in record.runs)
    for table in tables_of(record):
        yield table.markdown() if table.rows else table.note
    for run in record.runs:
        if isinstance(run.result, dict):
            yield from (f"{what[:1].upper()}{what[1:]}." for what in run.result.get("unmeasured", ()))
    for picture in [*record.pictures, *([drawn(section.name)] if section.name in DRAWN else [])]:
        yield f"![{section.title}](images/results/{picture})"
    where = f" on machine {_letter(machines.index(record.machine))}" if len(machines) > 1 else ""
    yield f"*Measured {record.measured}{where}, commit `{record.commit}`, in {_duration(record.seconds)}.*"


def _machine_tables(machines: Sequence[Mapping[str, str]]) -> Iterable[str]:
    if not machines:
        yield "None yet."
        return
    names = list(dict.fromkeys(name for machine in machines for name in machine))
    headings = ("", *(_letter(place) for place in range(len(machines))))
    rows = tuple((name, *(machine.get(name) for machine in machines)) for name in names)
    yield ResultTable("Machines", headings, rows).markdown().partition("\n\n")[2]


def _letter(place: int) -> str:
    return chr(ord("A") + place)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
