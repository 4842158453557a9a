"""Colours of video: HDR and wide gamut beside an SDR twin of the same scene."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.video.reformatter import ColorPrimaries, ColorTrc

import arr_stream
from arr_stream.sources import open_source
from arr_stream.types import ByteArray
from tests.conftest import Run

Array = npt.NDArray[np.float64]

# Linear light from BT.709: to BT.2020 as in BT.2087, to Display P3 as in CSS Color 4.
TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])
TO_P3 = np.array([[0.8225, 0.1774, 0.0], [0.0332, 0.9669, 0.0], [0.0171, 0.0724, 0.9108]])
BT2020_LUMA, BT709_LUMA = np.array([0.2627, 0.6780, 0.0593]), np.array([0.2126, 0.7152, 0.0722])


def pq_signal(nits: Array) -> Array:
    """The inverse EOTF of BT.2100, table 4."""
    power = (nits / 10_000) ** (2610 / 16384)
    return np.asarray(((3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)) ** (2523 / 32))


def hlg_signal(nits: Array) -> Array:
    """The inverse OOTF for a peak of 1000 cd/m2 and the OETF of BT.2100, table 5."""
    display = nits / 1000
    luminance = np.maximum(display @ BT2020_LUMA, 1e-9)[..., None]
    scene = display * luminance ** (1 / 1.2 - 1)
    high = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    return np.asarray(np.where(scene <= 1 / 12, np.sqrt(3 * scene), high))


def sdr_signal(nits: Array) -> Array:
    return np.asarray((nits / 203) ** (1 / 2.4))


CODINGS: dict[str, tuple[Callable[[Array], Array], int, int, int, Array, Array]] = {
    # Curve, its tag, primaries, matrix, primaries from BT.709, and luma.
    "pq": (pq_signal, ColorTrc.SMPTE2084, ColorPrimaries.BT2020, 9, TO_BT2020, BT2020_LUMA),
    "hlg": (hlg_signal, ColorTrc.ARIB_STD_B67, ColorPrimaries.BT2020, 9, TO_BT2020, BT2020_LUMA),
    "bt2020": (sdr_signal, ColorTrc.BT2020_10, ColorPrimaries.BT2020, 9, TO_BT2020, BT2020_LUMA),
    "p3": (sdr_signal, ColorTrc.BT709, ColorPrimaries.SMPTE432, 1, TO_P3, BT709_LUMA),
    "sdr": (sdr_signal, ColorTrc.BT709, ColorPrimaries.BT709, 1, np.eye(3), BT709_LUMA),
}


def write_twin(
    path: Path, scene: ByteArray | Array, coding: str, *, count: int = 2, pix_fmt: str = "yuv420p10le"
) -> Path:
    """Write a scene `[H, W, 3]` of SDR, white of which is 203 cd/m2, in 10 bits of another coding."""
    curve, transfer, primaries, matrix, from_bt709, luma = CODINGS[coding]
    signal = curve((scene / 255) ** 2.4 @ from_bt709.T * 203)
    y = signal @ luma
    blue, red = ((signal[..., each] - y) / (2 * (1 - luma[each])) for each in (2, 0))
    height, width = y.shape
    picture = av.VideoFrame(width, height, "yuv444p10le")
    for plane, samples in zip(picture.planes, (y * 876 + 64, blue * 896 + 512, red * 896 + 512), strict=True):
        rows = np.zeros((height, plane.line_size // 2), np.uint16)
        rows[:, :width] = np.rint(samples)
        plane.update(rows.tobytes())
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=10, options={"crf": "1", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        context = stream.codec_context
        context.color_trc, context.color_primaries, context.colorspace, context.color_range = (
            transfer,
            primaries,
            matrix,
            1,
        )
        picture.colorspace, picture.color_range, picture.color_trc, picture.color_primaries = (
            matrix,
            1,
            transfer,
            primaries,
        )
        for index in range(count):
            picture.pts = index
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def circle(background: tuple[int, int, int] = (120, 130, 110)) -> ByteArray:
    """A red circle on a plain ground, with a bright and a dark patch."""
    scene = np.full((144, 192, 3), background, np.uint8)
    rows, columns = np.ogrid[:144, :192]
    scene[(rows - 72) ** 2 + (columns - 60) ** 2 < 40**2] = (200, 30, 30)
    scene[16:48, 130:180], scene[90:130, 130:180] = (235, 235, 230), (20, 30, 40)
    return scene


def first_frame(path: Path) -> ByteArray:
    with open_source(path) as source:
        return next(source.frames()).rgb


@pytest.mark.parametrize("coding", ["pq", "hlg", "bt2020", "p3"])
def test_a_twin_looks_like_the_scene(tmp_path: Path, coding: str) -> None:
    scene = circle()
    shown = first_frame(write_twin(tmp_path / "a.mp4", scene, coding))
    difference = np.abs(shown.astype(int) - scene)
    assert np.abs(shown.mean((0, 1)) - scene.mean((0, 1))).max() < 3
    # Chroma at half the size blurs edges.
    assert np.percentile(difference, 95) <= 5


@pytest.mark.parametrize("coding", ["pq", "hlg", "bt2020", "p3"])
@pytest.mark.parametrize("pix_fmt", ["yuv420p10le", "yuv422p10le", "yuv444p10le"])
def test_grey_is_exact_to_a_level(tmp_path: Path, coding: str, pix_fmt: str) -> None:
    """Up to 242, where the shoulder for highlights begins."""
    ramp = np.minimum(np.arange(256), 242).repeat(2)[None, :, None].repeat(16, 0).repeat(3, 2).astype(np.uint8)
    shown = first_frame(write_twin(tmp_path / "a.mp4", ramp, coding, pix_fmt=pix_fmt))
    assert shown.shape == ramp.shape
    assert np.abs(shown.astype(int) - ramp).max() <= 1
    assert (np.ptp(shown, axis=-1) == 0).all()


@pytest.mark.parametrize("coding", ["pq", "hlg"])
def test_highlights_keep_their_order_and_colour(tmp_path: Path, coding: str) -> None:
    """Lights of 1, 2 and 4 times diffuse white, grey above and orange below."""
    scene = np.zeros((32, 48, 3))
    for index, times in enumerate((1, 2, 4)):
        scene[:, index * 16 : (index + 1) * 16] = 255 * times ** (1 / 2.4)
    scene[16:] *= (1, 0.6, 0.3)
    shown = first_frame(write_twin(tmp_path / "a.mp4", scene, coding)).astype(int)
    grey, orange = shown[8, 8::16], shown[24, 8::16]
    assert 243 < grey[0, 0] < grey[1, 0] < grey[2, 0] <= 255
    assert np.ptp(grey, axis=1).max() <= 2
    np.testing.assert_allclose(orange / orange.max(axis=1, keepdims=True), [[1, 0.6, 0.3]] * 3, atol=0.03)


def test_sdr_of_ten_bits_is_what_ffmpeg_makes_of_it(tmp_path: Path) -> None:
    path = write_twin(tmp_path / "a.mp4", circle(), "sdr")
    with av.open(str(path)) as container:
        plain = next(container.decode(video=0)).to_ndarray(format="rgb24", threads=1)
    assert np.array_equal(first_frame(path), plain)


@pytest.mark.parametrize(
    ("coding", "transfer", "primaries", "done"),
    [
        ("hlg", "hlg", "bt2020", "tone-mapped to BT.709"),
        ("pq", "pq", "bt2020", "tone-mapped to BT.709"),
        ("p3", "bt709", "smpte432", "mapped to BT.709"),
        ("sdr", "bt709", "bt709", None),
    ],
)
def test_the_header_says_what_was_done(
    tmp_path: Path, run: Run, coding: str, transfer: str, primaries: str, done: str | None
) -> None:
    path, records = write_twin(tmp_path / "a.mp4", circle(), coding), tmp_path / "a.jsonl"
    run("process", path, "--patches", records)
    with records.open() as lines:
        colour = json.loads(next(lines))["provenance"]["source"]["colour"]
    assert (colour["transfer"], colour["primaries"], colour["done"]) == (transfer, primaries, done)
    assert colour["matrix"] == ("bt709" if coding in ("p3", "sdr") else "bt2020") and not colour["matrix_assumed"]


def write_untagged(path: Path, size_wh: tuple[int, int], matrix: str) -> tuple[Path, ByteArray]:
    """Write a plain colour with a matrix that the file does not name; also return the colour."""
    colour = np.array([200, 120, 30])
    luma = np.array({"bt601": [0.299, 0.587, 0.114], "bt709": [0.2126, 0.7152, 0.0722]}[matrix])
    y = colour @ luma / 255
    blue, red = ((colour[each] / 255 - y) / (2 * (1 - luma[each])) for each in (2, 0))
    width, height = size_wh
    picture = av.VideoFrame(width, height, "yuv420p")
    for plane, sample in zip(picture.planes, (y * 219 + 16, blue * 224 + 128, red * 224 + 128), strict=True):
        plane.update(bytes([round(sample)]) * plane.buffer_size)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=10, options={"crf": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path, colour.astype(np.uint8)


@pytest.mark.parametrize(
    ("size_wh", "matrix"),
    [((960, 720), "bt709"), ((720, 1280), "bt709"), ((1280, 536), "bt709"), ((720, 576), "bt601"), ((64, 48), "bt601")],
)
def test_without_a_matrix_hd_is_bt709(tmp_path: Path, size_wh: tuple[int, int], matrix: str) -> None:
    path, colour = write_untagged(tmp_path / "a.mp4", size_wh, matrix)
    with open_source(path) as source:
        np.testing.assert_allclose(next(source.frames()).rgb.mean((0, 1)), colour, atol=4)
    assert source.info.colour is not None
    assert (source.info.colour.matrix, source.info.colour.matrix_assumed) == (matrix, True)


@pytest.mark.parametrize(("size_wh", "matrix"), [((960, 720), "bt601"), ((64, 48), "bt709")])
def test_a_setting_names_the_matrix(tmp_path: Path, run: Run, size_wh: tuple[int, int], matrix: str) -> None:
    path, colour = write_untagged(tmp_path / "a.mp4", size_wh, matrix)
    override, records = f"source.untagged_matrix={matrix}", tmp_path / "a.jsonl"
    stream = arr_stream.open(path, settings=arr_stream.Settings.load(overrides=[override]))
    next(iter(stream))
    assert stream.frame is not None
    np.testing.assert_allclose(stream.frame.rgb.mean((0, 1)), colour, atol=4)
    run("process", path, "--patches", records, "--set", override)
    header = json.loads(records.read_text().partition("\n")[0])
    assert header["provenance"]["source"]["colour"]["matrix"] == matrix
    # Records are replayed as they were made.
    code, _, _ = run("replay", records)
    assert code == 0
