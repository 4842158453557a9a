"""The sound of joined recordings in the annotated video: it stays with its pictures, and never ends the run."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import av.error
import numpy as np
import pytest

import arr_stream
from arr_stream.config import Settings
from arr_stream.draw import audio as sound
from arr_stream.outputs import annotated_video, records_of
from arr_stream.run import RunResult, run

SETTINGS = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "2"})
RATE = 48_000
FLASH_FRAMES = 3


def part(path: Path, codec: str, *, frames: int, flash: int, sound_seconds: float, begins: float = 0.0) -> Path:
    """A dark clip of 25 fps that flashes with a tone on a frame; its clock begins at `begins`."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=25, options={"g": "10", "preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        tone = container.add_stream(codec, rate=RATE, layout="stereo")
        packets: list[av.Packet] = []
        for index in range(frames):
            value = 230 if flash <= index < flash + FLASH_FRAMES else 20
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), value, np.uint8), format="rgb24")
            picture.pts, picture.time_base = index, Fraction(1, 25)
            packets += video.encode(picture)
        packets += video.encode(None)
        at = np.arange(round(sound_seconds * RATE)) / RATE
        loud = (at >= flash / 25) & (at < (flash + FLASH_FRAMES) / 25)
        samples = np.where(loud, 0.6 * np.sin(2 * np.pi * 1000 * at), 0.0).astype(np.float32)
        form = tone.codec_context.format.name if tone.codec_context.format else "fltp"
        size = tone.codec_context.frame_size or 1024
        resampler = av.AudioResampler(form, "stereo", RATE, frame_size=size)
        block = av.AudioFrame.from_ndarray(np.stack([samples, samples]), format="fltp", layout="stereo")
        block.sample_rate, block.pts, block.time_base = RATE, 0, Fraction(1, RATE)
        for piece in [*resampler.resample(block), *resampler.resample(None)]:
            packets += tone.encode(piece)
        packets += tone.encode(None)
        for packet in sorted(packets, key=lambda each: each.dts * each.time_base):
            moved = round(Fraction(begins) / packet.time_base)
            packet.pts, packet.dts = packet.pts + moved, packet.dts + moved
            container.mux(packet)
    return path


def processed(source: Path, folder: Path, **wish: float) -> tuple[RunResult, Sequence[str]]:
    stream = arr_stream.open(source, settings=SETTINGS, **wish)  # type: ignore[arg-type]
    video = annotated_video(stream, folder / "out.mp4", view="source", force=True)
    result = run(stream, [video, records_of(stream, folder / "out.jsonl", force=True)])
    return result, video.notices


def flashes_and_tones(path: Path) -> tuple[list[float], list[float]]:
    """When pictures become bright, and when sound becomes loud, in seconds."""
    with av.open(str(path)) as container:
        bright = [(float(f.time or 0), f.to_ndarray(format="gray").mean() > 100) for f in container.decode(video=0)]
    with av.open(str(path)) as container:
        blocks = [(float(f.time or 0), f.to_ndarray(), f.sample_rate) for f in container.decode(audio=0)]
    loud = [
        (begins + place / rate, bool(np.abs(values[..., place : place + 240]).max() > 0.2))
        for begins, values, rate in blocks
        for place in range(0, values.shape[-1], 240)
    ]
    return _onsets(bright, quiet_seconds=0.3), _onsets(loud, quiet_seconds=0.3)


def _onsets(levels: Sequence[tuple[float, bool]], *, quiet_seconds: float) -> list[float]:
    onsets, last = list[float](), -np.inf
    for seconds, high in levels:
        if high:
            if seconds - last > quiet_seconds:
                onsets.append(seconds)
            last = seconds
    return onsets


JOINS = {
    "restart": [(50, 20, 2.0, 0.0), (50, 30, 2.0, 0.0)],
    "gap": [(50, 20, 2.0, 0.0), (50, 30, 2.0, 2.8)],
}


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("codec", ["ac3", "libmp3lame"])
def test_sound_stays_with_its_pictures_and_ends_where_the_clock_restarts(tmp_path: Path, codec: str, join: str) -> None:
    parts = [
        part(tmp_path / f"{n}.ts", codec, frames=frames, flash=flash, sound_seconds=seconds, begins=begins)
        for n, (frames, flash, seconds, begins) in enumerate(JOINS[join])
    ]
    source = tmp_path / "joined.ts"
    source.write_bytes(b"".join(each.read_bytes() for each in parts))
    result, notices = processed(source, tmp_path)
    assert (result.error, result.frames) == (None, sum(frames for frames, *_ in JOINS[join]))
    flashes, tones = flashes_and_tones(tmp_path / "out.mp4")
    assert len(flashes) == 2 and len(tones) == (1 if join == "restart" else 2)
    assert np.abs(np.array(flashes[: len(tones)]) - tones).max() < 0.05, (flashes, tones)
    assert ["clock of joined.ts restarts" in notice for notice in notices] == [True] * (join == "restart")


@pytest.mark.parametrize("moment", ["advance", "finish"])
def test_sound_that_cannot_be_encoded_leaves_the_video_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The encoder's refusal is real where times go back; here it is made to come at either moment."""
    source = part(tmp_path / "clip.ts", "ac3", frames=50, flash=20, sound_seconds=2.0)
    name = "bring" if moment == "advance" else "flush"

    def refused(*_: object) -> str | None:
        raise av.error.ArgumentError(22, "Invalid argument")

    monkeypatch.setattr(sound._Encoded, name, refused)
    result, notices = processed(source, tmp_path)
    assert (result.error, result.reason, result.frames) == (None, "finished", 50)
    assert any("sound ends at" in notice and "clip.ts" in notice for notice in notices)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert len(list(container.decode(video=0))) == 50
