"""`arr-stream eval questions`: does a model still answer when it sees a part of the picture?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from arr_stream.cli.console import err, out
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.picture_questions import PictureQuestion
    from benchmarks.questions import ChoiceName, Mode

_Name = TypeVar("_Name", bound=str)


def questions(
    model: Annotated[str | None, typer.Option("--model", help="Qwen3-VL: a folder, or a hub name.")] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Only what the choices cover.")] = False,
    budget: Annotated[
        list[str] | None, typer.Option("--budget", help="Tokens or shares (100%, 50%, 25% and 10%).")
    ] = None,
    mode: Annotated[list[str] | None, typer.Option("--mode", help="Of feeding (sparse, halo and prune).")] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", help="ours, uniform, random or scaled; all four without it.")
    ] = None,
    every: Annotated[int, typer.Option("--every", min=1, help="Only every Nth question.")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Random choices of each question.")] = 3,
    photographs: Annotated[bool, typer.Option(help="With the photographs of scikit-image.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the tables (Markdown).")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as keyframes.embeddings=clip.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every answer included.")] = False,
) -> None:
    """Ask about pictures with known answers, shown in part: our choice of cells beside even, random and coarse ones."""
    settings = Settings.load(preset, overrides or ())
    on_cpu(settings, "eval questions")
    if model is not None:
        settings = settings.with_values({"vlm.model": model})
    if no_model == bool(settings.vlm.model):
        raise InvalidSetting(
            "eval questions takes either a model or --no-model", remedy="give --model FOLDER, or --no-model alone"
        )

    from arr_stream.files import make_parent, prepare_output
    from benchmarks.picture_questions import picture_questions
    from benchmarks.questions import CHOICES, MODES, SHARES, compare, markdown

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    if output is not None:
        # Before the model is loaded: what cannot be written should be said at once.
        prepare_output(output, force, direct=True)
    modes: Sequence[Mode] = _named(mode, ("sparse", "halo", "prune", "weight"), "--mode") or MODES
    choices: Sequence[ChoiceName] = _named(choice, CHOICES, "--choice") or CHOICES
    asked: Sequence[PictureQuestion] = picture_questions(photographs=photographs)[::every]
    answerer = None
    if not no_model:
        from arr_stream.vlm.qwen3_vl.loading import load
        from benchmarks.model_answers import ModelAnswerer

        loaded = load(settings.vlm, settings.models)
        answerer = ModelAnswerer(loaded, halo=settings.vlm.halo, instruction=settings.vlm.instruction)
    report = compare(
        asked,
        answerer,
        settings,
        modes=modes,
        budgets=budget or SHARES,
        choices=choices,
        seeds=seeds,
        progress=progress,
    )
    tables = markdown(report)
    if output is not None:
        make_parent(output)
        output.write_text(tables, encoding="utf-8")
        err.print(f"wrote {output}", markup=False)
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        out.print(tables, markup=False, soft_wrap=True, end="")


def _named(given: Sequence[str] | None, known: Sequence[_Name], option: str) -> list[_Name]:
    """The known ones of some names.

    Raises:
        InvalidSetting: One is not known.
    """
    by_name = {str(name): name for name in known}
    for name in given or ():
        if name not in by_name:
            raise InvalidSetting(f"{option} {name!r} is not known", remedy=f"take some of {', '.join(known)}")
    return [by_name[name] for name in dict.fromkeys(given or ())]
