"""Files that are cut short, overwritten in places, or recorded with losses are never taken for whole."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import pytest
from av.packet import Packet

from arr_stream.errors import NoFrames, NotAMediaFile, SourceDamaged
from arr_stream.sources import open_source
from arr_stream.types import Frame
from tests.conftest import Run
from tests.media import moving_frames, write_video

COUNT = 90
CONTAINERS = ("mkv", "webm", "flv", "mp4", "ts", "avi")
CODECS = {"webm": "libvpx-vp9", "avi": "mpeg4"}
_TS_PACKET = 188


def clip(folder: Path, ending: str, *, count: int = COUNT, audio: bool = False) -> Path:
    """A clip with a keyframe every 30 frames and, in H.264, B-frames."""
    codec = CODECS.get(ending, "libx264")
    options = {"g": "30"} | ({"bf": "2", "preset": "ultrafast"} if codec == "libx264" else {"b": "800k"})
    if codec == "libvpx-vp9":
        options |= {"cpu-used": "8"}
    front = {"movflags": "faststart"} if ending == "mp4" else None
    path = folder / f"clip.{ending}"
    return write_video(path, moving_frames(count), codec=codec, audio=audio, options=options, container_options=front)


def read(path: Path, **wish: object) -> tuple[list[Frame], str]:
    """All frames, and the error at the end, empty for a sound file."""
    frames: list[Frame] = []
    with open_source(path, **wish) as source:  # type: ignore[arg-type]
        try:
            frames.extend(source.frames())
        except SourceDamaged as exc:
            return frames, str(exc)
    return frames, ""


def decoded_plainly(path: Path) -> int:
    """Return the number of frames that PyAV decodes when errors are skipped."""
    count = 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            try:
                count += len(packet.decode())
            except av.error.FFmpegError:
                continue
    return count


def remuxed(source: Path, target: Path, change: Callable[[int, Packet[Any]], bytes | None]) -> Path:
    """The same packets in a new container; `change` gives the content of each, or None to leave it as it is."""
    with av.open(str(source)) as one, av.open(str(target), "w") as other:
        stream = other.add_stream_from_template(one.streams.video[0])
        for index, packet in enumerate(each for each in one.demux(video=0) if each.size):
            content = change(index, packet)
            if content is not None:
                new: Packet[Any] = Packet(content)
                new.pts, new.dts, new.time_base = packet.pts, packet.dts, packet.time_base
                new.duration, new.is_keyframe = packet.duration, packet.is_keyframe
            else:
                new = packet
            new.stream = stream
            other.mux(new)
    return target


def destroyed(index: int, packet: Packet[Any], *, every: int, first: int) -> bytes | None:
    """One packet of so many without a sound byte."""
    return b"\xff" * packet.size if index % every == first else None


@pytest.mark.parametrize("ending", CONTAINERS)
def test_a_file_cut_short_is_never_taken_for_whole(tmp_path: Path, ending: str) -> None:
    whole = clip(tmp_path, ending, audio=ending != "webm")
    assert read(whole)[1] == "" and len(read(whole)[0]) == COUNT
    content, cut = whole.read_bytes(), tmp_path / f"cut.{ending}"
    for tenth in range(1, 11):
        cut.write_bytes(content[: len(content) * (2 * tenth - 1) // 20 + tenth])
        try:
            frames, error = read(cut)
        except (NotAMediaFile, NoFrames):
            assert tenth == 1
            continue
        assert error, f"cut at {tenth}"
        assert len(frames) >= decoded_plainly(cut), f"cut at {tenth}"


@pytest.mark.parametrize("ending", ["mkv", "flv", "mp4", "avi", "webm"])
@pytest.mark.parametrize(("first", "every"), [(0, 60), (17, 30), (29, 30)])
def test_one_packet_of_thirty_destroyed(tmp_path: Path, ending: str, first: int, every: int) -> None:
    whole = clip(tmp_path, ending)
    times = [frame.pts_seconds for frame in read(whole)[0]]
    broken = remuxed(whole, tmp_path / f"broken.{ending}", lambda n, p: destroyed(n, p, every=every, first=first))
    with open_source(broken) as source, pytest.raises(SourceDamaged) as caught:
        list(source.frames())
    assert source.stats.lost_frames >= COUNT - source.stats.frames > 0
    assert f"{source.stats.lost_frames} frame" in str(caught.value)
    frames, _ = read(broken)
    assert len(frames) >= decoded_plainly(broken)
    # Whatever is left has the times of the file, though its beginning may be lost.
    assert all(min(abs(frame.pts_seconds - each) for each in times) < 0.002 for frame in frames)
    assert frames[-1].pts_seconds >= times[-4] - 0.002


def test_a_lost_first_keyframe_leaves_the_times_as_they_are(tmp_path: Path) -> None:
    whole = clip(tmp_path, "mkv")
    broken = remuxed(whole, tmp_path / "broken.mkv", lambda n, p: b"\xff" * p.size if n == 0 else None)
    frames, error = read(broken)
    assert len(frames) == COUNT - 30 and "30 frames were lost" in error
    np.testing.assert_allclose([frame.pts_seconds for frame in frames], np.arange(30, COUNT) / 30, atol=2e-3)
    frames, _ = read(broken, start_seconds=2.0)
    np.testing.assert_allclose([frame.pts_seconds for frame in frames], np.arange(60, COUNT) / 30, atol=2e-3)


def test_lost_packets_of_a_transport_stream_are_marked_until_the_next_keyframe(tmp_path: Path) -> None:
    whole = clip(tmp_path, "ts")
    originals, _ = read(whole)
    content = whole.read_bytes()
    with av.open(str(whole)) as container:
        place = [packet.pos or 0 for packet in container.demux(video=0) if packet.size][40]
    lost = tmp_path / "lost.ts"
    lost.write_bytes(content[:place] + content[place + _TS_PACKET :])
    frames, error = read(lost)
    assert "unreliable" in error
    by_time = {round(frame.pts_seconds, 3): frame for frame in originals}
    for frame in frames:
        original = by_time[round(frame.pts_seconds, 3)]
        difference = np.abs(frame.rgb.astype(int) - original.rgb).max()
        assert frame.damaged or difference == 0, original.index
        assert not frame.damaged or 36 <= original.index < 60


@pytest.mark.parametrize("seed", range(3))
def test_three_percent_of_packets_lost(tmp_path: Path, seed: int) -> None:
    content = clip(tmp_path, "ts").read_bytes()
    packets = [content[start : start + _TS_PACKET] for start in range(0, len(content), _TS_PACKET)]
    chance, lossy = random.Random(seed), tmp_path / "lossy.ts"
    lossy.write_bytes(b"".join(each for n, each in enumerate(packets) if n < 4 or chance.random() > 0.03))
    frames, error = read(lossy)
    assert error and any(frame.damaged for frame in frames)
    assert len(frames) >= decoded_plainly(lossy)


def test_records_mark_damaged_frames_and_the_end_counts_them(run: Run, tmp_path: Path) -> None:
    broken = remuxed(clip(tmp_path, "mp4"), tmp_path / "b.mkv", lambda n, p: b"\xff" * p.size if n == 40 else None)
    records = tmp_path / "out.jsonl"
    fast = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid")
    code, _, err = run("process", broken, "--patches", records, *fast)
    assert code == 15 and "1 frame was lost" in err
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    damaged = [line["index"] for line in lines if line.get("damaged")]
    assert lines[-1]["reason"] == "damaged" and len(lines) == 1 + COUNT - 1 + 1
    assert damaged and min(damaged) >= 36 and max(damaged) < 60
    assert f"{len(damaged)} frames were unreliable" in lines[-1]["error"]
    # The batch says the same of it.
    for _ in range(2):
        code, out, err = run("batch", broken, "-o", tmp_path / "batch", "--jobs", 1, *fast)
        assert code == 15 and "1 of 1 file is damaged" in err, err
        assert "1 frame was lost" in (tmp_path / "batch" / "summary.json").read_text(), out


class TestSoundTwins:
    """Sound files with signs of damage."""

    @pytest.mark.parametrize("ending", CONTAINERS)
    @pytest.mark.parametrize("wish", [{"end_seconds": 1.5}, {"max_frames": 40}, {"start_seconds": 1.5}])
    def test_a_part_of_a_file(self, tmp_path: Path, ending: str, wish: dict[str, float]) -> None:
        assert read(clip(tmp_path, ending), **wish)[1] == ""

    @pytest.mark.parametrize("ending", ["mkv", "flv", "mp4", "ts", "avi", "mov"])
    def test_sound_that_is_longer_than_the_pictures(self, tmp_path: Path, ending: str) -> None:
        path, samples = tmp_path / f"a.{ending}", np.zeros((1, 1024), np.float32)
        with av.open(str(path), "w") as container:
            video = container.add_stream("libx264" if ending != "avi" else "mpeg4", rate=30)
            video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
            tone = container.add_stream("aac", rate=44_100, layout="mono")
            for index, pixels in enumerate(moving_frames(30)):
                picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                picture.pts, picture.time_base = index, Fraction(1, 30)
                container.mux(video.encode(picture))
            for start in range(0, 4 * 44_100, 1024):
                block = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
                block.sample_rate, block.pts, block.time_base = 44_100, start, Fraction(1, 44_100)
                container.mux(tone.encode(block))
            container.mux(video.encode(None))
            container.mux(tone.encode(None))
        frames, error = read(path)
        assert (len(frames), error) == (30, "")

    @pytest.mark.parametrize(
        ("ending", "options"),
        [("mkv", {"live": "1"}), ("webm", {"live": "1"}), ("flv", {"flvflags": "no_duration_filesize"}),
         ("mp4", {"movflags": "frag_keyframe+empty_moov"}), ("mp4", {"movflags": "dash+global_sidx"})],
    )  # fmt: skip
    def test_live_recordings_without_a_duration(self, tmp_path: Path, ending: str, options: dict[str, str]) -> None:
        path = tmp_path / f"live.{ending}"
        codec = CODECS.get(ending, "libx264")
        write_video(path, moving_frames(40), codec=codec, container_options=options, options={"g": "10"})
        frames, error = read(path)
        assert (len(frames), error) == (40, "")

    @pytest.mark.parametrize("counts", [(25, 25), (31, 17, 23)])
    def test_joined_recordings(self, tmp_path: Path, counts: tuple[int, ...]) -> None:
        joined = tmp_path / "joined.ts"
        parts = [clip(tmp_path, "ts", count=count, audio=True).read_bytes() for count in counts]
        joined.write_bytes(b"".join(parts))
        frames, error = read(joined)
        assert (len(frames), error) == (sum(counts), "") and not any(frame.damaged for frame in frames)

    def test_a_recording_that_begins_between_keyframes(self, tmp_path: Path) -> None:
        whole = clip(tmp_path, "ts")
        with av.open(str(whole)) as container:
            places = [packet.pos or 0 for packet in container.demux(video=0) if packet.size]
        content, tail = whole.read_bytes(), tmp_path / "tail.ts"
        tail.write_bytes(content[: 4 * _TS_PACKET] + content[places[20] // _TS_PACKET * _TS_PACKET :])
        frames, error = read(tail)
        assert (len(frames), error) == (COUNT - 30, "")

    def test_a_trim_by_an_edit_list(self, tmp_path: Path) -> None:
        path = clip(tmp_path, "mp4")
        content = bytearray(path.read_bytes())
        place = content.index(b"elst")
        (length,) = struct.unpack(">I", content[place + 12 : place + 16])
        content[place + 12 : place + 16] = struct.pack(">I", length // 2)
        path.write_bytes(content)
        frames, error = read(path)
        assert error == "" and len(frames) < COUNT

    @pytest.mark.parametrize(
        ("ending", "codec", "options"),
        [("mkv", "libx264", {"x264-params": "open-gop=1:keyint=30:bframes=4"}), ("mkv", "mpeg2video", {"bf": "2"}),
         ("ts", "libx264", {"x264-params": "open-gop=1:keyint=30:bframes=4"}), ("avi", "mpeg4", {"bf": "2"}),
         ("webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16", "arnr-maxframes": "5"})],
    )  # fmt: skip
    @pytest.mark.parametrize("start_seconds", [None, 2.0])
    def test_packets_that_show_nothing(
        self, tmp_path: Path, ending: str, codec: str, options: dict[str, str], start_seconds: float | None
    ) -> None:
        """Hidden frames, and those that lead the keyframe that a seek goes to."""
        path = write_video(tmp_path / f"a.{ending}", moving_frames(COUNT), codec=codec, options=options)
        frames, error = read(path, start_seconds=start_seconds)
        assert (len(frames), error) == (COUNT if start_seconds is None else COUNT - 60, "")

    def test_an_index_in_front_and_padding_behind(self, tmp_path: Path) -> None:
        for path in (clip(tmp_path, "mp4"), clip(tmp_path, "mkv"), clip(tmp_path, "avi")):
            path.write_bytes(path.read_bytes() + bytes(1000))
            frames, error = read(path)
            assert (len(frames), error) == (COUNT, "")
