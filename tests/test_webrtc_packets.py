"""Coded pictures out of RTP packets: in order, at once, whatever happens to the packets."""

from __future__ import annotations

import itertools
from fractions import Fraction

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.web.webrtc_packets import CLOCK_HZ, CodedPicture, Packet, PictureAssembler, is_key, nal_kinds
from arr_stream.web.webrtc_sizes import START_CODE, coded_size_wh

KEY_HEAD = b"\x10\x00\x00\x9d\x01\x2a\x80\x02\x68\x01"
STEP_TICKS = CLOCK_HZ // 30


def packets_of(
    pictures: int,
    *,
    each: int = 3,
    sequence: int = 65530,
    timestamp: int = 2**32 - STEP_TICKS,
    keys: tuple[int, ...] = (0,),
) -> list[Packet]:
    """Packets of VP8 pictures, `each` of them one; numbers and times begin again on the way."""
    made = []
    for n in range(pictures):
        for part in range(each):
            head = (KEY_HEAD if n in keys else b"\x11" * 10) if part == 0 else b""
            made.append(
                Packet(
                    sender=7,
                    sequence=(sequence + n * each + part) & 0xFFFF,
                    timestamp=(timestamp + n * STEP_TICKS) & 0xFFFFFFFF,
                    marker=part == each - 1,
                    codec="VP8",
                    data=head + bytes([n, part]),
                )
            )
    return made


def assembled(packets: list[Packet], *, step_seconds: float = 0.001) -> tuple[list[CodedPicture], list[bool]]:
    got: list[CodedPicture] = []
    assembler = PictureAssembler(got.append)
    return got, [assembler.add(packet, n * step_seconds) for n, packet in enumerate(packets)]


def numbers(pictures: list[CodedPicture]) -> list[int]:
    return [picture.data[10] for picture in pictures]


def test_each_picture_comes_with_its_last_packet() -> None:
    got: list[CodedPicture] = []
    assembler = PictureAssembler(got.append)
    for n, packet in enumerate(packets_of(5)):
        assembler.add(packet, float(n))
        assert len(got) == (n + 1) // 3
    assert [picture.arrived_seconds for picture in got] == [2.0, 5.0, 8.0, 11.0, 14.0]
    assert [picture.key for picture in got] == [True, False, False, False, False]


def test_times_go_on_when_the_timestamp_begins_again() -> None:
    got, _ = assembled(packets_of(4))
    steps = [round((b.sent_seconds - a.sent_seconds) * CLOCK_HZ) for a, b in itertools.pairwise(got)]
    assert steps == [STEP_TICKS] * 3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_order_and_repetition_of_packets_do_not_matter(each: int, random) -> None:  # type: ignore[no-untyped-def]
    """Within a reach of a few packets, as networks do it; the very first packet has to come first."""
    packets = packets_of(12, each=each)
    shuffled = [packets[0], *sorted(packets[1:], key=lambda packet: packets.index(packet) + random.random() * 6)]
    for _ in range(5):
        shuffled.insert(random.randrange(1, len(shuffled)), random.choice(packets[: len(shuffled) // 2]))
    got, asked = assembled(shuffled)
    assert numbers(got) == list(range(12))
    assert not any(asked)


def test_a_packet_that_comes_again_in_time_loses_nothing() -> None:
    packets = packets_of(6)
    late = packets.pop(7)
    got, asked = assembled([*packets[:12], late, *packets[12:]])
    assert numbers(got) == list(range(6)) and not any(asked)


def test_what_depends_on_a_lost_packet_is_passed_over_and_a_key_picture_asked_for() -> None:
    packets = packets_of(60, keys=(0, 50))
    del packets[16]
    got, asked = assembled(packets, step_seconds=0.01)
    assert numbers(got) == [0, 1, 2, 3, 4, *range(50, 60)]
    # Not more often than twice a second, and no more once it has come.
    assert 2 <= sum(asked) <= 3 and not any(asked[153:])


def test_a_long_gap_begins_anew() -> None:
    first, second = packets_of(3), packets_of(4, sequence=30000, timestamp=900_000, keys=(1,))
    got, _ = assembled(first + second)
    assert numbers(got) == [0, 1, 2, 1, 2, 3]


def test_without_markers_a_picture_ends_where_the_next_begins() -> None:
    packets = [Packet(p.sender, p.sequence, p.timestamp, False, p.codec, p.data) for p in packets_of(4)]
    got, _ = assembled(packets)
    assert numbers(got) == [0, 1, 2]


def test_padding_is_no_picture() -> None:
    packets = packets_of(3, each=1)
    padded = []
    for n, packet in enumerate(packets):
        sequence = (packet.sequence + n) & 0xFFFF
        padded.append(Packet(7, sequence, packet.timestamp, True, "VP8", packet.data))
        padded.append(Packet(7, (sequence + 1) & 0xFFFF, packet.timestamp, False, "VP8", b""))
    got, _ = assembled(padded)
    assert numbers(got) == [0, 1, 2]


def test_a_second_sender_is_heard_only_when_the_first_is_silent() -> None:
    got: list[CodedPicture] = []
    assembler = PictureAssembler(got.append)
    theirs = [Packet(8, p.sequence, p.timestamp, p.marker, p.codec, p.data) for p in packets_of(2, sequence=100)]
    for packet in packets_of(2):
        assembler.add(packet, 1.0)
    for packet in theirs:
        assembler.add(packet, 1.5)
    assert len(got) == 2
    for packet in theirs:
        assembler.add(packet, 3.0)
    assert len(got) == 4


def test_a_picture_without_end_is_dropped() -> None:
    got: list[CodedPicture] = []
    assembler = PictureAssembler(got.append)
    for n in range(5000):
        assembler.add(Packet(7, n, 1, False, "VP8", KEY_HEAD), n / 1000)
        assert len(assembler._parts) <= 2049
    assert got == [] and assembler.lost_pictures == 2


def test_nothing_is_given_before_a_key_picture_when_the_decoder_needs_one() -> None:
    got: list[CodedPicture] = []
    assembler = PictureAssembler(got.append)
    asked = []
    for n, packet in enumerate(packets_of(40, each=1, keys=(0, 30))):
        if n == 10:
            assembler.need_key()
        asked.append(assembler.add(packet, n / 30))
    assert numbers(got) == [*range(10), *range(30, 40)]
    # Half a second after the first packet, which counts as asked for.
    assert [n for n, ask in enumerate(asked) if ask] == [15]


def test_key_pictures_are_known() -> None:
    assert is_key("VP8", KEY_HEAD) and not is_key("VP8", b"\x11" + KEY_HEAD[1:]) and not is_key("VP8", b"\x10")
    assert coded_size_wh("VP8", KEY_HEAD) == (640, 360)
    sps, idr, slice_ = b"\x00\x00\x00\x01\x67\x42", b"\x00\x00\x00\x01\x65\x88", b"\x00\x00\x00\x01\x41\x9a"
    assert is_key("H264", sps + idr)
    assert not is_key("H264", slice_) and not is_key("H264", idr) and not is_key("H264", b"\x00\x00\x01")


@pytest.mark.parametrize("profile", ["Baseline", "Main", "High"])
@pytest.mark.parametrize("size_wh", [(640, 360), (176, 144), (1920, 1080)])
def test_the_size_of_h264_is_read_before_it_is_decoded(profile: str, size_wh: tuple[int, int]) -> None:
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height = size_wh
    context.pix_fmt, context.time_base, context.profile = "yuv420p", Fraction(1, 30), profile
    context.options = {"preset": "ultrafast", "cqm": "jvt"} if profile == "High" else {"preset": "ultrafast"}
    blank = av.VideoFrame(*size_wh, "yuv420p")
    blank.pts = 0
    data = b"".join(bytes(packet) for packet in [*context.encode(blank), *context.encode(None)])
    width, height = size_wh
    assert coded_size_wh("H264", data) == (-(-width // 16) * 16, -(-height // 16) * 16)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["VP8", "H264"]))
def test_no_bytes_disturb_the_reading_of_keys_and_sizes(data: bytes, codec: str) -> None:
    for read in (data, b"\x00\x00\x01\x67" + data, KEY_HEAD + data):
        assert is_key(codec, read) in (True, False)
        size_wh = coded_size_wh(codec, read)
        assert size_wh is None or min(size_wh) >= 0


@pytest.mark.timeout(20)
def test_a_size_that_never_ends_is_given_up_at_once() -> None:
    head = START_CODE + b"\x67\x42\x00\x1f"
    # Read bit by bit into one number, these would take minutes.
    assert coded_size_wh("H264", head + bytes(300_000) + b"\xff" * 300_000) is None
    assert coded_size_wh("H264", head + b"\x80" + bytes(3_000_000)) is None


@pytest.mark.timeout(20)
def test_pictures_of_very_many_units_are_read_once() -> None:
    # Copied once a unit, these would take minutes.
    assert nal_kinds(b"\x00\x00\x01\x01" * 700_000) == {1}
