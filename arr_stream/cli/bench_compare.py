"""`arr-stream bench compare`: our choice of cells beside published and plain rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import err, out
from arr_stream.cli.pictures import check_picture, write_picture
from arr_stream.config import Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting

if TYPE_CHECKING:
    from benchmarks.footage import Footage
    from benchmarks.rivals.features import FeatureMaker

SAMPLES = Path("sample_videos")


class Kind(StrEnum):
    davis = "davis"
    samples = "samples"
    generated = "generated"
    photos = "photos"


def bench_compare(
    data: Annotated[
        Path | None,
        typer.Argument(help="Folder with davis/ and text/icdar2015/, or either itself; without it what needs no data."),
    ] = None,
    budget: Annotated[list[str] | None, typer.Option(help="Tokens a frame, or a share (10% and 25%).")] = None,
    kind: Annotated[list[Kind] | None, typer.Option(help="Only this footage; may be given again.")] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="What rules on features look at: clip, pixels or qwen:FOLDER (its vision tower); "
            "may be given again (clip and pixels)."
        ),
    ] = None,
    samples: Annotated[Path, typer.Option(help="Folder with clips and truth files.")] = SAMPLES,
    max_frames: Annotated[int | None, typer.Option(min=2, help="Most frames of a clip.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Random choices.")] = 5,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the picture.")] = False,
) -> None:
    """Compare coverage and cost with published rules for dropping tokens, at equal tokens on the same frames."""
    settings = Settings.load(preset, overrides or ())
    check_picture(plot, force=force)
    makers = {name.partition(":")[0]: _features(name, settings) for name in features or ("clip", "pixels")}

    from benchmarks.comparison.compare import compare
    from benchmarks.comparison.plot import plot_compare
    from benchmarks.comparison.tables import tables

    wanted = [Kind(each) for each in dict.fromkeys(kind)] if kind else None
    footage = list(_footage(data, wanted, samples, max_frames))
    budgets = list(dict.fromkeys(budget or ["10%", "25%"]))
    report = compare(footage, budgets, settings, makers, seeds=seeds, progress=_progress)
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        for table in tables(report):
            out.print(table.rich())
    write_picture(plot, lambda path: plot_compare(report, path), force=force)


def _features(name: str, settings: Settings) -> FeatureMaker:
    from benchmarks.rivals.features import DenseClip, Pixels, QwenTower

    what, _, folder = name.partition(":")
    if what == "clip" and not folder:
        return DenseClip(settings)
    if what == "pixels" and not folder:
        return Pixels()
    if what == "qwen" and folder:
        return QwenTower(folder)
    raise InvalidSetting(f"--features {name!r} is not known", remedy="use clip, pixels or qwen:FOLDER")


def _footage(data: Path | None, wanted: list[Kind] | None, samples: Path, max_frames: int | None) -> Iterator[Footage]:
    """What was asked for; without a wish, all that is at hand."""
    from benchmarks.footage import davis_footage, sample_footage
    from benchmarks.photo_footage import generated_footage, text_footage

    places: dict[Kind, Path | None] = {
        Kind.davis: _place(data, "davis", "frames"),
        Kind.samples: samples if samples.is_dir() else None,
        Kind.generated: Path(),
        Kind.photos: _place(data, "text/icdar2015", "imgs"),
    }
    makers: dict[Kind, Callable[[Path], list[Footage]]] = {
        Kind.davis: lambda folder: davis_footage(folder, max_frames),
        Kind.samples: lambda folder: sample_footage(folder, max_frames),
        Kind.generated: lambda _: generated_footage(max_frames),
        Kind.photos: lambda folder: text_footage(folder, max_frames),
    }
    if data is not None and places[Kind.davis] is None and places[Kind.photos] is None:
        raise EvaluationDataError(
            f"{data}: no footage that is known here",
            remedy="give a folder with davis/ or text/icdar2015/, or one of these",
        )
    for kind in wanted or Kind:
        place = places[kind]
        if place is not None:
            yield from makers[kind](place)
        elif wanted:
            raise EvaluationDataError(f"--kind {kind}: no footage of it", remedy=_REMEDIES[kind])
        else:
            _progress(f"{kind}: left out; {_REMEDIES[kind]}")


_REMEDIES = {
    Kind.davis: "give a folder with davis/frames/SEQ and davis/masks/SEQ",
    Kind.samples: "name the folder of the sample clips with --samples",
    Kind.photos: "give a folder with text/icdar2015/textdet_*.json and imgs/",
}


def _place(data: Path | None, inside: str, mark: str) -> Path | None:
    """The folder itself if it holds `mark`, or what lies `inside` of it; None for neither."""
    if data is None:
        return None
    return data if (data / mark).is_dir() else data / inside if (data / inside).is_dir() else None


def _progress(what: str) -> None:
    if err.is_terminal:
        err.print(what, style="dim", markup=False)
