"""`arr-stream eval text`: how well is text found and read?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import err, out
from arr_stream.config import Settings

if TYPE_CHECKING:
    from arr_stream.evaluation.text import TextScore
    from arr_stream.keyframes.base import TextFinder


def text(
    data: Annotated[Path, typer.Argument(help="Folder with textdet_*.json or data.txt, or with such folders.")],
    backend: Annotated[list[str] | None, typer.Option(help="Finder, as in keyframes.text.")] = None,
    blank: Annotated[list[Path] | None, typer.Option(help="Folder of pictures without any text.")] = None,
    blank_every: Annotated[int, typer.Option(min=1, help="Take each Nth of those.")] = 10,
    read: Annotated[bool, typer.Option(help="Also read, where the ground truth says what is written.")] = True,
    threads: Annotated[int, typer.Option(min=1, help="Threads for each finder.")] = 1,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recall and precision of the text mask, words read, and processor time, on pictures with ground truth."""
    settings = Settings.load(preset, overrides or ())

    from arr_stream.evaluation.text import evaluate_text, load_blank, load_pictures
    from arr_stream.keyframes.text import make_text_finder

    pictures = load_pictures(data)
    for folder in blank or ():
        pictures += load_blank(folder, blank_every)

    def maker(name: str) -> Callable[[], TextFinder]:
        chosen = settings.with_values({"keyframes.text": name})
        return lambda: make_text_finder(chosen, threads)

    finders = {name: maker(name) for name in backend or ["auto", "rapidocr"]}
    scores = evaluate_text(pictures, finders, read=read, progress=_say)
    if as_json:
        out.print_json(json.dumps([score.as_json() for score in scores]))
    else:
        out.print(_table(scores))


def _table(scores: list[TextScore]) -> Table:
    table = Table("pictures", "finder", title="Text", padding=0)
    for column in ("seen on", "recall", "preci-\nsion", "words\nfound", "read", "matched", "ms", "ms,\nread"):
        table.add_column(column, justify="right")
    for score in scores:
        table.add_row(
            score.folder,
            score.finder,
            f"{score.something_found}/{score.pictures}",
            _share(score.recall),
            _share(score.precision if score.words else None),
            _count(score.words_found, score.words),
            _count(score.verbatim, score.readable),
            _count(score.matched, score.readable),
            f"{score.detect_ms:.0f}",
            "" if score.read_ms is None else f"{score.read_ms:.0f}",
        )
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _count(some: int, total: int) -> str:
    return f"{some}/{total}" if total else ""


def _say(name: str) -> None:
    if err.is_terminal:
        err.print(name, style="dim", markup=False)
