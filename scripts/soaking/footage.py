"""Pictures that go on for ever, as H.264 in MPEG-TS: coded once, and sent again and again with new times."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import av
import cv2
import numpy as np

from arr_stream.types import ByteArray

FPS = 30
_CLOCK = 90_000
_STEP = _CLOCK // FPS
_OPTIONS = {"preset": "ultrafast", "tune": "zerolatency", "crf": "26", "g": "30"}
_SCENE_SECONDS = 4
_FIRST_SECONDS = 7200.0
"""So that the clock can be set back."""


@dataclass(frozen=True, slots=True)
class CodedFrame:
    """One picture as the encoder gave it."""

    data: bytes
    key: bool


class Footage:
    """Two scenes with moving things, and a cut between them.

    Args:
        size_wh: Size of the pictures.
        seed: Another scene for another seed.
    """

    def __init__(self, size_wh: tuple[int, int], seed: int = 0) -> None:
        self.size_wh = size_wh
        self.frames = tuple(_coded(size_wh, seed))


def _coded(size_wh: tuple[int, int], seed: int) -> Iterator[CodedFrame]:
    with av.open(io.BytesIO(), "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=FPS, options=_OPTIONS)
        stream.width, stream.height = size_wh
        stream.pix_fmt = "yuv420p"
        for scene in range(2):
            ground = _ground(size_wh, seed + scene)
            for index in range(_SCENE_SECONDS * FPS):
                picture = av.VideoFrame.from_ndarray(_picture(ground, index / FPS), format="rgb24")
                picture.pts = scene * _SCENE_SECONDS * FPS + index
                for packet in stream.encode(picture):
                    yield CodedFrame(bytes(packet), packet.is_keyframe)


def _ground(size_wh: tuple[int, int], seed: int) -> ByteArray:
    noise = np.random.default_rng(seed).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 2.0), dtype=np.uint8)


def _picture(ground: ByteArray, seconds: float) -> ByteArray:
    height, width = ground.shape[:2]
    rgb = ground.copy()
    for colour, speed in (((224, 60, 48), 1.3), ((60, 176, 84), 2.1)):
        centre = (
            round(width * (0.5 + 0.35 * np.sin(speed * seconds))),
            round(height * (0.5 + 0.3 * np.cos(1.3 * speed * seconds))),
        )
        cv2.circle(rgb, centre, height // 6, colour, -1, cv2.LINE_AA)
    return rgb


class Broadcast:
    """MPEG-TS without an end, a picture at a time.

    Attributes:
        seconds: The stream's own time of the next picture.
    """

    def __init__(self, footage: Footage, first_seconds: float = _FIRST_SECONDS) -> None:
        self.seconds = first_seconds
        self._footage = footage
        self._number = 0
        self._begin()

    def show(self, footage: Footage) -> None:
        """Go on with other pictures, such as larger ones; from their first on."""
        self._footage, self._number = footage, 0

    def leap(self, seconds: float) -> None:
        """The stream's own clock is set, forward or back."""
        self.seconds = max(0.0, self.seconds + seconds)
        # A muxer refuses times that go back, as a sender that starts anew does not.
        self._begin()

    def next(self) -> bytes:
        """The packets of the next picture."""
        frame = self._footage.frames[self._number]
        self._number = (self._number + 1) % len(self._footage.frames)
        packet = av.Packet(frame.data)
        packet.pts = packet.dts = round(self.seconds * _CLOCK)
        packet.time_base = Fraction(1, _CLOCK)
        packet.stream = self._stream
        packet.is_keyframe = frame.key
        self._muxer.mux(packet)
        self.seconds += 1 / FPS
        taken = bytes(self._out.data)
        self._out.data.clear()
        return taken

    def _begin(self) -> None:
        self._out = _Out()
        self._muxer = av.open(self._out, "w", format="mpegts", options={"flush_packets": "1"})
        width, height = self._footage.size_wh
        self._stream = self._muxer.add_mux_stream("h264", rate=FPS, width=width, height=height)
        self._stream.time_base = Fraction(1, _CLOCK)


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
