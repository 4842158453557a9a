"""Frames from pictures: one, a folder of them, or a glob."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from arr_stream.errors import NotAMediaFile, SourceDamaged, SourceTooLarge
from arr_stream.sources.base import Job, OnePass, SourceInfo, too_large
from arr_stream.types import ByteArray, Frame

# No format that runs a program (EPS) or opens other files.
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_FPS = 30.0


class ImagesSource(OnePass):
    """Pictures as frames, in the order given, 30 a second.

    Pictures may differ in size and are delivered as they are. One that cannot be read is damage, like damage in the
    middle of a file.

    Raises:
        NotAMediaFile: The only picture cannot be read.
        SourceDamaged: The first of several pictures cannot be read.
        NothingInRange, SourceTooLarge: See `arr_stream.errors`.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        duration = len(job.paths) / _FPS
        timed = ((index / _FPS, path) for index, path in enumerate(job.paths))
        chosen = list(job.span.select(timed, self.stats))
        if not chosen:
            raise job.span.nothing(job.name, duration)
        frames = _frames(job, chosen)
        self._first, self._made = next(frames), frames
        self.info = SourceInfo(
            name=job.name,
            kind="images",
            size_wh=self._first.size_wh,
            average_fps=_FPS,
            duration_seconds=duration,
            num_frames=len(chosen),
            codec=chosen[0][1].suffix[1:].lower(),
            path=job.folder,
        )


def _frames(job: Job, chosen: Sequence[tuple[float, Path]]) -> Iterator[Frame]:
    for index, (seconds, path) in enumerate(chosen):
        try:
            rgb = read_picture(path, max_pixels=job.max_pixels)
        except NotAMediaFile as exc:
            if len(job.paths) == 1:
                raise
            raise SourceDamaged(
                f"{job.name}: damaged after {index} frames were read: {exc.message}",
                frames_read=index,
                remedy="what came before is kept; replace or remove the picture",
            ) from exc
        yield Frame(index, seconds, rgb)


def read_picture(path: Path, *, max_pixels: int = 100_000_000) -> ByteArray:
    """A picture file as upright RGB `[H, W, 3]`, uint8.

    EXIF orientation is applied, transparency laid on white, grey and palettes expanded, 16 bits scaled to 8.

    Raises:
        NotAMediaFile: It cannot be read, or is cut short.
        SourceTooLarge: It has more pixels than allowed; told from its header, before decoding.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as picture:
                if picture.width * picture.height > max_pixels:
                    raise too_large(str(path), picture.size, max_pixels, instead="scale the picture down")
                return _to_rgb(ImageOps.exif_transpose(picture))
    except Image.DecompressionBombError as exc:
        # From twice of what it warns of, whatever is allowed here.
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise SourceTooLarge(f"{path}: more than the {most} pixels that Pillow opens", remedy="scale it down") from exc
    except UnidentifiedImageError as exc:
        raise NotAMediaFile(f"{path}: not a picture", remedy="give JPEG, PNG, WebP, BMP, TIFF or PPM") from exc
    except (OSError, ValueError, SyntaxError, EOFError, IndexError) as exc:
        # Pillow's decoders report bad data in all of these ways.
        raise NotAMediaFile(f"{path}: cannot be read: {exc}", remedy="check that the picture is complete") from exc


def _to_rgb(picture: Image.Image) -> ByteArray:
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        return np.repeat(_deep_grey_to_bytes(picture)[..., None], 3, axis=2)
    return on_white(picture) if picture.has_transparency_data else np.array(picture.convert("RGB"))


def on_white(picture: Image.Image) -> ByteArray:
    """Return a picture with transparency as `[H, W, 3]` on white: colours that nobody was to see never show."""
    opaque = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    return np.array(opaque.convert("RGB"))


def _deep_grey_to_bytes(picture: Image.Image) -> ByteArray:
    """Grey of more than 8 bits: integers are taken as 16-bit, fractions as [0, 1] unless they are larger."""
    values, top = np.nan_to_num(np.asarray(picture).astype(np.float64)), 65535.0
    if picture.mode == "F":
        top = next((top for top in (1.0, 255.0) if values.max(initial=0.0) <= top), top)
    return np.rint(np.clip(values / top, 0.0, 1.0) * 255.0).astype(np.uint8)
