"""The page, and blocks of figures in other documents, written from what is kept alone.

A block stands between <!-- results: NAME --> and <!-- /results -->, where NAME is `main` or a section.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arr_stream.evaluation.tables import ResultTable
from benchmarks.results.pictures import DRAWN, drawn
from benchmarks.results.records import Record
from benchmarks.results.sections import BY_NAME, SECTIONS, Section
from benchmarks.results.tables import tables_of
from benchmarks.results.targets import (
    compared,
    fact,
    sooner,
    table_named,
    targets_table,
)

HEAD = """# Results

`python -m benchmarks results` writes this page from what the commands below print; nothing on it is typed by hand.
`DATA` is a folder with `davis/` (frames and masks in the layout of DAVIS), `cameras/`, `aside/`, `videos/` and
`text/` (pictures with text boxes), given by `--data` or `ARR_STREAM_DATA`. What each command prints is kept in
[results/](results/), with the machine, the date and the state of the code. Ratios hold from machine to machine,
milliseconds do not."""

AGAIN = """    python -m benchmarks results --data DATA              # everything; again after a break: --resume
    python -m benchmarks results --data DATA --only text  # this section anew (repeat it), the others as they are kept
    python -m benchmarks results --list                   # what there is, and about how long each takes
    python -m benchmarks results --quick                  # short runs for trying, written to build/results"""


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
        if record is None or not record.runs:
            figures: tuple[str | float | None, ...] = ("not measured", None, None, None, None)
        else:
            load = max(run.load for run in record.runs)
            machine = _letter(machines.index(record.machine))
            measured = f"{record.measured}, incomplete" if record.missing else record.measured
            figures = (measured, f"`{record.commit}`", machine, _duration(record.seconds), round(load, 1))
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
    name = section.page.partition("#")[0].rpartition("/")[2]
    yield section.shows + (f" More in [{name}]({section.page})." if name else "")
    if record is None:
        yield "*Not measured yet.*"
        return
    if not record.runs:
        yield f"*Not measured: {record.missing}.*"
        return
    yield "\n".join(f"    {run.command}" for run in record.runs)
    for table in tables_of(record):
        yield table.markdown() if table.rows else table.note
    for run in record.runs:
        if isinstance(run.result, dict):
            yield from (f"{what[:1].upper()}{what[1:]}." for what in run.result.get("unmeasured", ()))
    if record.missing:
        yield f"*Incomplete: {record.missing}.*"
    if section.name in DRAWN and not record.missing:
        yield f"![{section.title}](images/results/{drawn(section.name)})"
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


BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Headline:
    """A row of the block `main`.

    Args:
        what: In words.
        section: Whose figure it is.
        value: The figure, as it is shown.
    """

    what: str
    section: str
    value: Callable[[Record], str]


def documents(root: Path) -> list[Path]:
    """README and docs."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(text: str, records: Mapping[str, Record], page: str) -> str:
    """A document with its blocks written anew.

    Args:
        text: The document.
        records: What is kept.
        page: The results page, as the document links to it.

    Raises:
        KeyError: A block of a name that there is not.
    """
    return BLOCK.sub(lambda match: f"{match[1]}{_block(match[2], records, page)}\n{match[3]}", text)


def _block(name: str, records: Mapping[str, Record], page: str) -> str:
    if name == "main":
        return _headlines(records, page)
    section = BY_NAME[name]
    record = records.get(name)
    if record is None or record.missing:
        return f"Not measured ([results]({page}#{section.name}))."
    return "\n\n".join(table.markdown() for table in tables_of(record))


def _headlines(records: Mapping[str, Record], page: str) -> str:
    rows = []
    for line in HEADLINES:
        record = records.get(line.section)
        value = "not measured" if record is None or record.missing else line.value(record)
        rows.append((f"[{line.what}]({page}#{line.section})", value))
    return ResultTable("Main figures", ("what", "measured"), tuple(rows)).markdown().partition("\n\n")[2]


def _beside(title: str) -> Callable[[Record], str]:
    """Return the coverage at a tenth of the tokens, ours and the best of the others, in the table of some title."""

    def value(record: Record) -> str:
        table = table_named(record, title)
        if table is None:
            return "not measured"
        ours, others = compared(table, "object", "10%")
        best = max(others, key=lambda name: others[name])
        return f"{next(iter(ours.values())):.2f}, against {others[best]:.2f} by the best rule ({best})"

    return value


def _served(record: Record) -> str:
    times = sooner(record)
    return "not measured" if times is None else f"{times:.1f} times sooner"


def _stage(record: Record) -> str:
    found = record.runs[0].result
    width, height = found["size_wh"]
    times = fact("ratios", "frame between keyframes / flow alone")(record)
    alone = f"{times:.1f} times optical flow alone beside it (OpenCV on one thread)"
    return f"{found['between']['median']:.1f} ms at {width}x{height}, {alone}"


HEADLINES: tuple[Headline, ...] = (
    Headline(
        "Moving objects shown by 10% of the tokens, no query: five fixed cameras kept aside from all tuning",
        "aside",
        _beside("coverage without query cameras still"),
    ),
    Headline("The same: cameras that move", "cameras", _beside("coverage without query cameras that move")),
    Headline(
        "A walker asked for by its first box, shown by 10% of the tokens",
        "cameras",
        _beside("coverage box single walkers"),
    ),
    Headline("Time of a frame between keyframes, two cores", "stages", _stage),
    Headline("First token in vLLM, a quarter of the cells against whole frames, two cores", "serving", _served),
)
