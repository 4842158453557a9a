"""`arr-stream train-pca`: principal components of a model's features on your own pictures, for the 16 embedding
channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import counting, err, interrupted, out
from arr_stream.cli.measuring import Overrides, Preset
from arr_stream.errors import InvalidSetting, SourceDamaged

if TYPE_CHECKING:
    from arr_stream.types import Frame

REPORTED_COMPONENTS = (8, 15, 16, 32, 64)


def train_pca(
    sources: Annotated[list[str], typer.Argument(help="Videos, pictures, folders or globs.", metavar="SOURCE...")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write, such as pca.safetensors.")],
    components: Annotated[int, typer.Option(min=16, max=4096, help="Principal directions to keep.")] = 64,
    every_seconds: Annotated[float, typer.Option(min=0.0, help="Seconds between the frames taken from a video.")] = 1.0,
    max_vectors: Annotated[int, typer.Option(min=16, help="Stop after this number of features.")] = 1_000_000,
    preset: Preset = None,
    overrides: Overrides = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output.")] = False,
) -> None:
    """Learn on pictures and videos how a CLIP model's features vary, for the 16 embedding channels.

    The model is that of `clip.model`. One pass in bounded memory: every picture is used, of a video one frame every few
    seconds. Use the file with `--set clip.pca=FILE`; without one, each stream learns from its first keyframes.
    """
    from arr_stream.config import Settings
    from arr_stream.files import prepare_output, written_whole
    from arr_stream.keyframes.base import KeyframeInput
    from arr_stream.keyframes.embeddings.clip import ClipEmbedder
    from arr_stream.keyframes.embeddings.pca import StreamingPca
    from arr_stream.types import Grid

    settings = Settings.load(preset, overrides or ())
    # Before the model is loaded: an unwritable output is reported at once.
    prepare_output(output, force)
    gathered: StreamingPca | None = None
    try:
        embedder = ClipEmbedder(settings.clip, settings.models)
        with counting() as advance:
            for count, frame in enumerate(_frames(sources, every_seconds, settings.source.max_pixels), start=1):
                grid = Grid.for_size(frame.size_wh, max_pixels=settings.grid.max_pixels)
                values = embedder.embed(KeyframeInput(frame, grid)).values
                gathered = gathered or StreamingPca(len(values))
                gathered.add(values.reshape(len(values), -1).T[: max_vectors - gathered.count])
                advance(f"{gathered.count} features of {count} pictures", gathered.count, max_vectors)
                if gathered.count >= max_vectors:
                    break
        assert gathered is not None, "a source without frames is an error"
        if gathered.count < components:
            raise InvalidSetting(
                f"{gathered.count} features for --components {components}",
                remedy="give more pictures, or fewer components",
            )
        pca = gathered.result(embedder.space, components)
        with written_whole(output, force=force) as partial:
            pca.save(partial)
    except KeyboardInterrupt:
        raise interrupted(", nothing was written") from None
    out.print(f"{pca.space}: {pca.count} features of {pca.dimensions} numbers", markup=False)
    table = Table("directions", "variance kept")
    for kept in REPORTED_COMPONENTS:
        if kept <= pca.components:
            table.add_row(str(kept), f"{pca.variance_kept(kept):.3f}")
    out.print(table)
    err.print(f"wrote {output}; use it with --set clip.pca={output}", soft_wrap=True, markup=False)


def _frames(sources: Sequence[str], every_seconds: float, max_pixels: int) -> Iterator[Frame]:
    """Yield every picture, and a frame of a video every `every_seconds`; of a damaged file, the decodable frames."""
    from arr_stream.sources import open_source

    for spec in sources:
        with open_source(spec, max_pixels=max_pixels) as source:
            spacing = 0.0 if source.info.kind == "images" else every_seconds
            due_seconds = -math.inf
            try:
                for frame in source.frames():
                    if frame.pts_seconds >= due_seconds:
                        due_seconds = frame.pts_seconds + spacing
                        yield frame
            except SourceDamaged as exc:
                err.print(f"note: {exc.message}; the rest is used", soft_wrap=True, markup=False)
