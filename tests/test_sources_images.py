"""Pictures as frames."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_stream.errors import (
    NoImages,
    NotAMediaFile,
    NoVideoStream,
    SourceDamaged,
    SourceTooLarge,
)
from arr_stream.sources import open_source
from arr_stream.sources.images import read_picture
from arr_stream.sources.locate import natural_key
from tests.media import moving_frames, quadrants, write_images, write_video


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".webp", ".bmp", ".tiff", ".tif", ".ppm"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    picture = quadrants((48, 32))
    path = tmp_path / f"a{suffix}"
    Image.fromarray(picture).save(path, **({"quality": 95} if suffix in {".jpg", ".JPEG", ".webp"} else {}))
    rgb = read_picture(path)
    assert rgb.flags.c_contiguous and rgb.dtype == np.uint8
    assert np.abs(rgb.astype(int) - picture).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, orientation: int) -> None:
    upright = quadrants((48, 32))
    transposed = upright.swapaxes(0, 1)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: transposed,
        6: np.rot90(upright, 1),
        7: transposed[::-1, ::-1],
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, quality=95, subsampling=0)
    rgb = read_picture(path)
    assert rgb.shape == upright.shape
    assert np.abs(rgb.astype(int) - upright).mean() < 3


def test_16_bit_grey_keeps_its_range(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(8, 0)
    path = tmp_path / "a.png"
    Image.fromarray(ramp).save(path)
    rgb = read_picture(path)
    assert np.abs(rgb[0, :, 1].astype(int) - np.arange(256)).max() <= 1


def write_png(path: Path, side: int, depth: int, pixels: bytes) -> Path:
    """A square picture of this many pixels a side, as its header says."""
    header = struct.pack(">IIBBBBB", side, side, depth, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def test_16_bit_colour(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + struct.pack(">3H", 65535, 32768, 0) * 4 for _ in range(4))
    path = write_png(tmp_path / "a.png", 4, 16, zlib.compress(rows))
    np.testing.assert_allclose(read_picture(path)[2, 2].astype(int), [255, 128, 0], atol=1)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I", "F"])
def test_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    grey = Image.fromarray(np.full((4, 6), 255, np.uint8))
    picture = grey.convert(mode)
    if mode == "I":
        picture = Image.fromarray(np.full((4, 6), 65535, np.int32))
    if mode == "F":
        picture = Image.fromarray(np.ones((4, 6), np.float32))
    path = tmp_path / ("a.tif" if mode in {"CMYK", "YCbCr", "I", "F"} else "a.png")
    picture.save(path)
    rgb = read_picture(path)
    assert rgb.shape == (4, 6, 3)
    assert rgb.min() > 250


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    pixels = np.zeros((2, 3, 4), np.uint8)
    pixels[:, 1] = (255, 0, 0, 128)
    pixels[:, 2] = (0, 0, 255, 255)
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    np.testing.assert_allclose(read_picture(path)[0].astype(int), [[255] * 3, [255, 127, 127], [0, 0, 255]], atol=1)
    palette = Image.fromarray(np.array([[0, 1]], np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.save(path, transparency=0)
    assert read_picture(path)[0].tolist() == [[255, 255, 255], [40, 50, 60]]


def test_size_is_checked_before_decoding(tmp_path: Path) -> None:
    """A header that claims 60000x60000 pixels, with no pixels behind it."""
    with pytest.raises(SourceTooLarge):
        open_source(write_png(tmp_path / "bomb.png", 60_000, 8, b""))
    # No setting of ours helps against Pillow's own limit.
    with pytest.raises(SourceTooLarge, match="Pillow opens") as refused:
        open_source(write_png(tmp_path / "bomb.png", 60_000, 8, b""), max_pixels=10**10)
    assert "max_pixels" not in refused.value.remedy


@pytest.mark.filterwarnings("error")
def test_a_large_picture_within_the_limit_gives_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(quadrants((12, 12))).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read_picture(path, max_pixels=144).shape == (12, 12, 3)


def test_natural_order(tmp_path: Path) -> None:
    names = ["b1.png", "a10.png", "a2.png", "a2b.png", "a02.png", "10.png", "9.png", "A3.png"]
    ordered = [path.name for path in sorted((tmp_path / name for name in names), key=natural_key)]
    assert ordered == ["9.png", "10.png", "A3.png", "a02.png", "a2.png", "a2b.png", "a10.png", "b1.png"]


def test_other_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "pictures", moving_frames(3))
    (folder / "notes.txt").write_text("x")
    (folder / ".hidden.png").write_text("x")
    (folder / "sub.png").mkdir()
    with open_source(folder) as source:
        assert source.info.kind == "images"
        assert source.info.path == folder
        assert len(list(source.frames())) == 3


@pytest.mark.parametrize("content", ["empty", "video", "missing", "glob", "globbed video"])
def test_no_images(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    if "video" in content:
        write_video(folder / "a.mp4", moving_frames(1))
    spec = f"{folder}/*" if "glob" in content else str(folder)
    if content == "missing":
        spec = f"{folder}/frame?.png"
    with pytest.raises(NoImages):
        open_source(spec)


@pytest.mark.parametrize("broken", [1, 3])
@pytest.mark.parametrize("how", ["cut", "garbage", "empty"])
def test_an_unreadable_picture_is_damage(tmp_path: Path, broken: int, how: str) -> None:
    folder = write_images(tmp_path / "pictures", moving_frames(5), suffix=".jpg")
    path = folder / f"frame{broken}.jpg"
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "garbage": b"garbage" * 99, "empty": b""}[how])
    read = []
    with pytest.raises(SourceDamaged, match=f"frame{broken}.jpg") as caught, open_source(folder) as source:
        for frame in source.frames():
            read.append(frame)
    assert caught.value.frames_read == len(read) == broken - 1


def test_one_picture(tmp_path: Path) -> None:
    path = tmp_path / "frame[1].png"
    Image.fromarray(quadrants((8, 6))).save(path)
    with open_source(path) as source:
        assert [frame.size_wh for frame in source.frames()] == [(8, 6)]
    path.write_bytes(b"no picture")
    with pytest.raises(NotAMediaFile):
        open_source(path)


def test_pictures_of_different_sizes_are_delivered_as_they_are(tmp_path: Path) -> None:
    write_images(tmp_path, [quadrants((8, 6)), quadrants((10, 4))])
    with open_source(tmp_path) as source:
        assert [frame.size_wh for frame in source.frames()] == [(8, 6), (10, 4)]


def test_pictures_have_no_streams(tmp_path: Path) -> None:
    write_images(tmp_path, [quadrants((8, 6))])
    with pytest.raises(NoVideoStream):
        open_source(tmp_path, video_stream=1)


def test_pictures_that_run_programs_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(NotAMediaFile, match="not a picture"):
        open_source(path)
