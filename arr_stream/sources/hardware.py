"""Who decodes a file: FFmpeg's own decoders, or a hardware unit that PyAV can reach.

What a hardware unit decodes is brought to the host as an ordinary picture, so that the rest of the source does not
know the difference. Whether a unit can take a file shows only when it decodes: it is tried on the first picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av.error
from av.codec.context import CodecContext
from av.codec.hwaccel import HWAccel, hwdevices_available

from arr_stream.errors import BackendUnavailable, InvalidSetting, MotionVectorsUnavailable, NotAMediaFile
from arr_stream.sources.media import choose_stream, open_media, reason

PREFERRED = ("cuda", "videotoolbox", "vaapi", "d3d11va", "qsv", "vdpau", "d3d12va", "dxva2", "vulkan", "amf")
"""Kinds of units in the order in which `auto` tries them; `drm`, `opencl` and the like decode nothing by themselves."""

_TRIAL_PACKETS = 64  # a file that was joined part-way begins with some that decode to nothing


@dataclass(frozen=True, slots=True)
class Decoder:
    """Who decodes.

    Args:
        hardware: Kind of unit, with `:DEVICE` where one was named; None for FFmpeg's own decoders.
        strict: Fail rather than let software take over what the unit cannot decode.
        note: What `auto` tried in vain, or why it tried nothing; empty where nothing needs saying.
    """

    hardware: str | None = None
    strict: bool = False
    note: str = ""

    def __str__(self) -> str:
        name = self.hardware or "software"
        return f"{name} ({self.note})" if self.note else name

    def accelerator(self) -> HWAccel | None:
        """For `open_media`."""
        return None if self.hardware is None else _accelerator(self.hardware, fall_back=not self.strict)


SOFTWARE = Decoder()

Trial = Callable[[Path, str, int | None, str], str | None]


def check_hardware(setting: str) -> None:
    """Refuse what cannot be a value of `source.hardware` here.

    Raises:
        InvalidSetting: Neither `off`, `auto` nor a kind of unit that this build of FFmpeg knows.
    """
    kinds = hwdevices_available()
    if setting not in ("off", "auto") and setting.partition(":")[0] not in kinds:
        raise InvalidSetting(
            f"source.hardware={setting!r} is not known to this build of FFmpeg",
            remedy=f"allowed are off, auto, {', '.join(kinds)}, and KIND:DEVICE",
        )


def choose_decoder(
    path: Path, name: str, number: int | None, setting: str, *, motion_vectors: bool, trial: Trial | None = None
) -> Decoder:
    """Who decodes a file, by `source.hardware`.

    Args:
        path, name, number: The file, what to call it, and which video stream.
        setting: `off`; `auto`, the first unit that decodes the first picture, else software; or a kind of unit such as
            `cuda`, with `:DEVICE` where there are several (`cuda:1`, `vaapi:/dev/dri/renderD129`).
        motion_vectors: They are wanted, and hardware hands out none.
        trial: What `failure` does, for tests.

    Raises:
        InvalidSetting: See `check_hardware`.
        BackendUnavailable: The unit asked for is not there, or cannot decode this file.
        MotionVectorsUnavailable: A unit was asked for, and motion vectors are wanted.
    """
    check_hardware(setting)
    fails = trial or failure
    if setting == "off":
        return SOFTWARE
    if setting == "auto":
        if motion_vectors:
            return Decoder(note="motion vectors are wanted, and hardware hands out none")
        return _first_that_decodes(lambda hardware: fails(path, name, number, hardware))
    if motion_vectors:
        raise MotionVectorsUnavailable(
            f"{name}: source.hardware={setting} hands out no motion vectors",
            remedy="use --set source.hardware=off, or --set motion.flow=dis",
        )
    problem = fails(path, name, number, setting)
    if problem is not None:
        raise BackendUnavailable(
            f"{name}: source.hardware={setting} cannot be used: {problem}",
            remedy="use --set source.hardware=auto, or off",
        )
    return Decoder(setting, strict=True)


def _first_that_decodes(fails: Callable[[str], str | None]) -> Decoder:
    available = hwdevices_available()
    tried: list[str] = []
    for kind in (kind for kind in PREFERRED if kind in available):
        problem = fails(kind)
        if problem is None:
            return Decoder(kind, note="; ".join(tried))
        tried.append(f"{kind}: {problem}")
    return Decoder(note="; ".join(tried) or "this build of FFmpeg knows no hardware")


def failure(path: Path, name: str, number: int | None, hardware: str) -> str | None:
    """Why a unit cannot decode a file's first picture; None where it can.

    Raises:
        SourceError: The file cannot be opened at all.
    """
    media = open_media(path, name)
    try:
        codec = choose_stream(media.container, name, number)[0].codec_context.name
    finally:
        media.close()
    try:
        context = CodecContext.create(codec, "r", hwaccel=_accelerator(hardware, fall_back=False))
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        return f"no such device here ({reason(exc)})"
    if not context.is_hwaccel:
        return f"it does not decode {codec}"
    return _failure_to_decode(path, name, number, hardware)


def _failure_to_decode(path: Path, name: str, number: int | None, hardware: str) -> str | None:
    problem = "it decodes nothing"
    try:
        media = open_media(path, name, accelerator=_accelerator(hardware, fall_back=False))
    except NotAMediaFile as exc:
        return exc.message
    try:
        stream, _ = choose_stream(media.container, name, number)
        for packets, packet in enumerate(media.container.demux(stream)):
            try:
                if any(True for _ in packet.decode()):
                    return None
            except (av.error.FFmpegError, OSError) as exc:
                problem = reason(exc)
            if packets == _TRIAL_PACKETS:
                break
    except (av.error.FFmpegError, OSError, IndexError) as exc:
        problem = reason(exc)
    finally:
        media.close()
    return problem


def _accelerator(hardware: str, *, fall_back: bool) -> HWAccel:
    kind, _, device = hardware.partition(":")
    return HWAccel(kind, device or None, allow_software_fallback=fall_back)
