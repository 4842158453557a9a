"""Cameras of this machine, through FFmpeg's devices: v4l2 on Linux, AVFoundation on macOS, DirectShow on Windows."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import av
import av.error
from av.container import Flags, InputContainer

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, BackendUnavailable
from arr_stream.sources.base import SourceStats
from arr_stream.sources.live.cameras import find_camera
from arr_stream.sources.live.capture import asked_size
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.interrupt import Interrupt
from arr_stream.sources.live.problems import camera_problem
from arr_stream.sources.live.spec import LiveSpec

_FORMATS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}


def camera_opener(spec: LiveSpec, settings: Settings) -> Callable[[Interrupt, SourceStats], Decoding]:
    """What opens the camera; it is looked for each time, since one that is plugged in again may get a new number."""
    options = camera_options(settings)

    def open_once(interrupt: Interrupt, stats: SourceStats) -> Decoding:
        container = _open(find_camera(spec.target), spec, settings, options, interrupt)

        def problem(error: Exception) -> ArrStreamError:
            return camera_problem(spec.name, error, opened=True)

        try:
            return Decoding(
                container,
                name=spec.name,
                interrupt=interrupt,
                stats=stats,
                max_pixels=settings.source.max_pixels,
                silent_seconds=settings.live.stall_seconds,
                problem=problem,
            )
        except BaseException:
            container.close()
            raise

    return open_once


def camera_options(settings: Settings) -> dict[str, str]:
    """FFmpeg's options for what the settings ask of a camera."""
    size_wh = asked_size(settings)
    options = {"fpsprobesize": "0"}
    if size_wh is not None:
        options["video_size"] = f"{size_wh[0]}x{size_wh[1]}"
    if settings.live.fps:
        options["framerate"] = f"{settings.live.fps:g}"
    return options


def _open(
    device: str, spec: LiveSpec, settings: Settings, options: dict[str, str], interrupt: Interrupt
) -> InputContainer:
    kind = _FORMATS.get(sys.platform)
    if kind is None:
        raise BackendUnavailable(
            f"{spec.name}: cameras are not read on {sys.platform}",
            remedy="send its picture over RTSP and give the address",
        )
    target = f"video={device}" if kind == "dshow" else device
    try:
        with interrupt.within(settings.live.connect_seconds):
            container = av.open(target, "r", format=kind, options=options, timeout=settings.live.connect_seconds)
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        raise camera_problem(spec.name, exc, opened=False) from exc
    # Reading must not block, since a camera that hangs could not be left otherwise.
    container.flags |= Flags.non_block.value  # type: ignore[operator]
    if kind == "v4l2":
        _unblock(device)
    return container


def _unblock(device: str) -> None:
    """FFmpeg takes the flag only while it opens a v4l2 device, when it cannot be given: so the open file is told."""
    path = os.path.realpath(device)
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.path.realpath(link) == path:
                os.set_blocking(int(link.name), False)
