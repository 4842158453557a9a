"""Blocks of figures in other documents: what stands between two marks is written from what is kept.

<!-- results: NAME --> ... <!-- /results -->, where NAME is `main` or a section.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from arr_stream.evaluation.tables import ResultTable
from results_page.records import Record
from results_page.sections import BY_NAME
from results_page.tables import tables_of
from results_page.targets import column, ratio, table_named

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
        return _main(records, page)
    section = BY_NAME[name]
    record = records.get(name)
    if record is None or record.missing:
        return f"Not measured ([results]({page}#{section.name}))."
    return "\n\n".join(table.markdown() for table in tables_of(record))


def _main(records: Mapping[str, Record], page: str) -> str:
    rows = []
    for line in HEADLINES:
        record = records.get(line.section)
        value = "not measured" if record is None or record.missing else line.value(record)
        rows.append((f"[{line.what}]({page}#{line.section})", value))
    return ResultTable("Main figures", ("what", "measured"), tuple(rows)).markdown().partition("\n\n")[2]


def _beside(record: Record) -> str:
    """Coverage at a tenth of the tokens, ours and the best of the others."""
    table = table_named(record, "coverage box masks")
    if table is None:
        return "not measured"
    place = column(table, "object")
    shares = {str(row[1]): row[place] for row in table.rows if row[0] == "10%"}
    ours = [share for name, share in shares.items() if name.startswith("arr-stream") and isinstance(share, float)]
    others = {
        name: share for name, share in shares.items() if isinstance(share, float) and not name.startswith("arr-stream")
    }
    best = max(others, key=lambda name: others[name])
    return f"{ours[0]:.2f}, against {others[best]:.2f} by the best other rule ({best})"


def _stage(record: Record) -> str:
    found = record.runs[0].result
    width, height = found["size_wh"]
    return f"{found['between']['median']:.1f} ms at {width}x{height}"


def _coverage(record: Record) -> str:
    means = record.runs[0].result["mean_coverage"]
    shares = (
        f"{found['arr-stream']:.2f} with {budget} tokens (best possible {found['oracle']:.2f})"
        for budget, found in means.items()
    )
    return ", ".join(shares)


def _times(name: str) -> Callable[[Record], str]:
    value = ratio(name)
    return lambda record: f"{float(f'{value(record):.3g}'):,g} times"


def _passes(record: Record) -> str:
    one = record.runs[0].result["vision"]
    parts = ("vision", "prefill")
    gains = (f"{part} {one[f'stock_{part}_ms']['median'] / one[f'{part}_ms']['median']:.1f} times" for part in parts)
    return f"{', '.join(gains)} ({one['tokens']} of {one['cells']} cells)"


def _age(record: Record) -> str:
    ages: Iterable[float] = (
        figure["value"]
        for figure in record.runs[0].result["figures"]
        if figure["part"] == "page" and figure["what"].endswith("median")
    )
    return f"{next(iter(ages)):.0f} ms"


HEADLINES: tuple[Headline, ...] = (
    Headline("Share of an object, asked for by a box, that a tenth of the tokens shows", "compare", _beside),
    Headline("The same by number of tokens, beside the best possible", "coverage", _coverage),
    Headline("A frame between keyframes, everything in it", "stages", _stage),
    Headline(
        "Generating everything on every frame, against a frame on average",
        "stages",
        _times("full generation / amortised"),
    ),
    Headline(
        "Encoding 273 crops on every frame, against relevance with its share of the keyframe",
        "query",
        _times("273 crops / amortised with the keyframe"),
    ),
    Headline("Qwen3-VL on a whole frame, against the chosen cells", "vlm", _passes),
    Headline("Age of a live frame on the page, median", "live", _age),
)
