"""Pictures that go on for ever, as H.264 in MPEG-TS: coded once, and sent again and again with new times."""

from __future__ import annotations

import io
from fractions import Fraction

import av

from benchmarks.live.scene import Scene

FPS = 30
_CLOCK = 90_000
_OPTIONS = {"preset": "ultrafast", "tune": "zerolatency", "crf": "26", "g": "30"}
_SCENE_FRAMES = 4 * FPS
_FIRST_SECONDS = 7200.0
"""So that the clock can be set back."""


class Footage:
    """Two scenes with moving things, and a cut between them.

    Args:
        size_wh: Size of the pictures.
        seed: Another scene for another seed.

    Attributes:
        frames: Each picture as the encoder gave it, and whether it is a keyframe.
    """

    def __init__(self, size_wh: tuple[int, int], seed: int = 0) -> None:
        self.size_wh = size_wh
        self.frames: list[tuple[bytes, bool]] = []
        with av.open(io.BytesIO(), "w", format="mpegts") as container:
            stream = container.add_stream("libx264", rate=FPS, options=_OPTIONS)
            stream.width, stream.height = size_wh
            stream.pix_fmt = "yuv420p"
            for index in range(2 * _SCENE_FRAMES):
                if index % _SCENE_FRAMES == 0:
                    scene = Scene(size_wh, seed + index)
                picture = av.VideoFrame.from_ndarray(scene.picture(index, index / FPS), format="rgb24")
                picture.pts = index
                self.frames += [(bytes(packet), packet.is_keyframe) for packet in stream.encode(picture)]


class Broadcast:
    """MPEG-TS without an end, a picture at a time.

    Attributes:
        seconds: The stream's own time of the next picture.
    """

    def __init__(self, footage: Footage, first_seconds: float = _FIRST_SECONDS) -> None:
        self.seconds = first_seconds
        self._footage = footage
        self._number = 0
        self._out = _Out()
        self._muxer = av.open(self._out, "w", format="mpegts", options={"flush_packets": "1"})
        self._stream = self._muxer.add_mux_stream("h264", rate=FPS, width=footage.size_wh[0], height=footage.size_wh[1])
        self._stream.time_base = Fraction(1, _CLOCK)

    def next(self) -> bytes:
        """The packets of the next picture."""
        data, key = self._footage.frames[self._number]
        self._number = (self._number + 1) % len(self._footage.frames)
        packet = av.Packet(data)
        packet.pts = packet.dts = round(self.seconds * _CLOCK)
        packet.time_base = Fraction(1, _CLOCK)
        packet.stream = self._stream
        packet.is_keyframe = key
        self._muxer.mux(packet)
        self.seconds += 1 / FPS
        taken = bytes(self._out.data)
        self._out.data.clear()
        return taken


class _Out(io.RawIOBase):
    """Keeps what a muxer writes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self.data += view
        return view.nbytes
