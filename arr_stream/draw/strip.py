"""Strip at the foot of an annotated picture: tokens, keyframe, confidence, latency, memory, and the queries."""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.consumer import total_ms
from arr_stream.draw import typeface
from arr_stream.draw.typeface import ACCENT, ALARM, GREY, WHITE, Colour, Piece
from arr_stream.patch_set import Feeding, PatchSet
from arr_stream.plain_text import one_line
from arr_stream.types import ByteArray

MIN_HEIGHT_PX = 160
"""Least height of a picture with a strip, which would hide too much of a smaller one."""

_GLOW_FRAMES = 12


@dataclass(frozen=True, slots=True)
class _Detail:
    """Level of detail of the text."""

    tokens: str
    keyframe: str
    reason: bool
    confidence: str
    gap: float


_DETAILS = (
    _Detail("tokens", "keyframe", True, "confidence", 1.4),
    _Detail("tokens", "", True, "conf", 1.0),
    _Detail("", "", False, "conf", 0.8),
    _Detail("", "", False, "", 0.5),
)
"""Levels of detail, from most to least; the first that fits is drawn."""


class Strip:
    """Strip that keeps the last keyframe's reason and the model's memory from frame to frame.

    Args:
        asked: The queries, shown at the right if there is room; None without any.
    """

    def __init__(self, asked: str | None = None) -> None:
        self._asked = one_line(asked)
        self._reason: str | None = None
        self._feeding: Feeding | None = None

    def draw(self, picture: ByteArray, patches: PatchSet) -> None:
        """Write onto the foot of `picture` `[H, W, 3]`, in place."""
        if patches.keyframe:
            self._reason = patches.refresh_reason
        self._feeding = patches.feeding or self._feeding
        height, width = picture.shape[:2]
        size = font_px(width, height)
        if not size:
            return
        band = picture[height - band_px(size) :]
        typeface.shade(band)
        left = round(size * 0.7)
        y = (band.shape[0] - typeface.mask("0", size).shape[0]) // 2
        pieces: list[Piece] = []
        for detail in _DETAILS:
            pieces = self._pieces(patches, detail)
            if left * 2 + _width(pieces, size) <= width:
                break
        for memory in self._memory(detail.gap):
            if left * 2 + _width(pieces + memory, size) <= width:
                pieces += memory
                break
        x = typeface.draw_line(band, pieces, (left, y), size)
        self._draw_asked(band, size, x + round(size * 1.5), y)

    def _pieces(self, patches: PatchSet, detail: _Detail) -> list[Piece]:
        age = patches.keyframe_age
        glow = _mix(GREY, ACCENT, 1.0 if patches.keyframe else max(0.0, 1.0 - age / _GLOW_FRAMES))
        confidence = max(0.0, min(1.0, patches.confidence))
        # Before anything is carried there is no confidence to show.
        told = "–" if patches.keyframe_index is None else f"{confidence:.2f}"
        trust = GREY if patches.keyframe_index is None else _trust_colour(confidence)
        pieces = [
            Piece(f"{patches.tokens}", WHITE, True, 0.0),
            Piece(f"/{patches.grid.cells}", GREY, gap=0.0),
            Piece(detail.tokens, GREY),
            Piece("◆", glow, gap=detail.gap),
            Piece(detail.keyframe, GREY),
            Piece(f"+{age}", WHITE, True, 0.35),
            Piece((self._reason or "") if detail.reason else "", glow),
            Piece(detail.confidence, GREY, gap=detail.gap),
            Piece(told, trust, True, 0.35 if detail.confidence else detail.gap),
        ]
        if patches.latency_ms:
            pieces += [
                Piece(f"{total_ms(patches.latency_ms):.1f}", WHITE, True, detail.gap),
                Piece("ms", GREY, gap=0.25),
            ]
        return [piece for piece in pieces if piece.text]

    def _memory(self, gap: float) -> list[list[Piece]]:
        """Return the tokens that the model holds, longest form first; empty if no model watches."""
        if self._feeding is None:
            return []
        colour = ALARM if self._feeding.error else ACCENT if self._feeding.rebuilt else WHITE
        tokens = Piece(f"{self._feeding.memory_tokens}", colour, True)
        return [[Piece(label, GREY, gap=gap), tokens] for label in ("memory", "mem")]

    def _draw_asked(self, band: ByteArray, size: int, start: int, y: int) -> None:
        if not self._asked:
            return
        room = band.shape[1] - round(size * 0.7) - start
        text = typeface.fitted(self._asked, size, room)
        typeface.draw(band, text, (band.shape[1] - round(size * 0.7) - typeface.width_px(text, size), y), size, ACCENT)


def font_px(width: int, height: int) -> int:
    """Return the font size for a picture of this size, 0 if no readable text fits."""
    if height < MIN_HEIGHT_PX or width < MIN_HEIGHT_PX:
        return 0
    return max(11, min(round(height * 0.0245), round(width / 40)))


def band_px(size_px: int) -> int:
    """Return the height of the strip for a font size."""
    return round(size_px * 1.85)


def _width(pieces: list[Piece], size: int) -> int:
    return sum(round(piece.gap * size) + typeface.width_px(piece.text, size, piece.bold) for piece in pieces)


def _mix(low: Colour, high: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _trust_colour(confidence: float) -> Colour:
    """Return a colour from red through amber to white, so that low confidence stands out."""
    warn, alarm = ACCENT, ALARM
    if confidence >= 0.5:
        return _mix(warn, WHITE, (confidence - 0.5) * 2)
    return _mix(alarm, warn, confidence * 2)
