"""What may stand in a browser's WebRTC offer, and what is added to the answer.

An offer comes from outside, so it is looked at before aiortc reads it: one video that the browser sends, at most one
audio beside it (which is answered as inactive), nothing else, and not much text.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from arr_stream.errors import ConnectionFailed, NoVideoStream

LARGEST_OFFER_BYTES = 64_000
_MOST_LINES = 2000

# Chromium begins at 300 kbit/s, and with it at a quarter of the size, if it is told nothing.
START_KBPS = 2500
LEAST_KBPS = 1000
MOST_KBPS = 8000

_MEDIA = re.compile(r"m=(\S+) (\d+) \S+ .+")
_RTPMAP = re.compile(r"a=rtpmap:(\d{1,3}) ([\w-]+)/\d+")
_ABOUT_CODEC = re.compile(r"a=(fmtp|rtpmap):(\d{1,3}) ")
_DIRECTIONS = {"a=sendrecv", "a=sendonly", "a=recvonly", "a=inactive"}
_SENDING = {"a=sendrecv", "a=sendonly"}


class OfferRefused(ConnectionFailed):
    """The browser's offer is malformed, or asks for what is not given."""


@dataclass(frozen=True, slots=True)
class _Section:
    kind: str
    lines: tuple[str, ...]

    @property
    def sends(self) -> bool:
        said = [line for line in self.lines if line in _DIRECTIONS]
        return not said or said[-1] in _SENDING


def checked_offer(sdp: str, kind: str) -> str:
    """The offer as aiortc may read it.

    Its candidates are taken out: the browser finds the server, and the server answers to where the authenticated check
    came from. So nobody can make the server send packets to, or look up the names of, hosts that stand in an offer.

    Args:
        sdp: The session description.
        kind: What the browser says it is; only `offer` will do.

    Raises:
        OfferRefused: No offer, too large, malformed, or with more than one video or a data channel.
        NoVideoStream: There is no video in it, or none that the browser sends.
    """
    if kind != "offer":
        raise OfferRefused(f"WebRTC: a description of type {kind[:20]!r} was sent, expected 'offer'")
    size_bytes = len(sdp.encode("utf-8", "replace"))
    if size_bytes > LARGEST_OFFER_BYTES:
        raise OfferRefused(f"WebRTC: the offer has {size_bytes} bytes, at most {LARGEST_OFFER_BYTES} are allowed")
    lines = [line.strip() for line in sdp.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES or not lines or lines[0] != "v=0":
        raise OfferRefused("WebRTC: the offer is no session description (SDP)", remedy="send that of createOffer()")
    _check_sections(_sections(lines))
    kept = [line for line in lines if not line.startswith(("a=candidate:", "a=end-of-candidates"))]
    return "\r\n".join(kept) + "\r\n"


def _check_sections(sections: list[_Section]) -> None:
    videos = [section for section in sections if section.kind == "video"]
    if not any(section.sends for section in videos):
        raise NoVideoStream(
            "WebRTC: the offer has no video that the browser sends",
            remedy="add the camera's or the screen's video track",
        )
    if len(videos) > 1:
        raise OfferRefused(f"WebRTC: the offer has {len(videos)} videos, expected one", remedy="make one offer a video")
    others = [section.kind for section in sections if section.kind != "video"]
    if others not in ([], ["audio"]):
        raise OfferRefused(
            f"WebRTC: the offer has {', '.join(kind[:20] for kind in others[:4])} beside its video",
            remedy="offer one video track and no data channel",
        )


def _sections(lines: list[str]) -> list[_Section]:
    starts = [i for i, line in enumerate(lines) if line.startswith("m=")]
    sections = []
    for start, end in itertools.pairwise([*starts, len(lines)]):
        match = _MEDIA.fullmatch(lines[start])
        if match is None:
            raise OfferRefused(f"WebRTC: the offer's line {lines[start][:60]!r} is malformed")
        sections.append(_Section(match.group(1), tuple(lines[start + 1 : end])))
    return sections


def video_codecs(sdp: str) -> dict[int, str]:
    """Payload types of a description's video, each with the name of its coding in capitals."""
    found: dict[int, str] = {}
    for section in _sections(sdp.splitlines()):
        if section.kind == "video":
            for line in section.lines:
                if (match := _RTPMAP.match(line)) is not None:
                    found[int(match.group(1))] = match.group(2).upper()
    return found


def with_rates(answer_sdp: str) -> str:
    """The answer with the bit rates that the browser should begin with, not go below and not exceed.

    `b=AS` (RFC 4566, 5.8) is understood by all, the `x-google-` parameters by Chromium and what is made of it.
    """
    wish = f"x-google-start-bitrate={START_KBPS};x-google-min-bitrate={LEAST_KBPS};x-google-max-bitrate={MOST_KBPS}"
    codecs = {number for number, name in video_codecs(answer_sdp).items() if name != "RTX"}
    lines = answer_sdp.splitlines()
    described = {number for number in codecs if any(line.startswith(f"a=fmtp:{number} ") for line in lines)}
    told: list[str] = []
    in_video = False
    for line in lines:
        if line.startswith("m="):
            in_video = line.startswith("m=video")
        match = _ABOUT_CODEC.match(line)
        number = int(match.group(2)) if match is not None and in_video else None
        about = match.group(1) if match is not None and number in codecs else ""
        told.append(f"{line};{wish}" if about == "fmtp" else line)
        if in_video and line.startswith("c="):
            told.append(f"b=AS:{MOST_KBPS}")
        if about == "rtpmap" and number not in described:
            told.append(f"a=fmtp:{number} {wish}")
    return "\r\n".join(told) + "\r\n"
