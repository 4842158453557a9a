"""Frames from pictures: one, a folder of them, or a glob."""

from __future__ import annotations

import io
import itertools
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from arr_stream.errors import NotAMediaFile, SourceDamaged, SourceTooLarge
from arr_stream.extras import needed_by
from arr_stream.sources.base import Job, Source, SourceInfo, SourceStats, too_large
from arr_stream.sources.locate import content_of, public_name
from arr_stream.types import ByteArray, Frame

if TYPE_CHECKING:
    from PIL import ImageCms

# No format that runs a program (EPS) or opens other files.
_FORMATS = ("AVIF", "BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_FPS = 30.0
_MOST_NAMED = 3
_MOST_SRGB_LEVELS = 3
"""Largest change of any colour by a profile that counts as sRGB; versions of sRGB differ by their rounding."""


class ImagesSource(Source):
    """Pictures as frames, in the order given, 30 a second; they may differ in size.

    Unreadable pictures are skipped and named by the error at the end; the others keep their times. A single file with
    several pictures (WebP, AVIF, TIFF) yields all of them, at its own times if it has any.

    Raises:
        NotAMediaFile: No picture can be read.
        NothingInRange, SourceTooLarge: See `arr_stream.errors`.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.reading = job.reading
        several = len(job.paths) == 1 and _holds_several(job)
        total, fps = (None, None) if several else (len(job.paths), _FPS)
        pictures = _pages(job) if several else ((index / _FPS, path) for index, path in enumerate(job.paths))
        duration = None if total is None else total / _FPS
        self._made = _frames(job, job.reading.select(pictures), self.stats)
        self._first = next(self._made, None)
        if self._first is None:
            raise job.reading.nothing(job.name, duration)
        self.info = SourceInfo(
            name=job.name,
            kind="animation" if content_of(job.paths[0]) == "animation" else "images",
            size_wh=self._first.size_wh,
            average_fps=fps,
            duration_seconds=duration,
            num_frames=job.reading.expected(total, fps),
            codec=job.paths[0].suffix[1:].lower(),
            path=job.folder,
            left_out=tuple(_left_out(path) for path in job.left_out),
        )


def _left_out(path: Path) -> str:
    # With the package for HEIF, the file would have been read.
    why = " (needs arr-stream[heif])" if content_of(path) == "heif" else ""
    return f"{public_name(path.name)}{why}"


def _holds_several(job: Job) -> bool:
    """Return True if a file holds several pictures; the further ones of a JPEG are previews and depth."""
    with _opened(job.paths[0], job.max_pixels) as picture:
        return picture.format != "MPO" and getattr(picture, "is_animated", False)


def _pages(job: Job) -> Iterator[tuple[float, ByteArray]]:
    seconds = 0.0
    with _opened(job.paths[0], job.max_pixels) as picture:
        for number in itertools.count():
            try:
                picture.seek(number)
            except EOFError:
                return
            _check_size(picture, job.paths[0], job.max_pixels)
            yield seconds, _to_rgb(ImageOps.exif_transpose(picture))
            seconds += picture.info.get("duration", 0) / 1000 or 1 / _FPS


def _frames(job: Job, chosen: Iterator[tuple[float, Path | ByteArray]], stats: SourceStats) -> Iterator[Frame]:
    """Yield frames of files, or of the pages of one, which end at the first that cannot be read."""
    index, unread = 0, list[NotAMediaFile]()
    while True:
        try:
            seconds, picture = next(chosen)
            rgb = read_picture(picture, max_pixels=job.max_pixels) if isinstance(picture, Path) else picture
        except StopIteration:
            break
        except NotAMediaFile as exc:
            unread.append(exc)
            stats.lost_frames += 1
            if job.stop_at_damage:
                break
            continue
        yield Frame(index, seconds, rgb)
        index += 1
    if not unread:
        return
    if not index:
        raise unread[0]
    more = f"; {len(unread) - _MOST_NAMED} more like these" if len(unread) > _MOST_NAMED else ""
    named = "; ".join(each.message for each in unread[:_MOST_NAMED])
    raise SourceDamaged(
        f"{job.name}: damaged: {index} pictures were read, {len(unread)} cannot be: {named}{more}",
        remedy="replace or remove these",
    )


def read_picture(path: Path, *, max_pixels: int = 100_000_000) -> ByteArray:
    """Return a picture file as upright RGB `[H, W, 3]`, uint8.

    EXIF orientation is applied, transparency laid on white, grey and palettes expanded, 16 bits scaled to 8, and an ICC
    profile for RGB converted to sRGB.

    Raises:
        NotAMediaFile: It cannot be read, or is truncated.
        SourceTooLarge: It has more pixels than allowed, according to its header, before decoding.
    """
    with _opened(path, max_pixels) as picture:
        return _to_rgb(ImageOps.exif_transpose(picture))


def _check_size(picture: Image.Image, path: Path, max_pixels: int) -> None:
    if picture.width * picture.height > max_pixels:
        raise too_large(str(path), picture.size, max_pixels, instead="scale the picture down")


@contextmanager
def _opened(path: Path, max_pixels: int) -> Iterator[Image.Image]:
    """Open a picture file; map Pillow's errors on opening and reading to those of `read_picture`."""
    formats: tuple[str, ...] = _FORMATS
    if content_of(path) == "heif":
        with needed_by(f"{path}: HEIF"):
            import pillow_heif

        pillow_heif.register_heif_opener()
        formats = ("HEIF",)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(path, formats=formats)
        with opened as picture:
            _check_size(picture, path, max_pixels)
            yield picture
    except Image.DecompressionBombError as exc:
        # Pillow refuses pictures from twice its warning limit, regardless of ours.
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise SourceTooLarge(f"{path}: more than the {most} pixels that Pillow opens", remedy="scale it down") from exc
    except UnidentifiedImageError as exc:
        raise NotAMediaFile(f"{path}: not a picture", remedy="give JPEG, PNG, WebP, AVIF, BMP, TIFF or PPM") from exc
    except (OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, struct.error) as exc:
        # Pillow's decoders report bad data in all of these ways.
        raise NotAMediaFile(f"{path}: cannot be read: {exc}", remedy="check that the picture is complete") from exc


def _to_rgb(picture: Image.Image) -> ByteArray:
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        return np.repeat(_deep_grey_to_bytes(picture)[..., None], 3, axis=2)
    rgb = on_white(picture) if picture.has_transparency_data else np.array(picture.convert("RGB"))
    profile = picture.info.get("icc_profile")
    transform = _to_srgb(profile) if profile else None
    return rgb if transform is None else np.array(transform.apply(Image.fromarray(rgb)))


@lru_cache(maxsize=8)
def _to_srgb(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from an ICC profile to sRGB; None if the profile is sRGB itself, invalid, or not for RGB."""
    from PIL import ImageCms

    srgb = ImageCms.createProfile("sRGB")
    try:
        transform = ImageCms.buildTransform(ImageCms.ImageCmsProfile(io.BytesIO(profile)), srgb, "RGB", "RGB")
    except (ImageCms.PyCMSError, OSError):
        return None
    levels = np.stack(np.meshgrid(*[np.arange(0, 256, 51, dtype=np.uint8)] * 3), axis=-1).reshape(36, 6, 3)
    changed = np.array(transform.apply(Image.fromarray(levels))).astype(int) - levels
    return transform if np.abs(changed).max() > _MOST_SRGB_LEVELS else None


def on_white(picture: Image.Image) -> ByteArray:
    """Return a picture with transparency as `[H, W, 3]` on white, so that hidden colours never show."""
    opaque = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    return np.array(opaque.convert("RGB"))


def _deep_grey_to_bytes(picture: Image.Image) -> ByteArray:
    """Return grey of more than 8 bits: integers are taken as 16-bit, fractions as [0, 1] unless they are larger."""
    values, top = np.nan_to_num(np.asarray(picture).astype(np.float64)), 65535.0
    if picture.mode == "F":
        top = next((top for top in (1.0, 255.0) if values.max(initial=0.0) <= top), top)
    return np.rint(np.clip(values / top, 0.0, 1.0) * 255.0).astype(np.uint8)
