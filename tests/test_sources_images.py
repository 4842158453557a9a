"""Pictures as frames."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from arr_stream.errors import NoImages, NotAMediaFile, SourceDamaged, SourceTooLarge
from arr_stream.sources import open_source
from arr_stream.sources.images import read_picture
from arr_stream.sources.locate import natural_key
from tests.conftest import Run
from tests.media import moving_frames, quadrants, write_images, write_video


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".webp", ".avif", ".bmp", ".tiff", ".tif", ".ppm"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    picture = quadrants((48, 32))
    path = tmp_path / f"a{suffix}"
    Image.fromarray(picture).save(path, **({"quality": 95} if suffix in {".jpg", ".JPEG", ".webp", ".avif"} else {}))
    rgb = read_picture(path)
    assert rgb.flags.c_contiguous and rgb.dtype == np.uint8
    assert np.abs(rgb.astype(int) - picture).mean() < 4


def icc_profile(*primaries_d50: tuple[float, float, float]) -> bytes:
    """A profile of ICC.1:2001 with these primaries in CIE XYZ and the curve of sRGB in 1024 steps."""
    signal = np.linspace(0, 1, 1024)
    light = np.where(signal <= 0.04045, signal / 12.92, ((signal + 0.055) / 1.055) ** 2.4)
    curve = b"curv" + bytes(4) + struct.pack(">I1024H", 1024, *np.rint(light * 65535).astype(int))

    def xyz(*values: float) -> bytes:
        return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(value * 65536) for value in values))

    name = b"test\0"
    tags = {b"desc": b"desc" + bytes(4) + struct.pack(">I", len(name)) + name + bytes(4 + 4 + 2 + 1 + 67)}
    tags |= {b"cprt": b"text" + bytes(4) + name, b"wtpt": xyz(0.9642, 1.0, 0.8249)}
    tags |= {kind + b"XYZ": xyz(*place) for kind, place in zip((b"r", b"g", b"b"), primaries_d50, strict=True)}
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    place, table, content = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for tag, value in tags.items():
        table += tag + struct.pack(">2I", place + len(content), len(value))
        content += value + bytes(-len(value) % 4)
    head = struct.pack(
        ">I4sI4s4s4s12x4s", place + len(content), bytes(4), 0x02400000, b"mntr", b"RGB ", b"XYZ ", b"acsp"
    )
    return head.ljust(68, b"\0") + struct.pack(">3i", 0xF6D6, 0x10000, 0xD32D) + bytes(48) + table + content


SRGB = icc_profile((0.4360, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7139))
DISPLAY_P3 = icc_profile((0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_a_wider_gamut_becomes_srgb(tmp_path: Path, name: str) -> None:
    # The same colours as values of Display P3; from the matrices in CSS Color 4.
    colours = {(200, 30, 30): (184, 50, 41), (40, 180, 60): (88, 177, 77), (128, 128, 128): (128, 128, 128)}
    for srgb, p3 in colours.items():
        picture = Image.new("RGB", (32, 32), p3)
        picture.save(tmp_path / name, icc_profile=DISPLAY_P3, quality=100)
        np.testing.assert_allclose(read_picture(tmp_path / name).mean((0, 1)), srgb, atol=4)
        for untouched in (SRGB, ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(), b"no profile"):
            picture.save(tmp_path / name, icc_profile=untouched, quality=100)
            plain = read_picture(tmp_path / name)
            picture.save(tmp_path / name, quality=100)
            np.testing.assert_array_equal(plain, read_picture(tmp_path / name))


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


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("broken", [1, 3])
@pytest.mark.parametrize("how", ["cut", "garbage", "empty"])
def test_an_unreadable_picture_is_skipped_and_named(tmp_path: Path, broken: int, how: str, stop: bool) -> None:
    folder = write_images(tmp_path / "pictures", moving_frames(5), suffix=".jpg")
    path = folder / f"frame{broken}.jpg"
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 2], "garbage": b"garbage" * 99, "empty": b""}[how])
    if stop and broken == 1:
        with pytest.raises(NotAMediaFile, match=r"frame1\.jpg"):
            open_source(folder, stop_at_damage=True)
        return
    read = []
    with (
        pytest.raises(SourceDamaged, match=rf"pictures were read, 1 cannot be: .*frame{broken}\.jpg"),
        open_source(folder, stop_at_damage=stop) as source,
    ):
        for frame in source.frames():
            read.append(frame)
    assert len(read) == (broken - 1 if stop else 4)
    expected = [at / 30 for at in range(5) if at != broken - 1]
    assert [frame.pts_seconds for frame in read] == pytest.approx(expected[: len(read)])
    assert [frame.index for frame in read] == list(range(len(read)))


def test_a_folder_of_unreadable_pictures_is_refused(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(NotAMediaFile, match=r"a\.png"):
        open_source(tmp_path)


def test_pictures_of_different_sizes_are_delivered_as_they_are(tmp_path: Path) -> None:
    write_images(tmp_path, [quadrants((8, 6)), quadrants((10, 4))])
    with open_source(tmp_path) as source:
        assert [frame.size_wh for frame in source.frames()] == [(8, 6), (10, 4)]


def test_pictures_that_run_programs_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(NotAMediaFile, match="not a picture"):
        open_source(path)


def colours(count: int) -> list[Image.Image]:
    """Plain pictures, each of another red."""
    return [Image.fromarray(np.full((32, 48, 3), (40 * index, 30, 90), np.uint8)) for index in range(count)]


def reds(spec: Path, **wish: float) -> list[tuple[float, int]]:
    """The time of each frame, and how red it is in steps of 40."""
    with open_source(spec, **wish) as source:  # type: ignore[arg-type]
        return [(round(frame.pts_seconds, 3), round(frame.rgb[..., 0].mean() / 40)) for frame in source.frames()]


@pytest.mark.parametrize(
    ("name", "kind"), [("a.webp", "WEBP"), ("a.png", "PNG"), ("a.avif", "AVIF"), ("a.jpg", "WEBP"), ("a.webp", "GIF")]
)
def test_an_animation_gives_all_its_frames_whatever_it_is_called(tmp_path: Path, name: str, kind: str) -> None:
    first, *others = colours(4)
    # AVIF has one length for all here, as a track of video has a clock.
    durations = [100, 200, 100, 300] if kind != "AVIF" else 100
    first.save(tmp_path / name, kind, save_all=True, append_images=others, duration=durations)
    times = [0.0, 0.1, 0.3, 0.4] if kind != "AVIF" else [0.0, 0.1, 0.2, 0.3]
    assert reds(tmp_path / name) == list(zip(times, range(4), strict=True))
    assert (
        reds(tmp_path / name, start_seconds=0.1, end_seconds=times[3]) == list(zip(times, range(4), strict=True))[1:3]
    )
    with open_source(tmp_path / name) as source:
        assert source.info.kind == "animation"


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_pages_before_a_cut_are_kept(tmp_path: Path) -> None:
    first, *others = (Image.fromarray(frame) for frame in moving_frames(6))
    path = tmp_path / "a.tif"
    first.save(path, save_all=True, append_images=others)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    read = []
    with pytest.raises(SourceDamaged), open_source(path) as source:
        for frame in source.frames():
            read.append(frame)
    assert len(read) in (3, 4)


@pytest.mark.parametrize(("name", "kind"), [("a.png", "JPEG"), ("a.mp4", "PNG"), ("a", "WEBP"), ("a.gif", "AVIF")])
def test_the_content_of_a_picture_decides(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    Image.fromarray(quadrants((48, 32))).save(path, kind, quality=95)
    with open_source(path) as source:
        assert source.info.kind == "images"
        (frame,) = source.frames()
    assert np.abs(frame.rgb.astype(int) - quadrants((48, 32))).mean() < 4


def test_a_video_named_like_a_picture_is_a_video(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", moving_frames(5)).rename(tmp_path / "a.png")
    with open_source(tmp_path / "a.png") as source:
        assert source.info.kind == "file"
        assert len(list(source.frames())) == 5


def test_a_folder_names_what_it_leaves_out(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    folder = write_images(tmp_path / "pictures", moving_frames(2))
    first, *others = colours(3)
    first.save(folder / "still.avif")
    first.save(folder / "moves.webp", save_all=True, append_images=others, duration=100)
    first.save(folder / "moves.gif", save_all=True, append_images=others, duration=100)
    first.save(folder / "moves.png", save_all=True, append_images=others, duration=100)
    (folder / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    write_video(folder / "clip.mp4", moving_frames(2))
    (folder / "notes.txt").write_text("x")
    left_out = ("a.heic (needs arr-stream[heif])", "clip.mp4", "moves.gif", "moves.png", "moves.webp", "notes.txt")
    for spec in (folder, tmp_path / "pictures" / "*"):
        with open_source(spec) as source:
            assert len(list(source.frames())) == 3
            assert source.info.left_out == left_out
    _, _, told = run("process", folder, "--patches", tmp_path / "a.jsonl")
    assert "(6): a.heic (needs arr-stream[heif]), clip.mp4, moves.gif" in " ".join(told.split())
