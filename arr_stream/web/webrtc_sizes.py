"""The size that a coded key picture states, read before a decoder makes room for it."""

from __future__ import annotations

START_CODE = b"\x00\x00\x01"
_SPS = 7
_LONGEST_SPS_BYTES = 4096
_MOST_ZEROS = 32
"""Numbers have no more bits; a long row of zeros would make one that takes minutes to read."""
_WITH_CHROMA = {100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135}


def coded_size_wh(codec: str, data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a key picture, before any cropping; None where none are stated.

    Args:
        codec: `VP8` or `H264`.
        data: VP8's frame (RFC 6386, 9.1), or H.264's NAL units with start codes.
    """
    if codec == "VP8":
        return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF
    at = data.find(START_CODE)
    while 0 <= at < len(data) - 3:
        end = data.find(START_CODE, at + 3)
        if data[at + 3] & 0x1F == _SPS:
            longest = at + 4 + _LONGEST_SPS_BYTES
            return _h264_size_wh(data[at + 4 : min(end, longest) if end >= 0 else longest])
        at = end
    return None


def _h264_size_wh(sps: bytes) -> tuple[int, int] | None:
    """From a sequence parameter set, without its header byte (ITU-T H.264, 7.3.2.1.1)."""
    try:
        bits = _Bits(sps.replace(b"\x00\x00\x03", b"\x00\x00"))
        profile = bits.number(8)
        bits.number(16)  # constraints, level
        bits.golomb()  # its id
        if profile in _WITH_CHROMA:
            _skip_chroma(bits)
        bits.golomb()  # bits of frame numbers
        order = bits.golomb()
        if order == 0:
            bits.golomb()
        elif order == 1:
            bits.number(1)
            bits.golomb(), bits.golomb()
            for _ in range(min(bits.golomb(), 255)):
                bits.golomb()
        bits.golomb(), bits.number(1)  # reference frames, gaps
        columns, rows = bits.golomb() + 1, bits.golomb() + 1
        fields = 1 if bits.number(1) else 2
    except IndexError:
        return None
    return 16 * columns, 16 * rows * fields


def _skip_chroma(bits: _Bits) -> None:
    """Chroma format, depths and scaling lists, which only the higher profiles have."""
    lists = 8
    if bits.golomb() == 3:
        lists = 12
        bits.number(1)
    bits.golomb(), bits.golomb(), bits.number(1)
    if not bits.number(1):
        return
    for which in range(lists):
        if bits.number(1):
            last = following = 8
            for _ in range(16 if which < 6 else 64):
                if following:
                    step = bits.golomb()
                    following = (last + (step + 1) // 2 * (1 if step % 2 else -1)) % 256
                last = following or last


class _Bits:
    """Reads numbers bit by bit; `IndexError` behind the end, and where a number has too many."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = value << 1 | self._data[self._at >> 3] >> (7 - (self._at & 7)) & 1
            self._at += 1
        return value

    def golomb(self) -> int:
        """An unsigned Exp-Golomb number (9.1)."""
        zeros = 0
        while not self.number(1):
            zeros += 1
            if zeros > _MOST_ZEROS:
                raise IndexError("not an Exp-Golomb number")
        return (1 << zeros) - 1 + self.number(zeros)
