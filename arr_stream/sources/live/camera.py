"""Cameras of this machine, and their pictures through FFmpeg's devices.

The devices are v4l2 on Linux, AVFoundation on macOS and DirectShow on Windows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import av
import av.device
import av.error
from av.container import Flags, InputContainer

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, CameraUnavailable
from arr_stream.sources.base import SourceStats
from arr_stream.sources.live.connection import Interrupt
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.spec import LiveSpec
from arr_stream.sources.media import reason

_FORMATS = {"linux": "v4l2", "darwin": "avfoundation", "win32": "dshow"}


@dataclass(frozen=True, slots=True)
class Camera:
    """One camera of this machine.

    Args:
        source: Source that opens it, such as `/dev/video0` or `camera:FaceTime HD Camera`.
        name: The maker's name.
        device: The system's name.
        index: Its number, as in `camera:0`.
    """

    source: str
    name: str
    device: str
    index: int


def list_cameras() -> list[Camera]:
    """Return the cameras of this machine that may be opened, by their numbers; empty if there are none."""
    try:
        devices = av.device.enumerate_input_devices(_FORMATS[sys.platform])
    except (KeyError, av.error.FFmpegError, OSError, ValueError):
        return []
    if sys.platform == "linux":
        found = [(device, re.fullmatch(r"/dev/video(\d+)", device.name)) for device in devices]
        cameras = [Camera(each.name, each.description, each.name, int(node[1])) for each, node in found if node]
        return sorted(cameras, key=lambda camera: camera.index)
    return [
        Camera(f"camera:{device.description}", device.description, device.name, index)
        for index, device in enumerate(device for device in devices if "video" in device.media_types)
    ]


def find_camera(wanted: str) -> str:
    """Return the device for a device, a number, or a part of a camera's name.

    Raises:
        CameraUnavailable: No camera matches; the message names the existing ones.
    """
    if wanted.startswith("/dev/"):
        return wanted
    cameras, name = list_cameras(), wanted.lower()
    if wanted.isdecimal():
        fitting = [camera for camera in cameras if camera.index == int(wanted)]
    else:
        fitting = [camera for camera in cameras if camera.name.lower() == name]
        fitting += [camera for camera in cameras if name in camera.name.lower()]
    if fitting:
        return fitting[0].device
    if not cameras:
        raise CameraUnavailable(
            f"camera {wanted}: there is no camera on this machine", remedy="plug one in, or allow its use"
        )
    there = ", ".join(f"{camera.index} ({camera.name})" for camera in cameras)
    raise CameraUnavailable(f"camera {wanted}: no such camera", remedy=f"there are {there}")


def open_camera(spec: LiveSpec, settings: Settings, interrupt: Interrupt, stats: SourceStats) -> Decoding:
    """Open the camera once; it is searched each time, since a camera that is plugged in again may get a new number."""
    return Decoding(
        _open(find_camera(spec.target), spec, settings, interrupt),
        name=spec.name,
        settings=settings,
        interrupt=interrupt,
        stats=stats,
        problem=lambda error: camera_problem(spec.name, error, opened=True),
    )


def camera_options(settings: Settings) -> dict[str, str]:
    """Return FFmpeg's options for the camera settings."""
    options = {"fpsprobesize": "0"}
    if settings.live.size != "auto":
        options["video_size"] = settings.live.size
    if settings.live.fps:
        options["framerate"] = f"{settings.live.fps:g}"
    return options


def _open(device: str, spec: LiveSpec, settings: Settings, interrupt: Interrupt) -> InputContainer:
    kind = _FORMATS.get(sys.platform)
    if kind is None:
        raise BackendUnavailable(
            f"{spec.name}: cameras are not read on {sys.platform}",
            remedy="send its picture over RTSP and give the address",
        )
    target = f"video={device}" if kind == "dshow" else device
    try:
        with interrupt.within(settings.live.connect_seconds):
            container = av.open(
                target, "r", format=kind, options=camera_options(settings), timeout=settings.live.connect_seconds
            )
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        raise camera_problem(spec.name, exc, opened=False) from exc
    # Reading must not block, since a hanging camera could not be closed otherwise.
    container.flags |= Flags.non_block.value  # type: ignore[operator]
    if kind == "v4l2":
        _unblock(device)
    return container


def _unblock(device: str) -> None:
    """Set the flag on the open file of a v4l2 device: FFmpeg reads it only during opening, when it cannot be passed."""
    path = os.path.realpath(device)
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.path.realpath(link) == path:
                os.set_blocking(int(link.name), False)


def camera_problem(name: str, error: Exception, *, opened: bool) -> CameraUnavailable:
    """Return the error for a camera that cannot be opened, or, if it was `opened`, has stopped."""
    if opened:
        return CameraUnavailable(f"{name}: the camera has stopped: {reason(error)}", remedy="check its plug and cable")
    number = getattr(error, "errno", None)
    if number == errno.EBUSY:
        return CameraUnavailable(f"{name}: another program uses this camera", remedy="close it there")
    if number in (errno.EACCES, errno.EPERM):
        remedy = "join the group `video`, or allow the camera to programs"
        return CameraUnavailable(f"{name}: may not be opened", remedy=remedy)
    return CameraUnavailable(
        f"{name}: the camera cannot be opened: {reason(error)}",
        remedy="see `arr-stream cameras`, and leave live.size and live.fps at their defaults",
    )
