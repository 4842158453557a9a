"""Who decodes a file: FFmpeg's own decoders, or a hardware unit that PyAV can reach.

What a hardware unit decodes is brought to the host as an ordinary picture, so that the rest of the source does not
know the difference. Whether a unit can take a file shows only when it decodes: it is tried on the first picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import av.error
from av.codec.context import CodecContext
from av.codec.hwaccel import HWAccel, hwdevices_available

from arr_stream.errors import BackendUnavailable, InvalidSetting, NotAMediaFile
from arr_stream.sources.base import Job
from arr_stream.sources.media import opened_video, reason

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
        if self.hardware is None:
            return None
        kind, _, device = self.hardware.partition(":")
        return HWAccel(kind, device or None, allow_software_fallback=not self.strict)


SOFTWARE = Decoder()


def failure(job: Job, hardware: str) -> str | None:
    """Why a unit cannot decode a file's first picture; None where it can.

    Raises:
        SourceError: The file cannot be opened at all.
    """
    with opened_video(job) as (_, stream):
        codec = stream.codec_context.name
    unit = Decoder(hardware, strict=True)
    try:
        if not CodecContext.create(codec, "r", hwaccel=unit.accelerator()).is_hwaccel:
            return f"it does not decode {codec}"
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        return f"no such device here ({reason(exc)})"
    problem = "it decodes nothing"
    try:
        with opened_video(job, accelerator=unit.accelerator()) as (container, stream):
            for packet in islice(container.demux(stream), _TRIAL_PACKETS):
                try:
                    if packet.decode():
                        return None
                except (av.error.FFmpegError, OSError) as exc:
                    problem = reason(exc)
    except NotAMediaFile as exc:
        return exc.message
    except (av.error.FFmpegError, OSError, IndexError) as exc:
        problem = reason(exc)
    return problem


Trial = Callable[[Job, str], str | None]


def choose_decoder(job: Job, fails: Trial = failure) -> Decoder:
    """Who decodes a file, by `source.hardware`.

    Args:
        job: Its hardware is `off`; `auto`, the first unit that decodes the first picture, else software; or a kind of
            unit such as `cuda`, with `:DEVICE` where there are several (`cuda:1`, `vaapi:/dev/dri/renderD129`).
        fails: Tries a unit; tests have one of their own.

    Raises:
        InvalidSetting: Neither `off`, `auto` nor a kind of unit that this build of FFmpeg knows.
        BackendUnavailable: The unit asked for is not there, or cannot decode this file.
    """
    setting, kinds = job.hardware, hwdevices_available()
    if setting == "off":
        return SOFTWARE
    if setting == "auto":
        return _first_that_decodes(job, [kind for kind in PREFERRED if kind in kinds], fails)
    if setting.partition(":")[0] not in kinds:
        raise InvalidSetting(
            f"source.hardware={setting!r} is not known to this build of FFmpeg",
            remedy=f"allowed are off, auto, {', '.join(kinds)}, and KIND:DEVICE",
        )
    problem = fails(job, setting)
    if problem is not None:
        raise BackendUnavailable(
            f"{job.name}: source.hardware={setting} cannot be used: {problem}",
            remedy="use --set source.hardware=auto, or off",
        )
    return Decoder(setting, strict=True)


def _first_that_decodes(job: Job, kinds: Sequence[str], fails: Trial) -> Decoder:
    tried: list[str] = []
    for kind in kinds:
        problem = fails(job, kind)
        if problem is None:
            return Decoder(kind, note="; ".join(tried))
        tried.append(f"{kind}: {problem}")
    return Decoder(note="; ".join(tried) or "this build of FFmpeg knows no hardware")
