"""Are small words read where the source has more pixels than the texture? With and without finer cells.

At equal tokens, what was chosen is painted on a grey canvas, each cell at the resolution at which it is given, and the
product's own reader is run on the canvas: it stands for a model that can read, and knows nothing but the pixels that
were given. A word counts where it is read without error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.config import Settings
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.keyframes.base import KeyframeInput, resized
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.keyframes.text.rapid import RapidOcrFinder
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.relevance.words import word_similarity
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.budget import budget_tokens
from arr_stream.texture.pictures import finer_pictures
from arr_stream.types import CELL_PX, FINER, FINER_TOKENS, ByteArray, Frame, Grid, TextRegion, span_cells
from benchmarks.scenes.small_print import SIZE_WH, SMALL_PX, SmallPrint, small_print
from benchmarks.text import TruthWord

DoubleArray = npt.NDArray[np.float64]

BANDS_PX = (SMALL_PX, (5.0, 6.5), (6.5, 8.0), (10.0, 14.0))
"""Heights of the small words in texture pixels."""
_GREY = 128
_SIDE = 2 * CELL_PX


@dataclass(frozen=True, slots=True)
class SmallTextRow:
    """One way to choose, on all frames with small words of one height.

    Args:
        small_px: Least and most height of the small words in texture pixels.
        asked: The query; empty for none.
        choice: What chose.
        tokens: Tokens a frame, mean.
        finer: Finer cells a frame, mean.
        small, large: Words read, over all frames.
        small_words, large_words: Words on the frames.
    """

    small_px: tuple[float, float]
    asked: str
    choice: str
    tokens: float
    finer: float
    small: int
    small_words: int
    large: int
    large_words: int


@dataclass(frozen=True, slots=True)
class SmallTextReport(Report):
    """All rows."""

    rows: tuple[SmallTextRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        lines = tuple(
            (
                *("{:g} to {:g}".format(*row.small_px), row.asked or "nothing", row.choice, row.tokens, row.finer),
                *(f"{row.small}/{row.small_words}", f"{row.large}/{row.large_words}"),
            )
            for row in self.rows
        )
        columns = ("small words, px", "asked", "choice", "tokens", "finer cells", "small read", "large read")
        note = (
            "Heights in texture pixels, letters from top to foot. The oracle gives finer cells to the words "
            "themselves, small ones first, as far as the tokens go."
        )
        return (ResultTable("Words read on 3840x2160 from the pixels that were given", columns, lines, note, 0),)


def evaluate_small_text(
    settings: Settings,
    *,
    frames: int = 2,
    clips: int = 2,
    bands_px: Sequence[tuple[float, float]] = BANDS_PX,
    progress: Callable[[str], None] = lambda _: None,
) -> SmallTextReport:
    """With finer cells and without, asked for text and for nothing, and an oracle.

    Args:
        settings: Everything else; keyframes are made in step.
        frames: Frames of each clip; the last one is read.
        clips: Clips of each kind.
        bands_px: Heights of the small words.
        progress: Told what comes next.
    """
    grid = Grid.for_size(SIZE_WH, max_pixels=settings.grid.max_pixels)
    tokens = budget_tokens(settings.selection.budget, grid.cells)
    shares = {"with": settings.selection.fine_share, "without": 0.0}
    rows = []
    for band in bands_px:
        shown = [list(small_print(frames, small_px=band, seed=seed)) for seed in range(clips)]
        last = [clip[-1] for clip in shown]
        progress(f"words of {band[0]:g} to {band[1]:g} px")
        for asked in ("text", ""):
            for name, share in shares.items():
                of_share = settings.with_values({"selection.fine_share": share})
                chosen = [_chosen(clip, of_share, asked) for clip in shown]
                rows.append(_row(band, asked, f"{name} finer cells", last, chosen, grid))
        rows.append(_row(band, "", "oracle", last, [_oracle(frame, tokens, grid) for frame in last], grid))
    return SmallTextReport(tuple(rows))


def _row(
    small_px: tuple[float, float],
    asked: str,
    choice: str,
    shown: Sequence[SmallPrint],
    chosen: Sequence[Allocation],
    grid: Grid,
) -> SmallTextRow:
    reader = RapidOcrFinder(detect_side_px=grid.columns * _SIDE)
    small = large = 0
    for one, cells in zip(shown, chosen, strict=True):
        picture = Frame(one.frame.index, one.frame.pts_seconds, canvas(one.frame.rgb, grid, cells))
        regions = reader.find(KeyframeInput(picture, grid)).regions
        small, large = small + words_read(one.small, regions), large + words_read(one.large, regions)
    return SmallTextRow(
        small_px,
        asked,
        choice,
        float(np.mean([cells.tokens for cells in chosen])),
        float(np.mean([(cells.level == FINER).sum() for cells in chosen])),
        small,
        sum(len(one.small) for one in shown),
        large,
        sum(len(one.large) for one in shown),
    )


def canvas(rgb: ByteArray, grid: Grid, chosen: Allocation) -> ByteArray:
    """`[64 gh, 64 gw, 3]`: the pixels that were given, at their resolution, and grey elsewhere."""
    texture, spans = resized(rgb, grid.texture_wh), span_cells(chosen.level)
    shown = np.full((grid.rows * _SIDE, grid.columns * _SIDE, 3), _GREY, np.uint8)
    # Coarse cells first: where a finer look lies on one, it counts.
    for index in np.argsort(-chosen.level, kind="stable").tolist():
        row, column, span = (int(values[index]) for values in (chosen.rows, chosen.columns, spans))
        place = shown[row * _SIDE : (row + span) * _SIDE, column * _SIDE : (column + span) * _SIDE]
        if chosen.level[index] == FINER:
            place[...] = finer_pictures(rgb, grid, chosen.rows[index, None], chosen.columns[index, None])[0]
            continue
        block = texture[row * CELL_PX : (row + span) * CELL_PX, column * CELL_PX : (column + span) * CELL_PX]
        given = resized(block, (CELL_PX, CELL_PX))
        place[...] = cv2.resize(given, place.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    return shown


def words_read(words: Sequence[TruthWord], regions: Sequence[TextRegion]) -> int:
    """How many of the words a region at their place reads without error."""
    boxes = [(*_box(region.polygon_xy), region.text) for region in regions if region.text]
    return sum(
        any(
            (low < below).all() and (above < high).all() and word_similarity(text, word.text or "") == 1
            for low, high, text in boxes
        )
        for word in words
        for above, below in (_box(word.polygon_xy),)
    )


def _box(polygon_xy: Sequence[tuple[float, float]]) -> tuple[DoubleArray, DoubleArray]:
    corners = np.array(polygon_xy)
    return corners.min(axis=0), corners.max(axis=0)


def _chosen(clip: Sequence[SmallPrint], settings: Settings, asked: str) -> Allocation:
    """What the last frame of a clip gives."""
    queries = [parse_text(asked)] if asked else []
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)), queries)
    for shown in clip:
        patches = pipeline.step(shown.frame)
    return Allocation(patches.rows, patches.columns, patches.level, patches.score)


def _oracle(shown: SmallPrint, tokens: int, grid: Grid) -> Allocation:
    """Finer cells under the small words, then under the large ones, word by word, as far as the tokens go."""
    cells: dict[tuple[int, int], None] = {}
    for word in (*shown.small, *shown.large):
        above, below = (corner * (grid.columns, grid.rows) for corner in _box(word.polygon_xy))
        (left, top), (right, bottom) = np.floor(above).astype(int), np.ceil(below).astype(int)
        wanted = {(row, column): None for row in range(top, bottom) for column in range(left, right)} | cells
        if len(wanted) * FINER_TOKENS <= tokens:
            cells = wanted
    rows, columns = np.array(list(cells), np.int32).T
    return Allocation(rows, columns, np.full_like(rows, FINER), np.ones(len(rows), np.float32))
