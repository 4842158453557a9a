"""Commands that score choices of cells on footage or generated scenes with ground truth."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from arr_stream.cli.console import out
from arr_stream.cli.measuring import (
    Json,
    Overrides,
    Preset,
    Sequences,
    cpu_settings,
    say,
    show,
)
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from benchmarks.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arr_stream.keyframes.base import TextFinder

SAMPLES = Path("sample_videos")

_Name = TypeVar("_Name", bound=str)

Tokens = Annotated[list[int] | None, typer.Option("--budget", min=1, help="Tokens a frame (40, 101 and 273).")]


class Purpose(StrEnum):
    reporting = "reporting"
    tuning = "tuning"


class Kind(StrEnum):
    davis = "davis"
    samples = "samples"
    generated = "generated"
    photos = "photos"
    fixed = "fixed"
    moving = "moving"
    webcam = "webcam"
    tracks = "tracks"


def compare(
    data: Annotated[
        Path | None,
        typer.Argument(help="Folder with davis/, text/icdar2015/ and cameras/, or one of the first two. Optional."),
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
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Compare coverage and cost with published rules for dropping tokens, at equal tokens on the same frames."""
    settings = Settings.load(preset, overrides or ())

    from benchmarks.comparison.compare import compare as measure
    from benchmarks.rivals.features import named_features
    from benchmarks.scenes.footage import KINDS
    from benchmarks.scenes.photographs import all_footage

    makers = {name.partition(":")[0]: named_features(name, settings) for name in features or ("clip", "pixels")}
    wanted = [each for each in KINDS if each in kind] if kind else None
    footage = list(all_footage(data, wanted, samples, max_frames, say))
    budgets = list(dict.fromkeys(budget or ["10%", "25%"]))
    report = measure(footage, budgets, settings, makers, seeds=seeds, progress=say)
    show(report, as_json=as_json)


def answers(
    model: Annotated[str, typer.Option(help="Qwen3-VL: `tiny`, a folder, or a hub name.")] = "tiny",
    pictures: Annotated[int, typer.Option(min=0, help="Pictures, six questions each.")] = 300,
    crowded: Annotated[int, typer.Option(min=0, help="Pictures of eight things and more, six questions each.")] = 100,
    clips: Annotated[int, typer.Option(min=0, help="Clips, six questions each.")] = 100,
    budget: Annotated[list[str] | None, typer.Option(help="Shares of the tokens (100%, 50%, 25%, 10%, 5%).")] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(help="Another way of ours: 'NAME KEY=VALUE ...', such as 'prune vlm.mode=prune'."),
    ] = None,
    purpose: Annotated[Purpose, typer.Option(help="Set of photographs behind the things.")] = Purpose.reporting,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Right answers about drawn pictures and clips, by share of the tokens and by who chose them."""
    named = {"ours": list(overrides or ())}
    for each in way or ():
        words = each.split()
        values = [word for word in words if "=" in word]
        named[f"ours, {' '.join(word for word in words if word not in values)}"] = [*named["ours"], *values]

    from arr_stream.threads import torch_threads
    from arr_stream.vlm import answering
    from benchmarks.answers.table import SHARES, measure

    fixed = {"vlm.model": model}
    chosen = {name: cpu_settings("answers", preset, values).with_values(fixed) for name, values in named.items()}
    ways = {name: answering(settings) for name, settings in chosen.items()}
    shares = list(dict.fromkeys(budget or SHARES))
    told: Any = {"purpose": purpose.value, "progress": say}
    with torch_threads(threads):
        report = measure(ways, pictures=pictures, crowded=crowded, clips=clips, shares=shares, **told)
    show(report, as_json=as_json)


def localisation(
    model: Annotated[str, typer.Option("--model", help="As `clip.model`.")] = "tiny",
    scenes: Annotated[int, typer.Option("--scenes", min=1, help="Generated scenes to look at.")] = 200,
    size: Annotated[str, typer.Option("--size", help="Of the scenes, WIDTHxHEIGHT.")] = "448x256",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other scenes.")] = 0,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Score how well a CLIP model finds the things of generated scenes in words."""
    settings = Settings.load(preset, overrides or ()).with_values({"clip.model": model})
    size_wh = parse_size(size)

    from arr_stream.keyframes.embeddings.clip import ClipEmbedder, ClipTextEncoder
    from benchmarks.localisation import evaluate_localisation, held_out_scenes

    embedder = ClipEmbedder(settings.clip, settings.models, threads=1)
    encoder = ClipTextEncoder(settings.clip, settings.models)
    report = evaluate_localisation(held_out_scenes(scenes, seed, size_wh), [embedder], encoder, progress=say)
    show(report, as_json=as_json)


def _known(given: Sequence[str] | None, known: Sequence[_Name], option: str) -> list[_Name]:
    """The known ones of some names, each once.

    Raises:
        InvalidSetting: One is not known.
    """
    by_name = {str(name): name for name in known}
    for name in given or ():
        if name not in by_name:
            raise InvalidSetting(f"{option} {name!r} is not known", remedy=f"take some of {', '.join(known)}")
    return [by_name[name] for name in dict.fromkeys(given or ())]


def carry(
    data: Sequences,
    interval: Annotated[list[int] | None, typer.Option(min=2, help="Frames from mask to mask.")] = None,
    as_json: Json = False,
) -> None:
    """Carry the mask of every Nth frame over the frames between: mean IoU, and the curve against age."""
    from arr_stream.evaluation.footage import load_footage
    from benchmarks.carry import evaluate_carry

    report = evaluate_carry(load_footage(data), list(dict.fromkeys(interval or [10, 30])), progress=say)
    show(report, as_json=as_json)


def text(
    data: Annotated[Path, typer.Argument(help="Folder with textdet_*.json or data.txt, or with such folders.")],
    backend: Annotated[list[str] | None, typer.Option(help="Finder, as in keyframes.text.")] = None,
    blank: Annotated[list[Path] | None, typer.Option(help="Folder of pictures without any text.")] = None,
    blank_every: Annotated[int, typer.Option(min=1, help="Take each Nth of those.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="Threads for each finder.")] = 1,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Recall and precision of the text mask, words read, and processor time, on pictures with ground truth."""
    from arr_stream.config import Settings
    from arr_stream.keyframes.text import make_text_finder
    from benchmarks.text import evaluate_text, load_blank, load_pictures, text_tables

    settings = Settings.load(preset, overrides or ())

    pictures = load_pictures(data)
    for folder in blank or ():
        pictures += load_blank(folder, blank_every)

    def maker(name: str) -> Callable[[], TextFinder]:
        chosen = settings.with_values({"keyframes.text": name})
        return lambda: make_text_finder(chosen, threads)

    finders = {name: maker(name) for name in backend or ["auto", "rapidocr"]}
    scores = evaluate_text(pictures, finders, progress=say)
    if as_json:
        out.print_json(json.dumps([score.as_json() for score in scores]))
        return
    for table in text_tables(scores):
        out.print(table)
