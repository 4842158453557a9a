"""Colour of decoded pictures: the matrix to decode them with, and HDR or wide gamut mapped to BT.709 in 8 bits.

The mapping is relative to a diffuse white of 203 cd/m2 (BT.2408), so that colours within SDR keep their values:

1. `Y'CbCr` to `R'G'B'` with the picture's own matrix.
2. To display light over 203 cd/m2: the PQ EOTF (BT.2100 table 4); or the inverse HLG OETF and the HLG OOTF for a peak
   of 1000 cd/m2, gamma 1.2 (BT.2100 table 5); or, for SDR, `E ** 2.4` (BT.1886).
3. To the primaries of BT.709; colours outside are clipped.
4. For HDR only, the highlights: `s`, the largest of R, G and B to the power of 1/2.4, stays up to 0.95 and approaches
   1.0 from there by Reinhard's extended curve (2002), which it meets at 1000 cd/m2. All three are scaled alike, which
   keeps the hue (BT.2390, section 5.4, on `max(RGB)`).
5. `E ** (1 / 2.4)`, in 255 steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from arr_stream.sources.base import Colour, Matrix
from arr_stream.types import ByteArray

_WHITE_NITS = 203.0
_PEAK_NITS = 1000.0
_GAMMA = 2.4
_KNEE = 0.95

_HDR = {int(ColorTrc.SMPTE2084): "pq", int(ColorTrc.ARIB_STD_B67): "hlg"}
_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593), "smpte240m": (0.212, 0.087)}
"""Shares of red and blue in luma, by matrix."""
_MATRICES = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 7: "smpte240m", 9: "bt2020", 10: "bt2020"}
"""Matrix by FFmpeg's `AVColorSpace`; FCC differs from BT.601 by less than a level."""
_Values = npt.NDArray[np.floating[Any]]
_P3 = ((1.224940, -0.224940, 0.0), (-0.042057, 1.042057, 0.0), (-0.019638, -0.078636, 1.098274))
_TO_BT709 = {
    "bt2020": ((1.660491, -0.587641, -0.072850), (-0.124550, 1.132900, -0.008349), (-0.018151, -0.100579, 1.118730)),
    "smpte431": _P3,
    "smpte432": _P3,
}
"""Matrices from linear RGB of the wide gamuts to that of BT.709; white is D65 (BT.2087 for BT.2020)."""

_PLANAR = {"nv12": "yuv420p", "nv16": "yuv422p", "p010le": "yuv420p10le"}
"""The same samples with each plane of chroma by itself."""


@lru_cache(maxsize=64)
def _colour(space: int, transfer: int, primaries: int, is_yuv: bool, untagged: str) -> Colour:
    is_hdr, gamut = transfer in _HDR, _name(ColorPrimaries, primaries)
    if is_hdr and gamut == "unspecified":
        gamut = "bt2020"
    mapped = is_hdr or gamut in _TO_BT709
    matrix = _MATRICES.get(space) if is_yuv else "rgb"
    return Colour(
        matrix=matrix or ("bt2020" if gamut == "bt2020" else untagged),
        matrix_assumed=matrix is None,
        transfer=_HDR.get(transfer) or _name(ColorTrc, transfer),
        primaries=gamut,
        done="tone-mapped to BT.709" if is_hdr else "mapped to BT.709" if mapped else None,
    )


def colour_of(picture: VideoFrame, untagged: Matrix = "auto") -> Colour:
    """Return a decoded picture's colour description and the conversion that `rgb_of` applies.

    Like players, `auto` takes a picture without a matrix for BT.709 if it is at least 1280 wide or 720 high, and for
    BT.601 if it is smaller.
    """
    if untagged == "auto":
        untagged = "bt709" if picture.width >= 1280 or picture.height >= 720 else "bt601"
    is_yuv = _is_yuv(picture.format)
    return _colour(picture.colorspace, picture.color_trc, picture.color_primaries, is_yuv, untagged)


def _is_yuv(layout: VideoFormat) -> bool:
    return len(layout.components) >= 3 and not layout.is_rgb and not layout.has_palette


def rgb_of(picture: VideoFrame, untagged: Matrix = "auto") -> ByteArray:
    """Return a decoded picture as `[H, W, 3]`, uint8, BT.709, on white if it is transparent.

    Args:
        picture: The decoded picture.
        untagged: The matrix of a picture that names none, see `colour_of`.

    Raises:
        FFmpegError, OSError, ValueError: FFmpeg cannot convert it.
    """
    colour = colour_of(picture, untagged)
    if not (picture.format.has_palette or any(component.is_alpha for component in picture.format.components)):
        return _opaque(picture, colour)
    rgba = _converted(picture, colour, "rgba")
    if colour.done is not None:
        rgba[..., :3] = _opaque(picture, colour)
    # Few videos are transparent, and Pillow takes time to import.
    from PIL import Image

    from arr_stream.sources.images import on_white

    return on_white(Image.fromarray(rgba))


def _opaque(picture: VideoFrame, colour: Colour) -> ByteArray:
    if colour.done is not None:
        return _map_picture(picture, colour)
    # swscale converts interleaved chroma, which cameras send, to different colours.
    planar = _PLANAR.get(picture.format.name)
    if planar is not None:
        picture = picture.reformat(format=planar, threads=1)
    return _converted(picture, colour, "rgb24")


def _converted(picture: VideoFrame, colour: Colour, layout: str) -> ByteArray:
    # FFmpeg's own assumption is BT.601.
    space = Colorspace.ITU709 if colour.matrix_assumed and colour.matrix == "bt709" else None
    # One thread: for pictures of usual size, swscale's own threads cost more than they save.
    return np.asarray(picture.to_ndarray(format=layout, src_colorspace=space, threads=1), dtype=np.uint8)


def _name(kinds: Any, value: int) -> str:
    """Return FFmpeg's name of a value, or the number if PyAV knows none."""
    return str(kinds(value).name).lower() if value in set(kinds) else str(value)


class _Tables(NamedTuple):
    """Mapping to full-range YCbCr of BT.709.

    Args:
        grey: `[65536]`, the luma in [0, 255], less 128, that grey of each 10-bit luma code becomes.
        colours: `[64 * 256, 2 * 256, 3]`: luma of a colour less that of grey, Cb, and Cr, each plus 128. Luma codes in
            steps of 16 and then Cr are the rows; in each, luma in two steps of 8 and then Cb. Both chroma codes are in
            steps of 4. One image, since OpenCV reads it fast, of fewer than 32768 rows, which is OpenCV's limit.
    """

    grey: npt.NDArray[np.int16]
    colours: ByteArray


@lru_cache(maxsize=2)
def _tables(transfer: str, primaries: str, matrix: str, full_range: bool) -> _Tables:
    def levels(luma: _Values, blue: _Values, red: _Values) -> _Values:
        y, cb, cr = (luma - 64) / 876, (blue - 512) / 896, (red - 512) / 896
        if full_range:
            y, cb, cr = luma / 1023, (blue - 512) / 1023, (red - 512) / 1023
        return _map_to_bt709(_rgb_signal(y, cb, cr, matrix), transfer, primaries)

    centre = np.full(1, 512, np.float32)
    nodes = np.arange(65, dtype=np.float32) * 16
    middles = np.arange(3.5, 1024, 8, dtype=np.float32)
    mapped = levels(middles[:, None, None], nodes, nodes[:, None])
    luma = mapped @ np.array([0.2126, 0.7152, 0.0722], np.float32)
    change = luma - levels(middles, centre, centre)[:, None, :1]
    blue, red = (mapped[..., 2] - luma) / 1.8556, (mapped[..., 0] - luma) / 1.5748
    coarse = np.rint(np.stack([change, blue, red], axis=-1) + 128).clip(0, 255).astype(np.uint8)
    places = np.arange(256, dtype=np.float32) / 4
    columns, rows = np.meshgrid(places, places)
    colours = np.empty((64, 256, 2, 256, 3), np.uint8)
    for step, values in enumerate(coarse):
        colours[step // 2, :, step % 2] = cv2.remap(values, columns, rows, cv2.INTER_LINEAR)
    grey = np.rint(levels(np.arange(1024, dtype=np.float32), centre, centre)[:, 0] - 128).astype(np.int16)
    return _Tables(np.pad(grey, (0, 65536 - 1024), mode="edge"), colours.reshape(64 * 256, 2 * 256, 3))


def _rgb_signal(y: _Values, cb: _Values, cr: _Values, matrix: str) -> _Values:
    weight_red, weight_blue = _WEIGHTS[matrix]
    red, blue = y + 2 * (1 - weight_red) * cr, y + 2 * (1 - weight_blue) * cb
    green = (y - weight_red * red - weight_blue * blue) / (1 - weight_red - weight_blue)
    return np.stack(np.broadcast_arrays(red, green, blue), axis=-1).clip(0.0, 1.0)


def _map_to_bt709(signal: _Values, transfer: str, primaries: str) -> _Values:
    """Return levels in [0, 255] of `[..., 3]` R'G'B' in [0, 1]; steps 2 to 5."""
    light = _light(signal, transfer)
    if primaries in _TO_BT709:
        light = light @ np.array(_TO_BT709[primaries], np.float32).T
    shown = np.maximum(light, 0.0) ** np.float32(1 / _GAMMA)
    if transfer in _HDR.values():
        largest = shown.max(axis=-1, keepdims=True)
        width = 1 - _KNEE
        over = np.maximum(largest - _KNEE, 0.0) / width
        most = ((_PEAK_NITS / _WHITE_NITS) ** (1 / _GAMMA) - _KNEE) / width
        kept = _KNEE + width * over * (1 + over / most**2) / (1 + over)
        shown *= np.where(over > 0, kept / np.maximum(largest, _KNEE), 1.0)
    return np.asarray(shown.clip(0.0, 1.0) * 255, dtype=np.float32)


def _light(signal: _Values, transfer: str) -> _Values:
    """Return light on the display; 1.0 is the diffuse white."""
    if transfer == "pq":
        root = signal ** (1 / 78.84375)
        share = (np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)) ** (1 / 0.1593017578125)
        return np.asarray(share * (10_000 / _WHITE_NITS))
    if transfer == "hlg":
        scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - 0.55991073) / 0.17883277) + 0.28466892) / 12)
        luminance = scene @ np.array([0.2627, 0.6780, 0.0593], np.float32)
        return np.asarray(scene * luminance[..., None] ** 0.2 * (_PEAK_NITS / _WHITE_NITS))
    return signal**_GAMMA


def _map_picture(picture: VideoFrame, colour: Colour) -> ByteArray:
    """Return a picture of HDR or wide gamut as BT.709, `[H, W, 3]`.

    A table for grey maps each pixel's luma. The colour's correction to luma, and chroma, are looked up once for each
    chroma sample, of which there are four times fewer in 4:2:0.

    Raises:
        FFmpegError, OSError, ValueError: FFmpeg cannot convert it.
    """
    layout = picture.format
    sampling = {(1, 1): "420", (1, 2): "422"}.get((layout.chroma_width(2), layout.chroma_height(2)), "444")
    # An RGB picture is converted to 4:4:4 with the matrix of BT.709, so the same matrix must decode it.
    matrix = "bt709" if colour.matrix == "rgb" else colour.matrix
    planar = picture.reformat(
        format=f"yuv{sampling}p10le",
        dst_colorspace=Colorspace.ITU709 if colour.matrix == "rgb" else None,
        threads=1,
    )
    full_range = planar.color_range == ColorRange.JPEG
    table = _tables(colour.transfer, colour.primaries, matrix, full_range)
    luma, blue, red = (_samples(plane, np.uint16) for plane in planar.planes)
    shared = cv2.resize(luma, blue.shape[::-1], interpolation=cv2.INTER_AREA)
    blue_step, red_step = (cv2.convertScaleAbs(plane, alpha=0.25) for plane in (blue, red))
    places = cv2.merge([((shared << 5) & 256) | blue_step, ((shared >> 4) << 8) | red_step]).view(np.int16)
    change, shown_blue, shown_red = cv2.split(cv2.remap(table.colours, places, None, cv2.INTER_NEAREST))
    change = cv2.resize(change.astype(np.int16), luma.shape[::-1], interpolation=cv2.INTER_LINEAR)
    shown = VideoFrame(picture.width, picture.height, f"yuv{sampling}p")
    shown.colorspace, shown.color_range = Colorspace.ITU709, ColorRange.JPEG
    planes = [_samples(plane, np.uint8) for plane in shown.planes]
    cv2.add(cv2.LUT(luma, table.grey), change, dst=planes[0], dtype=cv2.CV_8U)
    planes[1][:], planes[2][:] = shown_blue, shown_red
    return np.asarray(shown.to_ndarray(format="rgb24", threads=1))


def _samples(plane: Any, kind: type[Any]) -> npt.NDArray[Any]:
    """Return a view of a `VideoPlane`."""
    rows: npt.NDArray[Any] = np.frombuffer(plane, kind)
    return rows.reshape(plane.height, -1)[:, : plane.width]
