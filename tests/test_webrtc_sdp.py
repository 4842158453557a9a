"""What a browser's offer may hold, and what the answer tells it."""

from __future__ import annotations

import pytest

from arr_stream.errors import ConnectionFailed, NoVideoStream
from arr_stream.web.webrtc_sdp import LARGEST_OFFER_BYTES, OfferRefused, checked_offer, video_codecs, with_rates

HEAD = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"
VIDEO = (
    "m=video 9 UDP/TLS/RTP/SAVPF 96 97 102\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=sendrecv\r\n"
    "a=candidate:1 1 udp 1 192.168.0.9 5000 typ host\r\na=candidate:2 1 udp 1 x.local 5000 typ host\r\n"
    "a=end-of-candidates\r\na=rtpmap:96 VP8/90000\r\na=rtpmap:97 rtx/90000\r\na=fmtp:97 apt=96\r\n"
    "a=rtpmap:102 H264/90000\r\na=fmtp:102 packetization-mode=1\r\n"
)
AUDIO = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:1\r\na=sendrecv\r\na=rtpmap:111 opus/48000/2\r\n"
DATA = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:2\r\n"


def test_an_offer_is_handed_on_without_the_addresses_in_it() -> None:
    for sdp in (HEAD + VIDEO, HEAD + AUDIO + VIDEO, HEAD.replace("\r\n", "\n") + VIDEO.replace("\r\n", "\n")):
        kept = checked_offer(sdp, "offer")
        assert "candidate" not in kept and "192.168" not in kept and ".local" not in kept
        assert kept.count("m=") == sdp.count("m=")
        assert all(line in kept for line in sdp.splitlines() if "candidate" not in line)


@pytest.mark.parametrize(
    ("sdp", "kind", "says"),
    [
        (HEAD + VIDEO, "answer", "'answer'"),
        (HEAD + VIDEO + "a=x:" + "y" * LARGEST_OFFER_BYTES, "offer", "at most 64000"),
        ("v=0\n" * 3000, "offer", "no session description"),
        ("", "offer", "no session description"),
        ("hello", "offer", "no session description"),
        ('{"sdp": 1}', "offer", "no session description"),
        (HEAD + VIDEO + VIDEO, "offer", "2 videos"),
        (HEAD + VIDEO + DATA, "offer", "application"),
        (HEAD + VIDEO + AUDIO + AUDIO, "offer", "audio, audio"),
        (HEAD + "m=video\r\n", "offer", "malformed"),
    ],
)
def test_what_is_no_offer_of_one_video_is_refused(sdp: str, kind: str, says: str) -> None:
    with pytest.raises(OfferRefused, match=says) as caught:
        checked_offer(sdp, kind)
    assert isinstance(caught.value, ConnectionFailed)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("sdp", [HEAD, HEAD + AUDIO, HEAD + VIDEO.replace("sendrecv", "recvonly"), HEAD + DATA])
def test_no_video_is_said_to_be_none(sdp: str) -> None:
    with pytest.raises(NoVideoStream, match="no video that the browser sends"):
        checked_offer(sdp, "offer")


def test_codecs_are_those_of_the_video() -> None:
    assert video_codecs(HEAD + AUDIO + VIDEO) == {96: "VP8", 97: "RTX", 102: "H264"}


def test_rates_are_told_of_every_coding_of_the_video_and_of_nothing_else() -> None:
    told = with_rates(HEAD + AUDIO + VIDEO).splitlines()
    audio, video = told[: told.index(VIDEO.splitlines()[0])], told[told.index(VIDEO.splitlines()[0]) :]
    assert not any("bitrate" in line or line.startswith("b=") for line in audio)
    assert video[2] == "b=AS:8000"
    rated = [line for line in video if "x-google-start-bitrate=2500" in line]
    assert [line.split(" ")[0] for line in rated] == ["a=fmtp:96", "a=fmtp:102"]
    assert "a=fmtp:102 packetization-mode=1;x-google-start" in rated[1] and "a=fmtp:97 apt=96" in video
