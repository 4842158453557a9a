"""Queries of the user: a text, a region of a frame, or an example picture.

    query = parse_text('red car on the left')
    query.notice()   # -> unknown word ...

A query only describes the object; `relevance.membership` scores a text on a frame, and regions and examples are scored
by appearance.
"""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from arr_stream.errors import (
    EmptyQuery,
    InvalidSetting,
    QueryUnreadable,
    RegionOutsideFrame,
)
from arr_stream.keyframes.objects import REMEDY
from arr_stream.object_names import TERMS, ObjectTerm, object_at
from arr_stream.plain_text import redact_url
from arr_stream.relevance.lexicon import MotionTerm, Term, WordTerm, understand
from arr_stream.types import ByteArray

EXAMPLE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Raster formats only: Pillow runs other programs for some others, such as EPS."""

_LONGEST_TEXT = 2000
_REGION_REMEDY = "write x,y,w,h in pixels of the first frame, such as 120,80,64,48"
_AT_SECONDS = re.compile(r"@(-?\d+\.?\d*)$")
_QUOTED = re.compile(
    r'"([^"]{1,200})"'
    r"|[“„”]([^“”„]{1,200})[”“]"
    r"|«([^«»]{1,200})»"
    r"|‘([^‘’]{1,200})’(?!\w)"
    r"|(?<!\w)'([^']{1,200})'(?!\w)"
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class TextQuery:
    """Text query with the lexicon's interpretation of it.

    Args:
        text: As given.
        terms: Understood words. Without any, the query is valid and scores 0 everywhere.
        unknown_words: Words that are not understood, each once, in order.
        phrase: Name of the object itself, for a model that understands more than the lexicon; may be empty.
    """

    text: str
    terms: tuple[Term, ...]
    unknown_words: tuple[str, ...]
    phrase: str = ""

    @property
    def label(self) -> str:
        """Short text for records and overlays, without secrets of URLs."""
        line = redact_url(" ".join(self.text.split()))
        return line if len(line) <= 48 else line[:47] + "…"

    @property
    def words(self) -> tuple[str, ...]:
        """Texts to look for in the scene; an empty one means any text."""
        return tuple(term.text for term in self.terms if isinstance(term, WordTerm))

    @property
    def objects(self) -> tuple[ObjectTerm, ...]:
        """Kinds of object to look for."""
        return tuple(term for term in self.terms if isinstance(term, ObjectTerm))

    @property
    def names_the_unknown(self) -> bool:
        """True if some words are understood, but not the object's, as in "green bus"."""
        understood = self.words or self.objects or self.needs_motion
        return bool(self.terms and self.unknown_words) and not understood

    def detected(self, labels: Collection[str]) -> TextQuery:
        """Return the query for a detector with these labels: objects that it cannot find become unknown words."""
        found = [term.among(labels) if isinstance(term, ObjectTerm) else term for term in self.terms]
        lost = [term.word for term in self.objects if term.among(labels) is None]
        unknown = tuple(dict.fromkeys((*self.unknown_words, *lost)))
        return replace(self, terms=tuple(term for term in found if term is not None), unknown_words=unknown)

    @property
    def needs_motion(self) -> bool:
        return any(isinstance(term, MotionTerm) for term in self.terms)

    def fault(self) -> str | None:
        """Name the words that are not understood and the search that replaces them; None if all are understood."""
        if not self.unknown_words and self.terms:
            return None
        known = [(term.text or "writing") if isinstance(term, WordTerm) else term.word for term in self.terms]
        undetected, unknown = self._undetected, self._unknown
        near = [name for word in unknown for name in get_close_matches(word, TERMS, n=1, cutoff=0.75)]
        words = "unknown word" if len(unknown) == 1 else "unknown words"
        parts = [
            f"{words} {_quoted(unknown)}" if unknown else "",
            f"no detector in use finds {_quoted(undetected)}" if undetected else "",
            f"searching for {_quoted(known)} only" if known else "nothing to search for",
            f"did you mean {_quoted(near)}?" if near else "",
        ]
        return "; ".join(filter(None, parts))

    def notice(self) -> str | None:
        """Return one line with the fault and what helps on the command line; None if all words are understood."""
        fault = self.fault()
        if fault is None:
            return None
        words = "docs/queries.md lists the words"
        if self.unknown_words:
            words = (
                f"CLIP (--preset plain_words) understands other words, quotes find written ones; {words}"
                if self._unknown
                else ""
            )
        remedies = [REMEDY if self._undetected else "", words]
        return f"query {self.label!r}: {'; '.join(filter(None, [fault, *remedies]))}"

    @property
    def _undetected(self) -> list[str]:
        return [word for word in self.unknown_words if object_at(word.split(), 0)[0] is not None]

    @property
    def _unknown(self) -> list[str]:
        return [word for word in self.unknown_words if word not in self._undetected]


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


@dataclass(frozen=True, slots=True)
class RegionQuery:
    """Box around the object.

    Args:
        xywh: Left, top, width and height in source pixels of the first frame.
        at_seconds: Presentation time of the frame that the box was drawn on.

    Raises:
        InvalidSetting: Not finite, without area, or before time 0.
    """

    xywh: tuple[float, float, float, float]
    at_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.xywh)):
            raise InvalidSetting(f"region {self._numbers} holds values that are not finite", remedy=_REGION_REMEDY)
        if self.xywh[2] <= 0 or self.xywh[3] <= 0:
            raise InvalidSetting(f"region {self._numbers} has no area: w and h must be above 0", remedy=_REGION_REMEDY)
        if not (math.isfinite(self.at_seconds) and self.at_seconds >= 0):
            raise InvalidSetting(
                f"the region's time is {self.at_seconds:g} s: it must be 0 or later", remedy="write x,y,w,h@SECONDS"
            )

    @property
    def _numbers(self) -> str:
        return ",".join(f"{value:.10g}" for value in self.xywh)

    @property
    def label(self) -> str:
        return f"region {self._numbers}" + (f" at {self.at_seconds:g} s" if self.at_seconds else "")

    def checked(self, size_wh: tuple[int, int]) -> RegionQuery:
        """Return this region cropped to a frame; up to one pixel beyond an edge counts as rounding.

        Raises:
            RegionOutsideFrame: The region is outside the frame, or reaches further beyond an edge.
        """
        x, y, w, h = self.xywh
        width, height = size_wh
        x0, y0, x1, y1 = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
        beyond = max(-x, -y, x + w - width, y + h - height)
        if beyond > 1 or x1 <= x0 or y1 <= y0:
            where = "outside" if x1 <= x0 or y1 <= y0 else f"{beyond:g} pixels beyond the edge of"
            raise RegionOutsideFrame(
                f"region {self._numbers} lies {where} the frame of {width}x{height}",
                remedy=f"keep x and y at 0 or more, x+w within {width} and y+h within {height}",
            )
        return RegionQuery((x0, y0, x1 - x0, y1 - y0), self.at_seconds)

    def resized(self, before_wh: tuple[int, int], size_wh: tuple[int, int]) -> RegionQuery:
        """The same part of frames of another size."""
        scale_x, scale_y = size_wh[0] / before_wh[0], size_wh[1] / before_wh[1]
        x, y, w, h = self.checked(before_wh).xywh
        return replace(self, xywh=(x * scale_x, y * scale_y, w * scale_x, h * scale_y))


@dataclass(frozen=True, slots=True, eq=False)
class ExampleQuery:
    """Picture of the object.

    Args:
        path: Where it was read from.
        rgb: `[1, n, 3]`, uint8, its visible pixels.
    """

    path: Path
    rgb: ByteArray

    @property
    def label(self) -> str:
        return f"example {self.path.name}"


Query = TextQuery | RegionQuery | ExampleQuery


def resized_queries(
    queries: Sequence[Query], before_wh: tuple[int, int], size_wh: tuple[int, int]
) -> tuple[Query, ...]:
    """Return the queries for frames of another size: regions keep their place in the picture."""
    return tuple(query.resized(before_wh, size_wh) if isinstance(query, RegionQuery) else query for query in queries)


def parse_text(text: str) -> TextQuery:
    """Return the text query.

    Raises:
        EmptyQuery: Nothing but blanks.
        InvalidSetting: Longer than the limit.
    """
    if not text.strip():
        raise EmptyQuery("the query is empty", remedy="name an object, or leave --query out to follow changes")
    if len(text) > _LONGEST_TEXT:
        raise InvalidSetting(
            f"the query has {len(text)} characters, at most {_LONGEST_TEXT} are allowed",
            remedy="shorten it, or give several queries",
        )
    quoted: dict[WordTerm, None] = {}

    def take(match: re.Match[str]) -> str:
        wanted = " ".join(next(group for group in match.groups() if group is not None).split())
        if wanted:
            quoted[WordTerm(wanted)] = None
        return " "

    # Without secrets in URLs, whose words would appear in notices, records and pictures.
    rest = unicodedata.normalize("NFKC", redact_url(_QUOTED.sub(take, text))).casefold()
    known, unknown, phrase = understand(_WORD.findall(rest))
    terms = tuple(term for term in known if not (quoted and term == WordTerm("")))
    return TextQuery(text, (*terms, *quoted), unknown, phrase)


def parse_region(text: str, at_seconds: float = 0.0) -> RegionQuery:
    """Return a region from `x,y,w,h`.

    Raises:
        InvalidSetting: Not four numbers, not finite, without area, or a time before 0.
    """
    try:
        x, y, w, h = (float(part) for part in text.split(","))
    except ValueError as exc:
        raise InvalidSetting(f"region {text!r} is not four numbers", remedy=_REGION_REMEDY) from exc
    return RegionQuery((x, y, w, h), at_seconds)


def load_example(path: str | Path, *, max_pixels: int = 100_000_000) -> ExampleQuery:
    """Load an example picture; of an animation, the first frame. Transparent pixels do not count.

    Raises:
        QueryUnreadable: Missing, not a picture, damaged, too large or wholly transparent.
    """
    from PIL import Image

    path, remedy = Path(path), f"give a picture ({', '.join(EXAMPLE_FORMATS)})"
    try:
        with warnings.catch_warnings():
            # Pillow warns at a size of its own; the limit here is `max_pixels`.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=EXAMPLE_FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise QueryUnreadable(
                        f"example {path} has {image.width}x{image.height} pixels, the limit is {max_pixels}",
                        remedy="crop it to the object",
                    )
                if image.mode == "F":
                    raise QueryUnreadable(f"example {path} has pixels of floats", remedy="save it with 8 bits")
                shown: Image.Image = image
                if image.mode.startswith("I"):
                    # Pillow's own conversion of 16-bit grey clips at 255 instead of scaling.
                    shown = Image.fromarray((np.asarray(image, np.int64) >> 8).clip(0, 255).astype(np.uint8))
                rgba = np.asarray(shown.convert("RGBA"), dtype=np.uint8)
    except QueryUnreadable:
        raise
    except FileNotFoundError as exc:
        raise QueryUnreadable(f"example {path}: no such file", remedy=remedy) from exc
    except Exception as exc:  # Pillow's decoders raise almost anything on damaged files, TypeError and KeyError too.
        raise QueryUnreadable(f"example {path}: cannot be read as a picture: {exc}", remedy=remedy) from exc
    visible = rgba[rgba[..., 3] > 127]
    if not len(visible):
        raise QueryUnreadable(f"example {path} is wholly transparent", remedy="give a picture with visible pixels")
    return ExampleQuery(path, np.ascontiguousarray(visible[None, :, :3]))


def make_queries(texts: Sequence[str], region: str | None = None, example: str | Path | None = None) -> list[Query]:
    """Return the queries that a command line gives.

    Args:
        texts: Text queries.
        region: Box `x,y,w,h`; `@SECONDS` at its end names the time of its frame.
        example: Path of an example picture.

    Raises:
        QueryError: A text is empty, or a picture cannot be read.
        InvalidSetting: A malformed region.
    """
    queries: list[Query] = [parse_text(text) for text in texts]
    if region is not None:
        time = _AT_SECONDS.search(region)
        place, at_seconds = (region, 0.0) if time is None else (region[: time.start()], float(time[1]))
        queries.append(parse_region(place, at_seconds))
    if example is not None:
        queries.append(load_example(example))
    return queries
